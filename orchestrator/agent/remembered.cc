#include "orchestrator/agent/remembered.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"

extern char** environ;

namespace dsi::agent {

using nlohmann::json;

namespace {

constexpr int kSchema = 1;
// Coarser than any file system's clock.
constexpr std::chrono::seconds kSettled{2};

std::string text_at(const char* path) {
  std::string text = read_file(path).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Lines of /proc/cpuinfo that say what the processor can do; each once. Others change by the
// second.
std::string processor() {
  static constexpr std::string_view kKeys[] = {"vendor_id", "cpu family",      "model",
                                               "stepping",  "microcode",       "flags",
                                               "Features",  "CPU implementer", "CPU architecture",
                                               "CPU part",  "CPU revision"};
  std::set<std::string> lines;
  std::string all = text_at("/proc/cpuinfo");
  std::string_view rest = all;
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    for (std::string_view key : kKeys) {
      if (line.starts_with(key)) lines.emplace(line);
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  cpu_set_t set;
  int count = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return fmt::format("{} {}", count, sha256_hex(text));
}

// Without what differs from one login to the next and no library cares for. Whatever else is new
// makes for a new probe.
std::string environment() {
  static constexpr std::string_view kVolatile[] = {
      "SSH_",    "SUDO_", "XDG_",   "DBUS_",    "_=",    "SHLVL=",         "PWD=",
      "OLDPWD=", "TERM",  "LINES=", "COLUMNS=", "MAIL=", "INVOCATION_ID=", "JOURNAL_STREAM="};
  std::set<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    bool skipped = std::any_of(std::begin(kVolatile), std::end(kVolatile),
                               [&](std::string_view start) { return text.starts_with(start); });
    if (!skipped) entries.emplace(text);
  }
  std::string text;
  for (const std::string& entry : entries) text += entry + '\0';
  return sha256_hex(text);  // Not the text: there may be a secret in it.
}

std::string parent_of(const std::string& path) {
  std::size_t slash = path.find_last_of('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Of a folder that cannot be listed there are still the times.
std::uint64_t digest_of_names(const std::string& path) {
  auto folder = Folder::open(path);
  auto names = folder ? folder->names() : Result<std::vector<std::string>>();
  std::string text;
  if (names) {
    for (const std::string& name : *names) text += name + '\0';
  }
  return std::stoull(sha256_hex(text).substr(0, 16), nullptr, 16);
}

}  // namespace

Circumstances find_circumstances(const std::string& release, const std::string& library_path) {
  utsname system{};
  ::uname(&system);
  return {{"release", release},
          {"boot", text_at("/proc/sys/kernel/random/boot_id")},
          {"kernel", fmt::format("{} {}", system.release, system.version)},
          {"processor", processor()},
          {"nvidia", text_at("/proc/driver/nvidia/version")},
          {"library_path", library_path},
          {"environment", environment()},
          {"user", std::to_string(::geteuid())}};
}

Stamp stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  // Looked at after its times: what changes in between makes those of the next look others.
  std::uint64_t identity = S_ISDIR(status.st_mode) ? digest_of_names(path) : status.st_ino;
  return {status.st_dev, identity, static_cast<std::uint64_t>(status.st_size),
          nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

std::string to_json(const Remembered& remembered) {
  json files = json::array();
  std::map<std::string_view, std::size_t> number_of;
  for (const auto& [path, stamp] : remembered.stamps) {
    number_of[path] = number_of.size();
    files.push_back(
        {path, stamp.device, stamp.identity, stamp.size, stamp.modified, stamp.changed});
  }
  json ops = json::array();
  for (const RememberedOp& op : remembered.ops) {
    json numbers = json::array();
    for (const std::string& file : op.files) numbers.push_back(number_of.at(file));
    ops.push_back({{"op", op.op},
                   {"device", op.device},
                   {"detail", op.detail},
                   {"time", op.time},
                   {"files", std::move(numbers)}});
  }
  json all = {{"schema", kSchema},
              {"circumstances", remembered.circumstances},
              {"files", std::move(files)},
              {"ops", std::move(ops)}};
  // A name that is no UTF-8 is replaced, is not found again, and so costs a probe.
  return all.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<Remembered> parse_remembered(std::string_view text) {
  try {
    json all = json::parse(text);
    if (all.at("schema") != kSchema) return std::nullopt;
    Remembered remembered;
    all.at("circumstances").get_to(remembered.circumstances);
    std::vector<std::string> paths;
    for (const json& file : all.at("files")) {
      if (file.size() != 6) return std::nullopt;
      paths.push_back(file.at(0).get<std::string>());
      remembered.stamps[paths.back()] = {
          file.at(1).get<std::uint64_t>(), file.at(2).get<std::uint64_t>(),
          file.at(3).get<std::uint64_t>(), file.at(4).get<std::int64_t>(),
          file.at(5).get<std::int64_t>()};
    }
    for (const json& op : all.at("ops")) {
      RememberedOp one{op.at("op").get<std::string>(),
                       op.at("device").get<std::string>(),
                       op.at("detail").get<std::string>(),
                       op.at("time").get<std::string>(),
                       {}};
      for (const json& number : op.at("files")) {
        one.files.push_back(paths.at(number.get<std::size_t>()));
      }
      // An op rests on something, if only on the C library: a list that is empty was cut.
      if (one.files.empty()) return std::nullopt;
      remembered.ops.push_back(std::move(one));
    }
    return remembered;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<RememberedOp> still_true(const Remembered& then, const Circumstances& now,
                                     const Stamper& now_at) {
  auto boot = now.find("boot");
  if (then.circumstances != now || boot == now.end() || boot->second.empty()) return {};
  std::set<std::string_view> changed;
  for (const auto& [path, stamp] : then.stamps) {
    if (now_at(path) != stamp) changed.insert(path);
  }
  std::vector<RememberedOp> same;
  for (const RememberedOp& op : then.ops) {
    bool all = std::none_of(op.files.begin(), op.files.end(), [&](const std::string& file) {
      return changed.contains(file) || !then.stamps.contains(file);
    });
    if (all) same.push_back(op);
  }
  return same;
}

std::vector<protocol::OpRow> rows_of(const std::vector<RememberedOp>& ops) {
  std::vector<protocol::OpRow> rows;
  for (const RememberedOp& op : ops) {
    rows.push_back({op.op, "ok", op.device,
                    fmt::format("{}{}as on {}, nothing it loads has changed", op.detail,
                                op.detail.empty() ? "" : "; ", op.time)});
  }
  return rows;
}

std::vector<std::string> relevant_files(
    const std::vector<std::string>& loaded, const std::string& library_path,
    const std::function<bool(const std::string&)>& is_verified) {
  std::set<std::string> files{"/etc/ld.so.cache", "/etc/ld.so.preload"};
  for (const std::string& file : loaded) {
    files.insert(parent_of(file));
    if (!is_verified(file)) files.insert(file);
  }
  for (std::size_t at = 0; at < library_path.size();) {
    std::size_t end = std::min(library_path.find(':', at), library_path.size());
    std::string folder = library_path.substr(at, end - at);
    at = end + 1;
    // The loader looks there before it looks in the folder; an empty entry is the folder it is run
    // in, which is / for a probe.
    for (const char* inner : {"", "/glibc-hwcaps", "/glibc-hwcaps/x86-64-v2",
                              "/glibc-hwcaps/x86-64-v3", "/glibc-hwcaps/x86-64-v4"}) {
      files.insert(folder.empty() && *inner == 0 ? "/" : folder + inner);
    }
  }
  return {files.begin(), files.end()};
}

bool are_settled(const std::vector<std::string>& files, std::chrono::system_clock::time_point start,
                 const Stamper& now_at) {
  auto limit =
      std::chrono::duration_cast<std::chrono::nanoseconds>((start - kSettled).time_since_epoch())
          .count();
  return std::all_of(files.begin(), files.end(), [&](const std::string& file) {
    Stamp stamp = now_at(file);
    return stamp.changed <= limit && stamp.modified <= limit;
  });
}

}  // namespace dsi::agent
