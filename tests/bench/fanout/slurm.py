"""Slurm on the hosts of the benchmark, for sbcast: slurmctld on the head, a slurmd on each host."""

import secrets
import time

# cgroups would be those of the machine that all hosts share; slurmd does not start without a line
# that says what to do about them.
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n"
CONFIGURATION = """ClusterName=bench
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/dsi-munge/socket
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
StateSaveLocation=/var/lib/dsi-slurm
SlurmdSpoolDir=/var/lib/dsi-slurm/spool
SlurmctldLogFile=/run/dsi-slurm/slurmctld.log
SlurmdLogFile=/run/dsi-slurm/slurmd.log
NodeName={nodes} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PREPARE = """
set -e
umask 022
mkdir -p /etc/slurm /run/dsi-slurm /run/dsi-munge /var/lib/dsi-slurm /opt/bench
cat >/etc/slurm/slurm.conf
printf "$2" >/etc/slurm/cgroup.conf
(umask 077; printf "$1" >/run/dsi-munge/key)
munged --force --key-file=/run/dsi-munge/key --socket=/run/dsi-munge/socket --num-threads=2 \\
  --pid-file=/run/dsi-munge/pid --log-file=/run/dsi-munge/log --seed-file=/run/dsi-munge/seed
"""


class Slurm:
    def __init__(self, hosts):
        self.hosts = hosts

    def start(self):
        hosts = self.hosts
        configuration = CONFIGURATION.format(nodes=f"node[001-{hosts.count:03d}]")
        prepare = ["sh", "-c", PREPARE, "sh", secrets.token_hex(64), CGROUP.replace("\n", "\\n")]
        hosts.control("exec", *prepare, text_in=configuration)
        hosts.control("exec", "slurmctld", "-c")
        for k in range(1, hosts.count + 1):
            hosts.control("node", k, *prepare, text_in=configuration)
            hosts.control("node", k, "slurmd", "-N", f"node{k:03d}")
        deadline = time.monotonic() + 120
        while self._idle() < hosts.count:
            if time.monotonic() > deadline:
                raise RuntimeError("slurmd does not register: " + hosts.control("exec", "sinfo", "-N", check=False))
            time.sleep(0.5)

    def stop(self):
        self.hosts.control("exec", "sh", "-c", "kill $(cat /run/dsi-slurm/slurmctld.pid /run/dsi-munge/pid)",
                           check=False)

    def _idle(self):
        states = self.hosts.control("exec", "sinfo", "-h", "-N", "-o", "%T", check=False)
        return states.split().count("idle")

    def sbcast(self, file, to):
        """What sbcast alone takes, without getting the allocation."""
        return self.hosts.run(
            "salloc", "-Q", f"-N{self.hosts.count}", "sh", "-c",
            'begin=$(date +%s.%N); sbcast -f "$1" "$2" || exit; end=$(date +%s.%N); echo "$begin $end"', "sh", file, to)
