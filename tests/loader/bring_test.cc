// The head's side with real loaders on this machine, each prefix a host of its own.

#include "orchestrator/bring_agent.h"

#include "orchestrator/adapters/local_host.h"
#include "orchestrator/agent/agent_source.h"
#include "tests/loader/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using distribute::AgentSources;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A script that greets as the agent does. It computes its digest as the agent does, because it
// cannot contain it.
std::string greeting_script() {
  const std::string placeholder(64, 'd');
  std::string frame =
      protocol::json_frame("hello", protocol::Hello{protocol::kVersion, placeholder, {}});
  std::string escaped;
  for (char c : frame) escaped += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
  std::string escaped_placeholder;
  for (int i = 0; i < 64; ++i) escaped_placeholder += "\\144";
  std::size_t at = escaped.find(escaped_placeholder);
  std::string before = escaped.substr(0, at);
  std::string after = escaped.substr(at + escaped_placeholder.size());
  return "#!/bin/sh\nprintf 'DSI1 %s\\n' \"$2\"\nprintf '" + before +
         "'\nsha256sum <\"$0\" | head -c 64\nprintf '" + after + "'\ncat >/dev/null\nexit 0\n#" +
         noise(100'000, 9) + "\n";
}

class BringTest : public ::testing::Test {
 protected:
  BringTest() {
    std::string bytes = greeting_script();
    digest_ = sha256_hex(bytes);
    wire_ = pack(bytes);
    auto compressed = folder_.write("agent.lzma", wire_);
    agent_.emplace(digest_, std::move(bytes), AgentBinary::Files{"", compressed, DSI_LOADER});
    host_ = *LocalConnector().connect(Host{}, Deadline::after(30s), {});
  }

  std::string prefix(int host) const {
    return (folder_.path() / ("host " + std::to_string(host))).string();
  }

  Result<Brought> bring(int host, AgentSources* sources, const std::string& key = kKeyHex,
                        AgentPlace place = AgentPlace::kStore) {
    AgentStart start{"abc" + std::to_string(host), prefix(host), false};
    transcript_.clear();
    in_vain_ = 0;
    return bring_agent({*host_, start, *agent_, sources, key, 30s, stop_.get_token(), sent_,
                        transcript_, nullptr, place},
                       in_vain_);
  }

  // Host 1 passes the agent on, once for each time that it is asked.
  void listen_on_host_1(AgentSources& sources) {
    source_ = std::make_unique<agent::AgentSource>(prefix(1) + "/store", digest_, key_bytes());
    listener_ = std::jthread([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd poll{port_.socket.get(), POLLIN, 0};
        if (::poll(&poll, 1, 50) > 0) source_->serve(port_.accept());
      }
    });
    sources.add({"host1", port_.port, {"127.0.0.1"}});
  }

  TempFolder folder_;
  std::string digest_;
  std::string wire_;
  std::optional<AgentBinary> agent_;
  std::unique_ptr<RemoteHost> host_;
  std::stop_source stop_;
  std::atomic<std::uint64_t> sent_{0};
  std::uint64_t in_vain_ = 0;
  std::vector<std::string> transcript_;
  LoopbackPort port_;
  std::unique_ptr<agent::AgentSource> source_;
  std::jthread listener_;
};

TEST_F(BringTest, Without_sources_the_head_brings_it) {
  auto brought = bring(1, nullptr);
  ASSERT_TRUE(brought) << brought.error().what;
  EXPECT_TRUE(brought->greeting.agent);
  EXPECT_FALSE(brought->lease);
  EXPECT_GT(sent_, wire_.size());
  EXPECT_EQ(read_file(prefix(1) + "/store/" + digest_ + ".lzma").value_or(""), wire_);
}

TEST_F(BringTest, The_second_host_gets_it_from_the_first_and_the_head_sends_the_loader_only) {
  AgentSources sources(AgentSources::Limits{});
  ASSERT_TRUE(bring(1, &sources));
  EXPECT_THAT(transcript_, ElementsAre("brings the agent"));
  listen_on_host_1(sources);
  sent_ = 0;
  auto brought = bring(2, &sources);
  ASSERT_TRUE(brought) << brought.error().what;
  EXPECT_THAT(transcript_, ElementsAre("takes the agent from host1"));
  EXPECT_TRUE(brought->lease);
  EXPECT_LT(brought->agent->bytes_sent(), 16u * 1024) << "a loader and a request";
  EXPECT_EQ(sources.numbers().from_hosts, 1u);
  EXPECT_EQ(in_vain_, 0u);
  EXPECT_EQ(read_file(prefix(2) + "/store/" + digest_ + ".lzma").value_or(""), wire_);
}

TEST_F(BringTest, To_look_it_lies_in_a_folder_that_goes_with_it) {
  auto temporary = folder_.path() / "tmp";
  fs::create_directory(temporary);
  ::setenv("TMPDIR", temporary.c_str(), 1);
  AgentSources sources(AgentSources::Limits{});
  ASSERT_TRUE(bring(1, &sources));
  listen_on_host_1(sources);
  auto brought = bring(2, &sources, kKeyHex, AgentPlace::kOwnFolder);
  ::unsetenv("TMPDIR");
  ASSERT_TRUE(brought) << brought.error().what;
  EXPECT_THAT(transcript_, ElementsAre("takes the agent from host1"));
  EXPECT_FALSE(fs::exists(prefix(2))) << "the host is as it was";
  // Whole, with what others take it by.
  auto own = temporary / ".ds-look-abc2";
  EXPECT_EQ(read_file(own / (digest_ + ".lzma")).value_or(""), wire_);
  brought->agent.reset();
  for (int i = 0; i < 3000 && fs::exists(own); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(fs::is_empty(temporary)) << "the folder stays behind";
}

TEST_F(BringTest, Where_the_source_does_not_send_the_head_brings_it_on_the_same_connection) {
  AgentSources sources(AgentSources::Limits{});
  ASSERT_TRUE(bring(1, &sources));
  listen_on_host_1(sources);
  auto brought = bring(2, &sources, std::string(64, 'b'));
  ASSERT_TRUE(brought) << brought.error().what;
  EXPECT_THAT(transcript_, ElementsAre("takes the agent from host1", HasSubstr("refuses to send"),
                                       "brings the agent"));
  EXPECT_EQ(sources.numbers().failed, 1u);
}

TEST_F(BringTest, An_agent_that_another_host_put_into_the_same_prefix_is_taken) {
  AgentSources sources(AgentSources::Limits{});
  ASSERT_TRUE(bring(1, &sources));
  sent_ = 0;
  auto brought = bring(1, &sources);
  ASSERT_TRUE(brought) << brought.error().what;
  EXPECT_TRUE(transcript_.empty());
  EXPECT_LT(sent_, 16u * 1024);
}

TEST_F(BringTest, What_the_host_says_is_the_reason) {
  folder_.write("host 1/store", "a file where a folder should be");
  auto brought = bring(1, nullptr);
  ASSERT_FALSE(brought);
  EXPECT_THAT(brought.error().what, HasSubstr("exit code 90"));
  EXPECT_THAT(brought.error().what, HasSubstr("mkdir"));
  EXPECT_GT(in_vain_, 0u);
}

TEST_F(BringTest, Who_waits_for_a_source_hears_the_stop) {
  AgentSources sources(AgentSources::Limits{});
  auto first = sources.acquire({}, false, Deadline::after(0ms), {});
  ASSERT_TRUE(first);
  stop_.request_stop();
  auto brought = bring(2, &sources);
  ASSERT_FALSE(brought);
  EXPECT_THAT(brought.error().what, HasSubstr("interrupted"));
}

}  // namespace
}  // namespace dsi::testing
