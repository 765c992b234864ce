#pragma once

// What the last probes found, for an install that finds the host as it wants it: an op that was ok
// need not be loaded again if everything is as it was that its process had to do with. Why the
// answer is still true then, and when it is not used, is in docs/adr/0004.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/agent/folder.h"
#include "orchestrator/agent/protocol.h"

namespace dsi::agent {

inline constexpr char kRememberedName[] = "probes.json";

// What is the same for all ops: the boot, the kernel, the processor, the GPU's driver, the loader's
// search path, the environment, the user, the release. By name; compared as a whole.
using Circumstances = std::map<std::string, std::string>;
Circumstances find_circumstances(const std::string& release, const std::string& library_path);

// What a change of a file or folder changes. All zero: nothing of that name.
struct Stamp {
  std::uint64_t device = 0;
  // Of a file its inode; of a folder a digest of the names in it, which is what a search meets.
  // OverlayFS, and so a container, gives a folder another inode number whenever the kernel has
  // dropped the one before from its caches.
  std::uint64_t identity = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  // Nanoseconds since 1970.
  std::int64_t changed = 0;   // Likewise; no program can set it.
  friend bool operator==(const Stamp&, const Stamp&) = default;
};
// Links are followed: it is what a loader that opens `path` meets.
Stamp stamp_of(const std::string& path);
using Stamper = std::function<Stamp(const std::string& path)>;

struct RememberedOp {
  std::string op;
  std::string device;
  std::string detail;
  std::string time;                // When it was tried, as utc_now().
  std::vector<std::string> files;  // Files and folders; each has a stamp in Remembered.
};

struct Remembered {
  Circumstances circumstances;
  std::map<std::string, Stamp> stamps;
  std::vector<RememberedOp> ops;
};

std::string to_json(const Remembered& remembered);
// Nothing if it is not exactly what to_json writes.
std::optional<Remembered> parse_remembered(std::string_view text);

// The ops of `then` that need not be tried again, as it looks now. Pure but for `now_at`.
std::vector<RememberedOp> still_true(const Remembered& then, const Circumstances& now,
                                     const Stamper& now_at);

// Their rows, which say that they are not new.
std::vector<protocol::OpRow> rows_of(const std::vector<RememberedOp>& ops);

// The files that decide what a process which had `loaded` these would load next time: they, the
// folders they are in, the loader's configuration, and the folders that `library_path` names, in
// which a new file could come before another. Without what `is_verified` holds for: the release's
// own files, whose SHA-256 is compared every time.
std::vector<std::string> relevant_files(const std::vector<std::string>& loaded,
                                        const std::string& library_path,
                                        const std::function<bool(const std::string&)>& is_verified);

// True if every one of them was as it is for some time before `start`: a file that was changed
// while it was loaded, or so shortly before that its times cannot tell, is none to build on.
bool are_settled(const std::vector<std::string>& files, std::chrono::system_clock::time_point start,
                 const Stamper& now_at);

}  // namespace dsi::agent
