#include "hostfile/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace dsi {
namespace {

// A format that only adds keys is a few rows here.
constexpr auto kKeys = std::to_array<Key>({
    // DeepSpeed, Open MPI.
    {"slots", Meaning::kSlots},
    // Open MPI and PRRTE.
    {"cpu", Meaning::kSlots},
    {"count", Meaning::kSlots},
    {"max_slots", Meaning::kMaxSlots},
    {"slots_max", Meaning::kMaxSlots},
    {"max_cpu", Meaning::kMaxSlots},
    {"cpu_max", Meaning::kMaxSlots},
    {"max_count", Meaning::kMaxSlots},
    {"count_max", Meaning::kMaxSlots},
    {"username", Meaning::kUser},
    {"user_name", Meaning::kUser},
    {"port", Meaning::kPort},
    {"boards", Meaning::kPlacement},
    {"sockets", Meaning::kPlacement},
    {"sockets_per_board", Meaning::kPlacement},
    {"cores", Meaning::kPlacement},
    {"cores_per_socket", Meaning::kPlacement},
    // MPICH Hydra.
    {"user", Meaning::kUser},
    {"binding", Meaning::kPlacement},
    // Intel MPI; Hydra knows ifname, too.
    {"ifhn", Meaning::kInterface},
    {"ifname", Meaning::kInterface},
});

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::string normalized(std::string_view key) {
  std::string text(key);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  return text;
}

const Key* find_key(std::string_view name) {
  auto key = std::find_if(kKeys.begin(), kKeys.end(),
                          [text = normalized(name)](const Key& k) { return k.name == text; });
  return key == kKeys.end() ? nullptr : &*key;
}

std::string suggest_key(std::string_view name) {
  if (name.size() < 3 || name.size() > 24) return {};
  std::string text = normalized(name);
  const Key* best = nullptr;
  std::size_t distance = 3;
  for (const Key& key : kKeys) {
    std::size_t d = edit_distance(text, key.name);
    if (d < distance && 2 * d < key.name.size()) {
      best = &key;
      distance = d;
    }
  }
  return best == nullptr ? std::string() : fmt::format("did you mean `{}`?", best->name);
}

}  // namespace dsi
