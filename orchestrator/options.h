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
  kSurvey,
  kBuild,
  kEnvironment,  // env: what to build in.
  kReport,
  kRollback,
  kUninstall,
  kHosts,
  kCheck,     // report, held against the release that the hosts should have.
  kHold,      // A host keeps the release that it has, until
  kUnhold,    // this.
  kSchedule,  // install, at set times.
  kHistory,   // What earlier runs left; reaches no host.
  kExamples,  // -e: write the examples, install nothing.
};

// What may differ from host to host; in the configuration under `hosts: {name or range: {...}}`.
struct HostOverrides {
  std::optional<std::string> prefix;
  std::optional<std::string> user;
  std::optional<int> port;
  std::optional<std::string> torch;        // A folder on that host.
  std::optional<std::string> build_torch;  // A folder here: that host's ops are compiled with it.
  std::optional<std::string> python;       // An interpreter on that host.
  std::optional<bool> sudo;
  std::optional<std::string> rack;  // What fails together, for --order racks.
};

struct Options {
  CommandKind command = CommandKind::kInstall;

  // Which hosts.
  std::filesystem::path hostfile = "/job/hostfile";
  bool hostfile_given = false;  // -H was there, so it must exist.
  std::string hosts;            // --hosts node[01-08]
  bool local_only = false;
  std::string via = "ssh";  // ssh, slurm: how hosts are reached.
  std::string partition;    // Of Slurm: its nodes are the hosts.

  // What.
  std::vector<std::string> ops;                    // --ops a,b; empty: all.
  std::vector<std::filesystem::path> ops_folders;  // --ops-dir, any number of times.
  std::filesystem::path bundle;                    // --bundle FILE: install this, build nothing.
  std::filesystem::path output;                    // build -o FILE; env's lock; -e's folder.
  std::filesystem::path torch;                     // --torch PREFIX
  std::filesystem::path env;                       // --env DIR: compile in there.
  // A Python package instead of the ops: a folder, an sdist, a wheel or a requirement to install;
  // to report, rollback and uninstall its name.
  std::string deepspeed;           // --deepspeed
  std::string package;             // --package: any other.
  std::string python;              // --python: the interpreter, here and on the hosts.
  bool with_deps = false;          // --with-deps: what the package requires goes along.
  bool drop_in = false;            // --drop-in: our ops under DeepSpeed's names.
  std::string pip_mirror;          // -m: the index that pip uses here.
  bool update_submodules = false;  // -e beside a package's folder.
  bool clean = false;              // --clean: empty the build cache first.
  bool no_clean = false;           // -n: a package's own build folder is used.
  bool keep_going = false;         // Install what could be built.
  int jobs = 0;                    // Compile jobs; 0: what cores and memory allow.

  // How.
  std::string prefix;       // --prefix on the hosts; empty: /opt/ds-ops for root, else below $HOME.
  bool pip_sudo = false;    // -s: work under sudo on the hosts.
  bool allow_sudo = false;  // -r: root may run this.
  int fanout = 64;          // Sessions at once.
  std::string batch;        // "1,10%,50%": batches.h; empty: all hosts at once.
  std::string max_fail;     // "2", "5%": how many hosts may fail before a next batch.
  std::string window;       // "2h": nothing new is begun later than this.
  std::string drain;        // "slurm", or a command for each host; empty: none.
  std::string undrain;      // A command for each host.
  std::string drain_limit = "4h";  // Until a host must be free of jobs.
  std::string busy = "proceed";    // proceed, wait, skip: processes that have the old release.
  std::string busy_limit = "1h";   // How long wait waits.
  bool ignore_holds = false;       // Hosts that are held are changed, too.
  std::string order = "hostfile";  // hostfile, racks.
  std::string topology = "auto";   // auto, swarm, star: which way the bytes go.
  std::string peer_ports;          // "A-B": where nodes listen for each other; empty: any port.
  std::string rate_limit;          // "100mbit": what this machine and each node may send.
  std::chrono::seconds connect_timeout{10};
  std::chrono::seconds stall_timeout{30};  // Without progress on a connection.
  std::chrono::seconds probe_timeout{60};  // For the self-test of one op.

  // What may go where.
  std::vector<std::filesystem::path> rules;  // --rules FILE, any number of times.
  std::vector<std::string> ignore;           // --ignore RULE[,RULE]: rules that are not asked.

  // env
  std::filesystem::path lock;                // --lock FILE: this one; no host is asked.
  std::filesystem::path conda;               // --conda FILE
  std::filesystem::path make;                // --make DIR
  std::string mirror;                        // Of Debian; empty: the one of this machine's apt.
  std::vector<std::string> debian_packages;  // More of them.

  // What is told.
  bool strict = false;  // An op that is not ok fails its host.
  bool json = false;
  // schedule
  std::string schedule_word;  // "list", "remove"; empty: add.
  std::string name;           // Of the unit, behind "ds-install-".
  std::string at;             // systemd's calendar, or cron's five fields.
  std::string random_delay;   // systemd's time span.
  bool schedule_user = false;
  bool cron = false;
  std::vector<std::string> scheduled;  // The options of the runs, as words.

  std::string notify;      // A command that is told how a run ended.
  std::string notify_url;  // A webhook that is told. May hold secrets: never printed whole.
  std::chrono::seconds notify_timeout{30};  // For each of them.

  std::string to;       // rollback: a release's id, or a run's; empty: the release before.
  std::string reason;   // hold: why.
  std::string record;   // history show: which run; empty: list them.
  std::string release;  // check: what the hosts should have; empty: what they last got.
  std::filesystem::path metrics;  // --metrics FILE: for Prometheus' textfile collector.
  std::filesystem::path html;     // --html FILE: the report as a page, besides.
  int verbose = 0;

  // What is installed is a Python package: its source or name, or empty.
  const std::string& python_package() const { return deepspeed.empty() ? package : deepspeed; }

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
