#include "orchestrator/agent/trial.h"

#include <algorithm>
#include <filesystem>

#include "orchestrator/agent/probes.h"

namespace dsi::agent {

using protocol::OpRow;

namespace {

// A GPU may fail without a trace in any file: what is true of a device is asked of it each time.
bool may_be_remembered(const Probed& probed) {
  return probed.row.status == "ok" && probed.row.device == "cpu" && !probed.files.empty();
}

// The release's folder by the name that the probes are given and by the kernel's.
class ReleaseFiles {
 public:
  ReleaseFiles(const std::string& folder, const Manifest& manifest) : manifest_(manifest) {
    std::error_code failed;
    std::string real = std::filesystem::canonical(folder, failed).string();
    roots_.push_back(folder + "/");
    if (!failed) roots_.push_back(real + "/");
  }
  bool verified(const std::string& path) const {
    return std::any_of(roots_.begin(), roots_.end(), [&](const std::string& root) {
      return path.starts_with(root) && manifest_.find(path.substr(root.size())) != nullptr;
    });
  }
  bool inside(const std::string& path) const {
    return std::any_of(roots_.begin(), roots_.end(),
                       [&](const std::string& root) { return path.starts_with(root); });
  }

 private:
  const Manifest& manifest_;
  std::vector<std::string> roots_;
};

}  // namespace

Trial try_ops(const Prefix& prefix, const std::string& id, const Manifest& manifest,
              const protocol::InstallRequest& request, bool may_recall) {
  std::string folder = prefix.releases().path_of(id);
  Surroundings surroundings = look_around(manifest, request.torch_folders);
  Trial trial;
  Remembered& remembered = trial.remembered;
  remembered.circumstances = find_circumstances(id, surroundings.library_path);
  auto written = prefix.root().read_file(kRememberedName);
  auto then = may_recall && written ? parse_remembered(*written) : std::nullopt;
  if (then) {
    remembered.ops = still_true(*then, remembered.circumstances, stamp_of);
    for (const RememberedOp& op : remembered.ops) {
      for (const std::string& file : op.files) remembered.stamps[file] = then->stamps.at(file);
    }
  }
  trial.news = written.has_value() && (!then || remembered.ops.size() != then->ops.size());
  std::vector<OpRow> known = rows_of(remembered.ops);

  auto start = std::chrono::system_clock::now();
  std::string time = utc_now();
  std::vector<Probed> all = probe_ops(folder, manifest, {}, surroundings,
                                      std::chrono::seconds(request.probe_timeout_s), known);

  // Each file is looked at once, so that what is judged is what is written down.
  std::map<std::string, Stamp> stamps;
  auto stamp = [&](const std::string& file) {
    auto [at, is_new] = stamps.try_emplace(file);
    if (is_new) at->second = stamp_of(file);
    return at->second;
  };
  ReleaseFiles files(folder, manifest);
  for (Probed& one : all) {
    if (may_be_remembered(one)) {
      std::vector<std::string> relevant =
          relevant_files(one.files, surroundings.library_path,
                         [&](const std::string& file) { return files.verified(file); });
      std::vector<std::string> to_settle;
      for (const std::string& file : relevant) {
        // Its folders have just been made, by this program and under its lock.
        bool own_folder = files.inside(file) &&
                          std::find(one.files.begin(), one.files.end(), file) == one.files.end();
        if (!own_folder) to_settle.push_back(file);
      }
      bool usable = are_settled(to_settle, start, stamp);
      for (const std::string& file : relevant) {
        auto earlier = remembered.stamps.find(file);
        usable &= earlier == remembered.stamps.end() || earlier->second == stamp(file);
      }
      if (usable) {
        for (const std::string& file : relevant) remembered.stamps[file] = stamp(file);
        remembered.ops.push_back(
            {one.row.op, one.row.device, one.row.detail, time, std::move(relevant)});
        trial.news = true;
      }
    }
    trial.rows.push_back(std::move(one.row));
  }
  return trial;
}

Result<void> remember(const Prefix& prefix, const Trial& trial) {
  if (!trial.news) return {};
  if (trial.remembered.ops.empty()) return prefix.root().remove(kRememberedName);
  return prefix.root().write_file(kRememberedName, to_json(trial.remembered), 0644);
}

}  // namespace dsi::agent
