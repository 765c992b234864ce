#pragma once

// The whole look, for a process that does nothing else: memory is never given back.

#include "orchestrator/facts/base.h"

namespace dsi::facts {

// Writes `before`, what this node is as one JSON object, and a newline to the descriptor `out`, and
// ends the process: with 0, or with another code if that could not be written. No libc is asked for
// anything, so the process may be the fork of one that has threads. `hints`: folders of torch to
// try first. The prefix and the hints end with a zero.
[[noreturn]] void answer(int out, Str before, Str prefix, const List<Str>& hints);

}  // namespace dsi::facts
