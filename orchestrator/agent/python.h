#pragma once

// Which Python a package is to go into, and what is there. Nothing here changes the node.
//
// The interpreter is the one that was named or the one that the user gets at a login: their shell
// is started as a login does it, with every start-up file, and asked for python3. So a conda or
// virtual environment that a start-up file activates is found, which a command over SSH is not
// given. Under sudo (-s) that is still the user who logged in, not root. Then the interpreter
// itself is asked (python_facts.py).

#include <string>

#include "orchestrator/agent/protocol.h"

namespace dsi::agent {

struct Environment {
  protocol::PythonFacts facts;
  std::string state;  // Where bin/ds-package keeps its state of the package in question.
};

// With facts.error set if there is no such interpreter or it does not run.
Environment find_environment(const protocol::PythonRequest& request);

// The same, without what only a plan needs: tags, torch, the libraries and the GPUs.
Result<Environment> open_environment(const std::string& python, const std::string& package);

}  // namespace dsi::agent
