#include "orchestrator/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "orchestrator/text.h"

namespace dsi {
namespace {

constexpr std::size_t kVerbColumns = 12;
constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlain = std::chrono::seconds(10);
constexpr const char* kGreen = "\x1b[1;32m";
constexpr const char* kYellow = "\x1b[1;33m";
constexpr const char* kNoColour = "\x1b[0m";
constexpr const char* kEraseLine = "\r\x1b[K";

// The verb right-aligned, and its text. Further lines of the text stand below its first.
std::string verb_line(std::string_view verb, std::string_view text, bool colour, bool newlines) {
  const std::string word = printable(verb);
  const std::size_t width = display_width(word);
  std::string line(width < kVerbColumns ? kVerbColumns - width : 0, ' ');
  line += colour ? fmt::format("{}{}{}", kGreen, word, kNoColour) : word;
  line += ' ';
  for (char c : printable(text, newlines)) {
    line += c;
    if (c == '\n') line.append(kVerbColumns + 1, ' ');
  }
  return line;
}

// One write, so that lines of several processes on one terminal do not mix.
void put(std::FILE* stream, std::string_view text) {
  // Nothing sensible can be done about a stderr that is gone.
  (void)std::fwrite(text.data(), 1, text.size(), stream);
  (void)std::fflush(stream);
}

}  // namespace

Progress::Settings Progress::detect(int verbose) {
  return {Style::detect(STDERR_FILENO), verbose, stderr};
}

Progress::Progress(Settings settings) : settings_(settings) {}

Progress::~Progress() {
  clear();
}

void Progress::erase(State& state) {
  if (!settings_.style.terminal || state.shown.empty()) return;
  put(settings_.stream, kEraseLine);
}

void Progress::lasting(std::string_view verb, std::string_view text) {
  const std::string line = verb_line(verb, text, settings_.style.colour, true) + '\n';
  state_.with([&](State& state) {
    erase(state);
    // The changing line comes back below, so that it does not flicker away until its next change.
    put(settings_.stream, settings_.style.terminal ? line + state.shown : line);
  });
}

void Progress::warning(std::string_view text) {
  std::string line =
      settings_.style.colour ? fmt::format("{}warning:{} ", kYellow, kNoColour) : "warning: ";
  line += printable(text, true) + '\n';
  state_.with([&](State& state) {
    erase(state);
    put(settings_.stream, settings_.style.terminal ? line + state.shown : line);
  });
}

void Progress::detail(int level, std::string_view text) {
  if (settings_.verbose < level) return;
  lasting("", text);
}

void Progress::update(std::string_view verb, std::string_view text) {
  const auto now = std::chrono::steady_clock::now();
  state_.with([&](State& state) {
    const bool first = state.shown.empty();
    if (!first &&
        now - state.last < (settings_.style.terminal ? std::chrono::nanoseconds(kRedraw)
                                                     : std::chrono::nanoseconds(kPlain))) {
      return;
    }
    std::string line;
    if (settings_.style.terminal) {
      // One column stays free: a full line makes some terminals wrap, and "\r" then returns to the
      // wrong line.
      const auto width =
          static_cast<std::size_t>(settings_.style.width > 1 ? settings_.style.width - 1 : 1);
      const std::size_t left = width > kVerbColumns + 1 ? width - kVerbColumns - 1 : 0;
      line = left > 0
                 ? verb_line(verb, truncated(printable(text), left), settings_.style.colour, false)
                 : truncated(printable(text), width);
    } else {
      line = verb_line(verb, text, false, false);
    }
    if (line == state.shown) return;
    put(settings_.stream, settings_.style.terminal ? kEraseLine + line : line + '\n');
    state.shown = std::move(line);
    state.last = now;
  });
}

void Progress::clear() {
  state_.with([&](State& state) {
    // Without a terminal nothing is there to be taken away, and what was said last still counts.
    if (!settings_.style.terminal) return;
    erase(state);
    state.shown.clear();
  });
}

Ticker::Ticker(Progress& progress, std::string verb, std::function<std::string()> text)
    : progress_(progress), verb_(std::move(verb)), text_(std::move(text)) {
  progress_.update(verb_, text_());
  thread_ = std::jthread([this](const std::stop_token& ended) {
    std::mutex mutex;
    std::condition_variable_any ring;
    std::unique_lock lock(mutex);
    while (!ring.wait_for(lock, ended, kRedraw, [&] { return ended.stop_requested(); })) {
      progress_.update(verb_, text_());
    }
  });
}

Ticker::~Ticker() {
  thread_.request_stop();
  thread_.join();
  progress_.clear();
}

}  // namespace dsi
