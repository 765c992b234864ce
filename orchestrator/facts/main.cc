// ds-facts: says what a node is, as one line of JSON. The head sends it to a host that has no agent
// to ask, so it must run where nothing else does (no Python, no bash, a full disk, a prefix on a
// file system mounted noexec) and leave nothing behind: no libc, no library, a few tens of KiB.
//
//   ds-facts                           does nothing: can this file be run here?
//   ds-facts NONCE PREFIX [TORCH...]   prints "DSF1 NONCE {...}"; TORCH are folders to try first
//
// What it cannot find out it leaves out. orchestrator/node_facts.h says what each fact means.

#include "orchestrator/facts/answer.h"
#include "orchestrator/facts/kernel.h"

namespace dsi::facts {
namespace {

[[noreturn]] void run(long count, char** words) {
  if (count < 3) sys_exit(0);
  set_environment(words + count + 1);
  List<Str> hints;
  for (long i = 3; i < count && i < 19; ++i) hints.add(Str(words[i]));
  answer(1, join({"\nDSF1 ", Str(words[1]), " "}), Str(words[2]), hints);
}

}  // namespace
}  // namespace dsi::facts

// `stack` is what the kernel left: the number of arguments, they, a null, the environment.
extern "C" __attribute__((used)) void start_c(long* stack) {
  dsi::facts::run(stack[0], reinterpret_cast<char**>(stack + 1));
}

SYS_ENTRY;
