#include "orchestrator/survey.h"

#include "orchestrator/parallel.h"

namespace dsi {

Survey survey_hosts(const std::vector<Host>& hosts, const RunContext& run, Progress& progress,
                    std::stop_token drain) {
  Survey survey;
  survey.rows.resize(hosts.size());
  survey.sessions.resize(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    survey.rows[i].host = hosts[i].name;
    survey.rows[i].error = {"interrupted before it was asked", ""};
  }
  std::atomic<std::size_t> done{0};
  Ticker ticker(progress, "Connecting",
                [&] { return fmt::format("{}/{} hosts", done.load(), hosts.size()); });
  parallel_for(
      hosts.size(), static_cast<std::size_t>(run.options.fanout), drain, [&](std::size_t i) {
        SurveyRow& row = survey.rows[i];
        auto session = look_at(hosts[i], static_cast<distribute::PeerId>(i), run);
        if (session) {
          row.error = {};
          // A plan changes nothing: where no agent is, nobody can be asked.
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
        } else {
          row.status = session.error().status;
          row.error = session.error().error;
        }
        ++done;
      });
  return survey;
}

}  // namespace dsi
