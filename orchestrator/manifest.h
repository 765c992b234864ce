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
  // Why it is not in the bundle (`--keep-going`); then `library` is empty.
  std::string not_built;
  friend bool operator==(const ManifestOp&, const ManifestOp&) = default;
};

struct Manifest {
  std::vector<ManifestFile> files;  // Sorted by path, no two alike.
  std::vector<ManifestOp> ops;      // Sorted by name.
  // What the build saw, for people and for the checks on a node: "torch", "torch_cxx11_abi",
  // "compiler", "cuda", "arch" (x86_64), "source", "ds_install", ...
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

}  // namespace dsi
