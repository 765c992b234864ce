#pragma once

// What the torch bindings of the collectives share: groups as numbers, and from tensors to memory
// that can be sent. Only torch/library.h, torch/types.h and one header of ATen.

#include <ATen/MemoryOverlap.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ds_types.h"

namespace ds::binding {

// Python gets a RuntimeError; the number at the end is for code that wants to know which.
template <class Function>
auto with_torch_errors(const Function& function) {
  try {
    return function();
  } catch (const std::system_error& error) {
    TORCH_CHECK(false, error.what(), " [errno ", error.code().value(), "]");
  }
}

template <class Comm>
class Groups {
 public:
  explicit Groups(const char* op) : op_(op) {}

  std::int64_t add(std::shared_ptr<Comm> comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    groups_.emplace(++last_, std::move(comm));
    return last_;
  }
  std::shared_ptr<Comm> get(std::int64_t group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = groups_.find(group);
    TORCH_CHECK_VALUE(found != groups_.end(), op_, ": there is no group ", group, "; ", op_,
                      "_open makes one, ", op_, "_close ends it");
    return found->second;
  }
  // The last call that uses it ends it.
  void remove(std::int64_t group) {
    get(group);
    const std::lock_guard<std::mutex> lock(mutex_);
    groups_.erase(group);
  }

 private:
  const char* const op_;
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<Comm>> groups_;
  std::int64_t last_ = 0;
};

// Of the op of that name. Never destroyed: a thread may be in a call when the process ends.
template <class Comm>
Groups<Comm>& groups(const char* op) {
  static auto* const all = new Groups<Comm>(op);
  return *all;
}

inline int rank_or_size(std::int64_t n) {
  return static_cast<int>(std::clamp<std::int64_t>(n, -1, 1 << 30));
}

inline std::chrono::milliseconds time_limit(const char* function, double seconds) {
  TORCH_CHECK_VALUE(seconds > 0 && seconds < 1e9, function, ": a time limit of ", seconds, " s");
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000) + 1);
}

inline void check(const char* function, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), function, ": the tensor is None");
  TORCH_CHECK(tensor.layout() == c10::kStrided && !tensor.is_quantized(), function,
              ": only dense tensors can be sent");
  TORCH_CHECK(tensor.device().is_cpu() || tensor.device().is_meta(), function,
              ": the tensor is on ", tensor.device(), "; ranks exchange tensors of the CPU");
}

inline CommType type_of(const char* function, const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return CommType::f32;
    case at::kHalf:
      return CommType::f16;
    case at::kBFloat16:
      return CommType::bf16;
    case at::kDouble:
      return CommType::f64;
    case at::kChar:
      return CommType::i8;
    case at::kByte:
    case at::kBool:
      return CommType::u8;
    case at::kInt:
      return CommType::i32;
    case at::kLong:
      return CommType::i64;
    default:
      TORCH_CHECK(false, function, ": there is no reduction of ", tensor.scalar_type(),
                  "; there is of float32, float16, bfloat16, float64, int8, uint8, int32, int64 "
                  "and bool");
  }
}

inline CommReduction reduction_of(const char* function, const at::Tensor& tensor,
                                  const std::string& op) {
  const bool is_bool = tensor.scalar_type() == at::kBool;
  // Of truth values a sum is "any" and a product "all".
  if (op == "sum") return is_bool ? CommReduction::max : CommReduction::sum;
  if (op == "product") return is_bool ? CommReduction::min : CommReduction::product;
  if (op == "min") return CommReduction::min;
  if (op == "max") return CommReduction::max;
  TORCH_CHECK_VALUE(false, function, ": op is \"", op, "\"; it can be sum, product, min or max");
}

inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

inline at::Tensor plain(const at::Tensor& tensor) {
  return tensor.detach().contiguous().resolve_conj().resolve_neg();
}

inline void* data_of(const at::Tensor& tensor) {
  return tensor.numel() > 0 ? tensor.data_ptr() : nullptr;
}

inline std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

// `body` works on memory in the order of the elements; what it leaves there becomes the tensor's.
template <class Body>
void in_place(const char* function, const at::Tensor& tensor, const Body& body) {
  check(function, tensor);
  at::assert_no_internal_overlap(tensor);
  const at::NoGradGuard no_grad;
  if (is_plain(tensor)) {
    // Also if the call fails half-way.
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    body(tensor);
  } else {
    const at::Tensor memory = plain(tensor);
    body(memory);
    tensor.detach().copy_(memory);
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace ds::binding
