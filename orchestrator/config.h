#pragma once

// The site configuration: the options of the command line as YAML, and what differs from host to
// host.
//
//   fanout: 32
//   ops: [cpu_adam, cpu_lion]
//   hosts:
//     node[01-64]: {user: train}
//     node07: {port: 2222, prefix: /scratch/ds-ops}
//     old[1-8]: {build-torch: ../torch-1.13}
//
// A key is an option's long name in either spelling. Paths on this machine are relative to the
// file's folder; "~/" is the user's home. Under `hosts` a later entry adds to and overrules an
// earlier one that names the same host, field by field.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/options.h"

namespace dsi {

struct OptionSpec;

struct ConfigValue {
  const OptionSpec* option = nullptr;
  std::vector<std::string> texts;  // Checked, for set_option() one by one.
};

struct Config {
  std::vector<ConfigValue> values;  // Only what is set; a flag that is false is not.
  std::map<std::string, HostOverrides> hosts;
};

// `file` is for messages and for relative paths. All mistakes at once: the Error's text has a line
// `file:line:col: error: …` for each, with a `help:` line below.
Result<Config> parse_config(std::string_view text, const std::filesystem::path& file);

Result<Config> load_config(const std::filesystem::path& file);

// The first that exists of $XDG_CONFIG_HOME/ds-install/config.yaml (~/.config if that is not set)
// and /etc/ds-install/config.yaml; empty if there is none.
std::filesystem::path default_config_file();

}  // namespace dsi
