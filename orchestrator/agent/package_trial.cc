#include "orchestrator/agent/package_trial.h"

#include <algorithm>
#include <cstdlib>
#include <set>

namespace dsi::agent {

using nlohmann::json;
using protocol::OpRow;

namespace {

// Stands for the package itself, which is imported too: one without modules is remembered by it. No
// op has this name.
constexpr char kItself[] = "";

// The loader's, of the agent and so of what it starts.
std::string library_path() {
  const char* path = std::getenv("LD_LIBRARY_PATH");
  return path == nullptr ? "" : path;
}

// The names of the GPUs' devices: a library may do other things where there is one.
std::string devices() {
  std::string found;
  auto folder = Folder::open("/dev");
  auto names = folder ? folder->names() : Result<std::vector<std::string>>();
  if (!names) return found;
  std::sort(names->begin(), names->end());
  for (const std::string& name : *names) {
    if (name.starts_with("nvidia")) found += name + " ";
  }
  return found;
}

std::vector<std::string> paths_of(const json& by_folder) {
  std::vector<std::string> paths;
  for (const auto& [folder, names] : by_folder.items()) {
    for (const json& name : names) {
      paths.push_back((folder == "/" ? "" : folder) + "/" + name.get<std::string>());
    }
  }
  return paths;
}

}  // namespace

std::optional<RestsOn> parse_rests_on(const json& told) {
  try {
    return RestsOn{paths_of(told.at("files")), paths_of(told.at("own"))};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

Circumstances package_circumstances(const std::string& release, const std::string& python,
                                    bool drop_in) {
  Circumstances found = find_circumstances(release, library_path());
  found["python"] = python;
  found["drop_in"] = drop_in ? "yes" : "no";
  found["devices"] = devices();
  return found;
}

std::optional<std::vector<OpRow>> recall_package(const Prefix& prefix, const Circumstances& now) {
  auto written = prefix.root().read_file(kRememberedName);
  auto then = written ? parse_remembered(*written) : std::nullopt;
  if (!then || then->ops.empty()) return std::nullopt;
  std::vector<RememberedOp> same = still_true(*then, now, stamp_of);
  if (same.size() != then->ops.size()) return std::nullopt;
  std::erase_if(same, [](const RememberedOp& op) { return op.op == kItself; });
  return rows_of(same);
}

Trial package_trial(std::vector<OpRow> rows, const std::optional<RestsOn>& rests_on,
                    Circumstances circumstances, std::chrono::system_clock::time_point start) {
  Trial trial;
  trial.rows = std::move(rows);
  trial.news = true;
  Remembered& remembered = trial.remembered;
  remembered.circumstances = std::move(circumstances);
  bool well = std::all_of(trial.rows.begin(), trial.rows.end(),
                          [](const OpRow& row) { return row.status == "ok"; });
  if (!rests_on || !well) return trial;
  // Each file is looked at once, so that what is judged is what is written down.
  auto stamp = [&](const std::string& file) {
    auto [at, is_new] = remembered.stamps.try_emplace(file);
    if (is_new) at->second = stamp_of(file);
    return at->second;
  };
  std::vector<std::string> files = relevant_files({}, library_path(), {});
  files.insert(files.end(), rests_on->files.begin(), rests_on->files.end());
  if (!are_settled(files, start, stamp)) {
    remembered.stamps.clear();
    return trial;
  }
  for (const std::string& file : rests_on->own) stamp(file);
  std::vector<std::string> all;
  for (const auto& [file, at] : remembered.stamps) all.push_back(file);
  const std::string time = utc_now();
  remembered.ops.push_back({kItself, "cpu", "", time, all});
  // One process has imported them all: what one rests on, each does.
  for (const OpRow& row : trial.rows) {
    remembered.ops.push_back({row.op, row.device, row.detail, time, all});
  }
  return trial;
}

}  // namespace dsi::agent
