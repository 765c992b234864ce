// torch.ops.ds.ccl_comm_*; see ccl_comm.h for what they do. A group is a number, as in shm_comm.

#include <memory>
#include <string>
#include <vector>

#include "bind_collectives.h"
#include "ccl_comm.h"

namespace ds {
namespace {

using binding::bytes_of;
using binding::data_of;
using binding::with_torch_errors;

binding::Groups<CclComm>& groups() {
  return binding::groups<CclComm>("ccl_comm");
}

std::vector<std::int64_t> new_id() {
  const std::vector<std::uint8_t> id = with_torch_errors(ccl_comm_new_id);
  return {id.begin(), id.end()};
}

std::int64_t open(const std::vector<std::int64_t>& id, std::int64_t rank, std::int64_t size,
                  double timeout) {
  CclCommOptions options;
  for (const std::int64_t byte : id) options.id.push_back(static_cast<std::uint8_t>(byte));
  options.rank = binding::rank_or_size(rank);
  options.size = binding::rank_or_size(size);
  options.timeout = binding::time_limit("ds::ccl_comm_open", timeout);
  return with_torch_errors([&] {
    return groups().add(std::shared_ptr<CclComm>(ccl_comm_open(options), ccl_comm_close));
  });
}

void close(std::int64_t group) {
  groups().remove(group);
}

std::int64_t rank_of(std::int64_t group) {
  return ccl_comm_rank(*groups().get(group));
}

std::int64_t size_of(std::int64_t group) {
  return ccl_comm_size(*groups().get(group));
}

std::string backend_of(std::int64_t group) {
  return ccl_comm_backend_name(*groups().get(group));
}

std::string why_not_oneccl() {
  return with_torch_errors(ccl_comm_why_not_oneccl);
}

void all_reduce_(const at::Tensor& tensor, std::int64_t group, const std::string& op) {
  constexpr const char* kName = "ds::ccl_comm_all_reduce_";
  binding::in_place(kName, tensor, [&](const at::Tensor& memory) {
    const CommType type = binding::type_of(kName, memory);
    const CommReduction reduction = binding::reduction_of(kName, memory, op);
    const auto comm = groups().get(group);
    with_torch_errors(
        [&] { ccl_comm_all_reduce(*comm, data_of(memory), memory.numel(), type, reduction); });
  });
}

std::vector<std::int64_t> gathered_sizes(const at::Tensor& tensor, std::int64_t group) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size_of(group));
  return sizes;
}

at::Tensor all_gather(const at::Tensor& tensor, std::int64_t group) {
  binding::check("ds::ccl_comm_all_gather", tensor);
  const at::NoGradGuard no_grad;
  const at::Tensor own = binding::plain(tensor);
  const at::Tensor all = at::empty(gathered_sizes(tensor, group), own.options());
  const auto comm = groups().get(group);
  with_torch_errors([&] { ccl_comm_all_gather(*comm, data_of(own), data_of(all), bytes_of(own)); });
  return all;
}

void broadcast_(const at::Tensor& tensor, std::int64_t root, std::int64_t group) {
  const auto comm = groups().get(group);
  TORCH_CHECK_VALUE(root >= 0 && root < ccl_comm_size(*comm), "ds::ccl_comm_broadcast_: from rank ",
                    root, " of ", ccl_comm_size(*comm));
  binding::in_place("ds::ccl_comm_broadcast_", tensor, [&](const at::Tensor& memory) {
    with_torch_errors([&] {
      ccl_comm_broadcast(*comm, data_of(memory), bytes_of(memory), static_cast<int>(root));
    });
  });
}

void barrier(std::int64_t group) {
  const auto comm = groups().get(group);
  with_torch_errors([&] { ccl_comm_barrier(*comm); });
}

// For torch.compile and fake tensors: the same errors, and nothing is sent.
void all_reduce_meta_(const at::Tensor& tensor, std::int64_t group, const std::string& op) {
  constexpr const char* kName = "ds::ccl_comm_all_reduce_";
  binding::check(kName, tensor);
  binding::type_of(kName, tensor);
  binding::reduction_of(kName, tensor, op);
  groups().get(group);
}

at::Tensor all_gather_meta(const at::Tensor& tensor, std::int64_t group) {
  binding::check("ds::ccl_comm_all_gather", tensor);
  return at::empty(gathered_sizes(tensor, group), tensor.options().requires_grad(false));
}

void broadcast_meta_(const at::Tensor& tensor, std::int64_t, std::int64_t group) {
  binding::check("ds::ccl_comm_broadcast_", tensor);
  groups().get(group);
}

}  // namespace
}  // namespace ds

TORCH_LIBRARY_FRAGMENT(ds, m) {
  m.def("ccl_comm_new_id() -> int[]", ds::new_id);
  m.def("ccl_comm_why_not_oneccl() -> str", ds::why_not_oneccl);
  m.def("ccl_comm_open(int[] id, int rank, int size, float timeout=1800.0) -> int", ds::open);
  m.def("ccl_comm_close(int group) -> ()", ds::close);
  m.def("ccl_comm_rank(int group) -> int", ds::rank_of);
  m.def("ccl_comm_size(int group) -> int", ds::size_of);
  m.def("ccl_comm_backend(int group) -> str", ds::backend_of);
  m.def("ccl_comm_barrier(int group) -> ()", ds::barrier);
  m.def("ccl_comm_all_reduce_(Tensor(a!) tensor, int group, str op=\"sum\") -> ()");
  m.def("ccl_comm_all_gather(Tensor tensor, int group) -> Tensor");
  m.def("ccl_comm_broadcast_(Tensor(a!) tensor, int root, int group) -> ()");
}

TORCH_LIBRARY_IMPL(ds, CompositeExplicitAutograd, m) {
  m.impl("ccl_comm_all_reduce_", TORCH_FN(ds::all_reduce_));
  m.impl("ccl_comm_all_gather", TORCH_FN(ds::all_gather));
  m.impl("ccl_comm_broadcast_", TORCH_FN(ds::broadcast_));
}

TORCH_LIBRARY_IMPL(ds, Meta, m) {
  m.impl("ccl_comm_all_reduce_", TORCH_FN(ds::all_reduce_meta_));
  m.impl("ccl_comm_all_gather", TORCH_FN(ds::all_gather_meta));
  m.impl("ccl_comm_broadcast_", TORCH_FN(ds::broadcast_meta_));
}

// torch 1.13 knows no way from here to Meta.
TORCH_LIBRARY_IMPL(ds, AutogradMeta, m) {
  m.impl("ccl_comm_all_reduce_", torch::CppFunction::makeFallthrough());
  m.impl("ccl_comm_all_gather", torch::CppFunction::makeFallthrough());
  m.impl("ccl_comm_broadcast_", torch::CppFunction::makeFallthrough());
}
