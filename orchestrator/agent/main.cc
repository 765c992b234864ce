// ds-agent: the program on a node. One static file, so that it runs wherever the kernel does; as
// bin/ds-report of a release it reports.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "orchestrator/agent/ds_report.h"
#include "orchestrator/agent/folder.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/agent/serve.h"

namespace dsi::agent {
namespace {

constexpr char kUsage[] =
    "ds-agent installs releases on this node for ds-install, which starts it.\n"
    "\n"
    "  ds-agent serve NONCE PREFIX        speak with ds-install on standard input and output\n"
    "  ds-agent adopt DIGEST DESTINATION  become the file DESTINATION if this file is whole\n"
    "  ds-agent report [--json] [PREFIX]  the same as ds-report\n";

// The head has no way but this program to check what it uploaded: a node need not have sha256sum.
Result<void> adopt(const std::string& digest, const std::string& destination) {
  char buffer[4096];
  ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (n <= 0) return fail_system(errno, "cannot read /proc/self/exe");
  std::string own(buffer, static_cast<std::size_t>(n));
  if (own_digest() != digest) {
    ::unlink(own.c_str());
    return fail_with_help(
        fmt::format("the agent arrived with the SHA-256 {} and not {}", own_digest(), digest),
        "the connection alters or cuts off data: try again, then look for it");
  }
  UniqueFd fd(::open(own.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::fchmod(fd.get(), 0755) != 0 || ::fsync(fd.get()) != 0 ||
      ::rename(own.c_str(), destination.c_str()) != 0) {
    return fail_system(errno, fmt::format("cannot put the agent at {}", destination));
  }
  std::size_t slash = destination.find_last_of('/');
  DSI_TRY(Folder folder,
          Folder::open(slash == std::string::npos ? "." : destination.substr(0, slash + 1)));
  return folder.sync();
}

int run(const std::vector<std::string>& words) {
  std::string name = words[0].substr(words[0].find_last_of('/') + 1);
  std::vector<std::string> rest(words.begin() + 1, words.end());
  if (name == "ds-report") return ds_report(rest);
  std::string command = rest.empty() ? "" : rest[0];
  if (command == "report") return ds_report({rest.begin() + 1, rest.end()});
  if (command == "serve" && rest.size() == 3) {
    return serve(rest[1], rest[2], STDIN_FILENO, STDOUT_FILENO);
  }
  if (command == "adopt" && rest.size() == 3) {
    if (auto done = adopt(rest[1], rest[2]); !done) {
      std::fprintf(stderr, "%s\n", to_string(done.error()).c_str());
      return 1;
    }
    return 0;
  }
  bool help = command == "--help" || command == "-h";
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? 0 : 2;
}

}  // namespace
}  // namespace dsi::agent

int main(int argc, char** argv) {
  // A head that is gone is an error of write(), not the end without cleaning up.
  std::signal(SIGPIPE, SIG_IGN);
  // A limit on file sizes likewise.
  std::signal(SIGXFSZ, SIG_IGN);
  // Every mode is given where a file is made; the user's umask must not decide who can load an op.
  ::umask(0);
  std::vector<std::string> words(argv, argv + argc);
  if (words.empty()) words.emplace_back("ds-agent");
  return dsi::agent::run(words);
}
