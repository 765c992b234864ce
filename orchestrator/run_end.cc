#include "orchestrator/run_end.h"

#include "orchestrator/notify.h"

namespace dsi {

namespace {

void keep(const Result<void>& written, World& world) {
  if (!written) world.progress.warning("the record is incomplete: " + written.error().what);
}

}  // namespace

void end_with(const RunError& error, RunEnd& end, World& world) {
  end.report.hosts.clear();
  end.report.error = error.error;
  end.report.error_exit = error.exit_code;
  if (!end.record) {
    auto record = Record::create(world.folders.state, end.report.run);
    if (!record) return world.progress.warning(record.error().what);
    end.record.emplace(*std::move(record));
  }
  keep(end.record->write_report(end.report), world);
}

void tell(const Options& options, RunEnd& end, World& world) {
  std::vector<std::string> warnings = notify(
      options, {end.report, end.by, end.record ? end.record->folder() : std::filesystem::path()},
      world.processes, world.webhook);
  if (warnings.empty()) return;
  for (const std::string& warning : warnings) {
    world.progress.warning(warning);
    end.report.warnings.push_back(warning);
  }
  if (end.record) keep(end.record->write_report(end.report), world);
}

}  // namespace dsi
