#pragma once

// What every ds_self_test_<op> of an op for the CPU does around its numbers.

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "ds_op.h"

namespace ds {

// Whether a self-test's device is one of CUDA's, for an op that has code for the CPU as well and
// takes that if no device is named.
inline bool names_cuda(const char* device) {
  return device != nullptr && std::string_view(device).substr(0, 4) == "cuda";
}

// `body(say)` returns a DS_SELF_TEST_*, and says its detail with say(text). Another device than the
// CPU is skipped, and what the body throws is a wrong op.
template <class Body>
int self_test_on_cpu(const char* device, char* detail, unsigned long detail_size,
                     const Body& body) noexcept {
  const auto say = [&](std::string_view text) {
    if (detail != nullptr && detail_size > 0) {
      std::snprintf(detail, detail_size, "%.*s", static_cast<int>(text.size()), text.data());
    }
  };
  try {
    if (device != nullptr && *device != '\0' && std::string_view(device) != "cpu") {
      say(std::string("has code for cpu, not for ") + device);
      return DS_SELF_TEST_SKIPPED;
    }
    return body(say);
  } catch (const std::exception& error) {
    say(error.what());
  } catch (...) {
    say("unknown exception");
  }
  return DS_SELF_TEST_WRONG;
}

}  // namespace ds
