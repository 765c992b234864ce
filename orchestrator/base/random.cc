#include "orchestrator/base/random.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace dsi {

std::string random_hex(std::size_t bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  while (text.size() < 2 * bytes) {
    std::array<unsigned char, 32> buffer{};
    ssize_t n = ::getrandom(buffer.data(), buffer.size(), 0);
    if (n < 0 && errno != EINTR) std::abort();
    for (ssize_t i = 0; i < n && text.size() < 2 * bytes; ++i) {
      text += kDigits[buffer[static_cast<std::size_t>(i)] >> 4];
      text += kDigits[buffer[static_cast<std::size_t>(i)] & 15];
    }
  }
  return text;
}

}  // namespace dsi
