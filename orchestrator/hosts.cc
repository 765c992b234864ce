#include "orchestrator/hosts.h"

#include <unistd.h>

#include <cstdlib>
#include <set>
#include <system_error>

#include "hostfile/hostfile.h"
#include "orchestrator/base/nodeset.h"

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

// A node that is in several partitions, or in one of several kinds of nodes, is printed more than
// once.
Result<std::string> nodes_of(const std::string& partition, ProcessRunner& processes) {
  auto listed = processes.run(
      {{"sinfo", "--noheader", "--Node", "--partition=" + partition, "--format=%N"}, {}, {}},
      Deadline::after(std::chrono::seconds(60)), {});
  if (!listed) return tl::unexpected(listed.error());
  std::string said = listed->ok() ? listed->out : listed->err;
  std::set<std::string> nodes;
  for (std::size_t at = 0; at < said.size();) {
    std::size_t end = std::min(said.find('\n', at), said.size());
    if (end > at) nodes.insert(said.substr(at, end - at));
    at = end + 1;
  }
  if (!listed->ok() || nodes.empty()) {
    return fail_with_help(fmt::format("Slurm names no node of the partition {}{}{}", partition,
                                      listed->ok() ? "" : ": ", listed->ok() ? "" : said),
                          "sinfo lists the partitions");
  }
  return fold_nodeset({nodes.begin(), nodes.end()});
}

}  // namespace

Result<HostList> resolve_hosts(const Options& options, ProcessRunner& processes,
                               Progress& progress) {
  Host here;
  here.name = this_machine();
  HostList local{{here}, true, "this machine"};
  if (options.local_only) return local;
  if (!options.hosts.empty()) return checked(parse_host_list(options.hosts), "--hosts", progress);
  if (!options.partition.empty()) {
    DSI_TRY(std::string nodes, nodes_of(options.partition, processes));
    return checked(parse_host_list(nodes), "partition " + options.partition, progress);
  }
  if (options.via == "slurm" && !options.hostfile_given) {
    const char* nodes = std::getenv("SLURM_JOB_NODELIST");
    if (nodes == nullptr) {
      return fail_with_help("--via slurm outside of an allocation does not say which hosts",
                            "name them with -H, --hosts or --partition");
    }
    return checked(parse_host_list(nodes), "SLURM_JOB_NODELIST", progress);
  }
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
