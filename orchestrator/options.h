#pragma once

// What the user asked for: the command line over the site configuration over the defaults.

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

enum class CommandKind {
  kInstall,
  kPlan,
  kBuild,
  kReport,
  kRollback,
  kUninstall,
  kHosts,
  kExamples,  // -e: write the examples, install nothing.
};

// What may differ from host to host; in the configuration under `hosts: {name or range: {...}}`.
struct HostOverrides {
  std::optional<std::string> prefix;
  std::optional<std::string> user;
  std::optional<int> port;
  std::optional<std::string> torch;  // A folder on that host.
  std::optional<bool> sudo;
};

struct Options {
  CommandKind command = CommandKind::kInstall;

  // Which hosts.
  std::filesystem::path hostfile = "/job/hostfile";
  bool hostfile_given = false;  // -H was there, so it must exist.
  std::string hosts;            // --hosts node[01-08]
  bool local_only = false;

  // What.
  std::vector<std::string> ops;                    // --ops a,b; empty: all.
  std::vector<std::filesystem::path> ops_folders;  // --ops-dir, any number of times.
  std::filesystem::path bundle;                    // --bundle FILE: install this, build nothing.
  std::filesystem::path output;                    // build -o FILE; -e's folder.
  std::filesystem::path torch;                     // --torch PREFIX
  std::string pip_mirror;                          // -m; used by the DeepSpeed payload only.
  bool clean = false;                              // --clean: empty the build cache first.
  bool no_clean = false;                           // -n: accepted; the cache is never stale.
  bool keep_going = false;                         // Install what could be built.
  int jobs = 0;                                    // Compile jobs; 0: what cores and memory allow.

  // How.
  std::string prefix;       // --prefix on the hosts; empty: /opt/ds-ops for root, else below $HOME.
  bool pip_sudo = false;    // -s: work under sudo on the hosts.
  bool allow_sudo = false;  // -r: root may run this.
  int fanout = 64;          // Sessions at once.
  std::string topology = "auto";  // auto, swarm, star: which way the bytes go.
  std::string peer_ports;         // "A-B": where nodes listen for each other; empty: any port.
  std::string rate_limit;         // "100mbit": what this machine and each node may send.
  std::chrono::seconds connect_timeout{10};
  std::chrono::seconds stall_timeout{30};  // Without progress on a connection.
  std::chrono::seconds probe_timeout{60};  // For the self-test of one op.

  // What is told.
  bool strict = false;  // An op that is not ok fails its host.
  bool json = false;
  int verbose = 0;

  std::filesystem::path config;
  std::map<std::string, HostOverrides> per_host;  // By single host name, ranges expanded.
};

// What to do instead of running: print this and exit.
struct PrintAndExit {
  std::string text;
};

struct ParsedCommandLine {
  Options options;
  std::optional<PrintAndExit> print;  // --help, --version.
  std::vector<std::string> warnings;  // One line each, to say once.
};

// `arguments` without the program's name. Pure but for reading the configuration file. Errors are
// usage errors (exit 2). All of them are found at once: the Error then holds several, such that
// to_string() gives one "error: …" and "help: …" after the other.
Result<ParsedCommandLine> parse_command_line(const std::vector<std::string>& arguments);

}  // namespace dsi
