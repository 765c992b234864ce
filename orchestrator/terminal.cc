#include "orchestrator/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string>

namespace dsi {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

Style Style::detect(int fd) {
  Style style;
  const std::string term = environment("TERM");
  style.terminal = ::isatty(fd) == 1 && !term.empty() && term != "dumb";
  style.colour = style.terminal && environment("NO_COLOR").empty();
  const std::string columns = environment("COLUMNS");
  int width = 0;
  std::from_chars(columns.data(), columns.data() + columns.size(), width);
  struct winsize size {};
  if (width <= 0 && ::ioctl(fd, TIOCGWINSZ, &size) == 0) width = size.ws_col;
  if (width > 0) {
    style.width = width;
  } else if (::isatty(fd) != 1) {
    style.width = 0;
  }
  return style;
}

}  // namespace dsi
