// Figures for hostfiles. The bound: 10,000 lines in under 50 ms.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "hostfile/hostfile.h"
#include "orchestrator/base/nodeset.h"

namespace dsi {
namespace {

void finish(benchmark::State& state, const std::string& text) {
  state.SetItemsProcessed(state.iterations() * state.range(0));  // Lines or names.
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void run(benchmark::State& state, const std::string& text) {
  for (auto _ : state) {
    auto parsed = parse_hostfile(text, "hosts");
    if (!parsed.ok()) state.SkipWithError("the hostfile was refused");
    benchmark::DoNotOptimize(parsed);
  }
  finish(state, text);
}

void BM_one_host_a_line(benchmark::State& state) {
  std::string text = "# a cluster\n";
  for (int i = 0; i < state.range(0); ++i) {
    text += fmt::format("gpu-node-{:05}.cluster.example slots=8 max_slots=16  # rack {}\r\n", i,
                        i / 32);
  }
  run(state, text);
}
BENCHMARK(BM_one_host_a_line)->Arg(10'000)->Unit(benchmark::kMillisecond);

void BM_user_and_port_on_every_line(benchmark::State& state) {
  std::string text;
  for (int i = 0; i < state.range(0); ++i) {
    text += fmt::format("admin@10.{}.{}.{}:8 port=2222 binding=user:0,1\n", i / 62500,
                        i / 250 % 250, 1 + i % 250);
  }
  run(state, text);
}
BENCHMARK(BM_user_and_port_on_every_line)->Arg(10'000)->Unit(benchmark::kMillisecond);

void BM_pbs_nodefile(benchmark::State& state) {
  std::string text;
  for (int i = 0; i < state.range(0); ++i) text += fmt::format("node{:04}\n", i / 64);
  run(state, text);
}
BENCHMARK(BM_pbs_nodefile)->Arg(10'000)->Unit(benchmark::kMillisecond);

void BM_ten_thousand_wrong_lines(benchmark::State& state) {
  std::string text;
  for (int i = 0; i < state.range(0); ++i) text += fmt::format("node{:05};x slots=8\n", i);
  for (auto _ : state) benchmark::DoNotOptimize(parse_hostfile(text, "hosts"));
  finish(state, text);
}
BENCHMARK(BM_ten_thousand_wrong_lines)->Arg(10'000)->Unit(benchmark::kMillisecond);

void BM_fold(benchmark::State& state) {
  std::vector<std::string> names;
  for (int i = 0; i < state.range(0); ++i) {
    names.push_back(fmt::format("rack{}n{:02}", i / 32, i % 32));
  }
  for (auto _ : state) benchmark::DoNotOptimize(fold_nodeset(names));
  finish(state, "");
}
BENCHMARK(BM_fold)->Arg(10'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsi
