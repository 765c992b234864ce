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
#include <ctime>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <ostream>

#include "orchestrator/base/file.h"
#include "orchestrator/base/nodeset.h"
#include "orchestrator/base/random.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/batches.h"
#include "orchestrator/build.h"
#include "orchestrator/bundle.h"
#include "orchestrator/cuda_build.h"
#include "orchestrator/deploy.h"
#include "orchestrator/distribute/content_cache.h"
#include "orchestrator/distribute/distributor.h"
#include "orchestrator/elf.h"
#include "orchestrator/environment/command.h"
#include "orchestrator/examples.h"
#include "orchestrator/exchange.h"
#include "orchestrator/history.h"
#include "orchestrator/history_command.h"
#include "orchestrator/hosts.h"
#include "orchestrator/metrics.h"
#include "orchestrator/package/intend.h"
#include "orchestrator/package/payload.h"
#include "orchestrator/parallel.h"
#include "orchestrator/plan.h"
#include "orchestrator/record.h"
#include "orchestrator/report.h"
#include "orchestrator/report_html.h"
#include "orchestrator/rollout.h"
#include "orchestrator/run_end.h"
#include "orchestrator/schedule.h"
#include "orchestrator/slurm.h"
#include "orchestrator/survey.h"
#include "orchestrator/survey_text.h"
#include "orchestrator/text.h"
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
    case CommandKind::kSurvey:
      return "survey";
    case CommandKind::kCheck:
      return "check";
    case CommandKind::kHold:
      return "hold";
    case CommandKind::kUnhold:
      return "unhold";
    case CommandKind::kHosts:
      return "hosts";
    case CommandKind::kSchedule:
      return "schedule";
    case CommandKind::kHistory:
      return "history";
    case CommandKind::kEnvironment:
      return "env";
    case CommandKind::kExamples:
      return "examples";
  }
  return "";
}

bool changes_hosts(CommandKind command) {
  return command == CommandKind::kInstall || command == CommandKind::kSchedule ||
         command == CommandKind::kRollback || command == CommandKind::kUninstall ||
         command == CommandKind::kHold || command == CommandKind::kUnhold;
}

// Only these leave a record, and are told of.
bool is_on_record(CommandKind command) {
  return changes_hosts(command) || command == CommandKind::kReport ||
         command == CommandKind::kCheck;
}

// ---- build → bundle

ProcessRunner& compilers(World& world) {
  return world.root != nullptr ? world.root->runner() : world.processes;
}

Result<Toolchain> toolchain_for(const Options& options, World& world) {
  if (world.root != nullptr) return world.root->toolchain();
  return find_toolchain(world.processes, options.torch, world.drain);
}

BuildRequest request_for(const Options& options, const World& world, Toolchain toolchain,
                         std::optional<CudaBuild> cuda) {
  return {world.folders.kernels, options.ops_folders, options.ops,
          std::move(toolchain),  std::move(cuda),     options.jobs};
}

// What the devices of those hosts are that the release may go to.
std::vector<std::string> devices_of(const std::vector<SurveyRow>& rows) {
  std::vector<std::string> all;
  for (const SurveyRow& row : rows) {
    for (const NodeGpu& gpu : row.node.gpus) {
      if (!gpu.compute_capability.empty()) all.push_back(gpu.compute_capability);
    }
  }
  std::sort(all.begin(), all.end(), version_less);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Whether device code is made and for what, told to the user where it is not plain.
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

Requirements requirements_of(const Toolchain& toolchain) {
  Manifest manifest;
  manifest.built_with = toolchain.as_map();
  return requirements_of(manifest);
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
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

// Builds what the options ask for. An op that failed ends the run, unless --keep-going.
tl::expected<Payload, RunError> build_payload(const Options& options, World& world,
                                              const Toolchain& toolchain,
                                              const std::optional<CudaBuild>& cuda,
                                              const AgentBinary& agent) {
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

// ---- what is intended, before the build

Intention intend_to_install(const Options& options, const World& world, const Toolchain& toolchain,
                            const std::optional<CudaBuild>& cuda, const AgentBinary& agent) {
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

// ---- hosts

// Ends what still serves others, side by side: a hundred farewells one by one take their time.
void hang_up(const std::vector<std::size_t>& batch, Survey& survey, const Options& options) {
  parallel_for(batch.size(), static_cast<std::size_t>(options.fanout), {}, [&](std::size_t k) {
    if (auto& session = survey.sessions[batch[k]]) session->hang_up();
  });
}

// How the payload comes to so many hosts, and what is made for it once.
class Distribution {
 public:
  Distribution(const Payload& payload, std::size_t hosts, bool local, const World& world,
               RunContext& run)
      : wire_(payload, world.folders.cache / "wire"),
        content_(world.folders.cache / "content"),
        distributor_(payload, wire_, content_),
        peering_(peering_for(run, hosts, local)) {
    run.distributor = &distributor_;
    run.peering = &peering_;
    // Only later runs miss it.
    if (auto kept = content_.keep(payload); !kept) world.progress.warning(kept.error().what);
  }

  // What is to be told of it, added to what is there.
  void tell(RunReport& report, std::vector<distribute::SwarmStory>& stories,
            const RunContext& run) {
    for (const distribute::Remark& remark : distributor_.take_remarks()) {
      report.remarks.push_back({run.number_to_name(remark.peer), remark.text});
    }
    for (const distribute::SwarmStory& story : distributor_.stories()) stories.push_back(story);
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

// Each once, with the hosts that it is about.
void tell_warnings(const Plan& plan, Progress& progress) {
  std::map<std::string, std::vector<std::string>> hosts;
  for (const PlannedHost& host : plan.hosts) {
    for (const std::string& warning : host.warnings) hosts[warning].push_back(host.host);
  }
  for (const auto& [warning, names] : hosts) {
    progress.warning(fmt::format("{}: {}", fold_nodeset(names), warning));
  }
}

// Each warning once, however often the plan is made.
void warn_of(const Plan& plan, std::set<std::string>& warned, World& world) {
  for (const std::string& warning : warnings_of(plan)) {
    if (warned.insert(warning).second) world.progress.warning(printable(warning, true));
  }
  for (const std::string& line : undecided_of(plan)) {
    if (warned.insert(line).second) world.progress.detail(1, line);
  }
}

std::unique_ptr<Drain> make_drain(const Options& options, const std::string& run, World& world) {
  if (options.drain.empty()) return nullptr;
  if (options.drain == "slurm") {
    return make_slurm_drain(
        run, [&world](const std::string& other) { return run_is_over(world.folders.state, other); },
        world.processes, world.drain);
  }
  return make_command_drain(options.drain, options.undrain, run,
                            parse_window(options.drain_limit).value_or(std::chrono::seconds(0)),
                            world.processes, world.drain);
}

std::vector<std::string> names_of(const HostList& hosts) {
  std::vector<std::string> names;
  for (const Host& host : hosts.hosts) names.push_back(host.name);
  return names;
}

Connector& reached_by(const Options& options, const HostList& hosts, World& world) {
  if (hosts.local) return world.local;
  return options.via == "slurm" ? world.slurm : world.ssh;
}

Result<AgentBinary> load_agent(const Folders& folders) {
  return AgentBinary::load({folders.agent, folders.agent_compressed, folders.loader});
}

tl::expected<int, RunError> run_env(const Options& options, const std::vector<SurveyRow>& rows,
                                    World& world) {
  RUN_TRY(bool done, world.drain.stop_requested() ? kExitInterrupted : kExitBuild,
          run_environment(options, rows, world.folders, world.processes, world.progress, world.out,
                          world.drain)
              .map([] { return true; }));
  (void)done;
  return kExitOk;
}

// install, plan, report, rollback, uninstall, hold: everything that has hosts.
tl::expected<int, RunError> run_on_hosts(const Options& options, World& world, RunEnd& end) {
  auto begin = Clock::now();
  RUN_TRY(HostList hosts, kExitUsage, resolve_hosts(options, world.processes, world.progress));
  RUN_TRY(AgentBinary agent, kExitUsage, load_agent(world.folders));

  bool installs = options.command == CommandKind::kInstall || options.command == CommandKind::kPlan;
  const bool packs = installs && options.bundle.empty() && !options.python_package().empty();
  bool builds = installs && options.bundle.empty() && !packs;
  const bool derives = options.command == CommandKind::kEnvironment;
  bool looks = installs || derives || options.command == CommandKind::kSurvey;
  // A mistake in a site's rules keeps nobody from a rollback.
  Rules rules;
  std::set<std::string> ignored;
  if (looks) {
    RUN_TRY(rules, kExitUsage, load_rules(options.rules));
    RUN_TRY(ignored, kExitUsage, check_ignored(rules, options.ignore));
  }
  RUN_TRY(FactsProgram facts, kExitUsage, FactsProgram::load(world.folders.facts));
  std::optional<Payload> payload;
  std::optional<PackageJob> job;
  std::string package;  // Whatever is done, it is about this package.
  if (packs) {
    RUN_TRY(job, kExitBuild,
            prepare_package(options, world.folders.cache, world.processes, world.progress,
                            world.drain));
    package = job->name;
  } else if (installs && !builds) {
    RUN_TRY(payload, kExitUsage, read_bundle(options.bundle, world.folders.cache));
    if (!payload->manifest.packages.empty()) package = payload->manifest.packages.front().name;
    if (package.empty() && (options.drop_in || !options.python.empty())) {
      return tl::unexpected<RunError>(RunError{
          kExitUsage,
          {fmt::format("{} holds ops, and --python and --drop-in are about a Python package",
                       options.bundle.string()),
           "leave them out"}});
    }
  } else if (!installs && !options.python_package().empty()) {
    RUN_TRY(package, kExitUsage, installed_package_name(options));
  }
  std::map<std::string, std::string> targets;
  if (!options.to.empty()) {
    RUN_TRY(targets, kExitUsage,
            releases_to_go_to(world.folders.state, options.to, package, names_of(hosts)));
  }
  // Looking for compilers and connecting wait for different things; both at once.
  std::shared_future<Result<Toolchain>> toolchain_later =
      std::async(std::launch::async, [&]() -> Result<Toolchain> {
        if (!builds) return Toolchain{};
        return toolchain_for(options, world);
      }).share();

  Traffic traffic;
  RunContext run{end.report.run, end.by, options, agent, reached_by(options, hosts, world), {},
                 world.abort,    traffic};
  run.package = package;
  run.drain = world.drain;
  run.targets = std::move(targets);
  run.host_names = names_of(hosts);
  if (looks) run.facts = &facts;
  // A package must know the Python of each host, which only an agent finds out.
  run.brings_agent = options.command == CommandKind::kInstall || (looks && !package.empty());
  // The same places, in the same order, as the agent will be told.
  run.torch_hints = [&]() -> std::vector<std::string> {
    if (!options.torch.empty() && !builds) return {options.torch.string()};
    if (!builds) return {};
    const Result<Toolchain>& found = toolchain_later.get();
    if (!found) return {};
    return {found->torch.library.string(), found->torch.prefix.string()};
  };
  Peering looking = peering_for(run, hosts.hosts.size(), hosts.local);
  if (run.brings_agent) run.peering = &looking;
  Survey survey = survey_hosts(hosts.hosts, run, world.progress, world.drain);
  run.peering = nullptr;
  if (options.command == CommandKind::kSurvey) {
    options.json ? print_survey_json(world.out, survey.rows, rules, ignored)
                 : print_survey(world.out, survey.rows, rules, ignored);
    if (world.drain.stop_requested()) return kExitInterrupted;
    return group_hosts(survey.rows).unlooked.empty() ? kExitOk : kExitSomeFailed;
  }
  if (derives) return run_env(options, survey.rows, world);
  RUN_TRY(Toolchain toolchain, kExitBuild, Result<Toolchain>(toolchain_later.get()));
  std::optional<CudaBuild> cuda;
  if (builds) {
    RUN_TRY(cuda, kExitBuild,
            choose_cuda(cuda_wish(true, devices_of(survey.rows)), toolchain, world));
  }
  if (builds)
    run.torch_folders = {toolchain.torch.library.string(), toolchain.torch.prefix.string()};

  Intention intention;
  if (!installs) {
    intention.command = name_of(options.command);
    intention.source = "on " + std::to_string(hosts.hosts.size()) + " hosts of " + hosts.source;
    if (!package.empty()) {
      intention.package.emplace();
      intention.package->name = package;
    }
  } else if (packs) {
    intention = intend_job(*job);
  } else if (builds) {
    intention = intend_to_install(options, world, toolchain, cuda, agent);
  } else {
    intention = intend_bundle(options.bundle, *payload);
  }
  intention.ignore_holds = options.ignore_holds;
  Plan plan = make_plan(intention, survey.rows, rules, ignored);
  RUN_TRY(Pace pace, kExitUsage, pace_of(options, plan.hosts, begin));
  run.closes = pace.closes;
  std::map<std::string, std::string> wanted;  // Release by host, for check.
  if (options.command == CommandKind::kCheck) {
    if (options.release.empty()) {
      std::map<std::string, std::string> prefixes;
      for (const PlannedHost& host : plan.hosts) {
        if (host.error.what.empty()) prefixes[host.host] = host.prefix;
      }
      wanted = releases_on_record(world.folders.state, package, run.host_names, prefixes);
    } else {
      for (const std::string& host : run.host_names) wanted[host] = options.release;
    }
  }
  if (options.command == CommandKind::kPlan) {
    for (const std::string& line : undecided_of(plan)) world.progress.detail(1, line);
    options.json ? print_plan_json(world.out, plan) : print_plan(world.out, plan);
    if (plan.all_refused()) return kExitRefused;
    bool all_reached =
        std::all_of(plan.hosts.begin(), plan.hosts.end(), [](const PlannedHost& host) {
          return host.error.what.empty() || host.action == Action::kHold;
        });
    return all_reached ? kExitOk : kExitSomeFailed;
  }

  std::set<std::string> warned;
  warn_of(plan, warned, world);

  // A host list of which nobody can be worked on needs no build.
  bool anybody = std::any_of(plan.hosts.begin(), plan.hosts.end(), [](const PlannedHost& host) {
    return host.action != Action::kNone && host.action != Action::kRefuse &&
           host.action != Action::kHold;
  });
  if (packs && anybody && !world.drain.stop_requested()) {
    auto built = build_package_payload(options, world, *job, targets_of(survey, plan));
    if (!built) return tl::unexpected<RunError>(built.error());
    payload = std::move(*built);
    // Only the wheel itself says all that it asks of a host.
    intend_package(intention, *payload);
    plan = make_plan(intention, survey.rows, rules, ignored);
    warn_of(plan, warned, world);
    RUN_TRY(pace, kExitUsage, pace_of(options, plan.hosts, begin));
  }
  tell_warnings(plan, world.progress);
  if (builds && anybody && !world.drain.stop_requested()) {
    auto built = build_payload(options, world, toolchain, cuda, agent);
    if (!built) return tl::unexpected<RunError>(built.error());
    payload = std::move(*built);
    // What the build needs is known only now; whom it cannot serve is still untouched.
    intention.release = payload->id;
    intention.build = requirements_of(payload->manifest);
    plan = make_plan(intention, survey.rows, rules, ignored);
    warn_of(plan, warned, world);
    RUN_TRY(pace, kExitUsage, pace_of(options, plan.hosts, begin));
  }

  RUN_TRY(end.record, kExitUsage, Record::create(world.folders.state, run.run));
  const Record& record = *end.record;
  RUN_TRY(auto planned, kExitUsage, record.write_plan(plan_json(plan)).map([] { return true; }));
  (void)planned;

  RunReport& report = end.report;
  report.package = package;
  std::unique_ptr<Drain> drain = make_drain(options, run.run, world);
  auto go = [&](const Steps& steps) {
    return roll_out(plan, survey, run, world, pace, steps, drain.get(), report.remarks);
  };
  if (options.command == CommandKind::kInstall) {
    std::optional<Distribution> distribution;
    std::vector<distribute::SwarmStory> stories;
    if (payload) report.release = payload->id;
    report.hosts =
        go({"Installing", [&](Session& session) { return deploy(session, *payload, run); },
            [&](const std::vector<std::size_t>& numbers) {
              if (!payload) return;
              distribution.emplace(*payload, numbers.size(), hosts.local, world, run);
            },
            [&](const std::vector<std::size_t>& numbers) {
              hang_up(numbers, survey, options);
              if (distribution) distribution->tell(report, stories, run);
            }});
    if (auto written = record.write_swarms(stories); !written) {
      world.progress.warning("the record is incomplete: " + written.error().what);
    }
  } else if (options.command == CommandKind::kReport || options.command == CommandKind::kCheck) {
    report.hosts = go({"Asking", [&](Session& session) { return report_on(session, run); }});
    if (options.command == CommandKind::kCheck) hold_against(wanted, report);
    for (const SurveyRow& row : survey.rows) {
      const std::string& held = row.python ? row.python->held : row.facts.held;
      if (!held.empty()) report.remarks.push_back({row.host, "is held " + held});
    }
  } else if (options.command == CommandKind::kRollback) {
    report.hosts = go({"Rolling back", [&](Session& session) { return roll_back(session, run); }});
  } else if (options.command == CommandKind::kHold || options.command == CommandKind::kUnhold) {
    const bool hold = options.command == CommandKind::kHold;
    report.hosts = go({hold ? "Holding" : "Letting go",
                       [&](Session& session) { return change_hold(session, hold, run); }});
  } else {
    report.hosts = go({"Uninstalling", [&](Session& session) { return uninstall(session, run); }});
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
  auto told = [&](const Result<void>& written, const fs::path& file) {
    if (written) {
      world.progress.lasting("Wrote", file.string());
    } else {
      world.progress.warning("there is no " + file.string() + ": " + written.error().what);
    }
  };
  if (!options.html.empty()) {
    told(write_page(options.html, report, world.folders.state), options.html);
  }
  if (!options.metrics.empty()) {
    told(write_file_atomically(options.metrics, metrics_text(report, std::time(nullptr))),
         options.metrics);
  }
  world.progress.detail(1, "the record is in " + record.folder().string());
  return exit_code(report);
}

tl::expected<int, RunError> run_and_tell(const Options& options, World& world) {
  auto begin = Clock::now();
  RunEnd end;
  end.by = who_runs();
  end.report.run = new_run_id();
  end.report.command = name_of(options.command);
  end.report.strict = options.strict;
  auto code = run_on_hosts(options, world, end);
  if (!is_on_record(options.command)) return code;
  if (!code) {
    end.report.seconds = Clock::now() - begin;
    end_with(code.error(), end, world);
  }
  tell(options, end, world);
  return code;
}

// What `build` puts into its file: a package, or the ops.
tl::expected<Payload, RunError> payload_for_bundle(const Options& options, World& world) {
  if (!options.python_package().empty()) {
    RUN_TRY(PackageJob job, kExitBuild,
            prepare_package(options, world.folders.cache, world.processes, world.progress,
                            world.drain));
    return build_package_payload(options, world, job, {});
  }
  RUN_TRY(AgentBinary agent, kExitUsage, load_agent(world.folders));
  RUN_TRY(Toolchain toolchain, kExitBuild, toolchain_for(options, world));
  RUN_TRY(std::optional<CudaBuild> cuda, kExitBuild,
          choose_cuda(cuda_wish(false, {}), toolchain, world));
  return build_payload(options, world, toolchain, cuda, agent);
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

}  // namespace

tl::expected<int, RunError> run_command(const Options& options, World& world) {
  if (::geteuid() == 0 && changes_hosts(options.command) && !options.allow_sudo &&
      options.schedule_word.empty()) {
    return tl::unexpected<RunError>(
        RunError{kExitUsage,
                 {"running as root installs for everybody, and that must be asked for",
                  "give -r (--allow_sudo), or run as the user it is for"}});
  }
  // Found at once, not after an hour of work.
  for (const auto& [option, file] :
       {std::pair("--html", options.html), {"--metrics", options.metrics}}) {
    fs::path folder = file.parent_path();
    if (folder.empty() || fs::is_directory(folder)) continue;
    return tl::unexpected<RunError>(RunError{
        kExitUsage,
        {fmt::format("{} {}: there is no folder {}", option, file.string(), folder.string()),
         "make it, or name another place"}});
  }
  if (options.clean) {
    std::error_code error;
    for (const char* part : {"builds", "bundles", "wire", "content", "wheels", "repacked",
                             "fetched", "dependencies"}) {
      fs::remove_all(world.folders.cache / part, error);
    }
    world.progress.lasting("Emptied", "the build cache " + world.folders.cache.string());
  }
  std::optional<BuildRoot> root;
  if (!options.env.empty()) {
    RUN_TRY(root, kExitBuild,
            BuildRoot::open(options, world.folders, world.processes, world.drain));
    world.root = &*root;
  }
  switch (options.command) {
    case CommandKind::kBuild:
      return run_build(options, world);
    case CommandKind::kEnvironment:
      if (options.lock.empty()) return run_and_tell(options, world);
      return run_env(options, {}, world);
    case CommandKind::kHosts:
      return run_hosts(options, world);
    case CommandKind::kSchedule: {
      RUN_TRY(bool done, kExitUsage,
              run_schedule(options, fs::read_symlink("/proc/self/exe"), world.processes,
                           world.drain, world.progress, world.out)
                  .map([] { return true; }));
      (void)done;
      return kExitOk;
    }
    case CommandKind::kHistory: {
      auto shown =
          show_history(options, world.folders.state, world.out, Style::detect(STDOUT_FILENO));
      if (!shown) return tl::unexpected<RunError>(RunError{kExitUsage, shown.error()});
      return kExitOk;
    }
    case CommandKind::kExamples: {
      RUN_TRY(WrittenExamples written, kExitUsage,
              write_examples(world.folders.examples, options.output));
      world.out << written.text;
      return kExitOk;
    }
    default:
      return run_and_tell(options, world);
  }
}

}  // namespace dsi
