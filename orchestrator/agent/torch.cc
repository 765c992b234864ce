#include "orchestrator/agent/torch.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "orchestrator/agent/child.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/file.h"

namespace dsi::agent {

namespace fs = std::filesystem;

namespace {

constexpr char kLibrary[] = "libtorch_cpu.so";
// Top-level find_spec looks for the package and does not run it: importing torch takes seconds.
constexpr char kAskPython[] =
    "import importlib.util as u; s = u.find_spec('torch'); "
    "print((list(s.submodule_search_locations or []) + [''])[0] if s else '')";

bool has_library(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / kLibrary, ignored);
}

// torch/version.py says __version__ = '2.1.0+cu121'; a C++ package has build-version beside lib;
// a distribution's library says it in its soname's file, libtorch_cpu.so.1.13.
std::string version_at(const std::string& folder) {
  fs::path above = fs::path(folder).parent_path();
  if (auto text = read_file(above / "version.py")) {
    std::size_t at = text->find("__version__");
    std::size_t open = at == std::string::npos ? at : text->find_first_of("'\"", at);
    std::size_t close = open == std::string::npos ? open : text->find((*text)[open], open + 1);
    if (close != std::string::npos) return text->substr(open + 1, close - open - 1);
  }
  if (auto text = read_file(above / "build-version")) {
    return text->substr(0, text->find_first_of(" \r\n"));
  }
  std::error_code ignored;
  std::string real = fs::canonical(fs::path(folder) / kLibrary, ignored).filename().string();
  std::string start = std::string(kLibrary) + ".";
  return real.starts_with(start) ? real.substr(start.size()) : std::string();
}

}  // namespace

std::string output_of(const std::vector<std::string>& argv) {
  auto child = Child::start({argv, {}, 0});
  if (!child) return {};
  Deadline deadline = Deadline::after(std::chrono::seconds(5));
  while (!deadline.passed()) {
    pollfd output{child->out_fd(), POLLIN, 0};
    ::poll(&output, 1, 20);
    child->drain();
    if (auto status = child->ended()) {
      child->drain();
      return WIFEXITED(*status) && WEXITSTATUS(*status) == 0 ? child->out() : std::string();
    }
  }
  return {};
}

namespace {

Torch torch_of(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    for (const std::string& folder : {candidate, candidate + "/lib"}) {
      if (has_library(folder)) return {folder, version_at(folder), true, {}};
    }
  }
  // The last line: whatever a site customisation prints comes before.
  std::string said = output_of({"python3", "-c", kAskPython});
  while (!said.empty() && (said.back() == '\n' || said.back() == '\r')) said.pop_back();
  std::string package = said.substr(said.find_last_of('\n') + 1);
  if (package.starts_with("/") && has_library(package + "/lib")) {
    return {package + "/lib", version_at(package + "/lib"), true, {}};
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/local/lib", "/usr/lib64", "/usr/lib"}) {
    if (has_library(folder)) return {folder, version_at(folder), false, {}};
    // A run-time package has no link for the linker, only the library with its version.
    std::error_code ignored;
    for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      std::string name = at->path().filename().string();
      std::string start = std::string(kLibrary) + ".";
      if (name.starts_with(start)) return {folder, name.substr(start.size()), false, {}};
    }
  }
  return {};
}

// Of <environment>/lib/python3.11/site-packages/torch/lib: <environment>/lib.
std::string environment_of(const std::string& folder) {
  const fs::path package = fs::path(folder).parent_path();
  const fs::path packages = package.parent_path();
  if (package.filename() != "torch" || !packages.filename().string().ends_with("-packages")) {
    return {};
  }
  const fs::path libraries = packages.parent_path().parent_path();
  std::error_code ignored;
  return fs::exists(libraries / "libstdc++.so.6", ignored) ? libraries.string() : std::string();
}

}  // namespace

Torch find_torch(const std::vector<std::string>& candidates) {
  Torch torch = torch_of(candidates);
  torch.environment = environment_of(torch.folder);
  return torch;
}

}  // namespace dsi::agent
