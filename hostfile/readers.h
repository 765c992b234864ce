#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "hostfile/collector.h"
#include "hostfile/source_text.h"

namespace dsi {

// A format whose lines cannot be mistaken for another's is a reader. A line goes to the first
// reader that claims it; what claims a line looks at its own syntax only and never guesses from the
// rest of the file. Formats that differ in their keys alone share host_line: see the table of keys.
struct Reader {
  std::string_view format;
  bool (*claims)(std::string_view line);
  void (*read)(const SourceLine& line, std::size_t file, Collector& out);
};

// In the order in which they are asked; the last claims everything.
std::span<const Reader> hostfile_readers();

// One line of a list from the command line.
void read_host_list_line(const SourceLine& line, std::size_t file, Collector& out);

}  // namespace dsi
