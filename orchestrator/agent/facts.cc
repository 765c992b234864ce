// A static program cannot ask getpwnam or getaddrinfo: they load libraries of the node. The
// environment and /etc/passwd, read as text, are enough.
#include "orchestrator/agent/facts.h"

#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "orchestrator/agent/hold.h"
#include "orchestrator/agent/prefix.h"
#include "orchestrator/base/cpu_level.h"
#include "orchestrator/base/file.h"
#include "orchestrator/manifest.h"

namespace dsi::agent {

namespace {

// The fields of a user's line in /etc/passwd, seven at least; empty if there is none.
std::vector<std::string> passwd_line(const std::string& uid) {
  const std::string text = read_file("/etc/passwd").value_or("");
  for (std::size_t start = 0; start < text.size();) {
    std::size_t end = std::min(text.find('\n', start), text.size());
    std::vector<std::string> fields{""};
    for (char c : std::string_view(text).substr(start, end - start)) {
      if (c == ':') {
        fields.emplace_back();
      } else {
        fields.back() += c;
      }
    }
    if (fields.size() >= 6 && fields[2] == uid) {
      fields.resize(std::max<std::size_t>(fields.size(), 7));
      return fields;
    }
    start = end + 1;
  }
  return {};
}

}  // namespace

std::string name_of_user(uid_t uid) {
  const std::string number = std::to_string(uid);
  const std::vector<std::string> fields = passwd_line(number);
  return fields.empty() || fields[0].empty() ? number : fields[0];
}

Account find_account() {
  Account account;
  for (const char* variable : {"USER", "LOGNAME"}) {
    const char* value = std::getenv(variable);
    if (account.name.empty() && value != nullptr) account.name = value;
  }
  if (const char* home = std::getenv("HOME")) account.home = home;
  std::string uid = std::to_string(::geteuid());
  if (const std::vector<std::string> fields = passwd_line(uid); !fields.empty()) {
    if (account.name.empty()) account.name = fields[0];
    if (account.home.empty()) account.home = fields[5];
    account.shell = fields[6];
  }
  if (account.name.empty()) account.name = uid;
  // An account of a directory service is not in the file; its session has the variable.
  const char* shell = std::getenv("SHELL");
  if (account.shell.empty()) account.shell = shell != nullptr && *shell != 0 ? shell : "/bin/sh";
  return account;
}

Account find_login_account() {
  const char* number = std::getenv("SUDO_UID");
  const char* name = std::getenv("SUDO_USER");
  if (::geteuid() != 0 || number == nullptr || name == nullptr || std::string(number) == "0") {
    return find_account();
  }
  // An account of a directory service is not in the file.
  const std::vector<std::string> fields = passwd_line(number);
  if (fields.empty()) return {name, "", "/bin/sh"};
  return {fields[0], fields[5], fields[6].empty() ? "/bin/sh" : fields[6]};
}

Result<std::string> choose_prefix(std::string given) {
  bool in_home = given.starts_with("~/");
  if (given.empty() && ::geteuid() == 0) return "/opt/ds-ops";
  if (given.empty() || in_home) {
    std::string home = find_account().home;
    if (home.empty() || home.front() != '/') {
      return fail_with_help("this user has no home folder", "name a folder with --prefix");
    }
    while (home.ends_with('/')) home.pop_back();
    given = home + (in_home ? given.substr(1) : "/.local/share/ds-ops");
  }
  while (given.size() > 1 && given.ends_with('/')) given.pop_back();
  if (given.front() != '/' || !is_safe_relative_path(std::string_view(given).substr(1))) {
    return fail_with_help(fmt::format("the prefix \"{}\" is no absolute path to a folder", given),
                          "name a folder as /a/b, without \".\" and \"..\"");
  }
  return given;
}

Space space_at(const std::string& path) {
  struct statvfs status {};
  std::string at = path;
  while (::statvfs(at.c_str(), &status) != 0) {
    std::size_t slash = at.find_last_of('/');
    if (at == "/" || slash == std::string::npos) return {};
    at = slash == 0 ? "/" : at.substr(0, slash);
  }
  bool root = ::geteuid() == 0;  // May use what is reserved.
  Space space;
  space.bytes = std::uint64_t{root ? status.f_bfree : status.f_bavail} * status.f_frsize;
  space.inodes = status.f_files == 0 ? std::numeric_limits<std::uint64_t>::max()
                                     : std::uint64_t{root ? status.f_ffree : status.f_favail};
  space.read_only = (status.f_flag & ST_RDONLY) != 0;
  space.no_exec = (status.f_flag & ST_NOEXEC) != 0;
  return space;
}

protocol::Facts find_facts(const std::string& prefix) {
  protocol::Facts facts;
  utsname system{};
  ::uname(&system);
  facts.host_name = system.nodename;
  facts.arch = system.machine;
  facts.kernel = system.release;
  facts.cpu_level = cpu_level();
  facts.user = find_account().name;
  facts.root = ::geteuid() == 0;
  facts.prefix = prefix;
  Releases releases = find_releases(prefix);
  facts.current = releases.current;
  facts.previous = releases.previous;
  facts.free_bytes = space_at(prefix).bytes;
  facts.held = find_hold(prefix);
  return facts;
}

}  // namespace dsi::agent
