#include "orchestrator/session.h"

#include <thread>

#include "orchestrator/base/random.h"
#include "orchestrator/bring_agent.h"
#include "orchestrator/exchange.h"

namespace dsi {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::seconds kPythonTime = 90s;
// A look gives a silent nvidia-smi five seconds, however little a user gives a connection.
constexpr std::chrono::seconds kLookTime = 6s;

const HostOverrides& overrides_of(const Options& options, const Host& host) {
  static const HostOverrides kNone;
  auto at = options.per_host.find(host.name);
  return at != options.per_host.end() ? at->second : kNone;
}

AgentStart start_for(const Host& host, const RunContext& run) {
  const HostOverrides& overrides = overrides_of(run.options, host);
  AgentStart start;
  start.nonce = random_hex(16);
  start.prefix = overrides.prefix.value_or(run.options.prefix);
  start.sudo = overrides.sudo.value_or(run.options.pip_sudo);
  return start;
}

std::vector<std::string> torch_folders_for(const Session& session, const RunContext& run,
                                           const std::vector<std::string>& ours) {
  std::vector<std::string> folders;
  if (auto torch = overrides_of(run.options, session.host).torch) {
    folders = {*torch, *torch + "/lib"};
  }
  folders.insert(folders.end(), ours.begin(), ours.end());
  return folders;
}
HostStatus status_of(ConnectFailure failure) {
  switch (failure) {
    case ConnectFailure::kUnreachable:
      return HostStatus::kUnreachable;
    case ConnectFailure::kCancelled:
      return HostStatus::kNotTried;
    // The host is there and answers; what is wrong needs a person, not a retry.
    case ConnectFailure::kHostKey:
    case ConnectFailure::kAuth:
      return HostStatus::kFailed;
  }
  return HostStatus::kFailed;
}

tl::unexpected<HostFailure> failed(Error error) {
  return tl::unexpected<HostFailure>(HostFailure{HostStatus::kFailed, std::move(error)});
}

// Where hosts pass the agent on, this one listens, and is a source for others from then on.
Result<void> offer(Session& session, const RunContext& run,
                   std::optional<distribute::AgentSources::Lease> lease) {
  distribute::AgentSources* sources = agent_sources_of(run);
  if (sources == nullptr) return {};
  DSI_CHECK(listen(session, run));
  if (!session.listening || session.listening->port == 0) return {};
  distribute::AgentSources::Source self{session.host.name, session.listening->port,
                                        session.listening->addresses};
  lease ? lease->becomes(std::move(self)) : sources->add(std::move(self));
  return {};
}

Result<void> bring(Session& session, const RunContext& run, AgentPlace place) {
  distribute::AgentSources* sources = agent_sources_of(run);
  session.start.nonce = random_hex(16);
  DSI_TRY(Brought brought,
          bring_agent({*session.remote, session.start, run.agent, sources,
                       sources != nullptr ? run.peering->key : "", run.options.stall_timeout,
                       run.abort, run.traffic.bytes_sent, session.transcript,
                       run.peering != nullptr ? &run.peering->limit : nullptr, place},
                      session.bytes_before));
  session.facts = brought.greeting.facts;
  session.agent = std::move(brought.agent);
  session.settled = place == AgentPlace::kStore;
  std::optional<distribute::AgentSources::Lease> lease;
  if (brought.lease) lease.emplace(*std::move(brought.lease));
  return offer(session, run, std::move(lease));
}

// From here on the host is changed: an agent that came to look is put into the store, and so comes
// once.
Result<void> settle(Session& session, const RunContext& run) {
  DSI_CHECK(session.agent->send("settle", nlohmann::json::object(), run.stall_deadline()));
  DSI_TRY(protocol::Message message, hear(session, run.stall_deadline(), run));
  if (message.type != "settled") {
    return fail("the agent says \"{}\", which was not expected", message.type);
  }
  DSI_TRY(auto settled, protocol::body_as<protocol::Settled>(message));
  if (!settled.error.empty()) return fail_with_help(settled.error, settled.help);
  session.settled = true;
  return {};
}

// Asks an agent what ds-facts would say there.
Result<NodeFacts> ask_node(Session& session, const RunContext& run,
                           const std::vector<std::string>& hints) {
  auto asked = std::chrono::system_clock::now();
  DSI_CHECK(session.agent->send(
      "look", protocol::LookRequest{torch_folders_for(session, run, hints)}, run.stall_deadline()));
  DSI_TRY(protocol::Message message,
          hear(session, Deadline::after(run.options.stall_timeout + kLookTime), run));
  if (message.type != "looked") {
    return fail("the agent says \"{}\", which was not expected", message.type);
  }
  DSI_TRY(auto looked, protocol::body_as<protocol::Looked>(message));
  if (looked.error.empty()) {
    return read_answer(looked.facts, asked, std::chrono::system_clock::now());
  }
  NodeFacts unknown;
  unknown.unknown_because = looked.error;
  return unknown;
}

// One command on the host: the agent that is there greets, or the host says what it is. True if
// session.node is known by it, or unknown for good: `facts` was sent, or there was no need to.
Result<bool> greet(Session& session, const RunContext& run, const FactsProgram* facts,
                   const std::vector<std::string>& hints) {
  DSI_TRY(std::unique_ptr<Channel> channel,
          session.remote->exec(
              look_command(session.start, run.agent, facts, torch_folders_for(session, run, hints)),
              run.stall_deadline()));
  auto agent =
      std::make_unique<AgentLink>(std::move(channel), session.start.nonce, run.agent.digest());
  bool looked = false;
  if (facts != nullptr) {
    DSI_TRY(auto node,
            agent->hear_facts(*facts, Deadline::after(run.options.stall_timeout + kLookTime)));
    looked = node.has_value();
    if (node) session.node = *std::move(node);
  }
  DSI_TRY(AgentLink::Greeting greeting, agent->greet(run.stall_deadline()));
  session.facts = greeting.facts;
  session.start.gzip = greeting.gzip;
  session.transcript.push_back(
      fmt::format("{} {} {}, prefix {}, release {}", session.facts.host_name, session.facts.arch,
                  session.facts.kernel, session.facts.prefix,
                  session.facts.current.empty() ? "none" : session.facts.current));
  if (greeting.agent) {
    session.agent = std::move(agent);
  } else {
    session.bytes_before += agent->bytes_sent();
  }
  return looked;
}

}  // namespace

distribute::AgentSources* agent_sources_of(const RunContext& run) {
  return run.peering != nullptr ? run.peering->agent_sources.get() : nullptr;
}

std::vector<std::string> torch_folders_for(const Session& session, const RunContext& run) {
  return torch_folders_for(
      session, run,
      run.torch_folders ? run.torch_folders(session.number) : std::vector<std::string>());
}

Result<void> ensure_agent(Session& session, const RunContext& run) {
  const bool had_one = session.agent != nullptr;
  Result<void> there;
  if (!had_one) {
    there = bring(session, run, AgentPlace::kStore);
  } else if (!session.settled) {
    there = settle(session, run);
  }
  return there.map_error(in("the agent cannot be put in {}", session.facts.prefix)).and_then([&] {
    return had_one ? offer(session, run, std::nullopt) : Result<void>();
  });
}

std::string RunContext::number_to_name(std::int64_t number) const {
  if (number < 0) return "this machine";
  auto at = static_cast<std::size_t>(number);
  return at < host_names.size() ? host_names[at] : fmt::format("host {}", number);
}

void Session::hang_up() {
  agent.reset();
  remote.reset();
}

Peering peering_for(const RunContext& run, std::size_t hosts, bool local) {
  const bool swarm = !local && run.options.topology != "star";
  const std::size_t wire_size = run.agent.bytes().size() / 3;  // What LZMA makes of it, about.
  return {random_hex(32), swarm, swarm && hosts > 1,
          // Checked where the options were read.
          distribute::RateLimit(distribute::parse_rate(run.options.rate_limit).value_or(0)),
          swarm && hosts > 1 ? std::make_unique<distribute::AgentSources>(
                                   distribute::AgentSources::limits_for(hosts, wire_size))
                             : nullptr};
}

tl::expected<Session, HostFailure> look_at(const Host& host, distribute::PeerId number,
                                           const RunContext& run) {
  Session session;
  session.number = number;
  session.host = host;
  const HostOverrides& overrides = overrides_of(run.options, host);
  if (overrides.user) session.host.user = *overrides.user;
  if (overrides.port) session.host.port = static_cast<std::uint16_t>(*overrides.port);
  session.start = start_for(host, run);

  auto remote =
      run.connector.connect(session.host, Deadline::after(run.options.connect_timeout), run.abort);
  if (!remote) {
    return tl::unexpected<HostFailure>(
        HostFailure{status_of(remote.error().kind), remote.error().error});
  }
  session.remote = std::move(*remote);
  session.transcript.push_back("connected");
  std::vector<std::string> hints =
      run.torch_hints ? run.torch_hints(number) : std::vector<std::string>();
  // Where an agent is to look, ds-facts looks only if there is none and none can be brought.
  auto greeted = greet(session, run, run.brings_agent ? nullptr : run.facts, hints);
  if (!greeted) return failed(greeted.error());
  if (run.facts == nullptr || *greeted) return session;
  if (!session.agent && session.facts.arch == run.facts->arch) {
    if (auto brought = bring(session, run, AgentPlace::kOwnFolder); !brought) {
      session.transcript.push_back("no agent can look: " + brought.error().what);
      session.agent.reset();
      session.listening.reset();
      session.start.gzip = false;  // Should it have been that.
    }
  }
  if (session.agent) {
    auto node = ask_node(session, run, hints);
    if (!node) return failed(node.error());
    session.node = *std::move(node);
    return session;
  }
  session.start.nonce = random_hex(16);
  greeted = greet(session, run, run.facts, hints);
  if (!greeted) return failed(greeted.error());
  return session;
}

Result<void> ask_python(Session& session, const RunContext& run) {
  // One that came to look is enough.
  if (!session.agent) DSI_CHECK(ensure_agent(session, run));
  protocol::PythonRequest request;
  request.python = overrides_of(run.options, session.host).python.value_or(run.options.python);
  request.package = run.package;
  DSI_CHECK(session.agent->send("python", request, run.stall_deadline()));
  // It starts a login shell and imports torch.
  DSI_TRY(protocol::Message message,
          hear(session, Deadline::after(run.options.stall_timeout + kPythonTime), run));
  if (message.type != "python") {
    return fail("the agent says \"{}\", which was not expected", message.type);
  }
  DSI_TRY(session.python, protocol::body_as<protocol::PythonFacts>(message));
  const protocol::PythonFacts& there = *session.python;
  session.transcript.push_back(
      there.error.what.empty()
          ? fmt::format(
                "Python {} ({}), torch {}, {} {}", there.executable, there.version,
                there.torch.empty() ? "none" : there.torch, run.package,
                there.installed.contains(run.package) ? there.installed.at(run.package) : "none")
          : "no Python: " + there.error.what);
  return {};
}

}  // namespace dsi
