// The cores of the CPU optimizers without torch: one thread, in the caches and out of them, on
// every path of this machine. bytes_per_second counts what a step must read and write.

#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "cpu_adagrad.h"
#include "cpu_adam.h"
#include "cpu_isa.h"
#include "cpu_lion.h"

namespace {

using ds::CpuIsa;
using ds::DType;

std::int64_t bytes(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

// Zeroes are fine: no operation here is slower or faster for its values, denormals aside.
struct Arrays {
  Arrays(std::int64_t size, DType dtype)
      : p(static_cast<std::size_t>(size * bytes(dtype))),
        g(p.size()),
        m(static_cast<std::size_t>(size * 4)),
        v(m.size()) {}
  std::vector<char> p, g, m, v;
};

void report(benchmark::State& state, std::int64_t size, std::int64_t bytes_each) {
  state.SetBytesProcessed(state.iterations() * size * bytes_each);
  state.SetItemsProcessed(state.iterations() * size);
}

void copy(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0)) * 4;
  std::vector<char> from(size, 1), to(size, 2);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), size);
    benchmark::ClobberMemory();
  }
  report(state, state.range(0), 8);
}

void adam(benchmark::State& state, CpuIsa isa, DType dtype) {
  Arrays a(state.range(0), dtype);
  const ds::AdamTensor tensor{a.p.data(),     a.g.data(), a.m.data(), a.v.data(),
                              state.range(0), dtype,      dtype,      DType::f32};
  for (auto _ : state) ds::cpu_adam_step(&tensor, 1, {}, {1, isa});
  report(state, state.range(0), 3 * bytes(dtype) + 16);
}

void adagrad(benchmark::State& state, CpuIsa isa, DType dtype) {
  Arrays a(state.range(0), dtype);
  const ds::AdagradTensor tensor{a.p.data(), a.g.data(), a.v.data(), state.range(0),
                                 dtype,      dtype,      DType::f32};
  for (auto _ : state) ds::cpu_adagrad_step(&tensor, 1, {}, {1, isa});
  report(state, state.range(0), 3 * bytes(dtype) + 8);
}

void lion(benchmark::State& state, CpuIsa isa, DType dtype) {
  Arrays a(state.range(0), dtype);
  const ds::LionTensor tensor{a.p.data(), a.g.data(), a.m.data(), state.range(0),
                              dtype,      dtype,      DType::f32};
  for (auto _ : state) ds::cpu_lion_step(&tensor, 1, {}, {1, isa});
  report(state, state.range(0), 3 * bytes(dtype) + 8);
}

constexpr std::int64_t kInCache = 1 << 16;
constexpr std::int64_t kInMemory = 1 << 25;

[[maybe_unused]] const bool registered = [] {
  benchmark::RegisterBenchmark("copy", copy)
      ->Arg(kInCache)
      ->Arg(kInMemory)
      ->Unit(benchmark::kMicrosecond);
  const std::pair<const char*, void (*)(benchmark::State&, CpuIsa, DType)> ops[] = {
      {"cpu_adam", adam}, {"cpu_adagrad", adagrad}, {"cpu_lion", lion}};
  const std::pair<const char*, DType> dtypes[] = {
      {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}};
  for (const auto& [op, function] : ops) {
    for (const auto& [dtype_name, dtype] : dtypes) {
      for (CpuIsa isa : ds::kAllIsas) {
        if (!ds::runs(ds::best_isa(), isa)) continue;
        const std::string name = std::string(op) + "/" + dtype_name + "/" + ds::isa_name(isa);
        benchmark::RegisterBenchmark(name.c_str(), function, isa, dtype)
            ->Arg(kInCache)
            ->Arg(kInMemory)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  return true;
}();

}  // namespace
