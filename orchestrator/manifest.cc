#include "orchestrator/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "orchestrator/base/sha256.h"

namespace dsi {

using nlohmann::json;

namespace {

json row_of(const ManifestPackage& package) {
  json row = {{"name", package.name},
              {"version", package.version},
              {"wheel", package.wheel},
              {"dependencies", package.dependencies},
              {"tags", package.tags},
              {"torch", package.torch},
              {"torch_cuda", package.torch_cuda},
              {"cpu_level", package.cpu_level},
              {"requires_dist", package.requires_dist},
              {"needs_symbols", package.needs_symbols}};
  row["modules"] = json::array();
  for (const ManifestModule& module : package.modules) {
    row["modules"].push_back({{"name", module.name},
                              {"op", module.op},
                              {"needs_symbols", module.needs_symbols},
                              {"needs_libraries", module.needs_libraries},
                              {"compute_capabilities", module.compute_capabilities}});
  }
  return row;
}

}  // namespace

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
    // Only where there are some, as below.
    if (!op.compute_capabilities.empty()) row["compute_capabilities"] = op.compute_capabilities;
    if (op.isa_level != 0) row["isa_level"] = op.isa_level;
    if (!op.not_built.empty()) row["not_built"] = op.not_built;
    text["ops"].push_back(std::move(row));
  }
  // Only where there are some: the text, and with it the id, of a release of ops stays what it was.
  for (const ManifestPackage& package : packages) text["packages"].push_back(row_of(package));
  // nlohmann::json sorts keys, so the text is canonical. Bytes that are no UTF-8 (a compiler's
  // version line in another locale) must not throw.
  return text.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

namespace {

// Throws unless it is a list: a loop over null or an object would run as well.
const json::array_t& rows_of(const json& text, const char* key) {
  return text.at(key).get_ref<const json::array_t&>();
}

bool is_digest(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// One of `allowed` besides letters and digits, at most 200 bytes, no '-' or '.' in front: it
// becomes an argument, a path or a part of one on a host.
bool is_word(std::string_view text, std::string_view allowed) {
  auto good = [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           allowed.find(c) != allowed.npos;
  };
  return !text.empty() && text.size() <= 200 && text.front() != '-' && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), good);
}

// "deepspeed.ops.adam.cpu_adam_op": identifiers with dots between.
bool is_module_name(std::string_view text) {
  if (!is_word(text, "_.") || text.back() == '.' || text.find("..") != text.npos) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool begins = i == 0 || text[i - 1] == '.';
    if (begins && text[i] >= '0' && text[i] <= '9') return false;
  }
  return true;
}

Result<ManifestModule> module_from(const json& row) {
  ManifestModule module;
  row.at("name").get_to(module.name);
  row.at("op").get_to(module.op);
  row.at("needs_symbols").get_to(module.needs_symbols);
  row.at("needs_libraries").get_to(module.needs_libraries);
  row.at("compute_capabilities").get_to(module.compute_capabilities);
  if (!is_module_name(module.name)) {
    return fail("{} cannot be a module's name", json(module.name).dump());
  }
  if (!is_module_name(module.op)) return fail("{} cannot be an op", json(module.op).dump());
  return module;
}

// `path` is a wheel among the files, with a name that pip takes.
Result<void> check_wheel(const Manifest& manifest, const std::string& path) {
  if (manifest.find(path) == nullptr) return fail("the wheel {} is not among the files", path);
  std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  if (!path.starts_with("wheels/") || !name.ends_with(".whl") || !is_word(name, "_.+-!")) {
    return fail("{} cannot be a wheel of the release", json(path).dump());
  }
  return {};
}

Result<ManifestPackage> package_from(const Manifest& manifest, const json& row) {
  ManifestPackage package;
  row.at("name").get_to(package.name);
  row.at("version").get_to(package.version);
  row.at("wheel").get_to(package.wheel);
  row.at("dependencies").get_to(package.dependencies);
  row.at("tags").get_to(package.tags);
  row.at("torch").get_to(package.torch);
  row.at("torch_cuda").get_to(package.torch_cuda);
  row.at("cpu_level").get_to(package.cpu_level);
  row.at("requires_dist").get_to(package.requires_dist);
  row.at("needs_symbols").get_to(package.needs_symbols);
  if (!is_word(package.name, "-") || normalised_package_name(package.name) != package.name) {
    return fail("{} is no normalised package name", json(package.name).dump());
  }
  if (!is_word(package.version, "_.+-!")) {
    return fail("{} has the version {}", package.name, json(package.version).dump());
  }
  DSI_CHECK(check_wheel(manifest, package.wheel));
  for (const std::string& path : package.dependencies) DSI_CHECK(check_wheel(manifest, path));
  if (!std::is_sorted(package.dependencies.begin(), package.dependencies.end())) {
    return fail("the dependencies of {} are not sorted", package.name);
  }
  if (package.tags.empty()) return fail("{} has no tag", package.name);
  for (const std::string& tag : package.tags) {
    if (!is_word(tag, "_.-") || std::count(tag.begin(), tag.end(), '-') != 2) {
      return fail("{} has the tag {}", package.name, json(tag).dump());
    }
  }
  for (const json& module : rows_of(row, "modules")) {
    DSI_TRY(ManifestModule read, module_from(module));
    if (!package.modules.empty() && package.modules.back().name >= read.name) {
      return fail("the modules of {} are not sorted, or {} is listed twice", package.name,
                  read.name);
    }
    package.modules.push_back(std::move(read));
  }
  return package;
}

Result<Manifest> from_json(const json& text) {
  Manifest manifest;
  if (int schema = text.at("schema").get<int>(); schema != kManifestSchema) {
    return fail_with_help(
        fmt::format("the manifest has schema {}; this program reads {}", schema, kManifestSchema),
        "use the ds-install that made the bundle, or make the bundle again");
  }
  text.at("built_with").get_to(manifest.built_with);
  for (const json& row : rows_of(text, "files")) {
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
  for (const json& row : rows_of(text, "ops")) {
    ManifestOp op;
    row.at("name").get_to(op.name);
    row.at("capability").get_to(op.capability);
    row.at("library").get_to(op.library);
    row.at("description").get_to(op.description);
    row.at("devices").get_to(op.devices);
    row.at("needs_symbols").get_to(op.needs_symbols);
    row.at("needs_libraries").get_to(op.needs_libraries);
    op.compute_capabilities = row.value("compute_capabilities", std::vector<std::string>{});
    op.isa_level = row.value("isa_level", 0);
    if (op.isa_level < 0 || op.isa_level > 4) {
      return fail("op {} has the level {}", op.name, op.isa_level);
    }
    op.not_built = row.value("not_built", "");
    if (op.not_built.empty() && manifest.find(op.library) == nullptr) {
      return fail("the library {} of op {} is not among the files", op.library, op.name);
    }
    manifest.ops.push_back(std::move(op));
  }
  if (text.contains("packages")) {
    for (const json& row : rows_of(text, "packages")) {
      DSI_TRY(ManifestPackage package, package_from(manifest, row));
      if (!manifest.packages.empty() && manifest.packages.back().name >= package.name) {
        return fail("the packages are not sorted, or {} is listed twice", package.name);
      }
      manifest.packages.push_back(std::move(package));
    }
    if (!manifest.ops.empty() && !manifest.packages.empty()) {
      return fail("it has both ops and packages");
    }
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

std::string normalised_package_name(std::string_view name) {
  std::string normal;
  for (char c : name) {
    if (c == '-' || c == '_' || c == '.') {
      if (!normal.ends_with('-')) normal += '-';
    } else {
      normal += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return normal;
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
