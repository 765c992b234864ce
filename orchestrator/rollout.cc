#include "orchestrator/rollout.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "orchestrator/base/nodeset.h"
#include "orchestrator/batches.h"
#include "orchestrator/exchange.h"
#include "orchestrator/parallel.h"
#include "orchestrator/transfer_text.h"

namespace dsi {
namespace {

using Numbers = std::vector<std::size_t>;  // Of hosts.

HostReport row_without_session(const PlannedHost& host) {
  HostReport row;
  row.host = host.host;
  row.status = host.status;
  row.from = host.from;
  row.to = host.from;
  row.error = host.error;
  row.prefix = host.prefix;
  return row;
}

// Sleeps, but hears the stop token.
void wait_for(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, time, [] { return false; });
}

class Rollout {
 public:
  Rollout(const Plan& plan, Survey& survey, const RunContext& run, World& world, const Pace& pace,
          const Steps& steps, Drain* drain, std::vector<HostRemark>& remarks)
      : plan_(plan),
        survey_(survey),
        run_(run),
        world_(world),
        pace_(pace),
        steps_(steps),
        drain_(drain),
        remarks_(remarks) {
    for (std::size_t i = 0; i < plan_.hosts.size(); ++i) {
      rows_.push_back(row_without_session(plan_.hosts[i]));
      if (reached(i)) rows_[i].error = {"interrupted before anything was done", ""};
    }
  }

  std::vector<HostReport> run() {
    std::size_t failed = 0;
    std::size_t tried = 0;
    for (std::size_t b = 0; b < pace_.batches.size() && !stopped(); ++b) {
      if (Error why = why_not_now(b, failed, tried); !why.what.empty()) {
        for (; b < pace_.batches.size(); ++b) leave(pace_.batches[b], why);
        break;
      }
      const Numbers& batch = pace_.batches[b];
      if (drain_ == nullptr) {
        work_on(batch);
      } else {
        drain_and_work_on(batch);
      }
      std::size_t failed_here = 0;
      for (std::size_t i : batch) failed_here += counts_as_failed(rows_[i]) ? 1u : 0u;
      failed += failed_here;
      tried += batch.size();
      if (pace_.batches.size() > 1) {
        world_.progress.lasting(
            "Batch", fmt::format("{} of {}: {}: {} of {} well", b + 1, pace_.batches.size(),
                                 names(batch), batch.size() - failed_here, batch.size()));
      }
    }
    tell_processes();
    return std::move(rows_);
  }

 private:
  bool stopped() const { return world_.drain.stop_requested(); }
  bool reached(std::size_t i) const {
    const Action action = plan_.hosts[i].action;
    return survey_.sessions[i].has_value() && action != Action::kRefuse &&
           action != Action::kHold && action != Action::kNone;
  }
  std::string names(const Numbers& numbers) const {
    std::vector<std::string> hosts;
    for (std::size_t i : numbers) hosts.push_back(rows_[i].host);
    return fold_nodeset(hosts);
  }
  Error window_closed() const {
    return {fmt::format("the window of {} closed before its turn", pace_.window),
            "run it again in the next window: hosts that are done are only verified"};
  }

  // A host that was spared because it is in use says nothing about the release.
  bool counts_as_failed(const HostReport& row) const {
    return row.status != HostStatus::kBusy && has_failed(row, run_.options.strict);
  }

  Error why_not_now(std::size_t batch, std::size_t failed, std::size_t tried) const {
    if (batch > 0 && failed > pace_.failures_allowed) {
      return {fmt::format("{} of the {} host{} before it failed, and --max-fail allows {}", failed,
                          tried, tried == 1 ? "" : "s", pace_.failures_allowed),
              "mend what failed and run it again: hosts that are done are only verified"};
    }
    return pace_.closed() ? window_closed() : Error{};
  }

  // Of hosts that were changed under somebody; of a host that was spared its error tells.
  void tell_processes() {
    for (const HostReport& row : rows_) {
      if (row.processes.empty() || !is_done(row.status)) continue;
      std::string text =
          fmt::format("{} process{} files of {}{}: ", row.processes.size(),
                      row.processes.size() == 1 ? " keeps" : "es keep",
                      run_.package.empty() ? "release " : "", row.processes.front().release);
      constexpr std::size_t kMostNamed = 3;
      for (std::size_t i = 0; i < std::min(row.processes.size(), kMostNamed); ++i) {
        const protocol::BusyProcess& one = row.processes[i];
        text += fmt::format("{}{} {} {}", i == 0 ? "" : ", ", one.pid, one.user, one.command);
      }
      if (row.processes.size() > kMostNamed) {
        text += fmt::format(", and {} more", row.processes.size() - kMostNamed);
      }
      remarks_.push_back({row.host, text});
    }
  }

  // Nothing is done there, and the report says why.
  void leave(const Numbers& hosts, const Error& why) {
    for (std::size_t i : hosts) {
      if (rows_[i].status == HostStatus::kNotTried) rows_[i].error = why;
    }
  }

  // Side by side on those that were reached.
  void work_on(const Numbers& hosts) {
    Numbers todo;
    for (std::size_t i : hosts) {
      if (reached(i)) todo.push_back(i);
    }
    if (steps_.begin) steps_.begin(todo);
    distribute::Distributor* distributor = run_.distributor;
    {
      std::atomic<std::size_t> done{0};
      TransferMeter meter;
      Ticker ticker(world_.progress, std::string(steps_.verb), [&] {
        Transfer now{done.load(), todo.size(), run_.traffic.bytes_sent.load(), 0, 0};
        if (distributor != nullptr) {
          now.done = distributor->bytes_done();
          now.wanted = distributor->bytes_wanted();
        }
        return meter.text(now, TransferMeter::Clock::now());
      });
      // Hosts that wait for each other must all be at work: then the fan-out bounds the connecting
      // only.
      bool together = run_.peering != nullptr && run_.peering->swarm;
      if (distributor != nullptr) distributor->expect(todo.size());
      parallel_for(
          todo.size(), together ? todo.size() : static_cast<std::size_t>(run_.options.fanout),
          world_.drain, [&](std::size_t k) {
            HostReport& row = rows_[todo[k]];
            Session& session = *survey_.sessions[todo[k]];
            if (pace_.closed()) {
              row.error = window_closed();
              if (distributor != nullptr) distributor->excuse(session.number);
              return;
            }
            row = steps_.work(session);
            ++done;
            world_.progress.detail(1, fmt::format("{}: {} in {:.2f} s", row.host,
                                                  to_string(row.status), row.seconds.count()));
            for (const std::string& line : session.transcript) {
              world_.progress.detail(2, fmt::format("{}: {}", row.host, line));
            }
            if (distributor != nullptr) attend(session, run_, world_.drain);
          });
    }
    if (steps_.end) steps_.end(todo);
  }

  // Takes the hosts out of service, works on each as soon as no job uses it, and gives it back.
  void drain_and_work_on(const Numbers& batch) {
    Numbers waiting;
    std::vector<std::string> asked;
    for (std::size_t i : batch) {
      if (!reached(i)) continue;
      waiting.push_back(i);
      asked.push_back(rows_[i].host);
    }
    if (waiting.empty()) return;
    std::vector<Drain::Taken> taken = drain_->take(asked);
    Numbers free_later;
    for (std::size_t k = 0; k < waiting.size(); ++k) {
      HostReport& row = rows_[waiting[k]];
      if (!taken[k].remark.empty()) remarks_.push_back({row.host, taken[k].remark});
      if (taken[k].error.what.empty()) {
        free_later.push_back(waiting[k]);
      } else {
        row.status = HostStatus::kFailed;
        row.error = taken[k].error;
      }
    }
    waiting = std::move(free_later);
    const auto limit = Pace::Clock::now() + pace_.drain_limit;
    bool said = false;
    while (!waiting.empty()) {
      std::vector<std::string> hosts;
      for (std::size_t i : waiting) hosts.push_back(rows_[i].host);
      auto standings = drain_->look(hosts);
      Error why;
      if (!standings) {
        why = standings.error();
      } else if (stopped()) {
        why = {"interrupted before anything was done", ""};
      } else if (pace_.closed()) {
        why = window_closed();
      }
      if (!why.what.empty()) {
        leave(waiting, why);
        return give_back(waiting);
      }
      Numbers now;
      Numbers later;
      for (std::size_t k = 0; k < waiting.size(); ++k) {
        const Drain::Standing& standing = (*standings)[k];
        HostReport& row = rows_[waiting[k]];
        if (!standing.remark.empty()) remarks_.push_back({row.host, standing.remark});
        if (!standing.error.what.empty()) {
          row.status = HostStatus::kFailed;
          row.error = standing.error;
        } else {
          (standing.idle ? now : later).push_back(waiting[k]);
        }
      }
      // Those that are free by now have their turn, however late it is.
      if (Pace::Clock::now() >= limit && !later.empty()) {
        leave(later, {fmt::format("jobs still ran there after {} s", pace_.drain_limit.count()),
                      "give them more time with --drain-limit, or run it again later"});
        give_back(later);
        later.clear();
      }
      if (!now.empty()) {
        work_on(now);
        give_back(now);
      } else if (!later.empty()) {
        if (!said) world_.progress.lasting("Waiting", "for the jobs on " + names(later));
        said = true;
        wait_for(drain_->look_every(), world_.drain);
      }
      waiting = std::move(later);
    }
  }

  // A host that is not well stays out of service: somebody has to look at it. One that was spared
  // has what it had.
  void give_back(const Numbers& hosts) {
    std::vector<std::string> names;
    for (std::size_t i : hosts) {
      const HostReport& row = rows_[i];
      const bool untouched = row.status == HostStatus::kNotTried ||
                             row.status == HostStatus::kBusy || row.status == HostStatus::kHeld;
      if (untouched || is_sound(row)) {
        names.push_back(row.host);
      } else {
        remarks_.push_back({row.host, "stays out of service: its report is not good"});
      }
    }
    if (names.empty()) return;
    const std::vector<Result<std::string>> answers = drain_->give_back(names);
    for (std::size_t k = 0; k < names.size(); ++k) {
      const Result<std::string>& answer = answers[k];
      if (!answer) {
        remarks_.push_back({names[k], "stays out of service: " + answer.error().what +
                                          "; the next run with the same --drain gives it back"});
      } else if (!answer->empty()) {
        remarks_.push_back({names[k], *answer});
      }
    }
  }

  const Plan& plan_;
  Survey& survey_;
  const RunContext& run_;
  World& world_;
  const Pace& pace_;
  const Steps& steps_;
  Drain* drain_;
  std::vector<HostRemark>& remarks_;
  std::vector<HostReport> rows_;
};

}  // namespace

Result<Pace> pace_of(const Options& options, const std::vector<PlannedHost>& hosts,
                     Pace::Clock::time_point begin) {
  Pace pace;
  std::vector<std::string> racks(hosts.size());
  if (options.order == "racks") {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      auto at = options.per_host.find(hosts[i].host);
      if (at != options.per_host.end()) racks[i] = at->second.rack.value_or("");
    }
  }
  std::vector<std::size_t> order = spread_over(racks);
  DSI_TRY(std::vector<std::size_t> sizes, batch_sizes(options.batch, hosts.size()));
  auto next = order.begin();
  for (std::size_t size : sizes) {
    pace.batches.emplace_back(next, next + static_cast<std::ptrdiff_t>(size));
    next += static_cast<std::ptrdiff_t>(size);
  }
  DSI_TRY(pace.failures_allowed, failures_allowed(options.max_fail, hosts.size()));
  if (!options.window.empty()) {
    DSI_TRY(std::chrono::seconds open, parse_window(options.window));
    pace.closes = begin + open;
    pace.window = options.window;
  }
  DSI_TRY(pace.drain_limit, parse_window(options.drain_limit));
  return pace;
}

std::vector<HostReport> roll_out(const Plan& plan, Survey& survey, const RunContext& run,
                                 World& world, const Pace& pace, const Steps& steps, Drain* drain,
                                 std::vector<HostRemark>& remarks) {
  return Rollout(plan, survey, run, world, pace, steps, drain, remarks).run();
}

}  // namespace dsi
