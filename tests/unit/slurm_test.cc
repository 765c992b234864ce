#include "orchestrator/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// As scontrol of Slurm 22.05 prints them.
constexpr const char* kNodes =
    "NodeName=node001 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 NodeAddr=10.77.1.1 "
    "NodeHostName=gpu-a-1 Version=22.05.8 OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1 "
    "Sockets=1 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 Partitions=all  "
    "ExtSensorsTemp=n/s Reason=ds-install 20261130-141502-3f9c [root@2026-11-30T19:15:51]\n"
    "NodeName=node002 NodeAddr=node002 NodeHostName=node002 OS=Linux State=ALLOCATED+DRAIN "
    "ThreadsPerCore=1 Reason=disk [sda] is slow, see ticket 7 [admin@2026-11-30T19:15:51]\n"
    "NodeName=node003 NodeAddr=node003 NodeHostName=node003 State=IDLE+COMPLETING "
    "ThreadsPerCore=1\n"
    "NodeName=node004 NodeAddr=node004 NodeHostName=node004 State=DOWN*+NOT_RESPONDING "
    "ThreadsPerCore=1 Reason=Not responding [slurm@2026-11-30T19:15:51]\n"
    "NodeName=node005 NodeAddr=node005 NodeHostName=node005 State=IDLE~ ThreadsPerCore=1\n"
    "NodeName=node006 NodeAddr=node006 NodeHostName=node006 State=MIXED+CLOUD ThreadsPerCore=1\n"
    "\n"
    "something else\n";

TEST(SlurmNodes, Are_read_from_what_scontrol_prints) {
  const std::vector<SlurmNode> nodes = parse_slurm_nodes(kNodes);
  ASSERT_EQ(nodes.size(), 6u);
  EXPECT_EQ(nodes[0].name, "node001");
  EXPECT_EQ(nodes[0].host_name, "gpu-a-1");
  EXPECT_EQ(nodes[0].address, "10.77.1.1");
  EXPECT_EQ(nodes[0].reason, "ds-install 20261130-141502-3f9c");
  EXPECT_EQ(nodes[1].reason, "disk [sda] is slow, see ticket 7");
  EXPECT_EQ(nodes[3].state, "DOWN");
  EXPECT_THAT(nodes[3].flags, ElementsAre("NOT_RESPONDING"));
  EXPECT_EQ(nodes[4].state, "IDLE");
  EXPECT_EQ(nodes[4].reason, "");
  EXPECT_THAT(parse_slurm_nodes(""), IsEmpty());
  EXPECT_THAT(parse_slurm_nodes("No nodes in the system\n"), IsEmpty());
}

TEST(SlurmNodes, Are_free_when_no_job_is_there_or_ends_there) {
  const std::vector<SlurmNode> nodes = parse_slurm_nodes(kNodes);
  std::vector<bool> free;
  std::vector<bool> out;
  for (const SlurmNode& node : nodes) {
    free.push_back(node.free());
    out.push_back(node.out_of_service());
  }
  EXPECT_THAT(free, ElementsAre(true, false, false, true, true, false));
  EXPECT_THAT(out, ElementsAre(true, true, false, true, false, false));
}

}  // namespace
}  // namespace dsi
