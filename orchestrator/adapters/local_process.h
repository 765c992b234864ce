#pragma once

#include "orchestrator/ports/process.h"

namespace dsi {

// Programs of this machine. Standard input is /dev/null: nothing that we run may ask a question.
class LocalProcessRunner : public ProcessRunner {
 public:
  Result<ProcessResult> run(const Command& command, Deadline deadline, std::stop_token stop,
                            const OnLine& on_line = {}) override;
};

}  // namespace dsi
