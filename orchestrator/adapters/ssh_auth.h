#pragma once

// Proving who we are: key files and the agent. Never a password, never a prompt.
//
// ssh_userauth_publickey_auto is not used: it always asks the agent first, in the agent's order
// (ten keys there, and sshd's MaxAuthTries of 6 is used up), blocks as long as the agent does, and
// writes a .pub file beside the user's key if there is none. Here:
//   1. configured key files that can be used as they are, then the agent's keys that belong to
//      configured files, then, unless IdentitiesOnly, the agent's other keys;
//   2. without a configured IdentityFile: the default files that exist, then the agent's keys.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "orchestrator/adapters/ssh_config.h"
#include "orchestrator/adapters/ssh_raii.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"

namespace dsi {

// A private key file and what became of reading it.
struct SshKeyFile {
  enum class State { kUsable, kMissing, kEncrypted, kBad };
  State state = State::kMissing;
  std::string path;
  SshKey key;          // For kUsable. Signing does not change it, so sessions share it.
  SshKey certified;    // The same key with its certificate, if there is one.
  std::string base64;  // The public half, if it can be known: finds the key in the agent.
};

// Reads every key file once per run, not once per host. Thread-safe.
class SshKeyStore {
 public:
  std::shared_ptr<const SshKeyFile> load(const std::string& path,
                                         const std::vector<std::string>& certificate_files);

  // An agent that did not answer once is not asked again in this run: 64 hosts would each wait.
  bool agent_is_hung(const std::string& socket) const;
  void mark_agent_hung(const std::string& socket);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const SshKeyFile>> keys_;
  std::vector<std::string> hung_agents_;
};

struct SshAuthentication {
  ssh_session session;  // Connected, host key checked, non-blocking.
  const SshTarget& target;
  const std::string& host;  // How errors call it.
  SshKeyStore& keys;
  std::chrono::milliseconds agent_patience;
  Deadline deadline;
  std::stop_token stop;
  // Waits until the session's socket has something to do; an error at the deadline or a stop.
  std::function<Result<void>()> wait;
};

Result<void> authenticate(const SshAuthentication& request);

}  // namespace dsi
