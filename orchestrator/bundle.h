#pragma once

// A release as it leaves this machine: a manifest and the files it names. On the wire the files
// travel one by one; for people and for offline use it is one archive (tar + zstd).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/base/sync.h"
#include "orchestrator/manifest.h"

namespace dsi {

// Files to install on hosts, and where they lie here. Immutable once made; thread-safe.
struct Payload {
  Manifest manifest;
  std::string text;  // The manifest's exact bytes.
  std::string id;    // Release id.
  std::map<std::string, std::filesystem::path>
      content;  // SHA-256 → a local file with that content.

  std::uint64_t total_bytes() const;
};

// A file of a release before it is hashed.
struct ReleaseFile {
  std::string path;  // In the release.
  std::filesystem::path source;
  bool executable = false;
};

// Hashes the files and reads what the ops' libraries need. `ops` may leave needs_* empty.
Result<Payload> make_payload(const std::vector<ReleaseFile>& files, std::vector<ManifestOp> ops,
                             std::map<std::string, std::string> built_with,
                             std::vector<ManifestPackage> packages = {});

// All regular files below `folder`, as release files with the same relative paths, sorted.
Result<std::vector<ReleaseFile>> list_files(const std::filesystem::path& folder);

// Deterministic: the same payload gives the same bytes. The file appears whole or not at all.
Result<void> write_bundle(const Payload& payload, const std::filesystem::path& file);

// Unpacks below `cache` (once for each archive) and checks every file against the manifest. The
// archive may come from anywhere: nothing is written that the manifest does not name, and no more
// bytes than it says.
Result<Payload> read_bundle(const std::filesystem::path& file, const std::filesystem::path& cache);

// The files as they go over the wire: each compressed once, however many hosts get it, and kept on
// disk so that memory stays flat. Thread-safe.
class WireFiles {
 public:
  // `folder` is made if needed; what lies there from earlier runs is used again.
  WireFiles(const Payload& payload, std::filesystem::path folder);

  struct Compressed {
    std::filesystem::path path;  // One zstd stream.
    std::uint64_t size = 0;      // Of the file before.
    std::uint64_t wire_size = 0;
  };
  Result<Compressed> get(const std::string& digest);
  // The file as a patch to the file `base`, whose digest is `base_digest`; without a path if that
  // is not worth it.
  Result<Compressed> get(const std::string& digest, const std::string& base_digest,
                         const std::filesystem::path& base);

 private:
  // A lock of its own for each file: hosts that need another file do not wait.
  struct Entry {
    Sync<std::unique_ptr<Compressed>> made;
  };
  using Make = std::function<Result<void>(const std::filesystem::path& source,
                                          const std::filesystem::path& target)>;
  Result<Compressed> get(Entry& entry, const std::string& digest, const std::string& name,
                         const Make& make);
  const Payload& payload_;
  std::filesystem::path folder_;
  std::map<std::string, Entry> entries_;
  // By digest and base.
  Sync<std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>>> patches_;
};

}  // namespace dsi
