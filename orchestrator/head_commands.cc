#include "orchestrator/head_commands.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "orchestrator/base/nodeset.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/environment/command.h"
#include "orchestrator/hosts.h"
#include "orchestrator/payload_build.h"
#include "orchestrator/run_error.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

// What `build` puts into its file: a package, or the ops.
tl::expected<Payload, RunError> payload_for_bundle(const Options& options, World& world) {
  if (!options.python_package().empty()) {
    RUN_TRY(PackageJob job, kExitBuild,
            prepare_package(options, world.folders.cache, world.processes, world.progress,
                            world.drain));
    return build_package_payload(options, world, job, {});
  }
  RUN_TRY(AgentBinary agent, kExitUsage, load_agent(world.folders));
  OpBuild build;
  RUN_TRY(build.toolchain, kExitBuild, toolchain_for(options.torch, world));
  RUN_TRY(build.cuda, kExitBuild, choose_cuda(cuda_wish(false, {}), build.toolchain, world));
  return build_payload(options, world, build, agent);
}

}  // namespace

tl::expected<int, RunError> run_env(const Options& options, const std::vector<SurveyRow>& rows,
                                    World& world) {
  RUN_TRY(bool done, world.drain.stop_requested() ? kExitInterrupted : kExitBuild,
          run_environment(options, rows, world.folders, world.processes, world.progress, world.out,
                          world.drain)
              .map([] { return true; }));
  (void)done;
  return kExitOk;
}

tl::expected<int, RunError> run_build(const Options& options, World& world) {
  auto payload = payload_for_bundle(options, world);
  if (!payload) return tl::unexpected<RunError>(payload.error());
  RUN_TRY(auto written, kExitBuild,
          write_bundle(*payload, options.output).map([] { return true; }));
  (void)written;
  RUN_TRY(std::string digest, kExitBuild, sha256_file(options.output));
  std::uint64_t size = fs::file_size(options.output);
  if (options.json) {
    nlohmann::json row = {{"type", "bundle"},
                          {"file", options.output.string()},
                          {"release", payload->id},
                          {"sha256", digest},
                          {"size", size}};
    world.out << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  } else {
    world.out << fmt::format(
        "{}  {}\nrelease {}, {} files, {:.1f} KiB; install it with: ds-install --bundle {}\n",
        digest, options.output.string(), payload->id, payload->manifest.files.size(),
        static_cast<double>(size) / 1024, options.output.string());
  }
  return kExitOk;
}

tl::expected<int, RunError> run_hosts(const Options& options, World& world) {
  RUN_TRY(HostList list, kExitUsage, resolve_hosts(options, world.processes, world.progress));
  std::vector<std::string> names;
  for (const Host& host : list.hosts) {
    names.push_back(host.name);
    if (!options.json) continue;
    nlohmann::json row = {
        {"type", "host"}, {"host", host.name}, {"slots", host.slots}, {"line", host.line}};
    if (!host.user.empty()) row["user"] = host.user;
    if (host.port != 0) row["port"] = host.port;
    world.out << row.dump() << '\n';
  }
  if (options.json) return kExitOk;
  for (const Host& host : list.hosts) {
    world.out << fmt::format("{:<32}", (host.user.empty() ? "" : host.user + "@") + host.name);
    if (host.port != 0) world.out << fmt::format("  port {}", host.port);
    if (host.slots != 0) world.out << fmt::format("  slots {}", host.slots);
    world.out << '\n';
  }
  world.out << fmt::format("{} host{} of {}: {}\n", names.size(), names.size() == 1 ? "" : "s",
                           list.source, fold_nodeset(names));
  return kExitOk;
}

}  // namespace dsi
