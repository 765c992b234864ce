#include "orchestrator/agent/ds_report.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "orchestrator/agent/facts.h"
#include "orchestrator/agent/install.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/release.h"
#include "orchestrator/agent/torch.h"

namespace dsi::agent {

using nlohmann::json;
using protocol::HostResult;
using protocol::OpRow;

namespace {

constexpr char kUsage[] =
    "Usage: ds-report [--json] [PREFIX]\n"
    "\n"
    "Loads and tests every installed op on this node, each in a process of its own,\n"
    "and says what works. PREFIX is where the release was installed (default: where\n"
    "this program lies, else /opt/ds-ops for root, ~/.local/share/ds-ops otherwise).\n"
    "\n"
    "  --json      one JSON object a line\n"
    "  -h, --help  this text\n"
    "\n"
    "Exit code: 0 every op is ok, 1 some op is not, 2 wrong usage.\n";

constexpr std::size_t kNameColumns = 23;
constexpr std::size_t kInstalledColumns = 11;

struct Where {
  std::string prefix;
  std::string release;  // Empty: what `current` points to.
};

// <prefix>/releases/<id>/bin/ds-report: the release that this program came with.
std::optional<Where> own_release() {
  char buffer[4096];
  ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  std::string path(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
  std::vector<std::string> parts;
  for (int i = 0; i < 4; ++i) {
    std::size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return std::nullopt;
    parts.push_back(path.substr(slash + 1));
    path.resize(slash);
  }
  if (parts[1] != "bin" || !is_release_id(parts[2]) || parts[3] != "releases" || path.empty()) {
    return std::nullopt;
  }
  return Where{path, parts[2]};
}

class Ink {
 public:
  explicit Ink(bool colours) : colours_(colours) {}
  std::string green(std::string_view text) const { return in("32", text); }
  std::string red(std::string_view text) const { return in("31", text); }

 private:
  std::string in(std::string_view code, std::string_view text) const {
    return colours_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
  }
  bool colours_;
};

void say(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
}

std::string dots(std::size_t used, std::size_t columns) {
  return std::string(used < columns ? columns - used : 1, '.');
}

std::string shm_size() {
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) != 0) return "not mounted";
  // Hundredths of a GiB, rounded.
  const std::uint64_t bytes = std::uint64_t{status.f_blocks} * status.f_frsize;
  const std::uint64_t size = (bytes / 1024 * 100 + (1u << 19)) >> 20;
  return fmt::format("{}.{:02} GB", size / 100, size % 100);
}

// Text from a manifest or a loader goes to a terminal: no control character does.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

void print_text(const HostResult& result, const Manifest& manifest, const protocol::Facts& facts) {
  Ink ink(::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr);
  const std::string rule(50, '-');
  std::map<std::string, int> rows_of;
  for (const OpRow& row : result.ops) ++rows_of[row.op];
  auto name_of = [&](const OpRow& row) {
    return printable(rows_of[row.op] > 1 ? row.op + "/" + row.device : row.op);
  };
  say(rule);
  say("DeepSpeed C++/CUDA extension op report");
  say(rule);
  say(fmt::format("op name {} installed .. compatible", dots(7, kNameColumns)));
  say(rule);
  for (const OpRow& row : result.ops) {
    bool installed = row.status != "damaged" && row.status != "not-built";
    std::string_view word = installed ? "[YES]" : "[NO]";
    std::string name = name_of(row);
    say(fmt::format("{} {} {} {} {}", name, dots(name.size(), kNameColumns),
                    installed ? ink.green(word) : ink.red(word),
                    dots(word.size(), kInstalledColumns),
                    row.status == "ok" ? ink.green("[OKAY]") : ink.red("[NO]")));
  }
  say(rule);
  bool any = false;
  for (const OpRow& row : result.ops) {
    if (row.status == "ok") continue;
    any = true;
    say(printable(fmt::format("{} on {}: {}{}{}", row.op, row.device, row.status,
                              row.detail.empty() ? "" : ": ", row.detail)));
  }
  if (!result.error.what.empty()) {
    any = true;
    say(printable(result.error.what));
  }
  if (any) say(rule);

  say("DeepSpeed general environment info:");
  auto line = [](std::string_view key, std::string_view value) {
    say(fmt::format("{} {} {}", key, dots(key.size(), kNameColumns),
                    printable(std::string(value))));
  };
  Torch torch = find_torch({});
  line("torch install path", torch.folder.empty() ? "not found" : torch.folder);
  line("torch version", torch.version.empty() ? "unknown" : torch.version);
  for (const auto& [key, value] : manifest.built_with) line("built with " + key, value);
  line("release", result.to);
  line("prefix", facts.prefix);
  line("host name", facts.host_name);
  line("kernel", facts.kernel);
  line("shared memory size", shm_size());
}

void print_json(const HostResult& result, const Manifest& manifest, const protocol::Facts& facts,
                int exit_code) {
  auto row = [](const json& object) {
    say(object.dump(-1, ' ', false, json::error_handler_t::replace));
  };
  row({{"type", "version"}, {"version", 1}});
  json host = {{"type", "host"},
               {"host", facts.host_name},
               {"result", result.result},
               {"release", result.to},
               {"prefix", facts.prefix},
               {"kernel", facts.kernel},
               {"built_with", manifest.built_with}};
  if (!result.error.what.empty()) {
    host["error"] = {{"what", result.error.what}, {"help", result.error.help}};
  }
  row(host);
  std::size_t ok = 0;
  for (const OpRow& op : result.ops) {
    ok += op.status == "ok" ? 1 : 0;
    row({{"type", "op"},
         {"host", facts.host_name},
         {"op", op.op},
         {"status", op.status},
         {"device", op.device},
         {"detail", op.detail}});
  }
  row({{"type", "summary"},
       {"exit_code", exit_code},
       {"ok", ok},
       {"not_ok", result.ops.size() - ok}});
}

Manifest manifest_of(const Where& where) {
  auto read = [&]() -> Result<Manifest> {
    DSI_TRY(Folder release, Folder::open(where.prefix + "/releases/" + where.release));
    DSI_TRY(std::string text, manifest_text(release, where.release));
    return parse_release(text);
  };
  return read().value_or(Manifest{});
}

}  // namespace

int ds_report(const std::vector<std::string>& arguments) {
  bool as_json = false;
  std::string given;
  for (const std::string& argument : arguments) {
    if (argument == "--json") {
      as_json = true;
    } else if (argument == "-h" || argument == "--help") {
      std::fputs(kUsage, stdout);
      return 0;
    } else if (argument.starts_with("-") || argument.empty() || !given.empty()) {
      std::fprintf(stderr, "error: ds-report does not know the argument \"%s\"\n%s",
                   argument.c_str(), kUsage);
      return 2;
    } else {
      given = argument;
    }
  }
  Where where;
  if (auto own = own_release(); own && given.empty()) {
    where = *own;
  } else {
    auto prefix = choose_prefix(given);
    if (!prefix) {
      std::fprintf(stderr, "%s\n", to_string(prefix.error()).c_str());
      return 2;
    }
    where = {*prefix, find_releases(*prefix).current};
  }
  HostResult result = report_release(where.prefix, where.release, {});
  bool ok = result.result == "reported" && result.error.what.empty() &&
            std::all_of(result.ops.begin(), result.ops.end(),
                        [](const OpRow& row) { return row.status == "ok"; });
  int exit_code = ok ? 0 : 1;
  Manifest manifest = manifest_of(where);
  protocol::Facts facts = find_facts(where.prefix);
  if (as_json) {
    print_json(result, manifest, facts, exit_code);
  } else if (result.result == "failed") {
    std::fprintf(stderr, "%s\n", to_string(result.error).c_str());
  } else {
    print_text(result, manifest, facts);
  }
  return exit_code;
}

}  // namespace dsi::agent
