#include "orchestrator/transfer_text.h"

#include <fmt/format.h>

#include <cmath>

namespace dsi {

namespace {

double mib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::string amount(std::uint64_t bytes) {
  return mib(bytes) < 100 ? fmt::format("{:.1f}", mib(bytes)) : fmt::format("{:.0f}", mib(bytes));
}

std::string left_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s left", std::ceil(seconds));
  return fmt::format("{:.0f} min left", std::ceil(seconds / 60));
}

}  // namespace

std::string TransferMeter::text(const Transfer& now, Clock::time_point at) {
  std::string text = fmt::format("{}/{} hosts", now.hosts_done, now.hosts);
  if (now.wanted == 0) return text + fmt::format(", {} MiB", amount(now.sent));
  text += fmt::format(", {} of {} MiB", amount(now.done), amount(now.wanted));
  if (!started_) {
    started_ = true;
    old_ = middle_ = {at, now.done};
    return text;
  }
  constexpr std::chrono::seconds kSpan(2);
  if (at - middle_.at >= kSpan) {
    old_ = middle_;
    middle_ = {at, now.done};
  }
  double seconds = std::chrono::duration<double>(at - old_.at).count();
  // A host that was lost takes its bytes with it.
  double bytes = now.done > old_.done ? static_cast<double>(now.done - old_.done) : 0;
  if (seconds < 0.5 || bytes == 0 || now.done >= now.wanted) return text;
  double rate = bytes / seconds;
  return text + fmt::format(", {:.1f} MiB/s, {}", rate / (1 << 20),
                            left_text(static_cast<double>(now.wanted - now.done) / rate));
}

}  // namespace dsi
