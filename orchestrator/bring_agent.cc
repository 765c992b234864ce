#include "orchestrator/bring_agent.h"

#include <algorithm>

namespace dsi {

using namespace std::chrono_literals;
using distribute::AgentSources;

namespace {

// Until a source is free. Where nothing moves the head helps out long before.
constexpr std::chrono::minutes kWaitForSource{10};
// The loader gives a peer a minute, see request_from_host().
constexpr std::chrono::seconds kWaitForPeer{90};
// A host that cannot take it from this many others takes it from here.
constexpr std::size_t kTries = 2;

class Bringer {
 public:
  Bringer(const Bringing& bringing, const AgentBinary::Wire& wire, AgentLink& agent)
      : bringing_(bringing), wire_(wire), agent_(agent) {}

  Result<AgentLink::Greeting> run(std::optional<AgentSources::Lease>& lease) {
    send(loader_for(bringing_.start, wire_));
    DSI_TRY(AgentLink::LoaderWord word, agent_.hear_loader(patience()));
    std::vector<std::string> tried;
    while (word.kind != AgentLink::LoaderWord::Kind::kAgent) {
      if (bringing_.sources == nullptr) {
        bringing_.transcript.emplace_back("brings the agent");
        return from_head();
      }
      lease.reset();
      DSI_TRY(AgentSources::Lease taken,
              bringing_.sources->acquire(tried, tried.size() >= kTries,
                                         Deadline::after(kWaitForSource), bringing_.stop));
      lease.emplace(std::move(taken));
      if (lease->from_head()) {
        bringing_.transcript.emplace_back("brings the agent");
        DSI_TRY(AgentLink::Greeting greeting, from_head());
        lease->delivered();
        return greeting;
      }
      tried.push_back(lease->source().name);
      bringing_.transcript.push_back("takes the agent from " + tried.back());
      DSI_CHECK(agent_.send_raw(request_from_host(lease->source(), bringing_.run_key), patience()));
      DSI_TRY(word, agent_.hear_loader(Deadline::after(kWaitForPeer)));
      if (word.kind == AgentLink::LoaderWord::Kind::kAgent) {
        lease->delivered();
      } else {
        bringing_.transcript.push_back("host: " + word.text);
        lease->failed();
      }
    }
    return agent_.greet(patience());
  }

 private:
  Deadline patience() const { return Deadline::after(bringing_.stall_timeout); }

  // What cannot be sent is no error here: a host that gave up (no space, no permission) stops
  // reading, and what it says is the reason.
  void send(std::string_view bytes) {
    constexpr std::size_t kPiece = 128 * 1024;
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kPiece, bytes.size()))) {
      std::string_view piece = bytes.substr(0, kPiece);
      if (bringing_.limit != nullptr) bringing_.limit->wait_for(piece.size(), bringing_.stop);
      if (!agent_.send_raw(piece, patience())) return;
      bringing_.bytes_sent += piece.size();
    }
  }

  Result<AgentLink::Greeting> from_head() {
    send(request_from_head());
    send(wire_.compressed);
    return agent_.greet(patience());
  }

  const Bringing& bringing_;
  const AgentBinary::Wire& wire_;
  AgentLink& agent_;
};

}  // namespace

Result<Brought> bring_agent(const Bringing& bringing, std::uint64_t& sent_in_vain) {
  DSI_TRY(std::shared_ptr<const AgentBinary::Wire> wire, bringing.agent.wire());
  DSI_TRY(std::unique_ptr<Channel> channel,
          bringing.remote.exec(bring_command(bringing.start, bringing.agent, *wire, bringing.place),
                               Deadline::after(bringing.stall_timeout)));
  Brought brought;
  brought.agent = std::make_unique<AgentLink>(std::move(channel), bringing.start.nonce,
                                              bringing.agent.digest());
  auto greeting = Bringer(bringing, *wire, *brought.agent).run(brought.lease);
  if (!greeting || !greeting->agent) sent_in_vain += brought.agent->bytes_sent();
  if (!greeting) return tl::unexpected<Error>(std::move(greeting).error());
  if (!greeting->agent) return fail("the agent did not start");
  brought.greeting = *std::move(greeting);
  return brought;
}

}  // namespace dsi
