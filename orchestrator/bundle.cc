#include "orchestrator/bundle.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <system_error>

#include "orchestrator/agent/protocol.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/elf.h"
#include "orchestrator/fatbin.h"
#include "orchestrator/patch.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

constexpr char kManifestName[] = "manifest.json";
constexpr std::uint64_t kMaxManifest = 64u << 20;
constexpr int kBundleLevel = 19;

struct WriteEnd {
  void operator()(archive* a) const { archive_write_free(a); }
};
struct ReadEnd {
  void operator()(archive* a) const { archive_read_free(a); }
};
struct EntryEnd {
  void operator()(archive_entry* e) const { archive_entry_free(e); }
};

std::string last_error(archive* a) {
  const char* text = archive_error_string(a);
  return text != nullptr ? text : "unknown error";
}

Result<void> add_header(archive* out, const std::string& path, std::uint64_t size, unsigned mode) {
  std::unique_ptr<archive_entry, EntryEnd> entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), path.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(size));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), mode);
  archive_entry_set_uid(entry.get(), 0);
  archive_entry_set_gid(entry.get(), 0);
  archive_entry_set_mtime(entry.get(), 0, 0);
  if (archive_write_header(out, entry.get()) != ARCHIVE_OK) return fail("{}", last_error(out));
  return {};
}

Result<void> add_data(archive* out, const void* data, std::size_t size) {
  if (archive_write_data(out, data, size) != static_cast<la_ssize_t>(size)) {
    return fail("{}", last_error(out));
  }
  return {};
}

Result<void> add_file(archive* out, const ManifestFile& file, const fs::path& source) {
  DSI_CHECK(add_header(out, file.path, file.size, file.mode));
  UniqueFd fd(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", source.string()));
  std::vector<char> buffer(std::size_t{256} * 1024);
  std::uint64_t left = file.size;
  while (left > 0) {
    ssize_t n = ::read(fd.get(), buffer.data(), std::min<std::uint64_t>(buffer.size(), left));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail("{} changed while it was archived", source.string());
    DSI_CHECK(add_data(out, buffer.data(), static_cast<std::size_t>(n)));
    left -= static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<void> write_archive(const Payload& payload, const fs::path& file) {
  std::unique_ptr<archive, WriteEnd> out(archive_write_new());
  archive_write_set_format_pax_restricted(out.get());
  archive_write_add_filter_zstd(out.get());
  // One thread, always: with more of them zstd cuts the stream by the number of threads.
  archive_write_set_filter_option(out.get(), "zstd", "compression-level",
                                  std::to_string(kBundleLevel).c_str());
  if (archive_write_open_filename(out.get(), file.c_str()) != ARCHIVE_OK) {
    return fail("{}", last_error(out.get()));
  }
  DSI_CHECK(add_header(out.get(), kManifestName, payload.text.size(), 0644));
  DSI_CHECK(add_data(out.get(), payload.text.data(), payload.text.size()));
  for (const ManifestFile& entry : payload.manifest.files) {
    DSI_CHECK(add_file(out.get(), entry, payload.content.at(entry.sha256)));
  }
  if (archive_write_close(out.get()) != ARCHIVE_OK) return fail("{}", last_error(out.get()));
  return {};
}

Result<std::string> entry_text(archive* source, std::uint64_t limit) {
  std::string text;
  char buffer[64 * 1024];
  for (;;) {
    la_ssize_t n = archive_read_data(source, buffer, sizeof buffer);
    if (n < 0) return fail("{}", last_error(source));
    if (n == 0) return text;
    if (text.size() + static_cast<std::size_t>(n) > limit) return fail("the manifest is too large");
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

// Writes one entry's data, no more than the manifest says, and checks its digest.
Result<void> extract(archive* source, const ManifestFile& file, const fs::path& target) {
  std::error_code error;
  fs::create_directories(target.parent_path(), error);
  UniqueFd fd(::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file.mode));
  if (!fd) return fail_errno(errno, fmt::format("cannot write {}", target.string()));
  Sha256 hash;
  std::uint64_t size = 0;
  std::vector<char> buffer(std::size_t{256} * 1024);
  for (;;) {
    la_ssize_t n = archive_read_data(source, buffer.data(), buffer.size());
    if (n < 0) return fail("{}", last_error(source));
    if (n == 0) break;
    size += static_cast<std::uint64_t>(n);
    if (size > file.size) return fail("{} holds more than the manifest says", file.path);
    hash.update(buffer.data(), static_cast<std::size_t>(n));
    DSI_CHECK(write_all(fd.get(), {buffer.data(), static_cast<std::size_t>(n)})
                  .map_error(in("while writing {}", target.string())));
  }
  if (size != file.size || hash.hex() != file.sha256) {
    return fail("{} does not match its SHA-256 in the manifest", file.path);
  }
  return {};
}

Result<Payload> payload_in(const fs::path& folder, std::string text) {
  Payload payload;
  DSI_TRY(payload.manifest, Manifest::parse(text));
  payload.id = release_id(text);
  payload.text = std::move(text);
  for (const ManifestFile& file : payload.manifest.files) {
    payload.content[file.sha256] = folder / file.path;
  }
  return payload;
}

Result<std::string> unpack(const fs::path& file, const fs::path& folder) {
  std::unique_ptr<archive, ReadEnd> reader(archive_read_new());
  archive_read_support_filter_zstd(reader.get());
  archive_read_support_format_tar(reader.get());
  if (archive_read_open_filename(reader.get(), file.c_str(), 256 * 1024) != ARCHIVE_OK) {
    return fail("{}", last_error(reader.get()));
  }
  archive_entry* entry = nullptr;
  auto next = [&]() -> Result<bool> {
    int code = archive_read_next_header(reader.get(), &entry);
    if (code == ARCHIVE_EOF) return false;
    if (code != ARCHIVE_OK && code != ARCHIVE_WARN) return fail("{}", last_error(reader.get()));
    return true;
  };
  DSI_TRY(bool any, next());
  if (!any || archive_entry_pathname(entry) == nullptr ||
      std::string_view(archive_entry_pathname(entry)) != kManifestName) {
    return fail("it does not begin with {}", kManifestName);
  }
  DSI_TRY(std::string text, entry_text(reader.get(), kMaxManifest));
  DSI_TRY(Manifest manifest, Manifest::parse(text));
  std::set<std::string> missing;
  for (const ManifestFile& f : manifest.files) missing.insert(f.path);
  for (;;) {
    DSI_TRY(bool more, next());
    if (!more) break;
    const char* name = archive_entry_pathname(entry);
    const ManifestFile* expected = name != nullptr ? manifest.find(name) : nullptr;
    if (expected == nullptr || archive_entry_filetype(entry) != AE_IFREG ||
        missing.erase(expected->path) == 0) {
      return fail("it holds {}, which the manifest does not name as a file",
                  name != nullptr ? name : "an entry without a name");
    }
    DSI_CHECK(extract(reader.get(), *expected, folder / expected->path));
  }
  if (!missing.empty()) return fail("{} is missing in it", *missing.begin());
  return text;
}

Result<bool> is_intact(const Payload& payload) {
  for (const auto& [digest, path] : payload.content) {
    auto actual = sha256_file(path);
    if (!actual || *actual != digest) return false;
  }
  return true;
}

}  // namespace

std::uint64_t Payload::total_bytes() const {
  std::uint64_t sum = 0;
  for (const ManifestFile& file : manifest.files) sum += file.size;
  return sum;
}

Result<std::vector<ReleaseFile>> list_files(const fs::path& folder) {
  std::vector<ReleaseFile> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_regular_file() || it->is_symlink()) continue;
    bool executable = (it->status().permissions() & fs::perms::owner_exec) != fs::perms::none;
    // CMake installs libraries executable or not by the distribution's habit; a release decides.
    std::string path = it->path().lexically_relative(folder).generic_string();
    files.push_back({path, it->path(), executable && !path.starts_with("lib/")});
  }
  if (error) return fail("cannot list {}: {}", folder.string(), error.message());
  std::sort(files.begin(), files.end(),
            [](const ReleaseFile& a, const ReleaseFile& b) { return a.path < b.path; });
  return files;
}

Result<Payload> make_payload(const std::vector<ReleaseFile>& files, std::vector<ManifestOp> ops,
                             std::map<std::string, std::string> built_with,
                             std::vector<ManifestPackage> packages) {
  Manifest manifest;
  std::map<std::string, fs::path> content;
  for (const ReleaseFile& file : files) {
    if (!is_safe_relative_path(file.path)) return fail("{} cannot be in a release", file.path);
    std::error_code error;
    std::uint64_t size = fs::file_size(file.source, error);
    if (error) return fail("cannot read {}: {}", file.source.string(), error.message());
    DSI_TRY(std::string digest, sha256_file(file.source));
    content.emplace(digest, file.source);
    manifest.files.push_back({file.path, file.executable ? 0755u : 0644u, size, digest});
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; });
  std::sort(ops.begin(), ops.end(),
            [](const ManifestOp& a, const ManifestOp& b) { return a.name < b.name; });
  for (ManifestOp& op : ops) {
    if (!op.not_built.empty()) continue;
    const ManifestFile* library = manifest.find(op.library);
    if (library == nullptr) return fail("the library {} of op {} is missing", op.library, op.name);
    DSI_TRY(ElfNeeds needs, read_elf_needs(content.at(library->sha256)));
    op.needs_symbols = std::move(needs.symbols);
    op.needs_libraries = std::move(needs.libraries);
    op.isa_level = needs.isa_level;
    DSI_TRY(op.compute_capabilities, read_compute_capabilities(content.at(library->sha256)));
  }
  manifest.ops = std::move(ops);
  // A toolkit that no op has code from asks nothing of a host.
  if (std::none_of(manifest.ops.begin(), manifest.ops.end(),
                   [](const ManifestOp& op) { return !op.compute_capabilities.empty(); })) {
    built_with.erase("cuda");
  }
  manifest.packages = std::move(packages);
  manifest.built_with = std::move(built_with);
  std::string text = manifest.to_json();
  // Through the parser, so that what is sent is what a node will accept.
  DSI_TRY(Manifest checked, Manifest::parse(text));
  return Payload{std::move(checked), text, release_id(text), std::move(content)};
}

Result<void> write_bundle(const Payload& payload, const fs::path& file) {
  fs::path temporary = file.string() + fmt::format(".{}.partial", ::getpid());
  auto written = write_archive(payload, temporary);
  if (written && ::rename(temporary.c_str(), file.c_str()) != 0) {
    written = fail_errno(errno, "cannot put it in place");
  }
  if (!written) {
    ::unlink(temporary.c_str());
    return written.map_error(in("while writing the bundle {}", file.string()));
  }
  return {};
}

Result<Payload> read_bundle(const fs::path& file, const fs::path& cache) {
  auto context = [&](Error error) {
    error = in("cannot use the bundle {}", file.string())(std::move(error));
    if (error.help.empty()) error.help = "make it again: ds-install build -o FILE";
    return error;
  };
  auto digest = sha256_file(file);
  if (!digest) {
    return fail_with_help(digest.error().what, "make a bundle with: ds-install build -o FILE");
  }
  fs::path folder = cache / "bundles" / digest->substr(0, 20);
  std::error_code error;
  if (auto text = read_file(folder / kManifestName)) {
    auto payload = payload_in(folder, *text);
    if (payload && is_intact(*payload).value_or(false)) return payload;
    fs::remove_all(folder, error);
  }
  fs::create_directories(folder.parent_path(), error);
  std::string temporary = folder.string() + ".XXXXXX";
  if (::mkdtemp(temporary.data()) == nullptr) {
    return fail_errno(errno,
                      fmt::format("cannot unpack the bundle in {}", folder.parent_path().string()));
  }
  auto unpacked = unpack(file, temporary).and_then([&](std::string text) -> Result<std::string> {
    DSI_CHECK(write_file_atomically(fs::path(temporary) / kManifestName, text));
    return text;
  });
  if (!unpacked) {
    fs::remove_all(temporary, error);
    return tl::unexpected<Error>(context(unpacked.error()));
  }
  if (::rename(temporary.c_str(), folder.c_str()) != 0) {
    // Another run was first; its folder has the same content.
    fs::remove_all(temporary, error);
  }
  return payload_in(folder, *unpacked).map_error(context);
}

WireFiles::WireFiles(const Payload& payload, fs::path folder)
    : payload_(payload), folder_(std::move(folder)) {
  for (const auto& [digest, path] : payload.content) entries_[digest];
}

namespace {

Result<void> compress(const fs::path& source, const fs::path& target) {
  UniqueFd in_fd(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
  if (!in_fd) return fail_errno(errno, fmt::format("cannot read {}", source.string()));
  std::string temporary = target.string() + ".XXXXXX";
  UniqueFd out_fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!out_fd) return fail_errno(errno, fmt::format("cannot write {}", target.string()));

  std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, protocol::kZstdLevel);
  std::vector<char> input(ZSTD_CStreamInSize());
  std::vector<char> output(ZSTD_CStreamOutSize());
  auto run = [&]() -> Result<void> {
    for (;;) {
      ssize_t n = ::read(in_fd.get(), input.data(), input.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return fail_errno(errno, fmt::format("cannot read {}", source.string()));
      ZSTD_inBuffer in_buffer{input.data(), static_cast<std::size_t>(n), 0};
      ZSTD_EndDirective mode = n == 0 ? ZSTD_e_end : ZSTD_e_continue;
      for (;;) {
        ZSTD_outBuffer out_buffer{output.data(), output.size(), 0};
        std::size_t left = ZSTD_compressStream2(context.get(), &out_buffer, &in_buffer, mode);
        if (ZSTD_isError(left)) return fail("zstd: {}", ZSTD_getErrorName(left));
        DSI_CHECK(write_all(out_fd.get(), {output.data(), out_buffer.pos}));
        if (mode == ZSTD_e_end ? left == 0 : in_buffer.pos == in_buffer.size) break;
      }
      if (n == 0) return {};
    }
  };
  auto done = run();
  if (done && ::rename(temporary.c_str(), target.c_str()) != 0) {
    done = fail_errno(errno, fmt::format("cannot write {}", target.string()));
  }
  if (!done) ::unlink(temporary.c_str());
  return done;
}

}  // namespace

Result<WireFiles::Compressed> WireFiles::get(Entry& entry, const std::string& digest,
                                             const std::string& name, const Make& make) {
  return entry.made.with([&](std::unique_ptr<Compressed>& made) -> Result<Compressed> {
    if (made) return *made;
    std::error_code error;
    fs::create_directories(folder_, error);
    Compressed file;
    file.path = folder_ / name;
    const fs::path& source = payload_.content.at(digest);
    file.size = fs::file_size(source, error);
    if (!fs::exists(file.path)) {
      DSI_CHECK(make(source, file.path).map_error(in("while compressing {}", source.string())));
    }
    file.wire_size = fs::file_size(file.path, error);
    if (error) return fail("cannot read {}: {}", file.path.string(), error.message());
    made = std::make_unique<Compressed>(file);
    return file;
  });
}

Result<WireFiles::Compressed> WireFiles::get(const std::string& digest) {
  auto entry = entries_.find(digest);
  if (entry == entries_.end())
    return fail("the host asks for {}, which is not in the release", digest);
  return get(entry->second, digest, digest + ".zst", compress);
}

Result<WireFiles::Compressed> WireFiles::get(const std::string& digest,
                                             const std::string& base_digest, const fs::path& base) {
  DSI_TRY(Compressed whole, get(digest));
  Entry& entry = patches_.with([&](auto& patches) -> Entry& {
    auto& slot = patches[{digest, base_digest}];
    if (!slot) slot = std::make_unique<Entry>();
    return *slot;
  });
  DSI_TRY(Compressed patch, get(entry, digest, digest + "-" + base_digest + ".patch",
                                [&](const fs::path& source, const fs::path& target) {
                                  return make_patch(base, source, target);
                                }));
  // A patch ties the node to what it has; that must be worth something.
  if (patch.wire_size > whole.wire_size - whole.wire_size / 5) return Compressed{};
  return patch;
}

}  // namespace dsi
