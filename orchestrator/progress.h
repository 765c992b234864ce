#pragma once

// What a person sees on stderr while it runs.

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "orchestrator/base/sync.h"
#include "orchestrator/terminal.h"

namespace dsi {

// One line that is redrawn on a terminal, plain lines otherwise. Lasting lines are printed once and
// stay: `    Building 3 ops with torch 1.13.1`, the verb right-aligned in 12 columns. Thread-safe.
class Progress {
 public:
  struct Settings {
    Style style;
    int verbose = 0;
    std::FILE* stream = stderr;
  };
  static Settings detect(int verbose);  // For stderr.

  explicit Progress(Settings settings);
  ~Progress();  // Takes the redrawn line away.

  void lasting(std::string_view verb, std::string_view text);
  void warning(std::string_view text);
  void detail(int level, std::string_view text);  // A lasting line from -v on (level 1) or -vv (2).

  // The one line that changes: at most ten times a second on a terminal; without one a plain line
  // at most every ten seconds, and only if the text changed.
  void update(std::string_view verb, std::string_view text);
  void clear();

 private:
  struct State {
    std::string shown;
    std::chrono::steady_clock::time_point last{};
  };
  void erase(State& state);
  Settings settings_;
  Sync<State> state_;
};

// Keeps the changing line alive while others work: asks for its text ten times a second, in a
// thread of its own, until it goes out of scope. `text` must be safe to call from there.
class Ticker {
 public:
  Ticker(Progress& progress, std::string verb, std::function<std::string()> text);
  ~Ticker();  // Shows the last state and takes the line away.

 private:
  Progress& progress_;
  std::string verb_;
  std::function<std::string()> text_;
  std::jthread thread_;
};

}  // namespace dsi
