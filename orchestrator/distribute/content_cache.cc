#include "orchestrator/distribute/content_cache.h"

#include <algorithm>
#include <vector>

#include "orchestrator/base/sha256.h"

namespace dsi::distribute {

namespace fs = std::filesystem;

Result<void> ContentCache::keep(const Payload& payload) {
  std::error_code error;
  fs::create_directories(folder_, error);
  for (const auto& [digest, source] : payload.content) {
    fs::path kept = folder_ / digest;
    // A cache is no place to wait for the disk: what a crash leaves half written is found out by
    // its digest in find(). A link would change with its source, and the cache of builds is no
    // archive; the copy shares blocks where the file system can.
    if (!fs::exists(kept, error)) {
      fs::path partial = folder_ / (digest + ".partial");
      if (!fs::copy_file(source, partial, fs::copy_options::overwrite_existing, error) || error) {
        return fail("cannot keep {} in {}: {}", source.string(), folder_.string(), error.message());
      }
      fs::rename(partial, kept, error);
    }
    fs::last_write_time(kept, fs::file_time_type::clock::now(), error);
  }
  struct Kept {
    fs::file_time_type used;
    std::uint64_t size;
    fs::path path;
  };
  std::vector<Kept> all;
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    std::error_code unread;
    std::uint64_t size = entry.file_size(unread);
    if (unread) continue;
    all.push_back({entry.last_write_time(unread), size, entry.path()});
    bytes += size;
  }
  std::sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  for (const Kept& old : all) {
    if (bytes <= most_bytes_) break;
    if (payload.content.contains(old.path.filename().string())) continue;
    if (fs::remove(old.path, error)) bytes -= old.size;
  }
  return {};
}

std::optional<fs::path> ContentCache::find(const std::string& digest) const {
  fs::path path = folder_ / digest;
  auto found = sha256_file(path);
  if (!found || *found != digest) return std::nullopt;
  return path;
}

}  // namespace dsi::distribute
