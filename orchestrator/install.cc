// The flow:
//
//   hosts → survey → plan → build → bundle → deploy (each host) → report → record
//
// `plan` and --dry-run stop before the build; `report`, `rollback` and `uninstall` go from the plan
// straight to the hosts; `build` needs no hosts. One host's failure is a row of the report.

#include "orchestrator/install.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>
#include <ostream>

#include "orchestrator/base/file.h"
#include "orchestrator/base/nodeset.h"
#include "orchestrator/base/random.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/build.h"
#include "orchestrator/bundle.h"
#include "orchestrator/deploy.h"
#include "orchestrator/distribute/content_cache.h"
#include "orchestrator/distribute/distributor.h"
#include "orchestrator/examples.h"
#include "orchestrator/hosts.h"
#include "orchestrator/parallel.h"
#include "orchestrator/plan.h"
#include "orchestrator/record.h"
#include "orchestrator/report.h"
#include "orchestrator/survey.h"
#include "orchestrator/toolchain.h"
#include "orchestrator/transfer_text.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

auto with_exit(int code) {
  return [code](Error error) { return RunError{code, std::move(error)}; };
}

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
// DSI_TRY for the functions here: an Error becomes a RunError with the exit code it means.
#define RUN_TRY(declaration, code, expression) \
  RUN_TRY_INNER(DSI_CONCAT(run_try_, __LINE__), declaration, code, expression)
#define RUN_TRY_INNER(name, declaration, code, expression)                              \
  auto name = (expression);                                                             \
  if (!name) return tl::unexpected<RunError>(with_exit(code)(std::move(name).error())); \
  declaration = *std::move(name)
// NOLINTEND(bugprone-macro-parentheses)

std::string who_runs() {
  std::string user = std::to_string(::geteuid());
  if (const char* name = std::getenv("USER")) user = name;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return user + "@" + host;
}

const char* name_of(CommandKind command) {
  switch (command) {
    case CommandKind::kInstall:
    case CommandKind::kPlan:  // What it plans.
      return "install";
    case CommandKind::kBuild:
      return "build";
    case CommandKind::kReport:
      return "report";
    case CommandKind::kRollback:
      return "rollback";
    case CommandKind::kUninstall:
      return "uninstall";
    case CommandKind::kHosts:
      return "hosts";
    case CommandKind::kExamples:
      return "examples";
  }
  return "";
}

bool changes_hosts(CommandKind command) {
  return command == CommandKind::kInstall || command == CommandKind::kRollback ||
         command == CommandKind::kUninstall;
}

// ---- build → bundle

BuildRequest request_for(const Options& options, const World& world, Toolchain toolchain) {
  return {world.folders.kernels, options.ops_folders, options.ops, std::move(toolchain),
          options.jobs};
}

// The id that this request gave last time stands beside its build, so that a plan can say what will
// happen without building. Everything that influences it is in the file's name.
fs::path remembered_release(const World& world, const BuildRequest& request,
                            const std::string& sources, const AgentBinary& agent) {
  std::string names;
  for (const std::string& op : request.ops) names += op + ",";
  std::string probe = sha256_file(world.folders.probe).value_or("");
  return build_folder(world.folders.cache, request, sources) /
         ("release-" + sha256_hex(names + agent.digest() + probe + DSI_VERSION).substr(0, 16));
}

Result<Payload> payload_of(const BuildResult& build, const Toolchain& toolchain,
                           const World& world) {
  DSI_TRY(std::vector<ReleaseFile> files, list_files(build.stage));
  files.push_back({"bin/ds-probe", world.folders.probe, true});
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
  built_with["ds_install"] = DSI_VERSION;
  return make_payload(files, std::move(ops), std::move(built_with));
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Builds what the options ask for. An op that failed ends the run, unless --keep-going.
tl::expected<Payload, RunError> build_payload(const Options& options, World& world,
                                              const Toolchain& toolchain,
                                              const AgentBinary& agent) {
  BuildRequest request = request_for(options, world, toolchain);
  auto begin = Clock::now();
  RUN_TRY(BuildResult build, world.drain.stop_requested() ? kExitInterrupted : kExitBuild,
          build_ops(request, world.folders.cache, world.processes, world.progress, world.drain));
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
  world.progress.lasting(build.fresh ? "Built" : "Unchanged",
                         fmt::format("{} op{} ({}) with torch {} in {:.1f} s", built.size(),
                                     built.size() == 1 ? "" : "s", list_of(built),
                                     toolchain.torch.version, took.count()));
  RUN_TRY(Payload payload, kExitBuild, payload_of(build, toolchain, world));
  // Only a plan reads it, so a failure to write it costs nothing.
  (void)write_file_atomically(remembered_release(world, request, build.sources, agent), payload.id);
  return payload;
}

// ---- what is intended, before the build

Intention intend_to_install(const Options& options, const World& world, const Toolchain& toolchain,
                            const AgentBinary& agent) {
  Intention intention;
  intention.command = "install";
  intention.arch = toolchain.arch;
  intention.ops = options.ops;
  BuildRequest request = request_for(options, world, toolchain);
  bool cached = false;
  if (auto sources = hash_sources(request)) {
    if (auto id = read_file(remembered_release(world, request, *sources, agent))) {
      intention.release = *id;
      cached = true;
    }
  }
  intention.source = fmt::format(
      "{}, {} with torch {} ({}) and {}", options.ops.empty() ? "all ops" : list_of(options.ops),
      cached ? "built before" : "to be compiled", toolchain.torch.version,
      toolchain.torch.found_by == "the system" ? "Debian's" : toolchain.torch.found_by,
      toolchain.compiler);
  return intention;
}

Intention intend_bundle(const Options& options, const Payload& payload) {
  Intention intention;
  intention.command = "install";
  intention.release = payload.id;
  intention.source = "bundle " + options.bundle.string();
  if (auto arch = payload.manifest.built_with.find("arch");
      arch != payload.manifest.built_with.end()) {
    intention.arch = arch->second;
  }
  for (const ManifestOp& op : payload.manifest.ops) intention.ops.push_back(op.name);
  return intention;
}

// ---- hosts

HostReport row_without_session(const PlannedHost& host) {
  HostReport row;
  row.host = host.host;
  row.status = host.status;
  row.from = host.from;
  row.to = host.from;
  row.error = host.error;
  return row;
}

// Works on every host that the plan leaves, side by side.
template <typename Work>
std::vector<HostReport> work_on_hosts(const Plan& plan, Survey& survey, const RunContext& run,
                                      World& world, std::string_view verb, Work&& work) {
  std::vector<HostReport> rows(plan.hosts.size());
  std::vector<std::size_t> todo;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = row_without_session(plan.hosts[i]);
    bool reached = survey.sessions[i].has_value() && plan.hosts[i].action != Action::kRefuse;
    if (!reached) continue;
    rows[i].error = {"interrupted before anything was done", ""};
    todo.push_back(i);
  }
  std::atomic<std::size_t> done{0};
  TransferMeter meter;
  Ticker ticker(world.progress, std::string(verb), [&] {
    Transfer now{done.load(), todo.size(), run.traffic.bytes_sent.load(), 0, 0};
    if (run.distributor != nullptr) {
      now.done = run.distributor->bytes_done();
      now.wanted = run.distributor->bytes_wanted();
    }
    return meter.text(now, TransferMeter::Clock::now());
  });
  // Hosts that wait for each other must all be at work: then the fan-out bounds the connecting
  // only.
  bool together = run.peering != nullptr && run.peering->swarm;
  if (run.distributor != nullptr) run.distributor->expect(todo.size());
  parallel_for(todo.size(), together ? todo.size() : static_cast<std::size_t>(run.options.fanout),
               world.drain, [&](std::size_t k) {
                 std::size_t i = todo[k];
                 rows[i] = work(*survey.sessions[i]);
                 ++done;
                 world.progress.detail(
                     1, fmt::format("{}: {} in {:.2f} s", rows[i].host, to_string(rows[i].status),
                                    rows[i].seconds.count()));
                 for (const std::string& line : survey.sessions[i]->transcript) {
                   world.progress.detail(2, fmt::format("{}: {}", rows[i].host, line));
                 }
               });
  return rows;
}

// Ends what still serves others, side by side: a hundred farewells one by one take their time.
void hang_up(Survey& survey, const Options& options) {
  parallel_for(survey.sessions.size(), static_cast<std::size_t>(options.fanout), {},
               [&](std::size_t i) {
                 if (survey.sessions[i]) survey.sessions[i]->hang_up();
               });
}

// How the payload comes to the hosts, and what is made for it once.
class Distribution {
 public:
  Distribution(const Payload& payload, const HostList& hosts, const World& world, RunContext& run)
      : wire_(payload, world.folders.cache / "wire"),
        content_(world.folders.cache / "content"),
        distributor_(payload, wire_, content_),
        peering_{
            random_hex(32), !hosts.local && run.options.topology != "star",
            !hosts.local && run.options.topology != "star" && hosts.hosts.size() > 1,
            // Checked where the options were read.
            distribute::RateLimit(distribute::parse_rate(run.options.rate_limit).value_or(0))} {
    run.distributor = &distributor_;
    run.peering = &peering_;
    if (peering_.listen) {
      std::size_t wire_size = run.agent.bytes().size() / 3;  // What LZMA makes of it, about.
      peering_.agent_sources = std::make_unique<distribute::AgentSources>(
          distribute::AgentSources::limits_for(hosts.hosts.size(), wire_size));
    }
    // Only later runs miss it.
    if (auto kept = content_.keep(payload); !kept) world.progress.warning(kept.error().what);
  }

  void tell(RunReport& report, const Record& record, const RunContext& run, World& world) {
    for (const distribute::Remark& remark : distributor_.take_remarks()) {
      report.remarks.push_back({run.number_to_name(remark.peer), remark.text});
    }
    if (auto written = record.write_swarms(distributor_.stories()); !written) {
      world.progress.warning("the record is incomplete: " + written.error().what);
    }
  }

 private:
  WireFiles wire_;
  distribute::ContentCache content_;
  distribute::Distributor distributor_;
  Peering peering_;
};

void keep_record(const Record& record, const RunReport& report, const Survey& survey,
                 World& world) {
  auto keep = [&](Result<void> written) {
    if (!written) world.progress.warning("the record is incomplete: " + written.error().what);
  };
  keep(record.write_report(report));
  for (const std::optional<Session>& session : survey.sessions) {
    if (session) keep(record.write_transcript(session->host.name, session->transcript));
  }
}

std::vector<std::string> columns_of(const std::vector<HostReport>& rows) {
  std::vector<std::string> columns;
  for (const HostReport& row : rows) {
    for (const protocol::OpRow& op : row.ops) {
      if (std::find(columns.begin(), columns.end(), op.op) == columns.end())
        columns.push_back(op.op);
    }
  }
  std::sort(columns.begin(), columns.end());
  return columns;
}

Result<AgentBinary> load_agent(const Folders& folders) {
  return AgentBinary::load({folders.agent, folders.agent_compressed, folders.loader});
}

// install, plan, report, rollback, uninstall: everything that has hosts.
tl::expected<int, RunError> run_on_hosts(const Options& options, World& world) {
  auto begin = Clock::now();
  RUN_TRY(HostList hosts, kExitUsage, resolve_hosts(options, world.progress));
  RUN_TRY(AgentBinary agent, kExitUsage, load_agent(world.folders));

  bool installs = options.command == CommandKind::kInstall || options.command == CommandKind::kPlan;
  bool builds = installs && options.bundle.empty();
  std::optional<Payload> payload;
  if (installs && !builds) {
    RUN_TRY(payload, kExitUsage, read_bundle(options.bundle, world.folders.cache));
  }
  // Looking for compilers and connecting wait for different things; both at once.
  auto toolchain_later = std::async(std::launch::async, [&]() -> Result<Toolchain> {
    if (!builds) return Toolchain{};
    return find_toolchain(world.processes, options.torch, world.drain);
  });

  Traffic traffic;
  RunContext run{new_run_id(), who_runs(),  options, agent, hosts.local ? world.local : world.ssh,
                 {},           world.abort, traffic};
  for (const Host& host : hosts.hosts) run.host_names.push_back(host.name);
  Survey survey = survey_hosts(hosts.hosts, run, world.progress, world.drain);
  RUN_TRY(Toolchain toolchain, kExitBuild, toolchain_later.get());
  if (builds)
    run.torch_folders = {toolchain.torch.library.string(), toolchain.torch.prefix.string()};

  Intention intention;
  if (!installs) {
    intention.command = name_of(options.command);
    intention.source = "on " + std::to_string(hosts.hosts.size()) + " hosts of " + hosts.source;
  } else if (builds) {
    intention = intend_to_install(options, world, toolchain, agent);
  } else {
    intention = intend_bundle(options, *payload);
  }
  Plan plan = make_plan(intention, survey.rows);
  if (options.command == CommandKind::kPlan) {
    options.json ? print_plan_json(world.out, plan) : print_plan(world.out, plan);
    if (plan.all_refused()) return kExitRefused;
    bool all_reached = std::all_of(plan.hosts.begin(), plan.hosts.end(),
                                   [](const PlannedHost& host) { return host.error.what.empty(); });
    return all_reached ? kExitOk : kExitSomeFailed;
  }

  // A host list of which nobody can be worked on needs no build.
  bool anybody = std::any_of(plan.hosts.begin(), plan.hosts.end(), [](const PlannedHost& host) {
    return host.action != Action::kNone && host.action != Action::kRefuse;
  });
  if (builds && anybody && !world.drain.stop_requested()) {
    auto built = build_payload(options, world, toolchain, agent);
    if (!built) return tl::unexpected<RunError>(built.error());
    payload = std::move(*built);
  }

  RUN_TRY(Record record, kExitUsage, Record::create(world.folders.state, run.run));
  RUN_TRY(auto planned, kExitUsage, record.write_plan(plan_json(plan)).map([] { return true; }));
  (void)planned;

  RunReport report;
  report.run = run.run;
  report.command = name_of(options.command);
  report.strict = options.strict;
  if (options.command == CommandKind::kInstall) {
    std::optional<Distribution> distribution;
    if (payload) {
      report.release = payload->id;
      distribution.emplace(*payload, hosts, world, run);
    }
    report.hosts = work_on_hosts(plan, survey, run, world, "Installing",
                                 [&](Session& session) { return deploy(session, *payload, run); });
    hang_up(survey, options);
    if (distribution) distribution->tell(report, record, run, world);
  } else if (options.command == CommandKind::kReport) {
    report.hosts = work_on_hosts(plan, survey, run, world, "Asking",
                                 [&](Session& session) { return report_on(session, run); });
  } else if (options.command == CommandKind::kRollback) {
    report.hosts = work_on_hosts(plan, survey, run, world, "Rolling back",
                                 [&](Session& session) { return roll_back(session, run); });
  } else {
    report.hosts = work_on_hosts(plan, survey, run, world, "Uninstalling",
                                 [&](Session& session) { return uninstall(session, run); });
  }
  report.columns = columns_of(report.hosts);
  report.interrupted = world.drain.stop_requested();
  report.seconds = Clock::now() - begin;

  if (options.json) {
    print_report_json(world.out, report);
  } else {
    print_report(world.out, report, Style::detect(STDOUT_FILENO));
  }
  keep_record(record, report, survey, world);
  world.progress.detail(1, "the record is in " + record.folder().string());
  return exit_code(report);
}

tl::expected<int, RunError> run_build(const Options& options, World& world) {
  RUN_TRY(AgentBinary agent, kExitUsage, load_agent(world.folders));
  RUN_TRY(Toolchain toolchain, kExitBuild,
          find_toolchain(world.processes, options.torch, world.drain));
  auto payload = build_payload(options, world, toolchain, agent);
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
  RUN_TRY(HostList list, kExitUsage, resolve_hosts(options, world.progress));
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

}  // namespace

tl::expected<int, RunError> run_command(const Options& options, World& world) {
  if (::geteuid() == 0 && changes_hosts(options.command) && !options.allow_sudo) {
    return tl::unexpected<RunError>(
        RunError{kExitUsage,
                 {"running as root installs for everybody, and that must be asked for",
                  "give -r (--allow_sudo), or run as the user it is for"}});
  }
  if (options.clean) {
    std::error_code error;
    for (const char* part : {"builds", "bundles", "wire", "content"}) {
      fs::remove_all(world.folders.cache / part, error);
    }
    world.progress.lasting("Emptied", "the build cache " + world.folders.cache.string());
  }
  switch (options.command) {
    case CommandKind::kBuild:
      return run_build(options, world);
    case CommandKind::kHosts:
      return run_hosts(options, world);
    case CommandKind::kExamples: {
      RUN_TRY(WrittenExamples written, kExitUsage,
              write_examples(world.folders.examples, options.output));
      world.out << written.text;
      return kExitOk;
    }
    default:
      return run_on_hosts(options, world);
  }
}

}  // namespace dsi
