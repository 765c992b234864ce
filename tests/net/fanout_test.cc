// Hosts that get a payload from one another, and what may happen to them meanwhile. The links are
// slow, so that "meanwhile" is seconds; each step waits for what it needs to see, never for a time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "tests/net/cluster.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kBlob = 2u << 20;
constexpr char kRate[] = "4mbit";  // One copy takes 4.4 s.

// Writes an op: a library without torch that holds `size` bytes which cannot be compressed. The
// same bytes for every test, so that it is built once; no host outlives a test.
void write_op(const fs::path& ops, const std::string& name, std::size_t size) {
  fs::path folder = ops / name;
  fs::create_directories(folder);
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  // Tests that run side by side write the same.
  auto write = [&](const std::string& file, const std::string& text) {
    fs::path draft = ops / (name + "-" + file + "." + std::to_string(::getpid()));
    std::ofstream(draft, std::ios::binary) << text;
    fs::rename(draft, folder / file);
  };
  write("bytes", bytes);
  write(name + ".h", "#pragma once\n");
  write("op.json", R"({"name": ")" + name + R"(", "description": "A payload", "capability": "op.)" +
                       name + R"(", "devices": ["cpu"], "sources": [")" + name +
                       R"(.cpp"], "library": "ds_)" + name + "\"}\n");
  write(name + ".cpp", "asm(\".section .rodata\\n.global ds_bytes_" + name + "\\nds_bytes_" + name +
                           ":\\n.incbin \\\"" + (folder / "bytes").string() + R"(\"\n.previous\n");
extern "C" const char ds_bytes_)" +
                           name + R"([];
extern "C" __attribute__((visibility("default"))) int ds_self_test_)" +
                           name +
                           R"((const char*, char* detail, unsigned long size) {
  if (size > 0) detail[0] = '\0';
  return ds_bytes_)" + name +
                           R"([size % 64] == 0 && size > 1ul << 40;
}
)");
}

// Until `seen` is true. That it never is is a failure; how long it takes is not looked at.
bool wait_until(const std::function<bool()>& seen) {
  for (auto end = std::chrono::steady_clock::now() + 90s; std::chrono::steady_clock::now() < end;) {
    if (seen()) return true;
    std::this_thread::sleep_for(20ms);
  }
  return false;
}

// Hosts that have the agent and an old release, behind slow links, and what the cards have counted.
class Fanout : public ::testing::Test {
 protected:
  void start(int hosts) {
    hosts_ = hosts;
    cluster_ = std::make_unique<Cluster>(hosts);
    if (!cluster_->why_not().empty()) GTEST_SKIP() << cluster_->why_not();
    bundle_ = cluster_->folder() + "/blob.tar.zst";
    std::string ops = std::string(DSI_TEST_FOLDER) + "/fanout-ops";
    write_op(ops, "seed", 64);
    write_op(ops, "blob", kBlob);
    Outcome build = cluster_->on_head(
        {DSI_PROGRAM, "build", "-r", "--ops-dir", ops, "--ops", "blob", "-o", bundle_});
    ASSERT_EQ(build.exit_code, 0) << build.err;
    JsonReport old = cluster_->ds_install_json({"--ops-dir", ops, "--ops", "seed"});
    ASSERT_EQ(old.exit_code, 0) << old.err;
    old_release_ = old.host("node001").value("to", "");
    control({"rate", "head", kRate});
    for (int k = 1; k <= hosts; ++k) control({"rate", std::to_string(k), kRate});
  }

  Outcome control(const std::vector<std::string>& arguments) {
    Outcome done = cluster_->control(arguments);
    EXPECT_EQ(done.exit_code, 0) << arguments.front() << ": " << done.err;
    return done;
  }

  std::vector<std::string> install_arguments(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--bundle", bundle_});
    return more;
  }

  // "sent" or "received" bytes of a host's card, or of the head's (0).
  long counted(int host, const std::string& direction) {
    std::vector<std::string> arguments = {"traffic"};
    if (host > 0) arguments.push_back(std::to_string(host));
    std::istringstream lines(control(arguments).out);
    for (std::string word, unit, line; std::getline(lines, line);) {
      long count = 0;
      std::istringstream(line) >> word >> count >> unit;
      if (word == direction && unit == "bytes") return count;
    }
    ADD_FAILURE() << "no traffic of " << host;
    return 0;
  }

  // Starts an install on the head and lets the test go on beside it.
  void begin(std::vector<std::string> more = {}) {
    for (int k = 0; k <= hosts_; ++k) received_before_[k] = counted(k, "received");
    for (int k = 0; k <= hosts_; ++k) sent_before_[k] = counted(k, "sent");
    more.push_back("--json");
    pid_file_ = cluster_->folder() + "/pid";
    fs::remove(pid_file_);
    std::vector<std::string> command = {"sh", "-c", "echo $$ >\"$0\"; exec \"$@\"", pid_file_};
    for (std::string& word : cluster_->ds_install_command(install_arguments(std::move(more)))) {
      command.push_back(std::move(word));
    }
    run_ = std::async(std::launch::async, [this, command] { return cluster_->on_head(command); });
  }
  JsonReport finish() { return read_json_report(run_.get()); }
  void kill_the_head() {
    pid_t pid = 0;
    std::ifstream(pid_file_) >> pid;
    ASSERT_GT(pid, 1);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
  }

  long received(int host) { return counted(host, "received") - received_before_[host]; }
  long sent(int host) { return counted(host, "sent") - sent_before_[host]; }

  void wait_for_a_third(int host) {
    ASSERT_TRUE(wait_until([&] { return received(host) > static_cast<long>(kBlob) / 3; }));
  }

  // Waits until a host is in the middle of receiving: of those that are, who has sent the most to
  // others, and has sent something, or who has sent the least. 0 if that never happens.
  int in_the_middle(bool relays) {
    constexpr long kSize = static_cast<long>(kBlob);
    int best = 0;
    wait_until([&] {
      long best_sent = 0;
      for (int k = 1; k <= hosts_; ++k) {
        long got = received(k);
        long gave = sent(k);
        if (got < kSize / 3 || got > kSize * 2 / 3 || (relays && gave < kSize / 8)) continue;
        if (best == 0 || (relays ? gave > best_sent : gave < best_sent)) best = k, best_sent = gave;
      }
      return best != 0;
    });
    return best;
  }

  void expect_installed(const JsonReport& report, const std::vector<int>& without = {}) {
    for (int k = 1; k <= hosts_; ++k) {
      if (std::count(without.begin(), without.end(), k) > 0) continue;
      EXPECT_EQ(report.host(name(k)).value("result", ""), "installed") << report.host(name(k));
      EXPECT_EQ(report.op(name(k), "blob").value("status", ""), "ok") << report.op(name(k), "blob");
    }
  }

  void expect_nothing_runs(int host) {
    std::string left;
    EXPECT_TRUE(wait_until([&] {
      left = control({"agents", std::to_string(host)}).out;
      return left.empty();
    })) << "on host "
        << host << ": " << left;
  }
  void expect_nothing_runs() {
    for (int k = 1; k <= hosts_; ++k) expect_nothing_runs(k);
  }

  // A mixture would have the wrong files under a right name: the agent's own check finds it.
  void expect_old_or_new(int host) {
    std::string current = cluster_->on_node(host, "readlink /opt/ds-ops/current").out;
    bool is_old = current == "releases/" + old_release_ + "\n";
    Outcome report = cluster_->on_node(host, "/opt/ds-ops/current/bin/ds-report --json");
    EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
    EXPECT_THAT(report.out, HasSubstr(is_old ? "seed" : "blob"));
    EXPECT_THAT(report.out, Not(HasSubstr("damaged")));
  }

  static std::string name(int host) {
    return (host < 10 ? "node00" : "node0") + std::to_string(host);
  }

  std::unique_ptr<Cluster> cluster_;
  int hosts_ = 0;
  std::string bundle_;
  std::string old_release_;

 private:
  std::map<int, long> received_before_, sent_before_;
  std::string pid_file_;
  std::future<Outcome> run_;
};

#define START(hosts)       \
  start(hosts);            \
  if (IsSkipped()) return; \
  if (HasFatalFailure()) return

TEST_F(Fanout, Six_hosts_are_installed_and_the_head_sends_less_than_two_copies) {
  START(6);
  begin({"--topology", "swarm"});
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  expect_installed(report);
  EXPECT_LT(sent(0), 2 * static_cast<long>(kBlob));
  expect_nothing_runs();
}

// What leaves the head for a host that has no agent yet: with eight the agent, which leaves it
// once, weighs most.
TEST_F(Fanout, First_contact_with_eight_hosts_costs_the_head_less_than_64_KiB_for_each) {
  Cluster cluster(8);
  if (!cluster.why_not().empty()) GTEST_SKIP() << cluster.why_not();
  std::string ops = std::string(DSI_TEST_FOLDER) + "/fanout-ops";
  write_op(ops, "seed", 64);
  auto sent = [&] {
    std::istringstream lines(cluster.control({"traffic"}).out);
    for (std::string direction, unit, line; std::getline(lines, line);) {
      long count = 0;
      std::istringstream(line) >> direction >> count >> unit;
      if (direction == "sent" && unit == "bytes") return count;
    }
    return -1L;
  };
  const long before = sent();
  JsonReport report = cluster.ds_install_json({"--ops-dir", ops, "--ops", "seed"});
  const long after = sent();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed"), 8);
  EXPECT_GT(after, before);
  EXPECT_LT((after - before) / 8, 64 * 1024);
  // It was put into the store, so the next run sends none of it.
  const long again = sent();
  EXPECT_EQ(cluster.ds_install_json({"--ops-dir", ops, "--ops", "seed"}).count("up-to-date"), 8);
  EXPECT_LT((sent() - again) / 8, 16 * 1024);
}

TEST_F(Fanout, A_star_is_what_it_says) {
  START(4);
  begin({"--topology", "star"});
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  expect_installed(report);
  EXPECT_GT(sent(0), 4 * static_cast<long>(kBlob));
  for (int k = 1; k <= 4; ++k) EXPECT_LT(sent(k), static_cast<long>(kBlob) / 4) << k;
}

TEST_F(Fanout, A_firewall_between_all_hosts_leaves_the_head_to_send_to_each) {
  START(4);
  control({"isolate", "1", "2", "3", "4"});
  begin();
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  expect_installed(report);
  EXPECT_GT(sent(0), 4 * static_cast<long>(kBlob));
  expect_nothing_runs();
}

TEST_F(Fanout, A_host_behind_a_firewall_gets_it_from_the_head_and_the_others_from_each_other) {
  START(6);
  control({"isolate", "3"});
  begin({"--topology", "swarm"});
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  expect_installed(report);
  // One for the host, one for the others, and what was in vain.
  EXPECT_LT(sent(0), 4 * static_cast<long>(kBlob));
}

TEST_F(Fanout, A_port_that_is_the_only_one_allowed_is_the_only_one_used) {
  START(4);
  // Someone else has it on host 4, which can still receive.
  control({"node", "4", "sh", "-c",
           "setsid python3 -m http.server 7001 >/dev/null 2>&1 </dev/null & echo $! >/tmp/server"});
  ASSERT_TRUE(wait_until([&] {
    return control({"agents", "4"}).out.find(":7001 ") != std::string::npos;
  }));
  begin({"--topology", "swarm", "--peer-ports", "7001-7001"});
  std::string ports;
  EXPECT_TRUE(wait_until([&] {
    ports = control({"agents", "1"}).out;
    return ports.find("\nport ") != std::string::npos;
  }));
  ports = ports.substr(std::min(ports.size(), ports.find("\nport ") + 1));
  EXPECT_THAT(ports, HasSubstr(":7001 "));
  EXPECT_EQ(std::count(ports.begin(), ports.end(), '\n'), 1) << ports;
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  expect_installed(report);
  EXPECT_LT(sent(0), 3 * static_cast<long>(kBlob));
  for (int k = 1; k <= 3; ++k) expect_nothing_runs(k);
}

TEST_F(Fanout, A_host_with_few_file_descriptors_is_installed) {
  START(6);
  control({"few-fds", "2", "64"});
  control({"few-fds", "5", "256"});
  begin({"--topology", "swarm"});
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  expect_installed(report);
}

// The head is a day off from all hosts: later, and in the next run earlier than what it wrote.
TEST_F(Fanout, A_clock_that_is_a_day_off_does_not_matter) {
  START(4);
  auto install_at = [&](const char* offset) {
    std::vector<std::string> command = {"faketime", "--exclude-monotonic", "-f", offset};
    for (std::string& word :
         cluster_->ds_install_command(install_arguments({"--topology", "swarm", "--json"}))) {
      command.push_back(std::move(word));
    }
    return read_json_report(cluster_->on_head(command));
  };
  JsonReport later = install_at("+1d");
  EXPECT_EQ(later.exit_code, 0) << later.err;
  expect_installed(later);
  JsonReport earlier = install_at("-1d");
  EXPECT_EQ(earlier.exit_code, 0) << earlier.err;
  EXPECT_EQ(earlier.count("up-to-date"), 4);
  EXPECT_TRUE(earlier.every_op_is_ok());
}

#ifdef DSI_SHARED_AGENT

// Only programs with shared libraries can be shown another time: a ds-install whose agent has them.
std::string install_shared_agent(const fs::path& folder) {
  fs::path built = fs::path(DSI_PROGRAM).parent_path();
  fs::path parts = folder / "libexec/ds-install";
  fs::create_directories(folder / "bin");
  fs::create_directories(folder / "share/ds-install");
  fs::create_directories(parts);
  for (const char* name : {"kernels", "examples"}) {
    fs::create_directory_symlink(fs::path(DSI_SOURCE_FOLDER) / name,
                                 folder / "share/ds-install" / name);
  }
  fs::copy_file(DSI_PROGRAM, folder / "bin/ds-install");
  for (const char* name : {"ds-facts", "ds-loader", "ds-package", "ds-probe"}) {
    fs::copy_file(built / name, parts / name);
  }
  fs::copy_file(fs::path(DSI_SOURCE_FOLDER) / "orchestrator/probe/ds_probe.c",
                parts / "ds_probe.c");
  // Without what is for debuggers: the links are slow.
  std::string make = "strip -o " + (parts / "ds-agent").string() + " " + DSI_SHARED_AGENT + " && " +
                     DSI_PACK_AGENT + " " + DSI_XZ + " 1 " + (parts / "ds-agent").string() + " " +
                     (parts / "ds-agent.lzma").string();
  EXPECT_EQ(std::system(make.c_str()), 0) << make;
  return folder / "bin/ds-install";
}

TEST_F(Fanout, Nodes_whose_own_clocks_are_a_day_off_are_installed_like_the_others) {
  START(5);
  cluster_->use_program(install_shared_agent(cluster_->folder() + "/shared"));
  const std::map<int, long> days = {{1, 0}, {2, 1}, {3, -1}, {4, 0}, {5, 0}};
  control({"clock", "2", "ahead", "1d"});
  control({"clock", "3", "behind", "1d"});
  auto expect_times = [&] {
    for (auto [host, off] : days) {
      auto state = nlohmann::json::parse(cluster_->on_node(host, "cat /opt/ds-ops/state.json").out,
                                         nullptr, false);
      ASSERT_TRUE(state.is_object()) << host;
      // The test may run over midnight.
      std::string days_there =
          cluster_
              ->on_node(host, "date -u -d '" + std::to_string(off) + " days' +%F; date -u -d '" +
                                  std::to_string(off) + " days 20 minutes ago' +%F")
              .out;
      EXPECT_THAT(days_there, HasSubstr(state.value("time", "-").substr(0, 10))) << state;
    }
  };

  // Brings the agent, so that what is received from here on is the payload. Each release has its
  // agent in it, therefore this one is new.
  JsonReport first = cluster_->ds_install_json(
      {"--ops-dir", std::string(DSI_TEST_FOLDER) + "/fanout-ops", "--ops", "seed"});
  ASSERT_EQ(first.count("installed"), hosts_) << first.err;
  old_release_ = first.host("node001").value("to", "");
  expect_times();

  // Interrupted half-way, then gone on with: what is younger and what is older decides nothing.
  begin({"--topology", "swarm"});
  for (int k = 1; k <= hosts_; ++k) wait_for_a_third(k);
  kill_the_head();
  finish();
  expect_nothing_runs();
  for (int k = 1; k <= hosts_; ++k) expect_old_or_new(k);
  begin({"--topology", "swarm"});
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.count("installed") + report.count("up-to-date"), hosts_);
  EXPECT_TRUE(report.every_op_is_ok());
  for (int k = 1; k <= hosts_; ++k) {
    EXPECT_LT(received(k), static_cast<long>(kBlob) * 85 / 100) << k;
  }
  expect_times();

  // What was there before them is still known as that, and can be gone back to.
  std::string release = report.host("node002").value("to", "");
  JsonReport again = cluster_->ds_install_json(install_arguments());
  EXPECT_EQ(again.count("up-to-date"), hosts_) << again.err;
  EXPECT_TRUE(again.every_op_is_ok());
  JsonReport back = cluster_->ds_install_json({"rollback"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  for (int k = 1; k <= hosts_; ++k) {
    EXPECT_EQ(cluster_->on_node(k, "readlink /opt/ds-ops/current").out,
              "releases/" + old_release_ + "\n");
  }
  JsonReport forth = cluster_->ds_install_json(install_arguments());
  EXPECT_EQ(forth.exit_code, 0) << forth.err;
  expect_installed(forth);
  // Nothing was pruned that is needed, and nothing left that is not.
  for (int k = 1; k <= hosts_; ++k) {
    EXPECT_EQ(cluster_->on_node(k, "ls /opt/ds-ops/releases | wc -l").out, "2\n") << k;
    EXPECT_EQ(cluster_->on_node(k, "ls -A /opt/ds-ops/incoming 2>/dev/null | wc -l").out, "0\n");
    EXPECT_EQ(cluster_->on_node(k, "readlink /opt/ds-ops/current").out,
              "releases/" + release + "\n");
  }
  expect_times();
}

#endif

struct Victim {
  const char* name;
  bool relays;
  const char* how;
};
class FanoutWithVictim : public Fanout, public ::testing::WithParamInterface<Victim> {};

TEST_P(FanoutWithVictim, The_others_are_installed_it_is_reported_and_the_next_run_repairs_it) {
  START(6);
  begin({"--topology", "swarm", "--stall-timeout", "5"});
  int victim = in_the_middle(GetParam().relays);
  ASSERT_GT(victim, 0) << "no host was seen in the middle";
  std::string number = std::to_string(victim);
  std::string how = GetParam().how;
  if (how == "kill") {
    control({"kill-agent", number});
  } else if (how == "unplug") {
    control({"unplug", number});
  } else {
    control({"node", number, "pkill", "-STOP", "-f", "store/.* serve"});
  }
  JsonReport report = finish();
  EXPECT_EQ(report.exit_code, 1) << report.err;
  expect_installed(report, {victim});
  const nlohmann::json& row = report.host(name(victim));
  EXPECT_THAT(row.value("result", ""), AnyOf("failed", "unreachable")) << row;
  EXPECT_TRUE(row.contains("error")) << row;
  if (how == "unplug") control({"plug", number});
  if (how == "stop") control({"node", number, "pkill", "-CONT", "-f", "store/.* serve"});
  for (int k = 1; k <= 6; ++k) expect_old_or_new(k);
  EXPECT_EQ(cluster_->on_node(victim, "readlink /opt/ds-ops/current").out,
            "releases/" + old_release_ + "\n");
  if (how != "unplug") expect_nothing_runs();  // Unplugged, sshd itself holds on for hours.

  begin();
  JsonReport second = finish();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.host(name(victim)).value("result", ""), "installed");
}

INSTANTIATE_TEST_SUITE_P(Of, FanoutWithVictim,
                         ::testing::Values(Victim{"a_relay_killed", true, "kill"},
                                           Victim{"a_leaf_killed", false, "kill"},
                                           Victim{"a_relay_that_stands_still", true, "stop"},
                                           Victim{"a_relay_without_power", true, "unplug"}),
                         [](const auto& victim) { return std::string(victim.param.name); });

TEST_F(Fanout, A_head_killed_half_way_leaves_old_or_new_and_nothing_that_runs_and_can_go_on) {
  START(5);
  begin({"--topology", "swarm"});
  for (int k = 1; k <= 5; ++k) wait_for_a_third(k);
  kill_the_head();
  finish();
  expect_nothing_runs();
  for (int k = 1; k <= 5; ++k) expect_old_or_new(k);

  begin({"--topology", "swarm"});
  JsonReport second = finish();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.count("installed") + second.count("up-to-date"), 5);
  // Whole chunks that had arrived do not travel again.
  for (int k = 1; k <= 5; ++k) EXPECT_LT(received(k), static_cast<long>(kBlob) * 85 / 100) << k;
  expect_nothing_runs();
}

}  // namespace
}  // namespace dsi
