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
  parallel_for(hosts.size(), static_cast<std::size_t>(run.options.fanout), drain,
               [&](std::size_t i) {
                 SurveyRow& row = survey.rows[i];
                 auto session = look_at(hosts[i], static_cast<distribute::PeerId>(i), run);
                 if (session) {
                   row.error = {};
                   row.facts = session->facts;
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
