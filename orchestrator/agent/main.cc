// ds-agent: the program on a node. One static file, so that it runs wherever the kernel does; as
// bin/ds-report of a release it reports.

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "orchestrator/agent/ds_report.h"
#include "orchestrator/agent/serve.h"

namespace dsi::agent {
namespace {

constexpr char kUsage[] =
    "ds-agent installs releases on this node for ds-install, which starts it.\n"
    "\n"
    "  ds-agent serve NONCE PREFIX        speak with ds-install on standard input and output\n"
    "  ds-agent report [--json] [PREFIX]  the same as ds-report\n";

int run(const std::vector<std::string>& words) {
  std::string name = words[0].substr(words[0].find_last_of('/') + 1);
  std::vector<std::string> rest(words.begin() + 1, words.end());
  if (name == "ds-report") return ds_report(rest);
  std::string command = rest.empty() ? "" : rest[0];
  if (command == "report") return ds_report({rest.begin() + 1, rest.end()});
  if (command == "serve" && rest.size() == 3) {
    return serve(rest[1], rest[2], STDIN_FILENO, STDOUT_FILENO);
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
