#pragma once

// How results are compared with a float64 reference, element by element, in the self-tests that
// travel with the libraries and in the tests that do not.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu_isa.h"
#include "cpu_optimizer.h"
#include "ds_op.h"
#include "ds_types.h"
#include "half.h"
#include "self_test_frame.h"

namespace ds {

// Numbers in a storage type, filled and read as double.
class Buffer {
 public:
  Buffer(DType dtype, std::int64_t size)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(size * dtype_size(dtype)) + kGuard, 0xA5) {}

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  std::size_t byte_size() const { return bytes_.size(); }  // With the guard behind the last.
  DType dtype() const { return dtype_; }

  // Rounded to the storage type.
  void set(std::int64_t i, double value) {
    const auto x = static_cast<float>(value);
    if (dtype_ == DType::f32) put(i, x);
    if (dtype_ == DType::f16) {
      f16 y;
      from_float(x, y);
      put(i, y);
    }
    if (dtype_ == DType::bf16) {
      bf16 y;
      from_float(x, y);
      put(i, y);
    }
  }

  double get(std::int64_t i) const {
    if (dtype_ == DType::f32) return take<float>(i);
    if (dtype_ == DType::f16) return to_float(take<f16>(i));
    return to_float(take<bf16>(i));
  }

  // False if something wrote behind the last element.
  bool guard_is_intact() const {
    for (std::size_t i = bytes_.size() - kGuard; i < bytes_.size(); ++i) {
      if (bytes_[i] != 0xA5) return false;
    }
    return true;
  }

  friend bool operator==(const Buffer& a, const Buffer& b) { return a.bytes_ == b.bytes_; }
  friend bool operator!=(const Buffer& a, const Buffer& b) { return !(a == b); }

 private:
  static constexpr std::size_t kGuard = 64;

  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  T take(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }

  DType dtype_;
  std::vector<std::uint8_t> bytes_;
};

// The distance from one number of the type to the next, at the size of `scale`.
inline double ulp_at(DType dtype, double scale) {
  const int mantissa = dtype == DType::f32 ? 23 : dtype == DType::f16 ? 10 : 7;
  const int lowest = dtype == DType::f16 ? -14 : -126;
  const double magnitude = std::fabs(scale);
  const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), lowest) : lowest;
  return std::ldexp(1.0, exponent - mantissa);
}

// A number that a reference gives: the value, and the size of the largest intermediate result that
// was rounded on the way. An error is judged against `scale`: where two large terms cancel, no
// float arithmetic can be exact to an ulp of the small rest.
struct Expected {
  double value;
  double scale;
};

// One rounding to a 16-bit type hides the float arithmetic before it; float itself gets 1e-6.
inline double allowed_ulp(DType dtype) {
  return dtype == DType::f32 ? 8.0 : 0.51;
}

class Comparison {
 public:
  // `extra` adds to what allowed_ulp grants.
  void check(const char* name, std::int64_t index, const Buffer& got, Expected want,
             double extra = 0.0) {
    const double value = got.get(index);
    // Both infinite or both NaN is equal; what overflows the type must be infinite in both.
    Buffer rounded(got.dtype(), 1);
    rounded.set(0, want.value);
    const double stored = rounded.get(0);
    if (value == stored || (std::isnan(value) && std::isnan(stored))) return;
    const double ulp = std::fabs(value - want.value) /
                       ulp_at(got.dtype(), std::max(std::fabs(want.scale), std::fabs(want.value)));
    if (!(ulp <= worst_ulp_)) worst_ulp_ = ulp;
    if (ulp <= allowed_ulp(got.dtype()) + extra) return;
    if (!failure_.empty()) return;
    char text[200];
    std::snprintf(text, sizeof text, "%s[%lld] (%s) is %.9g, should be %.9g: %.3g ulp", name,
                  static_cast<long long>(index), dtype_name(got.dtype()), value, want.value, ulp);
    failure_ = text;
  }

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  bool ok() const { return failure_.empty(); }
  const std::string& failure() const { return failure_; }
  double worst_ulp() const { return worst_ulp_; }

 private:
  double worst_ulp_ = 0.0;
  std::string failure_;
};

// The types of parameter, gradient and state that the CPU optimizers have code for.
struct OptimizerTypes {
  DType param, grad, state;
};

inline std::vector<OptimizerTypes> all_optimizer_types() {
  std::vector<OptimizerTypes> all;
  for (DType param : {DType::f32, DType::f16, DType::bf16}) {
    for (DType grad : {DType::f32, DType::f16, DType::bf16}) {
      all.push_back({param, grad, DType::f32});
      if (param != DType::f32) all.push_back({param, grad, param});
    }
  }
  return all;
}

inline std::string types_name(const OptimizerTypes& types) {
  return std::string(dtype_name(types.param)) + " params, " + dtype_name(types.grad) + " grads, " +
         dtype_name(types.state) + " state";
}

// A copy of a vector where the CPU computes, for what is tested on any device.
template <class T>
class OnHost {
 public:
  explicit OnHost(std::vector<T> of) : values_(std::move(of)) {}
  // Const is where it lies, as of memory on a device.
  T* data() const { return values_.data(); }
  const std::vector<T>& host() const { return values_; }

 private:
  mutable std::vector<T> values_;
};

// The paths that this machine can run, worst first, under DS_CPU_ISA.
inline std::vector<CpuIsa> runnable_isas() {
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16}) {
    if (isa <= best_isa()) isas.push_back(isa);
  }
  return isas;
}

// The same numbers on every machine and with every standard library. In [-1, 1).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  double next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
  }

 private:
  std::uint64_t state_;
};

// The body of ds_self_test_<op> for an op that is for the CPU. `run(isa, comparison)` computes on
// one path and compares; `what` says what each run covered ("15 type combinations").
template <class Run>
int cpu_self_test(const char* device, char* detail, unsigned long detail_size, const char* what,
                  const Run& run) noexcept {
  return self_test_on_cpu(device, detail, detail_size, [&](const auto& say) {
    double worst = 0.0;
    std::string paths;
    const std::vector<CpuIsa> isas = runnable_isas();
    for (auto isa = isas.rbegin(); isa != isas.rend(); ++isa) {
      Comparison comparison;
      run(*isa, comparison);
      if (!comparison.ok()) {
        say(std::string(isa_name(*isa)) + ": " + comparison.failure());
        return DS_SELF_TEST_WRONG;
      }
      worst = std::max(worst, comparison.worst_ulp());
      if (!paths.empty()) paths += '+';
      paths += isa_name(*isa);
    }
    char text[160];
    std::snprintf(text, sizeof text, "%s, %s, max error %.2f ulp", paths.c_str(), what, worst);
    say(text);
    return DS_SELF_TEST_OK;
  });
}

}  // namespace ds
