// The op on the CPU, and the self-test of both devices.
//
// A tensor is passed twice: pass A writes m and v and sums ‖p‖² and ‖u‖² of every chunk, pass B
// reads p, m and v again and writes p. Tensors are taken in batches that the caches hold, where the
// list has them, so that pass B finds there what pass A read. The sums of the chunks are added in
// their order by whoever needs them: the threads change nothing.

#include "fused_lamb.h"

#include <cstddef>
#include <vector>

#include "cpu_optimizer.h"
#include "factors.h"
#include "plan.h"
#include "self_test_cases.h"
#ifdef DS_WITH_CUDA
#include "launch.h"
#endif

namespace ds {
namespace {

constexpr int kSumLanes = 16;                 // A multiple of every path's lanes.
constexpr std::int64_t kLambSumChunk = 1024;  // Where the shares of threads are cut, too.
constexpr std::int64_t kBatch = 1 << 19;      // Elements: 6 MiB of p, m and v in f32.
static_assert(kLambSumChunk == kShareRound, "a chunk is of one thread");

struct LambPasses {
  void (*a)(const Piece& piece, const FusedLambFactors& factors, NormSquares& sums);
  void (*b)(const Piece& piece, const FusedLambFactors& factors, float step);
};

}  // namespace
}  // namespace ds

#define DS_KERNEL_FILE "kernel.h"
#include "for_each_isa.h"

namespace ds {
namespace {

// Consecutive tensors that go through pass A and then pass B; `ends` as cut_at wants them.
struct LambBatch {
  std::size_t first;
  std::vector<std::int64_t> ends;
};

class LambRun {
 public:
  LambRun(const std::vector<OptimizerTensor>& tensors, CpuIsa isa, float* trust_ratios)
      : tensors_(tensors), trust_ratios_(trust_ratios) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      passes_.push_back(DS_ON_PATH(isa, passes_for(tensors[i])));
      first_sum_.push_back(sums_.size());
      const std::int64_t chunks = (tensors[i].size + kLambSumChunk - 1) / kLambSumChunk;
      sums_.resize(sums_.size() + static_cast<std::size_t>(chunks));
      if (batches_.empty() || batches_.back().ends.back() + tensors[i].size > kBatch) {
        batches_.push_back({i, {}});
      }
      std::vector<std::int64_t>& ends = batches_.back().ends;
      ends.push_back((ends.empty() ? 0 : ends.back()) + tensors[i].size);
      elements_ += tensors[i].size;
    }
    first_sum_.push_back(sums_.size());
  }

  void run(const FusedLambFactors& factors, const CpuOptions& cpu) {
    run_on_threads(elements_, cpu, [&](int part, int parts) {
      for (const LambBatch& batch : batches_) {
        for_each_piece(batch.ends, part, parts,
                       [&](std::size_t i, std::int64_t first, std::int64_t size) {
                         pass_a(batch.first + i, first, size, factors);
                       });
        wait_for_threads();
        // The next batch is other memory: nobody has to wait for the end of pass B.
        for_each_piece(batch.ends, part, parts,
                       [&](std::size_t i, std::int64_t first, std::int64_t size) {
                         pass_b(batch.first + i, first, size, factors);
                       });
      }
    });
  }

 private:
  void pass_a(std::size_t i, std::int64_t first, std::int64_t size,
              const FusedLambFactors& factors) {
    for (std::int64_t at = first; at < first + size; at += kLambSumChunk) {
      const std::int64_t count = std::min(kLambSumChunk, first + size - at);
      passes_[i].a(piece_of(tensors_[i], at, count), factors,
                   sums_[first_sum_[i] + static_cast<std::size_t>(at / kLambSumChunk)]);
    }
  }

  void pass_b(std::size_t i, std::int64_t first, std::int64_t size,
              const FusedLambFactors& factors) const {
    NormSquares sum{0.0, 0.0};
    for (std::size_t at = first_sum_[i]; at < first_sum_[i + 1]; ++at) {
      sum.p += sums_[at].p;
      sum.u += sums_[at].u;
    }
    const float ratio = trust_ratio(factors, sum);
    if (first == 0 && trust_ratios_ != nullptr) trust_ratios_[i] = ratio;
    passes_[i].b(piece_of(tensors_[i], first, size), factors, factors.lr * ratio);
  }

  const std::vector<OptimizerTensor>& tensors_;
  float* trust_ratios_;
  std::int64_t elements_ = 0;
  std::vector<LambPasses> passes_;
  std::vector<std::size_t> first_sum_;  // Of each tensor, in sums_.
  std::vector<NormSquares> sums_;       // A chunk.
  std::vector<LambBatch> batches_;
};

void self_test(CpuIsa isa, Comparison& comparison) {
  constexpr std::int64_t kSize = kLambSumChunk + 331;  // Two chunks, and a tail on every path.
  fused_lamb::test_all_types(comparison, kSize, [&](OptimizerCase& c, const auto&... options) {
    const FusedLambTensor tensor = fused_lamb::tensor_of(c, c);
    fused_lamb_step(&tensor, 1, options..., {}, static_cast<float*>(c.ratio.data()),
                    CpuOptions{1, isa});
  });
}

}  // namespace

void fused_lamb_step(const FusedLambTensor* tensors, std::size_t count,
                     const FusedLambOptions& options, const GradientOptions& gradients,
                     const OptimizerScalars& scalars, float* trust_ratios, const CpuOptions& cpu) {
  fused_lamb::check_options(options);
  check_gradients(fused_lamb::kNames.function, gradients, scalars);
  std::vector<OptimizerTensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const FusedLambTensor& t = tensors[i];
    list.push_back({t.param,
                    t.grad,
                    {t.exp_avg, t.exp_avg_sq},
                    t.size,
                    t.param_dtype,
                    t.grad_dtype,
                    t.state_dtype,
                    t.copy_dtype,
                    t.copy});
  }
  check_tensors(list, fused_lamb::kNames);
  LambRun run(list, resolve_isa(cpu.isa), trust_ratios);
  const FusedLambFactors factors = resolved_factors(options, gradients, scalars);
  if (!factors.skip) run.run(factors, cpu);
}

}  // namespace ds

int ds_self_test_fused_lamb(const char* device, char* detail, unsigned long detail_size) {
#ifdef DS_WITH_CUDA
  if (ds::names_cuda(device)) return ds::fused_lamb_cuda::self_test(device, detail, detail_size);
#endif
  return ds::cpu_self_test(device, detail, detail_size, "19 type combinations", ds::self_test);
}
