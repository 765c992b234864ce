// torch.ops.ds.shm_comm_*; see shm_comm.h for what they do. A group is a number, so that programs
// that are traced or scripted can have one.

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bind_collectives.h"
#include "shm_comm.h"

namespace ds {
namespace {

using binding::bytes_of;
using binding::data_of;
using binding::with_torch_errors;

binding::Groups<ShmComm>& groups() {
  return binding::groups<ShmComm>("shm_comm");
}

std::int64_t open(const std::string& name, std::int64_t rank, std::int64_t size, double timeout,
                  std::int64_t slot_bytes) {
  ShmCommOptions options;
  options.name = name;
  options.rank = binding::rank_or_size(rank);
  options.size = binding::rank_or_size(size);
  options.timeout = binding::time_limit("ds::shm_comm_open", timeout);
  options.slot_bytes = slot_bytes;
  return with_torch_errors([&] {
    return groups().add(std::shared_ptr<ShmComm>(shm_comm_open(options), shm_comm_close));
  });
}

void close(std::int64_t group) {
  groups().remove(group);
}

std::int64_t rank_of(std::int64_t group) {
  return shm_comm_rank(*groups().get(group));
}

std::int64_t size_of(std::int64_t group) {
  return shm_comm_size(*groups().get(group));
}

void reduce_memory(const char* function, const at::Tensor& memory, std::int64_t group,
                   const std::string& op) {
  const CommType type = binding::type_of(function, memory);
  const CommReduction reduction = binding::reduction_of(function, memory, op);
  const auto comm = groups().get(group);
  with_torch_errors(
      [&] { shm_comm_all_reduce(*comm, data_of(memory), memory.numel(), type, reduction); });
}

void all_reduce_(const at::Tensor& tensor, std::int64_t group, const std::string& op) {
  constexpr const char* kName = "ds::shm_comm_all_reduce_";
  binding::in_place(kName, tensor,
                    [&](const at::Tensor& memory) { reduce_memory(kName, memory, group, op); });
}

at::Tensor all_reduce(const at::Tensor& tensor, std::int64_t group, const std::string& op) {
  constexpr const char* kName = "ds::shm_comm_all_reduce";
  binding::check(kName, tensor);
  const at::NoGradGuard no_grad;
  const at::Tensor result =
      tensor.detach().clone(at::MemoryFormat::Contiguous).resolve_conj().resolve_neg();
  reduce_memory(kName, result, group, op);
  return result;
}

std::vector<std::int64_t> gathered_sizes(const at::Tensor& tensor, std::int64_t group) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size_of(group));
  return sizes;
}

at::Tensor all_gather(const at::Tensor& tensor, std::int64_t group) {
  binding::check("ds::shm_comm_all_gather", tensor);
  const at::NoGradGuard no_grad;
  const at::Tensor own = binding::plain(tensor);
  const at::Tensor all = at::empty(gathered_sizes(tensor, group), own.options());
  const auto comm = groups().get(group);
  with_torch_errors([&] { shm_comm_all_gather(*comm, data_of(own), data_of(all), bytes_of(own)); });
  return all;
}

void broadcast_(const at::Tensor& tensor, std::int64_t root, std::int64_t group) {
  const auto comm = groups().get(group);
  TORCH_CHECK_VALUE(root >= 0 && root < shm_comm_size(*comm), "ds::shm_comm_broadcast_: from rank ",
                    root, " of ", shm_comm_size(*comm));
  binding::in_place("ds::shm_comm_broadcast_", tensor, [&](const at::Tensor& memory) {
    with_torch_errors([&] {
      shm_comm_broadcast(*comm, data_of(memory), bytes_of(memory), static_cast<int>(root));
    });
  });
}

void barrier(std::int64_t group) {
  const auto comm = groups().get(group);
  with_torch_errors([&] { shm_comm_barrier(*comm); });
}

// For torch.compile and fake tensors: the same errors, and nothing is sent.
void all_reduce_meta_(const at::Tensor& tensor, std::int64_t group, const std::string& op) {
  constexpr const char* kName = "ds::shm_comm_all_reduce_";
  binding::check(kName, tensor);
  binding::type_of(kName, tensor);
  binding::reduction_of(kName, tensor, op);
  groups().get(group);
}

at::Tensor all_reduce_meta(const at::Tensor& tensor, std::int64_t group, const std::string& op) {
  all_reduce_meta_(tensor, group, op);
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false));
}

at::Tensor all_gather_meta(const at::Tensor& tensor, std::int64_t group) {
  binding::check("ds::shm_comm_all_gather", tensor);
  return at::empty(gathered_sizes(tensor, group), tensor.options().requires_grad(false));
}

void broadcast_meta_(const at::Tensor& tensor, std::int64_t, std::int64_t group) {
  binding::check("ds::shm_comm_broadcast_", tensor);
  groups().get(group);
}

// --- The ops that DeepSpeed calls by name
// ---------------------------------------------------------

std::atomic<std::int64_t> deepspeed_group{0};

at::Tensor& inference_all_reduce_(at::Tensor& self) {
  all_reduce_(self, deepspeed_group, "sum");
  return self;
}

at::Tensor inference_all_reduce(const at::Tensor& self) {
  return all_reduce(self, deepspeed_group, "sum");
}

at::Tensor& inference_all_reduce_meta_(at::Tensor& self) {
  return self;
}

at::Tensor inference_all_reduce_meta(const at::Tensor& self) {
  return at::empty_like(self);
}

// While torch.compile makes a program without mutation of this: the value of the op that does not
// mutate becomes the tensor's.
at::Tensor& inference_all_reduce_functional(at::Tensor& self) {
  namespace functional = at::functionalization::impl;
  functional::sync(self);
  at::Tensor result;
  {
    const at::AutoDispatchSkipFunctionalize below;
    result = c10::Dispatcher::singleton()
                 .findSchemaOrThrow("deepspeed::inference_all_reduce", "")
                 .typed<at::Tensor(const at::Tensor&)>()
                 .call(functional::from_functional_tensor(self));
  }
  functional::replace_(self, result);
  functional::commit_update(self);
  functional::sync(self);
  return self;
}

// Makes torch.ops.deepspeed.inference_all_reduce and inference_all_reduce_ all-reduce in this
// group. They are registered only then: DeepSpeed takes their being there for a promise, and its
// own library could not be loaded beside them.
void serve_deepspeed(std::int64_t group) {
  groups().get(group);
  static std::mutex mutex;
  static torch::Library* library = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  deepspeed_group = group;
  if (library != nullptr) return;
  std::unique_ptr<torch::Library> made(
      new torch::Library(torch::Library::FRAGMENT, "deepspeed", {}, __FILE__, __LINE__));
  made->def("inference_all_reduce(Tensor self) -> Tensor");
  made->def("inference_all_reduce_(Tensor(a!) self) -> Tensor(a!)");
  const auto add = [&](c10::DispatchKey key, auto&& out_of_place, auto&& mutating) {
    made->impl("inference_all_reduce", torch::dispatch(key, out_of_place));
    made->impl("inference_all_reduce_", torch::dispatch(key, mutating));
  };
  add(c10::DispatchKey::CPU, inference_all_reduce, inference_all_reduce_);
  add(c10::DispatchKey::Meta, inference_all_reduce_meta, inference_all_reduce_meta_);
  made->impl("inference_all_reduce_",
             torch::dispatch(c10::DispatchKey::Functionalize, inference_all_reduce_functional));
  // As below.
  for (const char* const op : {"inference_all_reduce", "inference_all_reduce_"}) {
    made->impl(
        op, torch::dispatch(c10::DispatchKey::AutogradMeta, torch::CppFunction::makeFallthrough()));
  }
  library = made.release();
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def("shm_comm_new_name() -> str", ds::shm_comm_new_name);
  m.def("shm_comm_host() -> str", ds::shm_comm_host);
  m.def(
      "shm_comm_open(str name, int rank, int size, float timeout=1800.0, int slot_bytes=0) -> int",
      ds::open);
  m.def("shm_comm_close(int group) -> ()", ds::close);
  m.def("shm_comm_rank(int group) -> int", ds::rank_of);
  m.def("shm_comm_size(int group) -> int", ds::size_of);
  m.def("shm_comm_barrier(int group) -> ()", ds::barrier);
  m.def("shm_comm_serve_deepspeed(int group) -> ()", ds::serve_deepspeed);
  m.def("shm_comm_all_reduce_(Tensor(a!) tensor, int group, str op=\"sum\") -> ()");
  m.def("shm_comm_all_reduce(Tensor tensor, int group, str op=\"sum\") -> Tensor");
  m.def("shm_comm_all_gather(Tensor tensor, int group) -> Tensor");
  m.def("shm_comm_broadcast_(Tensor(a!) tensor, int root, int group) -> ()");
}

TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("shm_comm_all_reduce_", TORCH_FN(ds::all_reduce_));
  m.impl("shm_comm_all_reduce", TORCH_FN(ds::all_reduce));
  m.impl("shm_comm_all_gather", TORCH_FN(ds::all_gather));
  m.impl("shm_comm_broadcast_", TORCH_FN(ds::broadcast_));
}

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("shm_comm_all_reduce_", TORCH_FN(ds::all_reduce_meta_));
  m.impl("shm_comm_all_reduce", TORCH_FN(ds::all_reduce_meta));
  m.impl("shm_comm_all_gather", TORCH_FN(ds::all_gather_meta));
  m.impl("shm_comm_broadcast_", TORCH_FN(ds::broadcast_meta_));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  m.impl("shm_comm_all_reduce_", torch::CppFunction::makeFallthrough());
  m.impl("shm_comm_all_reduce", torch::CppFunction::makeFallthrough());
  m.impl("shm_comm_all_gather", torch::CppFunction::makeFallthrough());
  m.impl("shm_comm_broadcast_", torch::CppFunction::makeFallthrough());
}
