#include "orchestrator/package/intend.h"

#include <algorithm>

#include "orchestrator/elf.h"
#include "orchestrator/requirements.h"

namespace dsi {

PackageTargets targets_of(const Survey& survey, const Plan& plan) {
  PackageTargets targets;
  for (std::size_t i = 0; i < survey.rows.size(); ++i) {
    const auto& python = survey.rows[i].python;
    if (!python || plan.hosts[i].action == Action::kRefuse) continue;
    targets.known = true;
    targets.pythons.push_back(*python);
    for (const std::string& capability : python->compute_capabilities) {
      targets.compute_capabilities.push_back(capability);
    }
  }
  std::sort(targets.compute_capabilities.begin(), targets.compute_capabilities.end(), version_less);
  targets.compute_capabilities.erase(
      std::unique(targets.compute_capabilities.begin(), targets.compute_capabilities.end()),
      targets.compute_capabilities.end());
  return targets;
}

void intend_package(Intention& intention, const Payload& payload) {
  if (payload.manifest.packages.empty()) return;
  const ManifestPackage& package = payload.manifest.packages.front();
  intention.release = payload.id;
  intention.package = package;
  intention.ops.clear();
  for (const ManifestModule& module : package.modules) intention.ops.push_back(module.op);
  for (const ManifestFile& file : payload.manifest.files) {
    if (file.path.starts_with("wheels/")) intention.package_bytes += file.size;
  }
}

Intention intend_bundle(const std::filesystem::path& bundle, const Payload& payload) {
  Intention intention;
  intention.command = "install";
  intention.release = payload.id;
  intention.source = "bundle " + bundle.string();
  intention.build = requirements_of(payload.manifest);
  for (const ManifestOp& op : payload.manifest.ops) intention.ops.push_back(op.name);
  intend_package(intention, payload);
  return intention;
}

Intention intend_job(const PackageJob& job) {
  Intention intention;
  intention.command = "install";
  intention.package = expected_package(job);
  const std::string from = job.source.path.filename().string();
  intention.source =
      job.source.kind == SourceKind::kWheel
          ? from
          : fmt::format("{} from {}, built with Python {} and torch {}", job.name, from,
                        job.python.version, job.python.torch.empty() ? "none" : job.python.torch);
  return intention;
}

}  // namespace dsi
