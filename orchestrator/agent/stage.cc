#include "orchestrator/agent/stage.h"

#include <map>
#include <optional>
#include <set>

#include "orchestrator/agent/assemble.h"
#include "orchestrator/agent/receive.h"

namespace dsi::agent {

using protocol::OpRow;

bool send_stage(Wire& wire, std::string_view stage) {
  return wire.send("stage", {{"stage", stage}});
}

void send_note(Wire& wire, const Result<void>& outcome) {
  if (!outcome) {
    wire.send("stage",
              {{"stage", "note"}, {"what", outcome.error().what}, {"help", outcome.error().help}});
  }
}

namespace {

// What makes a file the next version of another: its path, and of a wheel, whose name has to tell
// its version, the distribution's name.
std::string_view lineage(std::string_view path) {
  constexpr std::string_view kWheels = "wheels/";
  return path.starts_with(kWheels) ? path.substr(0, path.find('-')) : path;
}

const ManifestFile* find_older(const Manifest& manifest, const ManifestFile& file) {
  if (const ManifestFile* same = manifest.find(file.path)) return same;
  if (lineage(file.path) == file.path) return nullptr;
  for (const ManifestFile& other : manifest.files) {
    if (lineage(other.path) == lineage(file.path)) return &other;
  }
  return nullptr;
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
    const ManifestFile* older = find_older(*manifest, file);
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

}  // namespace

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

Result<void> stage_release(const Prefix& prefix, const std::string& id, const std::string& text,
                           const Manifest& manifest, Wire& wire, bool& built) {
  bool whole = prefix.releases().exists(id) && check_whole(prefix, id, text, manifest).has_value();
  if (!whole) {
    Verified verified;
    DSI_CHECK(fill_store(prefix, manifest.files, wire, verified));
    built = true;
    DSI_CHECK(build_release(prefix, id, text, manifest));
    DSI_TRY(Folder release, prefix.releases().folder(id));
    // Linked files that nobody has touched since their bytes were hashed are not read again: it
    // would give the same pages of memory.
    if (!verified.covers(release, manifest.files)) {
      DSI_CHECK(check_whole(prefix, id, text, manifest));
    }
  }
  if (!send_stage(wire, "staged")) return fail("the head left before the switch");
  return {};
}

void take_back(Prefix& prefix, const std::string& id, bool built, bool keep_store) {
  (void)prefix.releases().remove(id + ".partial");
  if (built && prefix.there().current != id && prefix.releases().exists(id)) {
    (void)prefix.remove_release(id);
  }
  if (!keep_store) (void)prefix.prune();
  prefix.leave_no_trace();
}

}  // namespace dsi::agent
