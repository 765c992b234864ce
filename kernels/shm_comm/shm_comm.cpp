#include "shm_comm.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "cpu_isa.h"
#include "reduce.h"
#include "segment.h"

// A call uses the two buffers of each rank in turn, beginning with the one that the call before it
// did not use last. A rank that has passed a phase knows that all have come to it, so that nobody
// still reads what was sent two phases ago: that buffer is free.

namespace ds {

class ShmComm {
 public:
  ShmComm(ShmSegment::Options options, CpuIsa code_path)
      : segment(std::move(options)),
        isa(code_path),
        inputs(static_cast<std::size_t>(segment.size())) {}

  ShmSegment segment;
  const CpuIsa isa;
  std::mutex mutex;
  unsigned buffer = 0;      // The next one.
  std::int64_t sleeps = 0;  // Before the last call.
  int crowded = 0;          // For so many more calls; the same on all ranks.

  // What a rank sends at once. Where cores are short each phase costs a turn of the scheduler, a
  // millisecond or more: then fewer phases count for more than the caches.
  std::int64_t chunk_bytes() const {
    return crowded > 0 ? segment.slot_bytes() : std::min(segment.slot_bytes(), kCalmChunk);
  }

  static constexpr std::int64_t kCalmChunk = 256 << 10;
  std::vector<const void*> inputs;
};

namespace {

enum Kind : std::uint8_t { kAllReduce = 1, kAllGather, kBroadcast, kBarrier };

const char* const kNames[] = {"call", "all_reduce", "all_gather", "broadcast", "barrier"};
const char* const kTypes[] = {"f32", "f16", "bf16", "f64", "i8", "u8", "i32", "i64"};
const char* const kReductions[] = {"sum", "product", "min", "max"};

// Up to here each rank reads all that the others sent, after one phase; above, each reduces its
// share and reads the shares of the others, after two.
constexpr std::int64_t kSmallBytes = 64 << 10;  // Of all ranks together.

// All slots together, and one slot. A chunk takes all of it where cores are short; otherwise it is
// large enough that waiting for each other is a small part, and small enough that it is still in
// the caches when it is read.
constexpr std::int64_t kSegmentBytes = 16 << 20, kLargestSlot = 2 << 20, kSmallestSlot = 4 << 10;

// A call that waits for its first phase has met a rank that was late; one that sleeps in more of
// them, a lack of cores. That is taken for granted for some calls.
constexpr std::int64_t kSleepsOfALateRank = 2;
constexpr int kCrowdedCalls = 32;

std::string text_of(const ShmCall& call) {
  if (call.kind < kAllReduce || call.kind > kBarrier) return "something unknown";
  std::string text = kNames[call.kind];
  if (call.kind == kAllReduce) {
    text += std::string(" (") + kReductions[call.reduction & 3] + ") of " +
            std::to_string(call.count) + " " + kTypes[call.type & 7];
  } else if (call.kind != kBarrier) {
    text += " of " + std::to_string(call.count) + " bytes";
  }
  if (call.kind == kBroadcast) text += " from rank " + std::to_string(call.root);
  return text;
}

bool same(const ShmCall& a, const ShmCall& b) {
  return a.kind == b.kind && a.type == b.type && a.reduction == b.reduction && a.root == b.root &&
         a.count == b.count;
}

[[noreturn]] void refuse_argument(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("ds::shm_comm_") + function + ": " + what);
}

void copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// One call of this rank, alone with the group.
class Turn {
 public:
  Turn(ShmComm& comm, const ShmCall& call)
      : segment_(usable(comm.segment, kNames[call.kind])),
        comm_(comm),
        lock_(comm.mutex),
        call_(call),
        name_(kNames[call.kind]),
        first_(comm.buffer) {
    ShmCall& own = segment_.call(segment_.rank(), first_);
    own = call_;
    own.crowded = segment_.sleeps() - comm.sleeps > kSleepsOfALateRank ? 1 : 0;
    comm.sleeps = segment_.sleeps();
  }

  // The buffer of step `step`.
  unsigned buffer(std::int64_t step) const { return first_ + static_cast<unsigned>(step & 1); }

  // The end of a step: what this rank sent in it can be read by all. At the first, all calls are
  // compared. `sent` is how many buffers the call has used so far.
  void arrive(std::int64_t sent) {
    segment_.arrive_and_wait(name_);
    comm_.buffer = (first_ + static_cast<unsigned>(sent & 1)) & 1;
    if (compared_) return;
    compared_ = true;
    // From the same numbers on every rank, also where the calls do not match.
    if (comm_.crowded > 0) --comm_.crowded;
    for (int r = 0; r < segment_.size(); ++r) {
      if (segment_.call(r, first_).crowded != 0) comm_.crowded = kCrowdedCalls;
    }
    for (int r = 0; r < segment_.size(); ++r) {
      const ShmCall& other = segment_.call(r, first_);
      if (same(other, call_)) continue;
      comm_.buffer = (first_ + 1) & 1;
      segment_.refuse(name_, EPROTO,
                      "the calls do not match: rank " + std::to_string(r) + " makes " +
                          text_of(other) + ", this one " + text_of(call_));
    }
  }

 private:
  // Before the lock, which a child of fork() may find taken for ever.
  static ShmSegment& usable(ShmSegment& segment, const char* name) {
    segment.check_usable(name);
    return segment;
  }

  ShmSegment& segment_;
  ShmComm& comm_;
  const std::lock_guard<std::mutex> lock_;
  const ShmCall call_;
  const char* const name_;
  const unsigned first_;
  bool compared_ = false;
};

std::int64_t divided_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0);
}

// How many elements are cut into chunks, and each chunk into the shares that the ranks reduce. All
// begin at a cache line, and a share begins at the same place of every chunk.
class Cuts {
 public:
  Cuts(std::int64_t count, std::int64_t width, std::int64_t slot_bytes, int ranks) : count_(count) {
    const std::int64_t line = 64 / width;
    chunk_ = divided_up(divided_up(count, divided_up(count, slot_bytes / width)), line) * line;
    chunks_ = divided_up(count, chunk_);
    share_ = divided_up(divided_up(chunk_, ranks), line) * line;
  }
  std::int64_t chunks() const { return chunks_; }
  std::int64_t start(std::int64_t k) const { return k * chunk_; }
  std::int64_t size(std::int64_t k) const { return std::min(chunk_, count_ - start(k)); }
  std::int64_t share_begin(std::int64_t k, int rank) const {
    return std::min(size(k), share_ * rank);
  }
  std::int64_t share_end(std::int64_t k, int rank) const { return share_begin(k, rank + 1); }

 private:
  std::int64_t count_, chunk_, chunks_, share_;
};

void reduce_small(ShmComm& comm, const ShmCall& call, char* data, std::int64_t bytes,
                  ShmReduce reduce) {
  ShmSegment& segment = comm.segment;
  Turn turn(comm, call);
  const unsigned buffer = turn.buffer(0);
  const auto slot = [&](int r) {
    return bytes <= ShmSegment::kInline ? segment.inline_slot(r, buffer) : segment.slot(r, buffer);
  };
  copy(slot(segment.rank()), data, bytes);
  turn.arrive(1);
  for (int r = 0; r < segment.size(); ++r) comm.inputs[static_cast<std::size_t>(r)] = slot(r);
  reduce({comm.inputs.data(), segment.size(), data, nullptr}, call.count);
}

// In chunks. In step k a rank reads the results of chunk k-2, reduces its share of chunk k-1 and
// sends chunk k, all but its own share: the three touch different parts of the two buffers, so that
// a step ends with one phase. The result of a share stands where its owner's slot has a gap.
void reduce_large(ShmComm& comm, const ShmCall& call, char* data, std::int64_t width,
                  ShmReduce reduce) {
  ShmSegment& segment = comm.segment;
  const int rank = segment.rank(), size = segment.size();
  Turn turn(comm, call);
  const Cuts cuts(call.count, width, comm.chunk_bytes(), size);
  const auto own = [&](std::int64_t k, std::int64_t element) {
    return data + (cuts.start(k) + element) * width;
  };
  const auto slot = [&](int r, std::int64_t k, std::int64_t element) {
    return segment.slot(r, turn.buffer(k)) + element * width;
  };
  for (std::int64_t step = 0; step < cuts.chunks() + 2; ++step) {
    if (const std::int64_t k = step - 2; k >= 0) {
      for (int n = 1; n < size; ++n) {
        const int r = (rank + n) % size;  // Not all from one rank at a time.
        const std::int64_t begin = cuts.share_begin(k, r), end = cuts.share_end(k, r);
        copy(own(k, begin), slot(r, k, begin), (end - begin) * width);
      }
    }
    if (const std::int64_t k = step - 1; k >= 0 && k < cuts.chunks()) {
      const std::int64_t begin = cuts.share_begin(k, rank), end = cuts.share_end(k, rank);
      for (int r = 0; r < size; ++r) {
        comm.inputs[static_cast<std::size_t>(r)] = r == rank ? own(k, begin) : slot(r, k, begin);
      }
      if (end > begin) {
        reduce({comm.inputs.data(), size, own(k, begin), slot(rank, k, begin)}, end - begin);
      }
    }
    if (step < cuts.chunks()) {
      const std::int64_t begin = cuts.share_begin(step, rank), end = cuts.share_end(step, rank);
      copy(slot(rank, step, 0), own(step, 0), begin * width);
      copy(slot(rank, step, end), own(step, end), (cuts.size(step) - end) * width);
    }
    if (step <= cuts.chunks()) turn.arrive(std::min(step + 1, cuts.chunks()));
  }
}

}  // namespace

std::int64_t shm_comm_type_size(CommType type) {
  switch (type) {
    case CommType::f16:
    case CommType::bf16:
      return 2;
    case CommType::i8:
    case CommType::u8:
      return 1;
    case CommType::f64:
    case CommType::i64:
      return 8;
    default:
      return 4;
  }
}

std::string shm_comm_new_name() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    throw std::system_error(errno, std::generic_category(), "shm_comm: no random numbers");
  }
  std::string name;
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

std::string shm_comm_host() {
  return shm_host();
}

ShmComm* shm_comm_open(const ShmCommOptions& options) {
  if (options.name.empty() || options.name.size() > 100 ||
      options.name.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz"
                                     "ABCDEFGHIJKLMNOPQRSTUVWXYZ._-") != std::string::npos) {
    refuse_argument("open", "\"" + options.name +
                                "\" is no name: letters, digits, '.', '_' and '-', at most 100");
  }
  if (options.size < 1 || options.size > 4096) {
    refuse_argument("open", std::to_string(options.size) + " ranks; it can be 1 to 4096");
  }
  if (options.rank < 0 || options.rank >= options.size) {
    refuse_argument("open",
                    "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size));
  }
  if (options.timeout.count() <= 0) refuse_argument("open", "the time limit is not positive");
  if (options.slot_bytes < 0 || options.slot_bytes > (std::int64_t{1} << 30)) {
    refuse_argument("open", std::to_string(options.slot_bytes) + " bytes are no size for a slot");
  }
  ShmSegment::Options inner{options.name, options.rank, options.size, options.timeout,
                            options.slot_bytes};
  if (inner.slot_bytes == 0) {
    inner.slot_bytes = std::clamp(kSegmentBytes / 2 / options.size, kSmallestSlot, kLargestSlot);
  }
  inner.slot_bytes = (inner.slot_bytes + 63) / 64 * 64;
  return std::make_unique<ShmComm>(std::move(inner), resolve_isa(options.isa)).release();
}

void shm_comm_close(ShmComm* comm) {
  delete comm;
}

int shm_comm_rank(const ShmComm& comm) {
  return comm.segment.rank();
}

int shm_comm_size(const ShmComm& comm) {
  return comm.segment.size();
}

void shm_comm_all_reduce(ShmComm& comm, void* data, std::int64_t count, CommType type,
                         CommReduction reduction) {
  const ShmReduce reduce = shm_reduce_for(type, reduction, comm.isa);
  const std::int64_t width = shm_comm_type_size(type);
  if (count < 0 || count > INT64_MAX / width) {
    refuse_argument("all_reduce", std::to_string(count) + " elements");
  }
  if (count > 0 && data == nullptr) refuse_argument("all_reduce", "the data is null");
  ShmCall call;
  call.kind = kAllReduce;
  call.type = static_cast<std::uint8_t>(type);
  call.reduction = static_cast<std::uint8_t>(reduction);
  call.count = count;
  const std::int64_t bytes = count * width;
  if (bytes <= std::min(kSmallBytes / comm.segment.size(), comm.segment.slot_bytes())) {
    reduce_small(comm, call, static_cast<char*>(data), bytes, reduce);
  } else {
    reduce_large(comm, call, static_cast<char*>(data), width, reduce);
  }
}

void shm_comm_all_gather(ShmComm& comm, const void* in, void* out, std::int64_t bytes) {
  ShmSegment& segment = comm.segment;
  const int rank = segment.rank(), size = segment.size();
  if (bytes < 0 || bytes > INT64_MAX / size) {
    refuse_argument("all_gather", std::to_string(bytes) + " bytes");
  }
  if (bytes > 0 && (in == nullptr || out == nullptr)) {
    refuse_argument("all_gather", "the data is null");
  }
  ShmCall call;
  call.kind = kAllGather;
  call.count = bytes;
  const auto* const from = static_cast<const char*>(in);
  char* const to = static_cast<char*>(out);
  Turn turn(comm, call);
  const std::int64_t chunk = comm.chunk_bytes();
  const std::int64_t chunks = std::max<std::int64_t>(1, divided_up(bytes, chunk));
  for (std::int64_t step = 0; step <= chunks; ++step) {
    if (const std::int64_t k = step - 1; k >= 0) {
      const std::int64_t n = std::min(chunk, bytes - k * chunk);
      for (int i = 1; i < size; ++i) {
        const int r = (rank + i) % size;
        copy(to + r * bytes + k * chunk, segment.slot(r, turn.buffer(k)), n);
      }
    }
    if (step == chunks) break;
    const std::int64_t n = std::min(chunk, bytes - step * chunk);
    copy(segment.slot(rank, turn.buffer(step)), from + step * chunk, n);
    turn.arrive(step + 1);
  }
  if (bytes > 0 && to + rank * bytes != from) copy(to + rank * bytes, from, bytes);
}

void shm_comm_broadcast(ShmComm& comm, void* data, std::int64_t bytes, int root) {
  ShmSegment& segment = comm.segment;
  if (bytes < 0) refuse_argument("broadcast", std::to_string(bytes) + " bytes");
  if (bytes > 0 && data == nullptr) refuse_argument("broadcast", "the data is null");
  if (root < 0 || root >= segment.size()) {
    refuse_argument("broadcast",
                    "from rank " + std::to_string(root) + " of " + std::to_string(segment.size()));
  }
  ShmCall call;
  call.kind = kBroadcast;
  call.root = root;
  call.count = bytes;
  char* const own = static_cast<char*>(data);
  const bool sends = segment.rank() == root;
  Turn turn(comm, call);
  const std::int64_t chunk = comm.chunk_bytes();
  const std::int64_t chunks = std::max<std::int64_t>(1, divided_up(bytes, chunk));
  for (std::int64_t step = 0; step < chunks; ++step) {
    char* const slot = segment.slot(root, turn.buffer(step));
    const std::int64_t n = std::min(chunk, bytes - step * chunk);
    if (sends) copy(slot, own + step * chunk, n);
    turn.arrive(step + 1);
    if (!sends) copy(own + step * chunk, slot, n);
  }
}

void shm_comm_barrier(ShmComm& comm) {
  ShmCall call;
  call.kind = kBarrier;
  Turn turn(comm, call);
  turn.arrive(1);
}

}  // namespace ds
