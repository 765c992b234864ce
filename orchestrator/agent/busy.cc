#include "orchestrator/agent/busy.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "orchestrator/agent/facts.h"
#include "orchestrator/agent/release.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/file.h"

namespace dsi::agent {

namespace fs = std::filesystem;
using protocol::BusyProcess;
using protocol::HostResult;

namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 1s;
constexpr auto kSayEvery = 5s;
constexpr std::size_t kMostNamed = 3;
// A command line may hold anything; its beginning tells which program it is.
constexpr std::size_t kMostOfCommand = 80;

// Names in a folder of /proc; none if it is gone or not ours to look at.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
  if (!stream) return names;
  while (const dirent* entry = ::readdir(stream.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

std::string target_of(const std::string& link) {
  char target[4096];
  const ssize_t n = ::readlink(link.c_str(), target, sizeof target);
  return std::string(target, n > 0 ? static_cast<std::size_t>(n) : 0);
}

bool lies_in(std::string_view path, std::string_view folder) {
  if (!path.starts_with(folder)) return false;
  path.remove_prefix(folder.size());
  // A file that has lost its name is shown with " (deleted)".
  return path.empty() || path[0] == '/' || path == " (deleted)";
}

// Marks those of `all` that have something to do with `path`.
void mark(std::string_view path, const std::vector<InUse>& all, std::set<std::size_t>& marked) {
  if (!path.starts_with('/')) return;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::string& folder : all[i].folders) {
      if (lies_in(path, folder)) marked.insert(i);
    }
  }
}

// /proc/PID/maps: address, rights, offset, device, inode, and behind spaces the path.
void mark_mapped(const std::string& maps, const std::vector<InUse>& all,
                 std::set<std::size_t>& marked) {
  std::string_view before;
  for (std::string_view rest = maps; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::size_t slash = line.find('/');
    if (slash == line.npos) continue;
    const std::string_view path = line.substr(slash);
    // A library is mapped in four or five pieces, one after the other.
    if (path != before) mark(path, all, marked);
    before = path;
  }
}

std::string command_of(const std::string& process) {
  std::string text = read_file(process + "/cmdline").value_or("");
  while (text.ends_with('\0')) text.pop_back();
  if (text.empty()) {
    text = read_file(process + "/comm").value_or("");
    while (text.ends_with('\n')) text.pop_back();
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (text.size() > kMostOfCommand) text = text.substr(0, kMostOfCommand - 3) + "...";
  return text;
}

std::string release_of(const std::vector<BusyProcess>& processes) {
  const std::string& name = processes.front().release;
  return is_release_id(name) ? "release " + name : name;
}

tl::unexpected<Error> busy(const protocol::Care& care, HostResult& result) {
  result.result = "busy";
  return fail_with_help(
      describe(result.processes) + "; nothing was changed",
      care.busy == "wait"
          ? fmt::format("they did not end within {} s (--busy-limit, or the rest of the window)",
                        care.busy_limit_s)
          : std::string("--busy wait waits for their end, --busy proceed does not"));
}

}  // namespace

InUse files_of_release(const Prefix& prefix, const std::string& id) {
  if (id.empty()) return {};
  std::error_code error;
  const fs::path folder = fs::canonical(prefix.releases().path_of(id), error);
  return {id, error ? std::vector<std::string>() : std::vector<std::string>{folder.string()}};
}

InUse files_of_package(const std::string& site, const std::string& package) {
  InUse files{package, {}};
  for (const std::string& entry : names_in(site)) {
    if (!entry.ends_with(".dist-info")) continue;
    // "My.Package-1.2.dist-info" is of my-package.
    std::string name = entry.substr(0, entry.find('-'));
    for (char& c : name) {
      if (c == '_' || c == '.') c = '-';
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    if (name != package) continue;
    const std::string record = read_file(site + "/" + entry + "/RECORD").value_or("");
    std::set<std::string> tops;
    for (std::string_view rest = record; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      const std::string top(line.substr(0, line.find_first_of("/,")));
      if (!top.empty() && top != ".." && top != "." && top[0] != '"') tops.insert(top);
    }
    for (const std::string& top : tops) files.folders.push_back(site + "/" + top);
  }
  return files;
}

std::vector<BusyProcess> find_processes(const std::vector<InUse>& all) {
  std::vector<BusyProcess> found;
  const bool anything =
      std::any_of(all.begin(), all.end(), [](const InUse& one) { return !one.folders.empty(); });
  if (!anything) return found;
  std::vector<int> pids;
  for (const std::string& name : names_in("/proc")) {
    int pid = 0;
    auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    const bool number = error == std::errc{} && end == name.data() + name.size();
    if (number && pid != ::getpid()) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  for (int pid : pids) {
    const std::string process = "/proc/" + std::to_string(pid);
    std::set<std::size_t> marked;
    for (const char* link : {"/exe", "/cwd", "/root"}) {
      mark(target_of(process + link), all, marked);
    }
    mark_mapped(read_file(process + "/maps").value_or(""), all, marked);
    for (const std::string& number : names_in(process + "/fd")) {
      mark(target_of(process + "/fd/" + number), all, marked);
    }
    struct stat status {};
    // It may have ended meanwhile.
    if (marked.empty() || ::stat(process.c_str(), &status) != 0) continue;
    for (std::size_t i : marked) {
      found.push_back({pid, name_of_user(status.st_uid), command_of(process), all[i].name});
    }
  }
  return found;
}

std::string describe(const std::vector<BusyProcess>& processes) {
  if (processes.empty()) return "";
  std::string text = fmt::format("{} process{} files of {}: ", processes.size(),
                                 processes.size() == 1 ? " has" : "es have", release_of(processes));
  const std::size_t named = std::min(processes.size(), kMostNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const BusyProcess& one = processes[i];
    text += fmt::format("{}{} {} {}", i == 0 ? "" : ", ", one.pid, one.user, one.command);
  }
  if (named < processes.size()) text += fmt::format(", and {} more", processes.size() - named);
  return text;
}

Result<void> spare(const protocol::Care& care, const InUse& files, HostResult& result) {
  if (care.busy != "skip") return {};
  result.processes = find_processes({files});
  return result.processes.empty() ? Result<void>() : busy(care, result);
}

Result<void> give_way(const protocol::Care& care, const InUse& files, Wire& wire,
                      HostResult& result) {
  const Deadline limit = Deadline::after(std::chrono::seconds(care.busy_limit_s));
  Deadline silence = Deadline::after(0s);
  for (;;) {
    result.processes = find_processes({files});
    if (result.processes.empty() || care.busy == "proceed") return {};
    if (care.busy != "wait" || limit.passed()) break;
    if (silence.passed()) {
      // A sign of life for the head, which may say that it waits no longer by leaving.
      wire.send("stage", {{"stage", "busy"}, {"what", describe(result.processes)}});
      silence = Deadline::after(kSayEvery);
    }
    if (wire.head_left(std::min<std::chrono::milliseconds>(kLookEvery, limit.left()))) {
      return fail("the head left before the switch");
    }
  }
  return busy(care, result);
}

}  // namespace dsi::agent
