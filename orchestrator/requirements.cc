#include "orchestrator/requirements.h"

#include <algorithm>
#include <charconv>
#include <set>

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
  std::string list = built_with("compute_capabilities");
  for (std::size_t at = 0; at < list.size();) {
    std::size_t end = std::min(list.find(';', at), list.size());
    if (end > at) build.compute_capabilities.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  std::string isa = built_with("isa_level");
  std::from_chars(isa.data(), isa.data() + isa.size(), build.isa_level);
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
                         op.needs_libraries, op.devices});
  }
  return build;
}

namespace {

struct Capability {
  int major = 0;
  int minor = 0;
  bool exact = false;  // "9.0a": runs on this one only.
  bool ptx = false;
};

bool read_capability(std::string_view text, Capability& out) {
  constexpr std::string_view kPtx = "+PTX";
  if (text.ends_with(kPtx)) {
    out.ptx = true;
    text.remove_suffix(kPtx.size());
  }
  const char* end = text.data() + text.size();
  auto [dot, bad] = std::from_chars(text.data(), end, out.major);
  if (bad != std::errc() || dot == end || *dot != '.') return false;
  auto [rest, bad_minor] = std::from_chars(dot + 1, end, out.minor);
  if (bad_minor != std::errc()) return false;
  out.exact = rest != end && *rest == 'a';
  return rest == end || (end - rest == 1 && (*rest == 'a' || *rest == 'f'));
}

}  // namespace

bool serves(const std::vector<std::string>& built, std::string_view compute_capability) {
  Capability device;
  if (!read_capability(compute_capability, device)) return false;
  return std::any_of(built.begin(), built.end(), [&](const std::string& text) {
    Capability code;
    if (!read_capability(text, code)) return false;
    bool same = code.major == device.major && code.minor == device.minor;
    if (code.exact) return same;
    if (code.major == device.major && code.minor <= device.minor) return true;
    return code.ptx && code.major < device.major;
  });
}

}  // namespace dsi
