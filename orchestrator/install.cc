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
#include <future>
#include <ostream>

#include "orchestrator/base/file.h"
#include "orchestrator/base/nodeset.h"
#include "orchestrator/base/random.h"
#include "orchestrator/batches.h"
#include "orchestrator/bundle.h"
#include "orchestrator/cuda_build.h"
#include "orchestrator/deploy.h"
#include "orchestrator/distribute/content_cache.h"
#include "orchestrator/distribute/distributor.h"
#include "orchestrator/elf.h"
#include "orchestrator/examples.h"
#include "orchestrator/exchange.h"
#include "orchestrator/head_commands.h"
#include "orchestrator/history.h"
#include "orchestrator/history_command.h"
#include "orchestrator/hosts.h"
#include "orchestrator/metrics.h"
#include "orchestrator/package/intend.h"
#include "orchestrator/package/payload.h"
#include "orchestrator/parallel.h"
#include "orchestrator/payload_build.h"
#include "orchestrator/plan.h"
#include "orchestrator/record.h"
#include "orchestrator/report.h"
#include "orchestrator/report_html.h"
#include "orchestrator/rollout.h"
#include "orchestrator/run_end.h"
#include "orchestrator/run_error.h"
#include "orchestrator/schedule.h"
#include "orchestrator/slurm.h"
#include "orchestrator/survey.h"
#include "orchestrator/survey_text.h"
#include "orchestrator/text.h"
#include "orchestrator/toolchain.h"
#include "orchestrator/transfer_text.h"
#include "orchestrator/variants.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

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

// ---- hosts

// Ends what still serves others, side by side: a hundred farewells one by one take their time.
void hang_up(const std::vector<std::size_t>& batch, Survey& survey, const Options& options) {
  parallel_for(batch.size(), static_cast<std::size_t>(options.fanout), {}, [&](std::size_t k) {
    if (auto& session = survey.sessions[batch[k]]) session->hang_up();
  });
}

// What any of the payloads holds, to be sent.
Payload all_of(const std::vector<Payload>& payloads) {
  Payload all;
  for (const Payload& payload : payloads) {
    all.content.insert(payload.content.begin(), payload.content.end());
  }
  return all;
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

// Everything that has hosts: install, plan, survey, report, check, rollback, uninstall, hold. Each
// step leaves to the next what it found out.
class HostRun {
 public:
  HostRun(const Options& options, World& world, RunEnd& end)
      : options_(options), world_(world), end_(end) {}

  tl::expected<int, RunError> go() {
    RUN_STEP(prepare());
    look();
    if (options_.command == CommandKind::kSurvey) return show_survey();
    if (options_.command == CommandKind::kEnvironment) {
      return run_env(options_, survey_.rows, world_);
    }
    RUN_STEP(intend());
    if (options_.command == CommandKind::kPlan) return show_plan();
    tell_plan();
    RUN_STEP(build());
    RUN_STEP(act());
    return conclude();
  }

 private:
  using Step = tl::expected<void, RunError>;

  // What needs no host: who they are, the rules, what is to be installed.
  Step prepare() {
    RUN_TRY(hosts_, kExitUsage, resolve_hosts(options_, world_.processes, world_.progress));
    names_ = names_of(hosts_);
    RUN_TRY(agent_, kExitUsage, load_agent(world_.folders));
    installs_ = options_.command == CommandKind::kInstall || options_.command == CommandKind::kPlan;
    packs_ = installs_ && options_.bundle.empty() && !options_.python_package().empty();
    builds_ = installs_ && options_.bundle.empty() && !packs_;
    looks_ = installs_ || options_.command == CommandKind::kSurvey ||
             options_.command == CommandKind::kEnvironment;
    // A mistake in a site's rules keeps nobody from a rollback.
    if (looks_) {
      RUN_TRY(rules_, kExitUsage, load_rules(options_.rules));
      RUN_TRY(ignored_, kExitUsage, check_ignored(rules_, options_.ignore));
    }
    RUN_TRY(facts_, kExitUsage, FactsProgram::load(world_.folders.facts));
    RUN_STEP(find_what());
    if (!options_.to.empty()) {
      RUN_TRY(targets_, kExitUsage,
              releases_to_go_to(world_.folders.state, options_.to, package_, names_));
    }
    if (!builds_) return {};
    wanted_ = wanted_torches(options_.torch, options_.per_host, names_);
    const auto named = [](const std::optional<std::size_t>& torch) { return torch.has_value(); };
    if (world_.root != nullptr && std::any_of(wanted_.named.begin(), wanted_.named.end(), named)) {
      return tl::unexpected<RunError>(
          RunError{kExitUsage,
                   {"build-torch for a host in the configuration and --env cannot be together: an "
                    "environment "
                    "has one torch",
                    "install on those hosts in a run of its own, without --env"}});
    }
    return {};
  }

  // The bundle or the package, and the package's name whatever is done.
  Step find_what() {
    if (packs_) {
      RUN_TRY(job_, kExitBuild,
              prepare_package(options_, world_.folders.cache, world_.processes, world_.progress,
                              world_.drain));
      package_ = job_->name;
    } else if (installs_ && !builds_) {
      RUN_TRY(Payload bundle, kExitUsage, read_bundle(options_.bundle, world_.folders.cache));
      if (!bundle.manifest.packages.empty()) package_ = bundle.manifest.packages.front().name;
      payloads_.push_back(std::move(bundle));
      if (package_.empty() && (options_.drop_in || !options_.python.empty())) {
        return tl::unexpected<RunError>(RunError{
            kExitUsage,
            {fmt::format("{} holds ops, and --python and --drop-in are about a Python package",
                         options_.bundle.string()),
             "leave them out"}});
      }
    } else if (!installs_ && !options_.python_package().empty()) {
      RUN_TRY(package_, kExitUsage, installed_package_name(options_));
    }
    return {};
  }

  void look() {
    // Looking for compilers and connecting wait for different things; both at once.
    toolchains_ = std::async(std::launch::async, [this] { return find_toolchains(); }).share();
    run_.emplace(RunContext{end_.report.run,
                            end_.by,
                            options_,
                            *agent_,
                            reached_by(options_, hosts_, world_),
                            {},
                            world_.abort,
                            traffic_});
    RunContext& run = *run_;
    run.package = package_;
    run.drain = world_.drain;
    run.targets = std::move(targets_);
    run.host_names = names_;
    if (looks_) run.facts = &*facts_;
    // A package must know the Python of each host, which only an agent finds out.
    run.brings_agent = options_.command == CommandKind::kInstall || (looks_ && !package_.empty());
    // The same places, in the same order, as the agent will be told.
    run.torch_hints = [this](distribute::PeerId host) -> std::vector<std::string> {
      if (!builds_) {
        return options_.torch.empty() ? std::vector<std::string>{}
                                      : std::vector<std::string>{options_.torch.string()};
      }
      const Result<std::vector<Toolchain>>& found = toolchains_.get();
      if (!found) return {};
      const auto number = static_cast<std::size_t>(host);
      return folders_of((*found)[wanted_.named[number].value_or(wanted_.fallback)]);
    };
    Peering looking = peering_for(run, hosts_.hosts.size(), hosts_.local);
    if (run.brings_agent) run.peering = &looking;
    survey_ = survey_hosts(hosts_.hosts, run, world_.progress, world_.drain);
    run.peering = nullptr;
  }

  Result<std::vector<Toolchain>> find_toolchains() {
    std::vector<Toolchain> found;
    for (const fs::path& torch : wanted_.paths) {
      DSI_TRY(Toolchain one, toolchain_for(torch, world_));
      found.push_back(std::move(one));
    }
    return found;
  }

  static std::vector<std::string> folders_of(const Toolchain& toolchain) {
    return {toolchain.torch.library.string(), toolchain.torch.prefix.string()};
  }

  int show_survey() {
    options_.json ? print_survey_json(world_.out, survey_.rows, rules_, ignored_)
                  : print_survey(world_.out, survey_.rows, rules_, ignored_);
    if (world_.drain.stop_requested()) return kExitInterrupted;
    return group_hosts(survey_.rows).unlooked.empty() ? kExitOk : kExitSomeFailed;
  }

  // What each host is to get, before anything is built.
  Step intend() {
    of_host_.assign(names_.size(), 0);
    if (builds_) {
      RUN_STEP(intend_builds());
    } else if (packs_) {
      intentions_ = {intend_job(*job_)};
    } else if (installs_) {
      intentions_ = {intend_bundle(options_.bundle, payloads_.front())};
    } else {
      Intention intention;
      intention.command = name_of(options_.command);
      intention.source = "on " + std::to_string(names_.size()) + " hosts of " + hosts_.source;
      if (!package_.empty()) {
        intention.package.emplace();
        intention.package->name = package_;
      }
      intentions_ = {std::move(intention)};
    }
    for (Intention& intention : intentions_) intention.ignore_holds = options_.ignore_holds;
    return make_plan_and_pace();
  }

  Step intend_builds() {
    RUN_TRY(std::vector<Toolchain> toolchains, kExitBuild,
            Result<std::vector<Toolchain>>(toolchains_.get()));
    std::vector<Requirements> known;
    for (const Toolchain& toolchain : toolchains) known.push_back(requirements_of(toolchain));
    Variants variants = choose_variants(known, wanted_, survey_.rows, rules_, ignored_);
    of_host_ = std::move(variants.of_host);
    for (std::size_t i = 0; i < variants.builds.size(); ++i) {
      OpBuild build{toolchains[variants.builds[i]], {}};
      RUN_TRY(build.cuda, kExitBuild,
              choose_cuda(cuda_wish(true, devices_for(i)), build.toolchain, world_));
      Intention intention = intend_to_install(options_, world_, build, *agent_);
      intention.why = variants.why[i];
      intentions_.push_back(std::move(intention));
      op_builds_.push_back(std::move(build));
    }
    // From here on each host is told of what it gets.
    run_->torch_folders = [this](distribute::PeerId host) {
      return folders_of(op_builds_[of_host_[static_cast<std::size_t>(host)]].toolchain);
    };
    return {};
  }

  // What the devices of those hosts are that this variant may go to.
  std::vector<std::string> devices_for(std::size_t variant) const {
    std::vector<std::string> all;
    for (std::size_t host = 0; host < survey_.rows.size(); ++host) {
      if (of_host_[host] != variant) continue;
      for (const NodeGpu& gpu : survey_.rows[host].node.gpus) {
        if (!gpu.compute_capability.empty()) all.push_back(gpu.compute_capability);
      }
    }
    std::sort(all.begin(), all.end(), version_less);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

  Step make_plan_and_pace() {
    plan_ = make_plan(intentions_, of_host_, survey_.rows, rules_, ignored_);
    RUN_TRY(pace_, kExitUsage, pace_of(options_, plan_.hosts, begin_));
    run_->closes = pace_.closes;
    return {};
  }

  int show_plan() {
    for (const std::string& line : undecided_of(plan_)) world_.progress.detail(1, line);
    options_.json ? print_plan_json(world_.out, plan_) : print_plan(world_.out, plan_);
    if (plan_.all_refused()) return kExitRefused;
    bool all_reached =
        std::all_of(plan_.hosts.begin(), plan_.hosts.end(), [](const PlannedHost& host) {
          return host.error.what.empty() || host.action == Action::kHold;
        });
    return all_reached ? kExitOk : kExitSomeFailed;
  }

  void tell_plan() {
    for (const std::string& variant : variants_of(plan_)) {
      world_.progress.lasting("Planned", printable(variant));
    }
    warn_of(plan_, warned_, world_);
  }

  // A variant of which no host can be worked on needs no build.
  bool anybody_gets(std::size_t variant) const {
    return std::any_of(plan_.hosts.begin(), plan_.hosts.end(), [&](const PlannedHost& host) {
      return host.variant == variant && host.action != Action::kNone &&
             host.action != Action::kRefuse && host.action != Action::kHold;
    });
  }

  // All that is needed, before any host is changed; then the plan once more, with what is known
  // now.
  Step build() {
    if (packs_ && anybody_gets(0) && !world_.drain.stop_requested()) {
      auto built = build_package_payload(options_, world_, *job_, targets_of(survey_, plan_));
      if (!built) return tl::unexpected<RunError>(built.error());
      payloads_.push_back(std::move(*built));
      // Only the wheel itself says all that it asks of a host.
      intend_package(intentions_.front(), payloads_.front());
      RUN_STEP(make_plan_and_pace());
      warn_of(plan_, warned_, world_);
    }
    tell_warnings(plan_, world_.progress);
    if (!builds_) return {};
    payloads_.resize(op_builds_.size());
    for (std::size_t i = 0; i < op_builds_.size(); ++i) {
      if (!anybody_gets(i) || world_.drain.stop_requested()) continue;
      auto built = build_payload(options_, world_, op_builds_[i], *agent_);
      if (!built) return tl::unexpected<RunError>(built.error());
      payloads_[i] = std::move(*built);
      // What the build needs is known only now; whom it cannot serve is still untouched.
      intentions_[i].release = payloads_[i].id;
      intentions_[i].build = requirements_of(payloads_[i].manifest);
    }
    RUN_STEP(make_plan_and_pace());
    warn_of(plan_, warned_, world_);
    return {};
  }

  Step act() {
    // As the records are before this run's.
    if (options_.command == CommandKind::kCheck) releases_wanted_ = releases_wanted();
    RUN_TRY(end_.record, kExitUsage, Record::create(world_.folders.state, run_->run));
    RUN_CHECK(kExitUsage, end_.record->write_plan(plan_json(plan_)));
    RunReport& report = end_.report;
    report.package = package_;
    switch (options_.command) {
      case CommandKind::kInstall:
        install();
        break;
      case CommandKind::kReport:
      case CommandKind::kCheck:
        ask();
        break;
      case CommandKind::kRollback:
        report.hosts =
            go_over({"Rolling back", [&](Session& session) { return roll_back(session, *run_); }});
        break;
      case CommandKind::kHold:
      case CommandKind::kUnhold: {
        const bool hold = options_.command == CommandKind::kHold;
        report.hosts = go_over({hold ? "Holding" : "Letting go", [&](Session& session) {
                                  return change_hold(session, hold, *run_);
                                }});
        break;
      }
      default:
        report.hosts =
            go_over({"Uninstalling", [&](Session& session) { return uninstall(session, *run_); }});
    }
    return {};
  }

  std::vector<HostReport> go_over(const Steps& steps) {
    std::unique_ptr<Drain> drain = make_drain(options_, run_->run, world_);
    return roll_out(plan_, survey_, *run_, world_, pace_, steps, drain.get(), end_.report.remarks);
  }

  void install() {
    RunReport& report = end_.report;
    // No one release is wanted if there are several; then each host's own tells.
    if (payloads_.size() == 1) report.release = payloads_.front().id;
    // Hosts that need the same files find each other by them, whatever release they are of.
    const Payload sent = all_of(payloads_);
    std::optional<Distribution> distribution;
    std::vector<distribute::SwarmStory> stories;
    report.hosts = go_over(
        {"Installing",
         [&](Session& session) {
           return deploy(session, payloads_[of_host_[static_cast<std::size_t>(session.number)]],
                         *run_);
         },
         [&](const std::vector<std::size_t>& numbers) {
           if (sent.content.empty()) return;
           distribution.emplace(sent, numbers.size(), hosts_.local, world_, *run_);
         },
         [&](const std::vector<std::size_t>& numbers) {
           hang_up(numbers, survey_, options_);
           if (distribution) distribution->tell(report, stories, *run_);
         }});
    if (auto written = end_.record->write_swarms(stories); !written) {
      world_.progress.warning("the record is incomplete: " + written.error().what);
    }
  }

  void ask() {
    RunReport& report = end_.report;
    report.hosts = go_over({"Asking", [&](Session& session) { return report_on(session, *run_); }});
    if (options_.command == CommandKind::kCheck) hold_against(releases_wanted_, report);
    for (const SurveyRow& row : survey_.rows) {
      const std::string& held = row.python ? row.python->held : row.facts.held;
      if (!held.empty()) report.remarks.push_back({row.host, "is held " + held});
    }
  }

  // By host, for check.
  std::map<std::string, std::string> releases_wanted() const {
    std::map<std::string, std::string> wanted;
    if (!options_.release.empty()) {
      for (const std::string& host : names_) wanted[host] = options_.release;
      return wanted;
    }
    std::map<std::string, std::string> prefixes;
    for (const PlannedHost& host : plan_.hosts) {
      if (host.error.what.empty()) prefixes[host.host] = host.prefix;
    }
    return releases_on_record(world_.folders.state, package_, names_, prefixes);
  }

  int conclude() {
    RunReport& report = end_.report;
    report.columns = columns_of(report.hosts);
    report.interrupted = world_.drain.stop_requested();
    report.seconds = Clock::now() - begin_;
    if (options_.json) {
      print_report_json(world_.out, report);
    } else {
      print_report(world_.out, report, Style::detect(STDOUT_FILENO));
    }
    keep_record(*end_.record, report, survey_, world_);
    auto told = [&](const Result<void>& written, const fs::path& file) {
      if (written) {
        world_.progress.lasting("Wrote", file.string());
      } else {
        world_.progress.warning("there is no " + file.string() + ": " + written.error().what);
      }
    };
    if (!options_.html.empty()) {
      told(write_page(options_.html, report, world_.folders.state), options_.html);
    }
    if (!options_.metrics.empty()) {
      told(write_file_atomically(options_.metrics, metrics_text(report, std::time(nullptr))),
           options_.metrics);
    }
    world_.progress.detail(1, "the record is in " + end_.record->folder().string());
    return exit_code(report);
  }

  const Options& options_;
  World& world_;
  RunEnd& end_;
  const Clock::time_point begin_ = Clock::now();

  // prepare()
  HostList hosts_;
  std::vector<std::string> names_;  // Of the hosts.
  std::optional<AgentBinary> agent_;
  std::optional<FactsProgram> facts_;
  bool installs_ = false;  // Or plans to.
  bool packs_ = false;     // A Python package is built.
  bool builds_ = false;    // Ops are built.
  bool looks_ = false;     // The hosts are looked at closely.
  Rules rules_;
  std::set<std::string> ignored_;
  std::optional<PackageJob> job_;
  std::string package_;  // Whatever is done, it is about this package.
  std::map<std::string, std::string> targets_;
  WantedTorches wanted_;
  // look()
  Traffic traffic_;
  std::optional<RunContext> run_;
  std::shared_future<Result<std::vector<Toolchain>>> toolchains_;
  Survey survey_;
  // intend(): one of each for every variant, and by host which one it gets.
  std::vector<OpBuild> op_builds_;
  std::vector<Intention> intentions_;
  std::vector<std::size_t> of_host_;
  Plan plan_;
  Pace pace_;
  std::set<std::string> warned_;
  // act()
  std::map<std::string, std::string> releases_wanted_;
  // build(), or find_what() with a bundle: one for every variant.
  std::vector<Payload> payloads_;
};

tl::expected<int, RunError> run_and_tell(const Options& options, World& world) {
  auto begin = Clock::now();
  RunEnd end;
  end.by = who_runs();
  end.report.run = new_run_id();
  end.report.command = name_of(options.command);
  end.report.strict = options.strict;
  auto code = HostRun(options, world, end).go();
  if (!is_on_record(options.command)) return code;
  if (!code) {
    end.report.seconds = Clock::now() - begin;
    end_with(code.error(), end, world);
  }
  tell(options, end, world);
  return code;
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
