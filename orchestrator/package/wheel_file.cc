#include "orchestrator/package/wheel_file.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/elf.h"
#include "orchestrator/fatbin.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

struct ReadEnd {
  void operator()(archive* a) const { archive_read_free(a); }
};
struct WriteEnd {
  void operator()(archive* a) const { archive_write_free(a); }
};
struct EntryEnd {
  void operator()(archive_entry* e) const { archive_entry_free(e); }
};

std::string last_error(archive* a) {
  const char* text = archive_error_string(a);
  return text != nullptr ? text : "it is damaged";
}

// Which files it wrote, sorted.
Result<std::vector<std::string>> unpack(const fs::path& wheel, const fs::path& folder) {
  std::unique_ptr<archive, ReadEnd> reader(archive_read_new());
  archive_read_support_format_zip(reader.get());
  if (archive_read_open_filename(reader.get(), wheel.c_str(), 256 * 1024) != ARCHIVE_OK) {
    return fail("{}", last_error(reader.get()));
  }
  std::set<std::string> files;
  std::vector<char> buffer(std::size_t{256} * 1024);
  archive_entry* entry = nullptr;
  for (;;) {
    int code = archive_read_next_header(reader.get(), &entry);
    if (code == ARCHIVE_EOF) break;
    if (code != ARCHIVE_OK && code != ARCHIVE_WARN) return fail("{}", last_error(reader.get()));
    const char* name = archive_entry_pathname(entry);
    std::string path = name != nullptr ? name : "";
    if (archive_entry_filetype(entry) == AE_IFDIR) continue;
    if (archive_entry_filetype(entry) != AE_IFREG || !is_safe_relative_path(path) ||
        !files.insert(path).second) {
      return fail("it holds {}, which is no file of its own inside it", printable(path));
    }
    const fs::path to = folder / path;
    std::error_code error;
    fs::create_directories(to.parent_path(), error);
    const bool executable = (archive_entry_perm(entry) & 0111) != 0;
    UniqueFd fd(
        ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, executable ? 0755 : 0644));
    if (!fd) return fail_errno(errno, fmt::format("cannot write {}", to.string()));
    for (;;) {
      la_ssize_t n = archive_read_data(reader.get(), buffer.data(), buffer.size());
      if (n < 0) return fail("{}: {}", printable(path), last_error(reader.get()));
      if (n == 0) break;
      DSI_CHECK(write_all(fd.get(), {buffer.data(), static_cast<std::size_t>(n)}));
    }
  }
  return std::vector<std::string>(files.begin(), files.end());
}

// One line of RECORD: path,sha256=…,size with quotes as in CSV.
std::vector<std::string> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += '"';
      ++i;
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

// RECORD has digests in URL-safe base64 without padding.
std::string base64_of_hex(std::string_view hex) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  auto nibble = [](char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::string text;
  unsigned bits = 0;
  int count = 0;
  for (char c : hex) {
    bits = bits << 4 | nibble(c);
    count += 4;
    while (count >= 6) {
      count -= 6;
      text += kDigits[bits >> count & 63];
    }
    bits &= (1u << count) - 1;
  }
  if (count > 0) text += kDigits[bits << (6 - count) & 63];
  return text;
}

template <typename EachLine>
void for_lines(std::string_view text, EachLine&& each) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    each(line);
  }
}

Result<void> check_record(const fs::path& folder, const std::string& info,
                          const std::vector<std::string>& files) {
  auto text = read_file(folder / info / "RECORD");
  if (!text) return fail("it has no RECORD");
  std::map<std::string, std::string> digests;
  for_lines(*text, [&](std::string_view line) {
    std::vector<std::string> fields = csv_fields(line);
    if (!fields[0].empty()) digests[fields[0]] = fields.size() > 1 ? fields[1] : "";
  });
  for (const std::string& file : files) {
    auto at = digests.find(file);
    const bool self =
        file == info + "/RECORD" || file == info + "/RECORD.jws" || file == info + "/RECORD.p7s";
    if (at == digests.end() && !self) return fail("{} is not in its RECORD", printable(file));
    if (self) {
      if (at != digests.end()) digests.erase(at);
      continue;
    }
    DSI_TRY(std::string digest, sha256_file(folder / file));
    if (at->second != "sha256=" + base64_of_hex(digest)) {
      return fail("{} is not what its RECORD says", printable(file));
    }
    digests.erase(at);
  }
  for (const auto& [file, digest] : digests) {
    if (!digest.empty()) return fail("{} is in its RECORD and not in it", printable(file));
  }
  return {};
}

// The headers of METADATA and WHEEL: name and value in order, folded lines joined.
std::vector<std::pair<std::string, std::string>> headers_of(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> headers;
  bool done = false;
  for_lines(text, [&](std::string_view line) {
    done = done || line.empty();
    if (done) return;
    if (line.starts_with(' ') || line.starts_with('\t')) {
      if (!headers.empty()) headers.back().second += line;
      return;
    }
    std::size_t colon = line.find(':');
    if (colon == line.npos) return;
    std::string_view value = line.substr(colon + 1);
    value.remove_prefix(std::min(value.size(), value.find_first_not_of(' ')));
    headers.emplace_back(line.substr(0, colon), value);
  });
  return headers;
}

bool is_identifier(std::string_view word) {
  return !word.empty() && !(word[0] >= '0' && word[0] <= '9') &&
         std::all_of(word.begin(), word.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '_';
         });
}

// "deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so" → its module, and the name that
// its PyInit_ has. Nothing if it cannot be imported by its path.
std::optional<std::pair<std::string, std::string>> module_of(std::string_view path) {
  // <name>.data/platlib/… is installed as ….
  if (std::size_t data = path.find(".data/"); data != path.npos && data < path.find('/')) {
    path.remove_prefix(data + 6);
    if (!path.starts_with("platlib/") && !path.starts_with("purelib/")) return {};
    path.remove_prefix(8);
  }
  std::string module;
  for (;;) {
    std::size_t slash = path.find('/');
    if (slash == path.npos) break;
    if (!is_identifier(path.substr(0, slash))) return {};
    module += std::string(path.substr(0, slash)) + '.';
    path.remove_prefix(slash + 1);
  }
  const std::size_t dot = path.find('.');
  const std::string_view suffix = path.substr(dot);
  const bool extension = suffix == ".so" || suffix == ".abi3.so" || suffix.starts_with(".cpython-");
  if (!extension || !is_identifier(path.substr(0, dot))) return {};
  const std::string name(path.substr(0, dot));
  return std::pair{module + name, name};
}

void raise_to(std::map<std::string, std::string>& highest,
              const std::map<std::string, std::string>& needs) {
  for (const auto& [family, version] : needs) {
    std::string& now = highest[family];
    if (now.empty() || version_less(now, version)) now = version;
  }
}

Result<void> read_shared_object(const fs::path& file, const std::string& path,
                                WheelContent& content) {
  DSI_TRY(ElfNeeds needs, read_elf_needs(file));
  DSI_TRY(std::vector<std::string> capabilities, read_compute_capabilities(file));
  raise_to(content.needs_symbols, needs.symbols);
  for (const std::string& library : needs.libraries) {
    content.uses_torch =
        content.uses_torch || library.starts_with("libtorch") || library.starts_with("libc10");
    content.uses_cuda = content.uses_cuda || library.starts_with("libcud") ||
                        library.starts_with("libcublas") || library.starts_with("libc10_cuda") ||
                        library.starts_with("libtorch_cuda");
  }
  content.uses_cuda = content.uses_cuda || !capabilities.empty();
  auto module = module_of(path);
  if (!module) return {};
  DSI_TRY(bool importable, defines_symbol(file, "PyInit_" + module->second));
  if (!importable) return {};
  content.modules.push_back({module->first, module->first, std::move(needs.symbols),
                             std::move(needs.libraries), std::move(capabilities)});
  return {};
}

bool is_shared_object(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  return name.ends_with(".so") || name.find(".so.") != name.npos;
}

Result<WheelContent> read_unpacked(const fs::path& wheel, const fs::path& folder,
                                   const std::vector<std::string>& files) {
  WheelContent content;
  std::string info;
  for (const std::string& file : files) {
    std::string first = file.substr(0, file.find('/'));
    if (!first.ends_with(".dist-info") || first == info) continue;
    if (!info.empty()) return fail("it has both {} and {}", info, first);
    info = first;
  }
  if (info.empty()) return fail("it has no .dist-info folder");
  DSI_CHECK(check_record(folder, info, files));
  DSI_TRY(std::string metadata, read_file(folder / info / "METADATA"));
  for (const auto& [name, value] : headers_of(metadata)) {
    if (name == "Name") content.name = normalised_package_name(value);
    if (name == "Version") content.version = value;
    if (name == "Requires-Dist") content.requires_dist.push_back(value);
  }
  DSI_TRY(std::string about, read_file(folder / info / "WHEEL"));
  std::set<std::string> tags;
  for (const auto& [name, value] : headers_of(about)) {
    if (name != "Tag") continue;
    for (std::string& tag : expand_tag(value)) tags.insert(std::move(tag));
  }
  content.tags.assign(tags.begin(), tags.end());
  if (content.name.empty() || content.version.empty() || content.tags.empty()) {
    return fail("its metadata lacks a name, a version or a tag");
  }
  if (wheel_name(wheel.filename().string()) != content.name) {
    return fail("it is {}, whatever its file's name says", printable(content.name));
  }
  for (const std::string& file : files) {
    std::error_code error;
    content.bytes += fs::file_size(folder / file, error);
    if (is_shared_object(file)) {
      DSI_CHECK(read_shared_object(folder / file, file, content));
    }
  }
  std::sort(content.modules.begin(), content.modules.end(),
            [](const ManifestModule& a, const ManifestModule& b) { return a.name < b.name; });
  return content;
}

// dist-info last and RECORD the very last, as the wheel's format advises.
int rank(std::string_view path) {
  const bool info = path.substr(0, path.find('/')).ends_with(".dist-info");
  return !info ? 0 : path.ends_with("/RECORD") ? 2 : 1;
}

Result<void> add_entry(archive* out, const fs::path& file, const std::string& path) {
  std::error_code error;
  std::unique_ptr<archive_entry, EntryEnd> entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), path.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(fs::file_size(file, error)));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  const bool executable =
      (fs::status(file, error).permissions() & fs::perms::owner_exec) != fs::perms::none;
  archive_entry_set_perm(entry.get(), executable ? 0755 : 0644);
  // Before 1980, which a zip cannot say: libarchive then writes its first day, whatever the zone.
  archive_entry_set_mtime(entry.get(), 0, 0);
  if (archive_write_header(out, entry.get()) != ARCHIVE_OK) return fail("{}", last_error(out));
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", file.string()));
  std::vector<char> buffer(std::size_t{256} * 1024);
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(errno, fmt::format("cannot read {}", file.string()));
    if (n == 0) return {};
    if (archive_write_data(out, buffer.data(), static_cast<std::size_t>(n)) != n) {
      return fail("{}", last_error(out));
    }
  }
}

Result<void> write_entries(const fs::path& folder, const fs::path& wheel) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file()) {
      paths.push_back(it->path().lexically_relative(folder).generic_string());
    }
  }
  if (error) return fail("cannot list {}: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end(), [](const std::string& a, const std::string& b) {
    return std::pair(rank(a), std::string_view(a)) < std::pair(rank(b), std::string_view(b));
  });
  std::unique_ptr<archive, WriteEnd> out(archive_write_new());
  archive_write_set_format_zip(out.get());
  archive_write_zip_set_compression_store(out.get());
  archive_write_set_bytes_in_last_block(out.get(), 1);
  if (archive_write_open_filename(out.get(), wheel.c_str()) != ARCHIVE_OK) {
    return fail("{}", last_error(out.get()));
  }
  for (const std::string& path : paths) DSI_CHECK(add_entry(out.get(), folder / path, path));
  if (archive_write_close(out.get()) != ARCHIVE_OK) return fail("{}", last_error(out.get()));
  return {};
}

}  // namespace

std::string wheel_name(std::string_view file_name) {
  return normalised_package_name(file_name.substr(0, file_name.find('-')));
}

std::vector<std::string> expand_tag(std::string_view tag) {
  std::vector<std::string> tags{""};
  for (int part = 0; part < 3; ++part) {
    const std::size_t dash = part < 2 ? tag.find('-') : tag.npos;
    std::string_view choices = tag.substr(0, dash);
    tag.remove_prefix(dash == tag.npos ? tag.size() : dash + 1);
    std::vector<std::string> longer;
    while (true) {
      const std::size_t dot = choices.find('.');
      for (const std::string& begun : tags) {
        longer.push_back(begun + (part > 0 ? "-" : "") + std::string(choices.substr(0, dot)));
      }
      if (dot == choices.npos) break;
      choices.remove_prefix(dot + 1);
    }
    tags = std::move(longer);
  }
  return tags;
}

Result<WheelContent> open_wheel(const fs::path& wheel, const fs::path& folder) {
  auto opened = [&]() -> Result<WheelContent> {
    DSI_TRY(std::vector<std::string> files, unpack(wheel, folder));
    return read_unpacked(wheel, folder, files);
  }();
  return std::move(opened).map_error([&](Error error) {
    error = in("the wheel {} cannot be used", wheel.string())(std::move(error));
    if (error.help.empty()) error.help = "build or fetch it again";
    return error;
  });
}

Result<void> pack_wheel(const fs::path& folder, const fs::path& wheel) {
  const fs::path temporary = wheel.string() + fmt::format(".{}.partial", ::getpid());
  auto written = write_entries(folder, temporary);
  if (written && ::rename(temporary.c_str(), wheel.c_str()) != 0) {
    written = fail_errno(errno, "cannot put it in place");
  }
  if (!written) {
    ::unlink(temporary.c_str());
    return written.map_error(in("while writing the wheel {}", wheel.string()));
  }
  return {};
}

}  // namespace dsi
