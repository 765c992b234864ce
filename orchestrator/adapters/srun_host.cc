#include "orchestrator/adapters/srun_host.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "orchestrator/adapters/local_host.h"
#include "orchestrator/adapters/spawn.h"
#include "orchestrator/base/shell_quote.h"

namespace dsi {
namespace {

// A step of srun with what srun itself adds taken away.
class SrunChannel : public Channel {
 public:
  explicit SrunChannel(std::unique_ptr<Channel> srun) : srun_(std::move(srun)) {}

  Result<std::size_t> read(std::span<char> buffer, Deadline deadline) override {
    return srun_->read(buffer, deadline);
  }
  Result<bool> readable(int wake, Deadline deadline) override {
    return srun_->readable(wake, deadline);
  }
  Result<void> write(std::string_view data, Deadline deadline) override {
    return srun_->write(data, deadline);
  }
  Result<void> close_stdin() override { return srun_->close_stdin(); }
  Result<Exit> wait(Deadline deadline) override {
    DSI_TRY(Exit exit, srun_->wait(deadline));
    exit.err = cleaned(exit.err);
    // srun gives the signal of its task as a shell does.
    if (exit.code > 128 && exit.code <= 128 + 64) {
      exit.signal = signal_name(exit.code - 128);
      exit.code = -1;
    }
    return exit;
  }
  std::string standard_error() const override { return cleaned(srun_->standard_error()); }

 private:
  // Without "srun: error: node001: task 0: Exited with exit code 3" and its like: the code says it.
  static std::string cleaned(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
      text.remove_prefix(line.size());
      bool of_the_task = line.starts_with("srun: error: ") && line.find(": task 0: ") != line.npos;
      if (!of_the_task) out += line;
    }
    return out;
  }

  std::unique_ptr<Channel> srun_;
};

class SrunHost : public RemoteHost {
 public:
  SrunHost(std::string node, std::string job, std::unique_ptr<RemoteHost> here,
           std::unique_ptr<Channel> holder)
      : node_(std::move(node)),
        job_(std::move(job)),
        here_(std::move(here)),
        holder_(std::move(holder)) {}

  Result<std::unique_ptr<Channel>> exec(std::string_view command, Deadline deadline) override {
    // Of the caller's environment only what a login would have set: paths of the head mean nothing
    // on the node.
    std::vector<std::string> srun = {"srun",
                                     "--quiet",
                                     "--jobid=" + job_,
                                     "--overlap",
                                     "--nodes=1",
                                     "--ntasks=1",
                                     "--nodelist=" + node_,
                                     "--chdir=/",
                                     "--unbuffered",
                                     "--export=HOME,USER,LOGNAME,PATH",
                                     "/bin/sh",
                                     "-c",
                                     std::string(command)};
    DSI_TRY(std::unique_ptr<Channel> channel, here_->exec("exec " + shell_join(srun), deadline));
    return std::make_unique<SrunChannel>(std::move(channel));
  }
  bool alive() const override { return here_->alive(); }

 private:
  std::string node_;
  std::string job_;
  std::unique_ptr<RemoteHost> here_;
  std::unique_ptr<Channel> holder_;  // Holds the allocation; none where there was one.
};

tl::unexpected<ConnectError> unreachable(const Host& host, const std::string& why) {
  return tl::unexpected<ConnectError>(
      {ConnectFailure::kUnreachable,
       {fmt::format("Slurm gives no allocation on {}: {}", host.name, why),
        "sinfo shows its nodes; one that runs jobs or is drained cannot be had"}});
}

}  // namespace

tl::expected<std::unique_ptr<RemoteHost>, ConnectError> SrunConnector::connect(
    const Host& host, Deadline deadline, std::stop_token stop) {
  auto here = LocalConnector().connect(host, deadline, stop);
  if (!here) return here;
  if (const char* job = std::getenv("SLURM_JOB_ID")) {
    return std::make_unique<SrunHost>(host.name, job, *std::move(here), nullptr);
  }
  const auto patience = std::chrono::ceil<std::chrono::seconds>(deadline.left());
  const std::vector<std::string> salloc = {
      "salloc",
      "--quiet",
      "--nodes=1",
      "--nodelist=" + host.name,
      "--job-name=ds-install",
      fmt::format("--immediate={}", std::max<std::int64_t>(patience.count(), 1)),
      "/bin/sh",
      "-c",
      "echo $SLURM_JOB_ID; exec cat >/dev/null"};
  auto holder = (*here)->exec("exec " + shell_join(salloc), deadline);
  if (!holder) return unreachable(host, holder.error().what);
  std::string job;
  while (!job.ends_with('\n')) {
    std::array<char, 64> buffer{};
    // salloc gives up by itself at its --immediate, and says why.
    auto got = (*holder)->read(buffer, Deadline::after(deadline.left() + std::chrono::seconds(2)));
    if (stop.stop_requested()) {
      return tl::unexpected<ConnectError>(
          {ConnectFailure::kCancelled, {fmt::format("interrupted before {}", host.name), {}}});
    }
    if (!got) return unreachable(host, got.error().what);
    if (*got == 0) {
      auto exit = (*holder)->wait(Deadline::after(std::chrono::seconds(2)));
      std::string said = exit ? exit->err : (*holder)->standard_error();
      while (said.ends_with('\n')) said.pop_back();
      return unreachable(host, said.empty() ? "salloc ended" : said);
    }
    job.append(buffer.data(), *got);
  }
  job.pop_back();
  if (job.empty() ||
      !std::all_of(job.begin(), job.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return unreachable(host, fmt::format("salloc printed \"{}\" for a job's number", job));
  }
  return std::make_unique<SrunHost>(host.name, std::move(job), *std::move(here),
                                    *std::move(holder));
}

}  // namespace dsi
