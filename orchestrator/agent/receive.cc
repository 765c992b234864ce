#include "orchestrator/agent/receive.h"

#include <fcntl.h>
#include <unistd.h>
#include <zstd.h>

#include <cerrno>
#include <memory>
#include <set>

#include "orchestrator/agent/release.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"

namespace dsi::agent {

using protocol::Frame;

namespace {

Result<void> write_to(int fd, std::string_view data, const std::string& path) {
  errno = 0;
  if (!write_all(fd, data)) return fail_system(errno, fmt::format("cannot write {}", path));
  return {};
}

Result<void> sync_file(int fd, const std::string& path) {
  if (::fsync(fd) != 0) return fail_system(errno, fmt::format("cannot fsync {}", path));
  return {};
}

// A new file in `folder`, filled by `fill`, and named only when it is whole and on the disk.
template <typename Fill>
Result<void> make_file(const Folder& folder, const std::string& name, mode_t mode, Fill fill) {
  std::string partial = name + ".partial";
  DSI_CHECK(folder.remove(partial));
  Result<void> made = [&]() -> Result<void> {
    DSI_TRY(UniqueFd fd, folder.create_file(partial, mode));
    DSI_CHECK(fill(fd.get()));
    DSI_CHECK(sync_file(fd.get(), folder.path_of(partial)));
    return folder.rename(partial, folder, name);
  }();
  if (!made) (void)folder.remove(partial);
  return made;
}

Result<void> copy_file(const Folder& from, const std::string& name, const Folder& to,
                       const std::string& new_name, mode_t mode) {
  DSI_TRY(UniqueFd source, from.open_file(name));
  return make_file(to, new_name, mode, [&](int fd) -> Result<void> {
    return read_pieces(source.get(), from.path_of(name), [&](std::string_view piece) {
      return write_to(fd, piece, to.path_of(new_name));
    });
  });
}

// A whole copy of the file under this name? If it is not whole it is dropped.
Result<bool> has(const Folder& store, const ManifestFile& file, mode_t mode) {
  std::string name = store_name(file.sha256, mode);
  struct stat status {};
  if (!store.status(name, status)) return false;
  if (S_ISREG(status.st_mode) && static_cast<std::uint64_t>(status.st_size) == file.size &&
      (status.st_mode & 07777) == mode) {
    auto fd = store.open_file(name);
    auto digest = fd ? sha256_of(fd->get(), name) : Result<std::string>("");
    if (digest && *digest == file.sha256) return true;
  }
  DSI_CHECK(store.remove(name));
  return false;
}

mode_t other(mode_t mode) {
  return mode == 0755 ? 0644 : 0755;
}

// One zstd stream, `header.wire_size` bytes of 'D' frames, that must give exactly the file.
class FileReceiver {
 public:
  FileReceiver(Wire& wire, const protocol::FileHeader& header)
      : wire_(wire), header_(header), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {}

  Result<void> into(int fd, const std::string& path) {
    std::uint64_t left = header_.wire_size;
    while (left > 0) {
      DSI_TRY(std::optional<Frame> frame, wire_.read());
      if (!frame) return fail("the head left in the middle of a file");
      if (frame->type != 'D') return fail("a file was expected to go on, a message came");
      if (frame->payload.size() > left) return fail("the file is longer than was announced");
      left -= frame->payload.size();
      DSI_CHECK(decompress(frame->payload, fd, path));
    }
    if (!complete_ || size_ != header_.size) {
      return fail("the file is cut off: {} of {} bytes", with_commas(size_),
                  with_commas(header_.size));
    }
    if (std::string digest = hash_.hex(); digest != header_.digest) {
      return fail_with_help(
          fmt::format("a file that came has the SHA-256 {} and not {}", digest, header_.digest),
          "something between the head and this node alters data: try again, then look for it");
    }
    return {};
  }

 private:
  Result<void> decompress(std::string_view bytes, int fd, const std::string& path) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    for (;;) {
      if (complete_) {
        if (in.pos < in.size) return fail("data follows the end of the compressed file");
        return {};
      }
      ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
      std::size_t rest = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(rest) != 0) {
        return fail("a file that came is no zstd stream: {}", ZSTD_getErrorName(rest));
      }
      // Before it is written: a small stream can hold a file that fills any disk.
      if (out.pos > header_.size - size_) {
        return fail("a file that came is larger than the {} bytes that were announced",
                    with_commas(header_.size));
      }
      size_ += out.pos;
      hash_.update(buffer_.data(), out.pos);
      DSI_CHECK(write_to(fd, {buffer_.data(), out.pos}, path));
      complete_ = rest == 0;
      // A full output buffer may mean that zstd holds more although all input is taken in.
      if (!complete_ && in.pos == in.size && out.pos < out.size) return {};
    }
  }

  Wire& wire_;
  const protocol::FileHeader& header_;
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
  std::vector<char> buffer_ = std::vector<char>(ZSTD_DStreamOutSize());
  Sha256 hash_;
  std::uint64_t size_ = 0;
  bool complete_ = false;
};

}  // namespace

Result<std::map<std::string, std::uint64_t>> find_missing(const Folder& store,
                                                          const std::vector<ManifestFile>& files) {
  std::map<std::string, std::uint64_t> missing;
  std::set<std::string> checked;
  for (const ManifestFile& file : files) {
    std::string name = store_name(file.sha256, file.mode);
    if (!checked.insert(name).second) continue;
    DSI_TRY(bool here, has(store, file, file.mode));
    if (here) continue;
    DSI_TRY(bool sibling, has(store, file, other(file.mode)));
    if (sibling) {
      DSI_CHECK(
          copy_file(store, store_name(file.sha256, other(file.mode)), store, name, file.mode));
    } else {
      auto [at, is_new] = missing.emplace(file.sha256, file.size);
      if (!is_new && at->second != file.size) {
        return fail("the manifest gives the file {} two sizes", file.path);
      }
    }
  }
  return missing;
}

Result<void> receive(const Folder& store, const std::vector<ManifestFile>& files,
                     std::map<std::string, std::uint64_t> missing, Wire& wire,
                     std::vector<std::string>& received) {
  for (;;) {
    DSI_TRY(std::optional<Frame> frame, wire.read());
    if (!frame) return fail("the head left in the middle of an install");
    DSI_TRY(protocol::Message message, protocol::read_message(*frame));
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
    std::set<mode_t> modes;
    for (const ManifestFile& file : files) {
      if (file.sha256 == header.digest) modes.insert(file.mode);
    }
    std::string first;
    for (mode_t mode : modes) {
      std::string name = store_name(header.digest, mode);
      if (first.empty()) {
        first = name;
        DSI_CHECK(make_file(store, name, mode, [&](int fd) {
          return FileReceiver(wire, header).into(fd, store.path_of(name));
        }));
      } else {
        DSI_CHECK(copy_file(store, first, store, name, mode));
      }
      received.push_back(name);
    }
    missing.erase(wanted);
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
