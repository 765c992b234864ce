#include "orchestrator/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

#include "orchestrator/base/unique_fd.h"

namespace dsi {

Result<std::string> read_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", path.string()));
  std::string data;
  struct stat status {};
  if (::fstat(fd.get(), &status) == 0 && status.st_size > 0) {
    data.reserve(static_cast<std::size_t>(status.st_size));
  }
  char buffer[64 * 1024];
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n == 0) return data;
    if (n < 0) {
      if (errno == EINTR) continue;
      return fail_errno(errno, fmt::format("cannot read {}", path.string()));
    }
    data.append(buffer, static_cast<std::size_t>(n));
  }
}

Result<void> write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return fail_errno(errno, "cannot write");
    }
    data.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view data,
                                   mode_t mode) {
  std::string temporary = path.string() + ".XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot write in {}", path.parent_path().string()));
  auto give_up = [&](Error error) {
    ::unlink(temporary.c_str());
    return tl::unexpected<Error>(in("while writing {}", path.string())(std::move(error)));
  };
  if (auto written = write_all(fd.get(), data); !written) return give_up(written.error());
  if (::fchmod(fd.get(), mode) != 0 || ::fsync(fd.get()) != 0 ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    return give_up(fail_errno(errno, "cannot put it in place").value());
  }
  UniqueFd folder(::open(path.has_parent_path() ? path.parent_path().c_str() : ".",
                         O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) ::fsync(folder.get());
  return {};
}

}  // namespace dsi
