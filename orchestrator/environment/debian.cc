#include "orchestrator/environment/debian.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/lock_folder.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr auto kListTime = 5min;
constexpr auto kFetchTime = 30min;
constexpr const char* kKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg";

// What apt says last is what went wrong.
std::string apt_error(const ProcessResult& ran) {
  std::string first;
  std::istringstream lines(ran.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("E: ")) return line.substr(3);
    if (first.empty()) first = line;
  }
  return first.empty() ? "it fails without a word" : first;
}

// "libcrypt1_1%3a4.4.18-4_amd64.deb" → libcrypt1, 1:4.4.18-4.
LockedPackage package_of_file(const std::string& file) {
  const std::size_t one = file.find('_');
  const std::size_t two = file.rfind('_');
  if (one == std::string::npos || two <= one) return {};
  std::string version = file.substr(one + 1, two - one - 1);
  for (std::size_t at = 0; (at = version.find("%3a", at)) != std::string::npos;) {
    version.replace(at, 3, ":");
  }
  return {file.substr(0, one), version, ""};
}

// How this machine's apt reaches the world: proxies, time limits. The rest of its configuration is
// about this system.
std::string ways_of_this_machine(ProcessRunner& processes, std::stop_token stop) {
  auto ran = processes.run({{"apt-config", "dump", "Acquire"}, {}, {}}, Deadline::after(30s), stop);
  if (!ran || !ran->ok()) return "";
  std::string kept;
  std::istringstream lines(ran->out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Acquire::") && !line.starts_with("Acquire::IndexTargets") &&
        !line.starts_with("Acquire::Languages") && !line.starts_with("Acquire::Gzip")) {
      kept += line + "\n";
    }
  }
  return kept;
}

Result<std::string> mirror_of_this_machine(ProcessRunner& processes, std::stop_token stop) {
  auto ran =
      processes.run({{"apt-get", "update", "--print-uris"}, {}, {}}, Deadline::after(30s), stop);
  if (!ran) {
    return fail_with_help(
        "apt is not on this machine, and it fetches the packages of a Debian root",
        "build on a Debian or Ubuntu machine, or with conda: --conda FILE");
  }
  std::string mirror = mirror_in(ran->out);
  if (mirror.empty()) {
    return fail_with_help("the apt of this machine knows no mirror of Debian",
                          "name one with --mirror URL");
  }
  return mirror;
}

std::string configuration(const fs::path& folder, const std::string& architecture,
                          const std::string& ways) {
  const std::string at = folder.string();
  return ways + fmt::format(R"(Dir "{0}";
Dir::Etc "{0}/etc";
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::parts "-";
Dir::Etc::main "-";
Dir::Etc::preferences "{0}/preferences";
Dir::Etc::preferencesparts "-";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::State "{0}/state";
Dir::State::status "{0}/status";
Dir::Cache "{0}/cache";
Dir::Log "{0}/log";
APT::Architecture "{1}";
APT::Architectures {{ "{1}"; }};
APT::Install-Recommends "false";
Acquire::Languages "none";
APT::Sandbox::User "{2}";
)",
                            at, architecture, ::geteuid() == 0 ? "root" : "");
}

std::string sources_of(const DebianBase& base, const std::string& mirror) {
  std::string text;
  for (std::string_view suite : {base.suite, base.later}) {
    if (!suite.empty()) {
      text += fmt::format("deb [signed-by={}] {} {} main\n", kKeyring, mirror, suite);
    }
  }
  return text;
}

// Of the later release nothing but what is named.
std::string preferences_of(const DebianBase& base) {
  if (base.later.empty()) return "";
  std::string names;
  for (std::string_view name : base.from_later) names += fmt::format(" {}", name);
  return fmt::format(
      "Package:{}\nPin: release n={}\nPin-Priority: 990\n\n"
      "Package: *\nPin: release n={}\nPin-Priority: -1\n",
      names, base.later, base.later);
}

}  // namespace

std::vector<std::string> packages_for(const DebianBase& base, int compiler, bool torch,
                                      const std::vector<std::string>& more) {
  std::vector<std::string> names = {"base-files",
                                    "bash",
                                    "coreutils",
                                    "dash",
                                    "diffutils",
                                    "findutils",
                                    "grep",
                                    "libc-bin",
                                    "sed",
                                    "tar",
                                    fmt::format("g++-{}", compiler),
                                    "ninja-build",
                                    "libaio-dev",
                                    "liburing-dev"};
  if (base.cmake) names.emplace_back("cmake");
  // Its headers include pybind11's.
  if (torch) names.insert(names.end(), {"libtorch-dev", "pybind11-dev"});
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

std::string mirror_in(const std::string& uris) {
  // 'http://mirror/debian/dists/bookworm/InRelease' name 0
  std::istringstream lines(uris);
  for (std::string line; std::getline(lines, line);) {
    std::string mirror = first_match(
        line,
        R"('([a-z]+:\S+)/dists/(?:bullseye|bookworm|trixie|forky|sid|(?:old)*stable|testing)/InRelease')");
    if (!mirror.empty()) return mirror;
  }
  return "";
}

Result<DebianArchive> DebianArchive::open(const DebianBase& base, const std::string& architecture,
                                          const std::string& mirror, const fs::path& cache,
                                          ProcessRunner& processes, Progress& progress,
                                          std::stop_token stop) {
  std::string from = mirror;
  if (from.empty()) {
    DSI_TRY(from, mirror_of_this_machine(processes, stop));
  }
  if (from.find_first_of(" \t\n[]'\"") != std::string::npos || from.find(":/") == from.npos) {
    return fail_with_help(fmt::format("{} is no address of a mirror", printable(from)),
                          "name one like apt has it: http://mirror/debian, file:/srv/debian");
  }
  if (!fs::exists(kKeyring)) {
    return fail_with_help(fmt::format("the keys of Debian's archive are not there: {}", kKeyring),
                          "install them: apt-get install debian-archive-keyring");
  }
  fs::path folder =
      cache / "environments/apt" /
      fmt::format("{}-{}-{}", base.suite, architecture, sha256_hex(from).substr(0, 8));
  std::error_code error;
  for (const char* part : {"etc", "state/lists/partial", "cache/archives/partial", "log"}) {
    fs::create_directories(folder / part, error);
    if (error) return fail("cannot make {}: {}", (folder / part).string(), error.message());
  }
  // Two runs at once would give each other half a list.
  DSI_TRY(UniqueFd lock, lock_folder(folder / "lock", progress, stop));
  DSI_CHECK(write_file_atomically(
      folder / "apt.conf",
      configuration(folder, architecture, ways_of_this_machine(processes, stop))));
  DSI_CHECK(write_file_atomically(folder / "sources.list", sources_of(base, from)));
  DSI_CHECK(write_file_atomically(folder / "preferences", preferences_of(base)));
  DSI_CHECK(write_file_atomically(folder / "status", ""));
  DebianArchive archive(folder, from, processes, stop);
  progress.update("Reading", fmt::format("the lists of {} on {}", base.suite, from));
  DSI_TRY(ProcessResult ran, archive.apt({"apt-get", "update", "-q", "--error-on=any"}));
  if (!ran.ok()) {
    return fail_with_help(fmt::format("Debian {} cannot be read from the mirror {}: {}", base.suite,
                                      from, printable(apt_error(ran))),
                          "name another one with --mirror URL");
  }
  return archive;
}

Result<ProcessResult> DebianArchive::apt(std::vector<std::string> argv,
                                         const fs::path& folder) const {
  return processes_
      ->run({std::move(argv),
             folder,
             {{"APT_CONFIG", (folder_ / "apt.conf").string()}, {"LC_ALL", "C.UTF-8"}},
             {}},
            Deadline::after(folder.empty() ? kListTime : kFetchTime), stop_)
      .map_error(in("while asking apt for packages"));
}

// Sets the digests, from the lists.
Result<void> DebianArchive::look_up(std::vector<LockedPackage>& packages) const {
  std::vector<std::string> argv = {"apt-cache", "show", "--no-all-versions"};
  for (const LockedPackage& package : packages) {
    argv.push_back(package.name + "=" + package.version);
  }
  DSI_TRY(ProcessResult ran, apt(argv));
  std::map<std::pair<std::string, std::string>, std::string> digests;
  std::string name;
  std::string version;
  std::istringstream lines(ran.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Package: ")) name = line.substr(9);
    if (line.starts_with("Version: ")) version = line.substr(9);
    if (line.starts_with("SHA256: ")) digests[{name, version}] = line.substr(8);
  }
  for (LockedPackage& package : packages) {
    package.sha256 = digests[{package.name, package.version}];
  }
  return {};
}

Result<std::vector<LockedPackage>> DebianArchive::resolve(
    const std::vector<std::string>& names) const {
  std::vector<std::string> argv = {"apt-get", "install", "--print-uris", "-y", "-qq", "--"};
  argv.insert(argv.end(), names.begin(), names.end());
  DSI_TRY(ProcessResult ran, apt(argv));
  if (!ran.ok()) {
    return fail_with_help(
        fmt::format("the packages of the environment cannot be chosen from {}: {}", mirror_,
                    printable(apt_error(ran))),
        "check the names after --packages; --mirror URL names another mirror");
  }
  std::vector<LockedPackage> packages;
  std::istringstream lines(ran.out);
  for (std::string line; std::getline(lines, line);) {
    // 'http://…/dash_0.5.11_amd64.deb' dash_0.5.11_amd64.deb 1234 MD5Sum:…
    LockedPackage package = package_of_file(first_match(line, R"(^'[^']*' (\S+\.deb) )"));
    if (!package.name.empty()) packages.push_back(std::move(package));
  }
  std::sort(packages.begin(), packages.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  DSI_CHECK(look_up(packages));
  for (const LockedPackage& package : packages) {
    if (package.sha256.empty()) {
      return fail("the lists of {} give no digest of {} {}", mirror_, package.name,
                  package.version);
    }
  }
  return packages;
}

Result<void> DebianArchive::fetch(const std::vector<LockedPackage>& packages,
                                  const fs::path& folder) const {
  std::vector<LockedPackage> offered = packages;
  DSI_CHECK(look_up(offered));
  std::vector<std::string> argv = {"apt-get", "download", "-q"};
  for (std::size_t i = 0; i < packages.size(); ++i) {
    const LockedPackage& package = packages[i];
    if (offered[i].sha256 != package.sha256) {
      return fail_with_help(
          offered[i].sha256.empty()
              ? fmt::format("{} {} of the lock is not on the mirror {} any more", package.name,
                            package.version, mirror_)
              : fmt::format("{} {} on the mirror {} is not the one of the lock: its SHA-256 is {}, "
                            "and was {}",
                            package.name, package.version, mirror_, offered[i].sha256,
                            package.sha256),
          "name a mirror that keeps old versions with --mirror URL (snapshot.debian.org does), or "
          "make a new lock");
    }
    argv.push_back(package.name + "=" + package.version);
  }
  std::error_code error;
  const fs::path fresh = folder / fmt::format("new.{}", ::getpid());
  fs::create_directories(fresh, error);
  if (error) return fail("cannot make {}: {}", fresh.string(), error.message());
  DSI_TRY(ProcessResult ran, apt(argv, fresh));
  if (!ran.ok()) {
    fs::remove_all(fresh, error);
    return fail_with_help(
        fmt::format("cannot fetch packages from {}: {}", mirror_, printable(apt_error(ran))),
        "try again; --mirror URL names another mirror");
  }
  std::map<std::string, fs::path> files;
  for (fs::directory_iterator it(fresh, error), end; !error && it != end; it.increment(error)) {
    const LockedPackage package = package_of_file(it->path().filename().string());
    files[package.name + "=" + package.version] = it->path();
  }
  for (const LockedPackage& package : packages) {
    const fs::path& file = files[package.name + "=" + package.version];
    DSI_TRY(std::string digest, sha256_file(file));
    if (digest != package.sha256) {
      return fail("{} {} arrived damaged: its SHA-256 is {}", package.name, package.version,
                  digest);
    }
    fs::rename(file, folder / (digest + ".deb"), error);
    if (error) return fail("cannot keep {}: {}", file.string(), error.message());
  }
  fs::remove_all(fresh, error);
  return {};
}

}  // namespace dsi
