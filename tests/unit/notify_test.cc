#include "orchestrator/notify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "temp_folder.h"

namespace dsi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class FakeWebhook : public Webhook {
 public:
  Result<void> post(const std::string& url, const std::string& json,
                    std::chrono::seconds) override {
    url_ = url;
    body_ = json;
    if (!fault_.empty()) return fail("{}", fault_);
    return {};
  }
  std::string url_;
  std::string body_;
  std::string fault_;
};

RunReport some_report() {
  RunReport report;
  report.run = "20261130-030000-abcd";
  report.command = "install";
  report.release = "0123456789abcdef";
  report.seconds = std::chrono::duration<double>(97.4);
  for (const char* name : {"node001", "node002", "node003", "node004"}) {
    HostReport host;
    host.host = name;
    host.status = HostStatus::kInstalled;
    report.hosts.push_back(host);
  }
  for (int i : {1, 2}) {
    report.hosts[i].status = HostStatus::kUnreachable;
    report.hosts[i].error.what = "no route to " + report.hosts[i].host + "\nat all";
  }
  report.hosts[3].status = HostStatus::kHeld;
  report.hosts[3].error.what = "held since yesterday";
  return report;
}

TEST(Notification, Tells_in_one_paragraph_what_happened) {
  const RunReport report = some_report();
  EXPECT_EQ(paragraph_of({report, "root@head", "/records/r"}),
            "ds-install install of root@head (run 20261130-030000-abcd) ended with exit code 1 "
            "after 97 s. 4 hosts: 1 held, 1 installed, 2 unreachable. node[002-003] unreachable: "
            "no route to it. Release 0123456789abcdef. More: ds-install history show "
            "20261130-030000-abcd.");
  const auto body = nlohmann::json::parse(json_of({report, "root@head", "/records/r"}));
  EXPECT_EQ(body["exit_code"], 1);
  EXPECT_EQ(body["counts"]["unreachable"], 2);
  EXPECT_THAT(body["not_well"], ElementsAre("node002", "node003"));
  EXPECT_THAT(body["text"].get<std::string>(), HasSubstr("no route"));
}

TEST(Notification, Tells_of_a_run_that_was_refused) {
  RunReport report;
  report.run = "r";
  report.command = "install";
  report.error = {"1 of 2 ops cannot be built\n  cpu_lion: ...", "see the log"};
  report.error_exit = 3;
  EXPECT_THAT(paragraph_of({report, "me@head", ""}),
              AllOf(HasSubstr("exit code 3"), HasSubstr("1 of 2 ops cannot be built."),
                    Not(HasSubstr("history"))));
}

TEST(Notification, Of_a_url_only_scheme_host_and_port_are_shown) {
  EXPECT_EQ(without_secrets("https://hooks.example.com/services/T0/B0/SECRET"),
            "https://hooks.example.com/...");
  EXPECT_EQ(without_secrets("https://user:SECRET@host:8443?token=SECRET"), "https://host:8443/...");
  EXPECT_EQ(without_secrets("http://host"), "http://host");
  EXPECT_EQ(without_secrets("http://a@b@host#SECRET"), "http://host/...");
  EXPECT_EQ(without_secrets("SECRET"), "...");
}

TEST(Notification, Goes_to_the_command_with_what_it_needs_to_know) {
  TempFolder folder;
  LocalProcessRunner processes;
  FakeWebhook webhook;
  Options options;
  const std::string out = (folder.path() / "out").string();
  options.notify = "{ cat; echo $DSI_RUN_ID $DSI_COMMAND $DSI_EXIT $DSI_RECORD; } >" + out;
  options.notify_url = "https://user:SECRET@host/hook";
  const RunReport report = some_report();
  EXPECT_THAT(notify(options, {report, "me@head", "/records/r"}, processes, webhook), IsEmpty());
  EXPECT_EQ(read_file(out).value_or(""), paragraph_of({report, "me@head", "/records/r"}) +
                                             "\n20261130-030000-abcd install 1 /records/r\n");
  EXPECT_EQ(webhook.url_, options.notify_url);
  EXPECT_THAT(webhook.body_, HasSubstr("\"run\":\"20261130-030000-abcd\""));
}

TEST(Notification, One_that_fails_is_a_warning_without_a_secret_in_it) {
  LocalProcessRunner processes;
  FakeWebhook webhook;
  webhook.fault_ = "it answers with status 500";
  Options options;
  options.notify = "echo no mail here >&2; exit 7 # SECRET";
  options.notify_url = "https://user:SECRET@host/SECRET";
  const RunReport report = some_report();
  EXPECT_THAT(notify(options, {report, "me@head", ""}, processes, webhook),
              ElementsAre("the command of --notify ended with exit code 7: no mail here",
                          "the webhook https://host/... was not told: it answers with status 500"));
}

TEST(Notification, A_command_that_hangs_or_reads_nothing_holds_up_nobody) {
  LocalProcessRunner processes;
  FakeWebhook webhook;
  Options options;
  options.notify_timeout = std::chrono::seconds(1);
  options.notify = "sleep 600 # SECRET";
  RunReport report = some_report();
  EXPECT_THAT(notify(options, {report, "me@head", ""}, processes, webhook),
              ElementsAre("the command of --notify did not end within 1 s"));
  // More than a pipe holds.
  report.hosts[1].error.what = std::string(150, 'x');
  report.error.what = std::string(1 << 20, 'y');
  options.notify = "true";
  options.notify_timeout = std::chrono::seconds(60);
  EXPECT_THAT(notify(options, {report, "me@head", ""}, processes, webhook), IsEmpty());
}

}  // namespace
}  // namespace dsi
