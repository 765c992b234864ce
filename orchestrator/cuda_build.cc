#include "orchestrator/cuda_build.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "orchestrator/elf.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// DeepSpeed takes any value but "0" for yes.
bool is_on(const std::string& value) {
  return !value.empty() && value != "0";
}

std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; (at = text.find_first_not_of(" \t\r\n", at)) != std::string::npos;) {
    std::size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string list_of(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return text;
}

std::vector<std::string> versions_of(const std::vector<CudaToolkit>& toolkits) {
  std::vector<std::string> versions;
  for (const CudaToolkit& toolkit : toolkits) versions.push_back(toolkit.version);
  return versions;
}

// Where nobody says for what: what CMakeLists.txt of the ops has, too.
constexpr std::string_view kAnyHost = "8.0;9.0;10.0;12.0+PTX";

// No op has code that only a family knows, and this CMake has no word for it.
void drop_families(std::vector<CudaArch>& archs, std::vector<std::string>& warnings) {
  for (CudaArch& arch : archs) {
    if (arch.suffix != 'f') continue;
    const std::string asked = to_string(arch);
    arch.suffix = 0;
    warnings.push_back(fmt::format("{} becomes {}: no op has code for a family of devices", asked,
                                   to_string(arch)));
  }
  std::sort(archs.begin(), archs.end());
  archs.erase(std::unique(archs.begin(), archs.end()), archs.end());
}

// The one for this torch, with what is to be said about it.
Result<CudaToolkit> choose(const CudaWish& wish, const Torch& torch,
                           const std::vector<CudaToolkit>& toolkits,
                           std::vector<std::string>& warnings) {
  const auto newest = std::max_element(
      toolkits.begin(), toolkits.end(),
      [](const auto& a, const auto& b) { return version_less(a.version, b.version); });
  // Ops that need no torch can be built all the same; of the others CMake says that they cannot.
  if (!torch.has_cuda || torch.cuda.empty()) return *newest;
  int at = choose_toolkit(versions_of(toolkits), torch.cuda);
  const CudaToolkit& chosen = at >= 0 ? toolkits[static_cast<std::size_t>(at)] : *newest;
  DSI_TRY(std::string remark, check_toolkit(chosen.version, torch.cuda, wish.skip_check));
  if (!remark.empty()) warnings.push_back(remark);
  return chosen;
}

}  // namespace

std::vector<fs::path> nvcc_places() {
  std::vector<fs::path> places;
  auto add = [&](const fs::path& nvcc) {
    std::error_code error;
    fs::path real = fs::canonical(nvcc, error);
    if (error || !fs::is_regular_file(real)) return;
    auto same = [&](const fs::path& other) { return fs::canonical(other, error) == real; };
    if (std::none_of(places.begin(), places.end(), same)) places.push_back(nvcc);
  };
  if (std::string nvcc = variable("CUDACXX"); nvcc.starts_with('/')) add(nvcc);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (std::string home = sane_cuda_home(variable(name)); !home.empty()) {
      add(fs::path(home) / "bin/nvcc");
    }
  }
  const std::string path = variable("PATH");
  for (std::size_t at = 0; at < path.size();) {
    std::size_t end = std::min(path.find(':', at), path.size());
    if (end > at && path[at] == '/') add(fs::path(path.substr(at, end - at)) / "nvcc");
    at = end + 1;
  }
  std::vector<fs::path> local;
  std::error_code error;
  for (fs::directory_iterator it("/usr/local", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with("cuda")) local.push_back(it->path());
  }
  std::sort(local.begin(), local.end());
  for (const fs::path& folder : local) add(folder / "bin/nvcc");
  return places;
}

std::vector<CudaToolkit> find_toolkits(const std::vector<fs::path>& places,
                                       ProcessRunner& processes, std::stop_token stop) {
  std::vector<CudaToolkit> toolkits;
  for (const fs::path& nvcc : places) {
    auto ran = processes.run({{nvcc.string(), "--version"}, {}, {}}, Deadline::after(30s), stop);
    if (!ran || !ran->ok()) continue;
    CudaToolkit toolkit{nvcc, first_match(ran->out, R"(release (\d+\.\d+))"), {}};
    if (toolkit.version.empty()) continue;
    auto codes =
        processes.run({{nvcc.string(), "--list-gpu-code"}, {}, {}}, Deadline::after(30s), stop);
    if (codes && codes->ok()) toolkit.codes = words_in(codes->out);
    toolkits.push_back(std::move(toolkit));
  }
  return toolkits;
}

CudaWish cuda_wish(bool hosts_known, std::vector<std::string> compute_capabilities) {
  return {hosts_known, std::move(compute_capabilities), variable("TORCH_CUDA_ARCH_LIST"),
          variable("DS_ACCELERATOR"), is_on(variable("DS_SKIP_CUDA_CHECK"))};
}

Result<CudaDecision> decide_cuda(const CudaWish& wish, const Torch& torch,
                                 const std::vector<CudaToolkit>& toolkits) {
  CudaDecision decision;
  DSI_TRY(std::vector<CudaArch> asked, parse_cuda_archs(wish.arch_list, "TORCH_CUDA_ARCH_LIST"));
  const bool demanded = wish.accelerator == "cuda";
  // For hosts that nobody has looked at the torch that they are to have says what they are.
  const bool useful =
      wish.hosts_known ? !wish.compute_capabilities.empty() : !asked.empty() || torch.has_cuda;
  if (wish.accelerator == "cpu" || (!demanded && !useful)) return decision;

  if (toolkits.empty()) {
    const std::string what = "no nvcc is on this machine, and it compiles code for devices";
    const std::string help =
        fmt::format("install a CUDA toolkit{}; it needs neither a device nor a driver",
                    torch.cuda.empty() ? "" : fmt::format(" {}", torch.cuda));
    if (demanded) return fail_with_help(what, help);
    if (wish.hosts_known) {
      decision.warnings.push_back(
          fmt::format("the hosts have devices ({}), and the ops are built for the processor only: "
                      "{}\n  help: {}",
                      list_of(wish.compute_capabilities), what, help));
    }
    return decision;
  }

  CudaBuild build;
  DSI_TRY(build.toolkit, choose(wish, torch, toolkits, decision.warnings));
  std::vector<CudaArch> wanted = asked;
  if (wanted.empty()) wanted = archs_of_devices(wish.compute_capabilities);
  if (wanted.empty()) {
    DSI_TRY(wanted, parse_cuda_archs(kAnyHost, "the ops"));
  }
  drop_families(wanted, decision.warnings);
  ClampedArchs clamped = clamp_archs(wanted, build.toolkit.codes);
  for (std::string& remark : clamped.remarks) {
    decision.warnings.push_back(fmt::format("{} (nvcc {})", remark, build.toolkit.version));
  }
  if (clamped.archs.empty()) {
    return fail_with_help(
        fmt::format("nvcc {} compiles for none of {}", build.toolkit.version, to_string(wanted)),
        fmt::format("name others with TORCH_CUDA_ARCH_LIST; this one knows {}",
                    list_of(build.toolkit.codes)));
  }
  build.archs = std::move(clamped.archs);
  decision.build = std::move(build);
  return decision;
}

std::vector<std::string> codes_not_in(const Manifest& manifest,
                                      const std::optional<CudaBuild>& build) {
  std::vector<std::string> lines;
  if (!build) return lines;
  for (const ManifestOp& op : manifest.ops) {
    const bool for_devices =
        std::find(op.devices.begin(), op.devices.end(), "cuda") != op.devices.end();
    if (op.library.empty() || !for_devices) continue;
    auto has = [&](const std::string& code) {
      return std::find(op.compute_capabilities.begin(), op.compute_capabilities.end(), code) !=
             op.compute_capabilities.end();
    };
    std::vector<std::string> lost;
    for (CudaArch arch : build->archs) {
      const bool ptx = arch.ptx;
      arch.ptx = false;
      if (std::string code = to_string(arch); !has(code)) lost.push_back(code);
      if (std::string code = to_string(arch) + "+PTX"; ptx && !has(code)) lost.push_back(code);
    }
    if (!lost.empty()) {
      lines.push_back(fmt::format(
          "{} has no code for {}, which nvcc was asked for; it has {}", op.name, list_of(lost),
          op.compute_capabilities.empty() ? "none at all" : list_of(op.compute_capabilities)));
    }
  }
  return lines;
}

std::string cmake_architectures(const std::vector<CudaArch>& archs) {
  std::string list;
  for (const CudaArch& arch : archs) {
    list += fmt::format("{}{}{}", list.empty() ? "" : ";", arch.major, arch.minor);
    if (arch.suffix != 0) list += arch.suffix;
    if (!arch.ptx) list += "-real";
  }
  return list;
}

}  // namespace dsi
