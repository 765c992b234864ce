#include "orchestrator/agent/look.h"

#include <unistd.h>

#include "orchestrator/agent/child.h"
#include "orchestrator/facts/answer.h"

namespace dsi::agent {

namespace {

// It gives nvidia-smi five.
constexpr std::chrono::seconds kLookTime{20};
constexpr int kAnswer = 3;

}  // namespace

protocol::Looked look(const protocol::LookRequest& request, const std::string& prefix) {
  ChildSpec spec;
  // All memory that it asks for is of an arena of its own.
  spec.instead = [&] {
    facts::set_environment(::environ);
    facts::List<facts::Str> hints;
    for (const std::string& folder : request.torch_folders) hints.add(folder);
    facts::answer(kAnswer, "", prefix, hints);
  };
  protocol::Looked looked;
  auto ran = run_child(spec, kLookTime);
  if (!ran) {
    looked.error = ran.error().what;
  } else if (ran->timed_out) {
    looked.error = fmt::format("the look took longer than {} s", kLookTime.count());
  } else if (ran->status != 0 || !ran->answer.ends_with('\n')) {
    looked.error = fmt::format("the look ended with status {}", ran->status);
  } else {
    looked.facts = std::move(ran->answer);
    looked.facts.pop_back();
  }
  return looked;
}

}  // namespace dsi::agent
