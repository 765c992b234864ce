#pragma once

#include <chrono>

namespace dsi {

// Keeps what is under way on a TCP connection short.
//
// Several connections that share a link each fill its queue until it overflows. What is lost then is
// not only data, which TCP repairs: a connection that is being opened loses its first packet and
// waits a whole second. And what waits in a buffer cannot be given to somebody else. So no more is
// under way than the connection delivers within two round trips and a few milliseconds, as measured
// by the kernel (TCP_INFO).
//
// With four connections into every node, each with a buffer of 200 KB, on links of 100 Mbit/s, the
// first chunks came a second late on three of eight nodes and a run took 1.5 to 2.4 times the time of
// one copy; see tests/bench/fanout.
class InFlight {
 public:
  // For a socket of ours, whenever something is written: gives it a send buffer of that size.
  void keep_short(int socket);

  // For a socket whose buffer must not shrink (libssh takes a write that would block after poll() said
  // otherwise for the end of the connection): how long to wait before more is written. Zero: write.
  std::chrono::milliseconds pause(int socket);

 private:
  // Looks at the connection now and then. 0: it is no TCP socket.
  double most(int socket);

  std::chrono::steady_clock::time_point next_look_{};
  double most_ = 0;  // Bytes
  double rate_ = 0;  // Bytes a second
  int buffer_ = 0;   // Bytes, as it was set.
};

}  // namespace dsi
