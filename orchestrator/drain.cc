#include "orchestrator/drain.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "orchestrator/parallel.h"
#include "orchestrator/text.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;

// Each waits most of its time, and for hours: a host must not wait for another one's jobs.
constexpr std::size_t kCommandsAtOnce = 256;
constexpr std::size_t kUndrainsAtOnce = 32;
constexpr std::chrono::minutes kUndrainTime{5};  // Nothing is waited for there.

class CommandDrain : public Drain {
 public:
  CommandDrain(std::string take, std::string give_back, std::string run, std::chrono::seconds limit,
               ProcessRunner& processes, std::stop_token stop)
      : take_(std::move(take)),
        give_back_(std::move(give_back)),
        run_(std::move(run)),
        limit_(limit),
        processes_(processes),
        stop_(std::move(stop)) {}
  ~CommandDrain() override {
    // Nobody waits for a command any more.
    for (const auto& [host, job] : jobs_) job->stop.request_stop();
  }
  CommandDrain(const CommandDrain&) = delete;
  CommandDrain& operator=(const CommandDrain&) = delete;

  std::vector<Taken> take(const std::vector<std::string>& hosts) override {
    {
      std::lock_guard lock(mutex_);
      for (const std::string& host : hosts) jobs_[host] = std::make_shared<Job>();
    }
    auto next = std::make_shared<std::atomic<std::size_t>>(0);
    for (std::size_t t = 0; t < std::min(hosts.size(), kCommandsAtOnce); ++t) {
      workers_.emplace_back([this, hosts, next] {
        for (std::size_t i; (i = next->fetch_add(1)) < hosts.size();) drain(hosts[i]);
      });
    }
    return std::vector<Taken>(hosts.size());
  }

  Result<std::vector<Standing>> look(const std::vector<std::string>& hosts) override {
    std::vector<Standing> standings;
    std::lock_guard lock(mutex_);
    for (const std::string& host : hosts) {
      const Job& job = *jobs_.at(host);
      standings.push_back({job.ended && job.error.what.empty(), job.error, job.remark});
    }
    return standings;
  }

  std::chrono::milliseconds look_every() const override { return 200ms; }

  std::vector<Result<std::string>> give_back(const std::vector<std::string>& hosts) override {
    std::vector<Result<std::string>> answers(hosts.size(), std::string());
    for (const std::string& host : hosts) job_of(host)->stop.request_stop();
    // Without the stop token: also after a stop what was taken is given back.
    parallel_for(hosts.size(), kUndrainsAtOnce, {}, [&](std::size_t i) {
      const std::shared_ptr<Job> job = job_of(hosts[i]);
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return job->ended; });
        // What did not end well has been given back already.
        if (!job->error.what.empty()) return;
      }
      if (auto given = undrain(hosts[i]); !given) answers[i] = tl::unexpected(given.error());
    });
    return answers;
  }

 private:
  struct Job {
    bool ended = false;
    Error error;
    std::string remark;
    std::stop_source stop;
  };

  std::shared_ptr<Job> job_of(const std::string& host) {
    std::lock_guard lock(mutex_);
    return jobs_.at(host);
  }

  void drain(const std::string& host) {
    const std::shared_ptr<Job> job = job_of(host);
    Error error;
    std::string remark;
    // A stop of the run and one of this host are the same to the command.
    std::stop_callback with_run(stop_, [&] { job->stop.request_stop(); });
    if (job->stop.stop_requested()) {
      error = {"interrupted before it was drained", ""};
    } else if (auto done = call("--drain", take_, host, limit_, job->stop.get_token()); !done) {
      error = done.error();
      // It may have taken the host out of service before it failed.
      if (give_back_.empty()) {
        remark = "may be out of service: its command of --drain did not end well";
      } else if (auto back = undrain(host); !back) {
        remark = "may be out of service: " + back.error().what;
      }
    }
    std::lock_guard lock(mutex_);
    job->error = std::move(error);
    job->remark = std::move(remark);
    job->ended = true;
    changed_.notify_all();
  }

  Result<void> undrain(const std::string& host) {
    if (give_back_.empty()) return {};
    return call("--undrain", give_back_, host, kUndrainTime, {});
  }

  Result<void> call(const char* option, const std::string& command, const std::string& host,
                    std::chrono::seconds limit, std::stop_token stop) {
    auto result =
        processes_.run({{"/bin/sh", "-c", command}, {}, {{"DSI_HOST", host}, {"DSI_RUN", run_}}},
                       Deadline::after(limit), stop);
    if (!result) return tl::unexpected(result.error());
    if (result->ok()) return {};
    std::string said = result->err.empty() ? result->out : result->err;
    while (said.ends_with('\n')) said.pop_back();
    return fail_with_help(
        fmt::format("the command of {} ended with {}{}", option,
                    result->signal != 0 ? fmt::format("signal {}", result->signal)
                                        : fmt::format("exit code {}", result->exit_code),
                    said.empty() ? "" : ": " + printable(said)),
        "");
  }

  std::string take_;
  std::string give_back_;
  std::string run_;
  std::chrono::seconds limit_;
  ProcessRunner& processes_;
  std::stop_token stop_;
  std::mutex mutex_;  // For what is below.
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Job>> jobs_;
  std::vector<std::jthread> workers_;  // Last: they use all of the above.
};

}  // namespace

std::unique_ptr<Drain> make_command_drain(std::string take, std::string give_back, std::string run,
                                          std::chrono::seconds limit, ProcessRunner& processes,
                                          std::stop_token stop) {
  return std::make_unique<CommandDrain>(std::move(take), std::move(give_back), std::move(run),
                                        limit, processes, std::move(stop));
}

}  // namespace dsi
