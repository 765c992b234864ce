// What operators lean on: holds, hosts in use, going back to what a run left, who is told, and two
// heads at once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <thread>

#include "orchestrator/base/file.h"
#include "tests/net/cluster.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kOps = std::string(DSI_SOURCE_FOLDER) + "/tests/net/ops";

std::string current(Cluster& cluster, int node) {
  return cluster.on_node(node, "readlink /opt/ds-ops/current").out;
}

bool eventually(const std::function<bool()>& good) {
  for (int i = 0; i < 1200; ++i) {
    if (good()) return true;
    std::this_thread::sleep_for(100ms);
  }
  return false;
}

// A process of the host with an op's library open; ends when /tmp/end is there.
void use_release(Cluster& cluster, int node) {
  // Returns when the file is open: a run that looks earlier would find nobody.
  cluster.on_node(node,
                  "rm -f /tmp/holds; "
                  "setsid sh -c 'exec 9</opt/ds-ops/current/manifest.json; : >/tmp/holds; "
                  "until test -e /tmp/end; do sleep 0.1 9<&-; done' >/dev/null 2>&1 </dev/null & "
                  "until test -e /tmp/holds; do sleep 0.05; done");
}

std::string remarks(const JsonReport& report) {
  std::string text;
  for (const nlohmann::json& row : report.rows) {
    if (row.value("type", "") == "remark") {
      text += row.value("host", "") + " " + row.value("text", "") + "\n";
    }
  }
  return text;
}

TEST(Busy, Hosts_in_use_are_spared_waited_for_or_changed_and_said) {
  DSI_CLUSTER(cluster, 3);
  JsonReport first = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string before = current(cluster, 2);
  use_release(cluster, 2);

  JsonReport skip = cluster.ds_install_json({"--ops", "cpu_lion,utils", "--busy", "skip"});
  EXPECT_EQ(skip.exit_code, 1);
  EXPECT_EQ(skip.host("node001").value("result", ""), "installed") << skip.err;
  EXPECT_EQ(skip.host("node002").value("result", ""), "busy");
  EXPECT_THAT(skip.host("node002").at("error").value("what", ""), HasSubstr("root sh -c"));
  EXPECT_EQ(skip.host("node002").at("processes").size(), 1u);
  EXPECT_EQ(current(cluster, 2), before);
  EXPECT_EQ(cluster.on_node(2, "ls /opt/ds-ops/releases | wc -l").out, "1\n");

  JsonReport proceed = cluster.ds_install_json({"--ops", "cpu_lion,utils"});
  EXPECT_EQ(proceed.exit_code, 0) << proceed.err;
  EXPECT_EQ(proceed.host("node002").value("result", ""), "installed");
  EXPECT_THAT(remarks(proceed), HasSubstr("node002 1 process keeps files of release"));

  cluster.on_node(2, "touch /tmp/end; sleep 1; rm /tmp/end");
  use_release(cluster, 2);
  std::future<JsonReport> wait = std::async(std::launch::async, [&] {
    return cluster.ds_install_json({"--ops", "cpu_lion", "--busy", "wait"});
  });
  EXPECT_TRUE(eventually([&] { return current(cluster, 1) == before; }));
  EXPECT_NE(current(cluster, 2), before);
  cluster.on_node(2, "touch /tmp/end");
  JsonReport waited = wait.get();
  EXPECT_EQ(waited.exit_code, 0) << waited.err;
  EXPECT_EQ(current(cluster, 2), before);
}

TEST(Hold, Keeps_what_a_host_has_from_every_head_until_it_is_ended) {
  DSI_CLUSTER(cluster, 3);
  ASSERT_EQ(cluster.ds_install_json({"--ops", "cpu_lion"}).exit_code, 0);
  const std::string before = current(cluster, 2);
  JsonReport held =
      cluster.ds_install_json({"hold", "--hosts", "node002", "--reason", "a paper's numbers"});
  EXPECT_EQ(held.exit_code, 0) << held.err;
  EXPECT_EQ(held.host("node002").value("result", ""), "held");

  JsonReport run =
      cluster.ds_install_json({"--ops", "cpu_lion,utils", "--batch", "1", "--max-fail", "0"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.count("installed"), 2);
  EXPECT_EQ(run.host("node002").value("result", ""), "held");
  EXPECT_THAT(run.host("node002").at("error").value("what", ""), HasSubstr("a paper's numbers"));
  EXPECT_EQ(current(cluster, 2), before);
  EXPECT_THAT(remarks(cluster.ds_install_json({"report"})), HasSubstr("node002 is held since"));

  EXPECT_EQ(cluster.ds_install({"unhold"}).exit_code, 0);
  run = cluster.ds_install_json({"--ops", "cpu_lion,utils"});
  EXPECT_EQ(run.host("node002").value("result", ""), "installed") << run.err;
}

TEST(RollbackTo, A_run_of_history_in_batches) {
  DSI_CLUSTER(cluster, 3);
  JsonReport first = cluster.ds_install_json({"--ops", "cpu_lion"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string run = first.summary().value("run", "");
  JsonReport second = cluster.ds_install_json({"--ops", "cpu_lion,utils"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(cluster.on_head({DSI_PROGRAM, "history"}).out, HasSubstr("still on 3"));

  JsonReport back = cluster.ds_install_json({"rollback", "--to", run, "--batch", "1"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.count("rolled-back"), 3);
  EXPECT_THAT(back.err, HasSubstr("3 of 3: node003: 1 of 1 well"));
  EXPECT_EQ(back.host("node003").value("to", ""), first.host("node003").value("to", "-"));
  back = cluster.ds_install_json({"rollback", "--to", first.host("node001").value("to", "")});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.count("up-to-date"), 3);
  back = cluster.ds_install_json({"rollback", "--to", "0123456789abcdef"});
  EXPECT_EQ(back.exit_code, 1);
  EXPECT_EQ(back.count("failed"), 3);
}

TEST(Notify, Tells_of_a_run_that_is_well_refused_or_interrupted_and_changes_nothing) {
  DSI_CLUSTER(cluster, 2);
  const std::string log = cluster.folder() + "/told";
  const std::string hook = "{ echo \"$DSI_COMMAND $DSI_EXIT\"; cat; } >>" + log;
  JsonReport good = cluster.ds_install_json({"--ops", "cpu_lion", "--notify", hook});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_THAT(read_file(log).value_or(""),
              AllOf(HasSubstr("install 0\n"), HasSubstr("2 hosts: 2 installed.")));

  JsonReport bad =
      cluster.ds_install_json({"--ops-dir", kOps, "--ops", "does_not_compile", "--notify", hook});
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_THAT(read_file(log).value_or(""),
              AllOf(HasSubstr("install 3\n"), HasSubstr("1 of 1 ops cannot be built")));
  // It left a record, too.
  EXPECT_THAT(cluster.on_head({DSI_PROGRAM, "history", "show", "last"}).out,
              HasSubstr("1 of 1 ops cannot be built"));

  JsonReport failing =
      cluster.ds_install_json({"--ops", "cpu_lion", "--notify", "echo no mail; exit 1",
                               "--notify-url", "http://me:SECRET@127.0.0.1:1/SECRET"});
  EXPECT_EQ(failing.exit_code, 0);
  EXPECT_THAT(failing.err,
              AllOf(HasSubstr("the command of --notify ended with exit code 1: no mail"),
                    HasSubstr("the webhook http://127.0.0.1:1/... was not told"),
                    Not(HasSubstr("SECRET"))));
  Outcome record = cluster.on_head({DSI_PROGRAM, "history", "show", "last"});
  EXPECT_THAT(record.out, AllOf(HasSubstr("no mail"), Not(HasSubstr("SECRET"))));
}

// What systemd's stop sends: SIGTERM to the program itself (KillMode=mixed).
TEST(Stop, By_systemd_in_the_middle_ends_what_is_in_flight_and_the_record_explains_it) {
  DSI_CLUSTER(cluster, 3);
  const std::string bundle = cluster.folder() + "/slow.tar.zst";
  const std::string log = cluster.folder() + "/told";
  ASSERT_EQ(cluster
                .on_head({DSI_PROGRAM, "build", "--ops-dir", kOps, "--ops", "takes_its_time", "-o",
                          bundle})
                .exit_code,
            0);
  std::vector<std::string> command = cluster.ds_install_command(
      {"--bundle", bundle, "--batch", "1", "--json", "--notify", "cat >" + log});
  const std::string pid = cluster.folder() + "/pid";
  std::vector<std::string> with_pid = {"sh", "-c", "echo $$ >" + pid + "; exec \"$@\"", "sh"};
  with_pid.insert(with_pid.end(), command.begin(), command.end());
  std::future<Outcome> run =
      std::async(std::launch::async, [&] { return cluster.on_head(with_pid); });
  ASSERT_TRUE(eventually(
      [&] { return cluster.on_node(1, "test -e /opt/ds-ops/releases").exit_code == 0; }));
  cluster.on_head({"sh", "-c", "kill -TERM $(cat " + pid + ")"});
  JsonReport report = read_json_report(run.get());
  EXPECT_EQ(report.exit_code, 130);
  EXPECT_EQ(report.host("node001").value("result", ""), "installed") << report.err;
  EXPECT_EQ(report.count("not-tried"), 2);
  EXPECT_NE(cluster.on_node(2, "test -e /opt/ds-ops").exit_code, 0);
  EXPECT_THAT(read_file(log).value_or(""),
              AllOf(HasSubstr("exit code 130"), HasSubstr("interrupted")));
  EXPECT_THAT(cluster.on_head({DSI_PROGRAM, "history", "show", "last"}).out,
              AllOf(HasSubstr("interrupted"), HasSubstr("node[002-003] (2)")));
}

TEST(TwoHeads, Are_never_both_at_one_host_and_the_second_says_who_the_first_is) {
  DSI_CLUSTER(cluster, 3);
  const std::string bundle = cluster.folder() + "/slow.tar.zst";
  ASSERT_EQ(cluster
                .on_head({DSI_PROGRAM, "build", "--ops-dir", kOps, "--ops", "takes_its_time", "-o",
                          bundle})
                .exit_code,
            0);
  ASSERT_EQ(cluster.ds_install_json({"--ops", "cpu_lion"}).exit_code, 0);
  // The first holds node002 for as long as a process uses its release.
  use_release(cluster, 2);
  std::future<JsonReport> first = std::async(std::launch::async, [&] {
    return cluster.ds_install_json(
        {"--bundle", bundle, "--hosts", "node[001-002]", "--busy", "wait", "--busy-limit", "10m"});
  });
  ASSERT_TRUE(eventually([&] { return cluster.on_node(2, "cat /opt/ds-ops/lock").out != ""; }));
  const auto holder =
      nlohmann::json::parse(cluster.on_node(2, "cat /opt/ds-ops/lock").out, nullptr, false);
  ASSERT_TRUE(holder.is_object());

  JsonReport second =
      cluster.ds_install_json({"--ops", "cpu_lion,utils", "--hosts", "node[002-003]"});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_EQ(second.host("node003").value("result", ""), "installed") << second.err;
  EXPECT_EQ(second.host("node002").value("result", ""), "failed");
  EXPECT_THAT(second.host("node002").at("error").value("what", ""),
              AllOf(HasSubstr("is locked by run " + holder.value("run", "-") + " of " +
                              holder.value("by", "-")),
                    HasSubstr("since " + holder.value("time", "-"))));
  cluster.on_node(2, "touch /tmp/end");
  JsonReport done = first.get();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.count("installed"), 2);
  EXPECT_EQ(done.summary().value("run", ""), holder.value("run", "-"));
  // Nothing of the second is in what node002 remembers.
  EXPECT_THAT(cluster.on_node(2, "cat /opt/ds-ops/state.json").out,
              Not(HasSubstr(second.summary().value("run", "-"))));
}

// What was asked for may have been done, or may still be; the host is asked on another connection.
TEST(LostConnection, A_host_that_was_done_with_its_rollback_or_uninstall_has_not_failed) {
  DSI_CLUSTER(cluster, 1);
  JsonReport first = cluster.ds_install_json({"--ops-dir", kOps, "--ops", "waits"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string old = first.host("node001").value("to", "");
  ASSERT_EQ(cluster.ds_install_json({"--ops", "cpu_lion"}).exit_code, 0);
  // A rollback tests the ops when it has switched.
  cluster.on_node(1, "touch /tmp/wait");
  std::future<JsonReport> run =
      std::async(std::launch::async, [&] { return cluster.ds_install_json({"rollback"}); });
  EXPECT_TRUE(eventually([&] { return current(cluster, 1) == "releases/" + old + "\n"; }));
  EXPECT_EQ(cluster.control({"kill-agent", "1"}).exit_code, 0);
  cluster.on_node(1, "rm /tmp/wait");
  JsonReport back = run.get();
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.host("node001").value("result", ""), "rolled-back") << back.err;
  EXPECT_EQ(back.host("node001").value("to", ""), old);
  EXPECT_TRUE(back.every_op_is_ok());

  const std::string killed = cluster.on_node(1, "cat /opt/ds-ops/lock").out;
  use_release(cluster, 1);
  run = std::async(std::launch::async, [&] {
    return cluster.ds_install_json({"uninstall", "--busy", "wait"});
  });
  // The agent that was killed has left its name there.
  EXPECT_TRUE(eventually([&] {
    const std::string holder = cluster.on_node(1, "cat /opt/ds-ops/lock").out;
    return holder != "" && holder != killed;
  }));
  EXPECT_EQ(cluster.control({"kill-agent", "1"}).exit_code, 0);
  cluster.on_node(1, "touch /tmp/end");
  JsonReport gone = run.get();
  EXPECT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_EQ(gone.host("node001").value("result", ""), "uninstalled") << gone.err;
  EXPECT_NE(cluster.on_node(1, "test -e /opt/ds-ops").exit_code, 0);
}

// Killed before the switch: the row says what the host has, and that is true.
TEST(LostConnection, A_host_that_was_not_done_is_said_to_have_what_it_has) {
  DSI_CLUSTER(cluster, 1);
  ASSERT_EQ(cluster.ds_install_json({"--ops", "cpu_lion"}).exit_code, 0);
  const std::string before = current(cluster, 1);
  use_release(cluster, 1);
  std::future<JsonReport> run = std::async(std::launch::async, [&] {
    return cluster.ds_install_json({"--ops-dir", kOps, "--ops", "waits", "--busy", "wait"});
  });
  EXPECT_TRUE(eventually([&] {
    return cluster.on_node(1, "ls /opt/ds-ops/releases").out.find('\n') !=
           cluster.on_node(1, "ls /opt/ds-ops/releases").out.rfind('\n');
  }));
  // It waits for the process by now, or will.
  EXPECT_EQ(cluster.control({"kill-agent", "1"}).exit_code, 0);
  JsonReport report = run.get();
  cluster.on_node(1, "touch /tmp/end");
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_EQ("releases/" + report.host("node001").value("to", "") + "\n", before);
  EXPECT_EQ(current(cluster, 1), before);
}

// One folder that two hosts see, as on NFS: who removes what nobody uses sees the processes of one
// host only.
TEST(SharedPrefix, A_release_that_a_process_of_another_host_uses_stays) {
  DSI_CLUSTER(cluster, 2);
  const std::string prefix = cluster.folder() + "/shared";
  auto install = [&](const std::string& ops) {
    JsonReport report = cluster.ds_install_json(
        {"--ops-dir", kOps, "--ops", ops, "--prefix", prefix, "--batch", "1"});
    EXPECT_EQ(report.exit_code, 0) << report.err;
    return report.host("node001").value("to", "");
  };
  const std::string one = install("waits");
  cluster.on_node(2, "setsid sh -c 'exec 9<" + prefix +
                         "/current/manifest.json; until test -e /tmp/end; do sleep 0.1 9<&-; done' "
                         ">/dev/null 2>&1 </dev/null &");
  const std::string two = install("cpu_lion");
  install("cpu_lion,waits");
  auto is_there = [&](const std::string& release) {
    return cluster.on_node(1, "test -e " + prefix + "/releases/" + release + "/manifest.json")
               .exit_code == 0;
  };
  EXPECT_TRUE(is_there(one));
  EXPECT_TRUE(is_there(two));
  cluster.on_node(2, "touch /tmp/end; sleep 0.5");
  install("cpu_lion,waits");
  EXPECT_FALSE(is_there(one));
  EXPECT_TRUE(is_there(two)) << "it is the one to roll back to";
}

// A real cron of each host, which is its own head here: its crontab is the line that schedule
// prints. The second host is held when its time comes.
TEST(Cron, Runs_the_line_that_schedule_prints_and_a_held_host_keeps_what_it_has) {
  DSI_CLUSTER(cluster, 2);
  if (cluster.on_node(1, "command -v cron").exit_code != 0) GTEST_SKIP() << "there is no cron";
  const std::string bundle = cluster.folder() + "/ops.tar.zst";
  const std::string before = cluster.folder() + "/before.tar.zst";
  ASSERT_EQ(cluster.on_head({DSI_PROGRAM, "build", "--ops", "cpu_lion", "-o", bundle}).exit_code,
            0);
  ASSERT_EQ(cluster.on_head({DSI_PROGRAM, "build", "--ops", "utils", "-o", before}).exit_code, 0);
  const std::string program = DSI_PROGRAM;
  Outcome held =
      cluster.on_node(2, program + " -l -r --bundle " + before + " && " + program +
                             " hold -l -r --reason 'a long job' && rm -rf /root/.local/state");
  ASSERT_EQ(held.exit_code, 0) << held.err;
  const std::string kept = current(cluster, 2);
  Outcome line = cluster.on_head({DSI_PROGRAM, "schedule", "-r", "--cron", "--at", "* * * * *",
                                  "-l", "--bundle", bundle, "--notify", "cat >/root/told"});
  ASSERT_EQ(line.exit_code, 0) << line.err;
  ASSERT_TRUE(write_file_atomically(cluster.folder() + "/crontab", line.out));
  for (int node : {1, 2}) {
    Outcome started = cluster.on_node(
        node, "crontab " + cluster.folder() + "/crontab && setsid cron </dev/null >/dev/null 2>&1");
    ASSERT_EQ(started.exit_code, 0) << started.err;
  }
  // Cron begins with the next minute.
  EXPECT_TRUE(eventually([&] {
    return cluster.on_node(1, "test -s /root/told").exit_code == 0 &&
           cluster.on_node(2, "test -s /root/told").exit_code == 0;
  }));
  EXPECT_THAT(cluster.on_node(1, "cat /root/told").out,
              AllOf(HasSubstr("exit code 0"), HasSubstr("1 host: 1 installed")));
  EXPECT_EQ(cluster.on_node(1, "test -e /opt/ds-ops/current/manifest.json").exit_code, 0);
  EXPECT_THAT(
      cluster.on_node(1, "cat /root/.local/state/ds-install/runs/*/report.jsonl | tail -1").out,
      HasSubstr("\"exit_code\":0"));
  EXPECT_THAT(cluster.on_node(2, "cat /root/told").out,
              AllOf(HasSubstr("exit code 0"), HasSubstr("1 host: 1 held")));
  EXPECT_EQ(current(cluster, 2), kept);
}

}  // namespace
}  // namespace dsi
