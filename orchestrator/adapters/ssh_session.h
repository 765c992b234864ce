#pragma once

// The session as its connector and its channels see it. Included by this room's .cc files only; the
// functions are in ssh_host.cc, whose head says how a session works.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/adapters/ssh_auth.h"
#include "orchestrator/adapters/ssh_connect.h"
#include "orchestrator/adapters/ssh_host.h"
#include "orchestrator/adapters/ssh_known_hosts.h"
#include "orchestrator/adapters/ssh_raii.h"
#include "orchestrator/base/in_flight.h"

namespace dsi {

inline double seconds_since(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

// One host over one session. It must outlive its channels.
class SshHost : public RemoteHost {
 public:
  SshHost(const Host& host, SshTarget target, Transport transport, const SshOptions& options,
          std::stop_token stop);
  ~SshHost() override;
  SshHost(const SshHost&) = delete;
  SshHost& operator=(const SshHost&) = delete;

  // A connection that a busy server dropped before it said anything can be tried again.
  struct HandshakeFailure {
    ConnectError error;
    bool dropped = false;
  };
  std::optional<HandshakeFailure> shake_hands(const KnownHosts& known, SshKeyStore& keys,
                                              const SshOptions& options, Deadline deadline);

  Result<std::unique_ptr<Channel>> exec(std::string_view command, Deadline deadline) override;
  bool alive() const override {
    return !stop_.stop_requested() && session_ && ssh_is_connected(session_.get()) != 0;
  }

  // While a session or a channel is set up, sshd still has Nagle's algorithm on: it holds its
  // second small message back until the first is acknowledged, and Linux would delay that by 40 ms
  // to spare a packet. The kernel forgets this by itself, so it is said again before every wait.
  void acknowledge_at_once() const;

  // How long to wait before more is written, see InFlight.
  std::chrono::milliseconds write_pause() { return in_flight_.pause(stop_fd_.get()); }

  // For the session's channels.
  ssh_session session() const { return session_.get(); }
  const std::string& name() const { return name_; }
  // Handles what arrives, waiting for it until the deadline at most. True: something may have
  // changed. An error if the session is lost or stopped; the deadline's passing is `false`. Returns
  // early, too, when the descriptor `wake` becomes readable.
  Result<bool> pump(Deadline deadline, int wake = -1);
  // Why the session is no more.
  tl::unexpected<Error> lost() const;
  void channel_closed() { had_channel_ = true; }

 private:
  std::optional<HandshakeFailure> negotiate(const std::vector<KnownKey>& on_record,
                                            const SshOptions& options, Deadline deadline);
  HandshakeFailure handshake_error(bool banner_seen, Deadline::Clock::time_point start) const;
  Result<void> wait_for_socket(Deadline deadline);
  ConnectError cancelled() const;

  std::string name_;
  SshTarget target_;
  std::chrono::milliseconds keepalive_after_;
  std::unique_ptr<ProxyProcess> proxy_;
  UniqueFd fd_;  // Until libssh owns it.
  UniqueFd stop_fd_;
  std::stop_token stop_;
  std::stop_callback<std::function<void()>> on_stop_;
  SshSession session_;
  SshEvent event_;
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
  bool had_channel_ = false;
  InFlight in_flight_;
};

}  // namespace dsi
