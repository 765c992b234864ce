#pragma once

// From sources to what is sent: the ops with one torch, or a Python package. The errors say which
// exit code they mean.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/agent_link.h"
#include "orchestrator/bundle.h"
#include "orchestrator/cuda_build.h"
#include "orchestrator/install.h"
#include "orchestrator/package/payload.h"
#include "orchestrator/plan.h"
#include "orchestrator/toolchain.h"

namespace dsi {

// What ops are compiled with.
struct OpBuild {
  Toolchain toolchain;
  std::optional<CudaBuild> cuda;  // Nothing: for the processor only.
};

// The agent that belongs to this program.
Result<AgentBinary> load_agent(const Folders& folders);

// "a, b, c"
std::string list_of(const std::vector<std::string>& names);

// What needs no look at any host and no build.
Requirements requirements_of(const Toolchain& toolchain);

// What ops are compiled with here, or in the root of --env, where that torch is found that its lock
// names. `torch` as --torch.
Result<Toolchain> toolchain_for(const std::filesystem::path& torch, const World& world);

// Whether device code is made and for what, told to the user where it is not plain. Side effects:
// runs the nvcc that it finds.
Result<std::optional<CudaBuild>> choose_cuda(const CudaWish& wish, const Toolchain& toolchain,
                                             World& world);

// What a build will give, from what is remembered of an equal one before.
Intention intend_to_install(const Options& options, const World& world, const OpBuild& build,
                            const AgentBinary& agent);

// Compiles what the options ask for. An op that failed ends the run, unless --keep-going.
tl::expected<Payload, RunError> build_payload(const Options& options, World& world,
                                              const OpBuild& build, const AgentBinary& agent);

tl::expected<Payload, RunError> build_package_payload(const Options& options, World& world,
                                                      const PackageJob& job,
                                                      const PackageTargets& targets);

}  // namespace dsi
