#include "orchestrator/package/check.h"

#include <algorithm>
#include <optional>
#include <set>

#include "orchestrator/elf.h"
#include "orchestrator/fatbin.h"
#include "orchestrator/package/marker.h"
#include "orchestrator/package/wheel_file.h"
#include "orchestrator/text.h"

namespace dsi {

namespace {

using protocol::PythonFacts;

class Problems {
 public:
  // "torch: needs 2.11, found 1.13.1".
  void add(std::string_view what, std::string_view required, std::string_view found,
           const std::string& help) {
    add(fmt::format("{}: needs {}, found {}", what, required, printable(found)), help);
  }
  void add(const std::string& problem, const std::string& help) {
    what_ += (what_.empty() ? "" : "; ") + problem;
    if (!help.empty() && seen_.insert(help).second) help_ += (help_.empty() ? "" : "; ") + help;
  }
  Error error(const ManifestPackage& package, const PythonFacts& python) const {
    if (what_.empty()) return {};
    return {fmt::format("{}{}{} cannot be installed into {}: {}", package.name,
                        package.version.empty() ? "" : " ", package.version,
                        printable(python.executable), what_),
            help_};
  }

 private:
  std::string what_;
  std::string help_;
  std::set<std::string> seen_;
};

// "2.11.0+cu130" → "2.11".
std::string major_minor(std::string_view version) {
  const std::size_t first = version.find('.');
  if (first == version.npos) return std::string(version);
  return std::string(version.substr(0, version.find_first_not_of("0123456789", first + 1)));
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// What a platform of PEP 600 and of its forerunners (PEP 513, 571, 599) asks for.
struct Manylinux {
  std::string arch;
  std::string glibc;
  std::string pip;  // The first that knows platforms of this form.
};

// "manylinux_2_31_x86_64", "manylinux2014_x86_64"; nothing: another kind of platform.
std::optional<Manylinux> parse_manylinux(const std::string& platform) {
  struct Legacy {
    std::string_view prefix;
    const char* glibc;
    const char* pip;
  };
  for (const Legacy& legacy :
       {Legacy{"manylinux1_", "2.5", "8.1"}, Legacy{"manylinux2010_", "2.12", "19.0"},
        Legacy{"manylinux2014_", "2.17", "19.3"}}) {
    if (!platform.starts_with(legacy.prefix)) continue;
    return Manylinux{platform.substr(legacy.prefix.size()), legacy.glibc, legacy.pip};
  }
  constexpr std::string_view kPrefix = "manylinux_";
  if (!platform.starts_with(kPrefix)) return std::nullopt;
  const std::size_t minor = platform.find('_', kPrefix.size());
  const std::size_t arch = minor == platform.npos ? minor : platform.find('_', minor + 1);
  if (arch == platform.npos) return std::nullopt;
  return Manylinux{platform.substr(arch + 1),
                   platform.substr(kPrefix.size(), minor - kPrefix.size()) + "." +
                       platform.substr(minor + 1, arch - minor - 1),
                   "20.3"};
}

// A host tells only some of the tags that its pip takes: a manylinux one holds on every later
// glibc.
void check_tags(const ManifestPackage& package, const PythonFacts& python, Problems& problems) {
  if (package.tags.empty() || python.tags.empty()) return;
  const std::set<std::string> accepted(python.tags.begin(), python.tags.end());
  // A Python on another C library, or one whose _manylinux module forbids it, takes none of them.
  const bool takes_manylinux =
      !python.glibc.empty() &&
      (version_less(python.glibc, "2.17") ||
       std::any_of(python.tags.begin(), python.tags.end(), [](const std::string& tag) {
         return tag.find("-manylinux") != std::string::npos;
       }));
  std::optional<Manylinux> newer;
  std::string newer_tag;
  for (const std::string& tag : package.tags) {
    if (accepted.contains(tag)) return;
    const std::size_t platform = tag.rfind('-') + 1;
    const auto wanted = parse_manylinux(tag.substr(platform));
    if (!wanted || !takes_manylinux ||
        !accepted.contains(tag.substr(0, platform) + "linux_" + wanted->arch)) {
      continue;
    }
    if (!version_less(python.glibc, wanted->glibc) &&
        (python.pip.empty() || !version_less(python.pip, wanted->pip))) {
      return;
    }
    if (!newer || version_less(wanted->glibc, newer->glibc)) {
      newer = wanted;
      newer_tag = tag;
    }
  }
  if (newer && version_less(python.glibc, newer->glibc)) {
    problems.add("glibc", fmt::format("{} (for {})", newer->glibc, newer_tag), python.glibc,
                 "build on a machine whose system is as old as the oldest host's");
    return;
  }
  if (newer) {
    problems.add("pip", fmt::format("{} (for {})", newer->pip, newer_tag), python.pip,
                 "update pip in that environment");
    return;
  }
  problems.add("Python", joined(package.tags, " or "),
               fmt::format("{} ({})", python.tags.front(), python.version),
               "name a Python of that version with --python, or build with one of this version");
}

void check_torch(const ManifestPackage& package, const PythonFacts& python, Problems& problems) {
  if (package.torch.empty()) return;
  const std::string help =
      "install the torch that the package was compiled with there, or build "
      "with a Python that has the hosts' torch";
  if (python.torch.empty()) {
    problems.add("torch", major_minor(package.torch), "none", help);
    return;
  }
  if (major_minor(package.torch) != major_minor(python.torch)) {
    problems.add("torch", major_minor(package.torch), python.torch, help);
  }
  const bool device_code = std::any_of(
      package.modules.begin(), package.modules.end(),
      [](const ManifestModule& module) { return !module.compute_capabilities.empty(); });
  if (device_code && !package.torch_cuda.empty() &&
      major_minor(package.torch_cuda) != major_minor(python.torch_cuda)) {
    problems.add("torch's CUDA", major_minor(package.torch_cuda),
                 python.torch_cuda.empty() ? "none" : python.torch_cuda, help);
  }
}

void check_symbols(const ManifestPackage& package, const PythonFacts& python, Problems& problems) {
  struct Family {
    const char* name;
    const char* library;
    const std::string& found;
    const char* help;
  };
  const Family families[] = {
      {"GLIBC", "glibc", python.glibc,
       "build on a machine whose system is as old as the oldest host's"},
      {"GLIBCXX", "libstdc++", python.glibcxx,
       "update libstdc++ in that environment, or build with an older compiler"},
      {"CXXABI", "libstdc++", python.cxxabi,
       "update libstdc++ in that environment, or build with an older compiler"},
  };
  for (const Family& family : families) {
    auto needs = package.needs_symbols.find(family.name);
    if (needs == package.needs_symbols.end() || family.found.empty() ||
        !version_less(family.found, needs->second)) {
      continue;
    }
    std::string of;
    for (const ManifestModule& module : package.modules) {
      auto at = module.needs_symbols.find(family.name);
      if (at == module.needs_symbols.end() || at->second != needs->second) continue;
      of = fmt::format(" (for {})", module.op);
      break;
    }
    problems.add(family.library, fmt::format("{}_{}{}", family.name, needs->second, of),
                 fmt::format("{}_{}", family.name, family.found), family.help);
  }
}

void check_devices(const ManifestPackage& package, const PythonFacts& python, Problems& problems,
                   std::vector<std::string>& warnings) {
  std::set<std::string> told;
  std::vector<std::string> with_code;
  for (const ManifestModule& module : package.modules) {
    if (module.compute_capabilities.empty()) continue;
    with_code.push_back(module.op);
    for (const std::string& gpu : python.compute_capabilities) {
      if (runs_on(module.compute_capabilities, gpu) || !told.insert(gpu).second) continue;
      problems.add("compute capability", gpu + " (the host's GPU)",
                   fmt::format("{} in {}", joined(module.compute_capabilities, ", "), module.op),
                   fmt::format("build with {} in TORCH_CUDA_ARCH_LIST", gpu));
    }
  }
  if (!with_code.empty() && python.compute_capabilities.empty()) {
    warnings.push_back(
        fmt::format("it has no GPU, and these ops are for one: {}", joined(with_code, ", ")));
  }
}

std::map<std::string, std::string> marker_variables(const PythonFacts& python,
                                                    const std::string& arch) {
  return {{"python_version", major_minor(python.version)},
          {"python_full_version", python.version},
          {"sys_platform", "linux"},
          {"platform_system", "Linux"},
          {"platform_machine", arch},
          {"os_name", "posix"},
          {"implementation_name", "cpython"},
          {"platform_python_implementation", "CPython"},
          {"extra", ""}};
}

}  // namespace

std::vector<std::string> missing_requirements(const ManifestPackage& package,
                                              const PythonFacts& python, const std::string& arch) {
  std::set<std::string> along;
  for (const std::string& path : package.dependencies) {
    along.insert(wheel_name(path.substr(path.rfind('/') + 1)));
  }
  const std::map<std::string, std::string> variables = marker_variables(python, arch);
  std::vector<std::string> missing;
  for (const std::string& line : package.requires_dist) {
    const Requirement requirement = parse_requirement(line);
    // A marker that cannot be decided is pip's to decide; it does not speak against the host.
    if (marker_holds(requirement.marker, variables) != true) continue;
    if (along.contains(requirement.name)) continue;
    auto at = python.installed.find(requirement.name);
    std::string version = at != python.installed.end() ? at->second : "";
    // Debian's torch has no metadata of its own.
    if (requirement.name == "torch" && version.empty()) version = python.torch;
    if (version.empty() || !version_satisfies(version, requirement.specifier)) {
      missing.push_back(requirement.name + requirement.specifier +
                        (version.empty() ? "" : fmt::format(" (found {})", version)));
    }
  }
  return missing;
}

PackageCheck check_package(const ManifestPackage& package, std::uint64_t bytes,
                           const PythonFacts& python, const protocol::Facts& host) {
  PackageCheck check;
  if (!python.error.what.empty()) {
    check.refusal = python.error;
    return check;
  }
  Problems problems;
  if (python.pip.empty()) {
    problems.add("it has no pip", "python -m ensurepip there, or apt-get install python3-pip");
  }
  check_tags(package, python, problems);
  check_torch(package, python, problems);
  check_symbols(package, python, problems);
  // "x86-64" < "x86-64-v2" < …, as texts too.
  if (!package.cpu_level.empty() && !host.cpu_level.empty() && host.cpu_level < package.cpu_level) {
    problems.add("processor", package.cpu_level, host.cpu_level,
                 "build on the oldest kind of host; DeepSpeed compiles for the processor it is "
                 "built on");
  }
  check_devices(package, python, problems, check.warnings);
  // The new tree beside the old one, and the wheels themselves.
  const std::uint64_t needed = 2 * bytes;
  if (python.free_bytes < needed) {
    problems.add("free space", mebibytes(needed),
                 fmt::format("{} at {}", mebibytes(python.free_bytes), python.site),
                 "free some, or name a Python elsewhere with --python");
  }
  if (!python.writable) {
    problems.add(fmt::format("{} cannot be written: {}", printable(python.site),
                             printable(python.not_writable)),
                 "use an environment of this user's own with --python, or -s for sudo");
  }
  if (auto missing = missing_requirements(package, python, host.arch); !missing.empty()) {
    problems.add("it lacks what the package requires: " + printable(joined(missing, ", ")),
                 "--with-deps sends what is missing along");
  }
  check.refusal = problems.error(package, python);
  return check;
}

}  // namespace dsi
