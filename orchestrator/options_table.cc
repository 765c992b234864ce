#include "orchestrator/options_table.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <vector>

#include "orchestrator/text.h"

namespace dsi {
namespace {

using std::string_view;

constexpr unsigned kInstall =
    bit(CommandKind::kInstall) | bit(CommandKind::kPlan) | bit(CommandKind::kSchedule);
constexpr unsigned kScheduling = bit(CommandKind::kSchedule);
constexpr unsigned kBuilding = kInstall | bit(CommandKind::kBuild);
constexpr unsigned kAsking = bit(CommandKind::kReport) | bit(CommandKind::kCheck);
constexpr unsigned kTesting = kInstall | kAsking | bit(CommandKind::kRollback);
constexpr unsigned kHolding = bit(CommandKind::kHold) | bit(CommandKind::kUnhold);
constexpr unsigned kOnNodes = kTesting | bit(CommandKind::kUninstall) | kHolding;
constexpr unsigned kTold = kOnNodes & ~bit(CommandKind::kPlan);
constexpr unsigned kLooking = kInstall | bit(CommandKind::kSurvey);
constexpr unsigned kDeriving = bit(CommandKind::kEnvironment);
constexpr unsigned kReaching = kOnNodes | bit(CommandKind::kSurvey) | kDeriving;
constexpr unsigned kWithHosts = kReaching | bit(CommandKind::kHosts);
constexpr unsigned kChanging =
    kInstall | bit(CommandKind::kRollback) | bit(CommandKind::kUninstall);
constexpr unsigned kRecorded = bit(CommandKind::kHistory);

constexpr int kMostSeconds = 24 * 60 * 60;

constexpr std::array<CommandSpec, 14> kCommands = {{
    {"install", CommandKind::kInstall, "compile the ops, install them on every host (the default)"},
    {"plan", CommandKind::kPlan, "say what install would do; change nothing"},
    {"survey", CommandKind::kSurvey, "say what the hosts are, and what differs between them"},
    {"build", CommandKind::kBuild, "compile the ops into a bundle, one file; needs no host"},
    {"env", CommandKind::kEnvironment,
     "derive from the hosts what to build with, as a lock; make a Debian root to build in"},
    {"report", CommandKind::kReport, "test what is installed, op by op and host by host"},
    {"check", CommandKind::kCheck, "the same, and has every host the release it should have?"},
    {"rollback", CommandKind::kRollback,
     "go back to the release before, or with --to to a certain one"},
    {"uninstall", CommandKind::kUninstall, "take every release off the hosts"},
    {"hosts", CommandKind::kHosts, "show the hosts that the hostfile names"},
    {"hold", CommandKind::kHold,
     "pin what the hosts have: no run changes it before unhold, whoever starts it"},
    {"unhold", CommandKind::kUnhold, "end that"},
    {"schedule", CommandKind::kSchedule,
     "install at set times, by systemd or cron; schedule list, schedule remove"},
    {"history", CommandKind::kHistory, "list earlier runs; history show ID: what one came to"},
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
    {"via", 0, "HOW", &Options::via, G::kHosts, kWithHosts,
     "ssh, or slurm: srun reaches the hosts; inside an allocation they are its nodes"},
    {"partition", 0, "NAME", &Options::partition, G::kHosts, kWithHosts,
     "with --via slurm: the hosts are this partition's nodes"},

    {"deepspeed", 0, "SOURCE", &Options::deepspeed, G::kBuild, kBuilding | kOnNodes,
     "DeepSpeed instead of the ops: its folder, sdist, wheel, or deepspeed==VERSION from an index; "
     "without a value the newest, or for report, rollback and uninstall what is installed",
     false},
    {"package", 0, "SOURCE", &Options::package, G::kBuild, kBuilding | kOnNodes,
     "the same for any other Python package; for report, rollback and uninstall its name", false},
    {"with-deps", 0, "", &Options::with_deps, G::kBuild, kBuilding,
     "what the package requires goes along, so that the hosts need no index"},
    {"pip_mirror", 'm', "URL", &Options::pip_mirror, G::kBuild, kBuilding | kDeriving,
     "the index that pip uses here for a Python package; the hosts never ask one"},
    {"no_clean", 'n', "", &Options::no_clean, G::kBuild, kBuilding,
     "a package's folder is built with the build/ that is in it; the ops' cache is always kept"},

    {"ops", 0, "LIST", &Options::ops, G::kBuild, kBuilding, "only these ops: cpu_adam,cpu_lion"},
    {"ops-dir", 0, "DIR", &Options::ops_folders, G::kBuild, kBuilding,
     "also the ops in this folder; may be repeated"},
    {"torch", 0, "PREFIX", &Options::torch, G::kBuild,
     kTesting | kBuilding | bit(CommandKind::kSurvey) | kDeriving,
     "the torch to use: a folder with include/ and lib/"},
    {"bundle", 0, "FILE", &Options::bundle, G::kBuild, kInstall,
     "install this bundle; compile nothing"},
    {"output", 'o', "PATH", &Options::output, G::kBuild,
     bit(CommandKind::kBuild) | kDeriving | bit(CommandKind::kExamples),
     "where build writes the bundle (default ds-ops.tar.zst), env the lock (default ds-env.lock), "
     "or -e its folder",
     false},
    {"env", 0, "DIR", &Options::env, G::kBuild, kBuilding,
     "compile in this root, which env --make made: the same bytes on every machine, and for hosts "
     "with older libraries than this one has"},
    {"lock", 0, "FILE", &Options::lock, G::kBuild, kDeriving, "use this lock; ask no host", false},
    {"make", 0, "DIR", &Options::make, G::kBuild, kDeriving,
     "also make the root, in this folder; needs no rights", false},
    {"conda", 0, "FILE", &Options::conda, G::kBuild, kDeriving,
     "also write an environment.yml for conda", false},
    {"mirror", 0, "URL", &Options::mirror, G::kBuild, kDeriving,
     "where Debian's packages come from; by default the mirror of this machine's apt"},
    {"debian-packages", 0, "LIST", &Options::debian_packages, G::kBuild, kDeriving,
     "more packages for the root, which your own ops need: libnuma-dev,libfoo-dev"},
    {"jobs", 0, "N", &Options::jobs, G::kBuild, kBuilding,
     "compile N files at once; by default what cores and memory allow", true, 1, 4096},
    {"keep-going", 0, "", &Options::keep_going, G::kBuild, kBuilding,
     "if an op does not compile, install the others"},
    {"clean", 0, "", &Options::clean, G::kBuild, kBuilding, "empty the build cache first"},

    {"prefix", 0, "PATH", &Options::prefix, G::kNode, kReaching,
     "where it goes; by default /opt/ds-ops for root, else ~/.local/share/ds-ops"},
    {"python", 0, "PATH", &Options::python, G::kNode, kBuilding | kOnNodes,
     "the Python that a package is built with and installed into; by default the one that python3 "
     "is here, and on each host the one that the user's login has there"},
    {"drop-in", 0, "", &Options::drop_in, G::kNode, kBuilding,
     "our ops stand in for those of the installed DeepSpeed, under its names"},
    {"pip_sudo", 's', "", &Options::pip_sudo, G::kNode, kReaching, "work under sudo on the hosts"},
    {"fanout", 0, "N", &Options::fanout, G::kNode, kReaching, "hosts at once (default 64)", true, 1,
     4096},
    {"batch", 0, "LIST", &Options::batch, G::kNode, kChanging,
     "one batch after the other, of so many hosts or percent: 1,10%,50%; the last repeats; an op "
     "that is not ok fails its host (--strict)"},
    {"max-fail", 0, "N|P%", &Options::max_fail, G::kNode, kChanging,
     "with --batch: stop before the next batch if more hosts than this failed or could not be "
     "reached (default 0)"},
    {"window", 0, "TIME", &Options::window, G::kNode, kChanging,
     "begin nothing new later than this: 2h, 90m; what is in flight is finished"},
    {"drain", 0, "HOW", &Options::drain, G::kNode, kChanging,
     "take hosts out of service and wait for their jobs first: slurm, or a command that is run for "
     "each with DSI_HOST set and ends when the host is free"},
    {"undrain", 0, "CMD", &Options::undrain, G::kNode, kChanging,
     "with a command for --drain: the one that gives a host back"},
    {"drain-limit", 0, "TIME", &Options::drain_limit, G::kNode, kChanging,
     "how long to wait for jobs (default 4h); a host that is not free then is left as it is"},
    {"busy", 0, "HOW", &Options::busy, G::kNode, kChanging,
     "processes that have files of the release that is left: proceed: name them, they keep those "
     "files (the default); wait: until they end; skip: leave their host as it is"},
    {"busy-limit", 0, "TIME", &Options::busy_limit, G::kNode, kChanging,
     "how long --busy wait waits (default 1h); a host that is not free then is left as it is"},
    {"ignore-holds", 0, "", &Options::ignore_holds, G::kNode, kChanging,
     "change hosts that are held, too; their hold stays", false},
    {"reason", 0, "TEXT", &Options::reason, G::kNode, bit(CommandKind::kHold),
     "why, for who meets the hold", false},
    {"to", 0, "ID", &Options::to, G::kNode, bit(CommandKind::kRollback),
     "to this release, or to what this run of history left; the hosts keep the release before, and "
     "those that a process still uses",
     false},
    {"order", 0, "HOW", &Options::order, G::kNode, kChanging,
     "hostfile: as it stands there; racks: one of each rack in turn, as the configuration names "
     "them"},
    {"at", 0, "WHEN", &Options::at, G::kNode, kScheduling,
     "when: \"Sun 03:00\", daily (man systemd.time); with --cron five fields", false},
    {"name", 0, "NAME", &Options::name, G::kNode, kScheduling,
     "of the timer, if there are several: ds-install-NAME", false},
    {"random-delay", 0, "TIME", &Options::random_delay, G::kNode, kScheduling,
     "begin up to so much later (default 15min)", false},
    {"user", 0, "", &Options::schedule_user, G::kNode, kScheduling,
     "a timer of this user's, not of the system", false},
    {"cron", 0, "", &Options::cron, G::kNode, kScheduling,
     "print a line for a crontab; write nothing", false},
    {"topology", 0, "HOW", &Options::topology, G::kNode, kInstall,
     "auto: hosts pass the bytes on to each other where they can; star: all come from here"},
    {"peer-ports", 0, "A-B", &Options::peer_ports, G::kNode, kInstall,
     "the ports that hosts may open for each other during a run; by default any"},
    {"rate-limit", 0, "RATE", &Options::rate_limit, G::kNode, kInstall,
     "the most that this machine and each host may send: 100mbit, 20MB"},
    {"connect-timeout", 0, "SEC", &Options::connect_timeout, G::kNode, kReaching,
     "until a host must have answered (default 10)", true, 1, kMostSeconds},
    {"stall-timeout", 0, "SEC", &Options::stall_timeout, G::kNode, kReaching,
     "without progress until a connection is given up (default 30)", true, 1, kMostSeconds},
    {"probe-timeout", 0, "SEC", &Options::probe_timeout, G::kNode, kTesting,
     "for the self-test of one op (default 60)", true, 1, kMostSeconds},
    {"rules", 0, "FILE", &Options::rules, G::kNode, kLooking,
     "more rules about what may go where; may be repeated"},
    {"ignore", 0, "LIST", &Options::ignore, G::kNode, kLooking,
     "do not ask these rules: torch-other-version,no-space"},
    {"strict", 0, "", &Options::strict, G::kNode, kTesting & ~bit(CommandKind::kCheck),
     "an op that is not ok fails its host"},

    {"release", 0, "ID", &Options::release, G::kNode, bit(CommandKind::kCheck),
     "the release that every host should have; by default the one that was last installed there",
     false},

    {"json", 0, "", &Options::json, G::kOutput, kWithHosts | kRecorded,
     "JSON Lines on standard output instead of the report"},
    {"html", 0, "FILE", &Options::html, G::kOutput,
     (kOnNodes | kRecorded) & ~bit(CommandKind::kPlan),
     "also write the report as one HTML page, with what changed since the run before", false},
    {"metrics", 0, "FILE", &Options::metrics, G::kOutput, kTold,
     "also write what came out for Prometheus' textfile collector"},
    {"notify", 0, "CMD", &Options::notify, G::kOutput, kTold,
     "run this at the end with what happened on its standard input, and DSI_RUN_ID, DSI_COMMAND, "
     "DSI_EXIT and DSI_RECORD set; also if the run was refused or interrupted"},
    {"notify-url", 0, "URL", &Options::notify_url, G::kOutput, kTold,
     "send the same to a webhook, as JSON by POST; best kept in a configuration that only its "
     "owner can read, if the URL is a secret"},
    {"notify-timeout", 0, "SEC", &Options::notify_timeout, G::kOutput, kTold,
     "for each of them (default 30); one that fails is a warning and nothing else", true, 1, 3600},
    {"verbose", 'v', "", &Options::verbose, G::kOutput, kEverywhere,
     "say more; twice: what the compilers and the hosts say", true, 0, 9},

    {"allow_sudo", 'r', "", &Options::allow_sudo, G::kOther, kEverywhere, "root may run this"},
    {"config", 0, "FILE", &Options::config, G::kOther, kEverywhere & ~bit(CommandKind::kExamples),
     "read these options from a YAML file instead of ~/.config/ds-install/config.yaml or "
     "/etc/ds-install/config.yaml",
     false},
    {"dry-run",
     0,
     "",
     {},
     G::kOther,
     kInstall & ~kScheduling,
     "the same as the command plan",
     false},
    {"examples",
     'e',
     "",
     {},
     G::kOther,
     kBuilding | bit(CommandKind::kExamples),
     "write examples to a folder (default ./ds-install-examples); install nothing. Beside the "
     "folder of a package: update its git submodules first",
     false},
    {"version", 0, "", {}, G::kOther, kEverywhere, "say the version", false},
    {"man",
     0,
     "",
     {},
     G::kOther,
     kEverywhere,
     "print the manual page: ds-install --man | man -l -",
     false},
    {"help", 'h', "", {}, G::kOther, kEverywhere, "this, or with a command that command's", false},
};

struct Conflict {
  string_view one;
  string_view other;
  string_view help;
};
constexpr string_view kOneSource = "name the hosts in one way only";
constexpr string_view kBuildsNothing = "a bundle is installed as it is; leave one of the two out";
constexpr string_view kOnePayload = "a run installs the ops or one package; choose one";
constexpr string_view kTorchOfPython =
    "a package is built with the torch of the Python it is for; name that Python with --python";
constexpr string_view kOpsAlone =
    "an environment has no Python; a package is built with the one that --python names";
constexpr string_view kLockSaysIt =
    "the lock says what is used, whatever the hosts are; leave one out";
constexpr std::array<Conflict, 39> kConflicts = {{
    {"local_only", "hostfile", kOneSource},
    {"local_only", "hosts", kOneSource},
    {"hostfile", "hosts", kOneSource},
    {"local_only", "partition", kOneSource},
    {"hostfile", "partition", kOneSource},
    {"hosts", "partition", kOneSource},
    {"local_only", "via", "this machine needs neither SSH nor Slurm; leave --via out"},
    {"bundle", "ops", kBuildsNothing},
    {"bundle", "ops-dir", kBuildsNothing},
    {"bundle", "torch", kBuildsNothing},
    {"bundle", "jobs", kBuildsNothing},
    {"bundle", "keep-going", kBuildsNothing},
    {"bundle", "clean", kBuildsNothing},
    {"clean", "no_clean", "--clean empties the build cache, -n keeps it; choose one"},
    {"deepspeed", "package", kOnePayload},
    {"deepspeed", "ops-dir", kOnePayload},
    {"package", "ops-dir", kOnePayload},
    {"deepspeed", "bundle", kBuildsNothing},
    {"package", "bundle", kBuildsNothing},
    {"bundle", "with-deps", "a bundle has what was put into it; give --with-deps to build"},
    {"deepspeed", "torch", kTorchOfPython},
    {"package", "torch", kTorchOfPython},
    {"package", "ops", kOnePayload},
    {"package", "drop-in", "the ops stand in for those of DeepSpeed; install it with --deepspeed"},
    {"deepspeed", "keep-going", "a package is one piece; leave an op out with DS_BUILD_<OP>=0"},
    {"package", "keep-going", "a package is one piece"},
    {"deepspeed", "env", kOpsAlone},
    {"package", "env", kOpsAlone},
    {"bundle", "env", kBuildsNothing},
    {"lock", "hostfile", kLockSaysIt},
    {"lock", "hosts", kLockSaysIt},
    {"lock", "local_only", kLockSaysIt},
    {"lock", "partition", kLockSaysIt},
    {"lock", "torch", kLockSaysIt},
    {"lock", "debian-packages", kLockSaysIt},
    {"lock", "output", "the lock is there already; leave -o out"},
    {"lock", "conda", "what conda is told follows from the hosts; leave --lock out"},
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
