// torch.classes.ds.AsyncIo and torch.ops.ds.async_io_*; see async_io.h for what they do.

#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "async_io.h"
#include "fork_generation.h"

namespace ds {
namespace {

// Python gets a RuntimeError; the number at the end is for code that wants to know which.
template <class Function>
auto with_torch_errors(const Function& function) {
  try {
    return function();
  } catch (const std::system_error& error) {
    TORCH_CHECK(false, error.what(), " [errno ", error.code().value(), "]");
  }
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

void check_tensor(const char* function, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), function, ": the tensor is None");
  TORCH_CHECK(tensor.layout() == c10::kStrided, function,
              ": the tensor is sparse; its file would "
              "not say where its values belong");
  TORCH_CHECK(!tensor.is_quantized(), function, ": the tensor is quantized; write its int_repr()");
}

// The elements in order, one after the other in the CPU's memory: what a file holds.
at::Tensor as_in_file(const at::Tensor& tensor) {
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

bool is_as_in_file(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

AsyncIoRequest request_for(bool write, const at::Tensor& memory, std::int64_t offset,
                           bool validate) {
  AsyncIoRequest request;
  request.write = write;
  request.size = bytes_of(memory);
  request.data = request.size > 0 ? memory.data_ptr() : nullptr;
  request.offset = offset;
  request.validate = validate;
  request.owner = std::make_shared<at::Tensor>(memory);
  return request;
}

// A tensor that is read into, and the memory that the file is read into if that is not its own.
struct Reading {
  explicit Reading(const at::Tensor& tensor) : out(tensor), memory(tensor) {
    if (!is_as_in_file(out)) {
      memory = at::empty(out.sizes(), out.options().device(at::kCPU).pinned_memory(false),
                         at::MemoryFormat::Contiguous);
    } else {
      changes();  // From now on, and also if the read fails half-way.
    }
  }

  void arrived() const {
    if (memory.is_same(out)) return changes();
    const at::NoGradGuard no_grad;
    out.copy_(memory);
  }

  at::Tensor out, memory;

 private:
  void changes() const {
    if (!out.is_inference()) out.unsafeGetTensorImpl()->bump_version();
  }
};

void run_read(AsyncIo& io, const at::Tensor& out, const std::string& path, std::int64_t offset,
              bool validate) {
  check_tensor("async_io read_", out);
  const Reading reading(out);
  AsyncIoRequest request = request_for(false, reading.memory, offset, validate);
  request.path = path;
  with_torch_errors([&] { async_io_run(io, std::move(request)); });
  reading.arrived();
}

void run_write(AsyncIo& io, const at::Tensor& tensor, const std::string& path, std::int64_t offset,
               bool validate) {
  check_tensor("async_io write", tensor);
  AsyncIoRequest request = request_for(true, as_in_file(tensor), offset, validate);
  request.path = path;
  with_torch_errors([&] { async_io_run(io, std::move(request)); });
}

class AsyncIoObject : public torch::CustomClassHolder {
 public:
  AsyncIoObject(std::int64_t block_size, std::int64_t queue_depth, std::int64_t threads,
                const std::string& engine, bool direct, bool single_submit) {
    const auto as_int = [](std::int64_t n) {
      return static_cast<int>(n < 0 ? 0 : n > 1 << 30 ? 1 << 30 : n);
    };
    options_.block_size = block_size;
    options_.queue_depth = as_int(queue_depth);
    options_.threads = as_int(threads);
    options_.engine = async_io_engine_named(engine);
    options_.direct = direct;
    options_.single_submit = single_submit;
    io_.reset(with_torch_errors([&] { return async_io_open(options_); }));
  }

  void read(const at::Tensor& out, const std::string& path, std::int64_t offset, bool validate) {
    run_read(*io_, out, path, offset, validate);
  }
  void write(const at::Tensor& tensor, const std::string& path, std::int64_t offset,
             bool validate) {
    run_write(*io_, tensor, path, offset, validate);
  }

  void submit_read(const at::Tensor& out, const std::string& path, std::int64_t offset,
                   bool validate) {
    check_tensor("AsyncIo.submit_read_", out);
    const Reading reading(out);
    AsyncIoRequest request = request_for(false, reading.memory, offset, validate);
    request.path = path;
    request.succeeded = [reading] { reading.arrived(); };
    with_torch_errors([&] { async_io_submit(*io_, std::move(request)); });
  }
  void submit_write(const at::Tensor& tensor, const std::string& path, std::int64_t offset,
                    bool validate) {
    check_tensor("AsyncIo.submit_write", tensor);
    AsyncIoRequest request = request_for(true, as_in_file(tensor), offset, validate);
    request.path = path;
    with_torch_errors([&] { async_io_submit(*io_, std::move(request)); });
  }
  void submit_write_fd(const at::Tensor& tensor, std::int64_t fd, std::int64_t offset) {
    check_tensor("AsyncIo.submit_write_fd", tensor);
    TORCH_CHECK(fd >= 0 && fd <= INT32_MAX, "AsyncIo.submit_write_fd: ", fd, " is no descriptor");
    AsyncIoRequest request = request_for(true, as_in_file(tensor), offset, false);
    request.fd = static_cast<int>(fd);
    with_torch_errors([&] { async_io_submit(*io_, std::move(request)); });
  }

  // What did arrive is handed over even if something else failed.
  std::int64_t wait() {
    return with_torch_errors([&] { return async_io_wait(*io_); });
  }

  std::string engine() const { return async_io_engine_name(async_io_engine(*io_)); }
  std::string engine_reason() const { return async_io_engine_reason(*io_); }
  std::int64_t block_size() const { return options_.block_size; }
  std::int64_t queue_depth() const { return options_.queue_depth; }
  std::int64_t threads() const { return options_.threads; }

 private:
  AsyncIoOptions options_;
  AsyncIoPtr io_;
};

// One for the functions that need no object; in a child of fork() another, because the threads of
// its parent's are not there. Not closed: the process ends with it. No mutex, because a child may
// find it locked for ever.
AsyncIo& shared_io() {
  struct Shared {
    AsyncIo* io;
    unsigned generation;
  };
  static std::atomic<Shared*> shared{nullptr};
  Shared* found = shared.load();
  if (found != nullptr && found->generation == fork_generation()) return *found->io;
  AsyncIoPtr io(with_torch_errors([] { return async_io_open({}); }));
  auto made = std::make_unique<Shared>(Shared{io.get(), fork_generation()});
  // If not, then another thread of this process was faster.
  if (!shared.compare_exchange_strong(found, made.get())) return *found->io;
  made.release();
  return *io.release();
}

void read_(const at::Tensor& out, const std::string& path, std::int64_t offset) {
  run_read(shared_io(), out, path, offset, false);
}

void write(const at::Tensor& tensor, const std::string& path, std::int64_t offset) {
  run_write(shared_io(), tensor, path, offset, false);
}

// For torch.compile and fake tensors: the same errors about tensors, and no file is touched.
void read_meta(const at::Tensor& out, const std::string&, std::int64_t) {
  check_tensor("async_io read_", out);
}

void write_meta(const at::Tensor& tensor, const std::string&, std::int64_t) {
  check_tensor("async_io write", tensor);
}

std::int64_t file_size(const std::string& path) {
  return with_torch_errors([&] { return async_io_file_size(path); });
}

void check_numel(std::int64_t numel) {
  TORCH_CHECK(numel >= 0, "ds::async_io_new_locked: ", numel, " elements");
}

at::Tensor new_locked(std::int64_t numel, const at::Tensor& like) {
  check_numel(numel);
  const auto width = static_cast<std::int64_t>(like.element_size());
  TORCH_CHECK(numel <= INT64_MAX / width, "ds::async_io_new_locked: ", numel, " elements");
  void* const start = with_torch_errors([&] { return async_io_lock_memory(numel * width); });
  return at::from_blob(start, {numel}, async_io_unmap_memory,
                       at::TensorOptions().dtype(like.scalar_type()).device(at::kCPU));
}

at::Tensor new_locked_meta(std::int64_t numel, const at::Tensor& like) {
  check_numel(numel);
  return at::empty({numel}, like.options().requires_grad(false));
}

bool free_locked(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && async_io_unlock_memory(tensor.data_ptr());
}

bool free_locked_at(std::int64_t address) {
  return async_io_unlock_memory(reinterpret_cast<void*>(address));
}

bool is_locked(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.layout() != c10::kStrided || tensor.numel() == 0) {
    return false;
  }
  // From the first to the last byte that any of its elements has.
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return async_io_is_locked(tensor.data_ptr(),
                            (last + 1) * static_cast<std::int64_t>(tensor.element_size()));
}

// What has no memory has none that is locked.
bool not_locked_meta(const at::Tensor&) {
  return false;
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  using Object = ds::AsyncIoObject;
  m.class_<Object>("AsyncIo")
      .def(torch::init<std::int64_t, std::int64_t, std::int64_t, const std::string&, bool, bool>(),
           "",
           {torch::arg("block_size") = 1 << 20, torch::arg("queue_depth") = 128,
            torch::arg("threads") = 1, torch::arg("engine") = "auto", torch::arg("direct") = true,
            torch::arg("single_submit") = false})
      .def("read_", &Object::read, "",
           {torch::arg("out"), torch::arg("path"), torch::arg("offset") = 0,
            torch::arg("validate") = false})
      .def("write", &Object::write, "",
           {torch::arg("tensor"), torch::arg("path"), torch::arg("offset") = 0,
            torch::arg("validate") = false})
      .def("submit_read_", &Object::submit_read, "",
           {torch::arg("out"), torch::arg("path"), torch::arg("offset") = 0,
            torch::arg("validate") = false})
      .def("submit_write", &Object::submit_write, "",
           {torch::arg("tensor"), torch::arg("path"), torch::arg("offset") = 0,
            torch::arg("validate") = false})
      .def("submit_write_fd", &Object::submit_write_fd, "",
           {torch::arg("tensor"), torch::arg("fd"), torch::arg("offset") = 0})
      .def("wait", &Object::wait)
      .def("engine", &Object::engine)
      .def("engine_reason", &Object::engine_reason)
      .def("block_size", &Object::block_size)
      .def("queue_depth", &Object::queue_depth)
      .def("threads", &Object::threads);

  m.def("async_io_read_(Tensor(a!) out, str path, int offset=0) -> ()");
  m.def("async_io_write(Tensor tensor, str path, int offset=0) -> ()");
  m.def("async_io_file_size(str path) -> int", ds::file_size);
  m.def("async_io_new_locked(int numel, Tensor like) -> Tensor");
  m.def("async_io_free_locked(Tensor tensor) -> bool");
  m.def("async_io_free_locked_at(int address) -> bool", ds::free_locked_at);
  m.def("async_io_is_locked(Tensor tensor) -> bool");
}

TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("async_io_read_", TORCH_FN(ds::read_));
  m.impl("async_io_write", TORCH_FN(ds::write));
  m.impl("async_io_new_locked", TORCH_FN(ds::new_locked));
  m.impl("async_io_free_locked", TORCH_FN(ds::free_locked));
  m.impl("async_io_is_locked", TORCH_FN(ds::is_locked));
}

// Without these a fake tensor gets the kernels above, and they really write.
TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("async_io_read_", TORCH_FN(ds::read_meta));
  m.impl("async_io_write", TORCH_FN(ds::write_meta));
  m.impl("async_io_new_locked", TORCH_FN(ds::new_locked_meta));
  m.impl("async_io_free_locked", TORCH_FN(ds::not_locked_meta));
  m.impl("async_io_is_locked", TORCH_FN(ds::not_locked_meta));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  m.impl("async_io_read_", torch::CppFunction::makeFallthrough());
  m.impl("async_io_write", torch::CppFunction::makeFallthrough());
  m.impl("async_io_new_locked", torch::CppFunction::makeFallthrough());
  m.impl("async_io_free_locked", torch::CppFunction::makeFallthrough());
  m.impl("async_io_is_locked", torch::CppFunction::makeFallthrough());
}
