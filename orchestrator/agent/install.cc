#include "orchestrator/agent/install.h"

#include <unistd.h>

#include <algorithm>

#include "orchestrator/agent/busy.h"
#include "orchestrator/agent/facts.h"
#include "orchestrator/agent/hold.h"
#include "orchestrator/agent/package.h"
#include "orchestrator/agent/probes.h"
#include "orchestrator/agent/stage.h"
#include "orchestrator/agent/trial.h"

namespace dsi::agent {

using protocol::HostResult;
using protocol::OpRow;

namespace {

std::vector<OpRow> probe(const std::string& folder, const Manifest& manifest,
                         const std::vector<Damage>& damage,
                         const std::vector<std::string>& torch_folders, int timeout_s) {
  std::vector<OpRow> rows;
  for (Probed& one : probe_ops(folder, manifest, damage, look_around(manifest, torch_folders),
                               std::chrono::seconds(timeout_s))) {
    rows.push_back(std::move(one.row));
  }
  return rows;
}

Result<void> check_executable(const std::string& prefix) {
  if (space_at(prefix).no_exec) {
    return fail_with_help(
        fmt::format("{} is on a file system mounted noexec: no op can be loaded from there",
                    prefix),
        "choose another folder with --prefix, or remount it with exec");
  }
  return {};
}

// The release that is current is asked for again.
Result<void> refresh(Prefix& prefix, const protocol::InstallRequest& request, const std::string& id,
                     const Manifest& manifest, Wire& wire, HostResult& result) {
  std::vector<Damage> damage;
  {
    DSI_TRY(Folder release, prefix.releases().folder(id));
    damage = find_damage(release, manifest, request.manifest);
  }
  if (!damage.empty()) {
    DSI_CHECK(repair(prefix, id, request.manifest, manifest, damage, wire));
    send_stage(wire, "staged");
  }
  Trial trial = try_ops(prefix, id, manifest, request, damage.empty());
  result.ops = trial.rows;
  send_stage(wire, "probed");
  send_note(wire, remember(prefix, trial));
  if (!damage.empty()) {
    send_note(wire, prefix.record("repair", id, id));
    send_note(wire, prefix.prune());
  } else {
    // Another node that shares the prefix may have switched; what this one uses must be known.
    send_note(wire, prefix.drop_releases());
  }
  result.result = damage.empty() ? "up-to-date" : "repaired";
  return {};
}

// Everything up to the switch; `built` says whether the release is this run's to take away again.
Result<void> stage(Prefix& prefix, const protocol::InstallRequest& request, const std::string& id,
                   const Manifest& manifest, Wire& wire, HostResult& result, bool& built,
                   Trial& trial) {
  DSI_CHECK(stage_release(prefix, id, request.manifest, manifest, wire, built));
  trial = try_ops(prefix, id, manifest, request, false);
  result.ops = trial.rows;
  if (!send_stage(wire, "probed")) return fail("the head left before the switch");
  if (request.strict) DSI_CHECK(check_strict(result.ops));
  DSI_CHECK(give_way(request.care, files_of_release(prefix, prefix.there().current), wire, result));
  // Probing may have taken a minute. Nobody would learn of a switch now.
  if (wire.head_left()) return fail("the head left before the switch");
  return prefix.switch_to(id);
}

Result<void> install_locked(const std::string& path, const protocol::InstallRequest& request,
                            Wire& wire, HostResult& result) {
  DSI_TRY(Manifest manifest, parse_release(request.manifest));
  if (!manifest.packages.empty()) return install_package(path, request, manifest, wire, result);
  DSI_CHECK(check_executable(path));
  std::string id = release_id(request.manifest);
  DSI_TRY(Prefix prefix, Prefix::lock(path, {request.run, request.by},
                                      std::chrono::seconds(request.lock_timeout_s), wire));
  std::string from = prefix.there().current;
  result.from = result.to = from;
  if (from == id) return refresh(prefix, request, id, manifest, wire, result);
  DSI_CHECK(respect_hold(path, request.care, result));
  DSI_CHECK(spare(request.care, files_of_release(prefix, from), result));

  bool built = false;
  Trial trial;
  if (auto staged = stage(prefix, request, id, manifest, wire, result, built, trial); !staged) {
    take_back(prefix, id, built, wire.head_left());
    return staged;
  }
  result.to = id;
  result.result = "installed";
  send_stage(wire, "switched");
  send_note(wire, prefix.record("install", from, id));
  send_note(wire, remember(prefix, trial));
  send_note(wire, prefix.prune());
  return {};
}

// Is there such a release to go back to?
Result<void> check_there(const std::string& path, const std::string& id) {
  const std::vector<std::string> all = list_releases(path);
  if (std::find(all.begin(), all.end(), id) != all.end()) return {};
  std::string names;
  for (const std::string& one : all) names += (names.empty() ? "" : ", ") + one;
  return fail_with_help(fmt::format("there is no release {} here; there {} {}", id,
                                    all.size() < 2 ? "is" : "are", all.empty() ? "none" : names),
                        "install it by name: --bundle FILE");
}

Result<void> rollback_locked(const std::string& path, const protocol::RollbackRequest& request,
                             Wire& wire, HostResult& result) {
  if (!request.package.empty()) return rollback_package(path, request, wire, result);
  constexpr char kNowhere[] = "there is no release to go back to";
  constexpr char kHelp[] = "install the release that you want by name: --bundle FILE";
  if (::access(path.c_str(), F_OK) != 0) return fail_with_help(kNowhere, kHelp);
  DSI_TRY(Prefix prefix, Prefix::lock(path, {request.run, request.by},
                                      std::chrono::seconds(request.lock_timeout_s), wire));
  std::string from = prefix.there().current;
  std::string to = request.to.empty() ? prefix.there().previous : request.to;
  result.from = result.to = from;
  if (to.empty()) {
    prefix.leave_no_trace();
    return fail_with_help(kNowhere, kHelp);
  }
  if (!request.to.empty()) DSI_CHECK(check_there(path, to));
  if (to != from) DSI_CHECK(respect_hold(path, request.care, result));
  DSI_TRY(Folder release, prefix.releases().folder(to));
  DSI_TRY(std::string text, manifest_text(release, to));
  DSI_TRY(Manifest manifest, parse_release(text));
  DSI_CHECK(check_whole(prefix, to, text, manifest));
  if (to == from) {
    result.result = "up-to-date";
    result.ops = probe(prefix.releases().path_of(to), manifest, {}, request.torch_folders,
                       request.probe_timeout_s);
    return {};
  }
  DSI_CHECK(give_way(request.care, files_of_release(prefix, from), wire, result));
  if (wire.head_left()) return fail("the head left before the switch");
  DSI_CHECK(prefix.switch_to(to));
  result.to = to;
  result.result = "rolled-back";
  send_stage(wire, "switched");
  send_note(wire, prefix.record("rollback", from, to));
  result.ops = probe(prefix.releases().path_of(to), manifest, {}, request.torch_folders,
                     request.probe_timeout_s);
  send_stage(wire, "probed");
  return {};
}

Result<void> uninstall_locked(const std::string& path, const protocol::UninstallRequest& request,
                              Wire& wire, HostResult& result) {
  if (!request.package.empty()) return uninstall_package(path, request, wire, result);
  result.result = "uninstalled";
  if (::access(path.c_str(), F_OK) != 0) return {};
  DSI_TRY(Prefix prefix, Prefix::lock(path, {request.run, request.by},
                                      std::chrono::seconds(request.lock_timeout_s), wire));
  result.from = result.to = prefix.there().current;
  DSI_CHECK(respect_hold(path, request.care, result));
  DSI_CHECK(give_way(request.care, files_of_release(prefix, result.from), wire, result));
  auto removed = prefix.remove_all();
  result.to = find_releases(path).current;
  return removed;
}

Result<void> report_found(const std::string& path, const std::string& id,
                          const protocol::ReportRequest& request, HostResult& result) {
  DSI_TRY(Folder root, Folder::open(path));
  DSI_TRY(Folder releases, root.folder("releases"));
  DSI_TRY(Folder release, releases.folder(id));
  DSI_TRY(std::string text, manifest_text(release, id));
  DSI_TRY(Manifest manifest, parse_release(text));
  std::vector<Damage> damage = find_damage(release, manifest, text);
  result.ops =
      probe(release.path(), manifest, damage, request.torch_folders, request.probe_timeout_s);
  result.result = "reported";
  // Damage that no op's row tells of.
  for (const Damage& one : damage) {
    bool told = std::any_of(result.ops.begin(), result.ops.end(),
                            [&](const OpRow& row) { return row.detail == one.text; });
    if (!told) {
      result.error = {one.text, "install the release again: that repairs it"};
      break;
    }
  }
  return {};
}

// `act` fills the result as far as it gets; its error makes it a failed one.
template <typename Act>
HostResult answer(const std::string& prefix, Act act) {
  HostResult result;
  result.from = result.to = find_releases(prefix).current;
  if (auto done = act(result); !done) {
    if (result.result != "busy" && result.result != "held") result.result = "failed";
    result.error = std::move(done).error();
  }
  if (result.releases.empty()) result.releases = list_releases(prefix);
  return result;
}

}  // namespace

HostResult install(const std::string& prefix, const protocol::InstallRequest& request, Wire& wire) {
  return answer(prefix,
                [&](HostResult& result) { return install_locked(prefix, request, wire, result); });
}

HostResult rollback(const std::string& prefix, const protocol::RollbackRequest& request,
                    Wire& wire) {
  return answer(prefix,
                [&](HostResult& result) { return rollback_locked(prefix, request, wire, result); });
}

HostResult uninstall(const std::string& prefix, const protocol::UninstallRequest& request,
                     Wire& wire) {
  return answer(
      prefix, [&](HostResult& result) { return uninstall_locked(prefix, request, wire, result); });
}

HostResult hold(const std::string& prefix, const protocol::HoldRequest& request, Wire& wire) {
  return answer(prefix, [&](HostResult& result) -> Result<void> {
    if (request.package.empty()) return change_hold(prefix, request, wire, result);
    return hold_package(prefix, request, wire, result);
  });
}

HostResult report_release(const std::string& prefix, const std::string& id,
                          const protocol::ReportRequest& request) {
  return answer(prefix, [&](HostResult& result) -> Result<void> {
    if (id.empty()) {
      return fail_with_help(fmt::format("nothing is installed at {}", prefix),
                            "install a release, or name its folder with --prefix");
    }
    result.from = result.to = id;
    return report_found(prefix, id, request, result);
  });
}

HostResult report(const std::string& prefix, const protocol::ReportRequest& request, Wire& wire) {
  if (!request.package.empty()) {
    return answer(prefix,
                  [&](HostResult& result) { return report_package(request, wire, result); });
  }
  return report_release(prefix, find_releases(prefix).current, request);
}

}  // namespace dsi::agent
