#pragma once

namespace dsi {

// How text for a person is laid out on a file descriptor.
struct Style {
  bool terminal = false;  // The cursor can be moved.
  bool colour = false;
  int width = 80;  // Columns; 0: a line may be of any length.

  // Looks at the descriptor, TERM, NO_COLOR (https://no-color.org) and COLUMNS. Without a terminal
  // there is no colour, and a line is as wide as COLUMNS says, else of any length: who reads a pipe
  // or a file wants names whole.
  static Style detect(int fd);
};

}  // namespace dsi
