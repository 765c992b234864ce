"""Slurm on the hosts of the benchmark, for sbcast: slurmctld on the head, a slurmd on each host.

Everything of it lies in one folder of /run, because the head's file system is the machine's, which may
have a Slurm of its own.
"""

import secrets
import time

# cgroups would be those of the machine that all hosts share; slurmd does not start without a line
# that says what to do about them.
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n"
CONFIGURATION = """ClusterName=bench
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/dsi-slurm/munge.socket
CryptoType=crypto/munge
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
MessageTimeout=300
SlurmctldPidFile=/run/dsi-slurm/slurmctld.pid
SlurmdPidFile=/run/dsi-slurm/slurmd.pid
StateSaveLocation=/run/dsi-slurm/state
SlurmdSpoolDir=/run/dsi-slurm/spool
SlurmctldLogFile=/run/dsi-slurm/slurmctld.log
SlurmdLogFile=/run/dsi-slurm/slurmd.log
NodeName={nodes} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PREPARE = """
set -e
umask 022
mkdir -p /run/dsi-slurm/state /run/dsi-slurm/spool
cd /run/dsi-slurm
cat >slurm.conf
printf "$2" >cgroup.conf
(umask 077; printf "$1" >munge.key)
munged --force --key-file="$PWD/munge.key" --socket="$PWD/munge.socket" --num-threads=2 \\
  --pid-file="$PWD/munge.pid" --log-file="$PWD/munge.log" --seed-file="$PWD/munge.seed"
"""


class Slurm:
    def __init__(self, hosts):
        self.hosts = hosts

    def start(self):
        hosts = self.hosts
        configuration = CONFIGURATION.format(nodes=f"node[001-{hosts.count:03d}]")
        prepare = ["sh", "-c", PREPARE, "sh", secrets.token_hex(64), CGROUP.replace("\n", "\\n")]
        hosts.environment["SLURM_CONF"] = "/run/dsi-slurm/slurm.conf"
        hosts.control("exec", *prepare, text_in=configuration)
        hosts.control("exec", "slurmctld", "-c")
        for k in range(1, hosts.count + 1):
            hosts.control("node", k, *prepare, text_in=configuration)
            hosts.control("node", k, "slurmd", "-f", "/run/dsi-slurm/slurm.conf", "-N", f"node{k:03d}")
        deadline = time.monotonic() + 120
        while self._idle() < hosts.count:
            if time.monotonic() > deadline:
                raise RuntimeError("slurmd does not register: " + hosts.control("exec", "sinfo", "-N", check=False))
            time.sleep(0.5)

    def stop(self):
        # slurmctld writes its state when it ends, so its end is waited for.
        self.hosts.control("exec", "sh", "-c", 'cd /run/dsi-slurm && pids=$(cat slurmctld.pid munge.pid) && kill $pids; '
                           'for pid in $pids; do while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done; done; '
                           "rm -rf /run/dsi-slurm", check=False)

    def _idle(self):
        states = self.hosts.control("exec", "sinfo", "-h", "-N", "-o", "%T", check=False)
        return states.split().count("idle")

    def sbcast(self, file, to):
        """What sbcast alone takes, without getting the allocation."""
        return self.hosts.run(
            "salloc", "-Q", f"-N{self.hosts.count}", "sh", "-c",
            'begin=$(date +%s.%N); sbcast -f "$1" "$2" || exit; end=$(date +%s.%N); echo "$begin $end"', "sh", file, to)
