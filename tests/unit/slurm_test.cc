#include "orchestrator/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "temp_folder.h"

namespace dsi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
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

// A scontrol that says what stands in `nodes`, notes each update in `log`, and refuses those that a
// line of `refused` stands in. A real one refuses what it is told to only if it is broken.
class SlurmDrainTest : public testing::Test {
 protected:
  void SetUp() override {
    write("scontrol",
          "#!/bin/sh\ncd '" + folder_.path().string() +
              "' || exit 9\n"
              "if test \"$1\" = show; then\n"
              "  if test -e down; then echo 'Unable to contact slurm controller' >&2; exit 1; fi\n"
              "  exec cat nodes\nfi\n"
              "echo \"$2 $3\" >>log\n"
              "if echo \"$2 $3\" | grep -qFf refused; then echo 'Invalid node state' >&2; exit 1; "
              "fi\n");
    std::filesystem::permissions(folder_.path() / "scontrol", std::filesystem::perms::owner_all);
    write("log", "");
    write("refused", "");
    path_ = std::getenv("PATH");
    ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
  }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomically(folder_.path() / name, text));
  }
  std::string log() const { return read_file(folder_.path() / "log").value_or(""); }
  // node1 to node3, idle; `drained` of them by this run.
  void nodes(int drained) {
    std::string text;
    for (int i = 1; i <= 3; ++i) {
      text += fmt::format("NodeName=node{} State=IDLE{}\n", i,
                          i <= drained ? "+DRAIN Reason=ds-install run-1 [root@now]" : "");
    }
    write("nodes", text);
  }
  std::unique_ptr<Drain> make() {
    return make_slurm_drain("run-1", [](const std::string&) { return false; }, processes_, {});
  }

  TempFolder folder_;
  LocalProcessRunner processes_;
  std::string path_;
};

const std::vector<std::string> kThree = {"node1", "node2", "node3"};

TEST_F(SlurmDrainTest, Nodes_that_cannot_be_given_back_together_are_given_back_each_by_itself) {
  nodes(0);
  auto drain = make();
  for (const Drain::Taken& taken : drain->take(kThree)) EXPECT_EQ(taken.error.what, "");
  nodes(3);
  write("log", "");
  write("refused", "node1,node2,node3 State=RESUME\nNodeName=node2 State=RESUME\n");
  auto answers = drain->give_back(kThree);
  ASSERT_TRUE(answers[0]);
  EXPECT_EQ(*answers[0], "");
  ASSERT_FALSE(answers[1]);
  EXPECT_THAT(answers[1].error().what,
              HasSubstr("cannot give node2 back to Slurm: scontrol says: Invalid node state"));
  EXPECT_TRUE(answers[2]);
  EXPECT_THAT(log(), testing::StartsWith("NodeName=node1,node2,node3 State=RESUME\n"));
  EXPECT_THAT(log(), HasSubstr("NodeName=node3 State=RESUME\n"));

  // The one that is left is still ours.
  write("log", "");
  write("refused", "none of them\n");
  answers = drain->give_back(kThree);
  for (const auto& answer : answers) EXPECT_TRUE(answer);
  EXPECT_EQ(log(), "NodeName=node2 State=RESUME\n");
}

TEST_F(SlurmDrainTest, A_controller_that_is_gone_when_nodes_are_to_be_given_back_is_said_of_each) {
  write("refused", "none of them\n");
  nodes(0);
  auto drain = make();
  drain->take({"node1", "node2"});
  nodes(2);
  write("down", "");
  auto answers = drain->give_back({"node1", "node2"});
  for (const auto& answer : answers) {
    ASSERT_FALSE(answer);
    EXPECT_THAT(answer.error().what, HasSubstr("Unable to contact slurm controller"));
  }
  std::filesystem::remove(folder_.path() / "down");
  for (const auto& answer : drain->give_back({"node1", "node2"})) EXPECT_TRUE(answer);
  EXPECT_THAT(log(), HasSubstr("NodeName=node1,node2 State=RESUME\n"));
}

TEST_F(SlurmDrainTest, What_a_drain_that_failed_half_way_has_drained_is_given_back) {
  write("nodes", "NodeName=node1 State=IDLE\nNodeName=node2 State=IDLE\n");
  write("refused", "State=DRAIN\n");
  auto drain = make();
  auto taken = drain->take({"node1", "node2"});
  for (const Drain::Taken& one : taken) {
    EXPECT_THAT(one.error.what, HasSubstr("cannot drain node1,node2"));
    EXPECT_EQ(one.remark, "");
  }
  EXPECT_EQ(log(), "NodeName=node1,node2 State=DRAIN\n") << "neither was drained";

  write("log", "");
  // This time Slurm takes the first before it fails.
  write("scontrol", "#!/bin/sh\ncd '" + folder_.path().string() +
                        "' || exit 9\n"
                        "test \"$1\" = show && exec cat nodes\n"
                        "echo \"$2 $3\" >>log\n"
                        "test \"$3\" = State=RESUME && exit 0\n"
                        "sed -i '1s/IDLE/IDLE+DRAIN Reason=ds-install run-1/' nodes\n"
                        "echo 'Invalid node name specified' >&2; exit 1\n");
  std::filesystem::permissions(folder_.path() / "scontrol", std::filesystem::perms::owner_all);
  taken = drain->take({"node1", "node2"});
  EXPECT_THAT(taken[0].error.what, HasSubstr("Invalid node name specified"));
  EXPECT_EQ(log(), "NodeName=node1,node2 State=DRAIN\nNodeName=node1 State=RESUME\n");
}

}  // namespace
}  // namespace dsi
