#pragma once

// Which NVIDIA devices code is made for. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

struct CudaArch {
  int major = 0;
  int minor = 0;
  char suffix = 0;   // 'a': this device only; 'f': its family.
  bool ptx = false;  // Also as PTX, which the driver compiles for what comes later.
  friend auto operator<=>(const CudaArch&, const CudaArch&) = default;
};

// "9.0a+PTX", as TORCH_CUDA_ARCH_LIST has it.
std::string to_string(const CudaArch& arch);
// "8.0;9.0+PTX".
std::string to_string(const std::vector<CudaArch>& archs);

// TORCH_CUDA_ARCH_LIST in every spelling that is met: "8.0;8.6+PTX", "9.0a", "Hopper", "90",
// "sm_90a", "compute_80"; with ';', ',' or spaces between, also stray ones, and in quotes. Sorted,
// each once. Empty text, "auto" and "native": empty, which means what the hosts have. `source` is
// for messages: "TORCH_CUDA_ARCH_LIST".
Result<std::vector<CudaArch>> parse_cuda_archs(std::string_view text, std::string_view source);

// What devices of these compute capabilities ("9.0") need: machine code for each.
std::vector<CudaArch> archs_of_devices(const std::vector<std::string>& compute_capabilities);

struct ClampedArchs {
  std::vector<CudaArch> archs;
  std::vector<std::string> remarks;  // What was left out or replaced, and why, one a line.
};

// Leaves out what nvcc does not compile for. `nvcc_codes` is what `nvcc --list-gpu-code` says:
// "sm_75", "sm_90a". Devices that are newer than all of that get PTX of the newest.
ClampedArchs clamp_archs(const std::vector<CudaArch>& wanted,
                         const std::vector<std::string>& nvcc_codes);

// As DeepSpeed decides: the toolkit's major version must be that of torch's CUDA; another minor one
// is a remark. `skip` is DS_SKIP_CUDA_CHECK. A torch without CUDA: an error that says so.
Result<std::string> check_toolkit(const std::string& toolkit, const std::string& torch_cuda,
                                  bool skip);

// Of several toolkits the one for torch's CUDA: the same minor version, else the nearest above it
// with the same major, else the highest below it with that. -1: none fits.
int choose_toolkit(const std::vector<std::string>& toolkits, const std::string& torch_cuda);

// What people have in CUDA_HOME: the first absolute folder of a list, without "/bin", "/bin/nvcc"
// and slashes at the end. Empty: nothing in it can be one.
std::string sane_cuda_home(std::string_view value);

}  // namespace dsi
