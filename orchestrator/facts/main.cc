// ds-facts: says what a node is, as one line of JSON. The head sends it to a host before anything
// is decided, so it must run where nothing else does (no Python, no bash, a full disk, a prefix on
// a file system mounted noexec) and leave nothing behind: no libc, no library, a few tens of KiB.
//
//   ds-facts                           does nothing: can this file be run here?
//   ds-facts NONCE PREFIX [TORCH...]   prints "DSF1 NONCE {...}"; TORCH are folders to try first
//
// What it cannot find out it leaves out. orchestrator/node_facts.h says what each fact means.

#include "orchestrator/facts/kernel.h"
#include "orchestrator/facts/look.h"

namespace dsi::facts {
namespace {

void say(Str text) {
  while (!text.empty()) {
    long n = sys_write(1, text.data(), text.size());
    if (n <= 0 && n != -EINTR) sys_exit(1);
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
}

[[noreturn]] void run(long count, char** words) {
  if (count < 3) sys_exit(0);
  set_environment(words + count + 1);
  List<Str> hints;
  for (long i = 3; i < count && i < 19; ++i) hints.add(Str(words[i]));

  Gpus gpus;
  Libraries libraries;
  Json json;
  look_at_system(json);
  look_at_places(json, Str(words[2]));
  Python python(libraries, hints);
  python.lead(libraries);
  look_at_libraries(json, libraries);
  python.write(json);
  look_at_toolkits(json);
  look_at_locks(json);
  gpus.write(json);
  // Last, so that it is as new as it can be when the head reads it.
  json.number("clock_ns", static_cast<std::uint64_t>(sys_clock_ns()));
  say(join({"\nDSF1 ", Str(words[1]), " ", json.done(), "\n"}));
  sys_exit(0);
}

}  // namespace
}  // namespace dsi::facts

// `stack` is what the kernel left: the number of arguments, they, a null, the environment.
extern "C" __attribute__((used)) void start_c(long* stack) {
  dsi::facts::run(stack[0], reinterpret_cast<char**>(stack + 1));
}

SYS_ENTRY;
