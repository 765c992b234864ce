#include "tests/contract/test_slurm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace dsi {

bool TestSlurm::is_installed() {
  return std::system("command -v slurmctld slurmd munged salloc >/dev/null 2>&1") == 0;
}

TestSlurm::TestSlurm() {
  const std::string folder = folder_.path().string();
  const std::string user = shell("id -un");
  write_text(folder_.path() / "cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n");
  write_text(
      folder_.path() / "slurm.conf",
      fmt::format("ClusterName=test\n"
                  "SlurmctldHost={2}(127.0.0.1)\n"
                  "SlurmUser={1}\nSlurmdUser={1}\n"
                  "AuthType=auth/munge\nCryptoType=crypto/munge\n"
                  "AuthInfo=socket={0}/munge.socket\n"
                  "SlurmctldPort={3}\nSlurmdPort={4}\n"
                  "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
                  "JobAcctGatherType=jobacct_gather/none\nSelectType=select/linear\n"
                  "MpiDefault=none\nSwitchType=switch/none\n"
                  "SlurmdParameters=config_overrides\nReturnToService=2\n"
                  "SlurmctldPidFile={0}/slurmctld.pid\nSlurmdPidFile={0}/slurmd.pid\n"
                  "StateSaveLocation={0}/state\nSlurmdSpoolDir={0}/spool\n"
                  "SlurmctldLogFile={0}/slurmctld.log\nSlurmdLogFile={0}/slurmd.log\n"
                  "NodeName=testnode NodeHostname={2} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN\n"
                  "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
                  folder, user.substr(0, user.find('\n')),
                  shell("hostname -s").substr(0, shell("hostname -s").find('\n')), free_port(),
                  free_port()));
  ::setenv("SLURM_CONF", (folder + "/slurm.conf").c_str(), 1);
  shell(
      fmt::format("cd '{0}' && mkdir state spool && "
                  "(umask 077; od -An -N64 -tx1 /dev/urandom | tr -d ' \\n' >munge.key) && "
                  "munged --force --key-file=munge.key --socket='{0}/munge.socket' "
                  "--num-threads=1 --pid-file='{0}/munge.pid' --log-file='{0}/munge.log' "
                  "--seed-file='{0}/munge.seed' && "
                  "slurmctld -c >out 2>&1 && slurmd -N testnode >>out 2>&1 && "
                  "for i in $(seq 300); do "
                  "  sinfo -h -N -o %T 2>/dev/null | grep -q '^idle' && exit 0; sleep 0.1; "
                  "done; cat out slurmctld.log slurmd.log; exit 1",
                  folder));
}

TestSlurm::~TestSlurm() {
  // Its own processes only; each is waited for, because they write when they end.
  shell(
      fmt::format("cd '{}' && for name in slurmd slurmctld munge; do "
                  "  pid=$(cat $name.pid 2>/dev/null) || continue; kill $pid 2>/dev/null; "
                  "  for i in $(seq 100); do kill -0 $pid 2>/dev/null || break; sleep 0.05; done; "
                  "done",
                  folder_.path().string()));
  ::unsetenv("SLURM_CONF");
}

std::string TestSlurm::log() const {
  return shell(fmt::format("cat '{0}'/*.log", folder_.path().string()));
}

}  // namespace dsi
