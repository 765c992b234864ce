#include "orchestrator/agent/release.h"

#include <fcntl.h>

#include <optional>
#include <set>

namespace dsi::agent {

std::string with_commas(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

bool is_release_id(std::string_view name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Result<Manifest> parse_release(const std::string& text) {
  DSI_TRY(Manifest manifest, Manifest::parse(text));
  std::set<std::string_view> paths{kManifestName};
  for (const ManifestFile& file : manifest.files) paths.insert(file.path);
  std::uint64_t sum = 0;
  for (const ManifestFile& file : manifest.files) {
    if (file.path == kManifestName) {
      return fail("the manifest lists {}, which the agent writes itself", file.path);
    }
    for (std::size_t slash = file.path.find('/'); slash != std::string::npos;
         slash = file.path.find('/', slash + 1)) {
      std::string_view parent = std::string_view(file.path).substr(0, slash);
      if (paths.contains(parent)) return fail("{} is both a file and a folder", parent);
    }
    if (__builtin_add_overflow(sum, file.size, &sum)) return fail("the sizes have no sum");
  }
  return manifest;
}

Result<Place> place_of(const Folder& root, const std::string& path, bool make) {
  DSI_TRY(Folder folder, root.again());
  std::string_view rest = path;
  for (;;) {
    std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos) return Place{std::move(folder), std::string(rest)};
    std::string part(rest.substr(0, slash));
    struct stat there {};
    if (make && folder.status(part, there) && !S_ISDIR(there.st_mode)) {
      DSI_CHECK(folder.remove(part));
    }
    DSI_TRY(Folder inner, make ? folder.make_folder(part) : folder.folder(part));
    folder = std::move(inner);
    rest.remove_prefix(slash + 1);
  }
}

namespace {

std::optional<std::string> check_file(const Folder& release, const ManifestFile& file) {
  auto place = place_of(release, file.path, false);
  if (!place) return place.error().what;
  struct stat status {};
  if (!place->folder.status(place->name, status)) return "is missing";
  if (!S_ISREG(status.st_mode)) return "is no regular file";
  auto size = static_cast<std::uint64_t>(status.st_size);
  if (size != file.size) {
    return fmt::format("{}; the release has {} bytes",
                       size == 0 ? "is empty" : fmt::format("has {} bytes", with_commas(size)),
                       with_commas(file.size));
  }
  if ((status.st_mode & 07777) != file.mode) {
    return fmt::format("has mode {:04o}; the release has {:04o}", status.st_mode & 07777,
                       file.mode);
  }
  auto fd = place->folder.open_file(place->name);
  if (!fd) return "cannot be read: " + fd.error().what;
  auto digest = sha256_of(fd->get(), file.path);
  if (!digest) return "cannot be read: " + digest.error().what;
  if (*digest != file.sha256) return "is altered: its SHA-256 is not the release's";
  return std::nullopt;
}

}  // namespace

std::vector<Damage> find_damage(const Folder& release, const Manifest& manifest,
                                const std::string& text) {
  std::vector<Damage> found;
  auto there = release.read_file(kManifestName);
  if (!there || *there != text) {
    found.push_back({kManifestName, fmt::format("{} is {}", kManifestName,
                                                there ? "altered" : "missing or unreadable")});
  }
  for (const ManifestFile& file : manifest.files) {
    if (auto fault = check_file(release, file)) {
      found.push_back({file.path, fmt::format("{} {}", file.path, *fault)});
    }
  }
  return found;
}

Result<std::string> manifest_text(const Folder& release, const std::string& id) {
  DSI_TRY(std::string text, release.read_file(kManifestName));
  if (release_id(text) != id) {
    return fail_with_help(fmt::format("{} is altered", release.path_of(kManifestName)),
                          "install the release again: that repairs it");
  }
  return text;
}

}  // namespace dsi::agent
