#pragma once

// What a release is: the text of manifest.json, from which the release's id follows.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

inline constexpr int kManifestSchema = 1;

struct ManifestFile {
  std::string path;    // Relative to the release, '/'-separated, no empty, "." or ".." part.
  std::uint32_t mode;  // 0644 or 0755.
  std::uint64_t size;  // Bytes.
  std::string sha256;  // Of the content, 64 lower-case hexadecimal digits.
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct ManifestOp {
  std::string name;        // "cpu_adam"
  std::string capability;  // "op.cpu_adam"
  std::string library;     // Path of its shared object in the release: "lib/libds_cpu_adam.so".
  std::string description;
  std::vector<std::string> devices;  // "cpu", "cuda".
  // Highest symbol versions its files need, read from the ELF: {"GLIBC": "2.34", "GLIBCXX": ...}.
  std::map<std::string, std::string> needs_symbols;
  std::vector<std::string> needs_libraries;  // DT_NEEDED, in the file's order.
  // Read from its fatbins: "8.0", "9.0", "9.0a", "9.0+PTX". Empty: no device code, or not known.
  std::vector<std::string> compute_capabilities;
  // Level of x86-64 below which it does not load, read from the ELF: 2 to 4. 0: none is said.
  int isa_level = 0;
  // Why it is not in the bundle (`--keep-going`); then `library` is empty.
  std::string not_built;
  friend bool operator==(const ManifestOp&, const ManifestOp&) = default;
};

// A compiled module inside a wheel.
struct ManifestModule {
  std::string name;  // What Python imports: "deepspeed.ops.adam.cpu_adam_op".
  std::string op;    // "cpu_adam"; where the package knows no ops, the module's name.
  std::map<std::string, std::string> needs_symbols;  // As in ManifestOp.
  std::vector<std::string> needs_libraries;          // As in ManifestOp.
  std::vector<std::string> compute_capabilities;     // As in ManifestOp.
  friend bool operator==(const ManifestModule&, const ManifestModule&) = default;
};

// A Python package, installed from its wheel by the pip of each host.
struct ManifestPackage {
  std::string name;                       // Normalised as in PEP 503: "deepspeed".
  std::string version;                    // As METADATA has it: "0.19.6+cu130".
  std::string wheel;                      // Path in the release: "wheels/deepspeed-….whl".
  std::vector<std::string> dependencies;  // Paths of the wheels that go with it; sorted.
  std::vector<std::string> tags;          // Of the wheel, one each: "cp311-cp311-linux_x86_64".
  std::string torch;                      // What it was compiled with; empty: it uses no torch.
  std::string torch_cuda;                 // That torch's CUDA: "13.0"; empty: none.
  // Lowest level of processor for which its code was compiled: "x86-64-v3". Empty: any, or unknown.
  std::string cpu_level;
  std::vector<std::string> requires_dist;  // METADATA's Requires-Dist lines, markers and all.
  std::vector<ManifestModule> modules;     // Sorted by name, no two alike.
  // Highest symbol versions of every shared object in the wheel, those that are no modules too.
  std::map<std::string, std::string> needs_symbols;
  friend bool operator==(const ManifestPackage&, const ManifestPackage&) = default;
};

struct Manifest {
  std::vector<ManifestFile> files;  // Sorted by path, no two alike.
  std::vector<ManifestOp> ops;      // Sorted by name.
  // Sorted by name, no two alike. A release has ops or packages, never both.
  std::vector<ManifestPackage> packages;
  // What the build saw, for people and for the checks on a node: "torch", "torch_cxx11_abi",
  // "torch_cuda" (that torch's; absent: it has none), "cuda" (the toolkit; absent: no op has code
  // for devices), "compiler", "arch" (x86_64), "sources", "ds_install", ...
  std::map<std::string, std::string> built_with;

  // The canonical text: the same value gives the same bytes.
  std::string to_json() const;

  // Checks everything the comments above promise; the text may come from anywhere.
  static Result<Manifest> parse(std::string_view json);

  const ManifestFile* find(std::string_view path) const;
};

// The release's id: the first 16 hexadecimal digits of the SHA-256 of the manifest's text.
std::string release_id(std::string_view manifest_json);

// True if `path` stays inside the folder it is put in: relative, '/'-separated, no empty, "." or
// ".." part, no NUL or control character, at most 1,024 bytes.
bool is_safe_relative_path(std::string_view path);

// A distribution's name as PEP 503 normalises it: "Foo._Bar" is "foo-bar".
std::string normalised_package_name(std::string_view name);

}  // namespace dsi
