#include "orchestrator/agent/unpack.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/release.h"
#include "orchestrator/base/file.h"

namespace dsi::agent {

namespace {

// How much is written before the disk is asked to begin.
constexpr std::uint64_t kSettleStep = 4u << 20;
// A stream asks for a window of up to 8 MiB without a reason; for more it needs a large file.
constexpr int kUsualWindowLog = 23;
constexpr int kMaxWindowLog = 31;

// A whole file in memory, as far as it is looked at.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (size_ > 0) ::munmap(at_, size_);
  }

  Result<void> map(int fd, const std::string& path) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return fail_system(errno, fmt::format("cannot read {}", path));
    if (status.st_size == 0) return {};
    auto size = static_cast<std::size_t>(status.st_size);
    void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) return fail_system(errno, fmt::format("cannot map {}", path));
    at_ = at;
    size_ = size;
    return {};
  }
  const void* data() const { return at_; }
  std::size_t size() const { return size_; }

 private:
  void* at_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

Result<NewFile> NewFile::create(const Folder& folder, const std::string& name, mode_t mode) {
  DSI_CHECK(folder.remove(name + ".partial"));
  DSI_TRY(UniqueFd fd, folder.create_file(name + ".partial", mode));
  return NewFile(folder, name, std::move(fd));
}

NewFile::NewFile(NewFile&& other) noexcept
    : folder_(std::exchange(other.folder_, nullptr)),
      name_(std::move(other.name_)),
      fd_(std::move(other.fd_)),
      written_(other.written_),
      settled_(other.settled_) {}

NewFile::~NewFile() {
  if (folder_ != nullptr) (void)folder_->remove(name_ + ".partial");
}

Result<void> NewFile::write(std::string_view bytes) {
  errno = 0;
  if (!write_all(fd_.get(), bytes)) {
    return fail_system(errno, fmt::format("cannot write {}", folder_->path_of(name_)));
  }
  written_ += bytes.size();
  if (written_ - settled_ >= kSettleStep) settle();
  return {};
}

void NewFile::settle() {
  // A hint: where it is not understood, the fsync takes longer.
  (void)::sync_file_range(fd_.get(), static_cast<off64_t>(settled_),
                          static_cast<off64_t>(written_ - settled_), SYNC_FILE_RANGE_WRITE);
  settled_ = written_;
}

Result<void> NewFile::commit() {
  if (::fsync(fd_.get()) != 0) {
    return fail_system(errno, fmt::format("cannot fsync {}", folder_->path_of(name_)));
  }
  DSI_CHECK(folder_->rename(name_ + ".partial", *folder_, name_));
  folder_ = nullptr;
  return {};
}

struct Unpacker::State {
  explicit State(protocol::FileHeader of) : header(std::move(of)) {}

  protocol::FileHeader header;
  Mapping base;
  std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> stream{ZSTD_createDCtx(), ZSTD_freeDCtx};
  std::vector<char> buffer = std::vector<char>(ZSTD_DStreamOutSize());
  Sha256 hash;
  std::uint64_t size = 0;
  bool complete = false;
};

Unpacker::Unpacker(std::unique_ptr<State> state) : state_(std::move(state)) {}
Unpacker::Unpacker(Unpacker&&) noexcept = default;
Unpacker::~Unpacker() = default;

Result<Unpacker> Unpacker::start(const Folder& store, const protocol::FileHeader& header) {
  auto state = std::make_unique<State>(header);
  std::uint64_t reach = header.size;
  if (!header.base.empty()) {
    // The two names that a file can have there; it is a digest, so it leads nowhere else.
    std::string name = store_name(header.base, 0644);
    if (!is_digest(header.base)) return fail("a patch came to something that is no file");
    if (!store.exists(name)) name = store_name(header.base, 0755);
    if (!store.exists(name)) {
      return fail_with_help(
          fmt::format("a patch came to a file that is not in the store: {}", header.base),
          "run it again: the node then says anew what it has");
    }
    DSI_TRY(UniqueFd fd, store.open_file(name));
    DSI_CHECK(state->base.map(fd.get(), store.path_of(name)));
    reach += state->base.size();
    ZSTD_DCtx_refPrefix(state->stream.get(), state->base.data(), state->base.size());
  }
  // The memory that a stream can make us take is bounded by what it is known to be about.
  int window =
      std::clamp(static_cast<int>(std::bit_width(reach)) + 1, kUsualWindowLog, kMaxWindowLog);
  ZSTD_DCtx_setParameter(state->stream.get(), ZSTD_d_windowLogMax, window);
  return Unpacker(std::move(state));
}

Result<void> Unpacker::feed(std::string_view bytes, NewFile& file) {
  State& s = *state_;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  for (;;) {
    if (s.complete) {
      if (in.pos < in.size) return fail("data follows the end of the compressed file");
      return {};
    }
    ZSTD_outBuffer out{s.buffer.data(), s.buffer.size(), 0};
    std::size_t rest = ZSTD_decompressStream(s.stream.get(), &out, &in);
    if (ZSTD_isError(rest) != 0) {
      return fail("a file that came is no zstd stream: {}", ZSTD_getErrorName(rest));
    }
    // Before it is written: a small stream can hold a file that fills any disk.
    if (out.pos > s.header.size - s.size) {
      return fail("a file that came is larger than the {} bytes that were announced",
                  with_commas(s.header.size));
    }
    s.size += out.pos;
    s.hash.update(s.buffer.data(), out.pos);
    DSI_CHECK(file.write({s.buffer.data(), out.pos}));
    s.complete = rest == 0;
    // A full output buffer may mean that zstd holds more although all input is taken in.
    if (!s.complete && in.pos == in.size && out.pos < out.size) return {};
  }
}

Result<void> Unpacker::finish() {
  State& s = *state_;
  if (!s.complete || s.size != s.header.size) {
    return fail("the file is cut off: {} of {} bytes", with_commas(s.size),
                with_commas(s.header.size));
  }
  if (std::string digest = s.hash.hex(); digest != s.header.digest) {
    return fail_with_help(
        fmt::format("a file that came has the SHA-256 {} and not {}", digest, s.header.digest),
        "something between the head and this node alters data: try again, then look for it");
  }
  return {};
}

}  // namespace dsi::agent
