#include "orchestrator/record.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <system_error>

#include "orchestrator/base/file.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLock = "lock";

}  // namespace

bool run_is_over(const fs::path& state, const std::string& run) {
  // The id comes from outside: from the reason of a drained node.
  if (run.empty() || run.find('/') != run.npos || run.starts_with('.')) return false;
  UniqueFd lock(::open((state / "runs" / run / kLock).c_str(), O_RDWR | O_CLOEXEC));
  return lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &utc);
  const auto past = now - std::chrono::system_clock::from_time_t(seconds);
  std::random_device device;
  return fmt::format("{}-{:03}-{:04x}", text,
                     std::chrono::duration_cast<std::chrono::milliseconds>(past).count(),
                     device() & 0xffff);
}

Result<Record> Record::create(const fs::path& state, const std::string& run) {
  fs::path folder = state / "runs" / run;
  std::error_code error;
  fs::create_directories(folder / "hosts", error);
  if (error) {
    return fail_with_help(
        fmt::format("cannot keep a record in {}: {}", folder.string(), error.message()),
        "set XDG_STATE_HOME to a folder that can be written");
  }
  // Held until the process ends, so that what another run left can be told from what it still does.
  UniqueFd lock(::open((folder / kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail_errno(errno, "cannot lock the record in " + folder.string());
  }
  return Record(std::move(folder), std::move(lock));
}

Result<void> Record::write_plan(const std::string& json) const {
  return write_file_atomically(folder_ / "plan.json", json);
}

Result<void> Record::write_transcript(const std::string& host,
                                      const std::vector<std::string>& lines) const {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  // A host name was checked by the hostfile's reader: it holds no slash.
  return write_file_atomically(folder_ / "hosts" / (host + ".log"), text);
}

Result<void> Record::write_report(const RunReport& report) const {
  std::ostringstream text;
  print_report_json(text, report);
  return write_file_atomically(folder_ / "report.jsonl", text.str());
}

Result<void> Record::write_swarms(const std::vector<distribute::SwarmStory>& stories) const {
  nlohmann::json rows = nlohmann::json::array();
  for (const distribute::SwarmStory& story : stories) {
    rows.push_back({{"hosts", story.hosts},
                    {"stream_bytes", story.stream_bytes},
                    {"chunk_size", story.chunk_size},
                    {"chunks", story.chunks},
                    {"stripes", story.stripes},
                    {"depth", story.depth},
                    {"assignments", story.assignments},
                    {"repairs", story.repairs},
                    {"chunks_from_head", story.chunks_from_head},
                    {"bytes_between_nodes", story.bytes_between_nodes}});
  }
  return write_file_atomically(folder_ / "swarm.json", rows.dump(2) + "\n");
}

}  // namespace dsi
