#include <liburing.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <unordered_map>

#include "backend.h"
#include "kernel_release.h"
#include "locked_memory.h"

namespace ds {
namespace {

constexpr unsigned kFileSlots = 32;
constexpr unsigned kMemorySlots = 64;
constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // The kernel's limit for one buffer.

// From 5.13 to 6.3 the kernel lets go of a file a second after it has left the table, and until
// then a file that was removed keeps its room on the disk.
bool closes_files_at_once() {
  utsname system{};
  return uname(&system) == 0 && is_kernel_at_least(system.release, 6, 4);
}

// A ring with a table of files and a table of memory, so that the kernel looks neither up nor pins
// pages for each operation: a file while at least two operations on it are in flight, memory from
// its first use until it is unlocked. Both only save time; without them (old kernels, limits)
// everything goes the plain way.
class Uring : public Backend {
 public:
  explicit Uring(int depth) {
    io_uring_params params{};
    // Completions are handled when this thread asks for them, not by interrupting it: one ring
    // belongs to one thread. Kernels before 6.1 do not know the flags.
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    int code = io_uring_queue_init_params(static_cast<unsigned>(depth), &ring_, &params);
    if (code == -EINVAL) {
      params = {};
      code = io_uring_queue_init_params(static_cast<unsigned>(depth), &ring_, &params);
    }
    if (code < 0) throw std::system_error(-code, std::generic_category(), "io_uring");
    // IORING_OP_READ came with 5.6; a ring without it is of no use here.
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    if (probe != nullptr) io_uring_free_probe(probe);
    if (!can_read) {
      io_uring_queue_exit(&ring_);
      throw std::system_error(ENOSYS, std::generic_category(),
                              "io_uring: the kernel is older than 5.6");
    }
    if (closes_files_at_once() && io_uring_register_files_sparse(&ring_, kFileSlots) == 0) {
      for (unsigned i = 0; i < kFileSlots; ++i) free_file_slots_.push_back(static_cast<int>(i));
    }
    has_memory_table_ = io_uring_register_buffers_sparse(&ring_, kMemorySlots) == 0;
    if (has_memory_table_) {
      for (unsigned i = 0; i < kMemorySlots; ++i) free_memory_slots_.push_back(static_cast<int>(i));
    }
  }
  ~Uring() override { io_uring_queue_exit(&ring_); }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  void start(Io& io) override {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (sqe == nullptr) {  // Only if the kernel did not take all of an earlier batch.
      flush();
      sqe = io_uring_get_sqe(&ring_);
    }
    io.file_slot = file_slot(io.fd);
    const int fd = io.file_slot >= 0 ? io.file_slot : io.fd;
    const int buffer = memory_slot(io.data, io.length);
    const auto offset = static_cast<std::uint64_t>(io.offset);
    if (buffer >= 0 && io.write) {
      io_uring_prep_write_fixed(sqe, fd, io.data, io.length, offset, buffer);
    } else if (buffer >= 0) {
      io_uring_prep_read_fixed(sqe, fd, io.data, io.length, offset, buffer);
    } else if (io.write) {
      io_uring_prep_write(sqe, fd, io.data, io.length, offset);
    } else {
      io_uring_prep_read(sqe, fd, io.data, io.length, offset);
    }
    if (io.file_slot >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, &io);
  }

  void flush() override {
    const int n = io_uring_submit(&ring_);
    // Busy: what is in flight has to end first, which wait_some sees to.
    if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) {
      throw std::system_error(-n, std::generic_category(), "io_uring: submit");
    }
  }

  void wait_some(std::vector<Completion>& ended) override {
    for (;;) {
      const int n = io_uring_submit_and_wait(&ring_, 1);
      if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) {
        throw std::system_error(-n, std::generic_category(), "io_uring: wait");
      }
      unsigned head = 0, count = 0;
      io_uring_cqe* cqe = nullptr;
      io_uring_for_each_cqe(&ring_, head, cqe) {
        auto* const io = static_cast<Io*>(io_uring_cqe_get_data(cqe));
        ended.push_back({io, cqe->res});
        release_file(*io);
        ++count;
      }
      io_uring_cq_advance(&ring_, count);
      if (count > 0) return;
    }
  }

  void tidy() override { forget_unlocked(); }

 private:
  struct FileUse {
    int in_flight = 0;
    int slot = -1;
  };
  struct MemorySlots {
    char* start;
    std::size_t size;
    std::vector<int> slots;  // One for each kMaxPiece; empty: the kernel did not want them.
  };

  int file_slot(int fd) {
    FileUse& use = files_[fd];
    if (++use.in_flight >= 2 && use.slot < 0 && !free_file_slots_.empty()) {
      const int slot = free_file_slots_.back();
      if (io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &fd, 1) == 1) {
        free_file_slots_.pop_back();
        use.slot = slot;
      }
    }
    return use.slot;
  }

  // The table must not keep a file open that its owner closes next.
  void release_file(const Io& io) {
    const auto it = files_.find(io.fd);
    if (--it->second.in_flight > 0) return;
    if (it->second.slot >= 0) {
      int none = -1;
      io_uring_register_files_update(&ring_, static_cast<unsigned>(it->second.slot), &none, 1);
      free_file_slots_.push_back(it->second.slot);
    }
    files_.erase(it);
  }

  int memory_slot(char* data, std::size_t length) {
    if (!has_memory_table_) return -1;
    forget_unlocked();
    // Mostly the piece of the operation before.
    if (last_ == nullptr || data < last_->start || data + length > last_->start + last_->size) {
      const LockedPiece piece = find_locked(data, length);
      if (piece.id == 0) return -1;
      auto it = memory_.find(piece.id);
      if (it == memory_.end()) {
        it = memory_.emplace(piece.id, MemorySlots{piece.start, piece.size, map(piece)}).first;
      }
      last_ = &it->second;
    }
    if (last_->slots.empty()) return -1;
    const auto before = static_cast<std::size_t>(data - last_->start);
    if (before / kMaxPiece != (before + length - 1) / kMaxPiece) return -1;
    return last_->slots[before / kMaxPiece];
  }

  std::vector<int> map(const LockedPiece& piece) {
    std::vector<int> slots;
    const std::size_t count = (piece.size + kMaxPiece - 1) / kMaxPiece;
    if (count > free_memory_slots_.size()) return slots;
    for (std::size_t i = 0; i < count; ++i) {
      const int slot = free_memory_slots_.back();
      iovec range{piece.start + i * kMaxPiece, std::min(kMaxPiece, piece.size - i * kMaxPiece)};
      __u64 tag = 0;
      if (io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot), &range, &tag,
                                               1) != 1) {
        unmap(slots);
        return {};
      }
      free_memory_slots_.pop_back();
      slots.push_back(slot);
    }
    return slots;
  }

  void unmap(std::vector<int>& slots) {
    for (int slot : slots) {
      iovec none{nullptr, 0};
      __u64 tag = 0;
      io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot), &none, &tag, 1);
      free_memory_slots_.push_back(slot);
    }
    slots.clear();
  }

  void forget_unlocked() {
    const std::uint64_t epoch = locked_memory_epoch();
    if (epoch == epoch_) return;
    epoch_ = epoch;
    last_ = nullptr;
    for (auto it = memory_.begin(); it != memory_.end();) {
      if (is_locked_piece(it->first)) {
        ++it;
      } else {
        unmap(it->second.slots);
        it = memory_.erase(it);
      }
    }
  }

  io_uring ring_{};
  std::unordered_map<int, FileUse> files_;  // By descriptor, while something is in flight.
  std::vector<int> free_file_slots_;
  bool has_memory_table_ = false;
  std::uint64_t epoch_ = 0;
  std::unordered_map<std::uint64_t, MemorySlots> memory_;  // By the piece's id.
  MemorySlots* last_ = nullptr;
  std::vector<int> free_memory_slots_;
};

}  // namespace

std::unique_ptr<Backend> make_uring(int depth) {
  return std::make_unique<Uring>(depth);
}

}  // namespace ds
