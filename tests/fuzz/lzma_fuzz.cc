// The loader's decoder, which reads what comes from any node. Built as C++, so that the fuzzer sees
// into it.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "orchestrator/loader/lzma.h"
// NOLINTNEXTLINE(bugprone-suspicious-include)
#include "orchestrator/loader/lzma.c"

// Two bytes of size, then the stream: a size that does not fit is as likely as one that does.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static lzma_model model;
  std::size_t out_size = data[0] | static_cast<std::size_t>(data[1]) << 8;
  // Blocks of the exact sizes: the sanitizer sees every step beyond.
  std::unique_ptr<std::uint8_t[]> in(new std::uint8_t[size - 2]);
  for (std::size_t i = 2; i < size; ++i) in[i - 2] = data[i];
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[out_size]);
  lzma_decode(&model, in.get(), size - 2, out.get(), out_size);
  return 0;
}
