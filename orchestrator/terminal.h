#pragma once

namespace dsi {

// How text for a person is laid out on a file descriptor.
struct Style {
  bool terminal = false;  // The cursor can be moved.
  bool colour = false;
  int width = 80;  // Columns.

  // Looks at the descriptor, TERM, NO_COLOR (https://no-color.org) and COLUMNS. Without a terminal
  // there is no colour, and a line is as wide as COLUMNS says, else 80.
  static Style detect(int fd);
};

}  // namespace dsi
