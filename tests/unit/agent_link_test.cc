#include "orchestrator/agent_link.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/shell_quote.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;

AgentBinary some_agent() {
  return {std::string(64, 'd'), "binary"};
}

std::string through(const std::string& shell, const std::string& command) {
  LocalProcessRunner processes;
  auto result = processes.run({{shell, "-c", command}, {}, {}}, Deadline::after(20s), {});
  return result ? result->out : result.error().what;
}

// The real loader; what stands for the agent is never sent here.
AgentBinary::Wire read_loader() {
  AgentBinary agent("", "", {"", DSI_LOADER, DSI_LOADER});
  auto wire = agent.wire();
  return wire ? **wire : AgentBinary::Wire{};
}

class Shells : public ::testing::TestWithParam<const char*> {};

TEST_P(Shells, All_read_the_look_command_alike) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  TempFolder folder;
  AgentStart start{"abc123", folder.path().string() + "/a prefix", false};
  std::string out = through(GetParam(), look_command(start, some_agent()));
  EXPECT_NE(out.find("DSI0 abc123\narch="), std::string::npos) << out;
  EXPECT_NE(out.find("prefix=" + start.prefix + "\n"), std::string::npos) << out;
  EXPECT_NE(out.find("\nend=\n"), std::string::npos) << out;
  EXPECT_FALSE(std::filesystem::exists(start.prefix)) << "looking must change nothing";
}

TEST_P(Shells, All_start_the_agent_that_is_there) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  TempFolder folder;
  AgentStart start{"abc123", folder.path().string() + "/a prefix", false};
  auto agent =
      folder.write("a prefix/store/" + std::string(64, 'd') + ".x", "#!/bin/sh\necho \"$@\"\n");
  std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
  EXPECT_EQ(through(GetParam(), look_command(start, some_agent())),
            "serve abc123 " + start.prefix + "\n");
}

TEST_P(Shells, An_agent_that_does_not_run_counts_as_none) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  TempFolder folder;
  AgentStart start{"abc123", folder.path().string(), false};
  auto agent = folder.write("store/" + std::string(64, 'd') + ".x", std::string("\x7f"
                                                                                "ELF\0\0",
                                                                                6));
  std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
  EXPECT_NE(through(GetParam(), look_command(start, some_agent())).find("DSI0 abc123\n"),
            std::string::npos);
}

// The real loader comes by standard input and stands there ready; what follows is its own affair.
TEST_P(Shells, All_start_the_loader_that_they_are_given) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  TempFolder folder;
  AgentStart start{"abc123", folder.path().string() + "/a prefix", false};
  auto input = folder.write("input", read_loader().loader);
  std::string out =
      through("/bin/sh", fmt::format("{} -c {} <{} 2>&1", GetParam(),
                                     shell_quote(bring_command(start, some_agent(), read_loader())),
                                     input.string()));
  EXPECT_EQ(out, "\nDSL0 abc123 ready\n");
  EXPECT_TRUE(std::filesystem::is_empty(start.prefix + "/store")) << "the loader stays behind";
}

TEST_P(Shells, All_start_it_in_a_folder_that_goes_with_it) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  for (bool gzip : {false, true}) {
    TempFolder folder;
    std::filesystem::create_directory(folder.path() / "tmp");
    AgentStart start{"abc123", folder.path().string() + "/a prefix", false, gzip};
    auto wire = read_loader();
    auto input = folder.write("input", loader_for(start, wire));
    std::string out = through(
        "/bin/sh",
        fmt::format("TMPDIR={} {} -c {} <{} 2>&1", (folder.path() / "tmp").string(), GetParam(),
                    shell_quote(bring_command(start, some_agent(), wire, AgentPlace::kOwnFolder)),
                    input.string()));
    EXPECT_EQ(out, "\nDSL0 abc123 ready\n");
    EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "tmp")) << "the folder stays behind";
    EXPECT_FALSE(std::filesystem::exists(start.prefix)) << "looking must change nothing";
  }
}

TEST_P(Shells, All_unpack_the_loader_where_there_is_gzip) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  TempFolder folder;
  AgentStart start{"abc123", folder.path().string() + "/a prefix", false, true};
  auto wire = read_loader();
  EXPECT_LT(loader_for(start, wire).size(), wire.loader.size() * 3 / 4);
  auto input = folder.write("input", loader_for(start, wire));
  std::string out =
      through("/bin/sh",
              fmt::format("{} -c {} <{} 2>&1", GetParam(),
                          shell_quote(bring_command(start, some_agent(), wire)), input.string()));
  EXPECT_EQ(out, "\nDSL0 abc123 ready\n");
}

TEST_P(Shells, All_say_why_the_loader_does_not_run) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  TempFolder folder;
  AgentStart start{"abc123", folder.path().string() + "/a prefix", false};
  AgentBinary::Wire broken{
      "\x7f"
      "ELF no program",
      "compressed"};
  auto input = folder.write("input", broken.loader);
  std::string out =
      through("/bin/sh",
              fmt::format("{} -c {} <{} 2>&1; echo code=$?", GetParam(),
                          shell_quote(bring_command(start, some_agent(), broken)), input.string()));
  EXPECT_NE(out.find("abc123.upload"), std::string::npos) << out;
  EXPECT_NE(out.find("code=92\n"), std::string::npos) << out;
  EXPECT_TRUE(std::filesystem::is_empty(start.prefix + "/store")) << "the loader stays behind";
}

INSTANTIATE_TEST_SUITE_P(AgentLink, Shells,
                         ::testing::Values("/bin/sh", "/bin/bash", "/usr/bin/fish", "/bin/tcsh"),
                         [](const auto& shell) {
                           std::string name = shell.param;
                           return name.substr(name.rfind('/') + 1);
                         });

TEST(AgentLink, Commands_hold_nothing_that_a_login_shell_could_read_its_own_way) {
  AgentStart start{"abc123", "/opt/ds ops", true, true};
  FactsProgram facts{std::string(64, 'f'), "x86_64", "the program"};
  for (const std::string& command :
       {look_command(start, some_agent()),
        look_command(start, some_agent(), &facts, {"/usr/lib/torch"}),
        bring_command(start, some_agent(), read_loader()),
        bring_command(start, some_agent(), read_loader(), AgentPlace::kOwnFolder)}) {
    EXPECT_EQ(std::count(command.begin(), command.end(), '\''), 2) << command;
    EXPECT_EQ(command.find_first_of("\\!\n"), std::string::npos) << command;
    EXPECT_EQ(command.find("exec sudo -n -H /bin/sh -c '"), 0u);
  }
}

TEST(AgentLink, A_prefix_that_a_shell_could_obey_is_not_safe) {
  for (const char* prefix : {"/opt/$(id)", "/opt/`id`", "/opt/\"x", "/opt/'x", "/opt/a\\b",
                             "/opt/a!b", "/opt/a\nb", "opt/x", "/opt/a;b", "/opt/a&b", "/opt/*"}) {
    EXPECT_FALSE(is_safe_prefix(prefix)) << prefix;
  }
  EXPECT_TRUE(is_safe_prefix(""));
  EXPECT_TRUE(is_safe_prefix("/opt/ds ops/v1.2_x"));
}

// Says what it was told to, in pieces of the given size.
class ScriptedChannel : public Channel {
 public:
  ScriptedChannel(std::string output, std::size_t piece)
      : output_(std::move(output)), piece_(piece) {}
  Result<std::size_t> read(std::span<char> buffer, Deadline) override {
    std::size_t n = std::min({piece_, buffer.size(), output_.size() - at_});
    std::copy_n(output_.data() + at_, n, buffer.data());
    at_ += n;
    return n;
  }
  Result<bool> readable(int, Deadline) override { return true; }
  Result<void> write(std::string_view, Deadline) override { return {}; }
  Result<void> close_stdin() override { return {}; }
  Result<Exit> wait(Deadline) override { return Exit{1, "", "mkdir: Permission denied\n"}; }
  std::string standard_error() const override { return ""; }

 private:
  std::string output_;
  std::size_t piece_;
  std::size_t at_ = 0;
};

TEST(AgentLink, Noise_before_the_greeting_is_skipped_however_the_bytes_come) {
  protocol::Hello hello{protocol::kVersion, std::string(64, 'd'), {}};
  hello.facts.host_name = "node001";
  std::string stream =
      "Welcome!\nDSI1 wrong\nno newline here DSI1 abc123\n" + protocol::json_frame("hello", hello);
  for (std::size_t piece : {1u, 7u, 100000u}) {
    AgentLink link(std::make_unique<ScriptedChannel>(stream, piece), "abc123",
                   std::string(64, 'd'));
    auto greeting = link.greet(Deadline::after(1s));
    ASSERT_TRUE(greeting) << greeting.error().what;
    EXPECT_TRUE(greeting->agent);
    EXPECT_EQ(greeting->facts.host_name, "node001");
  }
}

TEST(AgentLink, What_a_host_says_about_itself_comes_before_the_greeting) {
  FactsProgram program{std::string(64, 'f'), "x86_64", "the program"};
  std::string stream =
      "Welcome!\n\nDSF0 abc123 need\n\nDSF1 abc123 {\"arch\":\"x86_64\",\"clock_ns\":5}\n"
      "\nDSI0 abc123\narch=x86_64\ngzip=/bin/gzip\nend=\n";
  for (std::size_t piece : {1u, 7u, 100000u}) {
    AgentLink link(std::make_unique<ScriptedChannel>(stream, piece), "abc123",
                   std::string(64, 'd'));
    auto facts = link.hear_facts(program, Deadline::after(1s));
    ASSERT_TRUE(facts) << facts.error().what;
    ASSERT_TRUE(*facts);
    EXPECT_TRUE((*facts)->known);
    EXPECT_EQ((*facts)->arch, "x86_64");
    EXPECT_LT((*facts)->clock_off_s.value_or(0), -1e9) << "its clock stands in 1970";
    EXPECT_EQ(link.bytes_sent(), program.bytes.size());
    auto greeting = link.greet(Deadline::after(1s));
    ASSERT_TRUE(greeting) << greeting.error().what;
    EXPECT_FALSE(greeting->agent);
    EXPECT_TRUE(greeting->gzip);
  }
}

TEST(AgentLink, Where_there_is_an_agent_nothing_is_sent_to_look) {
  FactsProgram program{std::string(64, 'f'), "x86_64", "the program"};
  protocol::Hello hello{protocol::kVersion, std::string(64, 'd'), {}};
  std::string stream = "Welcome!\nDSI1 abc123\n" + protocol::json_frame("hello", hello);
  for (std::size_t piece : {1u, 7u, 100000u}) {
    AgentLink link(std::make_unique<ScriptedChannel>(stream, piece), "abc123",
                   std::string(64, 'd'));
    auto facts = link.hear_facts(program, Deadline::after(1s));
    ASSERT_TRUE(facts) << facts.error().what;
    EXPECT_FALSE(*facts);
    auto greeting = link.greet(Deadline::after(1s));
    ASSERT_TRUE(greeting) << greeting.error().what;
    EXPECT_TRUE(greeting->agent);
    EXPECT_EQ(link.bytes_sent(), 0u);
  }
}

TEST(AgentLink, A_clock_that_stood_between_question_and_answer_is_right) {
  using namespace std::chrono;
  FactsProgram program{std::string(64, 'f'), "x86_64", "the program"};
  auto off = [&](nanoseconds ahead) {
    auto there = system_clock::now().time_since_epoch() + ahead;
    AgentLink link(
        std::make_unique<ScriptedChannel>(fmt::format("\nDSF1 abc123 {{\"clock_ns\":{}}}\n",
                                                      duration_cast<nanoseconds>(there).count()),
                                          1000),
        "abc123", std::string(64, 'd'));
    return link.hear_facts(program, Deadline::after(1s)).value().value().clock_off_s.value_or(1e9);
  };
  // As long as this process is not stopped for a minute in between.
  EXPECT_NEAR(off(1h), 3600, 60);
  EXPECT_NEAR(off(-1h), -3600, 60);
}

TEST(AgentLink, A_host_that_cannot_be_looked_at_says_why_and_is_greeted) {
  FactsProgram program{std::string(64, 'f'), "x86_64", "the program"};
  for (auto [line, reason] :
       {std::pair{"none", "no folder in which a program may run"},
        std::pair{"failed", "does not run there"}, std::pair{"other", "is for x86_64"},
        std::pair{"{\"cpu\":", "malformed"}}) {
    AgentLink link(std::make_unique<ScriptedChannel>(
                       fmt::format("\nDSF1 abc123 {}\n\nDSI0 abc123\narch=x\nend=\n", line), 1000),
                   "abc123", std::string(64, 'd'));
    auto facts = link.hear_facts(program, Deadline::after(1s));
    ASSERT_TRUE(facts && *facts) << line;
    const NodeFacts& node = **facts;
    EXPECT_FALSE(node.known);
    EXPECT_NE(node.unknown_because.find(reason), std::string::npos) << node.unknown_because;
    EXPECT_TRUE(link.greet(Deadline::after(1s)));
  }
}

TEST(AgentLink, What_the_loader_says_is_heard_in_order_however_the_bytes_come) {
  protocol::Hello hello{protocol::kVersion, std::string(64, 'd'), {}};
  std::string stream =
      "Welcome!\nDSL0 wrong ready\n\nDSL0 abc123 ready\n"
      "\nDSL0 abc123 failed 70 cannot connect to 10.0.0.3 port 4711: Connection refused\n"
      "\nDSL0 abc123 failed 73 10.0.0.4 port 4711 is silent or too slow\nDSI1 abc123\n" +
      protocol::json_frame("hello", hello);
  using Kind = AgentLink::LoaderWord::Kind;
  for (std::size_t piece : {1u, 7u, 100000u}) {
    AgentLink link(std::make_unique<ScriptedChannel>(stream, piece), "abc123",
                   std::string(64, 'd'));
    auto next = [&] { return link.hear_loader(Deadline::after(1s)).value(); };
    EXPECT_EQ(next().kind, Kind::kReady);
    auto refused = next();
    EXPECT_EQ(refused.kind, Kind::kFailed);
    EXPECT_EQ(refused.text, "cannot connect to 10.0.0.3 port 4711: Connection refused");
    EXPECT_EQ(next().text, "10.0.0.4 port 4711 is silent or too slow");
    EXPECT_EQ(next().kind, Kind::kAgent);
    auto greeting = link.greet(Deadline::after(1s));
    ASSERT_TRUE(greeting) << greeting.error().what;
    EXPECT_TRUE(greeting->agent);
  }
}

TEST(AgentLink, A_loader_that_leaves_has_its_reason_quoted) {
  AgentLink link(std::make_unique<ScriptedChannel>("\nDSL0 abc123 ready\n", 100), "abc123",
                 std::string(64, 'd'));
  ASSERT_TRUE(link.hear_loader(Deadline::after(1s)));
  auto word = link.hear_loader(Deadline::after(1s));
  ASSERT_FALSE(word);
  EXPECT_EQ(word.error().what, "the loader gave up (exit code 1): mkdir: Permission denied");
}

TEST(AgentLink, A_request_names_a_source_by_its_addresses) {
  distribute::AgentSources::Source source{"node001", 4711, {"10.0.0.3", "::1"}};
  EXPECT_EQ(request_from_host(source, "ab").substr(0, 13), "peer ab 4711 ");
  EXPECT_TRUE(request_from_host(source, "ab").ends_with(" 10.0.0.3 ::1\n"));
  source.addresses.assign(100, "10.0.0.3");
  EXPECT_LT(request_from_host(source, std::string(64, 'a')).size(), 1000u);
}

TEST(AgentLink, A_shell_that_ends_without_a_greeting_is_quoted) {
  AgentLink link(
      std::make_unique<ScriptedChannel>("This account is currently not available.\n", 100),
      "abc123", std::string(64, 'd'));
  auto greeting = link.greet(Deadline::after(1s));
  ASSERT_FALSE(greeting);
  EXPECT_NE(greeting.error().what.find("This account is currently not available."),
            std::string::npos);
  EXPECT_NE(greeting.error().what.find("Permission denied"), std::string::npos);
}

TEST(AgentLink, A_shell_that_prints_without_end_is_given_up) {
  AgentLink link(std::make_unique<ScriptedChannel>(std::string(4 << 20, 'x'), 65536), "abc123",
                 std::string(64, 'd'));
  auto greeting = link.greet(Deadline::after(5s));
  ASSERT_FALSE(greeting);
  EXPECT_NE(greeting.error().what.find("without end"), std::string::npos);
}

}  // namespace
}  // namespace dsi
