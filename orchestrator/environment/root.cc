#include "orchestrator/environment/root.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/bundle.h"
#include "orchestrator/environment/debian.h"
#include "orchestrator/environment/wheels.h"
#include "orchestrator/lock_folder.h"
#include "orchestrator/package/wheel_file.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr const char* kLockName = "ds-env.lock";
constexpr const char* kWheels = "opt/wheels";

std::string machine_of(const std::string& architecture) {
  return architecture == "arm64" ? "aarch64" : "x86_64";
}

// What of the lock is not in the cache yet, fetched.
Result<void> fetch_all(const EnvironmentLock& lock, const PackageSources& sources,
                       const fs::path& packages, const fs::path& cache, ProcessRunner& processes,
                       Progress& progress, std::stop_token stop) {
  std::vector<LockedPackage> debs = lock.packages;
  std::erase_if(debs, [&](const LockedPackage& package) {
    return fs::exists(packages / (package.sha256 + ".deb"));
  });
  const DebianBase& base = *find_base(lock.suite);
  if (!debs.empty()) {
    DSI_TRY(DebianArchive archive, DebianArchive::open(base, lock.architecture, sources.mirror,
                                                       cache, processes, progress, stop));
    progress.update("Fetching", fmt::format("{} packages of {}", debs.size(), lock.suite));
    DSI_CHECK(archive.fetch(debs, packages));
  }
  const WheelTarget target{machine_of(lock.architecture), std::string(base.glibc), lock.python,
                           sources.index};
  for (const LockedPackage& wheel : lock.wheels) {
    if (!kept_wheel(wheel, packages).empty()) continue;
    progress.update("Fetching", wheel.name + " " + wheel.version);
    DSI_CHECK(fetch_wheel(wheel, target, packages, processes, stop));
  }
  return {};
}

// The cache is a folder of the user's, and may have been damaged since.
Result<void> check_kept(const LockedPackage& package, const fs::path& file) {
  DSI_TRY(std::string digest, sha256_file(file));
  if (digest == package.sha256) return {};
  std::error_code error;
  fs::remove(file, error);
  return fail_with_help(fmt::format("{} was damaged in the cache", package.name), "try again");
}

Result<void> unpack_all(const EnvironmentLock& lock, const fs::path& packages, const fs::path& root,
                        ProcessRunner& processes, Progress& progress, std::stop_token stop) {
  std::error_code error;
  std::vector<LockedPackage> debs = lock.packages;
  // Where /lib is a link to /usr/lib it must be one before files go there.
  std::stable_partition(debs.begin(), debs.end(),
                        [](const LockedPackage& package) { return package.name == "base-files"; });
  for (const LockedPackage& package : debs) {
    progress.update("Unpacking", package.name);
    const fs::path file = packages / (package.sha256 + ".deb");
    DSI_CHECK(check_kept(package, file));
    DSI_TRY(ProcessResult ran,
            processes.run({{"dpkg-deb", "-x", file.string(), root.string()}, {}, {}, {}},
                          Deadline::after(10min), stop));
    if (!ran.ok()) {
      return fail("{} {} cannot be unpacked: {}", package.name, package.version,
                  printable(ran.err.substr(0, ran.err.find('\n'))));
    }
  }
  for (const LockedPackage& wheel : lock.wheels) {
    progress.update("Unpacking", wheel.name);
    const fs::path folder = root / kWheels / wheel.name;
    fs::create_directories(folder, error);
    const fs::path file = kept_wheel(wheel, packages);
    DSI_CHECK(check_kept(wheel, file));
    DSI_TRY(WheelContent content, open_wheel(file, folder).map_error(in("{}", wheel.name)));
    (void)content;
  }
  return {};
}

// What packages leave to their installation scripts, as far as a build needs it.
Result<void> link_tools(const EnvironmentLock& lock, const fs::path& root) {
  const fs::path bin = root / "usr/local/bin";
  std::error_code error;
  fs::create_directories(bin, error);
  auto link = [&](const std::string& name, const std::string& target) {
    if (!error) fs::create_symlink(target, bin / name, error);
  };
  for (const char* name : {"c++", "g++"}) link(name, fmt::format("/usr/bin/g++-{}", lock.compiler));
  for (const char* name : {"cc", "gcc"}) link(name, fmt::format("/usr/bin/gcc-{}", lock.compiler));
  for (const LockedPackage& wheel : lock.wheels) {
    if (wheel.name == "cmake")
      link("cmake", fmt::format("/{}/cmake/cmake/data/bin/cmake", kWheels));
  }
  fs::create_directories(root / "tmp", error);
  if (error) return fail("cannot finish {}: {}", root.string(), error.message());
  return {};
}

// One digest over many files, whatever the folder is called.
Result<std::string> digest_of(const std::vector<ReleaseFile>& files) {
  Sha256 hash;
  for (const ReleaseFile& file : files) {
    DSI_TRY(std::string digest, sha256_file(file.source));
    const std::string line = file.path + '\0' + digest + '\n';
    hash.update(line.data(), line.size());
  }
  return hash.hex();
}

// The torch of the lock: in the root, or here.
Result<Torch> torch_of(const EnvironmentLock& lock, const fs::path& root, const fs::path& option,
                       ProcessRunner& processes, std::stop_token stop) {
  if (lock.torch_source != TorchSource::kFolder) {
    const fs::path inside = lock.torch_source == TorchSource::kDebian
                                ? fs::path("/usr")
                                : fs::path("/") / kWheels / "torch/torch";
    DSI_TRY(Torch torch, inspect_torch(root / inside.relative_path()));
    torch.prefix = inside;
    torch.library = "/" / torch.library.lexically_relative(root);
    torch.found_by = "the environment";
    // When it was unpacked says nothing; the lock says it all.
    torch.stamp.clear();
    return torch;
  }
  DSI_TRY(Torch torch, find_torch(processes, option, stop));
  DSI_TRY(std::string digest, torch_digest(torch));
  if (digest != lock.torch_sha256) {
    return fail_with_help(
        fmt::format("the environment is for torch {} (SHA-256 {}), and {} is torch {} (SHA-256 {})",
                    lock.torch, lock.torch_sha256, torch.prefix.string(), torch.version, digest),
        "name the folder of that one with --torch");
  }
  torch.stamp.clear();
  return torch;
}

Result<std::vector<CudaToolkit>> toolkits_of(const EnvironmentLock& lock, ProcessRunner& processes,
                                             std::stop_token stop) {
  std::vector<CudaToolkit> fitting;
  if (lock.cuda.empty()) return fitting;
  std::string found;
  for (CudaToolkit& toolkit : find_toolkits(nvcc_places(), processes, stop)) {
    DSI_TRY(std::string digest, toolkit_digest(toolkit));
    found +=
        fmt::format("{}{} ({})", found.empty() ? "" : ", ", toolkit.version, toolkit.nvcc.string());
    if (digest == lock.cuda_sha256) fitting.push_back(std::move(toolkit));
  }
  if (fitting.empty()) {
    return fail_with_help(
        fmt::format("the environment is for a CUDA toolkit {} (SHA-256 {}), which is not on this "
                    "machine; there is {}",
                    lock.cuda, lock.cuda_sha256, found.empty() ? "none" : found),
        "install that one and name it with CUDA_HOME, or make a new lock");
  }
  return fitting;
}

std::vector<ShownFolder> shown_folders(const Options& options, const Folders& folders,
                                       const Torch& torch, bool torch_here,
                                       const std::vector<CudaToolkit>& toolkits) {
  std::vector<ShownFolder> shown;
  auto show = [&](const fs::path& path, bool writable) {
    fs::path normal = fs::absolute(path).lexically_normal();
    if (!normal.has_filename()) normal = normal.parent_path();
    shown.push_back({normal, writable});
  };
  show(folders.cache, true);
  show(folders.kernels, false);
  show(folders.probe_source.parent_path(), false);
  for (const fs::path& folder : options.ops_folders) show(folder, false);
  if (torch_here) show(torch.prefix, false);
  std::error_code error;
  for (const CudaToolkit& toolkit : toolkits) {
    show(toolkit.nvcc.parent_path().parent_path(), false);
    show(fs::canonical(toolkit.nvcc, error).parent_path().parent_path(), false);
  }
  return shown;
}

Result<fs::path> make_probe(const Folders& folders, const std::string& environment,
                            ProcessRunner& sandbox, std::stop_token stop) {
  DSI_TRY(std::string source, sha256_file(folders.probe_source));
  const fs::path folder =
      folders.cache / "environments/probes" / sha256_hex(environment + source).substr(0, 20);
  const fs::path probe = folder / "ds-probe";
  std::error_code error;
  if (fs::exists(probe)) return probe;
  fs::create_directories(folder, error);
  const fs::path fresh = folder / fmt::format("new.{}", ::getpid());
  // As orchestrator/probe/CMakeLists.txt does it.
  DSI_TRY(ProcessResult ran, sandbox.run({{"cc", "-std=gnu11", "-Os", "-g0", "-s",
                                           "-Wl,--build-id=none", "-Wl,--as-needed", "-o",
                                           fresh.string(), folders.probe_source.string(), "-ldl"},
                                          {},
                                          {},
                                          {}},
                                         Deadline::after(2min), stop));
  if (!ran.ok()) return fail("ds-probe does not compile in the environment: {}", ran.err);
  fs::rename(fresh, probe, error);
  if (error) return fail("cannot keep {}: {}", probe.string(), error.message());
  return probe;
}

}  // namespace

Result<std::string> torch_digest(const Torch& torch) {
  DSI_TRY(std::vector<ReleaseFile> files, list_files(torch.prefix / "include"));
  for (const char* library : {"libc10.so", "libtorch_cpu.so"}) {
    files.push_back({library, torch.library / library, false});
  }
  return digest_of(files).map_error(in("while reading the torch in {}", torch.prefix.string()));
}

Result<std::string> toolkit_digest(const CudaToolkit& toolkit) {
  std::error_code error;
  const fs::path home = fs::canonical(toolkit.nvcc, error).parent_path().parent_path();
  std::vector<ReleaseFile> files;
  for (const char* part :
       {"bin/nvcc", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "bin/nvlink", "nvvm/bin/cicc"}) {
    if (fs::exists(home / part)) files.push_back({part, home / part, true});
  }
  return digest_of(files).map_error(in("while reading the CUDA toolkit in {}", home.string()));
}

Result<bool> make_root(const EnvironmentLock& lock, const fs::path& folder,
                       const PackageSources& sources, const fs::path& cache,
                       ProcessRunner& processes, Progress& progress, std::stop_token stop) {
  const fs::path root = fs::absolute(folder).lexically_normal();
  std::error_code error;
  if (fs::exists(root) && !fs::is_empty(root, error)) {
    auto there = read_lock(root / kLockName);
    if (there && fingerprint(*there) == fingerprint(lock)) return false;
    return fail_with_help(
        fmt::format("{} is {}", root.string(),
                    there ? "another environment" : "there already, and no environment"),
        "name another folder, or remove that one");
  }
  const fs::path packages = cache / "environments/packages";
  fs::create_directories(packages, error);
  if (!error) fs::create_directories(root.parent_path(), error);
  const fs::path fresh = root.string() + fmt::format(".new.{}", ::getpid());
  if (!error) fs::create_directory(fresh, error);
  if (error) return fail("cannot make {}: {}", fresh.string(), error.message());
  auto made = [&]() -> Result<void> {
    DSI_TRY(UniqueFd held, lock_folder(packages / "lock", progress, stop));
    DSI_CHECK(fetch_all(lock, sources, packages, cache, processes, progress, stop));
    DSI_CHECK(unpack_all(lock, packages, fresh, processes, progress, stop));
    DSI_CHECK(link_tools(lock, fresh));
    return write_file_atomically(fresh / kLockName, lock_text(lock));
  }();
  if (made) {
    fs::remove(root, error);  // An empty folder.
    fs::rename(fresh, root, error);
    if (error) made = fail("cannot make {}: {}", root.string(), error.message());
  }
  if (!made) {
    fs::remove_all(fresh, error);
    return tl::unexpected<Error>(made.error());
  }
  return true;
}

Result<BuildRoot> BuildRoot::open(const Options& options, const Folders& folders,
                                  ProcessRunner& processes, std::stop_token stop) {
  const fs::path root = fs::absolute(options.env).lexically_normal();
  if (!fs::exists(root / kLockName)) {
    return fail_with_help(
        fmt::format("{} is no environment: there is no {} in it", root.string(), kLockName),
        "make one: ds-install env -H hostfile --make DIR");
  }
  BuildRoot build;
  DSI_TRY(build.lock_, read_lock(root / kLockName));
  const EnvironmentLock& lock = build.lock_;
  std::error_code error;
  fs::create_directories(folders.cache, error);
  DSI_TRY(Torch torch, torch_of(lock, root, options.torch, processes, stop));
  DSI_TRY(build.toolkits_, toolkits_of(lock, processes, stop));
  build.sandbox_ = std::make_shared<Sandbox>(
      processes, root,
      shown_folders(options, folders, torch, lock.torch_source == TorchSource::kFolder,
                    build.toolkits_));
  DSI_CHECK(build.sandbox_->check(stop));
  DSI_TRY(build.toolchain_, find_tools(*build.sandbox_, "c++", stop));
  build.toolchain_.torch = std::move(torch);
  build.toolchain_.environment = fingerprint(lock);
  DSI_TRY(build.probe_, make_probe(folders, build.toolchain_.environment, *build.sandbox_, stop));
  return build;
}

CudaWish BuildRoot::wish(CudaWish wish) const {
  if (lock_.cuda.empty()) {
    wish.accelerator = "cpu";
    return wish;
  }
  if (wish.arch_list.empty()) {
    for (const std::string& one : lock_.compute_capabilities) {
      wish.arch_list += (wish.arch_list.empty() ? "" : ";") + one;
    }
  }
  return wish;
}

}  // namespace dsi
