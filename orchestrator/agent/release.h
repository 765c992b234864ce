#pragma once

// One release on this node: is it what its manifest says?

#include <string>
#include <vector>

#include "orchestrator/agent/folder.h"
#include "orchestrator/manifest.h"

namespace dsi::agent {

inline constexpr char kManifestName[] = "manifest.json";

struct Damage {
  std::string path;  // In the release.
  std::string text;  // "lib/libds_x.so is empty; the release has 123,456 bytes"
};

// What a release's text must promise beyond Manifest::parse for it to be built on a node: no file
// where another file's folder has to be, none that takes the manifest's place, a sum that fits.
Result<Manifest> parse_release(const std::string& text);

// True for the name of a release's folder: 16 lower-case hexadecimal digits.
bool is_release_id(std::string_view name);

// The folder of `path` in `root`, and the last part of `path`. With `make`, missing folders are
// made, and what is no folder gives way to one.
struct Place {
  Folder folder;
  std::string name;
};
Result<Place> place_of(const Folder& root, const std::string& path, bool make);

// Reads every byte: type, mode, size, SHA-256 of each file, and the manifest's text against `text`.
// Files that the manifest does not list are nobody's business. Empty: all is well.
std::vector<Damage> find_damage(const Folder& release, const Manifest& manifest,
                                const std::string& text);

// The text of the manifest of release `id`, if it still is what gave the release its id.
Result<std::string> manifest_text(const Folder& release, const std::string& id);

// 1234567 → "1,234,567".
std::string with_commas(std::uint64_t number);

}  // namespace dsi::agent
