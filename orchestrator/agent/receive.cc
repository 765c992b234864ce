#include "orchestrator/agent/receive.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "orchestrator/agent/release.h"
#include "orchestrator/agent/unpack.h"

namespace dsi::agent {

using protocol::Frame;

namespace {

Result<void> copy_file(const Folder& from, const std::string& name, const Folder& to,
                       const std::string& new_name, mode_t mode) {
  DSI_TRY(UniqueFd source, from.open_file(name));
  DSI_TRY(NewFile file, NewFile::create(to, new_name, mode));
  DSI_CHECK(read_pieces(source.get(), from.path_of(name),
                        [&](std::string_view piece) { return file.write(piece); }));
  return file.commit();
}

// A whole copy of the file under this name? If it is not whole it is dropped.
Result<bool> has(const Folder& store, const ManifestFile& file, mode_t mode, Verified& verified) {
  std::string name = store_name(file.sha256, mode);
  struct stat status {};
  if (!store.status(name, status)) return false;
  if (S_ISREG(status.st_mode) && static_cast<std::uint64_t>(status.st_size) == file.size &&
      (status.st_mode & 07777) == mode) {
    auto fd = store.open_file(name);
    auto digest = fd ? sha256_of(fd->get(), name) : Result<std::string>("");
    if (digest && *digest == file.sha256) {
      verified.note(name, Verified::Look::of(status));
      return true;
    }
  }
  DSI_CHECK(store.remove(name));
  return false;
}

mode_t other(mode_t mode) {
  return mode == 0755 ? 0644 : 0755;
}

// One zstd stream, `header.wire_size` bytes of 'D' frames, that must give exactly the file.
Result<void> receive_file(const Folder& store, const protocol::FileHeader& header, Wire& wire,
                          NewFile& file) {
  DSI_TRY(Unpacker unpacker, Unpacker::start(store, header));
  std::uint64_t left = header.wire_size;
  while (left > 0) {
    DSI_TRY(std::optional<Frame> frame, wire.read());
    if (!frame) return fail("the head left in the middle of a file");
    if (frame->type != 'D') return fail("a file was expected to go on, a message came");
    if (frame->payload.size() > left) return fail("the file is longer than was announced");
    left -= frame->payload.size();
    DSI_CHECK(unpacker.feed(frame->payload, file));
  }
  return unpacker.finish();
}

}  // namespace

Verified::Look Verified::Look::of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size, status.st_mtim};
}

void Verified::note(const Folder& store, const std::string& name) {
  struct stat status {};
  if (store.status(name, status)) note(name, Look::of(status));
}

bool Verified::covers(const Folder& release, const std::vector<ManifestFile>& files) const {
  return std::all_of(files.begin(), files.end(), [&](const ManifestFile& file) {
    auto known = looks_.find(store_name(file.sha256, file.mode));
    auto place = place_of(release, file.path, false);
    struct stat status {};
    return known != looks_.end() && place && place->folder.status(place->name, status) &&
           S_ISREG(status.st_mode) && (status.st_mode & 07777) == file.mode &&
           Look::of(status) == known->second;
  });
}

Result<std::map<std::string, std::uint64_t>> find_missing(const Folder& store,
                                                          const std::vector<ManifestFile>& files,
                                                          Verified& verified) {
  std::map<std::string, std::uint64_t> missing;
  std::set<std::string> checked;
  for (const ManifestFile& file : files) {
    std::string name = store_name(file.sha256, file.mode);
    if (!checked.insert(name).second) continue;
    DSI_TRY(bool here, has(store, file, file.mode, verified));
    if (here) continue;
    DSI_TRY(bool sibling, has(store, file, other(file.mode), verified));
    if (sibling) {
      DSI_CHECK(copy_in_store(store, store_name(file.sha256, other(file.mode)), name, file.mode));
    } else {
      auto [at, is_new] = missing.emplace(file.sha256, file.size);
      if (!is_new && at->second != file.size) {
        return fail("the manifest gives the file {} two sizes", file.path);
      }
    }
  }
  return missing;
}

Result<bool> is_whole(const Folder& store, const ManifestFile& file) {
  Verified unused;
  DSI_TRY(bool here, has(store, file, file.mode, unused));
  if (here) return true;
  return has(store, file, other(file.mode), unused);
}

std::set<mode_t> modes_of(const std::vector<ManifestFile>& files, const std::string& digest) {
  std::set<mode_t> modes;
  for (const ManifestFile& file : files) {
    if (file.sha256 == digest) modes.insert(file.mode);
  }
  return modes;
}

Result<void> copy_in_store(const Folder& store, const std::string& name,
                           const std::string& new_name, mode_t mode) {
  return copy_file(store, name, store, new_name, mode);
}

Result<void> receive(const Folder& store, const std::vector<ManifestFile>& files,
                     std::map<std::string, std::uint64_t> missing, protocol::Message message,
                     Wire& wire, Verified& verified) {
  for (;;) {
    if (message.type == "commit") {
      if (missing.empty()) return store.sync();
      return fail("the head says \"commit\" and {} files have not come", missing.size());
    }
    if (message.type != "file") {
      return fail("files were expected, the message \"{}\" came", message.type);
    }
    DSI_TRY(protocol::FileHeader header, protocol::body_as<protocol::FileHeader>(message));
    auto wanted = missing.find(header.digest);
    if (wanted == missing.end()) return fail("a file came that nobody asked for");
    if (wanted->second != header.size) {
      return fail("a file of {} bytes was announced where the manifest has {}",
                  with_commas(header.size), with_commas(wanted->second));
    }
    std::string first;
    for (mode_t mode : modes_of(files, header.digest)) {
      std::string name = store_name(header.digest, mode);
      if (first.empty()) {
        first = name;
        DSI_TRY(NewFile file, NewFile::create(store, name, mode));
        DSI_CHECK(receive_file(store, header, wire, file));
        DSI_CHECK(file.commit());
        verified.note(store, name);
      } else {
        DSI_CHECK(copy_in_store(store, first, name, mode));
      }
    }
    missing.erase(wanted);
    DSI_TRY(std::optional<Frame> frame, wire.read());
    if (!frame) return fail("the head left in the middle of an install");
    DSI_TRY(message, protocol::read_message(*frame));
  }
}

Result<void> place_file(const Folder& store, const ManifestFile& file, const Folder& folder,
                        const std::string& name) {
  std::string from = store_name(file.sha256, file.mode);
  if (::linkat(store.fd(), from.c_str(), folder.fd(), name.c_str(), 0) == 0) return {};
  if (errno == EEXIST) {
    return fail_system(errno, fmt::format("cannot create {}", folder.path_of(name)));
  }
  // No links between folders here (AFS), none at all (FAT), or too many of them already.
  return copy_file(store, from, folder, name, file.mode);
}

}  // namespace dsi::agent
