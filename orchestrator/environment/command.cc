#include "orchestrator/environment/command.h"

#include <nlohmann/json.hpp>

#include "orchestrator/base/file.h"
#include "orchestrator/base/nodeset.h"
#include "orchestrator/cuda_build.h"
#include "orchestrator/environment/conda.h"
#include "orchestrator/environment/debian.h"
#include "orchestrator/environment/root.h"
#include "orchestrator/environment/wheels.h"
#include "orchestrator/text.h"
#include "orchestrator/toolchain.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

// What the command has to work with, and what it makes.
class EnvironmentCommand {
 public:
  EnvironmentCommand(const Options& options, const Folders& folders, ProcessRunner& processes,
                     Progress& progress, std::ostream& out, std::stop_token stop)
      : options_(options),
        folders_(folders),
        processes_(processes),
        progress_(progress),
        out_(out),
        stop_(std::move(stop)) {}

  Result<void> from_hosts(const std::vector<SurveyRow>& rows) {
    DSI_TRY(EnvironmentNeeds needs, needs_of(rows, !options_.torch.empty()));
    if (!needs.unknown.empty()) {
      progress_.warning(fmt::format("{}: not looked at, so the environment is not made for it",
                                    fold_nodeset(needs.unknown)));
    }
    DSI_TRY(EnvironmentWishes wishes, wishes_for(needs));
    DSI_TRY(Environment environment, derive(needs, wishes));
    for (const auto& [subject, reason] : environment.reasons) {
      if (!options_.json) out_ << fmt::format("{:<10}{}\n", subject, printable(reason));
      result_["reasons"][subject] = reason;
    }
    if (!options_.conda.empty()) DSI_CHECK(write_conda(environment));
    if (environment.suite.empty()) {
      // For conda alone that is no mistake.
      if (options_.conda.empty() || !options_.make.empty() || !options_.output.empty()) {
        return tl::unexpected<Error>(environment.no_base);
      }
      return {};
    }
    DSI_TRY(EnvironmentLock lock, lock_of(environment));
    const fs::path file = options_.output.empty() ? "ds-env.lock" : options_.output;
    DSI_CHECK(write_file_atomically(file, lock_text(lock)));
    progress_.lasting("Wrote",
                      fmt::format("{}: {} packages, {}", file.string(),
                                  lock.packages.size() + lock.wheels.size(), fingerprint(lock)));
    result_["lock"] = file.string();
    return make(lock);
  }

  Result<void> from_lock() {
    DSI_TRY(EnvironmentLock lock, read_lock(options_.lock));
    return make(lock);
  }

  void print() {
    if (!options_.json) return;
    result_["type"] = "environment";
    out_ << result_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }

 private:
  Result<EnvironmentWishes> wishes_for(EnvironmentNeeds& needs) {
    EnvironmentWishes wishes;
    wishes.torch_asked = !options_.torch.empty();
    auto torch = find_torch(processes_, options_.torch, stop_);
    // Only who needs the torch of this machine is told that there is none.
    if (!torch && (wishes.torch_asked || needs.torch.empty())) {
      return tl::unexpected<Error>(torch.error());
    }
    if (torch) {
      torch_ = *torch;
      wishes.torch = torch_.version;
      wishes.torch_cuda = torch_.cuda;
      wishes.torch_is_debians = is_systems(torch_.prefix);
    }
    const CudaWish cuda = cuda_wish(true, needs.compute_capabilities);
    if (cuda.accelerator == "cpu") needs.compute_capabilities.clear();
    if (needs.compute_capabilities.empty()) return wishes;
    const bool theirs = !wishes.torch_asked && !needs.torch.empty();
    Torch target;
    target.has_cuda = true;
    target.cuda = theirs ? needs.torch_cuda : wishes.torch_cuda;
    // The same decision as a build makes, so that the lock names what a build will use.
    std::vector<CudaToolkit> toolkits = find_toolkits(nvcc_places(), processes_, stop_);
    if (toolkits.empty()) return wishes;
    DSI_TRY(CudaDecision decision, decide_cuda(cuda, target, toolkits));
    for (const std::string& warning : decision.warnings) progress_.warning(warning);
    if (decision.build) {
      toolkit_ = decision.build->toolkit;
      wishes.toolkit = toolkit_.version;
    }
    return wishes;
  }

  Result<EnvironmentLock> lock_of(const Environment& environment) {
    const DebianBase& base = *find_base(environment.suite);
    EnvironmentLock lock;
    lock.suite = environment.suite;
    lock.architecture = environment.architecture;
    lock.compiler = environment.compiler;
    lock.python = environment.python;
    lock.torch = environment.torch;
    lock.torch_source = environment.torch_source;
    lock.cuda = environment.cuda;
    lock.compute_capabilities = environment.compute_capabilities;
    if (lock.torch_source == TorchSource::kFolder) {
      progress_.update("Reading", torch_.prefix.string());
      DSI_TRY(lock.torch_sha256, torch_digest(torch_));
    }
    if (!lock.cuda.empty()) {
      DSI_TRY(lock.cuda_sha256, toolkit_digest(toolkit_));
    }
    DSI_TRY(DebianArchive archive,
            DebianArchive::open(base, lock.architecture, options_.mirror, folders_.cache,
                                processes_, progress_, stop_));
    progress_.update("Resolving", fmt::format("on {}", archive.mirror()));
    DSI_TRY(lock.packages, archive.resolve(packages_for(base, lock.compiler,
                                                        lock.torch_source == TorchSource::kDebian,
                                                        options_.debian_packages)));
    const WheelTarget target{environment.machine, std::string(base.glibc), lock.python,
                             options_.pip_mirror};
    std::vector<std::string> wheels;
    if (!base.cmake) wheels.emplace_back("cmake>=3.23,<4");
    if (lock.torch_source == TorchSource::kWheel) {
      wheels.push_back("torch==" + lock.torch.substr(0, lock.torch.find('+')));
    }
    for (const std::string& wheel : wheels) {
      progress_.update("Resolving", wheel);
      DSI_TRY(LockedPackage locked, resolve_wheel(wheel, target, processes_, stop_));
      lock.wheels.push_back(std::move(locked));
    }
    return lock;
  }

  Result<void> write_conda(const Environment& environment) {
    DSI_TRY(std::string text, conda_text(environment, "ds-ops"));
    DSI_CHECK(write_file_atomically(options_.conda, text));
    progress_.lasting("Wrote", options_.conda.string());
    result_["conda"] = options_.conda.string();
    return {};
  }

  Result<void> make(const EnvironmentLock& lock) {
    result_["fingerprint"] = fingerprint(lock);
    if (options_.make.empty()) return {};
    DSI_TRY(bool fresh, make_root(lock, options_.make, {options_.mirror, options_.pip_mirror},
                                  folders_.cache, processes_, progress_, stop_));
    progress_.lasting(fresh ? "Made" : "Unchanged",
                      fmt::format("{}; build in it with: ds-install build --env {}",
                                  options_.make.string(), options_.make.string()));
    result_["root"] = options_.make.string();
    return {};
  }

  const Options& options_;
  const Folders& folders_;
  ProcessRunner& processes_;
  Progress& progress_;
  std::ostream& out_;
  std::stop_token stop_;
  Torch torch_;
  CudaToolkit toolkit_;
  nlohmann::json result_;
};

}  // namespace

Result<void> run_environment(const Options& options, const std::vector<SurveyRow>& rows,
                             const Folders& folders, ProcessRunner& processes, Progress& progress,
                             std::ostream& out, std::stop_token stop) {
  EnvironmentCommand command(options, folders, processes, progress, out, std::move(stop));
  Result<void> done = options.lock.empty() ? command.from_hosts(rows) : command.from_lock();
  progress.clear();
  if (done) command.print();
  return done;
}

}  // namespace dsi
