#include "orchestrator/facts/answer.h"

#include "orchestrator/facts/kernel.h"
#include "orchestrator/facts/look.h"

namespace dsi::facts {

namespace {

void say(int out, Str text) {
  while (!text.empty()) {
    long n = sys_write(out, text.data(), text.size());
    if (n <= 0 && n != -EINTR) sys_exit(1);
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

void answer(int out, Str before, Str prefix, const List<Str>& hints) {
  Gpus gpus;
  Libraries libraries;
  Json json;
  look_at_system(json);
  look_at_places(json, prefix);
  Python python(libraries, hints);
  python.lead(libraries);
  look_at_libraries(json, libraries);
  python.write(json);
  look_at_toolkits(json);
  look_at_locks(json);
  gpus.write(json);
  // Last, so that it is as new as it can be when the head reads it.
  json.number("clock_ns", static_cast<std::uint64_t>(sys_clock_ns()));
  say(out, join({before, json.done(), "\n"}));
  sys_exit(0);
}

}  // namespace dsi::facts
