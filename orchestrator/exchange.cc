#include "orchestrator/exchange.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace dsi {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kPiece = 128 * 1024;

Result<void> send_index(AgentLink& agent, const std::string& index, const RunContext& run) {
  DSI_CHECK(agent.send("index", {{"size", index.size()}}, run.stall_deadline()));
  for (std::size_t at = 0; at < index.size(); at += kPiece) {
    std::string_view piece = std::string_view(index).substr(at, kPiece);
    DSI_CHECK(agent.send_data(piece, run.stall_deadline()));
    run.traffic.bytes_sent += piece.size();
  }
  return {};
}

Result<void> take(AgentLink& agent, distribute::Swarm& swarm, const distribute::Step& step,
                  const RunContext& run) {
  if (step.index) DSI_CHECK(send_index(agent, swarm.index(), run));
  for (const protocol::Follow& follow : step.follow) {
    DSI_CHECK(agent.send("follow", follow, run.stall_deadline()));
  }
  if (!step.chunk) return {};
  DSI_TRY(std::string bytes, swarm.read_chunk(*step.chunk));
  run.peering->limit.wait_for(bytes.size(), run.abort);
  DSI_CHECK(agent.send_raw(protocol::chunk_frame(*step.chunk, bytes), run.stall_deadline()));
  run.traffic.bytes_sent += bytes.size();
  return {};
}

}  // namespace

Result<void> listen(Session& session, const RunContext& run) {
  if (run.peering == nullptr || !run.peering->swarm || session.listening) return {};
  protocol::ListenRequest request;
  request.self = session.number;
  request.key = run.peering->key;
  request.ports = run.peering->listen ? run.options.peer_ports : "none";
  request.rate = run.peering->limit.bytes_per_second();
  DSI_CHECK(session.agent->send("listen", request, run.stall_deadline()));
  DSI_TRY(protocol::Message message, session.agent->receive(run.stall_deadline()));
  if (message.type != "listening") {
    return fail("the agent says \"{}\", which was not expected", message.type);
  }
  DSI_TRY(session.listening, protocol::body_as<protocol::Listening>(message));
  const protocol::Listening& there = *session.listening;
  if (there.port != 0) {
    session.transcript.push_back(fmt::format("serves other hosts on port {}", there.port));
  } else if (!there.error.empty()) {
    session.transcript.push_back("cannot serve other hosts: " + there.error);
  }
  return {};
}

Result<void> ping_if_due(Session& session, Deadline deadline) {
  if (!session.listening || Deadline::Clock::now() < session.next_ping) return {};
  session.next_ping = Deadline::Clock::now() + protocol::kPingEvery;
  return session.agent->send("ping", {}, deadline);
}

Result<protocol::Message> hear(Session& session, Deadline deadline, const RunContext& run) {
  if (!session.listening) return session.agent->receive(deadline);
  for (;;) {
    DSI_CHECK(ping_if_due(session, run.stall_deadline()));
    auto slice = std::min<std::chrono::milliseconds>(protocol::kPingEvery, deadline.left());
    DSI_TRY(auto message, session.agent->poll(-1, Deadline::after(slice)));
    if (message) return *std::move(message);
    if (deadline.passed()) {
      // For the error's text.
      return session.agent->receive(deadline);
    }
  }
}

void attend(Session& session, const RunContext& run, std::stop_token drain) {
  if (session.swarm == nullptr || !session.agent) return;
  while (!run.abort.stop_requested() && !run.distributor->complete(drain.stop_requested())) {
    auto heard = ping_if_due(session, run.stall_deadline()).and_then([&] {
      return session.agent->poll(session.swarm->wake(session.number), Deadline::after(500ms));
    });
    if (!heard) {
      session.swarm->leave(session.number);
      return session.hang_up();
    }
    (void)session.swarm->next(session.number);  // Resets the descriptor; there is nothing to do.
  }
}

Result<std::optional<protocol::HostResult>> exchange(Session& session, const protocol::Need& need,
                                                     const RunContext& run) {
  DSI_TRY(distribute::Swarm * swarm,
          run.distributor->enroll(session.number, need,
                                  session.listening.value_or(protocol::Listening{}), run.abort));
  session.swarm = swarm;
  AgentLink& agent = *session.agent;
  DSI_CHECK(agent.send("swarm",
                       protocol::SwarmRequest{swarm->index_digest(), swarm->index().size()},
                       run.stall_deadline()));
  Deadline patience = run.stall_deadline();
  for (;;) {
    DSI_CHECK(ping_if_due(session, run.stall_deadline()));
    distribute::Step step = swarm->next(session.number);
    if (auto sent = take(agent, *swarm, step, run); !sent) {
      // An agent that cannot go on (no space left, say) gives its result and stops reading: that is
      // the reason to report, and not that our write failed.
      auto last = agent.receive(Deadline::after(2s));
      while (last && last->type != "result") last = agent.receive(Deadline::after(2s));
      if (last) return protocol::body_as<protocol::HostResult>(*last);
      return tl::unexpected<Error>(sent.error());
    }
    std::chrono::milliseconds wait = std::min<std::chrono::milliseconds>(1s, patience.left() + 1ms);
    if (step.soon) wait = 3ms;
    if (step.chunk) wait = 0ms;
    DSI_TRY(std::optional<protocol::Message> said,
            agent.poll(swarm->wake(session.number), Deadline::after(wait)));
    if (!said) {
      if (!patience.passed()) continue;
      return fail_with_help(
          fmt::format("the host got no chunk for {} s", run.options.stall_timeout.count()),
          "look at its network; --topology star sends everything from here");
    }
    protocol::Message message = *std::move(said);
    if (message.type == "have") {
      DSI_TRY(protocol::Have have, protocol::body_as<protocol::Have>(message));
      if (swarm->have(session.number, have)) patience = run.stall_deadline();
    } else if (message.type == "joined") {
      DSI_TRY(protocol::Joined joined, protocol::body_as<protocol::Joined>(message));
      swarm->joined(session.number, joined);
      patience = run.stall_deadline();
    } else if (message.type == "fault") {
      DSI_TRY(protocol::PeerFault fault, protocol::body_as<protocol::PeerFault>(message));
      session.transcript.push_back("host: " + run.number_to_name(fault.peer) + " as a source: " +
                                   fault.kind + (fault.detail.empty() ? "" : ", " + fault.detail));
      swarm->fault(session.number, fault);
    } else if (message.type == "complete") {
      swarm->completed(session.number);
      session.transcript.push_back("host: has every file");
      return std::nullopt;
    } else if (message.type == "result") {
      return protocol::body_as<protocol::HostResult>(message);
    } else if (message.type != "stage") {
      return fail("the agent says \"{}\", which was not expected", message.type);
    }
  }
}

}  // namespace dsi
