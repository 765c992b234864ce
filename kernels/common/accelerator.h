#pragma once

// What ops can have code for. A new one is a file in accelerators/ that defines
// ds::accelerators::<name>(), and op.json may name it from then on.

#include <string>

namespace ds {

struct Accelerator {
  const char* name;  // As op.json has it: "cuda".
  // How many devices of it this process may use; if none, `why_not` says why. Called at most once
  // and only when an op for it is asked about, so it may load a driver; it must leave no state that
  // a fork would break.
  int (*count)(std::string& why_not);
};

}  // namespace ds
