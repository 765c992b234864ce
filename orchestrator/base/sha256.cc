// The low-level interface is deprecated in OpenSSL 3; sha256.h says why it is used.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "orchestrator/base/sha256.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <vector>

#include "orchestrator/base/unique_fd.h"

namespace dsi {

Sha256::Sha256() {
  SHA256_Init(&context_);
}

void Sha256::update(const void* data, std::size_t size) {
  SHA256_Update(&context_, data, size);
}

std::string Sha256::hex() {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256_Final(digest.data(), &context_);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string sha256_hex(std::string_view data) {
  Sha256 hash;
  hash.update(data.data(), data.size());
  return hash.hex();
}

Result<std::string> sha256_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", path.string()));
  Sha256 hash;
  std::vector<char> buffer(std::size_t{256} * 1024);
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n == 0) return hash.hex();
    if (n < 0) {
      if (errno == EINTR) continue;
      return fail_errno(errno, fmt::format("cannot read {}", path.string()));
    }
    hash.update(buffer.data(), static_cast<std::size_t>(n));
  }
}

}  // namespace dsi
