#include "orchestrator/payload_build.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/build.h"
#include "orchestrator/elf.h"
#include "orchestrator/run_error.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

ProcessRunner& compilers(const World& world) {
  return world.root != nullptr ? world.root->runner() : world.processes;
}

BuildRequest request_for(const Options& options, const World& world, Toolchain toolchain,
                         std::optional<CudaBuild> cuda) {
  return {world.folders.kernels, options.ops_folders, options.ops,
          std::move(toolchain),  std::move(cuda),     options.jobs};
}

// The manifest that this request gave last time stands beside its build, so that a plan can say
// what will happen, and to whom it cannot, without building. Everything that influences it is in
// the file's name.
fs::path remembered_release(const World& world, const BuildRequest& request,
                            const std::string& sources, const AgentBinary& agent) {
  std::string names;
  for (const std::string& op : request.ops) names += op + ",";
  std::string probe = sha256_file(world.folders.probe).value_or("");
  return build_folder(world.folders.cache, request, sources) /
         ("release-" + sha256_hex(names + agent.digest() + probe + DSI_VERSION).substr(0, 16));
}

Result<Payload> payload_of(const BuildResult& build, const Toolchain& toolchain,
                           const std::optional<CudaBuild>& cuda, const World& world) {
  DSI_TRY(std::vector<ReleaseFile> files, list_files(build.stage));
  files.push_back({"bin/ds-probe", world.root ? world.root->probe() : world.folders.probe, true});
  // The agent under its other name reports on the node; the content travels once for both.
  files.push_back({"bin/ds-report", world.folders.agent, true});
  std::vector<ManifestOp> ops;
  for (const BuiltOp& op : build.ops) {
    ManifestOp row;
    row.name = op.name;
    row.capability = op.capability;
    row.description = op.description;
    row.devices = op.devices;
    if (op.built) {
      row.library = op.library;
    } else {
      row.not_built = op.error.what;
    }
    ops.push_back(std::move(row));
  }
  std::map<std::string, std::string> built_with = toolchain.as_map();
  built_with["sources"] = build.sources;
  if (cuda) built_with["cuda"] = cuda->toolkit.version;
  built_with["ds_install"] = DSI_VERSION;
  return make_payload(files, std::move(ops), std::move(built_with));
}

// Ops for devices that the hosts have and that could not be made: one line for each reason.
void tell_left_out(const BuildResult& build, World& world) {
  using Reasons = std::map<std::string, std::vector<std::string>>;
  Reasons ops, codes;
  auto add = [](Reasons& to, const Error& why, const std::string& name) {
    to[fmt::format("{}{}{}", why.what, why.help.empty() ? "" : "\n  help: ", why.help)].push_back(
        name);
  };
  for (const BuiltOp& op : build.left_out) add(ops, op.error, op.name);
  for (const BuiltOp& op : build.ops) {
    if (!op.without_cuda.what.empty()) add(codes, op.without_cuda, op.name);
  }
  for (const auto& [reason, names] : ops) {
    world.progress.warning(fmt::format("left out, {}: {}", list_of(names), reason));
  }
  for (const auto& [reason, names] : codes) {
    world.progress.warning(
        fmt::format("left out, the code for devices of {}: {}", list_of(names), reason));
  }
}

// The ops that stand in for DeepSpeed's, built against the torch of the Python they are for.
tl::expected<std::vector<ReleaseFile>, RunError> build_stand_ins(const Options& options,
                                                                 const BuildPython& python,
                                                                 World& world) {
  // Debian's torch has its headers in the system's folders.
  auto toolchain = find_toolchain(world.processes, python.torch_path, world.drain);
  if (!toolchain) toolchain = find_toolchain(world.processes, {}, world.drain);
  if (!toolchain) return tl::unexpected<RunError>(with_exit(kExitBuild)(toolchain.error()));
  RUN_TRY(BuildResult build, kExitBuild,
          build_ops(request_for(options, world, *toolchain, {}), world.folders.cache,
                    world.processes, world.progress, world.drain));
  for (const BuiltOp& op : build.ops) {
    if (!op.built) {
      world.progress.warning(
          fmt::format("{} cannot be built, and DeepSpeed's own stays: {}", op.name, op.error.what));
    }
  }
  RUN_TRY(std::vector<ReleaseFile> files, kExitBuild, list_files(build.stage));
  std::erase_if(files, [](const ReleaseFile& file) {
    return !file.path.starts_with("lib/") && !file.path.starts_with("ops/") &&
           !file.path.starts_with("python/");
  });
  return files;
}

}  // namespace

Requirements requirements_of(const Toolchain& toolchain) {
  Manifest manifest;
  manifest.built_with = toolchain.as_map();
  return requirements_of(manifest);
}

Result<AgentBinary> load_agent(const Folders& folders) {
  return AgentBinary::load({folders.agent, folders.agent_compressed, folders.loader});
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Result<Toolchain> toolchain_for(const fs::path& torch, const World& world) {
  if (world.root != nullptr) return world.root->toolchain();
  return find_toolchain(world.processes, torch, world.drain);
}

Result<std::optional<CudaBuild>> choose_cuda(const CudaWish& wish, const Toolchain& toolchain,
                                             World& world) {
  if (world.root != nullptr) {
    DSI_TRY(CudaDecision decision,
            decide_cuda(world.root->wish(wish), toolchain.torch, world.root->toolkits()));
    for (const std::string& warning : decision.warnings) world.progress.warning(warning);
    return std::move(decision.build);
  }
  // Nothing that nvcc says matters to hosts without devices.
  const bool may_be =
      !wish.hosts_known || !wish.compute_capabilities.empty() || wish.accelerator == "cuda";
  DSI_TRY(CudaDecision decision,
          decide_cuda(wish, toolchain.torch,
                      may_be ? find_toolkits(nvcc_places(), world.processes, world.drain)
                             : std::vector<CudaToolkit>{}));
  for (const std::string& warning : decision.warnings) world.progress.warning(warning);
  return std::move(decision.build);
}

Intention intend_to_install(const Options& options, const World& world, const OpBuild& build,
                            const AgentBinary& agent) {
  const Toolchain& toolchain = build.toolchain;
  const std::optional<CudaBuild>& cuda = build.cuda;
  Intention intention;
  intention.command = "install";
  intention.build = requirements_of(toolchain);
  intention.ops = options.ops;
  BuildRequest request = request_for(options, world, toolchain, cuda);
  bool cached = false;
  if (auto sources = hash_sources(request)) {
    auto text = read_file(remembered_release(world, request, *sources, agent));
    auto manifest = text ? Manifest::parse(*text) : fail("it was not built before");
    if (manifest) {
      intention.release = release_id(*text);
      intention.build = requirements_of(*manifest);
      cached = true;
    }
  }
  intention.source = fmt::format(
      "{}, {} with torch {} ({}) and {}{}", options.ops.empty() ? "all ops" : list_of(options.ops),
      cached ? "built before" : "to be compiled", toolchain.torch.version,
      toolchain.torch.found_by == "the system" ? "Debian's" : toolchain.torch.found_by,
      toolchain.compiler,
      cuda ? fmt::format(", and CUDA {} for {}", cuda->toolkit.version, to_string(cuda->archs))
           : "");
  return intention;
}

tl::expected<Payload, RunError> build_payload(const Options& options, World& world,
                                              const OpBuild& with, const AgentBinary& agent) {
  const Toolchain& toolchain = with.toolchain;
  const std::optional<CudaBuild>& cuda = with.cuda;
  BuildRequest request = request_for(options, world, toolchain, cuda);
  auto begin = Clock::now();
  RUN_TRY(BuildResult build, world.drain.stop_requested() ? kExitInterrupted : kExitBuild,
          build_ops(request, world.folders.cache, compilers(world), world.progress, world.drain));
  std::vector<std::string> built;
  std::string failures;
  Error first;
  for (const BuiltOp& op : build.ops) {
    if (op.built) {
      built.push_back(op.name);
      continue;
    }
    failures += fmt::format("\n  {}: {}", op.name, op.error.what);
    if (!op.error.help.empty()) failures += fmt::format("\n    help: {}", op.error.help);
  }
  std::chrono::duration<double> took = Clock::now() - begin;
  std::size_t failed = build.ops.size() - built.size();
  if (failed > 0) {
    Error error{
        fmt::format("{} of {} ops cannot be built; no host was touched{}", failed, build.ops.size(),
                    failures),
        built.empty() ? "" : fmt::format("--keep-going installs the others: {}", list_of(built))};
    if (!options.keep_going || built.empty()) {
      return tl::unexpected<RunError>(RunError{kExitBuild, std::move(error)});
    }
    world.progress.warning(fmt::format("{} of {} ops cannot be built and are left out{}", failed,
                                       build.ops.size(), failures));
  }
  if (cuda) tell_left_out(build, world);
  world.progress.lasting(
      build.fresh ? "Built" : "Unchanged",
      fmt::format(
          "{} op{} ({}) with torch {}{} in {:.1f} s", built.size(), built.size() == 1 ? "" : "s",
          list_of(built), toolchain.torch.version,
          cuda ? fmt::format(" and CUDA {} for {}", cuda->toolkit.version, to_string(cuda->archs))
               : "",
          took.count()));
  RUN_TRY(Payload payload, kExitBuild, payload_of(build, toolchain, cuda, world));
  for (const std::string& lost : codes_not_in(payload.manifest, cuda)) world.progress.warning(lost);
  // Only a plan reads it, so a failure to write it costs nothing.
  (void)write_file_atomically(remembered_release(world, request, build.sources, agent),
                              payload.text);
  return payload;
}

tl::expected<Payload, RunError> build_package_payload(const Options& options, World& world,
                                                      const PackageJob& job,
                                                      const PackageTargets& targets) {
  auto begin = Clock::now();
  PackageFiles files{world.folders.package_program, {}, world.folders.cache};
  if (options.drop_in) {
    auto stand_ins = build_stand_ins(options, job.python, world);
    if (!stand_ins) return tl::unexpected<RunError>(stand_ins.error());
    files.stand_ins = std::move(*stand_ins);
  }
  RUN_TRY(
      BuiltPackage built, world.drain.stop_requested() ? kExitInterrupted : kExitBuild,
      build_package(job, options, targets, files, world.processes, world.progress, world.drain));
  const ManifestPackage& package = built.payload.manifest.packages.front();
  std::vector<std::string> ops;
  for (const ManifestModule& module : package.modules) ops.push_back(module.op);
  std::chrono::duration<double> took = Clock::now() - begin;
  world.progress.lasting(
      built.fresh ? "Built" : "Unchanged",
      fmt::format("{} {}{} in {:.1f} s", package.name, package.version,
                  ops.empty() ? "" : fmt::format(" ({})", list_of(ops)), took.count()));
  return std::move(built.payload);
}

}  // namespace dsi
