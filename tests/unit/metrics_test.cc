#include "orchestrator/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsi {
namespace {

using testing::HasSubstr;

TEST(Metrics, Say_what_came_out_in_the_exporters_format) {
  RunReport report;
  report.command = "check";
  report.run = "20261130-141502-3f9c";
  report.strict = true;
  report.seconds = std::chrono::duration<double>(1.5);
  HostReport good;
  good.host = "a";
  good.status = HostStatus::kUpToDate;
  good.action = "reported";
  good.to = "5a2ca6a8b0b2c3d4";
  good.ops = {{"x", "ok", "cpu", ""}};
  HostReport bad = good;
  bad.host = "b\"\\\n{}";
  bad.ops[0].status = "crash";
  report.hosts = {good, bad};
  const std::string text = metrics_text(report, 1764512102);
  EXPECT_THAT(text, HasSubstr("# TYPE ds_install_hosts gauge\n"
                              "ds_install_hosts{command=\"check\",result=\"reported\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ds_install_host_well{host=\"a\",release=\"5a2ca6a8b0b2c3d4\"} 1\n"));
  // Nothing that a host says ends a label or a line.
  EXPECT_THAT(text,
              HasSubstr("ds_install_op_ok{host=\"b\\\"\\\\ {}\",op=\"x\",device=\"cpu\"} 0\n"));
  EXPECT_THAT(
      text,
      HasSubstr("ds_install_run_exit_code{command=\"check\",run=\"20261130-141502-3f9c\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("ds_install_run_end_timestamp_seconds{command=\"check\"} 1764512102\n"));
}

}  // namespace
}  // namespace dsi
