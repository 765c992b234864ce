// What a run over a thousand hosts in batches costs the head besides the hosts themselves: the
// batches, the plan, the record, and reading the records again. The goal for each is two seconds.
//
//   ninja -C build/dev operations_bench
//   build/dev/tests/bench/operations_bench --benchmark_repetitions=5
//
// What the hosts cost in such a run: `time ds-install check` with its hostfile, on a cluster at
// rest.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "orchestrator/history.h"
#include "orchestrator/history_command.h"
#include "orchestrator/notify.h"
#include "orchestrator/plan.h"
#include "orchestrator/record.h"
#include "orchestrator/rollout.h"
#include "tests/unit/survey_fixture.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;

std::string name_of(std::int64_t i) {
  return fmt::format("node{:05}", i);
}

Plan plan_for(std::int64_t count) {
  std::vector<SurveyRow> rows;
  for (std::int64_t i = 0; i < count; ++i) rows.push_back(testing::good_host(name_of(i)));
  Intention intention;
  intention.command = "install";
  intention.release = "0123456789abcdef";
  intention.build = testing::good_release();
  return make_plan(intention, rows);
}

// Ten ops on each host; every fiftieth host is away, every hundredth in use.
RunReport report_of(const std::string& run, std::int64_t count) {
  RunReport report;
  report.run = run;
  report.command = "install";
  report.release = "0123456789abcdef";
  for (std::int64_t i = 0; i < count; ++i) {
    HostReport host;
    host.host = name_of(i);
    host.prefix = "/opt/ds-ops";
    if (i % 50 == 49) {
      host.status = HostStatus::kUnreachable;
      host.error = {"no route to " + host.host, "is it switched on?"};
    } else {
      host.status = HostStatus::kInstalled;
      host.to = report.release;
      host.releases = {report.release, "fedcba9876543210"};
      for (int op = 0; op < 10; ++op) {
        host.ops.push_back({"op" + std::to_string(op), "ok", "cpu", ""});
      }
      if (i % 100 == 0) {
        host.processes = {{4711, "alice", "python3 train.py", "fedcba9876543210"}};
      }
    }
    report.hosts.push_back(std::move(host));
  }
  for (int op = 0; op < 10; ++op) report.columns.push_back("op" + std::to_string(op));
  return report;
}

// Records of earlier runs, gone with this.
class State {
 public:
  State(int runs, std::int64_t hosts) {
    std::string pattern = (fs::temp_directory_path() / "dsi-bench-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    for (int i = 0; i < runs; ++i) {
      const std::string run = fmt::format("20261130-14{:02}{:02}-0000", i / 60, i % 60);
      (void)Record::create(path_, run)->write_report(report_of(run, hosts));
    }
  }
  ~State() { fs::remove_all(path_); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void plan_in_batches(benchmark::State& state) {
  Options options;
  options.batch = "1,1%,5%";
  options.order = "racks";
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    options.per_host[name_of(i)].rack = "rack" + std::to_string(i / 32);
  }
  for (auto _ : state) {
    const Plan plan = plan_for(state.range(0));
    auto pace = pace_of(options, plan.hosts, Pace::Clock::now());
    benchmark::DoNotOptimize(pace->batches.size());
    benchmark::DoNotOptimize(plan_json(plan).size());
  }
}
BENCHMARK(plan_in_batches)->Arg(1000)->Unit(benchmark::kMillisecond);

void keep_a_record(benchmark::State& state) {
  State records(0, 0);
  const RunReport report = report_of("20261130-150000-0000", state.range(0));
  auto record = Record::create(records.path(), report.run);
  for (auto _ : state) (void)record->write_report(report);
}
BENCHMARK(keep_a_record)->Arg(1000)->Unit(benchmark::kMillisecond);

void print_and_tell(benchmark::State& state) {
  const RunReport report = report_of("20261130-150000-0000", state.range(0));
  for (auto _ : state) {
    std::ostringstream out;
    print_report(out, report, Style{});
    benchmark::DoNotOptimize(out.str().size());
    benchmark::DoNotOptimize(json_of({report, "root@head", "/records"}).size());
  }
}
BENCHMARK(print_and_tell)->Arg(1000)->Unit(benchmark::kMillisecond);

// A hundred earlier runs, each of so many hosts.
void list_history(benchmark::State& state) {
  State records(100, state.range(0));
  Options options;
  for (auto _ : state) {
    std::ostringstream out;
    (void)show_history(options, records.path(), out, Style{});
    benchmark::DoNotOptimize(out.str().size());
  }
}
BENCHMARK(list_history)->Arg(1000)->Unit(benchmark::kMillisecond);

void show_a_run(benchmark::State& state) {
  State records(1, state.range(0));
  Options options;
  options.record = "last";
  for (auto _ : state) {
    std::ostringstream out;
    (void)show_history(options, records.path(), out, Style{});
    benchmark::DoNotOptimize(out.str().size());
  }
}
BENCHMARK(show_a_run)->Arg(1000)->Unit(benchmark::kMillisecond);

void what_hosts_should_have(benchmark::State& state) {
  State records(100, state.range(0));
  std::vector<std::string> hosts;
  for (std::int64_t i = 0; i < state.range(0); ++i) hosts.push_back(name_of(i));
  for (auto _ : state) {
    benchmark::DoNotOptimize(releases_on_record(records.path(), "", hosts).size());
  }
}
BENCHMARK(what_hosts_should_have)->Arg(1000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsi
