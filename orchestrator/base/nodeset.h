#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

// Expands `node[01-03,07],login` to node01, node02, node03, node07, login. Zero padding is kept,
// several brackets in one name multiply (rack[1-2]n[1-2]), and commas outside brackets separate
// names. Stops with an error before more than `limit` names are made.
Result<std::vector<std::string>> expand_nodeset(std::string_view text, std::size_t limit = 100'000);

// The inverse, for people: node01 node02 node03 login → `login,node[01-03]`. Sorted with numbers in
// numeric order, duplicates removed. A name whose only number stands elsewhere folds there too
// (rack1n1, rack1n2 → rack1n[1-2]); a name that nothing shares is left as it is.
std::string fold_nodeset(const std::vector<std::string>& names);

}  // namespace dsi
