#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hostfile/collector.h"
#include "hostfile/host_name.h"
#include "hostfile/source_text.h"

namespace dsi {

// What `host:n` means. Only an address in brackets has the same meaning everywhere: [::1]:port.
enum class Colon { kSlots, kPort };

// What one item names: `user@node[01-03]:4`.
struct Spec {
  std::vector<std::string> names;
  std::size_t offset = 0;
  std::string user;
  int port = 0;
  int slots = 0;
  bool is_bare = true;  // One name and nothing about it.
};

// What the keys of a line say about its hosts; 0 and "" if they do not.
struct Settings {
  std::string user;
  int port = 0;
  int slots = 0;
  int max_slots = 0;
};

// Walks over one line. Every read_… function reports what is wrong and then returns false: the rest
// of the line would only give errors that follow from the first.
class LineScanner {
 public:
  LineScanner(const SourceLine& line, std::size_t file, Collector& out)
      : line_(line), text_(line.text), file_(file), out_(out) {}

  Place place(std::size_t offset) const { return {file_, line_.number, column_of(text_, offset)}; }
  bool error(std::size_t offset, std::string message, std::string help = {}) {
    out_.error(place(offset), std::move(message), std::move(help));
    return false;
  }
  bool error(std::size_t start, Refusal refusal) {
    return error(start + refusal.offset, std::move(refusal.why), std::move(refusal.help));
  }

  std::size_t at() const { return at_; }
  void skip(std::size_t count) { at_ += count; }
  bool at_end() const { return at_ == text_.size(); }
  bool skip_blanks_to_end() {
    while (!at_end() && is_blank(text_[at_])) ++at_;
    return at_end();
  }

  // Reads item,item,… up to a blank or the end. An item that is wrong is reported, and the next one
  // is read all the same; false if any was.
  bool read_items(Colon colon, bool leading_dash_excludes, std::vector<Spec>& specs);
  // Reads `key = value`… up to the end.
  bool read_settings(Settings& settings);
  bool read_setting(std::string_view& key, std::size_t& key_at, std::string_view& value,
                    std::size_t& value_at);
  bool read_spec(std::string_view text, std::size_t offset, Colon colon, Spec& spec);
  void warn_unknown_key(std::string_view key, std::size_t offset);

 private:
  bool read_word(std::string_view& word, std::size_t& offset, bool comma_ends);
  bool read_names(std::string_view pattern, std::size_t offset, std::vector<std::string>& names);
  bool read_suffix(std::string_view number, std::size_t offset, Colon colon, Spec& spec);
  bool read_int(std::string_view text, std::size_t offset, std::string_view noun, int most,
                int& value);

  const SourceLine& line_;
  std::string_view text_;
  std::size_t file_;
  Collector& out_;
  std::size_t at_ = 0;
};

}  // namespace dsi
