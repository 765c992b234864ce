#include "orchestrator/deploy.h"

#include <fcntl.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "orchestrator/base/unique_fd.h"
#include "orchestrator/batches.h"
#include "orchestrator/exchange.h"

namespace dsi {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::seconds kPipTime = 600s;

protocol::Care care_for(const RunContext& run) {
  std::chrono::seconds limit = parse_window(run.options.busy_limit).value_or(0s);
  if (run.closes) {
    auto left =
        std::chrono::duration_cast<std::chrono::seconds>(*run.closes - Deadline::Clock::now());
    limit = std::clamp(left, 0s, limit);
  }
  return {run.options.busy, static_cast<int>(limit.count()), run.options.ignore_holds};
}

std::string python_of(const Session& session) {
  return session.python ? session.python->executable : "";
}

Result<void> send_file(AgentLink& agent, const std::string& digest, const protocol::Need& need,
                       const RunContext& run) {
  DSI_TRY(distribute::ObjectFile file, run.distributor->object_for(digest, need));
  const distribute::WireObject& object = file.object;
  UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", file.path.string()));
  DSI_CHECK(agent.send("file",
                       protocol::FileHeader{digest, object.size, object.wire_size, object.base},
                       run.stall_deadline()));
  std::array<char, 128 * 1024> buffer;
  static_assert(sizeof buffer <= protocol::kMaxDataFrame);
  for (std::uint64_t left = object.wire_size; left > 0;) {
    ssize_t n = ::read(fd.get(), buffer.data(), std::min<std::uint64_t>(buffer.size(), left));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail("{} was cut short while it was sent", file.path.string());
    // The deadline is for a piece: a slow line is no fault, one that stands still is.
    if (run.peering != nullptr) {
      run.peering->limit.wait_for(static_cast<std::size_t>(n), run.abort);
    }
    DSI_CHECK(agent.send_data({buffer.data(), static_cast<std::size_t>(n)}, run.stall_deadline()));
    run.traffic.bytes_sent += static_cast<std::uint64_t>(n);
    left -= static_cast<std::uint64_t>(n);
  }
  return {};
}

// Answers what the agent asks until it gives its result.
Result<protocol::HostResult> converse(Session& session, std::size_t ops, const RunContext& run) {
  // The agent may wait for another run's lock and probe every op before it says a word; an
  // environment of a hundred thousand files on NFS is slow to change, and pip is never fast.
  auto patience = run.options.stall_timeout + 30s +
                  run.options.probe_timeout * static_cast<int>(std::max<std::size_t>(ops, 1));
  if (session.python) patience += kPipTime;
  for (;;) {
    DSI_TRY(protocol::Message message, hear(session, Deadline::after(patience), run));
    session.transcript.push_back(
        "host: " +
        (message.type == "result" || message.type == "stage"
             ? message.body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
             : message.type));
    if (message.type == "result") {
      session.exchanging = false;
      return protocol::body_as<protocol::HostResult>(message);
    }
    if (message.type == "stage" && message.body.value("stage", "") == "probed") {
      session.exchanging = true;
    }
    // What a node counts while it serves others is of interest while others are served. It has all
    // it needs by now, so a neighbour that failed at its own install and left is no fault of its.
    if (message.type == "stage" && message.body.value("stage", "") == "busy" &&
        run.drain.stop_requested()) {
      protocol::HostResult result;
      result.result = "not-tried";
      result.from = result.to = session.facts.current;
      result.error = {"interrupted while it waited for processes; nothing was changed", ""};
      return result;
    }
    if (message.type == "stage" || message.type == "have" || message.type == "fault") continue;
    if (message.type != "need" || run.distributor == nullptr) {
      return fail("the agent says \"{}\", which was not expected", message.type);
    }
    DSI_TRY(protocol::Need need, protocol::body_as<protocol::Need>(message));
    if (run.peering != nullptr && run.peering->swarm) {
      DSI_TRY(auto early, exchange(session, need, run));
      if (early) return *early;
      continue;
    }
    for (const std::string& digest : need.digests) {
      if (auto sent = send_file(*session.agent, digest, need, run); !sent) {
        // An agent that cannot go on (no space left, say) gives its result and stops reading:
        // that is the reason to report, and not that our write failed.
        auto last = session.agent->receive(Deadline::after(2s));
        if (last && last->type == "result") return protocol::body_as<protocol::HostResult>(*last);
        return tl::unexpected<Error>(sent.error());
      }
    }
    DSI_CHECK(session.agent->send("commit", {}, run.stall_deadline()));
  }
}

HostReport row_for(const Session& session) {
  HostReport row;
  row.host = session.host.name;
  row.from = session.python ? session.python->current : session.facts.current;
  row.to = row.from;
  row.prefix = session.python ? session.python->executable : session.facts.prefix;
  return row;
}

void take_result(HostReport& row, const protocol::HostResult& result) {
  row.action = result.result;
  row.from = result.from;
  row.to = result.to;
  row.ops = result.ops;
  row.error = result.error;
  row.processes = result.processes;
  row.releases = result.releases;
  if (result.result == "busy") {
    row.status = HostStatus::kBusy;
  } else if (result.result == "held") {
    row.status = HostStatus::kHeld;
  } else if (result.result == "not-tried") {
    row.status = HostStatus::kNotTried;
  } else if (result.result == "failed" || !result.error.what.empty()) {
    // A report with an error: a file of the release that belongs to no op is not what it was.
    row.status = HostStatus::kFailed;
  } else {
    row.status = result.result == "up-to-date" || result.result == "reported"
                     ? HostStatus::kUpToDate
                     : HostStatus::kInstalled;
  }
}

tl::expected<void, HostFailure> connect_again(Session& session, const RunContext& run) {
  session.transcript.push_back("the connection was lost; connects again");
  auto again = look_at(session.host, session.number, run);
  if (!again) return tl::unexpected<HostFailure>(again.error());
  std::uint64_t before = session.bytes_sent();
  std::vector<std::string> transcript = std::move(session.transcript);
  session.hang_up();  // The agent's channel is one of the old connection's, and ends before it.
  session = std::move(*again);
  session.bytes_before += before;
  session.transcript.insert(session.transcript.begin(), transcript.begin(), transcript.end());
  return {};
}

// The host is no more to be asked by others, and takes no more from them.
void leave_others(Session& session, const RunContext& run) {
  if (session.swarm != nullptr) session.swarm->leave(session.number);
  if (distribute::AgentSources* sources = agent_sources_of(run)) {
    // Others may be taking the agent from this host.
    (void)sources->withdraw(session.host.name, Deadline::after(60s), run.abort);
  }
}

// What a request is to come to.
struct Goal {
  const char* action;
  std::string to;           // What the host has then.
  bool repeatable = false;  // Asked twice it comes to the same.
};

Result<protocol::HostResult> ask_report(Session& session, const RunContext& run) {
  protocol::ReportRequest request{torch_folders_for(session, run),
                                  static_cast<int>(run.options.probe_timeout.count()), run.package,
                                  python_of(session)};
  DSI_CHECK(session.agent->send("report", request, run.stall_deadline()));
  return converse(session, 32, run);
}

// The connection was lost while the host exchanged a package, which it goes on with: what it came
// to is asked on another connection. A report waits for the exchange to end.
Result<protocol::HostResult> find_out(Session& session, const RunContext& run, const Goal& goal,
                                      const Error& lost) {
  const std::string python = python_of(session);
  const std::string from = session.python->current;
  auto unknown = [&](const std::string& why) {
    return fail_with_help(
        fmt::format("{}; it went on with the package by itself, and {}", lost.what, why),
        "ask it what it has: ds-install report");
  };
  if (auto again = connect_again(session, run); !again) {
    return unknown("could not be asked again: " + again.error().error.what);
  }
  protocol::HostResult result;
  for (int tries = 0; tries < 4; ++tries) {
    auto asked = ask_python(session, run);
    if (!asked) return unknown("could not be asked again: " + asked.error().what);
    session.python->executable = python;
    auto reported = ask_report(session, run);
    if (!reported) return unknown("could not be asked again: " + reported.error().what);
    result = *std::move(reported);
    DSI_CHECK(ask_python(session, run));
    if (session.python->interrupted) continue;
    if (session.python->current != goal.to) {
      return fail("{}; it went on by itself, and has {} now", lost.what,
                  session.python->current.empty() ? "no " + run.package : session.python->current);
    }
    session.transcript.push_back("it went on by itself and was done");
    if (result.result == "failed") result.ops.clear();
    return protocol::HostResult{goal.action, from, goal.to, result.ops, {}};
  }
  return unknown("is still at it");
}

// The same of ops, which are switched by one rename: an agent that hears that its head has left
// does not do it any more, and one that did it before has done it.
Result<protocol::HostResult> find_out_release(Session& session, const RunContext& run,
                                              const Goal& goal, const Error& lost) {
  const std::string from = session.facts.current;
  for (int tries = 0; tries < 3; ++tries) {
    if (tries > 0 && run.abort.stop_requested()) break;
    if (tries > 0) std::this_thread::sleep_for(1s);
    if (auto again = connect_again(session, run); !again) {
      return fail_with_help(
          fmt::format(
              "{}; whether it switched before is not known, it could not be asked again: {}",
              lost.what, again.error().error.what),
          "ask it what it has: ds-install report");
    }
    if (session.facts.current != goal.to) continue;
    session.transcript.push_back("it was done before the connection was lost");
    DSI_CHECK(ensure_agent(session, run));
    DSI_TRY(protocol::HostResult result, ask_report(session, run));
    result.result = from == goal.to ? "up-to-date" : goal.action;
    result.from = from;
    return result;
  }
  return fail("{}; it has {} now", lost.what,
              session.facts.current.empty() ? "no release" : "release " + session.facts.current);
}

// One request and its conversation, timed, with a second connection if the first was lost while it
// stood idle (a long build outlives some firewalls' patience), or when the host was to be changed.
template <typename Talk>
HostReport carry_out(Session& session, const RunContext& run, const Goal& goal, Talk&& talk) {
  auto begin = std::chrono::steady_clock::now();
  HostReport row = row_for(session);
  if (!session.remote->alive()) {
    if (auto again = connect_again(session, run); !again) {
      row.status = again.error().status;
      row.error = again.error().error;
      return row;
    }
  }
  auto once = [&]() -> Result<protocol::HostResult> {
    // Whatever changes an environment names it, so it is known before.
    if (!run.package.empty() && !session.python) DSI_CHECK(ask_python(session, run));
    if (session.python && !session.python->error.what.empty()) {
      return tl::unexpected<Error>(session.python->error);
    }
    return talk();
  };
  Result<protocol::HostResult> result = once();
  if (!result && session.exchanging && !run.abort.stop_requested()) {
    leave_others(session, run);
    if (goal.repeatable) {
      if (connect_again(session, run)) result = once();
    } else if (session.python) {
      result = find_out(session, run, goal, result.error());
    } else {
      result = find_out_release(session, run, goal, result.error());
    }
    if (session.python) row.to = session.python->current;
    if (run.package.empty()) row.to = session.facts.current;
  }
  if (result) {
    take_result(row, *result);
  } else {
    row.status = HostStatus::kFailed;
    row.error = result.error();
    if (run.abort.stop_requested()) {
      row.error = Error{"interrupted; the host keeps what it had", ""};
      if (session.exchanging) {
        row.error = {session.python
                         ? "interrupted while it exchanged the package, which it goes on with"
                         : "interrupted when it was about to be changed, or had been",
                     "ask it what it has then: ds-install report"};
      }
    }
  }
  row.bytes_sent = session.bytes_sent();
  row.seconds = std::chrono::steady_clock::now() - begin;
  if (session.swarm != nullptr && is_done(row.status)) return row;
  leave_others(session, run);
  session.hang_up();
  return row;
}

// Empty where it would not fit one frame.
std::string pack_manifest(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size =
      ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), ZSTD_CLEVEL_DEFAULT);
  const bool fits = ZSTD_isError(size) == 0 && size <= protocol::kMaxDataFrame;
  packed.resize(fits ? size : 0);
  return packed;
}

}  // namespace

HostReport deploy(Session& session, const Payload& payload, const RunContext& run) {
  const Goal goal{"installed", payload.id};
  HostReport row = carry_out(session, run, goal, [&]() -> Result<protocol::HostResult> {
    DSI_CHECK(ensure_agent(session, run));
    DSI_CHECK(listen(session, run));
    protocol::InstallRequest request;
    request.run = run.run;
    request.by = run.by;
    std::string packed = pack_manifest(payload.text);
    request.packed_manifest = packed.size();
    if (packed.empty()) request.manifest = payload.text;
    request.strict = run.options.strict;
    request.torch_folders = torch_folders_for(session, run);
    request.probe_timeout_s = static_cast<int>(run.options.probe_timeout.count());
    request.python = python_of(session);
    request.drop_in = run.options.drop_in;
    request.pip_timeout_s = static_cast<int>(kPipTime.count());
    request.care = care_for(run);
    DSI_CHECK(session.agent->send("install", request, run.stall_deadline()));
    if (!packed.empty()) DSI_CHECK(session.agent->send_data(packed, run.stall_deadline()));
    std::size_t ops = payload.manifest.ops.size();
    for (const ManifestPackage& package : payload.manifest.packages) ops += package.modules.size();
    return converse(session, ops, run);
  });
  // Nobody waits for a host that asked for nothing.
  if (session.swarm == nullptr && run.distributor != nullptr)
    run.distributor->excuse(session.number);
  return row;
}

HostReport report_on(Session& session, const RunContext& run) {
  if (run.package.empty() && session.facts.current.empty()) {
    HostReport row = row_for(session);
    row.status = HostStatus::kFailed;
    row.error = {fmt::format("nothing is installed in {}", session.facts.prefix),
                 "install it with: ds-install -H HOSTFILE"};
    return row;
  }
  return carry_out(session, run, {"reported", "", true}, [&]() -> Result<protocol::HostResult> {
    DSI_CHECK(ensure_agent(session, run));
    return ask_report(session, run);
  });
}

HostReport roll_back(Session& session, const RunContext& run) {
  std::string to;
  if (!run.options.to.empty()) {
    auto at = run.targets.find(session.host.name);
    if (at == run.targets.end()) {
      HostReport row = row_for(session);
      row.status = HostStatus::kFailed;
      row.error = {fmt::format("run {} left no release here", run.options.to),
                   "ds-install history show names the hosts of a run"};
      return row;
    }
    to = at->second;
  }
  Goal goal{"rolled-back", to};
  return carry_out(session, run, goal, [&]() -> Result<protocol::HostResult> {
    DSI_CHECK(ensure_agent(session, run));
    protocol::RollbackRequest request{run.run,
                                      run.by,
                                      torch_folders_for(session, run),
                                      static_cast<int>(run.options.probe_timeout.count()),
                                      30,
                                      run.package,
                                      python_of(session),
                                      care_for(run),
                                      to};
    DSI_CHECK(session.agent->send("rollback", request, run.stall_deadline()));
    if (to.empty()) goal.to = session.python ? session.python->previous : session.facts.previous;
    session.exchanging = session.python || !goal.to.empty();
    return converse(session, 32, run);
  });
}

HostReport uninstall(Session& session, const RunContext& run) {
  if (run.package.empty() && !session.agent && session.facts.current.empty()) {
    HostReport row = row_for(session);
    row.status = HostStatus::kUpToDate;
    row.action = "uninstalled";
    return row;
  }
  Goal goal{"uninstalled", "", run.package.empty()};
  return carry_out(session, run, goal, [&]() -> Result<protocol::HostResult> {
    DSI_CHECK(ensure_agent(session, run));
    DSI_CHECK(session.agent->send("uninstall",
                                  protocol::UninstallRequest{run.run, run.by, 30, run.package,
                                                             python_of(session), care_for(run)},
                                  run.stall_deadline()));
    session.exchanging = true;
    return converse(session, 1, run);
  });
}

HostReport change_hold(Session& session, bool hold, const RunContext& run) {
  return carry_out(session, run, {"held", "", true}, [&]() -> Result<protocol::HostResult> {
    DSI_CHECK(ensure_agent(session, run));
    DSI_CHECK(session.agent->send("hold",
                                  protocol::HoldRequest{run.run, run.by, hold, run.options.reason,
                                                        30, run.package, python_of(session)},
                                  run.stall_deadline()));
    session.exchanging = true;
    return converse(session, 1, run);
  });
}

}  // namespace dsi
