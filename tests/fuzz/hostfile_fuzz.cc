// Any bytes as a hostfile, a host list and a node set: no crash, no host that could be an option or
// code, and folding is the inverse of expanding. A broken promise aborts.

#include <arpa/inet.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "hostfile/hostfile.h"
#include "orchestrator/base/nodeset.h"

namespace {

// Not assert(): the promises hold in every build.
#define PROMISE(condition)                                                         \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

constexpr std::string_view kLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";

// Written apart from the library's own check, so that a hole there shows here.
bool is_safe(const std::string& name) {
  if (name.empty() || name.size() > 255 || name[0] == '-' || name[0] == '.') return false;
  std::string letters(kLetters);
  if (name.find(':') != name.npos) letters += ":%";
  return name.find_first_not_of(letters) == name.npos;
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void check_fold(const std::vector<std::string>& names) {
  auto again = dsi::expand_nodeset(dsi::fold_nodeset(names));
  PROMISE(again.has_value());
  PROMISE(sorted(*again) == sorted(names));
}

void check(const dsi::ParsedHosts& parsed, std::string_view text) {
  const auto lines = 1 + std::count(text.begin(), text.end(), '\n');
  for (const dsi::Diagnostic& diagnostic : parsed.diagnostics) {
    if (diagnostic.file != "text") continue;  // The included file's lines are not these.
    PROMISE(diagnostic.line >= 0 && diagnostic.line <= lines);
    PROMISE(diagnostic.line == 0 ? diagnostic.column == 0 : diagnostic.column >= 1);
    PROMISE(!diagnostic.message.empty());
    for (char c : to_string(diagnostic)) PROMISE(c == '\n' || (c >= 0x20 && c < 0x7f));
  }
  PROMISE(parsed.ok() != parsed.hosts.empty());
  std::vector<std::string> names;
  for (const dsi::Host& host : parsed.hosts) {
    PROMISE(is_safe(host.name));
    PROMISE(host.user.empty() || host.user[0] != '-');
    PROMISE(host.user.find_first_not_of(std::string(kLetters) + "@+") == host.user.npos);
    PROMISE(host.slots >= 0 && host.max_slots >= 0);
    names.push_back(host.name);
  }
  if (names.size() <= 2000) check_fold(names);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 64 * 1024) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // Every include gives a part of the same text: includes in includes, and no file is opened.
  auto include = [&](const std::filesystem::path& path) -> dsi::Result<std::string> {
    if (path.string().size() % 2 == 1) return dsi::fail("does not exist");
    return std::string(text.substr(text.size() / 2));
  };
  check(dsi::parse_hostfile(text, "text", include), text);
  check(dsi::parse_host_list(text, "text", include), text);

  if (auto names = dsi::expand_nodeset(text, 2000)) {
    PROMISE(names->size() <= 2000);
    bool foldable =
        std::all_of(names->begin(), names->end(), [](const std::string& n) { return !n.empty(); });
    if (foldable && !names->empty()) check_fold(*names);
  }
  return 0;
}
