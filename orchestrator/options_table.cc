#include "orchestrator/options_table.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <vector>

#include "orchestrator/text.h"

namespace dsi {
namespace {

using std::string_view;

constexpr unsigned kInstall = bit(CommandKind::kInstall) | bit(CommandKind::kPlan);
constexpr unsigned kBuilding = kInstall | bit(CommandKind::kBuild);
constexpr unsigned kTesting = kInstall | bit(CommandKind::kReport) | bit(CommandKind::kRollback);
constexpr unsigned kOnNodes = kTesting | bit(CommandKind::kUninstall);
constexpr unsigned kWithHosts = kOnNodes | bit(CommandKind::kHosts);

constexpr int kMostSeconds = 24 * 60 * 60;

constexpr std::array<CommandSpec, 7> kCommands = {{
    {"install", CommandKind::kInstall, "compile the ops, install them on every host (the default)"},
    {"plan", CommandKind::kPlan, "say what install would do; change nothing"},
    {"build", CommandKind::kBuild, "compile the ops into a bundle, one file; needs no host"},
    {"report", CommandKind::kReport, "test what is installed, op by op and host by host"},
    {"rollback", CommandKind::kRollback, "go back to the release before"},
    {"uninstall", CommandKind::kUninstall, "take every release off the hosts"},
    {"hosts", CommandKind::kHosts, "show the hosts that the hostfile names"},
}};

using G = OptionGroup;
const OptionSpec kOptions[] = {
    // install.sh's own names are spelled as there.
    {"hostfile", 'H', "PATH", &Options::hostfile, G::kHosts, kWithHosts,
     "the hosts, one a line; by default /job/hostfile, and without that file this machine"},
    {"hosts", 0, "LIST", &Options::hosts, G::kHosts, kWithHosts,
     "the hosts themselves: node[01-08],login"},
    {"local_only", 'l', "", &Options::local_only, G::kHosts, kWithHosts,
     "this machine only, without SSH"},

    {"ops", 0, "LIST", &Options::ops, G::kBuild, kBuilding, "only these ops: cpu_adam,cpu_lion"},
    {"ops-dir", 0, "DIR", &Options::ops_folders, G::kBuild, kBuilding,
     "also the ops in this folder; may be repeated"},
    {"torch", 0, "PREFIX", &Options::torch, G::kBuild, kTesting | kBuilding,
     "the torch to use: a folder with include/ and lib/"},
    {"bundle", 0, "FILE", &Options::bundle, G::kBuild, kInstall,
     "install this bundle; compile nothing"},
    {"output", 'o', "PATH", &Options::output, G::kBuild,
     bit(CommandKind::kBuild) | bit(CommandKind::kExamples),
     "where build writes the bundle (default ds-ops.tar.zst), or -e its folder", false},
    {"jobs", 0, "N", &Options::jobs, G::kBuild, kBuilding,
     "compile N files at once; by default what cores and memory allow", true, 1, 4096},
    {"keep-going", 0, "", &Options::keep_going, G::kBuild, kBuilding,
     "if an op does not compile, install the others"},
    {"clean", 0, "", &Options::clean, G::kBuild, kBuilding, "empty the build cache first"},
    {"no_clean", 'n', "", &Options::no_clean, G::kBuild, kBuilding,
     "accepted as in install.sh; the cache is never stale, so it is kept anyway"},
    {"pip_mirror", 'm', "URL", &Options::pip_mirror, G::kBuild, kBuilding,
     "where pip finds packages; used only by DeepSpeed wheels"},

    {"prefix", 0, "PATH", &Options::prefix, G::kNode, kOnNodes,
     "where it goes; by default /opt/ds-ops for root, else ~/.local/share/ds-ops"},
    {"pip_sudo", 's', "", &Options::pip_sudo, G::kNode, kOnNodes, "work under sudo on the hosts"},
    {"fanout", 0, "N", &Options::fanout, G::kNode, kOnNodes, "hosts at once (default 64)", true, 1,
     4096},
    {"topology", 0, "HOW", &Options::topology, G::kNode, kInstall,
     "auto: hosts pass the bytes on to each other where they can; star: all come from here"},
    {"peer-ports", 0, "A-B", &Options::peer_ports, G::kNode, kInstall,
     "the ports that hosts may open for each other during a run; by default any"},
    {"rate-limit", 0, "RATE", &Options::rate_limit, G::kNode, kInstall,
     "the most that this machine and each host may send: 100mbit, 20MB"},
    {"connect-timeout", 0, "SEC", &Options::connect_timeout, G::kNode, kOnNodes,
     "until a host must have answered (default 10)", true, 1, kMostSeconds},
    {"stall-timeout", 0, "SEC", &Options::stall_timeout, G::kNode, kOnNodes,
     "without progress until a connection is given up (default 30)", true, 1, kMostSeconds},
    {"probe-timeout", 0, "SEC", &Options::probe_timeout, G::kNode, kTesting,
     "for the self-test of one op (default 60)", true, 1, kMostSeconds},
    {"strict", 0, "", &Options::strict, G::kNode, kTesting, "an op that is not ok fails its host"},

    {"json", 0, "", &Options::json, G::kOutput, kWithHosts,
     "JSON Lines on standard output instead of the report"},
    {"verbose", 'v', "", &Options::verbose, G::kOutput, kEverywhere,
     "say more; twice: what the compilers and the hosts say", true, 0, 9},

    {"allow_sudo", 'r', "", &Options::allow_sudo, G::kOther, kEverywhere, "root may run this"},
    {"config", 0, "FILE", &Options::config, G::kOther, kEverywhere & ~bit(CommandKind::kExamples),
     "read these options from a YAML file instead of ~/.config/ds-install/config.yaml or "
     "/etc/ds-install/config.yaml",
     false},
    {"dry-run", 0, "", {}, G::kOther, kInstall, "the same as the command plan", false},
    {"examples",
     'e',
     "",
     {},
     G::kOther,
     kInstall | bit(CommandKind::kExamples),
     "write examples to a folder (default ./ds-install-examples); install nothing",
     false},
    {"version", 0, "", {}, G::kOther, kEverywhere, "say the version", false},
    {"help", 'h', "", {}, G::kOther, kEverywhere, "this, or with a command that command's", false},
};

struct Conflict {
  string_view one;
  string_view other;
  string_view help;
};
constexpr string_view kOneSource = "name the hosts in one way only";
constexpr string_view kBuildsNothing = "a bundle is installed as it is; leave one of the two out";
constexpr std::array<Conflict, 10> kConflicts = {{
    {"local_only", "hostfile", kOneSource},
    {"local_only", "hosts", kOneSource},
    {"hostfile", "hosts", kOneSource},
    {"bundle", "ops", kBuildsNothing},
    {"bundle", "ops-dir", kBuildsNothing},
    {"bundle", "torch", kBuildsNothing},
    {"bundle", "jobs", kBuildsNothing},
    {"bundle", "keep-going", kBuildsNothing},
    {"bundle", "clean", kBuildsNothing},
    {"clean", "no_clean", "--clean empties the build cache, -n keeps it; choose one"},
}};

}  // namespace

std::span<const OptionSpec> option_table() {
  return kOptions;
}
std::span<const CommandSpec> command_table() {
  return kCommands;
}

const CommandSpec* find_command(string_view name) {
  for (const CommandSpec& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

std::string other_spelling(string_view name) {
  std::string other(name);
  for (char& c : other) c = c == '_' ? '-' : c == '-' ? '_' : c;
  return other;
}

const OptionSpec* find_option(string_view name) {
  for (const OptionSpec& option : kOptions) {
    if (option.name == name || other_spelling(option.name) == name) return &option;
  }
  return nullptr;
}

std::string suggest_option(string_view name, bool for_config) {
  std::vector<std::string> names;
  for (const OptionSpec& option : kOptions) {
    if (for_config && !option.in_config) continue;
    names.emplace_back(option.name);
    const std::string other = other_spelling(option.name);
    if (other != option.name && name.find('-') != name.npos && other.find('-') != other.npos) {
      names.back() = other;  // Suggested in the spelling that was tried.
    }
  }
  const std::string meant = closest(name, names);
  if (meant.empty()) return {};
  return fmt::format("did you mean {}{}?", for_config ? "" : "--", meant);
}

bool takes_value(const OptionSpec& option) {
  return !option.value.empty();
}

std::string dashed(const OptionSpec& option) {
  return fmt::format("--{}", option.name);
}

Error conflict_between(const OptionSpec& one, const OptionSpec& other) {
  for (const Conflict& c : kConflicts) {
    if ((c.one == one.name && c.other == other.name) ||
        (c.one == other.name && c.other == one.name)) {
      return {fmt::format("--{} and --{} exclude each other", c.one, c.other), std::string(c.help)};
    }
  }
  return {};
}

}  // namespace dsi
