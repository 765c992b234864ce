#include "orchestrator/agent_link.h"

#include <algorithm>
#include <array>
#include <map>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"

namespace dsi {

namespace {

// Noise before the greeting: a message of the day is long, a shell that floods us is a fault.
constexpr std::size_t kMaxNoise = 1u << 20;

// The commands go to the user's login shell, which may be sh, csh or fish, and all of them must
// read the same. Inside single quotes the three agree as long as there is no quote, backslash,
// exclamation mark or newline; so the script has none of these, and a prefix may not either.
std::string through_login_shell(const AgentStart& start, const std::string& script) {
  return (start.sudo ? "exec sudo -n -H /bin/sh -c '" : "exec /bin/sh -c '") + script + "'";
}

std::string set_prefix(const AgentStart& start) {
  return fmt::format(
      "p=\"{}\"; if test -z \"$p\"; then if test \"$(id -u)\" = 0; then p=/opt/ds-ops; "
      "else p=\"$HOME/.local/share/ds-ops\"; fi; fi; ",
      start.prefix);
}

std::string trimmed(std::string text) {
  auto space = [](char c) { return c == '\n' || c == '\r' || c == ' ' || c == '\t'; };
  while (!text.empty() && space(text.back())) text.pop_back();
  std::size_t begin = 0;
  while (begin < text.size() && space(text[begin])) ++begin;
  return text.substr(begin);
}

protocol::Facts read_facts(const std::map<std::string, std::string>& rows) {
  auto get = [&](const char* key) {
    auto at = rows.find(key);
    return at != rows.end() ? at->second : "";
  };
  protocol::Facts facts;
  facts.arch = get("arch");
  facts.kernel = get("kernel");
  facts.host_name = get("host");
  facts.user = get("user");
  facts.root = get("uid") == "0";
  facts.prefix = get("prefix");
  std::string current = get("current");
  facts.current = current.substr(current.rfind('/') + 1);
  return facts;
}

}  // namespace

Result<AgentBinary> AgentBinary::load(const Files& files) {
  DSI_TRY(std::string bytes, read_file(files.agent));
  std::string digest = sha256_hex(bytes);
  return AgentBinary(std::move(digest), std::move(bytes), files);
}

Result<std::shared_ptr<const AgentBinary::Wire>> AgentBinary::wire() const {
  return wire_->with([&](std::shared_ptr<const Wire>& wire) -> Result<std::shared_ptr<const Wire>> {
    if (!wire) {
      Wire read;
      DSI_TRY(read.loader, read_file(files_.loader));
      DSI_TRY(read.compressed, read_file(files_.compressed));
      wire = std::make_shared<const Wire>(std::move(read));
    }
    return wire;
  });
}

bool is_safe_prefix(std::string_view prefix) {
  constexpr std::string_view kSafe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+@:=,~ -";
  return prefix.empty() ||
         (prefix.front() == '/' && prefix.find_first_not_of(kSafe) == std::string_view::npos);
}

std::string look_command(const AgentStart& start, const AgentBinary& agent) {
  // The agent is tried with --help first: after `exec` of a file that a full disk or a noexec
  // mount broke there would be nobody left to say so.
  return through_login_shell(
      start,
      set_prefix(start) + fmt::format("a=\"$p/store/{0}.x\"; "
                                      "if test -x \"$a\" && \"$a\" --help >/dev/null 2>&1; "
                                      "then exec \"$a\" serve {1} \"$p\"; fi; "
                                      "echo; echo \"DSI0 {1}\"; "
                                      "echo \"arch=$(uname -m)\"; echo \"kernel=$(uname -r)\"; "
                                      "echo \"host=$(uname -n)\"; echo \"uid=$(id -u)\"; "
                                      "echo \"user=$(id -un 2>/dev/null)\"; echo \"prefix=$p\"; "
                                      "echo \"current=$(readlink \"$p/current\" 2>/dev/null)\"; "
                                      "echo end=",
                                      agent.digest(), start.nonce));
}

std::string bring_command(const AgentStart& start, const AgentBinary& agent,
                          const AgentBinary::Wire& wire) {
  // Tried without a word first: after `exec` of a file that a full disk or a noexec mount broke
  // there would be nobody left to say so and to remove it. Its name is this run's own, because
  // hosts may share the prefix; the loader removes it.
  return through_login_shell(
      start,
      set_prefix(start) +
          fmt::format("umask 022; mkdir -p \"$p/store\" || exit 90; "
                      "t=\"$p/store/{1}.upload\"; x() {{ rm -f \"$t\"; exit $1; }}; "
                      "head -c {2} >\"$t\" || x 91; chmod 755 \"$t\" || x 91; \"$t\" || x 92; "
                      "exec \"$t\" load {0} {3} {4} {1} \"$p\"",
                      agent.digest(), start.nonce, wire.loader.size(), agent.bytes().size(),
                      wire.compressed.size()));
}

std::string request_from_head() {
  return "stdin\n";
}

std::string request_from_host(const distribute::AgentSources::Source& source,
                              std::string_view key) {
  // A node across a site answers within milliseconds. One copy of the agent takes half a minute on
  // a line of 200 kbit/s, and a source that is slower is worth leaving.
  constexpr int kConnectMs = 3'000;
  constexpr int kStallMs = 10'000;
  constexpr int kTotalMs = 60'000;
  constexpr std::size_t kMostAddresses = 8;
  std::string request =
      fmt::format("peer {} {} {} {} {}", key, source.port, kConnectMs, kStallMs, kTotalMs);
  for (std::size_t i = 0; i < std::min(source.addresses.size(), kMostAddresses); ++i) {
    request += " " + source.addresses[i];
  }
  return request + "\n";
}

Error AgentLink::gone(std::string what) {
  using namespace std::chrono_literals;
  auto exit = channel_->wait(Deadline::after(2s));
  std::string err = trimmed(exit ? exit->err : channel_->standard_error());
  if (err.size() > 500) err = "..." + err.substr(err.size() - 500);
  Error error{std::move(what), ""};
  if (exit && !exit->signal.empty()) error.what += fmt::format(" (killed by SIG{})", exit->signal);
  if (exit && exit->code > 0) error.what += fmt::format(" (exit code {})", exit->code);
  if (!err.empty()) error.what += ": " + err;

  auto says = [&](std::string_view words) { return err.find(words) != std::string::npos; };
  if (says("a password is required") || says("a terminal is required") || says("no tty present")) {
    error.help = "-s needs sudo without a password (NOPASSWD) for this user there";
  } else if (says("No space left")) {
    error.help = "free some space there, or choose another place with --prefix";
  } else if (says("Read-only file system") || (says("Permission denied") && says("mkdir"))) {
    error.help =
        "choose a place that this user may write with --prefix, or work under sudo with -s";
  } else if (says("Permission denied")) {
    error.help = "is the prefix on a file system mounted noexec? choose another with --prefix";
  }
  return error;
}

Result<bool> AgentLink::read_more(Deadline deadline) {
  std::array<char, 64 * 1024> buffer;
  DSI_TRY(std::size_t n, channel_->read(buffer, deadline));
  reader_.feed({buffer.data(), n});
  return n > 0;
}

Result<void> AgentLink::read_noise(Deadline deadline) {
  if (noise_.size() > kMaxNoise) return fail("the login shell there prints without end");
  std::array<char, 64 * 1024> buffer;
  DSI_TRY(std::size_t n, channel_->read(buffer, deadline));
  if (n == 0) {
    if (loader_) return tl::unexpected<Error>(gone("the loader gave up"));
    std::string said = trimmed(noise_);
    return tl::unexpected<Error>(gone(
        said.empty() ? "the host runs no command for this user"
                     : "the host runs no command for this user; it says: " + said.substr(0, 300)));
  }
  noise_.append(buffer.data(), n);
  return {};
}

Result<AgentLink::Greeting> AgentLink::greet(Deadline deadline) {
  const std::string with_agent = std::string(protocol::kGreeting) + nonce_ + "\n";
  const std::string without = "DSI0 " + nonce_ + "\n";
  for (;;) {
    if (std::size_t at = noise_.find(with_agent); at != std::string::npos) {
      reader_.feed(std::string_view(noise_).substr(at + with_agent.size()));
      noise_.clear();
      DSI_TRY(protocol::Message message, receive(deadline));
      DSI_TRY(protocol::Hello hello, protocol::body_as<protocol::Hello>(message));
      if (hello.version != protocol::kVersion) {
        return fail("the agent there speaks version {} of the protocol, this program {}",
                    hello.version, protocol::kVersion);
      }
      // A file with the right name and other bytes: the caller brings the agent anew.
      return Greeting{hello.agent == agent_digest_, hello.facts};
    }
    std::size_t at = noise_.find(without);
    if (at != std::string::npos && noise_.find("\nend=\n", at) != std::string::npos) {
      std::map<std::string, std::string> rows;
      std::string_view rest = std::string_view(noise_).substr(at + without.size());
      while (!rest.empty()) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (std::size_t equals = line.find('='); equals != std::string_view::npos) {
          rows.emplace(line.substr(0, equals), line.substr(equals + 1));
        }
      }
      return Greeting{false, read_facts(rows)};
    }
    DSI_CHECK(read_noise(deadline));
  }
}

Result<AgentLink::LoaderWord> AgentLink::hear_loader(Deadline deadline) {
  const std::string agent = std::string(protocol::kGreeting) + nonce_ + "\n";
  const std::string loader = "\nDSL0 " + nonce_ + " ";
  for (;;) {
    std::size_t at = noise_.find(loader);
    if (at != std::string::npos) {
      std::size_t begin = at + loader.size();
      if (std::size_t end = noise_.find('\n', begin); end != std::string::npos) {
        std::string line = noise_.substr(begin, end - begin);
        // The newline stays: the loader's next line begins with it.
        noise_.erase(0, end);
        loader_ = true;
        if (line == "ready") return LoaderWord{LoaderWord::Kind::kReady, ""};
        constexpr std::string_view kFailed = "failed ";
        if (!line.starts_with(kFailed)) return fail("the loader there says \"{}\"", line);
        std::size_t text = line.find(' ', kFailed.size());
        return LoaderWord{LoaderWord::Kind::kFailed,
                          text != std::string::npos ? line.substr(text + 1) : line};
      }
    } else if (noise_.find(agent) != std::string::npos) {
      return LoaderWord{LoaderWord::Kind::kAgent, ""};
    }
    DSI_CHECK(read_noise(deadline));
  }
}

Result<void> AgentLink::send_raw(std::string_view bytes, Deadline deadline) {
  auto written = channel_->write(bytes, deadline);
  if (!written) return written;
  bytes_sent_ += bytes.size();
  return {};
}

Result<void> AgentLink::send(std::string_view type, nlohmann::json body, Deadline deadline) {
  return send_raw(protocol::json_frame(type, std::move(body)), deadline);
}

Result<void> AgentLink::send_data(std::string_view bytes, Deadline deadline) {
  return send_raw(protocol::data_frame(bytes), deadline);
}

Result<protocol::Message> AgentLink::receive(Deadline deadline) {
  protocol::Frame frame;
  for (;;) {
    DSI_TRY(bool complete, reader_.next(frame));
    if (complete) return protocol::read_message(frame);
    DSI_TRY(bool more, read_more(deadline));
    if (!more) return tl::unexpected<Error>(gone("the agent ended in the middle of its work"));
  }
}

Result<std::optional<protocol::Message>> AgentLink::poll(int wake, Deadline deadline) {
  protocol::Frame frame;
  for (;;) {
    DSI_TRY(bool complete, reader_.next(frame));
    if (complete) return protocol::read_message(frame);
    DSI_TRY(bool readable, channel_->readable(wake, deadline));
    if (!readable) return std::nullopt;
    DSI_TRY(bool more, read_more(deadline));
    if (!more) return tl::unexpected<Error>(gone("the agent ended in the middle of its work"));
  }
}

}  // namespace dsi
