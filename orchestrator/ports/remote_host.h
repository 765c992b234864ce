#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "hostfile/host.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"

namespace dsi {

// One command that runs on a host, with its three streams. Belongs to one thread at a time and must
// not outlive its host. Ending it early closes the streams; what the command makes of that is its
// own affair.
// What the command writes to standard error is collected (the last 16 KiB of it), never lost in a
// full pipe and never mixed into read().
class Channel {
 public:
  virtual ~Channel() = default;

  // At least one byte, or 0 at the end of the stream (never for a time-out, which is an error).
  virtual Result<std::size_t> read(std::span<char> buffer, Deadline deadline) = 0;

  // Waits until read() would not (bytes, the end of the stream or an error are there): true. False
  // if the descriptor `wake` became readable first, or the deadline passed. `wake` may be -1.
  virtual Result<bool> readable(int wake, Deadline deadline) = 0;

  // All of it. The deadline is for the whole call; a peer that does not read runs into it. What the
  // command says meanwhile is kept for read(), up to 16 MiB; one that says more and is not read
  // from stops reading, and the call runs into its deadline.
  virtual Result<void> write(std::string_view data, Deadline deadline) = 0;

  virtual Result<void> close_stdin() = 0;

  struct Exit {
    int code = -1;       // -1 if a signal ended the command or the host never said.
    std::string signal;  // "KILL"; empty if none.
    std::string err;     // The tail of standard error.
  };
  // Drains what is left of standard output and waits for the command's end. A process that the
  // command left behind with the streams open is not waited for longer than a second. Does not
  // close standard input: a command that reads it to the end needs close_stdin() first.
  virtual Result<Exit> wait(Deadline deadline) = 0;

  // The tail of standard error so far, for messages.
  virtual std::string standard_error() const = 0;
};

// A host that can be told to run commands; for SSH, one authenticated session. Belongs to one
// thread at a time, but may be handed from one to another.
class RemoteHost {
 public:
  virtual ~RemoteHost() = default;

  // `command` is given to the login shell of the user there, whatever that is: keep to one line and
  // to what sh, csh and fish read alike. One channel at a time is what every sshd allows.
  virtual Result<std::unique_ptr<Channel>> exec(std::string_view command, Deadline deadline) = 0;

  // False once the connection is known to be lost.
  virtual bool alive() const = 0;
};

// Why there is no session: decides between "unreachable" and "failed" in the report.
enum class ConnectFailure {
  kUnreachable,  // Name, route, port, silence, a broken handshake.
  kHostKey,      // Unknown, changed or revoked.
  kAuth,         // The host answered and refused the user.
  kCancelled,    // The stop token.
};

struct ConnectError {
  ConnectFailure kind = ConnectFailure::kUnreachable;
  Error error;
};

// Reaches hosts. Thread-safe.
class Connector {
 public:
  virtual ~Connector() = default;

  // The stop token stays with the session: a stop that is asked for later makes every call on the
  // session and its channels return an error at once.
  virtual tl::expected<std::unique_ptr<RemoteHost>, ConnectError> connect(const Host& host,
                                                                          Deadline deadline,
                                                                          std::stop_token stop) = 0;
};

}  // namespace dsi
