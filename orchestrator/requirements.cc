#include "orchestrator/requirements.h"

#include <algorithm>
#include <set>

#include "orchestrator/elf.h"

namespace dsi {

Requirements requirements_of(const Manifest& manifest) {
  auto built_with = [&](const char* key) {
    auto at = manifest.built_with.find(key);
    return at != manifest.built_with.end() ? at->second : std::string();
  };
  Requirements build;
  build.arch = built_with("arch");
  build.torch = built_with("torch");
  std::string abi = built_with("torch_cxx11_abi");
  build.torch_abi = abi == "1" ? "cxx11" : abi == "0" ? "old" : "";
  build.torch_cuda = built_with("torch_cuda");
  build.cuda = built_with("cuda");
  // Equal files are kept once.
  std::set<std::string> digests;
  for (const ManifestFile& file : manifest.files) {
    if (digests.insert(file.sha256).second) build.bytes += file.size;
  }
  // The store has each file once more under its digest, as a hard link: no inode, but the folders.
  build.files = digests.size() + 16;
  for (const ManifestOp& op : manifest.ops) {
    if (op.library.empty()) continue;
    auto symbol = [&](const char* family) {
      auto at = op.needs_symbols.find(family);
      return at != op.needs_symbols.end() ? at->second : std::string();
    };
    build.ops.push_back({op.name, symbol("GLIBC"), symbol("GLIBCXX"), symbol("CXXABI"),
                         op.needs_libraries, op.devices, op.compute_capabilities, op.isa_level});
  }
  return build;
}

std::vector<std::string> compute_capabilities_of(const Requirements& build) {
  std::vector<std::string> all;
  for (const OpRequirements& op : build.ops) {
    for (const std::string& one : op.compute_capabilities) {
      if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    }
  }
  std::stable_sort(all.begin(), all.end(), version_less);
  return all;
}

}  // namespace dsi
