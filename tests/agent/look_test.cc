// What an agent does before an install: it says what the node is, and goes where it is to stay.

#include <chrono>
#include <thread>

#include "tests/agent/fixture.h"
#include "tests/agent/swarm_fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LookTest : public AgentTest {
 protected:
  LookTest() {
    fs::create_directory(own_);
    fs::copy_file(DSI_AGENT, own_ / (digest_ + ".x"));
    write(own_ / (digest_ + ".lzma"), "as it travels");
  }
  std::string agent() const { return own_ / (digest_ + ".x"); }
  static protocol::Settled settle(Head& head) {
    head.send("settle", nlohmann::json::object());
    auto message = head.receive();
    if (!message || message->type != "settled") return {"no answer", ""};
    return protocol::body_as<protocol::Settled>(*message).value_or(protocol::Settled{"?", ""});
  }

  fs::path own_ = folder_.path() / "own";
  std::string digest_ = sha256_hex(slurp(DSI_AGENT));
};

TEST_F(LookTest, Says_what_the_node_is_and_changes_nothing) {
  Head head(agent(), prefix_);
  head.send("look", protocol::LookRequest{{"/nowhere", "/usr/lib"}});
  auto message = head.receive();
  ASSERT_TRUE(message);
  ASSERT_EQ(message->type, "looked") << message->body;
  auto looked = protocol::body_as<protocol::Looked>(*message);
  ASSERT_TRUE(looked) << looked.error().what;
  EXPECT_EQ(looked->error, "");
  auto facts = nlohmann::json::parse(looked->facts, nullptr, false);
  ASSERT_TRUE(facts.is_object()) << looked->facts;
  EXPECT_EQ(facts.value("host_name", ""), head.hello().facts.host_name);
  EXPECT_EQ(facts["prefix"].value("path", ""), prefix_.string());
  EXPECT_GT(facts["prefix"].value("free_bytes", 0ul), 0u);
  EXPECT_GT(facts.value("clock_ns", 0l), 0);
  EXPECT_FALSE(fs::exists(prefix_));
  // And can be asked on.
  auto result = head.install(make_release("1"));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "installed");
}

TEST_F(LookTest, Settles_in_the_store_with_what_it_is_passed_on_by) {
  HeadSettings settings;
  settings.in_child = [] { ::umask(0077); };
  Head head(agent(), prefix_, settings);
  EXPECT_FALSE(fs::exists(prefix_));
  EXPECT_EQ(settle(head).error, "");
  auto there = snapshot(prefix_);
  EXPECT_EQ(there["store/" + digest_ + ".x"], digest_);
  EXPECT_EQ(there["store/" + digest_ + ".lzma"], sha256_hex("as it travels"));
  EXPECT_EQ(there.size(), 3u) << "nothing unfinished may be left";
  EXPECT_EQ(static_cast<unsigned>(fs::status(prefix_ / "store" / (digest_ + ".x")).permissions()),
            0755u);
  // From there it runs like any other, and stays.
  Head again((prefix_ / "store" / (digest_ + ".x")).string(), prefix_);
  EXPECT_EQ(settle(again).error, "");
  EXPECT_EQ(snapshot(prefix_), there);
  auto result = again.install(make_release("1"));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "installed");
}

TEST_F(LookTest, Replaces_a_damaged_agent_and_leaves_a_whole_one_alone) {
  auto in_store = prefix_ / "store" / (digest_ + ".x");
  fs::create_directories(in_store.parent_path());
  write(in_store, "half");
  Head head(agent(), prefix_);
  EXPECT_EQ(settle(head).error, "");
  EXPECT_EQ(sha256_hex(slurp(in_store)), digest_);
  struct stat before {};
  ASSERT_EQ(::stat(in_store.c_str(), &before), 0);
  EXPECT_EQ(settle(head).error, "");
  struct stat after {};
  ASSERT_EQ(::stat(in_store.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

TEST_F(LookTest, Says_why_it_cannot_settle) {
  fs::create_directories(prefix_);
  write(prefix_ / "store", "a file where a folder should be");
  Head head(agent(), prefix_);
  auto settled = settle(head);
  EXPECT_THAT(settled.error, HasSubstr((prefix_ / "store").string()));
  EXPECT_NE(settled.help, "");
}

// It waits while the head builds, which may take an hour, and serves nobody meanwhile.
TEST_F(LookTest, After_a_dismissal_it_may_be_left_alone_and_asked_to_listen_again) {
  TestSwarm swarm({});
  SwarmNode& node = swarm.add(agent(), prefix_);
  swarm.listen(node);
  ASSERT_NE(node.listening.port, 0);
  node.head->send("dismiss", nlohmann::json::object());
  std::this_thread::sleep_for(protocol::kHeadSilence + std::chrono::seconds(3));
  EXPECT_EQ(settle(*node.head).error, "");
  swarm.listen(node);
  EXPECT_NE(node.listening.port, 0);
}

}  // namespace
}  // namespace dsi::testing
