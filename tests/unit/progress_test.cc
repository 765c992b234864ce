#include "orchestrator/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/text.h"

namespace dsi {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// What a Progress wrote, through a real pipe or a real terminal.
class Stream {
 public:
  static Stream pipe() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    return Stream(ends[0], ends[1]);
  }
  static Stream terminal(unsigned short columns) {
    const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
    EXPECT_GE(master, 0);
    EXPECT_EQ(::grantpt(master), 0);
    EXPECT_EQ(::unlockpt(master), 0);
    const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
    EXPECT_GE(slave, 0);
    struct winsize size {};
    size.ws_col = columns;
    size.ws_row = 24;
    EXPECT_EQ(::ioctl(slave, TIOCSWINSZ, &size), 0);
    return Stream(master, slave);
  }
  ~Stream() {
    std::fclose(out_);
    ::close(in_);
  }
  Stream(const Stream&) = delete;

  std::FILE* out() const { return out_; }

  // Everything written since the last call; a terminal's "\r\n" as "\n".
  std::string text() const {
    std::string got;
    pollfd wait{in_, POLLIN, 0};
    while (::poll(&wait, 1, 50) == 1 && (wait.revents & POLLIN)) {
      char buffer[4096];
      const ssize_t n = ::read(in_, buffer, sizeof buffer);
      if (n <= 0) break;
      got.append(buffer, static_cast<std::size_t>(n));
    }
    for (std::size_t at; (at = got.find("\r\n")) != got.npos;) got.erase(at, 1);
    return got;
  }

 private:
  Stream(int in, int out) : in_(in), out_(::fdopen(out, "w")) {}
  int in_;
  std::FILE* out_;
};

Progress::Settings settings(const Stream& stream, bool terminal, bool colour = false) {
  Progress::Settings s;
  s.style.terminal = terminal;
  s.style.colour = colour;
  s.stream = stream.out();
  return s;
}

// Lets detect() see the given terminal as stderr and these variables; puts all back.
Style detected(const Stream& stream,
               const std::vector<std::pair<std::string, std::string>>& variables) {
  const char* names[] = {"TERM", "NO_COLOR", "COLUMNS"};
  std::vector<std::optional<std::string>> saved;
  for (const char* name : names) {
    const char* value = ::getenv(name);
    saved.push_back(value ? std::optional<std::string>(value) : std::nullopt);
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const int stderr_copy = ::dup(STDERR_FILENO);
  ::dup2(::fileno(stream.out()), STDERR_FILENO);
  const Style s = Progress::detect(1).style;
  ::dup2(stderr_copy, STDERR_FILENO);
  ::close(stderr_copy);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    saved[i] ? ::setenv(names[i], saved[i]->c_str(), 1) : ::unsetenv(names[i]);
  }
  return s;
}

TEST(Progress, Lasting_lines_have_their_verbs_in_a_column) {
  const Stream stream = Stream::pipe();
  Progress progress(settings(stream, false));
  progress.lasting("Building", "3 ops with torch 1.13.1");
  progress.lasting("Installing", "on 8 hosts");
  progress.warning("careful");
  EXPECT_EQ(stream.text(),
            "    Building 3 ops with torch 1.13.1\n"
            "  Installing on 8 hosts\n"
            "warning: careful\n");
}

TEST(Progress, Without_a_terminal_a_change_is_a_plain_line_and_rare) {
  const Stream stream = Stream::pipe();
  {
    Progress progress(settings(stream, false));
    for (int i = 0; i < 100; ++i) progress.update("Sending", std::to_string(i) + "/100");
    progress.clear();
    progress.update("Sending", "100/100");
  }
  EXPECT_EQ(stream.text(), "     Sending 0/100\n");
}

TEST(Progress, On_a_terminal_the_line_is_redrawn_and_taken_away_at_the_end) {
  const Stream stream = Stream::terminal(80);
  {
    Progress progress(settings(stream, true));
    progress.update("Sending", "1/8");
    EXPECT_EQ(stream.text(), "\r\x1b[K     Sending 1/8");
    progress.update("Sending", "2/8");  // Too soon.
    EXPECT_EQ(stream.text(), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
    progress.update("Sending", "3/8");
    EXPECT_EQ(stream.text(), "\r\x1b[K     Sending 3/8");
    progress.lasting("Built", "cpu_adam");
    EXPECT_EQ(stream.text(), "\r\x1b[K       Built cpu_adam\n     Sending 3/8");
    progress.clear();
    EXPECT_EQ(stream.text(), "\r\x1b[K");
    progress.clear();
    progress.lasting("Built", "cpu_lion");
    EXPECT_EQ(stream.text(), "       Built cpu_lion\n");
    progress.update("Sending", "4/8");
    EXPECT_EQ(stream.text(), "\r\x1b[K     Sending 4/8");
  }
  EXPECT_EQ(stream.text(), "\r\x1b[K");
}

TEST(Progress, The_redrawn_line_is_cut_to_the_width_between_characters) {
  for (int width : {1, 2, 13, 14, 15, 20, 31}) {
    const Stream stream = Stream::terminal(static_cast<unsigned short>(width));
    Progress::Settings s = settings(stream, true);
    s.style.width = width;
    Progress progress(s);
    progress.update("Sending", "äöü日本語äöü日本語äöü日本語");
    std::string line = stream.text();
    ASSERT_TRUE(line.starts_with("\r\x1b[K"));
    line.erase(0, 4);
    EXPECT_LT(display_width(line), static_cast<std::size_t>(std::max(width, 2))) << width;
    EXPECT_EQ(printable(line), line) << "cut inside a character";
    EXPECT_THAT(line, EndsWith("…"));
  }
}

TEST(Progress, Colour_is_in_the_verb_only_and_does_not_count) {
  const Stream stream = Stream::terminal(40);
  Progress::Settings s = settings(stream, true, true);
  s.style.width = 40;
  Progress progress(s);
  progress.lasting("Built", "cpu_adam");
  EXPECT_EQ(stream.text(), "       \x1b[1;32mBuilt\x1b[0m cpu_adam\n");
  progress.update("Sending", std::string(100, 'x'));
  EXPECT_THAT(stream.text(), HasSubstr(" " + std::string(25, 'x') + "…"));
}

TEST(Progress, Details_are_told_as_often_as_v_was_given) {
  const Stream stream = Stream::pipe();
  Progress::Settings s = settings(stream, false);
  s.verbose = 1;
  Progress progress(s);
  progress.detail(1, "said");
  progress.detail(2, "kept");
  EXPECT_EQ(stream.text(), "             said\n");
}

TEST(Progress, What_comes_from_elsewhere_cannot_steer_the_terminal) {
  const Stream stream = Stream::pipe();
  Progress progress(settings(stream, false));
  progress.lasting("Node\x1b", "a\x1b[2J\nb");
  progress.update("x", "a\nb\rc\x1b[1A");
  progress.warning("\x1b[31m");
  const std::string text = stream.text();
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\r")),
                          HasSubstr("a?[2J\n             b\n"), HasSubstr("a b?c")));
}

TEST(Progress, Lines_of_many_threads_do_not_mix) {
  const Stream stream = Stream::pipe();
  {
    Progress progress(settings(stream, false));
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&progress, t] {
        for (int i = 0; i < 20; ++i) {
          progress.lasting("Thread", std::string(20, static_cast<char>('a' + t)));
          progress.update("Counting", std::to_string(i));
        }
      });
    }
  }
  std::string text = stream.text();
  int lines = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("    Counting ")) continue;
    ++lines;
    ASSERT_EQ(line, "      Thread " + std::string(20, line.back()));
  }
  EXPECT_EQ(lines, 160);
}

TEST(Progress, A_terminal_is_recognised) {
  const Stream terminal = Stream::terminal(123);
  Style s = detected(terminal, {{"TERM", "xterm"}});
  EXPECT_TRUE(s.terminal && s.colour);
  EXPECT_EQ(s.width, 123);
  EXPECT_EQ(detected(terminal, {{"TERM", "xterm"}, {"COLUMNS", "50"}}).width, 50);
  EXPECT_EQ(detected(terminal, {{"TERM", "xterm"}, {"COLUMNS", "wide"}}).width, 123);
}

TEST(Progress, NO_COLOR_takes_the_colour_and_TERM_dumb_the_redrawing_too) {
  const Stream terminal = Stream::terminal(80);
  Style s = detected(terminal, {{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  EXPECT_TRUE(s.terminal);
  EXPECT_FALSE(s.colour);
  EXPECT_TRUE(detected(terminal, {{"TERM", "xterm"}, {"NO_COLOR", ""}}).colour);
  s = detected(terminal, {{"TERM", "dumb"}});
  EXPECT_FALSE(s.terminal || s.colour);
  s = detected(terminal, {});
  EXPECT_FALSE(s.terminal || s.colour);
  s = detected(Stream::pipe(), {{"TERM", "xterm"}});
  EXPECT_FALSE(s.terminal || s.colour);
  EXPECT_EQ(s.width, 0);
  EXPECT_EQ(detected(Stream::pipe(), {{"COLUMNS", "80"}}).width, 80);
}

TEST(Ticker, Shows_what_changes_while_nobody_calls_and_takes_the_line_away) {
  const Stream stream = Stream::terminal(80);
  std::atomic<int> done{0};
  {
    Progress progress(settings(stream, true));
    Ticker ticker(progress, "Installing", [&] { return std::to_string(done.load()) + "/2 hosts"; });
    EXPECT_THAT(stream.text(), HasSubstr("0/2 hosts"));
    done = 1;
    std::string seen;
    for (int i = 0; i < 100 && seen.find("1/2 hosts") == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      seen += stream.text();
    }
    EXPECT_THAT(seen, HasSubstr("1/2 hosts"));
  }
  EXPECT_THAT(stream.text(), testing::EndsWith("\r\x1b[K"));
}

}  // namespace
}  // namespace dsi
