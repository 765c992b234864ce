#include "orchestrator/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "orchestrator/base/file.h"
#include "orchestrator/base/nodeset.h"
#include "orchestrator/cli.h"
#include "orchestrator/options_table.h"
#include "orchestrator/text.h"
#include "orchestrator/value_checks.h"
#include "orchestrator/yaml_mistakes.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using std::string_view;

std::optional<bool> truth(const YAML::Node& node) {
  bool value = false;
  // A quoted "yes" is text; yaml-cpp gives such scalars the tag "!".
  if (!node.IsScalar() || node.Tag() == "!" || !YAML::convert<bool>::decode(node, value)) return {};
  return value;
}

// What can be set for one host: its key, and how its value gets there.
struct HostKey {
  const char* name;
  Result<void> (*set)(HostOverrides&, const YAML::Node&);
};

const HostKey kHostKeys[] = {
    {"prefix",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       DSI_CHECK(check_prefix(node.Scalar()));
       host.prefix = node.Scalar();
       return {};
     }},
    {"user",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       DSI_CHECK(check_user(node.Scalar()));
       host.user = node.Scalar();
       return {};
     }},
    {"port",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       const std::string& text = node.Scalar();
       int port = 0;
       const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), port);
       if (problem != std::errc() || end != text.data() + text.size() || port < 1 || port > 65535) {
         return fail("needs a number from 1 to 65535, not \"{}\"", printable(text));
       }
       host.port = port;
       return {};
     }},
    {"torch",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       if (!node.Scalar().starts_with('/')) {
         return fail_with_help(
             fmt::format("needs an absolute path, not \"{}\"", printable(node.Scalar())),
             "it is a folder on that host");
       }
       host.torch = node.Scalar();
       return {};
     }},
    {"build-torch",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       host.build_torch = node.Scalar();
       return {};
     }},
    {"python",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       DSI_CHECK(check_python(node.Scalar()));
       host.python = node.Scalar();
       return {};
     }},
    {"rack",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       if (node.Scalar().empty()) return fail("needs a name");
       host.rack = node.Scalar();
       return {};
     }},
    {"sudo",
     [](HostOverrides& host, const YAML::Node& node) -> Result<void> {
       const std::optional<bool> value = truth(node);
       if (!value) return fail("needs true or false, not \"{}\"", printable(node.Scalar()));
       host.sudo = *value;
       return {};
     }},
};

class Reader {
 public:
  explicit Reader(const fs::path& file) : file_(file), mistakes_(file) {}

  Result<Config> read(string_view text) {
    mistakes_.read_document(text, [this](const YAML::Node& document) { read_top(document); });
    if (mistakes_.count() == 0) return std::move(config_);
    return tl::unexpected(
        mistakes_.error(fmt::format("the configuration {} has", printable(file_.string()))));
  }

 private:
  void note(const YAML::Mark& mark, string_view what, string_view help) {
    mistakes_.note(mark, what, help);
  }
  void note(const YAML::Mark& mark, string_view key, const Error& error) {
    note(mark, fmt::format("{} {}", printable(key), error.what), error.help);
  }

  // A key that can be looked up; complains about those that cannot, and about the second of two.
  bool read_key(const YAML::Node& node, std::set<std::string>& seen, std::string& key) {
    if (!node.IsScalar()) {
      note(node.Mark(), "a key must be a word", "");
      return false;
    }
    key = node.Scalar();
    std::string normal = key;
    std::replace(normal.begin(), normal.end(), '-', '_');
    if (seen.insert(normal).second) return true;
    note(node.Mark(), fmt::format("{} is given twice", printable(key)), "give it once");
    return false;
  }

  void read_top(const YAML::Node& top) {
    if (top.IsNull()) return;  // Nothing but comments.
    if (!top.IsMap()) {
      note(top.Mark(), "expected options as `name: value`, one a line",
           "ds-install -e writes an example");
      return;
    }
    std::set<std::string> seen;
    std::vector<std::pair<const OptionSpec*, YAML::Mark>> set;
    for (const auto& entry : top) {
      std::string key;
      if (!read_key(entry.first, seen, key)) continue;
      if (key == "hosts" && entry.second.IsMap()) {
        read_hosts(entry.second);
        continue;
      }
      const OptionSpec* option = find_option(key);
      if (!option) {
        std::string help = suggest_option(key, true);
        if (help.empty()) help = "the keys are the long options of ds-install --help";
        note(entry.first.Mark(), fmt::format("unknown option {}", printable(key)), help);
      } else if (!option->in_config) {
        note(entry.first.Mark(), fmt::format("{} cannot stand in a configuration", key),
             fmt::format("give --{} on the command line", option->name));
      } else if (read_option(*option, key, entry.second)) {
        for (const auto& [earlier, mark] : set) {
          const Error conflict = conflict_between(*earlier, *option);
          if (!conflict.what.empty()) note(entry.first.Mark(), conflict.what, conflict.help);
        }
        set.emplace_back(option, entry.first.Mark());
      }
    }
  }

  // True if it is set: a flag that is false is as if it were not there.
  bool read_option(const OptionSpec& option, const std::string& key, const YAML::Node& node) {
    ConfigValue value{&option, {}};
    if (std::holds_alternative<bool Options::*>(option.field)) {
      const std::optional<bool> flag = truth(node);
      if (!flag) {
        note(node.Mark(), fmt::format("{} needs true or false", key), "");
        return false;
      }
      if (!*flag) return false;
      value.texts.emplace_back("true");
    } else if (node.IsScalar()) {
      value.texts.push_back(text_of(option, node.Scalar()));
    } else if (node.IsSequence() && is_list(option)) {
      for (const YAML::Node& item : node) {
        if (!item.IsScalar()) {
          note(item.Mark(), fmt::format("{} needs a list of words", key), "");
          return false;
        }
        value.texts.push_back(text_of(option, item.Scalar()));
      }
      if (value.texts.empty()) {
        note(node.Mark(), fmt::format("{} is an empty list", key), "leave it out, or name some");
        return false;
      }
    } else {
      note(node.Mark(),
           node.IsNull()
               ? fmt::format("{} has no value", key)
               : fmt::format("{} needs {}", key, is_list(option) ? "a list" : "one value"),
           node.IsNull() ? "give it one, or leave it out" : "");
      return false;
    }
    Options scratch;
    for (const std::string& text : value.texts) {
      if (auto good = text.empty() ? fail("needs a value") : set_option(scratch, option, text);
          !good) {
        note(node.Mark(), key, good.error());
        return false;
      }
    }
    config_.values.push_back(std::move(value));
    return true;
  }

  static bool is_list(const OptionSpec& option) {
    return std::holds_alternative<std::vector<std::string> Options::*>(option.field) ||
           std::holds_alternative<std::vector<fs::path> Options::*>(option.field);
  }

  std::string text_of(const OptionSpec& option, const std::string& text) const {
    const bool path = std::holds_alternative<fs::path Options::*>(option.field) ||
                      std::holds_alternative<std::vector<fs::path> Options::*>(option.field);
    return path ? on_this_machine(text) : text;
  }

  // Paths of this machine are meant relative to the file that they stand in.
  std::string on_this_machine(const std::string& text) const {
    if (text.empty()) return text;
    const char* home = std::getenv("HOME");
    if (text.starts_with("~/") && home && *home) return (fs::path(home) / text.substr(2)).string();
    return (file_.parent_path() / text).lexically_normal().string();
  }

  void read_hosts(const YAML::Node& hosts) {
    std::set<std::string> seen;
    for (const auto& entry : hosts) {
      if (!entry.first.IsScalar()) {
        // A name with brackets that YAML takes for a list: [node1, node2]: ...
        note(entry.first.Mark(), "a host or a range is a word", "put it into quotes");
        continue;
      }
      const std::string& name = entry.first.Scalar();
      if (!seen.insert(name).second) {
        note(entry.first.Mark(), fmt::format("{} is given twice", printable(name)),
             "put all of it into one entry");
        continue;
      }
      auto names = expand_nodeset(name);
      if (!names) {
        note(entry.first.Mark(), printable(names.error().what), names.error().help);
        continue;
      }
      HostOverrides overrides;
      if (!read_overrides(name, entry.second, overrides)) continue;
      if (overrides.build_torch) overrides.build_torch = on_this_machine(*overrides.build_torch);
      for (const std::string& host : *names) {
        HostOverrides& known = config_.hosts[host];
        if (overrides.prefix) known.prefix = overrides.prefix;
        if (overrides.user) known.user = overrides.user;
        if (overrides.port) known.port = overrides.port;
        if (overrides.torch) known.torch = overrides.torch;
        if (overrides.build_torch) known.build_torch = overrides.build_torch;
        if (overrides.python) known.python = overrides.python;
        if (overrides.rack) known.rack = overrides.rack;
        if (overrides.sudo) known.sudo = overrides.sudo;
      }
    }
  }

  bool read_overrides(const std::string& name, const YAML::Node& node, HostOverrides& overrides) {
    std::vector<std::string> known;
    std::string list;
    for (const HostKey& key : kHostKeys) {
      known.emplace_back(key.name);
      list += (list.empty() ? "" : ", ") + known.back();
    }
    if (!node.IsMap()) {
      note(node.Mark(), fmt::format("{} needs settings as `name: value`", printable(name)),
           "for a host these can be set: " + list);
      return false;
    }
    const std::size_t before = mistakes_.count();
    std::set<std::string> seen;
    for (const auto& entry : node) {
      std::string key;
      if (!read_key(entry.first, seen, key)) continue;
      std::replace(key.begin(), key.end(), '_', '-');
      const auto found = std::find(known.begin(), known.end(), key);
      if (found == known.end()) {
        const std::string meant = closest(key, known);
        note(entry.first.Mark(), fmt::format("a host has no {}", printable(key)),
             meant.empty() ? "for a host these can be set: " + list
                           : fmt::format("did you mean {}?", meant));
      } else if (!entry.second.IsScalar() || entry.second.Scalar().empty()) {
        note(entry.second.Mark(), fmt::format("{} needs one value", key), "");
      } else if (auto good = kHostKeys[found - known.begin()].set(overrides, entry.second); !good) {
        note(entry.second.Mark(), key, good.error());
      }
    }
    return mistakes_.count() == before;
  }

  fs::path file_;
  Config config_;
  YamlMistakes mistakes_;
};

}  // namespace

Result<Config> parse_config(string_view text, const fs::path& file) {
  return Reader(file).read(text);
}

Result<Config> load_config(const fs::path& file) {
  auto text = read_file(file);
  if (!text) {
    return fail_with_help("the configuration cannot be used: " + printable(text.error().what),
                          "give another one with --config");
  }
  return parse_config(*text, file);
}

fs::path default_config_file() {
  std::vector<fs::path> candidates;
  const char* xdg = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  // A relative folder there is to be ignored, says the XDG specification.
  if (xdg && *xdg == '/') {
    candidates.emplace_back(fs::path(xdg) / "ds-install/config.yaml");
  } else if (home && *home == '/') {
    candidates.emplace_back(fs::path(home) / ".config/ds-install/config.yaml");
  }
  candidates.emplace_back("/etc/ds-install/config.yaml");
  for (const fs::path& file : candidates) {
    std::error_code ignored;
    if (fs::exists(file, ignored)) return file;
  }
  return {};
}

}  // namespace dsi
