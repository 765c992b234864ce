#include "orchestrator/survey.h"

#include <thread>

#include "orchestrator/base/sync.h"
#include "orchestrator/exchange.h"
#include "orchestrator/parallel.h"

namespace dsi {

namespace {

using namespace std::chrono_literals;

// Holds the line to hosts that have been looked at and may pass the agent on to others. Until it
// goes their sessions belong to its thread; then nobody takes anything from them any more.
class Line {
 public:
  Line() : thread_([this](const std::stop_token& stop) { hold(stop); }) {}
  ~Line() {
    thread_.request_stop();
    thread_.join();
    sessions_.with([](auto& sessions) {
      for (Session* session : sessions) {
        // Who does not hear it closes its port by itself soon.
        (void)session->agent->send("dismiss", nlohmann::json::object(), Deadline::after(kMoment));
        session->listening.reset();
      }
    });
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void take_over(Session& session) {
    if (!session.agent || !session.listening) return;
    sessions_.with([&](auto& sessions) { sessions.push_back(&session); });
  }

 private:
  // One that stands still must not keep the others from being heard of.
  static constexpr std::chrono::milliseconds kMoment = 500ms;

  void hold(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      sessions_.with([](auto& sessions) {
        // What is the matter with a host is found when it has its turn.
        for (Session* session : sessions) (void)ping_if_due(*session, Deadline::after(kMoment));
      });
      never.wait_for(lock, stop, protocol::kPingEvery / 4, [] { return false; });
    }
  }

  Sync<std::vector<Session*>> sessions_;
  std::jthread thread_;  // Last, so that it starts when the rest is there.
};

}  // namespace

Survey survey_hosts(const std::vector<Host>& hosts, const RunContext& run, Progress& progress,
                    std::stop_token drain) {
  Survey survey;
  survey.rows.resize(hosts.size());
  survey.sessions.resize(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    survey.rows[i].host = hosts[i].name;
    survey.rows[i].error = {"interrupted before it was asked", ""};
  }
  Line line;
  std::atomic<std::size_t> done{0};
  Ticker ticker(progress, "Connecting",
                [&] { return fmt::format("{}/{} hosts", done.load(), hosts.size()); });
  parallel_for(
      hosts.size(), static_cast<std::size_t>(run.options.fanout), drain, [&](std::size_t i) {
        SurveyRow& row = survey.rows[i];
        auto session = look_at(hosts[i], static_cast<distribute::PeerId>(i), run);
        if (session) {
          row.error = {};
          // A plan changes nothing: where no agent could be brought, nobody can be asked.
          // A host that cannot take an agent is left to the rules.
          const NodePlace& prefix = session->node.prefix;
          const bool takes =
              session->agent || (!prefix.read_only && !prefix.no_exec &&
                                 (run.facts == nullptr || session->facts.arch == run.facts->arch));
          const bool asks = !run.package.empty() && takes &&
                            (session->agent || run.options.command != CommandKind::kPlan);
          if (asks) {
            if (auto asked = ask_python(*session, run); !asked) {
              row.status = HostStatus::kFailed;
              row.error = asked.error();
            }
          }
          row.facts = session->facts;  // An agent knows more than a shell.
          row.node = session->node;
          row.python = session->python;
          survey.sessions[i] = std::move(*session);
          line.take_over(*survey.sessions[i]);
        } else {
          row.status = session.error().status;
          row.error = session.error().error;
        }
        ++done;
      });
  return survey;
}

}  // namespace dsi
