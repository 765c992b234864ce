#pragma once

#include <string>

#include "tests/contract/test_sshd.h"

namespace dsi {

// A real Slurm of one node, this machine, with its own munge; SLURM_CONF names it as long as it
// lives.
class TestSlurm {
 public:
  TestSlurm();
  ~TestSlurm();
  TestSlurm(const TestSlurm&) = delete;
  TestSlurm& operator=(const TestSlurm&) = delete;

  static bool is_installed();
  Host host() const { return {.name = "testnode", .user = {}, .port = 0}; }
  std::string log() const;

 private:
  TestFolder folder_;
};

}  // namespace dsi
