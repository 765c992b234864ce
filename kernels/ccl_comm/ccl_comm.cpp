#include "ccl_comm.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "oneccl.h"
#include "shm.h"

namespace ds {
namespace {

constexpr char kMagic[8] = {'d', 's', '-', 'c', 'c', 'l', '-', '1'};

// What an id is. The rest of its bytes are 0.
struct Id {
  char magic[sizeof kMagic];
  CclBackend backend;
  char name[127];        // Of the shared memory.
  char host[256];        // shm_comm_host() of who made it.
  oneccl::UniqueId ccl;  // oneCCL's own.
};
static_assert(sizeof(Id) <= kCclIdBytes);

[[noreturn]] void refuse_argument(const char* function, const std::string& what) {
  throw std::invalid_argument(std::string("ds::ccl_comm_") + function + ": " + what);
}

// Throws what oneCCL says.
void check(const char* what, int result) {
  if (result == 0) return;
  const char* const text = oneccl::find().library->get_error_string(result);
  throw std::system_error(EIO, std::generic_category(),
                          std::string("ccl_comm ") + what + ": oneCCL: " +
                              (text == nullptr ? "?" : text) + " (" + std::to_string(result) + ")");
}

// Why this process makes its ids for shared memory; found out once.
struct Choice {
  CclBackend backend;
  std::string why;
};

Choice choose() {
  const char* const asked = std::getenv("DS_CCL_BACKEND");
  const std::string wanted = asked == nullptr ? "" : asked;
  if (wanted == "shm") return {CclBackend::shm, "DS_CCL_BACKEND is shm"};
  if (!wanted.empty() && wanted != "oneccl") {
    throw std::invalid_argument("DS_CCL_BACKEND is \"" + wanted + "\"; it can be oneccl or shm");
  }
  const oneccl::Found& found = oneccl::find();
  std::string why = found.reason;
  if (found.library != nullptr) {
    // It may be there and have nothing to send through: then this fails.
    oneccl::UniqueId id{};
    try {
      check("new_id", found.library->get_unique_id(&id));
      return {CclBackend::oneccl, ""};
    } catch (const std::system_error& error) {
      why = error.what();
    }
  }
  if (wanted == "oneccl") {
    throw std::system_error(ENOENT, std::generic_category(),
                            "ccl_comm: DS_CCL_BACKEND is oneccl: " + why);
  }
  return {CclBackend::shm, why};
}

const Choice& choice() {
  static const Choice made = choose();
  return made;
}

oneccl::DataType type_of(CommType type) {
  switch (type) {
    case CommType::f32:
      return oneccl::kFloat;
    case CommType::f16:
      return oneccl::kHalf;
    case CommType::bf16:
      return oneccl::kBfloat16;
    case CommType::f64:
      return oneccl::kDouble;
    case CommType::i8:
      return oneccl::kInt8;
    case CommType::u8:
      return oneccl::kUint8;
    case CommType::i32:
      return oneccl::kInt32;
    case CommType::i64:
      return oneccl::kInt64;
  }
  refuse_argument("all_reduce", "unknown type");
}

oneccl::Reduction reduction_of(CommReduction reduction) {
  switch (reduction) {
    case CommReduction::sum:
      return oneccl::kSum;
    case CommReduction::product:
      return oneccl::kProduct;
    case CommReduction::min:
      return oneccl::kMin;
    case CommReduction::max:
      return oneccl::kMax;
  }
  refuse_argument("all_reduce", "unknown reduction");
}

}  // namespace

class CclComm {
 public:
  CclComm(int own_rank, int ranks) : rank(own_rank), size(ranks) {}
  virtual ~CclComm() = default;
  CclComm(const CclComm&) = delete;
  CclComm& operator=(const CclComm&) = delete;

  virtual CclBackend backend() const = 0;
  virtual std::string name() const = 0;
  virtual void all_reduce(void* data, std::int64_t count, CommType type,
                          CommReduction reduction) = 0;
  virtual void all_gather(const void* in, void* out, std::int64_t bytes) = 0;
  virtual void broadcast(void* data, std::int64_t bytes, int root) = 0;
  virtual void barrier() = 0;

  const int rank, size;
};

namespace {

class ThroughShm final : public CclComm {
 public:
  ThroughShm(const Id& id, const CclCommOptions& options) : CclComm(options.rank, options.size) {
    if (shm_comm_host() != id.host) {
      const std::string why = oneccl::find().library == nullptr ? oneccl::find().reason : "";
      throw std::system_error(
          EREMOTE, std::generic_category(),
          "ccl_comm open: the rank that made the id is on another host, or does "
          "not share memory with this one; that takes oneCCL on every host" +
              (why.empty() ? "" : " (" + why + ")"));
    }
    ShmCommOptions inner;
    inner.name = id.name;
    inner.rank = rank;
    inner.size = size;
    inner.timeout = options.timeout;
    comm_ = shm_comm_open(inner);
  }
  ~ThroughShm() override { shm_comm_close(comm_); }

  CclBackend backend() const override { return CclBackend::shm; }
  std::string name() const override { return "shared memory"; }
  void all_reduce(void* data, std::int64_t count, CommType type, CommReduction reduction) override {
    shm_comm_all_reduce(*comm_, data, count, type, reduction);
  }
  void all_gather(const void* in, void* out, std::int64_t bytes) override {
    shm_comm_all_gather(*comm_, in, out, bytes);
  }
  void broadcast(void* data, std::int64_t bytes, int root) override {
    shm_comm_broadcast(*comm_, data, bytes, root);
  }
  void barrier() override { shm_comm_barrier(*comm_); }

 private:
  ShmComm* comm_ = nullptr;
};

class ThroughOneCcl final : public CclComm {
 public:
  ThroughOneCcl(const Id& id, const CclCommOptions& options) : CclComm(options.rank, options.size) {
    const oneccl::Found& found = oneccl::find();
    if (found.library == nullptr) {
      throw std::system_error(
          ENOENT, std::generic_category(),
          "ccl_comm open: the rank that made the id has oneCCL, and this one has "
          "not: " +
              found.reason);
    }
    ccl_ = found.library;
    check("open", ccl_->comm_init_rank(&comm_, static_cast<std::size_t>(size), id.ccl, rank));
  }
  ~ThroughOneCcl() override { ccl_->comm_destroy(comm_); }

  CclBackend backend() const override { return CclBackend::oneccl; }
  std::string name() const override { return "oneCCL " + ccl_->version(); }
  // Of nothing there is nothing to wait for, and oneCCL takes no null pointers.
  void all_reduce(void* data, std::int64_t count, CommType type, CommReduction reduction) override {
    const oneccl::DataType ccl_type = type_of(type);
    const oneccl::Reduction ccl_reduction = reduction_of(reduction);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (count == 0) return;
    check("all_reduce", ccl_->all_reduce(data, data, static_cast<std::size_t>(count), ccl_type,
                                         ccl_reduction, comm_, nullptr));
  }
  void all_gather(const void* in, void* out, std::int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes == 0) return;
    check("all_gather", ccl_->all_gather(in, out, static_cast<std::size_t>(bytes), oneccl::kUint8,
                                         comm_, nullptr));
  }
  void broadcast(void* data, std::int64_t bytes, int root) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes == 0) return;
    check("broadcast", ccl_->broadcast(data, data, static_cast<std::size_t>(bytes), oneccl::kUint8,
                                       root, comm_, nullptr));
  }
  // Its C interface has none; nobody has a sum before all have given their part.
  void barrier() override {
    int one = 1;
    all_reduce(&one, 1, CommType::i32, CommReduction::sum);
  }

 private:
  const oneccl::Library* ccl_ = nullptr;
  oneccl::Comm comm_ = nullptr;
  std::mutex mutex_;
};

}  // namespace

std::vector<std::uint8_t> ccl_comm_new_id() {
  auto id = std::make_unique<Id>();
  std::memcpy(id->magic, kMagic, sizeof kMagic);
  id->backend = choice().backend;
  if (id->backend == CclBackend::oneccl) {
    check("new_id", oneccl::find().library->get_unique_id(&id->ccl));
  } else {
    shm_comm_new_name().copy(id->name, sizeof id->name - 1);
    shm_comm_host().copy(id->host, sizeof id->host - 1);
  }
  std::vector<std::uint8_t> bytes(kCclIdBytes);
  std::memcpy(bytes.data(), id.get(), sizeof *id);
  return bytes;
}

std::string ccl_comm_why_not_oneccl() {
  return choice().why;
}

CclComm* ccl_comm_open(const CclCommOptions& options) {
  if (options.size < 1) refuse_argument("open", std::to_string(options.size) + " ranks");
  if (options.rank < 0 || options.rank >= options.size) {
    refuse_argument("open",
                    "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size));
  }
  auto id = std::make_unique<Id>();
  if (options.id.size() == kCclIdBytes) std::memcpy(id.get(), options.id.data(), sizeof *id);
  if (std::memcmp(id->magic, kMagic, sizeof kMagic) != 0) {
    refuse_argument("open", "these bytes are no id; ccl_comm_new_id makes one, on one rank");
  }
  id->name[sizeof id->name - 1] = id->host[sizeof id->host - 1] = '\0';
  if (id->backend == CclBackend::oneccl) return new ThroughOneCcl(*id, options);
  return new ThroughShm(*id, options);
}

void ccl_comm_close(CclComm* comm) {
  delete comm;
}

int ccl_comm_rank(const CclComm& comm) {
  return comm.rank;
}

int ccl_comm_size(const CclComm& comm) {
  return comm.size;
}

CclBackend ccl_comm_backend(const CclComm& comm) {
  return comm.backend();
}

std::string ccl_comm_backend_name(const CclComm& comm) {
  return comm.name();
}

void ccl_comm_all_reduce(CclComm& comm, void* data, std::int64_t count, CommType type,
                         CommReduction reduction) {
  if (count < 0) refuse_argument("all_reduce", std::to_string(count) + " elements");
  if (count > 0 && data == nullptr) refuse_argument("all_reduce", "the data is null");
  comm.all_reduce(data, count, type, reduction);
}

void ccl_comm_all_gather(CclComm& comm, const void* in, void* out, std::int64_t bytes) {
  if (bytes < 0) refuse_argument("all_gather", std::to_string(bytes) + " bytes");
  if (bytes > 0 && (in == nullptr || out == nullptr)) {
    refuse_argument("all_gather", "the data is null");
  }
  comm.all_gather(in, out, bytes);
}

void ccl_comm_broadcast(CclComm& comm, void* data, std::int64_t bytes, int root) {
  if (bytes < 0) refuse_argument("broadcast", std::to_string(bytes) + " bytes");
  if (bytes > 0 && data == nullptr) refuse_argument("broadcast", "the data is null");
  if (root < 0 || root >= comm.size) {
    refuse_argument("broadcast",
                    "from rank " + std::to_string(root) + " of " + std::to_string(comm.size));
  }
  comm.broadcast(data, bytes, root);
}

void ccl_comm_barrier(CclComm& comm) {
  comm.barrier();
}

}  // namespace ds
