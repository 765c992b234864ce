#include "orchestrator/agent/incoming.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "orchestrator/agent/prefix.h"
#include "orchestrator/base/file.h"

namespace dsi::agent {

using distribute::ChunkIndex;
using distribute::Hash;

namespace {

constexpr char kIndexName[] = "index";
constexpr char kStreamName[] = "stream";
// Who follows the stream is not woken for less, but for its end.
constexpr std::uint64_t kStep = 256u << 10;

bool is_incoming_name(std::string_view name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool read_at(int fd, std::uint64_t offset, char* to, std::size_t size) {
  while (size > 0) {
    ssize_t n = ::pread(fd, to, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    offset += static_cast<std::uint64_t>(n);
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool write_at(int fd, std::uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    offset += static_cast<std::uint64_t>(n);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

void remove_incoming_but(const Folder& root, std::string_view digest) {
  auto folder = root.folder(kIncomingFolder);
  if (!folder) return;
  auto names = folder->names();
  if (!names) return;
  for (const std::string& name : *names) {
    bool wanted = digest.empty() ? is_incoming_name(name) : name == digest.substr(0, 16);
    // What cannot be removed is in nobody's way.
    if (!wanted) (void)folder->remove(name);
  }
}

Result<std::shared_ptr<Incoming>> Incoming::open(const Folder& root,
                                                 const protocol::SwarmRequest& request) {
  DSI_TRY(Hash digest, distribute::hash_from_hex(request.index_digest));
  if (request.index_size > distribute::kMaxIndexSize) return fail("the swarm's index is too large");
  remove_incoming_but(root, request.index_digest);
  DSI_TRY(Folder all, root.make_folder(kIncomingFolder));
  DSI_TRY(Folder folder, all.make_folder(request.index_digest.substr(0, 16)));
  std::shared_ptr<Incoming> incoming(new Incoming(std::move(folder), digest, request.index_size));
  if (auto text = incoming->folder_.read_file(kIndexName)) {
    DSI_TRY(bool right, incoming->believe_index(*text));
    if (right) incoming->find_chunks();
  }
  return incoming;
}

Result<bool> Incoming::believe_index(std::string_view bytes) {
  if (bytes.size() != index_size_ || distribute::hash_of(bytes) != digest_) return false;
  DSI_TRY(ChunkIndex index, distribute::decode_index(bytes));
  encoded_ = bytes;
  stream_size_ = index.stream_size();
  have_.assign(index.chunks(), false);
  counts_.assign(index.stripes, 0);
  ends_.assign(index.stripes, 0);
  index_ = std::move(index);
  DSI_CHECK(open_stream());
  publish();
  return true;
}

Result<bool> Incoming::take_index(std::string_view bytes) {
  DSI_TRY(bool right, believe_index(bytes));
  if (!right) return false;
  DSI_CHECK(folder_.remove(kIndexName));
  DSI_TRY(UniqueFd fd, folder_.create_file(kIndexName, 0600));
  errno = 0;
  if (!write_all(fd.get(), bytes)) {
    return fail_system(errno, fmt::format("cannot write {}", folder_.path_of(kIndexName)));
  }
  return true;
}

Result<void> Incoming::open_stream() {
  struct stat status {};
  if (folder_.status(kStreamName, status) && !S_ISREG(status.st_mode)) {
    DSI_CHECK(folder_.remove(kStreamName));
  }
  stream_.reset(
      ::openat(folder_.fd(), kStreamName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!stream_) {
    return fail_system(errno, fmt::format("cannot open {}", folder_.path_of(kStreamName)));
  }
  // A full disk shows now and not in the middle. Where the file system knows no such thing, the
  // space was looked at and a write may fail.
  if (stream_size_ > 0 && ::fallocate(stream_.get(), 0, 0, static_cast<off_t>(stream_size_)) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) {
    return fail_system(errno, fmt::format("cannot make {} {} bytes large",
                                          folder_.path_of(kStreamName), stream_size_));
  }
  return {};
}

void Incoming::find_chunks() {
  std::vector<char> buffer(index_->chunk_size);
  for (std::uint32_t number = 0; number < index_->chunks(); ++number) {
    std::string_view bytes(buffer.data(), size_of(number));
    if (!load(number, buffer.data())) continue;
    if (distribute::hash_of(bytes) == index_->hashes[number]) count(number);
  }
  publish();
}

bool Incoming::load(std::uint32_t number, char* to) const {
  return read_at(stream_.get(), std::uint64_t{number} * index_->chunk_size, to, size_of(number));
}

std::uint32_t Incoming::size_of(std::uint32_t number) const {
  std::uint64_t begin = std::uint64_t{number} * index_->chunk_size;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(index_->chunk_size, stream_size_ - begin));
}

void Incoming::count(std::uint32_t number) {
  have_[number] = true;
  ++stored_;
  std::uint32_t stripe = number % index_->stripes;
  ++counts_[stripe];
  ends_[stripe] = std::max(ends_[stripe], number / index_->stripes + 1);
  while (front_ < index_->chunks() && have_[front_]) ++front_;
}

void Incoming::publish() {
  std::lock_guard lock(mutex_);
  front_bytes_ = std::min(std::uint64_t{front_} * index_->chunk_size, stream_size_);
  bool news = !index_known_ || front_bytes_ >= awaited_;
  index_known_ = true;
  if (news) news_.notify_all();
}

Result<Incoming::Stored> Incoming::store(std::uint32_t number, std::string_view bytes) {
  if (number >= index_->chunks() || bytes.size() != size_of(number) ||
      distribute::hash_of(bytes) != index_->hashes[number]) {
    return Stored::kWrong;
  }
  if (have_[number]) return Stored::kAlready;
  if (!write_at(stream_.get(), std::uint64_t{number} * index_->chunk_size, bytes)) {
    return fail_system(errno, fmt::format("cannot write {}", folder_.path_of(kStreamName)));
  }
  count(number);
  publish();
  return Stored::kNew;
}

std::vector<bool> Incoming::have_of(std::uint32_t stripe) const {
  std::vector<bool> bits(index_->chunks_in(stripe));
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = have_[i * index_->stripes + stripe];
  return bits;
}

Result<const ChunkIndex*> Incoming::wait_for_index() {
  std::unique_lock lock(mutex_);
  news_.wait(lock, [&] { return index_known_ || given_up_; });
  if (!index_known_) return tl::unexpected<Error>(*given_up_);
  return &*index_;
}

Result<std::uint64_t> Incoming::wait_for_more(std::uint64_t known) {
  std::unique_lock lock(mutex_);
  awaited_ = std::min(known + kStep, stream_size_);
  news_.wait(lock, [&] { return front_bytes_ >= awaited_ || given_up_; });
  if (front_bytes_ < awaited_) return tl::unexpected<Error>(*given_up_);
  return front_bytes_;
}

Result<void> Incoming::read(std::uint64_t offset, char* to, std::size_t size) const {
  errno = 0;
  if (read_at(stream_.get(), offset, to, size)) return {};
  return fail_system(errno == 0 ? EIO : errno,
                     fmt::format("cannot read {}", folder_.path_of(kStreamName)));
}

std::uint64_t Incoming::unallocated() const {
  struct stat status {};
  std::uint64_t there =
      ::fstat(stream_.get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
  return stream_size_ > there ? stream_size_ - there : 0;
}

void Incoming::give_up(Error error) {
  std::lock_guard lock(mutex_);
  if (!given_up_) given_up_ = std::move(error);
  news_.notify_all();
}

}  // namespace dsi::agent
