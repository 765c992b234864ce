#include "orchestrator/agent/install.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "orchestrator/agent/assemble.h"
#include "orchestrator/agent/facts.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/probes.h"
#include "orchestrator/agent/receive.h"
#include "orchestrator/agent/release.h"
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

bool send_stage(Wire& wire, std::string_view stage) {
  return wire.send("stage", {{"stage", stage}});
}

// What went wrong after the switch: the host has the new release, and the transcript the reason.
void send_note(Wire& wire, const Result<void>& outcome) {
  if (!outcome) {
    wire.send("stage",
              {{"stage", "note"}, {"what", outcome.error().what}, {"help", outcome.error().help}});
  }
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

// For files that are missing: what the store has of the current release at the same path.
Result<std::map<std::string, std::string>> find_bases(
    const Prefix& prefix, const std::vector<ManifestFile>& files,
    const std::map<std::string, std::uint64_t>& missing) {
  std::map<std::string, std::string> bases;
  const std::string& current = prefix.there().current;
  if (current.empty()) return bases;
  DSI_TRY(Folder release, prefix.releases().folder(current));
  auto text = manifest_text(release, current);
  auto manifest = text ? Manifest::parse(*text) : tl::unexpected<Error>(text.error());
  // A damaged release has nothing to offer.
  if (!manifest) return bases;
  for (const ManifestFile& file : files) {
    const ManifestFile* older = manifest->find(file.path);
    if (older == nullptr || older->sha256 == file.sha256 || !missing.contains(file.sha256) ||
        bases.contains(file.sha256)) {
      continue;
    }
    DSI_TRY(bool whole, is_whole(prefix.store(), *older));
    if (whole) bases[file.sha256] = older->sha256;
  }
  return bases;
}

// Brings what the store lacks of `files`; asks the head only if there is something to ask for.
Result<void> fill_store(const Prefix& prefix, const std::vector<ManifestFile>& files, Wire& wire,
                        Verified& verified) {
  DSI_TRY(auto missing, find_missing(prefix.store(), files, verified));
  std::set<std::string> folders;
  for (const ManifestFile& file : files) {
    folders.insert(file.path.substr(0, file.path.find_last_of('/')));
  }
  protocol::Need need;
  for (const auto& [digest, size] : missing) {
    need.digests.push_back(digest);
    need.bytes += size;
  }
  // A file that is linked needs no inode; state.json, the link and the lock do.
  DSI_CHECK(prefix.check_space(need.bytes, missing.size() + folders.size() + 8));
  if (missing.empty()) return {};
  DSI_TRY(need.bases, find_bases(prefix, files, missing));
  if (!wire.send("need", need)) return fail("the head left");
  DSI_TRY(std::optional<protocol::Frame> frame, wire.read());
  if (!frame) return fail("the head left in the middle of an install");
  DSI_TRY(protocol::Message answer, protocol::read_message(*frame));
  if (answer.type == "swarm") {
    DSI_TRY(auto request, protocol::body_as<protocol::SwarmRequest>(answer));
    return receive_from_swarm(prefix, files, missing, request, wire, verified);
  }
  return receive(prefix.store(), files, std::move(missing), std::move(answer), wire, verified);
}

// releases/<id>, whole: made under another name, so that it is never there in part.
Result<void> build_release(const Prefix& prefix, const std::string& id, const std::string& text,
                           const Manifest& manifest) {
  const Folder& releases = prefix.releases();
  std::string partial = id + ".partial";
  DSI_CHECK(releases.remove(partial));
  DSI_TRY(Folder release, releases.make_folder(partial));
  std::set<std::string> synced;
  for (const ManifestFile& file : manifest.files) {
    DSI_TRY(Place place, place_of(release, file.path, true));
    DSI_CHECK(place_file(prefix.store(), file, place.folder, place.name));
    for (std::size_t slash = file.path.find('/'); slash != std::string::npos;
         slash = file.path.find('/', slash + 1)) {
      synced.insert(file.path.substr(0, slash));
    }
  }
  DSI_CHECK(release.write_file(kManifestName, text, 0644));
  for (const std::string& folder : synced) {
    DSI_TRY(Place place, place_of(release, folder + "/.", false));
    DSI_CHECK(place.folder.sync());
  }
  DSI_CHECK(release.sync());
  // A damaged one of the same id is in the way.
  std::string old = id + ".old.partial";
  bool replaces = releases.exists(id);
  if (replaces) {
    DSI_CHECK(releases.remove(old));
    DSI_CHECK(releases.rename(id, releases, old));
  }
  DSI_CHECK(releases.rename(partial, releases, id));
  if (replaces) DSI_CHECK(releases.remove(old));
  return releases.sync();
}

Result<void> check_whole(const Prefix& prefix, const std::string& id, const std::string& text,
                         const Manifest& manifest) {
  DSI_TRY(Folder release, prefix.releases().folder(id));
  std::vector<Damage> damage = find_damage(release, manifest, text);
  if (damage.empty()) return {};
  return fail_with_help(fmt::format("in release {}, {}", id, damage.front().text),
                        "look for a failing disk, or for what changes files under the prefix");
}

Result<void> check_strict(const std::vector<OpRow>& rows) {
  std::string faults;
  for (const OpRow& row : rows) {
    if (row.status == "ok") continue;
    faults +=
        fmt::format("{}{} on {} is {}", faults.empty() ? "" : "; ", row.op, row.device, row.status);
    if (!row.detail.empty()) faults += fmt::format(" ({})", row.detail);
  }
  if (faults.empty()) return {};
  return fail_with_help("not every op is ok: " + faults,
                        "nothing was switched; without --strict the release is installed anyway");
}

// Puts back what is not as it was. Each file comes by a rename, so a program that runs keeps what
// it has loaded.
Result<void> repair(const Prefix& prefix, const std::string& id, const std::string& text,
                    const Manifest& manifest, const std::vector<Damage>& damage, Wire& wire) {
  constexpr char kPartial[] = "repair.partial";
  std::vector<ManifestFile> files;
  for (const Damage& one : damage) {
    if (const ManifestFile* file = manifest.find(one.path)) files.push_back(*file);
  }
  Verified unused;
  DSI_CHECK(fill_store(prefix, files, wire, unused));
  DSI_TRY(Folder release, prefix.releases().folder(id));
  for (const ManifestFile& file : files) {
    DSI_CHECK(prefix.releases().remove(kPartial));
    DSI_CHECK(place_file(prefix.store(), file, prefix.releases(), kPartial));
    DSI_TRY(Place place, place_of(release, file.path, true));
    struct stat there {};
    if (place.folder.status(place.name, there) && S_ISDIR(there.st_mode)) {
      DSI_CHECK(place.folder.remove(place.name));
    }
    DSI_CHECK(prefix.releases().rename(kPartial, place.folder, place.name));
    // Two links to one inode: rename has done nothing and left both.
    DSI_CHECK(prefix.releases().remove(kPartial));
    DSI_CHECK(place.folder.sync());
  }
  if (damage.size() != files.size()) DSI_CHECK(release.write_file(kManifestName, text, 0644));
  return check_whole(prefix, id, text, manifest);
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
  }
  result.result = damage.empty() ? "up-to-date" : "repaired";
  return {};
}

// Everything up to the switch; `built` says whether the release is this run's to take away again.
Result<void> stage(Prefix& prefix, const protocol::InstallRequest& request, const std::string& id,
                   const Manifest& manifest, Wire& wire, HostResult& result, bool& built,
                   Trial& trial) {
  bool whole = prefix.releases().exists(id) &&
               check_whole(prefix, id, request.manifest, manifest).has_value();
  if (!whole) {
    Verified verified;
    DSI_CHECK(fill_store(prefix, manifest.files, wire, verified));
    built = true;
    DSI_CHECK(build_release(prefix, id, request.manifest, manifest));
    DSI_TRY(Folder release, prefix.releases().folder(id));
    // Linked files that nobody has touched since their bytes were hashed are not read again: it
    // would give the same pages of memory.
    if (!verified.covers(release, manifest.files)) {
      DSI_CHECK(check_whole(prefix, id, request.manifest, manifest));
    }
  }
  if (!send_stage(wire, "staged")) return fail("the head left before the switch");
  trial = try_ops(prefix, id, manifest, request, false);
  result.ops = trial.rows;
  if (!send_stage(wire, "probed")) return fail("the head left before the switch");
  if (request.strict) DSI_CHECK(check_strict(result.ops));
  // Probing may have taken a minute. Nobody would learn of a switch now.
  if (wire.head_left()) return fail("the head left before the switch");
  return prefix.switch_to(id);
}

// After a failure: the prefix is as it was. What came whole stays in the store if it was the head
// that left, so that the next run need not send it again.
void take_back(Prefix& prefix, const std::string& id, bool built, bool keep_store) {
  (void)prefix.releases().remove(id + ".partial");
  if (built && prefix.there().current != id && prefix.releases().exists(id)) {
    (void)prefix.remove_release(id);
  }
  if (!keep_store) (void)prefix.prune();
  prefix.leave_no_trace();
}

Result<void> install_locked(const std::string& path, const protocol::InstallRequest& request,
                            Wire& wire, HostResult& result) {
  DSI_TRY(Manifest manifest, parse_release(request.manifest));
  DSI_CHECK(check_executable(path));
  std::string id = release_id(request.manifest);
  DSI_TRY(Prefix prefix, Prefix::lock(path, {request.run, request.by},
                                      std::chrono::seconds(request.lock_timeout_s), wire));
  std::string from = prefix.there().current;
  result.from = result.to = from;
  if (from == id) return refresh(prefix, request, id, manifest, wire, result);

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

Result<void> rollback_locked(const std::string& path, const protocol::RollbackRequest& request,
                             Wire& wire, HostResult& result) {
  constexpr char kNowhere[] = "there is no release to go back to";
  constexpr char kHelp[] = "install the release that you want by name: --bundle FILE";
  if (::access(path.c_str(), F_OK) != 0) return fail_with_help(kNowhere, kHelp);
  DSI_TRY(Prefix prefix, Prefix::lock(path, {request.run, request.by},
                                      std::chrono::seconds(request.lock_timeout_s), wire));
  std::string from = prefix.there().current;
  std::string to = prefix.there().previous;
  result.from = result.to = from;
  if (to.empty()) {
    prefix.leave_no_trace();
    return fail_with_help(kNowhere, kHelp);
  }
  DSI_TRY(Folder release, prefix.releases().folder(to));
  DSI_TRY(std::string text, manifest_text(release, to));
  DSI_TRY(Manifest manifest, parse_release(text));
  DSI_CHECK(check_whole(prefix, to, text, manifest));
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
  result.result = "uninstalled";
  if (::access(path.c_str(), F_OK) != 0) return {};
  DSI_TRY(Prefix prefix, Prefix::lock(path, {request.run, request.by},
                                      std::chrono::seconds(request.lock_timeout_s), wire));
  result.from = prefix.there().current;
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
    result.result = "failed";
    result.error = std::move(done).error();
  }
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

HostResult report(const std::string& prefix, const protocol::ReportRequest& request) {
  return report_release(prefix, find_releases(prefix).current, request);
}

}  // namespace dsi::agent
