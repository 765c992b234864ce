#include "orchestrator/environment/sandbox.h"

#include <algorithm>
#include <system_error>

#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

// `path` is `folder`, or lies in it.
bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// Mounts what lies in `folder` of the root. A folder above a shown one is not mounted whole but
// opened, and its entries are mounted: in a mount that cannot be written no place can be made.
void mount_entries(const fs::path& root, const fs::path& folder,
                   const std::vector<ShownFolder>& shown, std::vector<std::string>& argv) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(root / folder.relative_path(), error), end; !error && it != end;
       it.increment(error)) {
    entries.push_back(it->path().filename());
  }
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    const fs::path inside = folder / entry;
    const fs::path outside = root / inside.relative_path();
    if (inside == "/proc" || inside == "/dev" || inside == "/sys" || inside == "/tmp") continue;
    if (fs::is_symlink(outside)) {
      argv.insert(argv.end(),
                  {"--symlink", fs::read_symlink(outside, error).string(), inside.string()});
      continue;
    }
    auto lies_here = [&](const ShownFolder& one) { return is_within(one.path, inside); };
    if (fs::is_directory(outside) && std::any_of(shown.begin(), shown.end(), lies_here)) {
      argv.insert(argv.end(), {"--dir", inside.string()});
      auto is_this = [&](const ShownFolder& one) { return one.path == inside; };
      if (std::none_of(shown.begin(), shown.end(), is_this)) {
        mount_entries(root, inside, shown, argv);
      }
      continue;
    }
    argv.insert(argv.end(), {"--ro-bind", outside.string(), inside.string()});
  }
}

}  // namespace

std::vector<std::string> sandbox_command(const fs::path& root, std::vector<ShownFolder> shown,
                                         const Command& command) {
  std::vector<std::string> argv = {"bwrap", "--unshare-all", "--die-with-parent"};
  // A folder before those that lie in it.
  std::sort(shown.begin(), shown.end(),
            [](const ShownFolder& a, const ShownFolder& b) { return a.path < b.path; });
  mount_entries(root, "/", shown, argv);
  argv.insert(argv.end(), {"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"});
  for (const ShownFolder& one : shown) {
    argv.insert(argv.end(),
                {one.writable ? "--bind" : "--ro-bind", one.path.string(), one.path.string()});
  }
  argv.emplace_back("--clearenv");
  std::vector<std::pair<std::string, std::string>> variables = {
      {"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"HOME", "/tmp"}, {"LC_ALL", "C.UTF-8"}};
  variables.insert(variables.end(), command.environment.begin(), command.environment.end());
  for (const auto& [name, value] : variables) {
    argv.insert(argv.end(), {"--setenv", name, value});
  }
  argv.insert(argv.end(),
              {"--chdir", command.folder.empty() ? "/" : command.folder.string(), "--"});
  argv.insert(argv.end(), command.argv.begin(), command.argv.end());
  return argv;
}

Result<ProcessResult> Sandbox::run(const Command& command, Deadline deadline, std::stop_token stop,
                                   const OnLine& on_line) {
  Command inside;
  inside.argv = sandbox_command(root_, shown_, command);
  inside.input = command.input;
  return outside_.run(inside, deadline, stop, on_line);
}

Result<void> Sandbox::check(std::stop_token stop) {
  auto ran = run({{"sh", "-c", ":"}, {}, {}, {}}, Deadline::after(30s), stop);
  if (ran && ran->ok()) return {};
  if (!ran) {
    return fail_with_help(
        fmt::format("nothing can be run in {}: {}", root_.string(), ran.error().what),
        "install bubblewrap: apt-get install bubblewrap");
  }
  const std::string why = ran->err.substr(0, ran->err.find('\n'));
  const bool refused = why.find("namespace") != std::string::npos ||
                       why.find("ermission") != std::string::npos ||
                       why.find("not permitted") != std::string::npos;
  return fail_with_help(
      fmt::format("nothing can be run in {}: {}", root_.string(), printable(why)),
      refused ? "this machine refuses user namespaces: allow them (sysctl "
                "kernel.unprivileged_userns_clone=1, user.max_user_namespaces, or AppArmor's "
                "apparmor_restrict_unprivileged_userns=0), or run as root"
              : "make the environment anew: ds-install env --lock FILE --make DIR");
}

}  // namespace dsi
