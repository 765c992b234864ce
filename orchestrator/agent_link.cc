#include "orchestrator/agent_link.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <map>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/elf.h"

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
  if (const std::string hold = get("hold"); !hold.empty()) {
    facts.held = protocol::to_text(protocol::parse_hold(hold));
  }
  return facts;
}

// By libarchive, which is here for bundles.
Result<std::string> gzip(std::string_view data) {
  std::string packed(data.size() + 4096, '\0');
  std::size_t used = 0;
  std::unique_ptr<archive, int (*)(archive*)> writer(::archive_write_new(), ::archive_write_free);
  std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(::archive_entry_new(),
                                                                 ::archive_entry_free);
  if (!writer || !entry) return fail("no memory to compress the loader");
  ::archive_entry_set_filetype(entry.get(), AE_IFREG);
  bool done = ::archive_write_set_format_raw(writer.get()) == ARCHIVE_OK &&
              ::archive_write_add_filter_gzip(writer.get()) == ARCHIVE_OK &&
              ::archive_write_set_options(
                  writer.get(), "gzip:compression-level=9,gzip:timestamp=") == ARCHIVE_OK &&
              // No padding at the end.
              ::archive_write_set_bytes_in_last_block(writer.get(), 1) == ARCHIVE_OK &&
              ::archive_write_open_memory(writer.get(), packed.data(), packed.size(), &used) ==
                  ARCHIVE_OK &&
              ::archive_write_header(writer.get(), entry.get()) == ARCHIVE_OK &&
              ::archive_write_data(writer.get(), data.data(), data.size()) ==
                  static_cast<la_ssize_t>(data.size()) &&
              ::archive_write_close(writer.get()) == ARCHIVE_OK;
  if (!done) {
    const char* why = ::archive_error_string(writer.get());
    return fail("cannot compress the loader: {}", why != nullptr ? why : "libarchive says no more");
  }
  packed.resize(used);
  return packed;
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
      DSI_TRY(read.packed_loader, gzip(read.loader));
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

Result<FactsProgram> FactsProgram::load(const std::filesystem::path& file) {
  FactsProgram program;
  DSI_TRY(program.bytes, read_file(file));
  program.digest = sha256_hex(program.bytes);
  DSI_TRY(ElfNeeds needs, read_elf_needs(file));
  program.arch = needs.machine;
  return program;
}

namespace {

// Makes the folder $w, in which a program may run and which goes with this shell; $w stays empty
// where there is none. A file of one line that is no ELF is run by the shell itself, but not where
// programs may not run: so a folder is tried before anything is put there.
std::string make_own_folder(const AgentStart& start) {
  return fmt::format(
      "w=; c() {{ test -z \"$w\" || rm -rf \"$w\"; w=; }}; trap c 0 1 2 13 15; "
      "for d in \"$TMPDIR\" /tmp /dev/shm /var/tmp \"$XDG_RUNTIME_DIR\" \"$HOME\" /run; do "
      "test -d \"$d\" || continue; w=\"$d/.ds-look-{0}\"; "
      "mkdir -m 700 \"$w\" 2>/dev/null || {{ w=; continue; }}; "
      "if (echo : >\"$w/x\" && chmod 700 \"$w/x\" && \"$w/x\") 2>/dev/null; then break; fi; "
      "c; done; ",
      start.nonce);
}

// A program of another architecture is never tried: some shells would read it as a script.
std::string look_by_facts(const AgentStart& start, const FactsProgram& facts,
                          const std::vector<std::string>& torch_folders) {
  std::string words = fmt::format("{} \"$p\"", start.nonce);
  for (const std::string& folder : torch_folders) {
    if (!folder.empty() && is_safe_prefix(folder)) words += fmt::format(" \"{}\"", folder);
  }
  // What a full disk does not take is read all the same, lest it be taken for a request.
  return fmt::format("if test \"$(uname -m)\" = {}; then ", facts.arch) + make_own_folder(start) +
         fmt::format(
             "if test -z \"$w\"; then echo; echo \"DSF1 {0} none\"; else "
             "f=\"$w/f\"; echo; echo \"DSF0 {0} need\"; "
             "head -c {1} | {{ cat >\"$f\" || cat >/dev/null; }}; chmod 700 \"$f\"; "
             "\"$f\" {2} 2>/dev/null || {{ echo; echo \"DSF1 {0} failed\"; }}; fi; "
             "c; trap - 0 1 2 13 15; else echo; echo \"DSF1 {0} other\"; fi; ",
             start.nonce, facts.bytes.size(), words);
}

}  // namespace

std::string look_command(const AgentStart& start, const AgentBinary& agent,
                         const FactsProgram* facts, const std::vector<std::string>& torch_folders) {
  // The agent is tried with --help first: after `exec` of a file that a full disk or a noexec
  // mount broke there would be nobody left to say so.
  return through_login_shell(
      start, set_prefix(start) +
                 fmt::format("a=\"$p/store/{0}.x\"; "
                             "if test -x \"$a\" && \"$a\" --help >/dev/null 2>&1; "
                             "then exec \"$a\" serve {1} \"$p\"; fi; ",
                             agent.digest(), start.nonce) +
                 (facts != nullptr ? look_by_facts(start, *facts, torch_folders) : std::string()) +
                 fmt::format("echo; echo \"DSI0 {0}\"; "
                             "echo \"arch=$(uname -m)\"; echo \"kernel=$(uname -r)\"; "
                             "echo \"host=$(uname -n)\"; echo \"uid=$(id -u)\"; "
                             "echo \"user=$(id -un 2>/dev/null)\"; echo \"prefix=$p\"; "
                             "echo \"current=$(readlink \"$p/current\" 2>/dev/null)\"; "
                             "if test -e \"$p/hold.json\"; then echo "
                             "\"hold=$(head -n 1 \"$p/hold.json\" 2>/dev/null || echo ?)\"; fi; "
                             "echo \"gzip=$(command -v gzip)\"; echo end=",
                             start.nonce));
}

const std::string& loader_for(const AgentStart& start, const AgentBinary::Wire& wire) {
  return start.gzip && !wire.packed_loader.empty() ? wire.packed_loader : wire.loader;
}

std::string bring_command(const AgentStart& start, const AgentBinary& agent,
                          const AgentBinary::Wire& wire, AgentPlace place) {
  const std::string& loader = loader_for(start, wire);
  std::string take = fmt::format("head -c {}", loader.size());
  if (&loader == &wire.packed_loader) take += " | gzip -dc";
  const std::string load = fmt::format("\"$t\" load {} {} {} {} \"$p\" \"$w\"", agent.digest(),
                                       agent.bytes().size(), wire.compressed.size(), start.nonce);
  // Tried without a word first: after `exec` of a file that a full disk or a noexec mount broke
  // there would be nobody left to say so and to remove it.
  const std::string try_it = take +
                             " >\"$t\" || x 91; chmod 755 \"$t\" || x 91; "
                             "\"$t\" || x 92; ";
  std::string script = set_prefix(start) + "umask 022; ";
  if (place == AgentPlace::kOwnFolder) {
    // This shell stays, and removes the folder when the agent has left, however it left.
    script += make_own_folder(start) + "test -n \"$w\" || exit 93; t=\"$w/f\"; x() { exit $1; }; " +
              try_it + load + "; exit $?";
  } else {
    // Its name is this run's own, because hosts may share the prefix; the loader removes it.
    script += fmt::format(
                  "w=\"$p/store\"; mkdir -p \"$w\" || exit 90; t=\"$w/{}.upload\"; "
                  "x() {{ rm -f \"$t\"; exit $1; }}; ",
                  start.nonce) +
              try_it + "exec " + load;
  }
  return through_login_shell(start, script);
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
      return Greeting{hello.agent == agent_digest_, hello.facts, false};
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
      return Greeting{false, read_facts(rows), !rows["gzip"].empty()};
    }
    DSI_CHECK(read_noise(deadline));
  }
}

Result<std::optional<NodeFacts>> AgentLink::hear_facts(const FactsProgram& program,
                                                       Deadline deadline) {
  const std::string agent = std::string(protocol::kGreeting) + nonce_ + "\n";
  const std::string need = "\nDSF0 " + nonce_ + " need\n";
  const std::string said = "\nDSF1 " + nonce_ + " ";
  using Clock = std::chrono::system_clock;
  auto asked = Clock::now();
  for (bool sent = false;;) {
    if (!sent && noise_.find(need) != std::string::npos) {
      sent = true;
      asked = Clock::now();
      DSI_CHECK(send_raw(program.bytes, deadline));
    }
    std::size_t at = noise_.find(said);
    std::size_t begin = at + said.size();
    std::size_t end = at == std::string::npos ? at : noise_.find('\n', begin);
    if (end == std::string::npos) {
      if (at == std::string::npos && noise_.find(agent) != std::string::npos) return std::nullopt;
      DSI_CHECK(read_noise(deadline));
      continue;
    }
    auto answered = Clock::now();
    std::string line = noise_.substr(begin, end - begin);
    // The newline stays: what comes next begins with it.
    noise_.erase(0, end);
    NodeFacts unknown;
    if (line == "none") {
      unknown.unknown_because = "there is no folder in which a program may run";
    } else if (line == "other") {
      unknown.unknown_because = "ds-facts is for " + program.arch;
    } else if (line == "failed") {
      unknown.unknown_because = "ds-facts does not run there";
    } else {
      return read_answer(line, asked, answered);
    }
    return unknown;
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
