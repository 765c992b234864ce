#include "orchestrator/package/payload.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <set>
#include <sstream>
#include <system_error>

#include "orchestrator/base/cpu_level.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/elf.h"
#include "orchestrator/package/build_inputs.h"
#include "orchestrator/package/check.h"
#include "orchestrator/package/deepspeed.h"
#include "orchestrator/package/marker.h"
#include "orchestrator/package/wheel_build.h"
#include "orchestrator/package/wheel_file.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

// What the folder's own files say, without running them. Only a question to the hosts rests on it.
std::string static_name(const fs::path& folder) {
  struct Place {
    const char* file;
    const char* pattern;
  };
  for (const Place& place : {Place{"PKG-INFO", R"((?:^|\n)Name:\s*(\S+))"},
                             Place{"pyproject.toml", R"((?:^|\n)name\s*=\s*["']([\w.-]+)["'])"},
                             Place{"setup.cfg", R"((?:^|\n)name\s*=\s*([\w.-]+))"},
                             Place{"setup.py", R"(\bname\s*=\s*["']([\w.-]+)["'])"}}) {
    auto text = read_file(folder / place.file);
    if (!text) continue;
    std::string name = first_match(*text, place.pattern);
    if (!name.empty()) return normalised_package_name(name);
  }
  return normalised_package_name(folder.filename().string());
}

std::string name_of(const PackageSource& source) {
  const std::string file = source.path.filename().string();
  switch (source.kind) {
    case SourceKind::kRequirement:
      return requirement_name(source.requirement);
    case SourceKind::kWheel:
      return wheel_name(file);
    case SourceKind::kSdist:
      return normalised_package_name(file.substr(0, file.rfind('-')));
    case SourceKind::kFolder:
      return static_name(source.path);
  }
  return "";
}

// What the source of a DeepSpeed says, or its file's name. Empty: neither does.
std::string deepspeed_version(const PackageSource& source) {
  if (source.kind == SourceKind::kFolder) {
    return first_match(read_file(source.path / "version.txt").value_or(""), R"((\S+))");
  }
  return first_match(source.path.filename().string(), R"(-(\d[^-]*?)(?:\.tar|\.tgz|\.zip|$))");
}

// What `[build-system] requires` of pyproject.toml names; setuptools where there is none.
std::vector<std::string> needs_of_project(const fs::path& folder) {
  auto text = read_file(folder / "pyproject.toml");
  const std::string requires_list =
      text ? first_match(*text, R"(\[build-system\][^\[]*?requires\s*=\s*\[([^\]]*)\])") : "";
  std::set<std::string> names;
  const std::regex quoted(R"re(["']([^"']+)["'])re");
  for (std::sregex_iterator at(requires_list.begin(), requires_list.end(), quoted), end; at != end;
       ++at) {
    const Requirement requirement = parse_requirement((*at)[1].str());
    if (requirement.marker.empty()) names.insert(requirement.name);
  }
  if (names.empty()) names.insert("setuptools");
  return {names.begin(), names.end()};
}

std::string tool_line(ProcessRunner& processes, const std::string& program, std::stop_token stop) {
  auto ran = processes.run({{program, "--version"}, {}, {}}, Deadline::after(30s), stop);
  if (!ran || !ran->ok()) return "";
  // nvcc's version is in its last lines, the compiler's in its first.
  return program.find("nvcc") != program.npos ? ran->out : ran->out.substr(0, ran->out.find('\n'));
}

// Whether the compiler is GCC and would link with this library.
bool gcc_finds(ProcessRunner& processes, const std::string& library, std::stop_token stop) {
  const char* compiler = std::getenv("CXX");
  const std::string name = compiler != nullptr && *compiler != '\0' ? compiler : "c++";
  if (tool_line(processes, name, stop).find("clang") != std::string::npos) return false;
  auto ran =
      processes.run({{name, "-print-file-name=" + library}, {}, {}}, Deadline::after(30s), stop);
  return ran && ran->ok() && ran->out.starts_with('/');
}

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

bool is_set(const std::map<std::string, std::string>& variables, const char* name) {
  auto at = variables.find(name);
  return at != variables.end() && !at->second.empty();
}

// The variables that the build gets besides those the user has set.
std::map<std::string, std::string> environment_for(const PackageJob& job,
                                                   const PackageTargets& targets,
                                                   const fs::path& cache, ProcessRunner& processes,
                                                   std::stop_token stop) {
  const std::map<std::string, std::string> set = build_variables();
  std::map<std::string, std::string> added;
  if (job.deepspeed) {
    deepspeed::BuildTarget target;
    target.compute_capabilities = targets.compute_capabilities;
    target.hosts_known = targets.known;
    target.torch_has_cuda = !job.python.torch_cuda.empty();
    target.ninja = !tool_line(processes, "ninja", stop).empty();
    const std::string version = deepspeed_version(job.source);
    target.old = !version.empty() && version_satisfies(version, "<0.14");
    added = deepspeed::build_environment(set, target);
  }
  // Python's flags and DeepSpeed's have -g: async_io has 26 MB with it, and nobody debugs it on a
  // host. What the compilers add is taken out by the linker, since their last flags are
  // DeepSpeed's.
  if (!is_set(set, "LDFLAGS")) {
    added["LDFLAGS"] = "-Wl,--strip-debug";
    auto accelerator = [&](const auto& variables) {
      auto at = variables.find("DS_ACCELERATOR");
      return at == variables.end() ? std::string() : at->second;
    };
    const bool cpu = accelerator(set) == "cpu" || accelerator(added) == "cpu";
    const fs::path specs = cache / "wheels" / "deepspeed-cpu.specs";
    std::error_code ignored;
    fs::create_directories(specs.parent_path(), ignored);
    if (job.deepspeed && cpu && gcc_finds(processes, "libaio.so", stop) &&
        write_file_atomically(specs, deepspeed::kCpuLinkSpecs)) {
      added["LDFLAGS"] += " -specs=" + specs.string();
    }
  }
  // The zip inside a wheel has times; setuptools takes them from here.
  if (!is_set(set, "SOURCE_DATE_EPOCH")) added["SOURCE_DATE_EPOCH"] = "315532800";
  return added;
}

struct Repacked {
  WheelContent content;
  fs::path wheel;
  std::string version_info;  // DeepSpeed's git_version_info_installed.py.
};

// <cache>/repacked/<digest of the wheel>/<its name>
Result<Repacked> repack(const fs::path& wheel, const fs::path& cache) {
  Repacked repacked;
  DSI_TRY(std::string digest, sha256_file(wheel));
  const fs::path folder = cache / "repacked" / digest.substr(0, 20);
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path tree = folder / fmt::format("tree.{}", ::getpid());
  fs::remove_all(tree, error);
  fs::create_directories(tree, error);
  if (error) return fail("cannot write {}: {}", tree.string(), error.message());
  auto opened = open_wheel(wheel, tree).and_then([&](WheelContent content) -> Result<void> {
    repacked.content = std::move(content);
    repacked.wheel = folder / wheel.filename();
    repacked.version_info =
        read_file(tree / "deepspeed/git_version_info_installed.py").value_or("");
    return fs::exists(repacked.wheel) ? Result<void>{} : pack_wheel(tree, repacked.wheel);
  });
  fs::remove_all(tree, error);
  if (!opened) return tl::unexpected<Error>(opened.error());
  return repacked;
}

ManifestPackage describe(const PackageJob& job, Repacked& repacked, bool built_here) {
  ManifestPackage package;
  WheelContent& content = repacked.content;
  package.name = content.name;
  package.version = content.version;
  package.wheel = "wheels/" + repacked.wheel.filename().string();
  package.tags = content.tags;
  package.requires_dist = content.requires_dist;
  package.modules = std::move(content.modules);
  package.needs_symbols = content.needs_symbols;
  if (content.uses_torch && built_here) {
    package.torch = job.python.torch;
    package.torch_cuda = job.python.torch_cuda;
  }
  if (content.name != deepspeed::kName) return package;
  for (ManifestModule& module : package.modules) module.op = deepspeed::op_of_module(module.name);
  // Its CPU code is always compiled with -march=native.
  if (built_here && !package.modules.empty()) package.cpu_level = cpu_level();
  if (content.uses_torch && !built_here) {
    const deepspeed::VersionInfo info = deepspeed::read_version_info(repacked.version_info);
    package.torch = info.torch;
    package.torch_cuda = info.torch_cuda;
  }
  return package;
}

// What all hosts have in one version stays as it is: a dependency's dependency must not bring
// another numpy. A version with a local part ("2.1+cu130") is in no index.
std::string constraints_of(const std::vector<protocol::PythonFacts>& pythons,
                           const std::set<std::string>& missing) {
  std::set<std::string> wanted;
  for (const std::string& requirement : missing) {
    wanted.insert(parse_requirement(requirement).name);
  }
  std::string constraints;
  for (const auto& known : pythons.front().installed) {
    const bool everywhere =
        std::all_of(pythons.begin(), pythons.end(), [&](const protocol::PythonFacts& python) {
          auto there = python.installed.find(known.first);
          return there != python.installed.end() && there->second == known.second;
        });
    if (!everywhere || wanted.contains(known.first) || known.first == "torch" ||
        known.second.find('+') != std::string::npos) {
      continue;
    }
    constraints += fmt::format("{}=={}\n", known.first, known.second);
  }
  return constraints;
}

// --with-deps: the wheels of what some host lacks, for the nodes' Python, which is the one here.
//
// What a run once found missing goes along with every later one of the same wheel: after the first
// nothing is missing any more, and the release must not be another one for that.
Result<std::vector<fs::path>> fetch_dependencies(const ManifestPackage& package,
                                                 const PackageJob& job, const Options& options,
                                                 const PackageTargets& targets,
                                                 const fs::path& cache, ProcessRunner& processes,
                                                 Progress& progress, std::stop_token stop) {
  utsname machine{};
  ::uname(&machine);
  // Without hosts: all that the package asks for, but torch, which must be there anyway.
  std::vector<protocol::PythonFacts> pythons = targets.pythons;
  if (pythons.empty()) {
    pythons.emplace_back();
    pythons.back().version = job.python.version;
    pythons.back().torch = job.python.torch;
  }
  std::set<std::string> missing;
  for (const protocol::PythonFacts& python : pythons) {
    for (const std::string& requirement : missing_requirements(package, python, machine.machine)) {
      missing.insert(requirement.substr(0, requirement.find(' ')));
    }
  }
  std::error_code error;
  fs::create_directories(cache / "dependencies", error);
  const std::string key = package.wheel + options.pip_mirror + job.python.tag + job.python.torch;
  const fs::path remembered = cache / "dependencies" / (sha256_hex(key).substr(0, 20) + ".missing");
  std::istringstream before(read_file(remembered).value_or(""));
  for (std::string line; std::getline(before, line);) missing.insert(line);
  std::vector<fs::path> wheels;
  if (missing.empty()) return wheels;
  std::string text;
  for (const std::string& requirement : missing) text += requirement + '\n';
  const fs::path folder = cache / "dependencies" / sha256_hex(key + '\n' + text).substr(0, 20);
  if (!fs::exists(folder, error)) {
    const fs::path fresh = folder.string() + fmt::format(".{}", ::getpid());
    fs::remove_all(fresh, error);
    fs::create_directories(fresh, error);
    std::string constraints = constraints_of(pythons, missing);
    if (!job.python.torch.empty()) {
      constraints += "torch==" + job.python.torch.substr(0, job.python.torch.find('+')) + '\n';
    }
    DSI_CHECK(write_file_atomically(fresh / "constraints.txt", constraints));
    progress.update("Fetching", fmt::format("{} packages that the hosts lack", missing.size()));
    Command command;
    command.argv = {job.python.executable,
                    "-m",
                    "pip",
                    "wheel",
                    "--no-input",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--wheel-dir",
                    (fresh / "wheels").string(),
                    "--constraint",
                    (fresh / "constraints.txt").string()};
    if (!options.pip_mirror.empty()) {
      command.argv.insert(command.argv.end(), {"--index-url", options.pip_mirror});
    }
    command.argv.emplace_back("--");
    command.argv.insert(command.argv.end(), missing.begin(), missing.end());
    command.folder = "/";
    DSI_TRY(ProcessResult ran, processes.run(command, Deadline::after(30min), stop));
    progress.clear();
    if (!ran.ok()) {
      fs::remove_all(fresh, error);
      std::string why = ran.err.substr(0, ran.err.find_last_not_of('\n') + 1);
      return fail_with_help(fmt::format("what {} requires cannot be fetched: {}", package.name,
                                        why.substr(why.rfind('\n') + 1)),
                            "-m URL names another index");
    }
    fs::rename(fresh / "wheels", folder, error);
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    if (error) return fail("cannot write {}: {}", folder.string(), error.message());
  }
  // Only what could be fetched: a mistake must not come back with every later run.
  DSI_CHECK(write_file_atomically(remembered, text));
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".whl") continue;
    // torch came only as what something else requires; it is on every host, or the plan refuses it.
    const std::string name = wheel_name(entry.path().filename().string());
    if (name == "torch" || name.starts_with("nvidia-") || name == "triton") continue;
    wheels.push_back(entry.path());
  }
  std::sort(wheels.begin(), wheels.end());
  return wheels;
}

}  // namespace

Result<std::string> installed_package_name(const Options& options) {
  const std::string& text = options.python_package();
  if (text.find('/') != text.npos || text.ends_with(".whl") || text.ends_with(".gz")) {
    DSI_TRY(PackageSource source, read_source(text));
    return name_of(source);
  }
  const std::string name = requirement_name(text);
  if (!options.deepspeed.empty() && name != deepspeed::kName) {
    return fail_with_help(fmt::format("--deepspeed is about DeepSpeed, and \"{}\" is not", text),
                          "leave its value out, or name another package with --package");
  }
  return name;
}

Result<PackageJob> prepare_package(const Options& options, const fs::path& cache,
                                   ProcessRunner& processes, Progress& progress,
                                   std::stop_token stop) {
  PackageJob job;
  DSI_TRY(job.source, read_source(options.python_package()));
  DSI_TRY(job.python, find_build_python(processes, options.python, stop));
  if (options.update_submodules) {
    progress.update("Updating", "the submodules of " + job.source.path.string());
    DSI_CHECK(update_submodules(job.source, processes, stop));
    progress.clear();
  }
  job.name = name_of(job.source);
  job.deepspeed = job.name == deepspeed::kName;
  if (!options.deepspeed.empty() && !job.deepspeed) {
    return fail_with_help(
        fmt::format("--deepspeed is about DeepSpeed, and \"{}\" is {}", options.deepspeed,
                    job.name.empty() ? "something else" : job.name),
        "install any other package with --package");
  }
  if (job.source.kind == SourceKind::kRequirement) {
    progress.update("Fetching", job.source.requirement);
    FetchRequest request{job.source, options.pip_mirror, job.deepspeed};
    DSI_TRY(job.source, fetch(request, job.python, cache, processes, stop));
    progress.clear();
  }
  if (job.source.kind == SourceKind::kWheel) return job;
  std::vector<std::string> needs;
  if (job.deepspeed) needs = deepspeed::build_needs();
  if (job.source.kind == SourceKind::kFolder) {
    for (std::string& need : needs_of_project(job.source.path)) needs.push_back(std::move(need));
  } else if (!job.deepspeed) {
    needs = {"setuptools"};
  }
  // setuptools makes wheels by itself from 70.1 on.
  auto setuptools = job.python.installed.find("setuptools");
  const bool makes_wheels =
      setuptools != job.python.installed.end() && version_satisfies(setuptools->second, ">=70.1");
  std::erase_if(needs, [&](const std::string& need) { return need == "wheel" && makes_wheels; });
  std::sort(needs.begin(), needs.end());
  needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
  DSI_CHECK(check_build_needs(job.python, needs));
  return job;
}

ManifestPackage expected_package(const PackageJob& job) {
  ManifestPackage package;
  package.name = job.name;
  // Whether another package has compiled parts shows when it is built.
  if (job.source.kind == SourceKind::kWheel || !job.deepspeed) return package;
  package.tags = {job.python.tag};
  package.torch = job.python.torch;
  return package;
}

Result<BuiltPackage> build_package(const PackageJob& job, const Options& options,
                                   const PackageTargets& targets, const PackageFiles& files,
                                   ProcessRunner& processes, Progress& progress,
                                   std::stop_token stop) {
  WheelRequest request;
  request.name = job.name;
  request.source = job.source;
  request.python = job.python;
  request.keep_build = options.no_clean;
  request.compiler = tool_line(processes, variable("CXX", "c++"), stop);
  const std::string cuda = variable("CUDA_HOME", variable("CUDA_PATH", ""));
  request.nvcc = tool_line(processes, cuda.empty() ? "nvcc" : cuda + "/bin/nvcc", stop);
  if (job.source.kind == SourceKind::kFolder) {
    request.git = read_git(job.source.path, processes, stop);
  }
  request.environment = environment_for(job, targets, files.cache, processes, stop);
  request.jobs = options.jobs;
  DSI_TRY(WheelBuild built, build_wheel(request, files.cache, processes, progress, stop));
  DSI_TRY(Repacked repacked, repack(built.wheel, files.cache));
  ManifestPackage package = describe(job, repacked, job.source.kind != SourceKind::kWheel);
  if (job.deepspeed && job.source.kind != SourceKind::kWheel) {
    std::vector<std::string> modules;
    for (const ManifestModule& module : package.modules) modules.push_back(module.name);
    auto asked = deepspeed::check_asked_ops(build_variables(), modules);
    if (!asked) {
      Error error = asked.error();
      error.help += fmt::format("; the log is {}", built.log.string());
      return tl::unexpected<Error>(error);
    }
  }

  std::vector<ReleaseFile> release = files.stand_ins;
  release.push_back({package.wheel, repacked.wheel, false});
  // Run by each environment's own Python, so no program by itself.
  release.push_back({"bin/ds-package", files.program, false});
  if (options.with_deps) {
    DSI_TRY(
        std::vector<fs::path> wheels,
        fetch_dependencies(package, job, options, targets, files.cache, processes, progress, stop));
    for (const fs::path& wheel : wheels) {
      DSI_TRY(Repacked dependency, repack(wheel, files.cache));
      package.dependencies.push_back("wheels/" + wheel.filename().string());
      release.push_back({package.dependencies.back(), dependency.wheel, false});
    }
    std::sort(package.dependencies.begin(), package.dependencies.end());
  }
  utsname machine{};
  ::uname(&machine);
  std::map<std::string, std::string> built_with{{"ds_install", DSI_VERSION}};
  const bool any_arch = std::all_of(package.tags.begin(), package.tags.end(),
                                    [](const std::string& tag) { return tag.ends_with("-any"); });
  if (!any_arch) built_with["arch"] = machine.machine;
  if (job.source.kind != SourceKind::kWheel) {
    built_with["compiler"] = request.compiler;
    built_with["python"] = job.python.version;
    if (!request.git.commit.empty()) built_with["source"] = request.git.commit;
  }
  BuiltPackage result;
  DSI_TRY(result.payload, make_payload(release, {}, std::move(built_with), {std::move(package)}));
  result.fresh = built.fresh;
  result.log = built.log;
  return result;
}

}  // namespace dsi
