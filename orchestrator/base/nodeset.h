#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

// Longer names are refused: DNS ends at 253, and the bound keeps `limit` names small in memory.
inline constexpr std::size_t kMaxNameLength = 255;

// Expands `node[01-03,07],login` to node01, node02, node03, node07, login. Zero padding is kept,
// several brackets in one name multiply (rack[1-2]n[1-2]), and commas outside brackets separate
// names. Stops with an error before more than `limit` names are made. Empty text: no names. The
// names are not checked otherwise: any byte but `[`, `]` and `,` may be part of one.
Result<std::vector<std::string>> expand_nodeset(std::string_view text, std::size_t limit = 100'000);

// The same for callers that point at the place: `offset` is the byte of `text` that is wrong.
struct NodesetError {
  std::size_t offset = 0;
  Error error;
};
tl::expected<std::vector<std::string>, NodesetError> expand_nodeset_at(std::string_view text,
                                                                       std::size_t limit = 100'000);

// The inverse, for people: node01 node02 node03 login → `login,node[01-03]`. Sorted with numbers in
// numeric order, duplicates removed. A name whose only number stands elsewhere folds there too
// (rack1n1, rack1n2 → rack1n[1-2]); a name that nothing shares is left as it is. Expanding the
// result gives the same names back, unless one holds a bracket or comma or is too long. IPv6
// addresses are never folded: their digits are hexadecimal.
std::string fold_nodeset(const std::vector<std::string>& names);

}  // namespace dsi
