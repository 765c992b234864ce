#include "orchestrator/agent/prefix.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "orchestrator/agent/busy.h"
#include "orchestrator/agent/facts.h"
#include "orchestrator/agent/hold.h"
#include "orchestrator/agent/incoming.h"
#include "orchestrator/agent/nodes.h"
#include "orchestrator/agent/release.h"
#include "orchestrator/agent/remembered.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"

namespace dsi::agent {

using nlohmann::json;

namespace {

constexpr std::size_t kHistory = 20;
// An upload or an agent that is put into the store before its lock is taken is left alone for so
// long: another run may be about to start it.
constexpr std::time_t kUploadAge = 3600;

std::string text_of(const json& object, const char* key) {
  auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// An object, whatever lies there: the state is a record, and a damaged one must stop nobody.
json read_state(const Folder& root) {
  auto text = root.read_file("state.json");
  json state = text ? json::parse(*text, nullptr, false) : json();
  return state.is_object() ? state : json::object();
}

std::string read_current(const Folder& root) {
  char target[256];
  ssize_t n = ::readlinkat(root.fd(), "current", target, sizeof target);
  std::string_view text(target, n > 0 ? static_cast<std::size_t>(n) : 0);
  constexpr std::string_view kStart = "releases/";
  if (!text.starts_with(kStart)) return {};
  text.remove_prefix(kStart.size());
  return is_release_id(text) ? std::string(text) : std::string();
}

bool is_release(const Folder& releases, const std::string& id) {
  struct stat status {};
  return is_release_id(id) && releases.status(id, status) && S_ISDIR(status.st_mode);
}

Releases find_releases(const Folder& root, const Folder& releases) {
  Releases there;
  there.current = read_current(root);
  if (!is_release(releases, there.current)) there.current.clear();
  json state = read_state(root);
  std::string recorded = text_of(state, "current");
  // A run that was killed between the switch and the record of it went from what is recorded.
  std::string previous = recorded == there.current ? text_of(state, "previous") : recorded;
  if (is_release(releases, previous) && previous != there.current) there.previous = previous;
  return there;
}

bool is_store_name(std::string_view name) {
  for (std::string_view suffix : {".x", ".lzma"}) {
    if (name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
      break;
    }
  }
  return is_digest(name);
}

bool is_young(const struct stat& status) {
  return status.st_ctime > std::time(nullptr) - kUploadAge;
}

json read_holder(const Folder& root) {
  auto text = root.read_file("lock");
  return text ? json::parse(*text, nullptr, false) : json();
}

std::string describe_holder(const Folder& root) {
  json holder = read_holder(root);
  if (!holder.is_object()) return "another run";
  return fmt::format("run {} of {} (process {}, since {})", text_of(holder, "run"),
                     text_of(holder, "by"), holder.value("pid", json(0)).dump(),
                     text_of(holder, "time"));
}

// True if the lock is held for another host of the same run: hosts that share this prefix, a home
// folder on NFS above all. One of them writes and the others wait their turn, however many they
// are.
bool is_held_by_own_run(const Folder& root, const Requester& requester) {
  json holder = read_holder(root);
  return holder.is_object() && text_of(holder, "run") == requester.run;
}

// Waits for the lock. The file may be removed by an uninstall while it is waited for: then what was
// locked is no longer what others will lock.
Result<UniqueFd> take_lock(const Folder& root, const Requester& requester,
                           std::chrono::seconds wait, Wire& wire) {
  Deadline deadline = Deadline::after(wait);
  for (;;) {
    UniqueFd fd(::openat(root.fd(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd) return fail_system(errno, fmt::format("cannot open {}", root.path_of("lock")));
    while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) {
        return fail_system(errno, fmt::format("cannot lock {}", root.path_of("lock")));
      }
      if (deadline.passed() && is_held_by_own_run(root, requester)) {
        // A sign of life for the head, which has a deadline of its own.
        if (!wire.send("stage", {{"stage", "waiting"}})) return fail("the head left");
        deadline = Deadline::after(wait);
      }
      if (deadline.passed()) {
        return fail_with_help(fmt::format("{} is locked by {}", root.path(), describe_holder(root)),
                              "wait for that run to end, or give more time for the lock");
      }
      auto step = std::min(deadline.left(), std::chrono::milliseconds(100));
      if (wire.head_left(step)) return fail("the head left while waiting for the lock");
    }
    struct stat held {};
    struct stat named {};
    if (::fstat(fd.get(), &held) != 0 || !root.status("lock", named) ||
        held.st_ino != named.st_ino || held.st_dev != named.st_dev) {
      continue;
    }
    std::string text =
        json{{"run", requester.run}, {"by", requester.by}, {"pid", ::getpid()}, {"time", utc_now()}}
            .dump(-1, ' ', false, json::error_handler_t::replace) +
        "\n";
    // Who holds it is for people: on a full disk the lock is a lock without it.
    if (::ftruncate(fd.get(), 0) == 0) (void)write_all(fd.get(), text);
    return fd;
  }
}

}  // namespace

Releases find_releases(const std::string& prefix) {
  auto root = Folder::open(prefix);
  if (!root) return {};
  auto releases = root->folder("releases");
  return releases ? find_releases(*root, *releases) : Releases{};
}

std::vector<std::string> list_releases(const std::string& prefix) {
  const Releases there = find_releases(prefix);
  std::vector<std::string> all;
  for (const std::string& id : {there.current, there.previous}) {
    if (!id.empty()) all.push_back(id);
  }
  auto root = Folder::open(prefix);
  auto releases = root ? root->folder("releases") : tl::unexpected<Error>(Error{});
  auto names = releases ? releases->names() : tl::unexpected<Error>(Error{});
  if (!names) return all;
  for (const std::string& name : *names) {
    if (is_release(*releases, name) && name != there.current && name != there.previous) {
      all.push_back(name);
    }
  }
  return all;
}

std::string utc_now() {
  return utc_text(std::time(nullptr));
}

std::string utc_text(std::time_t time) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

bool is_digest(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string store_name(const std::string& digest, mode_t mode) {
  return (mode & 0100) != 0 ? digest + ".x" : digest;
}

const std::string& own_digest() {
  static const std::string kDigest = sha256_file("/proc/self/exe").value_or("");
  return kDigest;
}

Result<Prefix> Prefix::lock(const std::string& path, const Requester& requester,
                            std::chrono::seconds wait, Wire& wire) {
  for (;;) {
    DSI_TRY(Folder root, Folder::make(path));
    auto locked = take_lock(root, requester, wait, wire);
    if (!locked) {
      // An uninstall may have removed the whole prefix between the two steps.
      if (::access(path.c_str(), F_OK) != 0) continue;
      return tl::unexpected<Error>(locked.error());
    }
    DSI_TRY(Folder store, root.make_folder("store"));
    DSI_TRY(Folder releases, root.make_folder("releases"));
    struct stat status {};
    if (root.status("current", status) && !S_ISLNK(status.st_mode)) {
      return fail_with_help(fmt::format("{} is no symbolic link", root.path_of("current")),
                            "this program did not make it: move it away");
    }
    Prefix prefix(std::move(root), std::move(store), std::move(releases), *std::move(locked),
                  requester);
    prefix.there_ = find_releases(prefix.root_, prefix.releases_);
    prefix.remove_leftovers();
    return prefix;
  }
}

Prefix::~Prefix() {
  // The lock ends with the descriptor; an empty file says that nobody holds it.
  if (lock_ && ::ftruncate(lock_.get(), 0) != 0) lock_.reset();
}

void Prefix::remove_leftovers() {
  // What cannot be removed (an immutable file) is in nobody's way until its very name is needed,
  // and then the error names it.
  for (const char* name : {"current.partial", "state.json.partial", "probes.json.partial",
                           "hold.json.partial", "nodes.json.partial"}) {
    (void)root_.remove(name);
  }
  for (const Folder* folder : {&store_, &releases_}) {
    auto names = folder->names();
    if (!names) continue;
    for (const std::string& name : *names) {
      struct stat status {};
      if (!folder->status(name, status)) continue;
      bool old_upload = folder == &store_ && name.ends_with(".upload") && !is_young(status);
      if (name.ends_with(".partial") || old_upload) (void)folder->remove(name);
    }
  }
  remove_incoming_but(root_, {});
}

Result<void> Prefix::check_space(std::uint64_t bytes, std::uint64_t inodes) const {
  Space space = space_at(root_.path());
  std::uint64_t needed = bytes + bytes / 10 + (1 << 20);
  if (space.bytes < needed) {
    return fail_with_help(fmt::format("{} has {} bytes free; the release needs {}", root_.path(),
                                      with_commas(space.bytes), with_commas(needed)),
                          "free space there, or choose another folder with --prefix");
  }
  if (space.inodes < inodes) {
    return fail_with_help(fmt::format("{} has {} inodes free; the release needs {}", root_.path(),
                                      with_commas(space.inodes), with_commas(inodes)),
                          "remove files there, or choose another folder with --prefix");
  }
  return {};
}

Result<void> Prefix::drop_incoming() {
  return root_.remove(kIncomingFolder);
}

Result<void> Prefix::switch_to(const std::string& id) {
  // Before the switch: killed after it, nobody would know. On a disk of its own a node sees all who
  // use it, and may go back to what it had though the disk is full.
  Nodes nodes = Nodes::read(root_);
  nodes.add_to_all(id);
  if (auto written = nodes.write(root_); !written && nodes.is_shared()) return written;
  std::string target = "releases/" + id;
  DSI_CHECK(root_.remove("current.partial"));
  if (::symlinkat(target.c_str(), root_.fd(), "current.partial") != 0) {
    return fail_system(errno, fmt::format("cannot make a link in {}", root_.path()));
  }
  if (auto renamed = root_.rename("current.partial", root_, "current"); !renamed) {
    (void)root_.remove("current.partial");
    return renamed;
  }
  if (!there_.current.empty() && there_.current != id) {
    there_.previous = there_.current;
  } else if (there_.previous == id) {
    there_.previous.clear();
  }
  there_.current = id;
  return root_.sync();
}

Result<void> Prefix::leave_current() {
  if (!root_.exists("current")) return {};
  DSI_CHECK(root_.rename("current", root_, "current.partial"));
  if (!there_.current.empty()) there_.previous = there_.current;
  there_.current.clear();
  DSI_CHECK(root_.remove("current.partial"));
  return root_.sync();
}

Result<void> Prefix::record(const std::string& action, const std::string& from,
                            const std::string& to) {
  json history = read_state(root_).value("history", json::array());
  if (!history.is_array()) history = json::array();
  history.push_back({{"action", action},
                     {"time", utc_now()},
                     {"run", requester_.run},
                     {"by", requester_.by},
                     {"from", from},
                     {"to", to}});
  while (history.size() > kHistory) history.erase(history.begin());
  json state = {{"schema", 1},
                {"current", there_.current},
                {"previous", there_.previous},
                {"history", std::move(history)}};
  return root_.write_file("state.json",
                          state.dump(1, ' ', false, json::error_handler_t::replace) + "\n", 0644);
}

Result<void> Prefix::remove_release(const std::string& id) {
  std::string old = id + ".old.partial";
  DSI_CHECK(releases_.remove(old));
  DSI_CHECK(releases_.rename(id, releases_, old));
  return releases_.remove(old);
}

Result<void> Prefix::drop_releases() {
  // Each thing that cannot be removed is left and the rest goes on; the first is what is told.
  Result<void> outcome;
  auto note = [&](Result<void> done) {
    if (!done && outcome) outcome = std::move(done);
  };
  DSI_TRY(std::vector<std::string> ids, releases_.names());
  std::vector<InUse> unused;
  for (const std::string& id : ids) {
    if (is_release_id(id) && id != there_.current && id != there_.previous) {
      unused.push_back(files_of_release(*this, id));
    }
  }
  // What a process opens only now and then it must still find; the next prune looks again.
  std::set<std::string> in_use;
  for (const protocol::BusyProcess& one : find_processes(unused)) in_use.insert(one.release);
  for (const std::string& id : {there_.current, there_.previous}) {
    if (!id.empty()) in_use.insert(id);
  }
  Nodes nodes = Nodes::read(root_);
  const bool known = nodes.known();
  nodes.set_own(in_use);
  if (!in_use.empty()) note(nodes.write(root_));
  for (const InUse& one : unused) {
    if (known && !nodes.may_be_used(one.name)) note(remove_release(one.name));
  }
  return outcome;
}

Result<void> Prefix::prune() {
  Result<void> outcome = drop_releases();
  auto note = [&](Result<void> removed) {
    if (!removed && outcome) outcome = std::move(removed);
  };
  DSI_TRY(std::vector<std::string> files, store_.names());
  for (const std::string& name : files) {
    struct stat status {};
    if (!is_store_name(name) || !store_.status(name, status) || status.st_nlink > 1) continue;
    bool agent = name == own_digest() + ".x" || name == own_digest() + ".lzma" ||
                 ((name.ends_with(".x") || name.ends_with(".lzma")) && is_young(status));
    if (!agent) note(store_.remove(name));
  }
  note(drop_incoming());
  return outcome;
}

void Prefix::leave_no_trace() {
  root_.remove_if_empty("releases");
  root_.remove_if_empty("store");
  root_.remove_if_empty(kIncomingFolder);
  if (root_.exists(kIncomingFolder) || root_.exists("store") || root_.exists("releases") ||
      root_.exists("state.json") || root_.exists("current") || root_.exists(kHoldName)) {
    return;
  }
  (void)root_.remove(kNodesName);
  (void)root_.remove("lock");
  ::rmdir(root_.path().c_str());
}

Result<void> Prefix::remove_all() {
  struct stat status {};
  if (root_.status("current", status)) {
    DSI_CHECK(root_.rename("current", root_, "current.partial"));
    DSI_CHECK(root_.remove("current.partial"));
    DSI_CHECK(root_.sync());
  }
  // Only what bears a name that this program gives: the prefix may be a folder that others use.
  DSI_TRY(std::vector<std::string> ids, releases_.names());
  for (const std::string& id : ids) {
    if (id.ends_with(".partial")) {
      DSI_CHECK(releases_.remove(id));
    } else if (is_release_id(id)) {
      DSI_CHECK(remove_release(id));
    }
  }
  DSI_TRY(std::vector<std::string> files, store_.names());
  for (const std::string& name : files) {
    if (is_store_name(name) || name.ends_with(".partial") || name.ends_with(".upload")) {
      DSI_CHECK(store_.remove(name));
    }
  }
  DSI_CHECK(drop_incoming());
  DSI_CHECK(root_.remove(kRememberedName));
  DSI_CHECK(root_.remove("state.json"));
  DSI_CHECK(root_.remove(kHoldName));
  DSI_CHECK(root_.remove(kNodesName));
  there_ = {};
  leave_no_trace();
  return {};
}

}  // namespace dsi::agent
