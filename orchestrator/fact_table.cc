#include "orchestrator/fact_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "orchestrator/fatbin.h"

namespace dsi {

namespace {

using C = const FactContext&;
using T = FactType;
using U = FactUse;

FactValue text(const std::string& value) {
  return value.empty() ? FactValue() : FactValue(value);
}
FactValue number(std::uint64_t value) {
  return value == 0 ? FactValue() : FactValue(static_cast<double>(value));
}
FactValue found(const std::optional<std::uint64_t>& value) {
  return value ? FactValue(static_cast<double>(*value)) : FactValue();
}
FactValue found(const std::optional<bool>& value) {
  return value ? FactValue(*value) : FactValue();
}
FactValue list(std::vector<std::string> value) {
  return FactValue(std::move(value));
}
// Of a host that nobody could look at nothing is known, not even that something is not there.
FactValue if_known(C c, FactValue value) {
  return c.row.node.known ? std::move(value) : FactValue();
}
FactValue in_place(const NodePlace& place, FactValue value) {
  return place.known ? std::move(value) : FactValue();
}
FactValue inodes(const NodePlace& place) {
  if (place.counts_inodes) return in_place(place, found(place.free_inodes));
  return in_place(place, std::numeric_limits<double>::infinity());
}

std::vector<std::string> sorted_set(std::vector<std::string> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::vector<std::string> gpu_names(const NodeFacts& node) {
  std::vector<std::string> names;
  for (const NodeGpu& gpu : node.gpus) names.push_back(gpu.name);
  return sorted_set(names);
}

// Unknown unless the list is all there is.
FactValue of_gpus(C c, FactValue value) {
  return c.row.node.gpus_known ? if_known(c, std::move(value)) : FactValue();
}

FactValue any_mig(C c) {
  bool all_known = true;
  for (const NodeGpu& gpu : c.row.node.gpus) {
    if (gpu.mig == true) return true;
    all_known = all_known && gpu.mig.has_value();
  }
  return all_known ? of_gpus(c, false) : FactValue();
}

FactValue torch_found(C c) {
  const NodeTorch& torch = c.row.node.torch;
  if (!torch.path.empty()) return true;
  return torch.searched ? if_known(c, false) : FactValue();
}

FactValue gpu_capabilities(C c) {
  std::vector<std::string> all;
  for (const NodeGpu& gpu : c.row.node.gpus) {
    if (gpu.compute_capability.empty()) return {};
    all.push_back(gpu.compute_capability);
  }
  return of_gpus(c, list(sorted_set(all)));
}

FactValue unserved(C c) {
  FactValue capabilities = gpu_capabilities(c);
  const auto* all = std::get_if<std::vector<std::string>>(&capabilities);
  if (all == nullptr) return {};
  // Of one op, or of all that have code for devices.
  std::vector<std::string> left;
  bool known = false;
  for (const OpRequirements& op : c.build.ops) {
    if ((c.op != nullptr && c.op != &op) || op.compute_capabilities.empty()) continue;
    known = true;
    for (const std::string& one : *all) {
      if (!runs_on(op.compute_capabilities, one)) left.push_back(one);
    }
  }
  return known ? list(sorted_set(left)) : FactValue();
}

FactValue build_isa_level(C c) {
  int level = 0;
  for (const OpRequirements& op : c.build.ops) level = std::max(level, op.isa_level);
  return number(static_cast<std::uint64_t>(level));
}

FactValue build_capabilities(C c) {
  std::vector<std::string> all = compute_capabilities_of(c.build);
  return all.empty() ? FactValue() : list(std::move(all));
}

FactValue missing_libraries(C c) {
  if (c.op == nullptr || !c.row.node.known) return {};
  std::vector<std::string> missing;
  for (const std::string& name : c.op->libraries) {
    const auto& absent = c.row.node.absent_libraries;
    if (std::find(absent.begin(), absent.end(), name) != absent.end()) missing.push_back(name);
  }
  return list(missing);
}

FactValue isa_level(C c) {
  const std::string& isa = c.row.node.cpu.isa;
  return isa.starts_with("x86-64-v") ? FactValue(double(isa.back() - '0')) : FactValue();
}

FactValue keys(C c) {
  std::vector<std::string> names;
  for (const auto& [name, path] : c.row.node.libraries) names.push_back(name);
  return if_known(c, list(names));
}

FactValue toolkits(C c) {
  std::vector<std::string> versions;
  for (const NodeToolkit& toolkit : c.row.node.toolkits) versions.push_back(toolkit.version);
  return if_known(c, list(sorted_set(versions)));
}

const NodeLock* oldest_lock(C c) {
  const NodeLock* oldest = nullptr;
  for (const NodeLock& lock : c.row.node.locks) {
    if (oldest == nullptr || lock.age_s > oldest->age_s) oldest = &lock;
  }
  return oldest;
}

FactValue package_named(C c, const char* name) {
  auto at = c.row.node.packages.find(name);
  return at != c.row.node.packages.end() ? text(at->second) : FactValue();
}

// The look by the shell knows it too, where ds-facts could not be run.
FactValue arch(C c) {
  return text(c.row.node.arch.empty() ? c.row.facts.arch : c.row.node.arch);
}

// NOLINTBEGIN(bugprone-macro-parentheses)
#define READ(expression) \
  [](C c) -> FactValue { \
    (void)c;             \
    return expression;   \
  }
#define NODE c.row.node
const FactSpec kFacts[] = {
    {"node.name", T::kText, U::kOther, "the host, as the hostfile names it",
     READ(text(c.row.host))},
    {"node.known", T::kFlag, U::kOther, "ds-facts could run there", READ(NODE.known)},
    {"node.unknown_because", T::kText, U::kOther, "why it could not",
     READ(text(NODE.unknown_because))},
    {"node.arch", T::kText, U::kGroup, "architecture, as uname has it", READ(arch(c))},
    {"node.kernel", T::kVersion, U::kOther, "Linux", READ(text(c.row.facts.kernel))},
    {"node.user", T::kText, U::kOther, "who logs in", READ(text(NODE.user))},
    {"node.shell", T::kText, U::kOther, "login shell", READ(text(NODE.shell))},
    {"node.sudo", T::kFlag, U::kOther, "it works under sudo (-s)", READ(if_known(c, NODE.sudo))},
    {"node.clock_off", T::kSeconds, U::kRange, "how far its clock is ahead of this machine's",
     READ(NODE.clock_off_s ? FactValue(*NODE.clock_off_s) : FactValue())},
    {"node.cpu.model", T::kText, U::kOther, "processor", READ(text(NODE.cpu.model))},
    {"node.cpu.isa", T::kText, U::kGroup, "x86-64-v1 to x86-64-v4, as the psABI has them",
     READ(text(NODE.cpu.isa))},
    {"node.cpu.isa_level", T::kNumber, U::kOther, "the 1 to 4 of it", isa_level},
    {"node.cpu.avx512_bf16", T::kFlag, U::kGroup, "it multiplies bfloat16",
     READ(found(NODE.cpu.avx512_bf16))},
    {"node.cpu.hypervisor", T::kText, U::kOther,
     "what it is a guest of; TCGTCGTCGTCG: emulated by QEMU", READ(text(NODE.cpu.hypervisor))},
    {"node.cpu.cores", T::kNumber, U::kRange, "that this user may use",
     READ(found(NODE.cpu.cores))},
    {"node.cpu.numa_nodes", T::kNumber, U::kOther, "NUMA nodes", READ(found(NODE.cpu.numa_nodes))},
    {"node.memory.bytes", T::kBytes, U::kRange, "memory", READ(found(NODE.memory.bytes))},
    {"node.memory.shm_bytes", T::kBytes, U::kOther, "free in /dev/shm",
     READ(found(NODE.memory.shm_bytes))},
    {"node.memory.locked_bytes", T::kBytes, U::kOther, "that a process may lock",
     READ(found(NODE.memory.locked_bytes))},
    {"node.libc.name", T::kText, U::kGroup, "glibc or musl", READ(text(NODE.libc.name))},
    {"node.libc.glibc", T::kVersion, U::kGroup, "highest GLIBC_ symbol version of libc.so.6",
     READ(text(NODE.libc.glibc))},
    {"node.libc.glibcxx", T::kVersion, U::kGroup,
     "highest GLIBCXX_ symbol version of libstdc++.so.6", READ(text(NODE.libc.glibcxx))},
    {"node.libc.cxxabi", T::kVersion, U::kGroup, "highest CXXABI_ symbol version of libstdc++.so.6",
     READ(text(NODE.libc.cxxabi))},
    {"node.libc.libstdcxx", T::kText, U::kOther, "path of libstdc++.so.6",
     READ(text(NODE.libc.libstdcxx))},
    {"node.libraries", T::kList, U::kGroup, "libraries that ops may need and that are there", keys},
    {"node.gpus.count", T::kNumber, U::kGroup, "devices that the driver shows",
     READ(of_gpus(c, double(NODE.gpus.size())))},
    {"node.gpus.names", T::kList, U::kGroup, "what they are",
     READ(of_gpus(c, list(gpu_names(NODE))))},
    {"node.gpus.compute_capabilities", T::kList, U::kGroup, "their compute capabilities",
     gpu_capabilities},
    {"node.gpus.unserved", T::kList, U::kOther, "those of them that the build has no code for",
     unserved},
    {"node.gpus.mig", T::kFlag, U::kGroup, "one of them is in MIG mode", any_mig},
    {"node.gpus.on_bus", T::kNumber, U::kOther,
     "NVIDIA devices on the bus, with or without a driver",
     READ(found(NODE.driver.devices_on_bus))},
    {"node.driver.version", T::kVersion, U::kGroup, "NVIDIA's driver",
     READ(text(NODE.driver.version))},
    {"node.driver.cuda", T::kVersion, U::kGroup, "the CUDA level that it supports",
     READ(text(NODE.driver.cuda))},
    {"node.driver.error", T::kText, U::kOther, "why nvidia-smi says nothing",
     READ(text(NODE.driver.error))},
    {"node.toolkits", T::kList, U::kOther, "versions of CUDA toolkits", toolkits},
    {"node.torch.found", T::kFlag, U::kOther,
     "there is one; unknown where only the host's Python could tell", torch_found},
    {"node.torch.version", T::kVersion, U::kGroup, "the torch that ops would load",
     READ(text(NODE.torch.version))},
    {"node.torch.cuda", T::kVersion, U::kGroup, "the CUDA that it was compiled with",
     READ(text(NODE.torch.cuda))},
    {"node.torch.with_cuda", T::kFlag, U::kGroup, "it was compiled with CUDA",
     READ(found(NODE.torch.with_cuda))},
    {"node.torch.abi", T::kText, U::kGroup, "which of g++'s strings it takes: cxx11 or old",
     READ(text(NODE.torch.abi))},
    {"node.torch.path", T::kText, U::kOther, "where its libraries are",
     READ(text(NODE.torch.path))},
    {"node.packages.accelerate", T::kVersion, U::kOther, "the Python package",
     READ(package_named(c, "accelerate"))},
    {"node.packages.deepspeed", T::kVersion, U::kGroup, "the Python package",
     READ(package_named(c, "deepspeed"))},
    {"node.packages.fairscale", T::kVersion, U::kOther, "the Python package",
     READ(package_named(c, "fairscale"))},
    {"node.packages.numpy", T::kVersion, U::kOther, "the Python package",
     READ(package_named(c, "numpy"))},
    {"node.packages.onnxruntime_training", T::kVersion, U::kOther, "the Python package",
     READ(package_named(c, "onnxruntime_training"))},
    {"node.packages.optimum", T::kVersion, U::kOther, "the Python package",
     READ(package_named(c, "optimum"))},
    {"node.packages.transformers", T::kVersion, U::kOther, "the Python package",
     READ(package_named(c, "transformers"))},
    {"node.packages.triton", T::kVersion, U::kOther, "the Python package",
     READ(package_named(c, "triton"))},
    {"node.current", T::kText, U::kOther, "the release that is installed",
     READ(text(c.row.facts.current))},
    {"node.prefix.path", T::kText, U::kGroup, "where releases go", READ(text(c.row.facts.prefix))},
    {"node.prefix.file_system", T::kText, U::kGroup, "what it lies on",
     READ(text(NODE.prefix.file_system))},
    {"node.prefix.network", T::kFlag, U::kOther, "that is a network file system",
     READ(in_place(NODE.prefix, NODE.prefix.network))},
    {"node.prefix.share", T::kText, U::kOther, "the folder's name on its server",
     READ(text(NODE.prefix.share))},
    {"node.prefix.shared_by", T::kNumber, U::kOther, "hosts of this run that see the same folder",
     READ(double(c.shared_by))},
    {"node.prefix.no_exec", T::kFlag, U::kGroup, "it is mounted noexec",
     READ(in_place(NODE.prefix, NODE.prefix.no_exec))},
    {"node.prefix.read_only", T::kFlag, U::kGroup, "it is mounted read-only",
     READ(in_place(NODE.prefix, NODE.prefix.read_only))},
    {"node.prefix.writable", T::kFlag, U::kGroup, "the user may write there",
     READ(in_place(NODE.prefix, NODE.prefix.writable))},
    {"node.prefix.at", T::kText, U::kOther, "the nearest folder above that exists",
     READ(text(NODE.prefix.at))},
    {"node.prefix.free_bytes", T::kBytes, U::kRange, "free there",
     READ(in_place(NODE.prefix, found(NODE.prefix.free_bytes)))},
    {"node.prefix.free_inodes", T::kNumber, U::kRange, "files that can still be made there",
     READ(inodes(NODE.prefix))},
    {"node.temp.path", T::kText, U::kOther, "folder for temporary files",
     READ(text(NODE.temp.path))},
    {"node.temp.no_exec", T::kFlag, U::kGroup, "it is mounted noexec",
     READ(in_place(NODE.temp, NODE.temp.no_exec))},
    {"node.temp.free_bytes", T::kBytes, U::kRange, "free there",
     READ(in_place(NODE.temp, found(NODE.temp.free_bytes)))},
    {"node.extensions.path", T::kText, U::kOther,
     "torch's folder of extensions that are compiled when used", READ(text(NODE.extensions.path))},
    {"node.extensions.file_system", T::kText, U::kOther, "what it lies on",
     READ(text(NODE.extensions.file_system))},
    {"node.extensions.network", T::kFlag, U::kOther, "that is a network file system",
     READ(in_place(NODE.extensions, NODE.extensions.network))},
    {"node.lock.path", T::kText, U::kOther, "the oldest lock in that folder",
     READ(oldest_lock(c) ? text(oldest_lock(c)->path) : FactValue())},
    {"node.lock.age", T::kSeconds, U::kOther, "how old it is",
     READ(oldest_lock(c) ? FactValue(double(oldest_lock(c)->age_s)) : FactValue())},

    {"build.arch", T::kText, U::kOther, "architecture that the libraries are for",
     READ(text(c.build.arch))},
    {"build.torch", T::kVersion, U::kOther, "torch that they are compiled against",
     READ(text(c.build.torch))},
    {"build.torch_abi", T::kText, U::kOther, "which of g++'s strings that takes",
     READ(text(c.build.torch_abi))},
    {"build.torch_cuda", T::kVersion, U::kOther, "the CUDA that it was compiled with",
     READ(text(c.build.torch_cuda))},
    {"build.cuda", T::kVersion, U::kOther, "CUDA toolkit of the build", READ(text(c.build.cuda))},
    {"build.compute_capabilities", T::kList, U::kOther, "that there is code for",
     build_capabilities},
    {"build.isa_level", T::kNumber, U::kOther,
     "x86-64 level that some op needs; unknown: none says so", build_isa_level},
    {"build.bytes", T::kBytes, U::kOther, "that a first install takes",
     READ(number(c.build.bytes))},
    {"build.files", T::kNumber, U::kOther, "files of a first install", READ(number(c.build.files))},

    {"op.name", T::kText, U::kOther, "the op", READ(c.op ? text(c.op->name) : FactValue())},
    {"op.glibc", T::kVersion, U::kOther, "highest GLIBC_ symbol version that it needs",
     READ(c.op ? text(c.op->glibc) : FactValue())},
    {"op.glibcxx", T::kVersion, U::kOther, "highest GLIBCXX_ symbol version that it needs",
     READ(c.op ? text(c.op->glibcxx) : FactValue())},
    {"op.cxxabi", T::kVersion, U::kOther, "highest CXXABI_ symbol version that it needs",
     READ(c.op ? text(c.op->cxxabi) : FactValue())},
    {"op.libraries", T::kList, U::kOther, "libraries that it is linked to",
     READ(c.op ? list(c.op->libraries) : FactValue())},
    {"op.missing_libraries", T::kList, U::kOther, "those of them that the host does not have",
     missing_libraries},
    {"op.compute_capabilities", T::kList, U::kOther, "that it has code for",
     READ(c.op && !c.op->compute_capabilities.empty() ? list(c.op->compute_capabilities)
                                                      : FactValue())},
    {"op.unserved", T::kList, U::kOther,
     "compute capabilities of the host's devices that it has no code for",
     READ(c.op ? unserved(c) : FactValue())},
    {"op.isa_level", T::kNumber, U::kOther, "x86-64 level that it needs; unknown: it does not say",
     READ(c.op ? number(static_cast<std::uint64_t>(c.op->isa_level)) : FactValue())},
    {"op.devices", T::kList, U::kOther, "cpu, cuda",
     READ(c.op ? list(c.op->devices) : FactValue())},
};
#undef NODE
#undef READ
// NOLINTEND(bugprone-macro-parentheses)

std::string bytes_text(double bytes) {
  // What the kernel calls unlimited.
  if (bytes >= 9.2e18) return "unlimited";
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string seconds_text(double seconds) {
  double size = std::abs(seconds);
  if (size < 120) return fmt::format("{:.1f} s", seconds);
  if (size < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (size < 172'800) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86'400);
}

}  // namespace

const char* to_string(FactType type) {
  switch (type) {
    case T::kText:
      return "text";
    case T::kVersion:
      return "version";
    case T::kNumber:
      return "number";
    case T::kBytes:
      return "bytes";
    case T::kSeconds:
      return "seconds";
    case T::kFlag:
      return "yes or no";
    case T::kList:
      return "list";
  }
  return "";
}

std::span<const FactSpec> fact_table() {
  return kFacts;
}

const FactSpec* find_fact(std::string_view name) {
  for (const FactSpec& fact : kFacts) {
    if (fact.name == name) return &fact;
  }
  return nullptr;
}

std::string fact_text(const FactSpec& fact, const FactValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "yes" : "no";
  if (const std::string* words = std::get_if<std::string>(&value)) return *words;
  if (const double* count = std::get_if<double>(&value)) {
    if (fact.type == T::kBytes) return bytes_text(*count);
    if (fact.type == T::kSeconds) return seconds_text(*count);
    return std::isinf(*count) ? "unlimited" : fmt::format("{:.0f}", *count);
  }
  if (const auto* all = std::get_if<std::vector<std::string>>(&value)) {
    std::string joined;
    for (const std::string& one : *all) joined += (joined.empty() ? "" : ", ") + one;
    return joined.empty() ? "none" : joined;
  }
  return "unknown";
}

}  // namespace dsi
