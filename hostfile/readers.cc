#include "hostfile/readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hostfile/diagnostic.h"
#include "hostfile/keys.h"
#include "hostfile/line_scanner.h"

namespace dsi {
namespace {

// Joins what stands in the name (user@host:4) with what the keys say.
bool apply(LineScanner& scanner, const Spec& spec, const Settings& settings, Host& host) {
  if (!spec.user.empty() && !settings.user.empty() && spec.user != settings.user) {
    return scanner.error(spec.offset, fmt::format("two users, {} and {}", in_quotes(spec.user),
                                                  in_quotes(settings.user)));
  }
  if (spec.port != 0 && settings.port != 0 && spec.port != settings.port) {
    return scanner.error(spec.offset,
                         fmt::format("two ports, {} and {}", spec.port, settings.port));
  }
  if (spec.slots != 0 && settings.slots != 0 && spec.slots != settings.slots) {
    return scanner.error(spec.offset,
                         fmt::format("two numbers of slots, {} and {}", spec.slots, settings.slots),
                         "`:n` behind a name are slots; write a port as port=n");
  }
  host.user = spec.user.empty() ? settings.user : spec.user;
  host.port = static_cast<std::uint16_t>(spec.port != 0 ? spec.port : settings.port);
  host.slots = spec.slots != 0 ? spec.slots : settings.slots;
  host.max_slots = settings.max_slots;
  if (host.max_slots != 0 && host.max_slots < host.slots) {
    return scanner.error(
        spec.offset, fmt::format("max_slots={} is less than slots={}", host.max_slots, host.slots));
  }
  return true;
}

bool claims_everything(std::string_view) {
  return true;
}

// DeepSpeed, Open MPI, Hydra, Intel MPI, Slurm, pdsh, PBS: names, then keys.
void read_host_line(const SourceLine& line, std::size_t file, Collector& out) {
  LineScanner scanner(line, file, out);
  scanner.skip_blanks_to_end();
  std::vector<Spec> specs;
  if (!scanner.read_items(Colon::kSlots, false, specs)) return;
  const bool has_keys = !scanner.skip_blanks_to_end();
  const std::size_t keys_at = scanner.at();
  Settings settings;
  if (!scanner.read_settings(settings)) return;
  if (has_keys && specs.empty()) {
    scanner.error(keys_at, "keys without a host",
                  "an included file says by itself what its hosts are like");
    return;
  }
  const bool bare = specs.size() == 1 && specs[0].is_bare && !has_keys;
  for (Spec& spec : specs) {
    Host host;
    if (!apply(scanner, spec, settings, host)) return;
    for (std::string& name : spec.names) {
      host.name = std::move(name);
      out.host(host, scanner.place(spec.offset), bare ? Again::kAddsASlot : Again::kIsAnError);
    }
  }
}

// Behind "rank", blanks, a number and `=`: the offset of that number and of what follows.
struct RankPrefix {
  std::size_t number = 0;
  std::size_t number_end = 0;
  std::size_t host = 0;
};

std::optional<RankPrefix> find_rank_prefix(std::string_view line) {
  std::size_t at = std::min(line.find_first_not_of(" \t"), line.size());
  if (normalized(line.substr(at, 4)) != "rank") return std::nullopt;
  auto skip = [&](std::string_view set) {
    std::size_t before = at;
    at = std::min(line.find_first_not_of(set, at), line.size());
    return at > before;
  };
  RankPrefix prefix;
  at += 4;
  if (!skip(" \t")) return std::nullopt;
  prefix.number = at;
  if (!skip("0123456789")) return std::nullopt;
  prefix.number_end = at;
  skip(" \t");
  if (at == line.size() || line[at] != '=') return std::nullopt;
  ++at;
  skip(" \t");
  prefix.host = at;
  return prefix;
}

bool claims_rank(std::string_view line) {
  return find_rank_prefix(line).has_value();
}

// Open MPI's rankfile: `rank 0=node01 slot=0:0-3`. Each line is one process.
void read_rank_line(const SourceLine& line, std::size_t file, Collector& out) {
  LineScanner scanner(line, file, out);
  const RankPrefix prefix = *find_rank_prefix(line.text);
  std::string_view number = line.text.substr(prefix.number, prefix.number_end - prefix.number);
  scanner.skip(prefix.host);
  std::vector<Spec> specs;
  if (!scanner.read_items(Colon::kSlots, false, specs)) return;
  if (specs.size() != 1 || specs[0].names.size() != 1 || !specs[0].is_bare) {
    scanner.error(prefix.host, "a rank has one host", "write it as: rank 0=node01 slot=0");
    return;
  }
  while (!scanner.skip_blanks_to_end()) {
    std::string_view key, value;
    std::size_t key_at = 0, value_at = 0;
    if (!scanner.read_setting(key, key_at, value, value_at)) return;
    // Here a slot is a place on the host, not a number of them.
    std::string name = normalized(key);
    if (name != "slot" && name != "slots") scanner.warn_unknown_key(key, key_at);
  }
  if (!out.first_time(file, fmt::format("rank {}", number))) {
    scanner.error(prefix.number, fmt::format("rank {} is given a second time", number));
    return;
  }
  Host host;
  host.name = specs[0].names[0];
  host.user = specs[0].user;
  host.port = static_cast<std::uint16_t>(specs[0].port);
  host.slots = 1;
  out.host(std::move(host), scanner.place(specs[0].offset), Again::kAddsASlot);
}

constexpr auto kReaders = std::to_array<Reader>({
    {"Open MPI rankfile", claims_rank, read_rank_line},
    {"host line", claims_everything, read_host_line},
});

}  // namespace

std::span<const Reader> hostfile_readers() {
  return kReaders;
}

void read_host_list_line(const SourceLine& line, std::size_t file, Collector& out) {
  LineScanner scanner(line, file, out);
  while (!scanner.skip_blanks_to_end()) {
    std::vector<Spec> specs;
    scanner.read_items(Colon::kPort, true, specs);
    for (Spec& spec : specs) {
      for (std::string& name : spec.names) {
        Host host;
        host.name = std::move(name);
        host.user = spec.user;
        host.port = static_cast<std::uint16_t>(spec.port);
        out.host(std::move(host), scanner.place(spec.offset), Again::kIsTheSame);
      }
    }
    if (out.full()) return;
  }
}

}  // namespace dsi
