#include "orchestrator/agent_link.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <map>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"

namespace dsi {

namespace {

// Noise before the greeting: a message of the day is long, a shell that floods us is a fault.
constexpr std::size_t kMaxNoise = 1u << 20;

Result<std::string> gzip_compress(const std::string& bytes) {
  z_stream stream{};
  constexpr int kGzipWindow = 15 + 16;
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzipWindow, 9, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    return fail("zlib cannot start");
  }
  std::string out(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  // zlib's interface predates const.
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  int code = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (code != Z_STREAM_END) return fail("zlib cannot compress the agent");
  return out;
}

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

Result<AgentBinary> AgentBinary::load(const std::filesystem::path& path) {
  DSI_TRY(std::string bytes, read_file(path));
  std::string digest = sha256_hex(bytes);
  return AgentBinary(std::move(digest), std::move(bytes));
}

Result<std::shared_ptr<const std::string>> AgentBinary::gzip() const {
  std::lock_guard lock(compressed_->mutex);
  if (!compressed_->bytes) {
    DSI_TRY(std::string bytes, gzip_compress(bytes_));
    compressed_->bytes = std::make_shared<const std::string>(std::move(bytes));
  }
  return compressed_->bytes;
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
                                      "command -v gzip >/dev/null 2>&1 && echo gzip=1; echo end=",
                                      agent.digest(), start.nonce));
}

std::string bring_command(const AgentStart& start, const AgentBinary& agent, std::size_t wire_size,
                          bool gzip) {
  // `head -c` takes exactly the binary and leaves the stream to the agent it starts; the head sends
  // nothing more before the greeting, so a `head` that reads ahead does no harm.
  std::string take = fmt::format("head -c {}{}", wire_size, gzip ? " | gzip -dc" : "");
  return through_login_shell(
      start, set_prefix(start) +
                 fmt::format("umask 022; mkdir -p \"$p/store\" || exit 90; "
                             "t=\"$p/store/{1}.upload\"; x() {{ rm -f \"$t\"; exit $1; }}; "
                             "{2} >\"$t\" || x 91; chmod 755 \"$t\" || x 91; "
                             "\"$t\" adopt {0} \"$p/store/{0}.x\" || x 92; "
                             "exec \"$p/store/{0}.x\" serve {1} \"$p\"",
                             agent.digest(), start.nonce, take));
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

Result<AgentLink::Greeting> AgentLink::greet(Deadline deadline) {
  const std::string with_agent = std::string(protocol::kGreeting) + nonce_ + "\n";
  const std::string without = "DSI0 " + nonce_ + "\n";
  std::string text;
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    if (std::size_t at = text.find(with_agent); at != std::string::npos) {
      reader_.feed(std::string_view(text).substr(at + with_agent.size()));
      DSI_TRY(protocol::Message message, receive(deadline));
      DSI_TRY(protocol::Hello hello, protocol::body_as<protocol::Hello>(message));
      if (hello.version != protocol::kVersion) {
        return fail("the agent there speaks version {} of the protocol, this program {}",
                    hello.version, protocol::kVersion);
      }
      // A file with the right name and other bytes: the caller brings the agent anew.
      return Greeting{hello.agent == agent_digest_, true, hello.facts};
    }
    std::size_t at = text.find(without);
    if (at != std::string::npos && text.find("\nend=\n", at) != std::string::npos) {
      std::map<std::string, std::string> rows;
      std::string_view rest = std::string_view(text).substr(at + without.size());
      while (!rest.empty()) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (std::size_t equals = line.find('='); equals != std::string_view::npos) {
          rows.emplace(line.substr(0, equals), line.substr(equals + 1));
        }
      }
      return Greeting{false, rows.contains("gzip"), read_facts(rows)};
    }
    if (text.size() > kMaxNoise) return fail("the login shell there prints without end");
    DSI_TRY(std::size_t n, channel_->read(buffer, deadline));
    if (n == 0) {
      std::string said = trimmed(text);
      return tl::unexpected<Error>(
          gone(said.empty()
                   ? "the host runs no command for this user"
                   : "the host runs no command for this user; it says: " + said.substr(0, 300)));
    }
    text.append(buffer.data(), n);
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
