#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <stop_token>
#include <thread>
#include <vector>

namespace dsi {

// Calls f(0) ... f(count - 1), at most `width` at a time, each in a thread that waits for its host
// most of the time. After a stop no further call begins. Returns when all that began have ended.
template <typename F>
void parallel_for(std::size_t count, std::size_t width, std::stop_token stop, F&& f) {
  std::atomic<std::size_t> next{0};
  auto work = [&] {
    while (!stop.stop_requested()) {
      std::size_t i = next.fetch_add(1);
      if (i >= count) return;
      f(i);
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < std::min(count, width); ++t) threads.emplace_back(work);
}

}  // namespace dsi
