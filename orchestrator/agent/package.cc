#include "orchestrator/agent/package.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "orchestrator/agent/busy.h"
#include "orchestrator/agent/child.h"
#include "orchestrator/agent/hold.h"
#include "orchestrator/agent/package_trial.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/python.h"
#include "orchestrator/agent/stage.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/sha256.h"

namespace dsi::agent {

using nlohmann::json;
using protocol::HostResult;
using protocol::OpRow;

namespace {

// How often the head hears that this node is alive, and how soon a head that has left is noticed.
constexpr std::chrono::seconds kSign{10};
constexpr std::chrono::milliseconds kLook{100};
// For what has no limit of its own: unpacking, digests, moves.
constexpr std::chrono::seconds kOwnTime{900};
// For what is done when a run is to end: putting back.
constexpr std::chrono::seconds kPutBackTime{120};
constexpr char kEnvironments[] = "env-";

struct Answer {
  std::vector<OpRow> rows;
  std::optional<RestsOn> rests_on;
  json last = json::object();  // The message with "result".
  std::string text(const char* key) const { return last.value(key, ""); }
};

// One run of bin/ds-package. `decide` is asked once, with the rows, whether to go on to the switch;
// without it there is nothing to ask. Until then a head that leaves ends the run; from then on it
// goes on to its end, which is what is reported: a run that takes too long is cancelled, and
// whether that came too late is the program's to say.
class PackageRun {
 public:
  // `switch_time`: from the decision to the end.
  PackageRun(Wire& wire, std::function<Result<void>()> decide,
             std::chrono::seconds switch_time = kOwnTime)
      : wire_(wire), decide_(std::move(decide)), switch_time_(switch_time) {}

  Answer& answer() { return answer_; }

  Result<void> run(const std::string& python, const std::string& program,
                   std::vector<std::string> words, std::chrono::seconds time) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno(errno, "cannot make a pipe");
    UniqueFd input(ends[0]);
    go_ = UniqueFd(ends[1]);
    ChildSpec spec;
    spec.argv = {python, "-I", "-B", program};
    if (decide_) {
      words.emplace_back("--ask");
    } else {
      go_.reset();
    }
    spec.argv.insert(spec.argv.end(), words.begin(), words.end());
    spec.input = input.get();
    DSI_TRY(Child child, Child::start(spec));
    input.reset();
    limit(time);
    Deadline sign = Deadline::after(kSign);
    for (;;) {
      pollfd fds[] = {{child.out_fd(), POLLIN, 0}, {child.output().answer_fd(), POLLIN, 0}};
      ::poll(fds, 2, static_cast<int>(kLook.count()));
      child.drain();
      auto status = child.ended();
      if (status) child.drain();
      read(child.output().answer());
      if (status) return verdict(*status, child.out());
      if (sign.passed()) {
        wire_.send("stage", {{"stage", "installing"}});
        sign = Deadline::after(kSign);
      }
      if (go_ && wire_.head_left()) {
        refusal_ = Error{"the head left before the switch", ""};
        stop(child);
      }
      if (!deadline_.passed()) continue;
      if (!refusal_) {
        refusal_ =
            Error{fmt::format("{} did not end within {} s", kPackageProgram, limit_.count()), ""};
      }
      if (stop(child)) continue;
      return fail_with_help(
          fmt::format("{}, and cannot be stopped: it is not known whether the environment has the "
                      "old or the new",
                      refusal_->what),
          "look for a disk or a file system that does not answer, then run it again: what is half "
          "done is put back first");
    }
  }

 private:
  void limit(std::chrono::seconds time) {
    limit_ = time;
    deadline_ = Deadline::after(time);
  }

  // Until the decision the end of its input makes it put back what it has changed, and end. After
  // that, or if that does not help, it is told to kill what works for it. False: it was.
  bool stop(Child& child) {
    if (go_) {
      go_.reset();
    } else if (!cancelled_) {
      child.signal(SIGUSR1);
      cancelled_ = true;
    } else {
      return false;
    }
    deadline_ = Deadline::after(kPutBackTime);
    return true;
  }

  void read(const std::string& all) {
    for (std::size_t end; (end = all.find('\n', seen_)) != std::string::npos; seen_ = end + 1) {
      auto message = json::parse(all.begin() + static_cast<std::ptrdiff_t>(seen_),
                                 all.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      if (message.is_object()) hear(message);
    }
  }

  void hear(const json& message) {
    try {
      if (auto ops = message.find("ops"); ops != message.end()) ops->get_to(answer_.rows);
      if (message.contains("error")) {
        error_ = Error{message["error"].value("what", ""), message["error"].value("help", "")};
      }
      if (message.contains("rests_on")) answer_.rests_on = parse_rests_on(message["rests_on"]);
      if (message.contains("result")) answer_.last = message;
      if (message.contains("note")) {
        wire_.send("stage", {{"stage", "note"}, {"what", message["note"]}, {"help", ""}});
      }
      if (message.value("stage", "") != "probed") return;
      std::string fault = message.value("ds_report", json::object()).value("fault", std::string());
      if (!fault.empty()) {
        wire_.send("stage", {{"stage", "note"}, {"what", fault}, {"help", ""}});
      }
      send_stage(wire_, "probed");
    } catch (const json::exception& e) {
      error_ = Error{fmt::format("{} gave no sensible answer: {}", kPackageProgram, e.what()), ""};
    }
    if (!decide_ || !go_) return;
    Result<void> decision;
    if (error_) {
      decision = tl::unexpected<Error>(*error_);
    } else {
      decision = decide_();
    }
    if (!decision) {
      refusal_ = decision.error();
    } else if (::write(go_.get(), "y", 1) != 1) {
      refusal_ = Error{fmt::format("{} ended before the switch", kPackageProgram), ""};
    } else {
      limit(switch_time_);
    }
    go_.reset();
  }

  Result<void> verdict(int status, const std::string& out) const {
    // What was done is done, whatever was asked for meanwhile.
    if (!answer_.last.empty() && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    // What the refusal was is better than that its consequence was an error.
    if (refusal_ && cancelled_ && error_) {
      return fail_with_help(fmt::format("{}; {}", refusal_->what, error_->what), error_->help);
    }
    if (refusal_) return tl::unexpected<Error>(*refusal_);
    if (error_) return tl::unexpected<Error>(*error_);
    std::string said = out.substr(0, out.find_last_not_of("\r\n ") + 1);
    said = said.substr(said.find_last_of('\n') + 1);
    return fail_with_help(
        fmt::format("{} {}{}{}", kPackageProgram,
                    WIFSIGNALED(status)
                        ? fmt::format("was killed by signal {}", WTERMSIG(status))
                        : fmt::format("ended with exit code {}", WEXITSTATUS(status)),
                    said.empty() ? "" : ": ", said),
        "run it again: what it had begun is undone before anything else");
  }

  Wire& wire_;
  std::function<Result<void>()> decide_;
  std::chrono::seconds switch_time_;
  std::chrono::seconds limit_{0};
  Deadline deadline_ = Deadline::after(kOwnTime);
  UniqueFd go_;  // Open: it has not been decided.
  Answer answer_;
  std::optional<Error> error_;
  std::optional<Error> refusal_;
  bool cancelled_ = false;
  std::size_t seen_ = 0;
};

template <typename Request>
std::vector<std::string> words_for(const char* command, const Request& request) {
  return {command,
          "--run",
          request.run,
          "--by",
          request.by,
          "--lock-timeout",
          std::to_string(request.lock_timeout_s)};
}

Result<void> check_writable(const protocol::PythonFacts& facts) {
  if (facts.writable) return {};
  return fail_with_help(facts.not_writable,
                        "name an environment of your own with --python, or give the right to write "
                        "there (-s installs with sudo)");
}

// The copy of bin/ds-package that the last install left beside its state; empty: there is none.
std::string own_program(const Environment& environment) {
  std::string program = environment.state + "/ds-package";
  return ::access(program.c_str(), R_OK) == 0 ? program : "";
}

Result<std::string> program_of(const Environment& environment, const std::string& package) {
  std::string program = own_program(environment);
  if (!program.empty()) return program;
  const protocol::PythonFacts& facts = environment.facts;
  if (facts.current.empty()) {
    return fail_with_help(fmt::format("{} is not installed in {}", package, facts.prefix),
                          "install it, or name another environment with --python");
  }
  return fail_with_help(
      fmt::format("the {} in {} was not installed by ds-install", facts.current, facts.prefix),
      fmt::format("{} -m pip shows and removes it", facts.executable));
}

// `current` says what the environment has.
Result<void> follow(Prefix& prefix, const std::string& label) {
  if (prefix.there().current == label) return {};
  if (is_release_id(label) && prefix.releases().exists(label)) return prefix.switch_to(label);
  return prefix.leave_current();
}

// True if the release is in the environment already and nothing of it has changed. Its modules are
// tried again unless they were ok and nothing that they rest on has changed either.
Result<bool> is_up_to_date(const Environment& environment, const std::string& package,
                           const protocol::InstallRequest& request, const std::string& id,
                           const Prefix& prefix, Wire& wire, HostResult& result) {
  DSI_TRY(std::string program, program_of(environment, package));
  const std::string& python = environment.facts.executable;
  Circumstances circumstances = package_circumstances(id, python, request.drop_in);
  auto recalled = recall_package(prefix, circumstances);
  std::vector<std::string> words = words_for("report", request);
  for (const std::string& word :
       {std::string("--package"), package, std::string("--module-timeout"),
        std::to_string(request.probe_timeout_s)}) {
    words.push_back(word);
  }
  if (recalled) words.emplace_back("--untried");
  auto start = std::chrono::system_clock::now();
  PackageRun run(wire, {});
  DSI_CHECK(run.run(python, program, std::move(words), kOwnTime));
  const Answer& answer = run.answer();
  if (!answer.last.value("intact", false) ||
      answer.last.value("drop_in", false) != request.drop_in) {
    return false;
  }
  if (recalled) {
    result.ops = *std::move(recalled);
    return true;
  }
  result.ops = answer.rows;
  send_note(wire, remember(prefix, package_trial(answer.rows, answer.rests_on,
                                                 std::move(circumstances), start)));
  return true;
}

}  // namespace

std::string environment_prefix(const std::string& base, const protocol::PythonFacts& facts) {
  return base + "/" + kEnvironments + sha256_hex(facts.prefix).substr(0, 12);
}

Result<void> install_package(const std::string& base, const protocol::InstallRequest& request,
                             const Manifest& manifest, Wire& wire, HostResult& result) {
  const ManifestPackage& package = manifest.packages.front();
  DSI_TRY(Environment environment, open_environment(request.python, package.name));
  const protocol::PythonFacts& facts = environment.facts;
  result.from = result.to = facts.current;
  DSI_CHECK(check_writable(facts));
  if (manifest.find(kPackageProgram) == nullptr) {
    return fail("the release has no {}", kPackageProgram);
  }
  std::string id = release_id(request.manifest);
  DSI_TRY(Prefix prefix,
          Prefix::lock(environment_prefix(base, environment.facts), {request.run, request.by},
                       std::chrono::seconds(request.lock_timeout_s), wire));
  if (facts.current == id && !facts.interrupted) {
    DSI_TRY(bool same, is_up_to_date(environment, package.name, request, id, prefix, wire, result));
    if (same) {
      result.result = "up-to-date";
      if (request.strict) DSI_CHECK(check_strict(result.ops));
      prefix.leave_no_trace();
      return {};
    }
  }
  const InUse replaced = files_of_package(facts.site, package.name);
  DSI_CHECK(respect_hold(prefix.root().path(), request.care, result));
  DSI_CHECK(spare(request.care, replaced, result));
  bool built = false;
  Trial trial;
  auto done = [&]() -> Result<void> {
    DSI_CHECK(stage_release(prefix, id, request.manifest, manifest, wire, built));
    DSI_CHECK(give_way(request.care, replaced, wire, result));
    std::string release = prefix.releases().path_of(id);
    std::vector<std::string> words = words_for("install", request);
    for (const std::string& word :
         {std::string("--release"), release, std::string("--release-id"), id,
          std::string("--module-timeout"), std::to_string(request.probe_timeout_s),
          std::string("--pip-timeout"), std::to_string(request.pip_timeout_s)}) {
      words.push_back(word);
    }
    if (request.drop_in) words.emplace_back("--drop-in");
    auto start = std::chrono::system_clock::now();
    PackageRun* asked = nullptr;
    PackageRun run(
        wire,
        [&]() -> Result<void> {
          result.ops = asked->answer().rows;
          if (request.strict) DSI_CHECK(check_strict(result.ops));
          if (wire.head_left()) return fail("the head left before the switch");
          return {};
        },
        std::chrono::seconds(request.switch_timeout_s));
    asked = &run;
    DSI_CHECK(run.run(facts.executable, release + "/" + kPackageProgram, std::move(words),
                      kOwnTime + std::chrono::seconds(request.pip_timeout_s)));
    result.from = run.answer().text("origin");
    result.result = run.answer().text("result");
    trial = package_trial(run.answer().rows, run.answer().rests_on,
                          package_circumstances(id, facts.executable, request.drop_in), start);
    return {};
  }();
  if (!done) {
    take_back(prefix, id, built, wire.head_left());
    ::rmdir(base.c_str());  // As far as nothing is in it.
    return done;
  }
  // The environment has it. All that follows is for the next run's good.
  result.to = id;
  result.releases = {id};
  if (!result.from.empty() && result.from != id) result.releases.push_back(result.from);
  send_stage(wire, "switched");
  send_note(wire, prefix.switch_to(id));
  send_note(wire, prefix.record("install", result.from, id));
  send_note(wire, remember(prefix, trial));
  send_note(wire, prefix.prune());
  return {};
}

Result<void> rollback_package(const std::string& base, const protocol::RollbackRequest& request,
                              Wire& wire, HostResult& result) {
  DSI_TRY(Environment environment, open_environment(request.python, request.package));
  const protocol::PythonFacts& facts = environment.facts;
  result.from = result.to = facts.current;
  DSI_TRY(std::string program, program_of(environment, request.package));
  DSI_CHECK(check_writable(facts));
  DSI_TRY(Prefix prefix,
          Prefix::lock(environment_prefix(base, environment.facts), {request.run, request.by},
                       std::chrono::seconds(request.lock_timeout_s), wire));
  if (!request.to.empty() && request.to != facts.current && request.to != facts.previous) {
    return fail_with_help(
        fmt::format("there is no release {} to go back to here; there {} {}", request.to,
                    facts.previous.empty() ? "is only" : "are",
                    facts.current + (facts.previous.empty() ? "" : ", " + facts.previous)),
        "install it by name: --bundle FILE");
  }
  if (!request.to.empty() && request.to == facts.current) {
    prefix.leave_no_trace();
    result.result = "up-to-date";
    return {};
  }
  DSI_CHECK(respect_hold(prefix.root().path(), request.care, result));
  DSI_CHECK(give_way(request.care, files_of_package(facts.site, request.package), wire, result));
  if (wire.head_left()) return fail("the head left before the switch");
  std::vector<std::string> words = words_for("rollback", request);
  for (const std::string& word :
       {std::string("--package"), request.package, std::string("--module-timeout"),
        std::to_string(request.probe_timeout_s)}) {
    words.push_back(word);
  }
  PackageRun run(wire, {});
  auto done = run.run(facts.executable, program, std::move(words), kOwnTime);
  if (!done) {
    prefix.leave_no_trace();
    return done;
  }
  result.to = run.answer().text("to");
  result.releases = {result.to, result.from};
  result.result = "rolled-back";
  result.ops = run.answer().rows;
  send_stage(wire, "switched");
  send_note(wire, follow(prefix, result.to));
  send_note(wire, prefix.record("rollback", result.from, result.to));
  return {};
}

Result<void> uninstall_package(const std::string& base, const protocol::UninstallRequest& request,
                               Wire& wire, HostResult& result) {
  DSI_TRY(Environment environment, open_environment(request.python, request.package));
  const protocol::PythonFacts& facts = environment.facts;
  result.from = result.to = facts.current;
  std::string path = environment_prefix(base, environment.facts);
  // Without a package there may still be what an uninstall that was cut off has left.
  if (!facts.current.empty() || !own_program(environment).empty()) {
    DSI_TRY(std::string program, program_of(environment, request.package));
    DSI_CHECK(check_writable(facts));
    DSI_CHECK(respect_hold(path, request.care, result));
    DSI_CHECK(give_way(request.care, files_of_package(facts.site, request.package), wire, result));
    std::vector<std::string> words = words_for("uninstall", request);
    words.insert(words.end(), {"--package", request.package});
    PackageRun run(wire, {});
    DSI_CHECK(run.run(facts.executable, program, std::move(words), kOwnTime));
  }
  result.to.clear();
  result.result = "uninstalled";
  Requester requester{request.run, request.by};
  std::chrono::seconds wait(request.lock_timeout_s);
  for (const std::string& prefix : {path, base}) {
    if (::access(prefix.c_str(), F_OK) != 0) continue;
    if (prefix == base) {
      // The agent's own place, until the last environment is gone.
      DSI_TRY(Folder root, Folder::open(base));
      DSI_TRY(std::vector<std::string> names, root.names());
      bool used = std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return name.starts_with(kEnvironments);
      });
      if (used) break;
    }
    DSI_TRY(Prefix locked, Prefix::lock(prefix, requester, wait, wire));
    // A release of ops and a hold there are nothing of this package's.
    if (prefix == base && (!list_releases(base).empty() || locked.root().exists(kHoldName))) break;
    send_note(wire, locked.remove_all());
  }
  return {};
}

Result<void> hold_package(const std::string& base, const protocol::HoldRequest& request, Wire& wire,
                          HostResult& result) {
  DSI_TRY(Environment environment, open_environment(request.python, request.package));
  result.from = result.to = environment.facts.current;
  return change_hold(environment_prefix(base, environment.facts), request, wire, result);
}

Result<void> report_package(const protocol::ReportRequest& request, Wire& wire,
                            HostResult& result) {
  DSI_TRY(Environment environment, open_environment(request.python, request.package));
  result.from = result.to = environment.facts.current;
  DSI_TRY(std::string program, program_of(environment, request.package));
  PackageRun run(wire, {});
  DSI_CHECK(run.run(environment.facts.executable, program,
                    {"report", "--package", request.package, "--module-timeout",
                     std::to_string(request.probe_timeout_s)},
                    kOwnTime));
  result.from = result.to = run.answer().text("to");
  result.ops = run.answer().rows;
  result.result = "reported";
  std::string damage = run.answer().text("damage");
  if (!damage.empty()) result.error = {damage, "install it again: that repairs it"};
  return {};
}

}  // namespace dsi::agent
