#include "hostfile/hostfile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "hostfile/collector.h"
#include "hostfile/readers.h"
#include "hostfile/source_text.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;

// More files than this in one run are a loop of symbolic links, not a cluster.
constexpr std::size_t kMaxIncludedFiles = 1000;

enum class Kinds { kRegularFile, kFileOrPipe };

Result<std::string> read_limited(const fs::path& path, Kinds kinds) {
  // An include that names a pipe must not wait for a writer. The hostfile itself may be a pipe,
  // and then a slow writer is waited for.
  const int no_wait = kinds == Kinds::kRegularFile ? O_NONBLOCK : 0;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | no_wait));
  if (!fd) return fail_errno(errno, "cannot be opened");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return fail_errno(errno, "cannot be read");
  if (S_ISDIR(status.st_mode)) return fail_with_help("is a folder", "name the file in it");
  if (kinds == Kinds::kRegularFile && !S_ISREG(status.st_mode)) return fail("is no regular file");
  std::string text;
  char buffer[64 * 1024];
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(errno, "cannot be read");
    text.append(buffer, static_cast<std::size_t>(n));
    if (text.size() > kMaxHostfileBytes) {
      return fail_with_help(fmt::format("is larger than {} MiB", kMaxHostfileBytes / (1024 * 1024)),
                            "check that it is a hostfile");
    }
  }
}

class Run {
 public:
  explicit Run(const IncludeReader& include) : include_(include) {}

  void hostfile(std::string_view text, const fs::path& path, std::string name) {
    const std::size_t file = collector_.add_file(std::move(name));
    open_.push_back(path.lexically_normal());
    SourceText source(text, collector_.file_name(file));
    for (const Diagnostic& diagnostic : source.diagnostics()) {
      collector_.report(file, diagnostic);
    }
    const std::size_t before = collector_.host_count();
    bool has_content = source.is_binary();
    for (const SourceLine& line : source.lines()) {
      if (line.text.find_first_not_of(" \t") == line.text.npos) continue;
      has_content = true;
      for (const Reader& reader : hostfile_readers()) {
        if (!reader.claims(line.text)) continue;
        reader.read(line, file, collector_);
        break;
      }
      follow_includes(path.parent_path());
      if (collector_.full()) break;
    }
    if (!has_content) {
      collector_.error({file, 0, 0}, "names no host: it is empty or holds only comments",
                       "write one host a line, as in: worker-1 slots=8");
    } else if (collector_.host_count() == before && !collector_.has_errors()) {
      collector_.error({file, 0, 0}, "names no host");
    }
    open_.pop_back();
  }

  void list(std::string_view text, std::string name) {
    const std::size_t file = collector_.add_file(std::move(name));
    SourceText source(text, collector_.file_name(file), false);
    for (const Diagnostic& diagnostic : source.diagnostics()) {
      collector_.report(file, diagnostic);
    }
    for (const SourceLine& line : source.lines()) {
      read_host_list_line(line, file, collector_);
      follow_includes({});
      if (collector_.full()) break;
    }
    if (collector_.host_count() == 0 && !collector_.has_errors()) {
      collector_.error({file, 0, 0}, "names no host", "write it as in: node[01-08],login");
    }
  }

  void failed_to_read(const fs::path& path, const Error& error) {
    collector_.error({collector_.add_file(path.string()), 0, 0}, error.what, error.help);
  }

  ParsedHosts finish() {
    ParsedHosts parsed;
    collector_.finish(parsed.hosts, parsed.diagnostics);
    return parsed;
  }

 private:
  void follow_includes(const fs::path& folder) {
    for (const auto& [text, place] : collector_.take_includes()) {
      const fs::path path = (folder / text).lexically_normal();
      if (std::find(open_.begin(), open_.end(), path) != open_.end()) {
        collector_.error(place, fmt::format("{} includes itself", in_quotes(path.string())));
      } else if (open_.size() >= static_cast<std::size_t>(kMaxIncludeDepth)) {
        collector_.error(place,
                         fmt::format("files include files more than {} deep", kMaxIncludeDepth));
      } else if (!included_.insert(path).second) {
        // Reading it again would name each of its hosts twice.
        collector_.error(place,
                         fmt::format("{} is included a second time", in_quotes(path.string())),
                         "remove one of the two");
      } else if (included_.size() > kMaxIncludedFiles) {
        collector_.error(place, fmt::format("more than {} files are included", kMaxIncludedFiles));
      } else if (auto content = include_(path)) {
        hostfile(*content, path, path.string());
      } else {
        std::string help = content.error().help;
        if (help.empty()) {
          help =
              "`^` reads another file, relative to the folder of this one, as pdsh does; to leave "
              "a host out write -name behind a list";
        }
        collector_.error(
            place, fmt::format("{} {}", in_quotes(path.string()), content.error().what), help);
      }
    }
  }

  const IncludeReader& include_;
  Collector collector_;
  std::vector<fs::path> open_;  // The chain of files being read.
  std::set<fs::path> included_;
};

}  // namespace

bool ParsedHosts::ok() const {
  return std::none_of(diagnostics.begin(), diagnostics.end(), [](const Diagnostic& diagnostic) {
    return diagnostic.severity == Diagnostic::kError;
  });
}

Result<std::string> read_included_file(const fs::path& path) {
  return read_limited(path, Kinds::kRegularFile);
}

ParsedHosts parse_hostfile(std::string_view text, std::string_view file_name,
                           const IncludeReader& include) {
  Run run(include);
  run.hostfile(text, fs::path(file_name), std::string(file_name));
  return run.finish();
}

ParsedHosts read_hostfile(const fs::path& path) {
  IncludeReader include = read_included_file;
  Run run(include);
  if (auto text = read_limited(path, Kinds::kFileOrPipe)) {
    run.hostfile(*text, path, path.string());
  } else {
    run.failed_to_read(path, text.error());
  }
  return run.finish();
}

ParsedHosts parse_host_list(std::string_view text, std::string_view source,
                            const IncludeReader& include) {
  Run run(include);
  run.list(text, std::string(source));
  return run.finish();
}

}  // namespace dsi
