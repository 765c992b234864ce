#include "orchestrator/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "orchestrator/base/sha256.h"

namespace dsi {

using nlohmann::json;

std::string Manifest::to_json() const {
  json text = {{"schema", kManifestSchema}, {"built_with", built_with}};
  text["files"] = json::array();
  for (const ManifestFile& file : files) {
    text["files"].push_back({{"path", file.path},
                             {"mode", fmt::format("{:04o}", file.mode)},
                             {"size", file.size},
                             {"sha256", file.sha256}});
  }
  text["ops"] = json::array();
  for (const ManifestOp& op : ops) {
    json row = {{"name", op.name},
                {"capability", op.capability},
                {"library", op.library},
                {"description", op.description},
                {"devices", op.devices},
                {"needs_symbols", op.needs_symbols},
                {"needs_libraries", op.needs_libraries}};
    if (!op.not_built.empty()) row["not_built"] = op.not_built;
    text["ops"].push_back(std::move(row));
  }
  // nlohmann::json sorts keys, so the text is canonical. Bytes that are no UTF-8 (a compiler's
  // version line in another locale) must not throw.
  return text.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

namespace {

bool is_digest(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Result<Manifest> from_json(const json& text) {
  Manifest manifest;
  if (int schema = text.at("schema").get<int>(); schema != kManifestSchema) {
    return fail_with_help(
        fmt::format("the manifest has schema {}; this program reads {}", schema, kManifestSchema),
        "use the ds-install that made the bundle, or make the bundle again");
  }
  text.at("built_with").get_to(manifest.built_with);
  for (const json& row : text.at("files")) {
    ManifestFile file;
    row.at("path").get_to(file.path);
    row.at("size").get_to(file.size);
    row.at("sha256").get_to(file.sha256);
    std::string mode = row.at("mode").get<std::string>();
    if (mode != "0644" && mode != "0755") return fail("{} has mode {}", file.path, mode);
    file.mode = mode == "0755" ? 0755 : 0644;
    if (!is_safe_relative_path(file.path)) {
      return fail("the path {} would leave the release", json(file.path).dump());
    }
    if (!is_digest(file.sha256)) return fail("{} has no SHA-256", file.path);
    manifest.files.push_back(std::move(file));
  }
  auto by_path = [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; };
  if (!std::is_sorted(manifest.files.begin(), manifest.files.end(), by_path)) {
    return fail("the files of the manifest are not sorted");
  }
  for (std::size_t i = 1; i < manifest.files.size(); ++i) {
    if (manifest.files[i - 1].path == manifest.files[i].path) {
      return fail("{} is listed twice", manifest.files[i].path);
    }
  }
  for (const json& row : text.at("ops")) {
    ManifestOp op;
    row.at("name").get_to(op.name);
    row.at("capability").get_to(op.capability);
    row.at("library").get_to(op.library);
    row.at("description").get_to(op.description);
    row.at("devices").get_to(op.devices);
    row.at("needs_symbols").get_to(op.needs_symbols);
    row.at("needs_libraries").get_to(op.needs_libraries);
    op.not_built = row.value("not_built", "");
    if (op.not_built.empty() && manifest.find(op.library) == nullptr) {
      return fail("the library {} of op {} is not among the files", op.library, op.name);
    }
    manifest.ops.push_back(std::move(op));
  }
  return manifest;
}

}  // namespace

Result<Manifest> Manifest::parse(std::string_view text) {
  try {
    return from_json(json::parse(text)).map_error(in("while reading a manifest"));
  } catch (const json::exception& e) {
    return fail("while reading a manifest: {}", e.what());
  }
}

const ManifestFile* Manifest::find(std::string_view path) const {
  auto at =
      std::lower_bound(files.begin(), files.end(), path,
                       [](const ManifestFile& file, std::string_view p) { return file.path < p; });
  return at != files.end() && at->path == path ? &*at : nullptr;
}

std::string release_id(std::string_view manifest_json) {
  return sha256_hex(manifest_json).substr(0, 16);
}

bool is_safe_relative_path(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.front() == '/') return false;
  for (unsigned char c : path) {
    if (c < 0x20 || c == 0x7f) return false;
  }
  while (true) {
    std::size_t slash = path.find('/');
    std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace dsi
