// What the head does with the answers of a survey: folding, rules, plan, text and page. The goal is
// two seconds for a thousand hosts, all of it together; the answers themselves are not part of it.

#include <benchmark/benchmark.h>

#include <sstream>

#include "orchestrator/plan.h"
#include "orchestrator/report_html.h"
#include "orchestrator/survey_text.h"
#include "tests/unit/survey_fixture.h"

namespace dsi {
namespace {

// Eight kinds of hosts, each with another free space; every tenth has something to warn of.
std::vector<SurveyRow> many_hosts(std::int64_t count) {
  std::vector<SurveyRow> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    SurveyRow row = testing::good_host(fmt::format("node{:05}", i));
    row.node.libc.glibc = fmt::format("2.3{}", i * 8 / count);
    *row.node.prefix.free_bytes += static_cast<std::uint64_t>(i) << 20;
    row.node.clock_off_s = i % 10 == 0 ? 60 : 0;
    rows.push_back(std::move(row));
  }
  return rows;
}

void print_survey_of(benchmark::State& state) {
  std::vector<SurveyRow> rows = many_hosts(state.range(0));
  for (auto _ : state) {
    std::ostringstream out;
    print_survey(out, rows, default_rules(), {});
    benchmark::DoNotOptimize(out.str().size());
  }
}
BENCHMARK(print_survey_of)->Arg(1000)->Arg(10'000)->Unit(benchmark::kMillisecond);

void plan_of(benchmark::State& state) {
  std::vector<SurveyRow> rows = many_hosts(state.range(0));
  Intention intention;
  intention.command = "install";
  intention.build = testing::good_release();
  for (auto _ : state) {
    Plan plan = make_plan(intention, rows);
    benchmark::DoNotOptimize(warnings_of(plan).size());
  }
}
BENCHMARK(plan_of)->Arg(1000)->Arg(10'000)->Unit(benchmark::kMillisecond);

// A report of 40 ops with a fault of its own on one host in ten, and what changed since another.
void page_of(benchmark::State& state) {
  RunReport report;
  report.run = "20260101-000000";
  report.command = "report";
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    HostReport host;
    host.host = fmt::format("node{:05}", i);
    host.status = HostStatus::kUpToDate;
    host.action = "reported";
    for (int op = 0; op < 40; ++op) {
      bool bad = i % 10 == 0 && op == i % 40;
      host.ops.push_back({fmt::format("op_{:02}", op), bad ? "crash" : "ok", "cpu",
                          bad ? fmt::format("SIGSEGV in its self-test at {}", i) : "max error 0"});
    }
    report.hosts.push_back(std::move(host));
  }
  for (int op = 0; op < 40; ++op) report.columns.push_back(fmt::format("op_{:02}", op));
  RunReport before = report;
  for (std::size_t i = 0; i < before.hosts.size(); i += 7) {
    before.hosts[i].ops[3].status = "missing";
  }
  for (auto _ : state) benchmark::DoNotOptimize(report_html(report, &before).size());
}
BENCHMARK(page_of)->Arg(1000)->Unit(benchmark::kMillisecond);

void read_answers(benchmark::State& state) {
  std::string answer = to_json(testing::good_host("node00001").node).dump();
  for (auto _ : state) benchmark::DoNotOptimize(parse_node_facts(answer)->cpu.cores);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(answer.size()));
}
BENCHMARK(read_answers);

}  // namespace
}  // namespace dsi
