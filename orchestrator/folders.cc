#include "orchestrator/folders.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace dsi {

namespace fs = std::filesystem;

namespace {

Result<fs::path> user_folder(const char* variable, const char* below_home) {
  const char* value = std::getenv(variable);
  // The XDG specification: a relative path is to be ignored.
  if (value != nullptr && value[0] == '/') return fs::path(value) / "ds-install";
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') {
    return fail_with_help("there is no home folder to keep the cache and the records in",
                          fmt::format("set HOME or {}", variable));
  }
  return fs::path(home) / below_home / "ds-install";
}

}  // namespace

Result<Folders> find_folders() {
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return fail("cannot find out where this program lies: {}", error.message());
  fs::path bin = self.parent_path();

  Folders folders;
  DSI_TRY(folders.cache, user_folder("XDG_CACHE_HOME", ".cache"));
  DSI_TRY(folders.state, user_folder("XDG_STATE_HOME", ".local/state"));
  fs::path installed = bin.parent_path();
  fs::path parts = bin;
  if (fs::exists(installed / "share/ds-install/kernels/CMakeLists.txt")) {
    folders.kernels = installed / "share/ds-install/kernels";
    folders.examples = installed / "share/ds-install/examples";
    parts = installed / "libexec/ds-install";
    folders.probe_source = parts / "ds_probe.c";
  } else {
    // build/<preset>/ds-install in a checkout.
    fs::path source = bin.parent_path().parent_path();
    folders.kernels = source / "kernels";
    folders.examples = source / "examples";
    folders.probe_source = source / "orchestrator/probe/ds_probe.c";
  }
  folders.agent = parts / "ds-agent";
  folders.agent_compressed = parts / "ds-agent.lzma";
  folders.loader = parts / "ds-loader";
  folders.probe = parts / "ds-probe";
  folders.facts = parts / "ds-facts";
  folders.package_program = parts / "ds-package";
  for (const fs::path& part : {folders.agent, folders.agent_compressed, folders.loader,
                               folders.probe, folders.probe_source, folders.facts,
                               folders.package_program, folders.kernels / "CMakeLists.txt"}) {
    if (!fs::exists(part)) {
      return fail_with_help(fmt::format("a part of ds-install is missing: {}", part.string()),
                            "build or install ds-install again, as a whole");
    }
  }
  return folders;
}

}  // namespace dsi
