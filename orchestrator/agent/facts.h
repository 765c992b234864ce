#pragma once

#include <sys/types.h>

#include <string>

#include "orchestrator/agent/protocol.h"

namespace dsi::agent {

// The prefix to use: `given`, or the default if it is empty. "~/x" is in the user's home. Absolute,
// without a trailing slash; an error for what cannot be a prefix.
Result<std::string> choose_prefix(std::string given);

// Of the user who runs this program.
struct Account {
  std::string name;
  std::string home;
  std::string shell;  // Of a login.
};
Account find_account();
// Of the user who has logged in: if this program runs under sudo, the one who called it. The home
// is empty if it is not known.
Account find_login_account();
// As /etc/passwd has it; else the number.
std::string name_of_user(uid_t uid);

// Reads only; changes nothing.
protocol::Facts find_facts(const std::string& prefix);

// Bytes and inodes that this user may still use where `path` is or would be.
struct Space {
  std::uint64_t bytes = 0;
  std::uint64_t inodes = 0;  // Where the file system does not count them: the largest number.
  bool read_only = false;
  bool no_exec = false;
};
Space space_at(const std::string& path);

}  // namespace dsi::agent
