#include "orchestrator/environment/conda.h"

#include "orchestrator/elf.h"
#include "orchestrator/environment/base.h"

namespace dsi {

namespace {

// What builds the ops where neither a base nor nvcc says with what.
constexpr int kAnyCompiler = 13;

}  // namespace

std::string conda_sysroot(const std::string& glibc) {
  std::string newest;
  for (const char* version : {"2.17", "2.28", "2.34", "2.39"}) {
    if (glibc.empty() || !version_less(glibc, version)) newest = version;
  }
  return newest;
}

Result<std::string> conda_text(const Environment& environment, const std::string& name) {
  const std::string sysroot = conda_sysroot(environment.glibc);
  if (sysroot.empty()) {
    return fail_with_help(
        fmt::format("no system library of conda-forge is as old as glibc {}", environment.glibc),
        "update that host, or leave it out");
  }
  int compiler = environment.compiler;
  if (compiler == 0) {
    const int limit = environment.cuda.empty() ? 0 : newest_compiler_for(environment.cuda);
    compiler = limit == 0 ? kAnyCompiler : std::min(limit, kAnyCompiler);
  }
  // conda's names of platforms: linux-64, linux-aarch64.
  const std::string platform = environment.machine == "aarch64" ? "linux-aarch64" : "linux-64";
  const std::string torch = environment.torch.substr(0, environment.torch.find('+'));
  std::string text = fmt::format(
      "# Made by ds-install env. Then: conda env create -f FILE; conda activate {0}; ds-install\n"
      "name: {0}\n"
      "channels: [conda-forge, nodefaults]\n"
      "dependencies:\n",
      name);
  auto add = [&](const std::string& package) { text += "  - " + package + "\n"; };
  if (!environment.python.empty()) add("python=" + environment.python);
  add("pip");
  add("cmake>=3.23,<4");
  add("ninja");
  add(fmt::format("gxx_{}={}", platform, compiler));
  add(fmt::format("sysroot_{}={}", platform, sysroot));
  add("libaio");
  add("liburing>=2.3");
  if (!environment.cuda.empty()) {
    add("cuda-version=" + environment.cuda);
    add("cuda-nvcc");
    add("cuda-cudart-dev");
  }
  if (!torch.empty()) text += fmt::format("  - pip:\n      - torch=={}\n", torch);
  if (!environment.compute_capabilities.empty()) {
    std::string list;
    for (const std::string& one : environment.compute_capabilities) {
      list += (list.empty() ? "" : ";") + one;
    }
    text += fmt::format("variables:\n  TORCH_CUDA_ARCH_LIST: \"{}\"\n", list);
  }
  return text;
}

}  // namespace dsi
