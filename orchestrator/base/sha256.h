#pragma once

#include <openssl/sha.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "orchestrator/base/result.h"

namespace dsi {

// SHA-256, as 64 lower-case hexadecimal digits.
//
// OpenSSL's low-level interface and not EVP: EVP pulls the provider machinery into the static
// agent (5 MB instead of 20 KB), and this one uses the processor's SHA instructions just the same.
class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t size);
  std::string hex();  // Ends the computation.

 private:
  SHA256_CTX context_;
};

std::string sha256_hex(std::string_view data);

// Reads the file in pieces; memory stays flat.
Result<std::string> sha256_file(const std::filesystem::path& path);

}  // namespace dsi
