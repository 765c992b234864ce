// The HTML page, as a browser without a window draws it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "orchestrator/report_html.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

HostReport host(const std::string& name, HostStatus status, std::vector<protocol::OpRow> ops = {}) {
  HostReport report;
  report.host = name;
  report.status = status;
  report.to = status == HostStatus::kInstalled ? "5a2ca6a8b0b2c3d4" : "";
  report.ops = std::move(ops);
  return report;
}

protocol::OpRow ok(const std::string& op) {
  return {op, "ok", "cpu", ""};
}

std::string numbered(int number) {
  return fmt::format("node{:04}", number);
}

// A thousand hosts: two crash, ten lack a library, one is away.
RunReport cluster() {
  RunReport report;
  report.run = "20261130-141502-3f9c";
  report.command = "install";
  report.release = "5a2ca6a8b0b2c3d4";
  report.columns = {"async_io", "cpu_adam", "fused_adam"};
  report.seconds = std::chrono::duration<double>(97.3);
  for (int i = 1; i <= 1000; ++i) {
    if (i == 500) {
      report.hosts.push_back(host(numbered(i), HostStatus::kUnreachable));
      report.hosts.back().error = {"connection refused by " + numbered(i) + " port 22",
                                   "is sshd running on " + numbered(i) + "?"};
      continue;
    }
    protocol::OpRow aio = ok("async_io");
    if (i > 990) aio = {"async_io", "missing", "cpu", "liburing.so.2 is not on this host"};
    protocol::OpRow adam = ok("fused_adam");
    if (i == 7 || i == 9) adam = {"fused_adam", "crash", "cuda", "signal 11 (SIGSEGV) on load"};
    report.hosts.push_back(host(numbered(i), HostStatus::kInstalled, {aio, ok("cpu_adam"), adam}));
  }
  return report;
}

// The page's elements once its script has run.
std::string drawn(const TempFolder& folder, const std::string& page, const std::string& view = "") {
  const auto file = folder.path() / "report.html";
  EXPECT_TRUE(write_file_atomically(file, page));
  LocalProcessRunner processes;
  auto result = processes.run(
      {{"chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--user-data-dir=" + (folder.path() / "profile").string(), "--virtual-time-budget=10000",
        "--dump-dom", "file://" + file.string() + "#" + view},
       folder.path(),
       {{"HOME", folder.path().string()}}},
      Deadline::after(50s), {});
  if (!result || !result->ok()) {
    ADD_FAILURE() << (result ? result->err : result.error().what)
                  << "\nscripts/setup installs chromium-headless-shell";
    return "";
  }
  return result->out;
}

// The text between two marks, without elements.
std::string text_of(const std::string& html, const std::string& from, const std::string& to) {
  std::size_t begin = html.find(from);
  std::size_t end = begin == html.npos ? html.npos : html.find(to, begin);
  if (end == html.npos) return "(not there)";
  std::string text;
  bool inside = false;
  for (char c : html.substr(begin, end - begin)) {
    if (c == '<') {
      inside = true;
      text += ' ';
    } else if (c == '>') {
      inside = false;
    } else if (!inside) {
      text += c;
    }
  }
  return text;
}

std::string matrix(const std::string& html) {
  return text_of(html, "<tbody>", "</tbody>");
}

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

std::size_t rows(const std::string& html) {
  return count(std::string_view(html).substr(0, html.find("</tbody>")), "<tr data-row=");
}

TEST(Page, Shows_a_thousand_hosts_folded_with_each_reason_once) {
  TempFolder folder;
  const std::string html = drawn(folder, report_html(cluster(), nullptr));
  EXPECT_EQ(rows(html), 4u);
  EXPECT_THAT(matrix(html), AllOf(HasSubstr("node[0007,0009]  (2)"),
                                  HasSubstr("node[0991-1000]  (10)"), HasSubstr("unreachable")));
  const std::string why = text_of(html, "id=\"why\"", "</section>");
  EXPECT_EQ(count(why, "liburing.so.2 is not on this host"), 1u);
  EXPECT_THAT(why, AllOf(HasSubstr("fused_adam: crash on cuda"), HasSubstr("(10 hosts)"),
                         HasSubstr("is sshd running on node0500?")));
  EXPECT_THAT(
      text_of(html, "id=\"results\"", "</div>"),
      AllOf(HasSubstr("999 installed"), HasSubstr("1 unreachable"), HasSubstr("10 missing")));
  EXPECT_THAT(html, HasSubstr(">not every host is well<"));
  EXPECT_THAT(html, Not(HasSubstr("http")));  // Nothing is fetched from anywhere.
}

TEST(Page, Filters_by_what_its_address_says) {
  TempFolder folder;
  const std::string page = report_html(cluster(), nullptr);
  std::string html = drawn(folder, page, "q=node[0001-0020]&fold=0");
  EXPECT_EQ(rows(html), 20u);
  EXPECT_THAT(html, HasSubstr("20 of 1000 hosts"));
  html = drawn(folder, page, "bad=1");
  EXPECT_THAT(html, HasSubstr("13 of 1000 hosts"));
  html = drawn(folder, page, "result=unreachable&theme=dark");
  EXPECT_THAT(html, AllOf(HasSubstr("1 of 1000 hosts"), HasSubstr("data-theme=\"dark\"")));
  html = drawn(folder, page, "q=no*such");
  EXPECT_THAT(matrix(html), HasSubstr("No host is like that."));
}

TEST(Page, Says_what_changed_since_the_run_before) {
  TempFolder folder;
  RunReport before = cluster();
  before.run = "20261129-020000-0001";
  for (HostReport& h : before.hosts) {
    if (h.host == "node0007" || h.host == "node0009") h.ops[2] = ok("fused_adam");
  }
  const std::string html = drawn(folder, report_html(cluster(), &before), "changed=1");
  EXPECT_EQ(rows(html), 1u);
  const std::string drift = text_of(html, "id=\"drift\"", "</section>");
  EXPECT_THAT(drift,
              AllOf(HasSubstr("Changed since 2026-11-29 02:00:00 UTC"), HasSubstr("fused_adam"),
                    HasSubstr("node[0007,0009]"), HasSubstr("(2 hosts)")));
  EXPECT_THAT(html, HasSubstr("class=\"bad changed\""));
}

TEST(Page, Cannot_be_broken_by_what_a_host_says) {
  TempFolder folder;
  RunReport report = cluster();
  report.hosts.resize(2);
  report.hosts[0].ops[0] = {"async_io", "crash", "cpu",
                            "</script><script>document.title='taken'</script><img src=x "
                            "onerror=\"document.title='taken'\"> \xff $& '\""};
  report.hosts[1].error = {"<b>bold</b>", "<i>"};
  const std::string html = drawn(folder, report_html(report, nullptr));
  EXPECT_THAT(html, Not(HasSubstr("<title>taken")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(text_of(html, "id=\"why\"", "</section>"),
              AllOf(HasSubstr("&lt;/script&gt;"), HasSubstr("&lt;b&gt;bold")));
}

}  // namespace
}  // namespace dsi
