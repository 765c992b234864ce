#include "orchestrator/drain.h"

#include "orchestrator/parallel.h"
#include "orchestrator/text.h"

namespace dsi {
namespace {

constexpr std::size_t kCommandsAtOnce = 16;
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

  std::vector<Taken> take(const std::vector<std::string>& hosts) override {
    std::vector<Taken> taken(hosts.size());
    // Those that a stop kept from being asked must not be worked on either.
    for (Taken& one : taken) one.error = {"interrupted before it was drained", ""};
    parallel_for(hosts.size(), kCommandsAtOnce, stop_, [&](std::size_t i) {
      Result<void> done = call("--drain", take_, hosts[i], limit_, stop_);
      taken[i].error = done ? Error{} : done.error();
      if (done) return;
      // It may have taken the host out of service before it failed.
      if (give_back_.empty()) {
        taken[i].remark = "may be out of service: its command of --drain did not end well";
      } else if (auto back = give_back(hosts[i]); !back) {
        taken[i].remark = "may be out of service: " + back.error().what;
      }
    });
    return taken;
  }

  Result<std::vector<bool>> idle(const std::vector<std::string>& hosts) override {
    return std::vector<bool>(hosts.size(), true);
  }

  Result<std::string> give_back(const std::string& host) override {
    if (give_back_.empty()) return std::string();
    // Also after a stop: what was taken is given back.
    DSI_CHECK(call("--undrain", give_back_, host, kUndrainTime, {}));
    return std::string();
  }

 private:
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
};

}  // namespace

std::unique_ptr<Drain> make_command_drain(std::string take, std::string give_back, std::string run,
                                          std::chrono::seconds limit, ProcessRunner& processes,
                                          std::stop_token stop) {
  return std::make_unique<CommandDrain>(std::move(take), std::move(give_back), std::move(run),
                                        limit, processes, std::move(stop));
}

}  // namespace dsi
