#pragma once

// This node's part in a swarm: one thread, and one poll() over the head's stream, the listener and
// all connections to other nodes.
//
// From the first "listen" on this thread reads what the head sends. What concerns the swarm it
// obeys; everything else goes to the main thread (wire.h). It ends when the head's stream does, and
// with it go all ports and connections. No socket is inherited by a program that the main thread
// starts.

#include <memory>
#include <thread>

#include "orchestrator/agent/incoming.h"
#include "orchestrator/agent/protocol.h"
#include "orchestrator/agent/wire.h"

namespace dsi::agent {

class Exchange {
 public:
  // Obeys the first "listen". Nullptr: nothing could be started, and the head was told why; then
  // `rest` is as it was.
  static std::unique_ptr<Exchange> start(Wire& wire, const protocol::Message& listen,
                                         protocol::FrameReader& rest);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // For the main thread. What comes of the swarm goes into `incoming` from now on, and is served
  // from there until "dismiss".
  void join(std::shared_ptr<Incoming> incoming);
  // This node cannot go on: its children find that out at once.
  void leave();

 private:
  class Loop;
  explicit Exchange(std::unique_ptr<Loop> loop);

  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace dsi::agent
