#include "orchestrator/lock_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <thread>
#include <utility>

namespace dsi {

using namespace std::chrono_literals;

Result<UniqueFd> lock_folder(const std::filesystem::path& path, Progress& progress,
                             std::stop_token stop) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) return fail_errno(errno, fmt::format("cannot open {}", path.string()));
  for (bool told = false; ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return fail_errno(errno, fmt::format("cannot lock {}", path.string()));
    }
    if (stop.stop_requested()) return fail("interrupted while another run was building");
    if (!std::exchange(told, true)) {
      progress.lasting("Waiting", "for another ds-install that builds the same");
    }
    std::this_thread::sleep_for(100ms);
  }
  return fd;
}

}  // namespace dsi
