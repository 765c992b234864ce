#include "orchestrator/package/deepspeed.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <regex>

namespace dsi::deepspeed {

namespace {

// clang-format off
constexpr Op kOps[] = {
    {"async_io", "DS_BUILD_AIO", "deepspeed.ops.aio.async_io_op"},
    {"ccl_comm", "DS_BUILD_CCL_COMM", "deepspeed.ops.comm.deepspeed_ccl_comm_op"},
    {"cpu_adagrad", "DS_BUILD_CPU_ADAGRAD", "deepspeed.ops.adagrad.cpu_adagrad_op"},
    {"cpu_adam", "DS_BUILD_CPU_ADAM", "deepspeed.ops.adam.cpu_adam_op"},
    {"cpu_lion", "DS_BUILD_CPU_LION", "deepspeed.ops.lion.cpu_lion_op"},
    {"cutlass_ops", "DS_BUILD_CUTLASS_OPS", "deepspeed.inference.v2.kernels.cutlass_ops.cutlass_ops"},
    {"dc", "DS_BUILD_DEEP_COMPILE", "deepspeed.ops.dc_op"},
    {"evoformer_attn", "DS_BUILD_EVOFORMER_ATTN", "deepspeed.ops.evoformer_attn_op"},
    {"fp_quantizer", "DS_BUILD_FP_QUANTIZER", "deepspeed.ops.fp_quantizer.fp_quantizer_op"},
    {"fused_adam", "DS_BUILD_FUSED_ADAM", "deepspeed.ops.adam.fused_adam_op"},
    {"fused_lamb", "DS_BUILD_FUSED_LAMB", "deepspeed.ops.lamb.fused_lamb_op"},
    {"fused_lion", "DS_BUILD_FUSED_LION", "deepspeed.ops.lion.fused_lion_op"},
    {"gds", "DS_BUILD_GDS", "deepspeed.ops.gds.gds_op"},
    {"inference_core_ops", "DS_BUILD_INFERENCE_CORE_OPS", "deepspeed.inference.v2.kernels.inference_core_ops"},
    {"pin_memory", "DS_BUILD_PIN_MEMORY", "deepspeed.ops.pin_memory.pin_memory_op"},
    {"quantizer", "DS_BUILD_QUANTIZER", "deepspeed.ops.quantizer.quantizer_op"},
    {"ragged_device_ops", "DS_BUILD_RAGGED_DEVICE_OPS", "deepspeed.inference.v2.kernels.ragged_ops.ragged_device_ops"},
    {"ragged_ops", "DS_BUILD_RAGGED_OPS", "deepspeed.inference.v2.ragged_ops"},
    {"random_ltd", "DS_BUILD_RANDOM_LTD", "deepspeed.ops.random_ltd_op"},
    {"shm_comm", "DS_BUILD_SHM_COMM", "deepspeed.ops.comm.deepspeed_shm_comm_op"},
    {"sparse_attn", "DS_BUILD_SPARSE_ATTN", "deepspeed.ops.sparse_attention.sparse_attn_op"},
    {"spatial_inference", "DS_BUILD_SPATIAL_INFERENCE", "deepspeed.ops.spatial.spatial_inference_op"},
    {"stochastic_transformer", "DS_BUILD_STOCHASTIC_TRANSFORMER", "deepspeed.ops.transformer.stochastic_transformer_op"},
    {"transformer", "DS_BUILD_TRANSFORMER", "deepspeed.ops.transformer.transformer_op"},
    {"transformer_inference", "DS_BUILD_TRANSFORMER_INFERENCE", "deepspeed.ops.transformer.inference.transformer_inference_op"},
    {"utils", "DS_BUILD_UTILS", "deepspeed.ops.utils_op"},
};
// clang-format on

std::string_view last_part(std::string_view module) {
  return module.substr(module.rfind('.') + 1);
}

std::string first_match(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

}  // namespace

std::string op_of_module(std::string_view module) {
  for (const Op& op : kOps) {
    if (op.module == module) return std::string(op.name);
  }
  // Versions move modules; the last part of the name has stayed.
  for (const Op& op : kOps) {
    if (last_part(op.module) == last_part(module)) return std::string(op.name);
  }
  return std::string(module);
}

const Op* op_of_variable(std::string_view variable) {
  const Op* found = std::find_if(std::begin(kOps), std::end(kOps),
                                 [&](const Op& op) { return op.variable == variable; });
  return found != std::end(kOps) ? found : nullptr;
}

bool is_build_state(std::string_view path) {
  return path == "deepspeed/git_version_info_installed.py";
}

std::vector<std::string> build_needs() {
  // op_builder asks cpuinfo what the CPU is, and silently builds scalar code without an answer.
  return {"torch", "setuptools", "wheel", "py-cpuinfo", "psutil"};
}

std::map<std::string, std::string> build_environment(const std::map<std::string, std::string>& set,
                                                     const BuildTarget& target) {
  std::map<std::string, std::string> added;
  // DS_BUILD_STRING is a part of the version and chooses nothing.
  const bool chosen = std::any_of(set.begin(), set.end(), [](const auto& variable) {
    return variable.first.starts_with("DS_BUILD_") && variable.first != "DS_BUILD_STRING" &&
           !variable.second.empty();
  });
  if (!chosen) added["DS_BUILD_OPS"] = "1";
  auto open = [&](const char* name) {
    auto at = set.find(name);
    return at == set.end() || at->second.empty();
  };
  // The hosts decide what is built, not what this machine happens to have.
  if (open("DS_ACCELERATOR")) {
    if (!target.compute_capabilities.empty() && target.torch_has_cuda) {
      added["DS_ACCELERATOR"] = "cuda";
    } else if (target.hosts_known && !target.old) {
      added["DS_ACCELERATOR"] = "cpu";
    }
  }
  if (open("TORCH_CUDA_ARCH_LIST") && !target.compute_capabilities.empty()) {
    std::string list;
    for (const std::string& capability : target.compute_capabilities) {
      list += (list.empty() ? "" : ";") + capability;
    }
    added["TORCH_CUDA_ARCH_LIST"] = list;
  }
  // Without it setuptools compiles one file after the other.
  if (open("DS_ENABLE_NINJA") && target.ninja) added["DS_ENABLE_NINJA"] = "1";
  return added;
}

VersionInfo read_version_info(std::string_view python) {
  const std::string text(python);
  VersionInfo info;
  const std::string ops = first_match(text, R"(installed_ops\s*=\s*\{([^}]*)\})");
  const std::regex entry(R"('(\w+)'\s*:\s*(\w+))");
  for (std::sregex_iterator at(ops.begin(), ops.end(), entry), end; at != end; ++at) {
    info.installed_ops[(*at)[1]] = (*at)[2] != "False" && (*at)[2] != "0" && (*at)[2] != "None";
  }
  info.accelerator = first_match(text, R"(accelerator_name\s*=\s*'(\w*)')");
  const std::string torch = first_match(text, R"(torch_info\s*=\s*\{([^}]*)\})");
  info.torch = first_match(torch, R"('version'\s*:\s*'([^']*)')");
  if (info.torch == "0.0") info.torch.clear();
  info.torch_cuda = first_match(torch, R"('cuda_version'\s*:\s*'([^']*)')");
  if (info.torch_cuda == "0.0") info.torch_cuda.clear();
  return info;
}

Result<void> check_asked_ops(const std::map<std::string, std::string>& set,
                             const std::vector<std::string>& modules) {
  for (const auto& [variable, value] : set) {
    const Op* op = op_of_variable(variable);
    if (op == nullptr || value.empty() || value == "0") continue;
    const bool built = std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
      return op_of_module(module) == op->name;
    });
    if (built) continue;
    return fail_with_help(
        fmt::format("{}={} asks for the op {}, and DeepSpeed left it out as incompatible with this "
                    "machine",
                    variable, value, op->name),
        "the reason is in the build's log; install what it names, or take the variable out");
  }
  return {};
}

}  // namespace dsi::deepspeed
