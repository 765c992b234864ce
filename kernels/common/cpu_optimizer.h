#pragma once

// What the CPU optimizers share: a list of tensors is checked, cut into one contiguous share of the
// elements a thread, and each share is run by the kernel for its types and this machine.
//
// One parallel region covers the whole list: a model has hundreds of tensors, most of them small,
// and a region each would cost more than the arithmetic. Shares are contiguous so that a thread
// meets the same pages in every step, which is where first touch put them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu_isa.h"
#include "ds_types.h"
#include "half.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace ds {

inline constexpr std::size_t kMaxStates = 2;

struct OptimizerTensor {
  void* param;
  const void* grad;
  std::array<void*, kMaxStates> states;  // Null behind the op's last.
  std::int64_t size;                     // Elements.
  DType param_dtype;
  DType grad_dtype;
  DType state_dtype;               // f32, or the parameter's; any for an f32 parameter.
  DType copy_dtype = DType::bf16;  // bf16 or f16.
  void* copy = nullptr;            // Written: the new parameter in 16 bits; or null.
};

// A run of elements of one tensor; the pointers are at its first element.
struct Piece {
  void* param;
  const void* grad;
  std::array<void*, kMaxStates> states;
  std::int64_t size;
  void* copy;  // Or null.
  DType copy_dtype;
};

struct NoCopy {};

// `factors` is the op's own struct of precomputed numbers.
using Kernel = void (*)(const Piece& piece, const void* factors);

inline const char* dtype_name(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16";
}

inline std::int64_t dtype_size(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

// Names for messages: of the op's function, and of what stands in the lists.
struct OptimizerNames {
  const char* function;
  std::array<const char*, kMaxStates> states;
};

namespace detail {

struct Range {
  std::uintptr_t begin, end;
  bool written;
  const char* name;
  std::size_t index;
};

inline std::string describe(const Range& range) {
  return std::string(range.name) + "[" + std::to_string(range.index) + "]";
}

// Throws std::invalid_argument if memory that is written also stands somewhere else in the lists.
inline void check_apart(std::vector<Range>& ranges, const char* function) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* furthest = nullptr;          // Reaches furthest so far,
  const Range* furthest_written = nullptr;  // and of those that are written.
  for (const Range& range : ranges) {
    const Range* other = range.written ? furthest : furthest_written;
    if (other != nullptr && range.begin < other->end) {
      throw std::invalid_argument(std::string(function) + ": " + describe(*other) + " and " +
                                  describe(range) + " share memory");
    }
    if (furthest == nullptr || range.end > furthest->end) furthest = &range;
    if (range.written && (furthest_written == nullptr || range.end > furthest_written->end)) {
      furthest_written = &range;
    }
  }
}

// `size` elements at `data`, after what can be wrong with one such run; throws as above.
inline Range checked_range(const char* function, const char* name, std::size_t index,
                           const void* data, DType dtype, std::int64_t size, bool written) {
  const auto refuse = [&](const char* what) {
    throw std::invalid_argument(std::string(function) + ": tensor " + std::to_string(index) + ": " +
                                what);
  };
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto width = static_cast<std::uintptr_t>(dtype_size(dtype));
  if (data == nullptr) refuse((std::string(name) + " is null").c_str());
  if (begin % width != 0) {
    refuse((std::string(name) + " is not aligned to its elements").c_str());
  }
  if (static_cast<std::uint64_t>(size) > (UINTPTR_MAX - begin) / width) {
    refuse("the size exceeds the memory");
  }
  return {begin, begin + static_cast<std::uintptr_t>(size) * width, written, name, index};
}

}  // namespace detail

// Throws std::invalid_argument for whatever would read or write the wrong memory, or make the
// answer depend on the order: a null or misaligned pointer, a negative size, types that no kernel
// has, and memory that is written and also stands somewhere else in the lists. Gradients, which are
// only read, may share memory among themselves.
inline void check_tensors(const std::vector<OptimizerTensor>& tensors,
                          const OptimizerNames& names) {
  std::vector<detail::Range> ranges;
  ranges.reserve(tensors.size() * (3 + kMaxStates));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const OptimizerTensor& tensor = tensors[i];
    const auto refuse = [&](const std::string& what) {
      throw std::invalid_argument(std::string(names.function) + ": tensor " + std::to_string(i) +
                                  ": " + what);
    };
    if (tensor.size < 0) refuse("the size is " + std::to_string(tensor.size));
    for (DType dtype :
         {tensor.param_dtype, tensor.grad_dtype, tensor.state_dtype, tensor.copy_dtype}) {
      if (dtype > DType::bf16) refuse("unknown dtype");
    }
    if (tensor.param_dtype != DType::f32 && tensor.state_dtype != DType::f32 &&
        tensor.state_dtype != tensor.param_dtype) {
      refuse(std::string("the state is ") + dtype_name(tensor.state_dtype) +
             "; with parameters of " + dtype_name(tensor.param_dtype) +
             " it can be f32 or the same");
    }
    if (tensor.copy != nullptr && tensor.copy_dtype == DType::f32) refuse("a copy has 16 bits");
    if (tensor.size == 0) continue;
    const auto add = [&](const void* data, DType dtype, bool written, const char* name) {
      ranges.push_back(
          detail::checked_range(names.function, name, i, data, dtype, tensor.size, written));
    };
    add(tensor.param, tensor.param_dtype, true, "params");
    add(tensor.grad, tensor.grad_dtype, false, "grads");
    for (std::size_t s = 0; s < kMaxStates && names.states[s] != nullptr; ++s) {
      add(tensor.states[s], tensor.state_dtype, true, names.states[s]);
    }
    if (tensor.copy != nullptr) add(tensor.copy, tensor.copy_dtype, true, "copies");
  }
  detail::check_apart(ranges, names.function);
}

// make(P{}, S{}) for the types of the parameter and the state, which check_tensors has passed.
template <class Make>
auto for_types(const OptimizerTensor& tensor, const Make& make) {
  const auto for_state = [&](auto param) {
    if (tensor.state_dtype == DType::f32) return make(param, float{});
    return make(param, param);
  };
  if (tensor.param_dtype == DType::f16) return for_state(f16{});
  if (tensor.param_dtype == DType::bf16) return for_state(bf16{});
  if (tensor.state_dtype == DType::f16) return make(float{}, f16{});
  if (tensor.state_dtype == DType::bf16) return make(float{}, bf16{});
  return make(float{}, float{});
}

// Cuts inside a tensor are rounded down to a multiple, so that two threads never write one cache
// line.
inline constexpr std::int64_t kShareRound = 1024;

// Where the share of thread `part` of `parts` begins: a tensor and an element of it, or
// {ends.size(), 0} behind the last. `ends[i]` is how many elements the tensors 0..i have together.
struct Cut {
  std::size_t tensor;
  std::int64_t element;
};

inline Cut cut_at(const std::vector<std::int64_t>& ends, int part, int parts) {
  const std::int64_t total = ends.empty() ? 0 : ends.back();
  const std::int64_t target = total / parts * part + total % parts * part / parts;
  const auto end = std::upper_bound(ends.begin(), ends.end(), target);
  if (part == parts || end == ends.end()) return {ends.size(), 0};
  const std::int64_t start = end == ends.begin() ? 0 : *(end - 1);
  return {static_cast<std::size_t>(end - ends.begin()),
          (target - start) / kShareRound * kShareRound};
}

// Calls body(tensor, first element, number of elements) for every run of elements of that share.
template <class Body>
void for_each_piece(const std::vector<std::int64_t>& ends, int part, int parts, const Body& body) {
  Cut at = cut_at(ends, part, parts);
  const Cut stop = cut_at(ends, part + 1, parts);
  for (; at.tensor < ends.size() && at.tensor <= stop.tensor; at = {at.tensor + 1, 0}) {
    const std::int64_t size = ends[at.tensor] - (at.tensor == 0 ? 0 : ends[at.tensor - 1]);
    const std::int64_t end = at.tensor == stop.tensor ? stop.element : size;
    if (at.element < end) body(at.tensor, at.element, end - at.element);
  }
}

// The elements of `tensor` from `first` on.
inline Piece piece_of(const OptimizerTensor& tensor, std::int64_t first, std::int64_t size) {
  const auto at = [first](auto* data, DType dtype) {
    using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                     const char*, char*>;
    return data == nullptr ? nullptr : static_cast<Bytes>(data) + first * dtype_size(dtype);
  };
  return {at(tensor.param, tensor.param_dtype),
          at(tensor.grad, tensor.grad_dtype),
          {at(tensor.states[0], tensor.state_dtype), at(tensor.states[1], tensor.state_dtype)},
          size,
          at(tensor.copy, tensor.copy_dtype),
          tensor.copy_dtype};
}

// Calls run(part, parts) for every share of `elements`, each on a thread of its own, and all of
// them at once: a run may wait for the others. It must not throw.
template <class Run>
void run_on_threads([[maybe_unused]] std::int64_t elements, [[maybe_unused]] const CpuOptions& cpu,
                    const Run& run) {
#ifdef _OPENMP
  // Below this many elements a thread, waking it costs more than it saves.
  constexpr std::int64_t kElementsPerThread = 8192;
  const std::int64_t wanted = cpu.threads > 0 ? cpu.threads : omp_get_max_threads();
  const int threads =
      static_cast<int>(std::clamp<std::int64_t>(elements / kElementsPerThread, 1, wanted));
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    run(omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  run(0, 1);
}

// Within run_on_threads: until all of them are here.
inline void wait_for_threads() {
#ifdef _OPENMP
#pragma omp barrier
#endif
}

// `pick(isa, tensor)` gives the kernel, and resolve(), which is called once and only if nothing is
// refused, its factors; with `skip` in them nothing is written.
template <class Pick, class Resolve>
void run_optimizer(const std::vector<OptimizerTensor>& tensors, const OptimizerNames& names,
                   const CpuOptions& cpu, const Pick& pick, const Resolve& resolve) {
  check_tensors(tensors, names);
  const CpuIsa isa = resolve_isa(cpu.isa);
  std::vector<std::int64_t> ends;
  std::vector<Kernel> kernels;
  ends.reserve(tensors.size());
  kernels.reserve(tensors.size());
  std::int64_t total = 0;
  for (const OptimizerTensor& tensor : tensors) {
    ends.push_back(total += tensor.size);
    kernels.push_back(pick(isa, tensor));
  }
  const auto factors = resolve();
  if (factors.skip) return;
  run_on_threads(total, cpu, [&](int part, int parts) {
    for_each_piece(ends, part, parts, [&](std::size_t i, std::int64_t first, std::int64_t size) {
      kernels[i](piece_of(tensors[i], first, size), &factors);
    });
  });
}

}  // namespace ds
