#pragma once

// A folder held open. Everything in it is reached from the descriptor, name by name and never
// through a symbolic link, so that a link planted anywhere below the prefix cannot lead the agent,
// which may run as root, to a file outside.

#include <sys/stat.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/base/unique_fd.h"

namespace dsi::agent {

// "<what>: <system's text>", with a help that fits the errno value.
[[nodiscard]] tl::unexpected<Error> fail_system(int error_number, std::string what);

class Folder {
 public:
  // Links in `path` itself are followed: where the prefix lies is the owner's decision.
  static Result<Folder> open(const std::string& path);
  // With its parents, mode 0755.
  static Result<Folder> make(const std::string& path);

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const;

  // The same folder, held a second time.
  Result<Folder> again() const;
  // An existing folder in this one.
  Result<Folder> folder(const std::string& name) const;
  // The same, made with mode 0755 if it is missing.
  Result<Folder> make_folder(const std::string& name) const;

  // False if there is nothing of that name. Never follows a link.
  bool status(const std::string& name, struct stat& status) const;
  bool exists(const std::string& name) const;

  // A regular file, to read. A link, FIFO or device of that name is an error.
  Result<UniqueFd> open_file(const std::string& name) const;
  // A new file, to write; an error if there is anything of that name. Mode as given, whatever the
  // umask.
  Result<UniqueFd> create_file(const std::string& name, mode_t mode) const;
  // Writes <name>.partial, fsyncs it and renames it over `name`.
  Result<void> write_file(const std::string& name, std::string_view data, mode_t mode) const;
  Result<std::string> read_file(const std::string& name) const;

  Result<void> rename(const std::string& name, const Folder& to, const std::string& new_name) const;
  // A file, a link, or a folder with all that is in it. Nothing there is a success.
  Result<void> remove(const std::string& name) const;
  // A folder, if it is empty.
  void remove_if_empty(const std::string& name) const;

  Result<std::vector<std::string>> names() const;  // Sorted; without "." and "..".
  Result<void> sync() const;

 private:
  Folder(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

// SHA-256 of all that can be read from here to the end.
Result<std::string> sha256_of(int fd, const std::string& path);

// Calls `piece` with all that can be read from here to the end, in pieces.
Result<void> read_pieces(int fd, const std::string& path,
                         const std::function<Result<void>(std::string_view)>& piece);

}  // namespace dsi::agent
