#include "orchestrator/hosts.h"

#include <unistd.h>

#include <system_error>

#include "hostfile/hostfile.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

std::string this_machine() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

Result<HostList> checked(ParsedHosts parsed, std::string source, Progress& progress) {
  std::string errors;
  for (const Diagnostic& diagnostic : parsed.diagnostics) {
    if (diagnostic.severity == Diagnostic::kError) {
      if (!errors.empty()) errors += '\n';
      errors += to_string(diagnostic);
    } else {
      progress.warning(to_string(diagnostic));
    }
  }
  if (!parsed.ok()) return tl::unexpected<Error>(Error{errors, ""});
  return HostList{std::move(parsed.hosts), false, std::move(source)};
}

}  // namespace

Result<HostList> resolve_hosts(const Options& options, Progress& progress) {
  Host here;
  here.name = this_machine();
  HostList local{{here}, true, "this machine"};
  if (options.local_only) return local;
  if (!options.hosts.empty()) return checked(parse_host_list(options.hosts), "--hosts", progress);
  std::error_code error;
  if (!options.hostfile_given && !fs::exists(options.hostfile, error)) {
    progress.lasting("Local",
                     fmt::format("there is no {}, so this machine only (-H names a hostfile)",
                                 options.hostfile.string()));
    return local;
  }
  return checked(read_hostfile(options.hostfile), "hostfile " + options.hostfile.string(),
                 progress);
}

}  // namespace dsi
