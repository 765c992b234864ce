#pragma once

// What a run leaves behind: $XDG_STATE_HOME/ds-install/runs/<id>/ with plan.json, report.jsonl,
// swarm.json and hosts/<name>.log. No secret is ever in one: nothing is written here that was not
// said to a host in the clear of the protocol, and that holds no key and no password.

#include <filesystem>
#include <string>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/distribute/swarm.h"
#include "orchestrator/report.h"

namespace dsi {

// Of the clock (UTC, to the millisecond) and of chance: "20261130-141502-042-3f9c". Ids sort as the
// runs of one head followed on one another; "last" and "the one before" stand on that.
std::string new_run_id();

// There is a record of the run here, and the run has ended, in whatever way.
bool run_is_over(const std::filesystem::path& state, const std::string& run);

class Record {
 public:
  // Makes the folder, and holds a lock in it as long as this lives.
  static Result<Record> create(const std::filesystem::path& state, const std::string& run);

  Result<void> write_plan(const std::string& json) const;
  Result<void> write_transcript(const std::string& host,
                                const std::vector<std::string>& lines) const;
  Result<void> write_report(const RunReport& report) const;
  // swarm.json: what hosts exchanged.
  Result<void> write_swarms(const std::vector<distribute::SwarmStory>& stories) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  Record(std::filesystem::path folder, UniqueFd lock)
      : folder_(std::move(folder)), lock_(std::move(lock)) {}
  std::filesystem::path folder_;
  UniqueFd lock_;
};

}  // namespace dsi
