#pragma once

// From a target to an open byte stream: name resolution, TCP to the address that answers, or a
// proxy command. libssh would block in getaddrinfo, try the first address only, and know no
// deadline, so none of this is left to it.

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>

#include "orchestrator/adapters/ssh_config.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {

// A proxy command that runs for one session. Its standard error goes to a file in memory: a pipe
// that nobody reads could fill up and stall the session.
class ProxyProcess {
 public:
  ProxyProcess(pid_t pid, UniqueFd err) : pid_(pid), err_(std::move(err)) {}
  ProxyProcess(const ProxyProcess&) = delete;
  ProxyProcess& operator=(const ProxyProcess&) = delete;
  ~ProxyProcess();
  std::string last_words() const;  // The last line that it wrote to standard error.

 private:
  pid_t pid_;
  UniqueFd err_;
};

struct Transport {
  UniqueFd fd;  // Non-blocking; a socket in either case.
  std::unique_ptr<ProxyProcess> proxy;
};

// `name` is how errors call the host. The stop token ends every wait at once.
Result<Transport> open_transport(const SshTarget& target, const std::string& name,
                                 Deadline deadline, std::stop_token stop);

// Limits the handshakes that run at once against one (address, port). sshd starts to drop
// connections at random when ten are unauthenticated (MaxStartups 10:30:100), which bites jump
// hosts and many aliases of one machine. Thread-safe.
class HandshakeGate {
 public:
  explicit HandshakeGate(int at_once) : at_once_(at_once) {}

  class Pass {
   public:
    Pass() = default;
    Pass(HandshakeGate* gate, std::string key) : gate_(gate), key_(std::move(key)) {}
    Pass(Pass&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), key_(std::move(other.key_)) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->leave(key_);
    }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    HandshakeGate* gate_ = nullptr;
    std::string key_;
  };
  // Empty if the deadline passed or a stop came.
  Pass enter(const std::string& key, Deadline deadline, std::stop_token stop);

  // A handshake was dropped: this server takes fewer than we thought.
  void slow_down(const std::string& key);

 private:
  struct Lane {
    int inside = 0;
    int limit = 0;
  };
  void leave(const std::string& key);

  int at_once_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, Lane> lanes_;
};

}  // namespace dsi
