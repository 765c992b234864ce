#include "orchestrator/package/source.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/manifest.h"
#include "orchestrator/package/deepspeed.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

struct ReadEnd {
  void operator()(archive* a) const { archive_read_free(a); }
};

bool is_sdist(std::string_view name) {
  return name.ends_with(".tar.gz") || name.ends_with(".tgz") || name.ends_with(".zip") ||
         name.ends_with(".tar.bz2") || name.ends_with(".tar.xz");
}

// What a build or a tool left in the tree, and git's own.
bool is_left_out(const fs::path& relative, bool keep_build) {
  const std::string name = relative.filename().string();
  if (name == ".git" || name == "__pycache__" || name == ".pytest_cache") return true;
  if (deepspeed::is_build_state(relative.generic_string())) return true;
  if (relative.has_parent_path()) return false;
  return name == "dist" || (name == "build" && !keep_build) || name == ".eggs" ||
         name.ends_with(".egg-info");
}

// Whether a link at `relative` in `root` with this target leads to a place in `root`, step by step:
// also the links that it passes through must, and no step may be outside, however it ends. What is
// not there counts as it is named.
bool stays_inside(const fs::path& root, const fs::path& relative, const fs::path& target) {
  std::vector<fs::path> at(relative.begin(), relative.end());
  at.pop_back();
  std::deque<fs::path> todo{target.begin(), target.end()};
  if (target.is_absolute()) return false;
  for (int links = 0; !todo.empty();) {
    const fs::path part = todo.front();
    todo.pop_front();
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      if (at.empty()) return false;
      at.pop_back();
      continue;
    }
    fs::path path = root;
    for (const fs::path& each : at) path /= each;
    std::error_code error;
    const fs::path next = fs::read_symlink(path / part, error);
    if (error) {  // No link, or not there.
      at.push_back(part);
      continue;
    }
    if (next.is_absolute() || ++links > 40) return false;
    todo.insert(todo.begin(), next.begin(), next.end());
  }
  return true;
}

// Whether `relative`, or a folder above it, is a link in `root`.
bool passes_link(const fs::path& root, const fs::path& relative) {
  fs::path path = root;
  std::error_code error;
  return std::any_of(relative.begin(), relative.end(),
                     [&](const fs::path& part) { return fs::is_symlink(path /= part, error); });
}

struct SourceEntry {
  fs::path relative;
  fs::path from;
  fs::file_type type;  // directory, regular or symlink.
};

// Everything that is copied, sorted. A link that leads out of the tree stands for what it leads to:
// in the copy it would lead elsewhere.
Result<void> list_source(const fs::path& root, const fs::path& folder, const fs::path& below,
                         bool keep_build, int depth, std::vector<SourceEntry>& entries) {
  if (depth > 64) return fail("{} goes too deep; a link may lead back", folder.string());
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const fs::path relative = below / it->path().filename();
    if (is_left_out(relative, keep_build)) continue;
    fs::file_type type = it->symlink_status(error).type();
    if (type == fs::file_type::symlink) {
      const fs::path target = fs::read_symlink(it->path(), error);
      // Below a link that is copied as what it leads to, a path means something else than here.
      const bool inside =
          !passes_link(root, relative.parent_path()) && stays_inside(root, relative, target);
      if (inside) {
        entries.push_back({relative, it->path(), type});
        continue;
      }
      std::error_code dangling;
      type = fs::status(it->path(), dangling).type();
      if (dangling || type == fs::file_type::not_found) {
        return fail_with_help(fmt::format("{} is a link to {}, which is not there",
                                          it->path().string(), target.string()),
                              "if it is a submodule's, give -e to update the submodules");
      }
    }
    if (type == fs::file_type::directory) {
      entries.push_back({relative, it->path(), type});
      DSI_CHECK(list_source(root, it->path(), relative, keep_build, depth + 1, entries));
    } else if (type == fs::file_type::regular) {
      entries.push_back({relative, it->path(), type});
    }
  }
  if (error) return fail("cannot read {}: {}", folder.string(), error.message());
  return {};
}

Result<std::vector<SourceEntry>> list_source(const fs::path& root, bool keep_build) {
  std::vector<SourceEntry> entries;
  DSI_CHECK(list_source(root, root, {}, keep_build, 0, entries));
  std::sort(entries.begin(), entries.end(), [](const SourceEntry& a, const SourceEntry& b) {
    return a.relative.generic_string() < b.relative.generic_string();
  });
  return entries;
}

// The times stay: with -n they say what is newer than what was compiled from it.
Result<void> copy_entry(const SourceEntry& entry, const fs::path& folder) {
  const fs::path to = folder / entry.relative;
  std::error_code error;
  if (entry.type == fs::file_type::directory) {
    fs::create_directories(to, error);
  } else if (entry.type == fs::file_type::symlink) {
    fs::create_symlink(fs::read_symlink(entry.from, error), to, error);
  } else {
    fs::copy_file(entry.from, to, error);
    if (!error) {
      // A read-only tree must not give a copy that the build cannot write.
      fs::permissions(to, fs::perms::owner_write, fs::perm_options::add, error);
      fs::last_write_time(to, fs::last_write_time(entry.from, error), error);
    }
  }
  if (error) return fail("cannot copy {}: {}", entry.from.string(), error.message());
  return {};
}

const char* archive_text(archive* reader) {
  const char* text = archive_error_string(reader);
  return text != nullptr ? text : "damaged";
}

using SdistReader = std::unique_ptr<archive, ReadEnd>;

Result<SdistReader> open_sdist(const fs::path& file) {
  SdistReader reader(archive_read_new());
  archive_read_support_filter_all(reader.get());
  archive_read_support_format_tar(reader.get());
  archive_read_support_format_zip(reader.get());
  if (archive_read_open_filename(reader.get(), file.c_str(), 256 * 1024) != ARCHIVE_OK) {
    return fail("{} cannot be unpacked: {}", file.string(), archive_text(reader.get()));
  }
  return reader;
}

// "project-1.0/setup.py" → "setup.py"; empty: nothing is left.
std::string without_first_folder(const char* name) {
  std::string path = name != nullptr ? name : "";
  while (path.ends_with('/')) path.pop_back();
  if (path.starts_with("./")) path.erase(0, 2);
  const std::size_t slash = path.find('/');
  return slash == std::string::npos ? "" : path.substr(slash + 1);
}

// Writes the archive's entries without their first folder. If one of them would leave it, nothing
// is written there, and what is in `folder` must not be used.
Result<void> unpack_sdist(const fs::path& file, const fs::path& folder) {
  DSI_TRY(SdistReader reader, open_sdist(file));
  auto broken = [&] {
    return fail("{} cannot be unpacked: {}", file.string(), archive_text(reader.get()));
  };
  auto leaves = [&](std::string_view kind, const std::string& path) {
    return fail_with_help(fmt::format("{} holds {}{}, which would leave its folder", file.string(),
                                      kind, printable(path)),
                          "get the archive from where the project publishes it");
  };
  archive_entry* entry = nullptr;
  std::vector<char> buffer(std::size_t{256} * 1024);
  std::vector<std::string> links;  // To be looked at when all that they may lead to is there.
  for (;;) {
    int code = archive_read_next_header(reader.get(), &entry);
    if (code == ARCHIVE_EOF) break;
    if (code != ARCHIVE_OK && code != ARCHIVE_WARN) return broken();
    const std::string path = without_first_folder(archive_entry_pathname(entry));
    if (path.empty()) continue;  // The one folder, or something beside it.
    const fs::path to = folder / path;
    // Nothing is ever written through a link, wherever that leads.
    if (!is_safe_relative_path(path) || passes_link(folder, fs::path(path).parent_path())) {
      return leaves("", path);
    }
    std::error_code error;
    fs::create_directories(to.parent_path(), error);
    if (const char* linked = archive_entry_hardlink(entry); linked != nullptr) {
      const std::string other = without_first_folder(linked);
      if (!is_safe_relative_path(other) || passes_link(folder, other)) {
        return leaves("the hard link ", path);
      }
      fs::create_hard_link(folder / other, to, error);
      if (error == std::errc::no_such_file_or_directory) {
        return fail("{} holds the hard link {} to {}, which is not in it", file.string(),
                    printable(path), printable(other));
      }
    } else if (archive_entry_filetype(entry) == AE_IFDIR) {
      fs::create_directories(to, error);
    } else if (archive_entry_filetype(entry) == AE_IFLNK) {
      const char* target = archive_entry_symlink(entry);
      if (target == nullptr) return broken();
      links.push_back(path);
      fs::create_symlink(target, to, error);
    } else if (archive_entry_filetype(entry) == AE_IFREG) {
      const bool executable = (archive_entry_perm(entry) & 0100) != 0;
      UniqueFd fd(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         executable ? 0755 : 0644));
      if (!fd) return fail_errno(errno, fmt::format("cannot write {}", to.string()));
      for (;;) {
        la_ssize_t n = archive_read_data(reader.get(), buffer.data(), buffer.size());
        if (n < 0) return broken();
        if (n == 0) break;
        DSI_CHECK(write_all(fd.get(), {buffer.data(), static_cast<std::size_t>(n)}));
      }
    }
    if (error) return fail("cannot write {}: {}", to.string(), error.message());
  }
  for (const std::string& path : links) {
    std::error_code error;
    if (!stays_inside(folder, path, fs::read_symlink(folder / path, error))) {
      return leaves("the link ", path);
    }
  }
  return {};
}

constexpr std::string_view kBuildFiles[] = {"CMakeLists.txt", "meson.build", "pyproject.toml",
                                            "setup.cfg", "setup.py"};

// Of an archive, in its order.
Result<std::string> build_files_in(const fs::path& file) {
  DSI_TRY(SdistReader reader, open_sdist(file));
  archive_entry* entry = nullptr;
  std::string text;
  for (;;) {
    const int code = archive_read_next_header(reader.get(), &entry);
    if (code == ARCHIVE_EOF) return text;
    if (code != ARCHIVE_OK && code != ARCHIVE_WARN) {
      return fail("{} cannot be unpacked: {}", file.string(), archive_text(reader.get()));
    }
    const std::string name = without_first_folder(archive_entry_pathname(entry));
    if (std::find(std::begin(kBuildFiles), std::end(kBuildFiles), name) == std::end(kBuildFiles)) {
      continue;
    }
    char buffer[16384];
    for (;;) {
      const la_ssize_t n = archive_read_data(reader.get(), buffer, sizeof buffer);
      if (n < 0)
        return fail("{} cannot be unpacked: {}", file.string(), archive_text(reader.get()));
      if (n == 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
    }
    text += '\n';
  }
}

std::string line_of(ProcessRunner& processes, std::vector<std::string> argv, const fs::path& folder,
                    std::stop_token stop) {
  auto ran = processes.run({std::move(argv), folder, {}}, Deadline::after(20s), stop);
  return ran && ran->ok() ? ran->out.substr(0, ran->out.find('\n')) : "";
}

// Where pip puts what it downloads; a version that is pinned is asked for once.
std::string fetch_key(const FetchRequest& request, const BuildPython& python) {
  return sha256_hex(request.source.requirement + '\n' + request.index + '\n' + python.tag)
      .substr(0, 20);
}

fs::path only_file(const fs::path& folder) {
  std::error_code error;
  fs::path found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!found.empty()) return {};
    found = it->path();
  }
  return found;
}

}  // namespace

std::string requirement_name(std::string_view requirement) {
  return normalised_package_name(requirement.substr(0, requirement.find_first_of("[<>=!~; @")));
}

Result<PackageSource> read_source(std::string_view text) {
  PackageSource source;
  std::error_code error;
  const fs::path path = fs::absolute(fs::path(text), error).lexically_normal();
  const std::string name = path.filename().string();
  if (fs::is_directory(path, error)) {
    if (fs::exists(path / "setup.py", error) || fs::exists(path / "pyproject.toml", error)) {
      source.path = path.has_filename() ? path : path.parent_path();
      return source;
    }
    if (text.find('/') != text.npos || text.starts_with('.')) {
      return fail_with_help(
          fmt::format("{} holds no Python project: neither setup.py nor pyproject.toml is there",
                      path.string()),
          "name the folder that the project was cloned or unpacked to");
    }
  } else if (fs::exists(path, error)) {
    if (name.ends_with(".whl")) {
      source.kind = SourceKind::kWheel;
    } else if (is_sdist(name)) {
      source.kind = SourceKind::kSdist;
    } else {
      return fail_with_help(fmt::format("{} is neither an sdist nor a wheel", path.string()),
                            "give a folder, a .tar.gz, a .whl, or a requirement");
    }
    source.path = path;
    return source;
  } else if (text.find('/') != text.npos || text.starts_with('.') || name.ends_with(".whl") ||
             is_sdist(name)) {
    return fail_with_help(fmt::format("{} is not there", path.string()),
                          "give a folder, a .tar.gz, a .whl, or a requirement such as "
                          "deepspeed==0.19.8");
  }
  const std::string word = requirement_name(text);
  const bool good =
      !word.empty() &&
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos &&
      word.front() != '-';
  if (!good) {
    return fail_with_help(fmt::format("\"{}\" names no Python package", printable(text)),
                          "give a folder, a .tar.gz, a .whl, or a requirement such as "
                          "deepspeed==0.19.8");
  }
  source.kind = SourceKind::kRequirement;
  source.requirement = text;
  return source;
}

Result<PackageSource> fetch(const FetchRequest& request, const BuildPython& python,
                            const fs::path& cache, ProcessRunner& processes, std::stop_token stop) {
  if (request.source.kind != SourceKind::kRequirement) return request.source;
  const std::string& requirement = request.source.requirement;
  const fs::path folder = cache / "fetched" / fetch_key(request, python);
  std::error_code error;
  const bool pinned =
      requirement.find("==") != std::string::npos && requirement.find('*') == std::string::npos;
  if (pinned) {
    if (fs::path file = only_file(folder); !file.empty()) return read_source(file.string());
  }
  fs::path fresh = folder.string() + fmt::format(".{}", ::getpid());
  fs::remove_all(fresh, error);
  fs::create_directories(fresh, error);
  if (error) return fail("cannot write {}: {}", fresh.string(), error.message());
  Command command;
  command.argv = {python.executable,      "-m",      "pip",        "download", "--no-deps",
                  "--no-build-isolation", "--quiet", "--no-input", "--dest",   fresh.string()};
  if (request.compile) {
    command.argv.insert(command.argv.end(), {"--no-binary", requirement_name(requirement)});
  }
  if (!request.index.empty()) {
    command.argv.insert(command.argv.end(), {"--index-url", request.index});
  }
  command.argv.insert(command.argv.end(), {"--", requirement});
  command.folder = "/";
  // For its metadata pip runs the project's setup.py, which must not begin to compile then.
  command.environment = {{"DS_BUILD_OPS", "0"}};
  DSI_TRY(ProcessResult ran, processes.run(command, Deadline::after(15min), stop));
  fs::path file = only_file(fresh);
  if (!ran.ok() || file.empty()) {
    fs::remove_all(fresh, error);
    std::string why = ran.err.substr(0, ran.err.find_last_not_of('\n') + 1);
    why = why.substr(why.rfind('\n') + 1);
    return fail_with_help(fmt::format("pip cannot fetch {}: {}", requirement, printable(why)),
                          "check the name and the version; -m URL names another index; a folder, "
                          "an sdist or a wheel needs none");
  }
  fs::remove_all(folder, error);
  fs::rename(fresh, folder, error);
  if (error) return fail("cannot write {}: {}", folder.string(), error.message());
  return read_source((folder / file.filename()).string());
}

Result<void> copy_source(const PackageSource& source, const fs::path& folder, bool keep_build) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (source.kind == SourceKind::kSdist) return unpack_sdist(source.path, folder);
  DSI_TRY(std::vector<SourceEntry> entries, list_source(source.path, keep_build));
  for (const SourceEntry& entry : entries) DSI_CHECK(copy_entry(entry, folder));
  return {};
}

Result<std::string> digest_source(const PackageSource& source, bool keep_build) {
  if (source.kind != SourceKind::kFolder) return sha256_file(source.path);
  DSI_TRY(std::vector<SourceEntry> entries, list_source(source.path, keep_build));
  Sha256 hash;
  std::error_code error;
  for (const SourceEntry& entry : entries) {
    std::string what = "folder";
    if (entry.type == fs::file_type::symlink) {
      what = "link " + fs::read_symlink(entry.from, error).string();
    } else if (entry.type == fs::file_type::regular) {
      DSI_TRY(what, sha256_file(entry.from));
      const bool executable =
          (fs::status(entry.from, error).permissions() & fs::perms::owner_exec) != fs::perms::none;
      if (executable) what += " x";
    }
    const std::string line = entry.relative.generic_string() + '\0' + what + '\n';
    hash.update(line.data(), line.size());
  }
  return hash.hex();
}

Result<std::string> read_build_files(const PackageSource& source) {
  if (source.kind == SourceKind::kSdist) return build_files_in(source.path);
  std::string text;
  if (source.kind != SourceKind::kFolder) return text;
  for (std::string_view name : kBuildFiles) {
    if (auto file = read_file(source.path / name)) text += *file + '\n';
  }
  return text;
}

GitState read_git(const fs::path& folder, ProcessRunner& processes, std::stop_token stop) {
  GitState state;
  std::error_code error;
  // A repository that the folder only lies in is not the project's.
  if (!fs::exists(folder / ".git", error)) return state;
  state.git_dir = line_of(processes, {"git", "rev-parse", "--absolute-git-dir"}, folder, stop);
  state.commit = line_of(processes, {"git", "rev-parse", "HEAD"}, folder, stop);
  state.branch = line_of(processes, {"git", "rev-parse", "--abbrev-ref", "HEAD"}, folder, stop);
  return state;
}

Result<void> update_submodules(const PackageSource& source, ProcessRunner& processes,
                               std::stop_token stop) {
  if (source.kind != SourceKind::kFolder || !fs::exists(source.path / ".git")) {
    return fail_with_help("-e updates the submodules of a git tree, and the package is none",
                          "leave -e out, or name the folder that was cloned");
  }
  DSI_TRY(ProcessResult ran,
          processes.run({{"git", "submodule", "update", "--init", "--recursive"}, source.path, {}},
                        Deadline::after(30min), stop));
  if (ran.ok()) return {};
  return fail("the submodules of {} cannot be updated: {}", source.path.string(),
              printable(ran.err.substr(0, ran.err.find('\n'))));
}

}  // namespace dsi
