#include "orchestrator/examples.h"

#include <algorithm>
#include <system_error>

#include "orchestrator/base/shell_quote.h"
#include "orchestrator/text.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;

// The regular files below the folder, relative to it. What a Python or an editor left there is none
// of ours.
Result<std::vector<fs::path>> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.') || name == "__pycache__" || name == "build") {
      at.disable_recursion_pending();
    } else if (at->symlink_status(error).type() == fs::file_type::regular) {
      files.push_back(at->path().lexically_relative(folder));
    }
  }
  if (error) return fail_errno(error.value(), fmt::format("cannot read {}", folder.string()));
  std::sort(files.begin(), files.end());
  return files;
}

// Takes away what was made, unless all went well.
class Made {
 public:
  ~Made() {
    std::error_code ignored;
    for (auto path = paths_.rbegin(); path != paths_.rend(); ++path) fs::remove(*path, ignored);
  }
  void add(fs::path path) { paths_.push_back(std::move(path)); }
  void keep() { paths_.clear(); }

  Result<void> folder(const fs::path& path) {
    std::error_code error;
    if (path.empty() || fs::is_directory(path, error)) return {};
    DSI_CHECK(folder(path.parent_path()));
    if (!fs::create_directory(path, error) && error) {
      return fail_errno(error.value(), fmt::format("cannot make the folder {}", path.string()));
    }
    add(path);
    return {};
  }

 private:
  std::vector<fs::path> paths_;
};

}  // namespace

Result<WrittenExamples> write_examples(const fs::path& source, const fs::path& target) {
  DSI_TRY(const std::vector<fs::path> files, files_below(source));
  if (files.empty()) {
    return fail_with_help(fmt::format("there are no examples in {}", source.string()),
                          "install ds-install again, with its data");
  }
  for (const fs::path& file : files) {
    const fs::path path = target / file;
    std::error_code error;
    if (fs::exists(fs::symlink_status(path, error))) {
      return fail_with_help(fmt::format("{} is there already; nothing was written", path.string()),
                            "name another folder: ds-install -e FOLDER");
    }
  }

  Made made;
  WrittenExamples written;
  for (const fs::path& file : files) {
    const fs::path path = target / file;
    DSI_CHECK(made.folder(path.parent_path()));
    std::error_code error;
    // Without overwrite_existing, the file that somebody made meanwhile is an error, too.
    fs::copy_file(source / file, path, fs::copy_options::none, error);
    if (error) {
      // Half a copy is ours to take away, somebody else's file is not.
      if (error != std::errc::file_exists) made.add(path);
      return fail_errno(error.value(), fmt::format("cannot write {}", path.string()));
    }
    made.add(path);
    written.files.push_back(path);
  }
  made.keep();

  std::string& text = written.text;
  text = fmt::format("Wrote {} example file{} to {}:\n", files.size(), files.size() == 1 ? "" : "s",
                     printable(target.string()));
  for (const fs::path& file : files) text += fmt::format("  {}\n", printable(file.string()));
  const auto has = [&](const char* name) {
    return std::find(files.begin(), files.end(), fs::path(name)) != files.end();
  };
  text += "\nNext:\n";
  if (has("hostfile")) {
    const std::string hostfile = shell_quote((target / "hostfile").string());
    text += fmt::format("  put your hosts into {}, then\n", hostfile);
    if (has("site.yaml")) {
      text += fmt::format("  ds-install plan -H {} --config {}\n", hostfile,
                          shell_quote((target / "site.yaml").string()));
    }
    text += fmt::format("  ds-install -H {}\n", hostfile);
  } else {
    text += "  ds-install --help\n";
  }
  return written;
}

}  // namespace dsi
