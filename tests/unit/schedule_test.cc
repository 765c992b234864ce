#include "orchestrator/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/adapters/local_process.h"
#include "temp_folder.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Schedule weekly() {
  Schedule schedule;
  schedule.unit = "ds-install-gpu";
  schedule.command = {"/usr/bin/env", "install", "--hostfile=/etc/my hosts", "--batch=1,10%",
                      "--drain=echo \"$DSI_HOST\" 100%"};
  schedule.calendar = "Sun 03:00";
  return schedule;
}

TEST(SystemdWord, Is_quoted_where_systemd_would_read_something_else) {
  EXPECT_EQ(systemd_word("--hostfile=/etc/hosts.txt"), "--hostfile=/etc/hosts.txt");
  EXPECT_EQ(systemd_word(""), "\"\"");
  EXPECT_EQ(systemd_word("a b"), "\"a b\"");
  EXPECT_EQ(systemd_word("50%"), "\"50%%\"");
  EXPECT_EQ(systemd_word("$HOME"), "\"$$HOME\"");
  EXPECT_EQ(systemd_word("say \"x\\y\""), "\"say \\\"x\\\\y\\\"\"");
}

TEST(UnitFiles, Say_when_and_what) {
  EXPECT_THAT(timer_text(weekly()),
              AllOf(HasSubstr("\nOnCalendar=Sun 03:00\n"), HasSubstr("\nPersistent=yes\n"),
                    HasSubstr("\nRandomizedDelaySec=15min\n")));
  Schedule of_system = weekly();
  of_system.user = "ops";
  EXPECT_THAT(service_text(of_system),
              AllOf(HasSubstr("ExecStart=/usr/bin/env install \"--hostfile=/etc/my hosts\" "
                              "\"--batch=1,10%%\" \"--drain=echo \\\"$$DSI_HOST\\\" 100%%\"\n"),
                    HasSubstr("\nUser=ops\n"), HasSubstr("\nProtectSystem=full\n")));
  EXPECT_THAT(service_text(weekly()), AllOf(Not(HasSubstr("User=")), Not(HasSubstr("Protect"))));
}

TEST(UnitFiles, Leave_open_what_the_options_need) {
  Options options;
  options.hostfile = "/etc/ds-install/hosts.txt";
  Schedule schedule = weekly();
  schedule.user = "ops";
  schedule.needs = needs_of(options);
  EXPECT_THAT(service_text(schedule),
              AllOf(HasSubstr("\nPrivateTmp=yes\n"), HasSubstr("\nNoNewPrivileges=yes\n"),
                    Not(HasSubstr("ReadWritePaths"))));

  options.bundle = "/tmp/ops.tar.zst";
  options.metrics = "/usr/local/share/node exporter/ds.prom";
  options.drain = "sudo pbsnodes -o $DSI_HOST";
  schedule.needs = needs_of(options);
  EXPECT_THAT(service_text(schedule),
              AllOf(Not(HasSubstr("PrivateTmp")), Not(HasSubstr("NoNewPrivileges")),
                    Not(HasSubstr("Restrict")), HasSubstr("\nProtectSystem=full\n"),
                    HasSubstr("\nReadWritePaths=\"-/usr/local/share/node exporter\"\n")));

  options = {};
  options.local_only = true;
  options.prefix = "/usr/local/ds-ops";
  EXPECT_THAT(needs_of(options).writable, testing::ElementsAre("/usr/local/ds-ops"));
  options.pip_sudo = true;
  EXPECT_TRUE(needs_of(options).rights);
}

TEST(UnitFiles, Are_what_systemd_analyze_accepts) {
  LocalProcessRunner processes;
  for (const char* user : {"root", ""}) {
    TempFolder folder;
    Schedule schedule = weekly();
    schedule.user = user;
    schedule.needs.writable = {"/usr/local/share/node exporter"};
    const auto service = folder.write(schedule.unit + ".service", service_text(schedule));
    const auto timer = folder.write(schedule.unit + ".timer", timer_text(schedule));
    std::vector<std::string> command = {"systemd-analyze", "verify", "--man=no", service.string(),
                                        timer.string()};
    auto verified = processes.run({command, {}, {}}, Deadline::after(50s), {});
    ASSERT_TRUE(verified) << verified.error().what;
    EXPECT_EQ(verified->exit_code, 0) << verified->err;
    EXPECT_EQ(verified->err.find(schedule.unit), std::string::npos) << verified->err;
  }
  auto calendar = processes.run({{"systemd-analyze", "calendar", weekly().calendar}, {}, {}},
                                Deadline::after(50s), {});
  ASSERT_TRUE(calendar);
  EXPECT_EQ(calendar->exit_code, 0) << calendar->err;
}

TEST(CrontabLine, Has_five_fields_and_no_bare_percent) {
  Schedule schedule = weekly();
  EXPECT_THAT(crontab_line(schedule).error().help, HasSubstr("0 3 * * 0"));
  schedule.calendar = "0 3 * * 0";
  EXPECT_EQ(crontab_line(schedule).value(),
            "0 3 * * 0 /usr/bin/env install '--hostfile=/etc/my hosts' --batch=1,10\\% "
            "'--drain=echo \"$DSI_HOST\" 100\\%'\n");
  schedule.calendar = "0 3 * * 0;reboot";
  EXPECT_FALSE(crontab_line(schedule));
}

}  // namespace
}  // namespace dsi
