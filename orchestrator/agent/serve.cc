#include "orchestrator/agent/serve.h"

#include <zstd.h>

#include <cstdio>

#include "orchestrator/agent/exchange.h"
#include "orchestrator/agent/facts.h"
#include "orchestrator/agent/hold.h"
#include "orchestrator/agent/install.h"
#include "orchestrator/agent/look.h"
#include "orchestrator/agent/package.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/python.h"
#include "orchestrator/agent/settle.h"
#include "orchestrator/agent/wire.h"
#include "orchestrator/base/file.h"

namespace dsi::agent {

using protocol::HostResult;
using protocol::Message;

namespace {

// It is the same for all hosts and goes to each, so it comes compressed.
Result<std::string> unpack_manifest(std::uint64_t size, Wire& wire) {
  DSI_TRY(std::optional<protocol::Frame> frame, wire.read());
  if (!frame) return fail("the head left");
  if (frame->type != 'D' || frame->payload.size() != size) return fail("the manifest did not come");
  const auto whole = ZSTD_getFrameContentSize(frame->payload.data(), frame->payload.size());
  std::string text(whole <= protocol::kMaxJsonFrame ? whole : 0, '\0');
  const std::size_t done =
      ZSTD_decompress(text.data(), text.size(), frame->payload.data(), frame->payload.size());
  if (ZSTD_isError(done) != 0 || done != text.size())
    return fail("the manifest that came is broken");
  return text;
}

Result<HostResult> obey(const Message& message, const std::string& prefix, Wire& wire) {
  if (message.type == "install") {
    DSI_TRY(auto request, protocol::body_as<protocol::InstallRequest>(message));
    if (request.packed_manifest > 0) {
      DSI_TRY(request.manifest, unpack_manifest(request.packed_manifest, wire));
    }
    return install(prefix, request, wire);
  }
  if (message.type == "rollback") {
    DSI_TRY(auto request, protocol::body_as<protocol::RollbackRequest>(message));
    return rollback(prefix, request, wire);
  }
  if (message.type == "uninstall") {
    DSI_TRY(auto request, protocol::body_as<protocol::UninstallRequest>(message));
    return uninstall(prefix, request, wire);
  }
  if (message.type == "hold") {
    DSI_TRY(auto request, protocol::body_as<protocol::HoldRequest>(message));
    return hold(prefix, request, wire);
  }
  if (message.type == "report") {
    DSI_TRY(auto request, protocol::body_as<protocol::ReportRequest>(message));
    return report(prefix, request, wire);
  }
  return fail_with_help(fmt::format("this agent knows no request \"{}\"", message.type),
                        "use the ds-install that the agent came with");
}

bool answer_python(const Message& message, const std::string& prefix, Wire& wire) {
  auto request = protocol::body_as<protocol::PythonRequest>(message);
  protocol::PythonFacts facts;
  if (request) {
    facts = find_environment(*request).facts;
    facts.held = find_hold(environment_prefix(prefix, facts));
  } else {
    facts.error = request.error();
  }
  return wire.send("python", facts);
}

bool answer_look(const Message& message, const std::string& prefix, Wire& wire) {
  auto request = protocol::body_as<protocol::LookRequest>(message);
  protocol::Looked looked;
  if (request) {
    looked = look(*request, prefix);
  } else {
    looked.error = request.error().what;
  }
  return wire.send("looked", looked);
}

bool answer_settle(const std::string& prefix, const std::string& nonce, Wire& wire) {
  protocol::Settled settled;
  if (auto done = settle(prefix, nonce); !done) {
    settled.error = done.error().what;
    settled.help = done.error().help;
  }
  return wire.send("settled", settled);
}

HostResult failed(Error error, const std::string& prefix) {
  HostResult result;
  result.result = "failed";
  result.from = result.to = find_releases(prefix).current;
  result.error = std::move(error);
  return result;
}

}  // namespace

int serve(const std::string& nonce, const std::string& given, int in, int out) {
  auto prefix = choose_prefix(given);
  if (!prefix) {
    std::fprintf(stderr, "%s\n", to_string(prefix.error()).c_str());
    return 2;
  }
  if (!write_all(out, std::string(protocol::kGreeting) + nonce + "\n")) return 1;
  Wire wire(in, out);
  std::unique_ptr<Exchange> exchange;
  wire.on_listen([&](const Message& listen, protocol::FrameReader& rest) {
    exchange = Exchange::start(wire, listen, rest);
    return exchange.get();
  });
  if (!wire.send("hello", protocol::Hello{protocol::kVersion, own_digest(), find_facts(*prefix)})) {
    return 1;
  }
  // After a result that came early the head may still be sending files: up to its "commit", or to
  // its next request, they are nobody's.
  bool discarding = false;
  for (;;) {
    auto frame = wire.read();
    if (!frame) {
      // Out of step for good: nothing that follows can be understood.
      wire.send("result", failed(frame.error(), *prefix));
      return 1;
    }
    if (!*frame) return 0;
    if (discarding && (*frame)->type == 'D') continue;
    auto message = protocol::read_message(**frame);
    if (discarding && message && (message->type == "file" || message->type == "commit")) {
      discarding = message->type == "file";
      continue;
    }
    if (message && message->type == "look") {
      if (!answer_look(*message, *prefix, wire)) return 1;
      continue;
    }
    if (message && message->type == "python") {
      if (!answer_python(*message, *prefix, wire)) return 1;
      continue;
    }
    if (message && message->type == "settle") {
      if (!answer_settle(*prefix, nonce, wire)) return 1;
      continue;
    }
    Result<HostResult> result =
        message ? obey(*message, *prefix, wire) : tl::unexpected<Error>(message.error());
    HostResult answer = result ? *std::move(result) : failed(result.error(), *prefix);
    discarding = answer.result == "failed";
    if (!wire.send("result", answer)) return 1;
  }
}

}  // namespace dsi::agent
