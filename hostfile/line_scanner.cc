#include "hostfile/line_scanner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "hostfile/diagnostic.h"
#include "hostfile/keys.h"
#include "orchestrator/base/nodeset.h"

namespace dsi {
namespace {

constexpr int kMostSlots = 100'000;
constexpr int kMostPort = 65535;
// `host:2222` is a port that somebody meant, not two thousand processes.
constexpr int kMaxSlotsAfterColon = 1023;

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

// A word ends at a blank and, if `comma_ends`, at a comma outside brackets. Quotes around the whole
// word (Open MPI) are taken off.
bool LineScanner::read_word(std::string_view& word, std::size_t& offset, bool comma_ends) {
  if (!at_end() && (text_[at_] == '"' || text_[at_] == '\'')) {
    std::size_t close = text_.find(text_[at_], at_ + 1);
    if (close == text_.npos) {
      std::size_t open = std::exchange(at_, text_.size());
      return error(open, "the quote is never closed", "add the quote that is missing");
    }
    offset = at_ + 1;
    word = text_.substr(offset, close - offset);
    at_ = close + 1;
    if (at_end() || is_blank(text_[at_]) || (comma_ends && text_[at_] == ',')) return true;
    return error(at_, "expected a blank behind the quote");
  }
  offset = at_;
  for (int depth = 0; !at_end() && !is_blank(text_[at_]); ++at_) {
    if (text_[at_] == '[') ++depth;
    if (text_[at_] == ']') --depth;
    if (comma_ends && text_[at_] == ',' && depth <= 0) break;
  }
  word = text_.substr(offset, at_ - offset);
  return true;
}

bool LineScanner::read_int(std::string_view text, std::size_t offset, std::string_view noun,
                           int most, int& value) {
  if (is_number(text)) {
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code == std::errc() && value >= 1 && value <= most) return true;
  }
  value = 0;
  std::string help;
  if (noun == "slots" && text == "0") help = "to leave the host out, comment its line out";
  return error(
      offset,
      fmt::format("{} has to be a number from 1 to {}, not {}", noun, most, in_quotes(text)), help);
}

bool LineScanner::read_names(std::string_view pattern, std::size_t offset,
                             std::vector<std::string>& names) {
  if (auto refusal = refuse_name_pattern(pattern)) return error(offset, std::move(*refusal));
  if (pattern.find_first_of("[]") == pattern.npos) {  // Most lines of most files.
    if (auto refusal = refuse_host_name(pattern)) return error(offset, std::move(*refusal));
    names.emplace_back(pattern);
    return true;
  }
  auto expanded = expand_nodeset_at(pattern, kMaxHosts);
  if (!expanded) {
    return error(offset + expanded.error().offset, expanded.error().error.what,
                 expanded.error().error.help);
  }
  for (const std::string& name : *expanded) {
    if (auto refusal = refuse_host_name(name)) {
      refusal->offset = 0;  // In the expanded name, which stands nowhere in the text.
      return error(offset, std::move(*refusal));
    }
  }
  names = std::move(*expanded);
  return true;
}

// The n of host:n, host*n and [v6]:n.
bool LineScanner::read_suffix(std::string_view number, std::size_t offset, Colon colon,
                              Spec& spec) {
  spec.is_bare = false;
  if (colon == Colon::kPort) return read_int(number, offset, "port", kMostPort, spec.port);
  if (!read_int(number, offset, "slots", kMostSlots, spec.slots)) return false;
  if (spec.slots > kMaxSlotsAfterColon) {
    return error(offset, fmt::format("`:{}` would be {} slots", number, number),
                 fmt::format("for the port write port={0}; if slots are meant, slots={0}", number));
  }
  if (spec.slots == 22) {
    out_.warning(place(offset), "`:22` is read as 22 slots",
                 "for the port write port=22; to be rid of this warning, slots=22");
  }
  return true;
}

// [rcmd:][user@]name[:n], where name may have ranges.
bool LineScanner::read_spec(std::string_view text, std::size_t offset, Colon colon, Spec& spec) {
  spec.offset = offset;
  auto advance = [&](std::size_t count) {
    text.remove_prefix(count);
    offset += count;
  };
  if (text.starts_with('+')) {
    return error(offset, fmt::format("{} is a host relative to an allocation", in_quotes(text)),
                 "write the host's name");
  }
  if (text.starts_with('/')) {
    return error(offset, "host names by regular expression are not supported",
                 "write ranges: node[01-08]");
  }
  if (std::size_t equals = text.find('=');
      equals != text.npos && find_key(text.substr(0, equals))) {
    return error(offset, fmt::format("the host name before {} is missing", in_quotes(text)),
                 "a line begins with a host name: worker-1 slots=8");
  }

  // pdsh names the way in before the host: ssh:alice@node01.
  constexpr auto kWaysIn = std::to_array<std::string_view>(
      {"ssh", "rsh", "mrsh", "exec", "xcpu", "krb4", "qsh", "mqsh", "pipe"});
  std::size_t first_colon = std::min(text.find(':'), text.size());
  std::string_view way_in = text.substr(0, first_colon);
  if (first_colon < text.size() && !is_number(text.substr(first_colon + 1)) &&
      std::find(kWaysIn.begin(), kWaysIn.end(), way_in) != kWaysIn.end()) {
    if (way_in != "ssh") {
      return error(offset, fmt::format("hosts are reached by ssh only, not by {}", way_in),
                   fmt::format("remove `{}:`", way_in));
    }
    advance(first_colon + 1);
  }

  if (std::size_t sign = text.find('@'); sign != text.npos) {
    if (text.find('@', sign + 1) != text.npos) {
      return error(offset + text.find('@', sign + 1), "a second `@`",
                   "write a user name that holds one as user=alice@example.org");
    }
    if (auto refusal = refuse_user_name(text.substr(0, sign))) {
      return error(offset, std::move(*refusal));
    }
    spec.user = text.substr(0, sign);
    advance(sign + 1);
  }

  std::size_t close = text.find(']');
  if (text.starts_with('[') && text.substr(0, close).find(':') != text.npos) {
    if (close == text.npos) {
      return error(offset, "`[` is never closed", "write an IPv6 address and a port as [::1]:2222");
    }
    spec.names = {std::string(text.substr(1, close - 1))};
    if (!is_ipv6_address(spec.names[0])) {
      return error(offset + 1, fmt::format("{} is no IPv6 address", in_quotes(spec.names[0])));
    }
    advance(close + 1);
    if (text.empty()) return true;
    if (text[0] == ':') return read_suffix(text.substr(1), offset + 1, Colon::kPort, spec);
    return error(offset, "expected `:` and a port behind `]`");
  }
  if (is_ipv6_address(text)) {
    spec.names = {std::string(text)};
    return true;
  }
  if (std::count(text.begin(), text.end(), ':') > 1) {
    return error(offset, fmt::format("{} is no IPv6 address", in_quotes(text)),
                 "a name takes one `:n`; an IPv6 address and a port are written [::1]:2222");
  }

  // Slurm's files of arbitrary distributions write node01*4 for four processes.
  std::size_t after_ranges = text.rfind(']') == text.npos ? 0 : text.rfind(']');
  std::size_t suffix = text.find_first_of(colon == Colon::kSlots ? ":*" : ":", after_ranges);
  std::string_view pattern = text.substr(0, suffix);
  if (!read_names(pattern, offset, spec.names)) return false;
  if (pattern.find('[') != pattern.npos) spec.is_bare = false;
  if (suffix == text.npos) return true;
  return read_suffix(text.substr(suffix + 1), offset + suffix + 1, colon, spec);
}

bool LineScanner::read_items(Colon colon, bool leading_dash_excludes, std::vector<Spec>& specs) {
  bool all_fine = true;
  for (bool first = true; !out_.full(); first = false) {
    const std::size_t start = at_;
    if (at_end() || is_blank(text_[at_]) || text_[at_] == ',') {
      error(at_,
            first ? "a name is missing before the comma" : "a name is missing behind the comma",
            "separate names by one comma and no blank");
      at_ = text_.size();
      return false;
    }
    const bool is_include = text_[at_] == '^';
    const bool is_exclusion = text_[at_] == '-' && (!first || leading_dash_excludes);
    if (is_include || is_exclusion) ++at_;
    std::string_view word;
    std::size_t offset = 0;
    if (!read_word(word, offset, true)) {
      at_ = text_.size();
      return false;
    }
    if (is_include) {
      if (word.empty()) {
        all_fine = error(start, "`^` without a file", "write ^FILE to read another file");
      } else if (!std::all_of(word.begin(), word.end(),
                              [](char c) { return c >= 0x20 && c < 0x7f; })) {
        // The path will stand in messages, and a terminal obeys control characters.
        all_fine = error(
            offset, fmt::format("the path {} holds more than printable ASCII", in_quotes(word)),
            "rename the file");
      } else {
        out_.include(std::string(word), place(start));
      }
    } else if (is_exclusion) {
      std::vector<std::string> names;
      if (is_ipv6_address(word)) {
        names = {std::string(word)};
      } else if (!read_names(word, offset, names)) {
        all_fine = false;
      }
      for (std::string& name : names) out_.exclude(std::move(name), place(start));
    } else {
      Spec spec;
      if (read_spec(word, offset, colon, spec)) {
        specs.push_back(std::move(spec));
      } else {
        all_fine = false;
      }
    }
    if (at_end() || text_[at_] != ',') return all_fine;
    ++at_;
  }
  return false;
}

bool LineScanner::read_setting(std::string_view& key, std::size_t& key_at, std::string_view& value,
                               std::size_t& value_at) {
  key_at = at_;
  while (!at_end() && !is_blank(text_[at_]) && text_[at_] != '=') ++at_;
  key = text_.substr(key_at, at_ - key_at);
  skip_blanks_to_end();
  if (key.empty()) {
    return error(key_at, "a key is missing before `=`",
                 "write a line as: worker-1 slots=8 port=22");
  }
  if (at_end() || text_[at_] != '=') {
    return error(key_at, fmt::format("expected key=value, not {}", in_quotes(key)),
                 is_number(key) ? fmt::format("if slots are meant, write slots={}", key)
                                : "write one host a line; no blanks in a name, none in a list");
  }
  ++at_;
  skip_blanks_to_end();
  if (!read_word(value, value_at, false)) return false;
  if (value.empty()) return error(key_at, fmt::format("{} has no value", in_quotes(key)));
  return true;
}

void LineScanner::warn_unknown_key(std::string_view key, std::size_t offset) {
  if (!out_.first_time(file_, normalized(key))) return;
  std::string help = suggest_key(key);
  if (help.empty()) help = "known are slots, max_slots, user and port; see FORMAT.md";
  out_.warning(place(offset),
               fmt::format("the key {} is unknown and has no effect", in_quotes(key)),
               std::move(help));
}

bool LineScanner::read_settings(Settings& settings) {
  auto set_int = [&](int& field, std::string_view key, std::size_t key_at, std::string_view value,
                     std::size_t value_at, std::string_view noun, int most) {
    if (field != 0) return error(key_at, fmt::format("{} is set a second time", in_quotes(key)));
    return read_int(value, value_at, noun, most, field);
  };
  while (!skip_blanks_to_end()) {
    std::string_view name, value;
    std::size_t name_at = 0, value_at = 0;
    if (!read_setting(name, name_at, value, value_at)) return false;
    const Key* key = find_key(name);
    if (key == nullptr) {
      warn_unknown_key(name, name_at);
      continue;
    }
    switch (key->meaning) {
      case Meaning::kSlots:
        if (!set_int(settings.slots, name, name_at, value, value_at, "slots", kMostSlots)) {
          return false;
        }
        break;
      case Meaning::kMaxSlots:
        if (!set_int(settings.max_slots, name, name_at, value, value_at, "max_slots", kMostSlots)) {
          return false;
        }
        break;
      case Meaning::kPort:
        if (!set_int(settings.port, name, name_at, value, value_at, "port", kMostPort))
          return false;
        break;
      case Meaning::kUser:
        if (!settings.user.empty()) {
          return error(name_at, fmt::format("{} is set a second time", in_quotes(name)));
        }
        if (auto refusal = refuse_user_name(value)) return error(value_at, std::move(*refusal));
        settings.user = value;
        break;
      case Meaning::kPlacement:
        break;  // Where processes go on the host: nothing that an installation could get wrong.
      case Meaning::kInterface:
        if (out_.first_time(file_, normalized(name))) {
          out_.warning(place(name_at), fmt::format("{} has no effect here", in_quotes(name)),
                       "ssh's configuration says by which address a host is reached: HostName, "
                       "BindInterface");
        }
        break;
    }
  }
  return true;
}

}  // namespace dsi
