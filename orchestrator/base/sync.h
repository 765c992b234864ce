#pragma once

#include <mutex>
#include <utility>

namespace dsi {

// A value that can be reached only while its lock is held, so that nobody forgets the lock:
//   counts.with([](Counts& c) { ++c.done; });
template <typename T>
class Sync {
 public:
  Sync() = default;
  explicit Sync(T value) : value_(std::move(value)) {}

  template <typename F>
  decltype(auto) with(F&& f) {
    std::lock_guard lock(mutex_);
    return std::forward<F>(f)(value_);
  }
  template <typename F>
  decltype(auto) with(F&& f) const {
    std::lock_guard lock(mutex_);
    return std::forward<F>(f)(value_);
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

}  // namespace dsi
