#pragma once

// ssh's client configuration, as ssh(1) reads it.
//
// libssh can parse these files, but gives back only the first IdentityFile, knows neither
// IdentitiesOnly, CertificateFile, HostKeyAlias, AddressFamily nor RevokedHostKeys, takes the home
// folder from the password database even where HOME says otherwise, and reads every file again for
// every host. So the files are read once here, and evaluated per host without any I/O: Host, Match
// (all, final, host, originalhost, user, localuser), Include, first value wins. What needs a
// command or the resolver to decide (Match exec, canonical host names) is left to `ssh -G`, the
// authority, at 10 ms of processor time per host, and only for users whose files mention it.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "hostfile/host.h"
#include "orchestrator/base/deadline.h"
#include "orchestrator/base/result.h"

namespace dsi {

// Where the configuration and the keys are.
struct SshLocations {
  std::filesystem::path home;    // $HOME; the password database only if that is not set.
  std::filesystem::path config;  // As `ssh -F`: read instead of both usual files. Or empty.
  std::string agent_socket;      // $SSH_AUTH_SOCK.
  std::string user;              // Who runs this program.
  static SshLocations from_environment();
};

// Everything that is needed to reach one host.
struct SshTarget {
  std::string host_name;  // What to resolve; lower case.
  std::uint16_t port = 22;
  std::string user;
  std::vector<std::string> identity_files;  // In order; absolute.
  bool identities_configured = false;       // False: `identity_files` are ssh's defaults.
  std::vector<std::string> certificate_files;
  bool identities_only = false;
  std::string agent_socket;    // Empty: no agent.
  std::string proxy_command;   // For /bin/sh, all tokens expanded. Empty: connect directly.
  std::string proxy_key;       // The same before %h and %p: equal for all hosts behind one proxy.
  std::string host_key_alias;  // Empty: host_name and port name the key.
  std::vector<std::string> known_hosts_files;
  std::vector<std::string> revoked_keys_files;
  bool accept_unknown_host_key = false;  // StrictHostKeyChecking no, off or accept-new.
  int address_family = 0;                // AF_UNSPEC, AF_INET or AF_INET6.
  std::string bind_address;
  std::optional<std::chrono::seconds> connect_timeout;
};

// The configuration files, read once. Immutable, so any thread may resolve.
class SshConfig {
 public:
  // A file that is not there is empty; one that cannot be read or parsed is an error with its line.
  static Result<SshConfig> read(SshLocations locations);

  // The host's own user and port (from the hostfile) beat the configuration, as `ssh -l -p` do.
  // Deadline and stop are for `ssh -G`, where it is needed.
  Result<SshTarget> resolve(const Host& host, Deadline deadline, std::stop_token stop) const;

 private:
  struct Directive {
    std::string keyword;            // Lower case.
    std::vector<std::string> args;  // Quotes removed.
    std::string rest;               // The whole argument text, for ProxyCommand.
    std::string where;              // "file:line".
    std::vector<Directive> included;
  };
  // keyword → one list of arguments for each line that applied.
  using Values = std::map<std::string, std::vector<std::vector<std::string>>>;
  struct Names {
    std::string original;
    std::string host;
    std::string user;
    bool final_pass = false;
  };

  static Result<std::vector<Directive>> read_file_tree(const std::filesystem::path& file,
                                                       const std::filesystem::path& base,
                                                       const SshLocations& locations, int depth);
  void evaluate(const std::vector<Directive>& directives, bool outer, const Names& names,
                Values& values) const;
  bool match_applies(const Directive& directive, const Names& names) const;
  void scan(const std::vector<Directive>& directives);
  Result<Values> ask_ssh(const Host& host, Deadline deadline, std::stop_token stop) const;
  Result<SshTarget> target_from(const Host& host, const Values& values) const;
  Result<std::string> expand(const std::string& text, const SshTarget& target, const Host& host,
                             const std::string& keyword) const;

  SshLocations locations_;
  std::vector<Directive> user_;
  std::vector<Directive> system_;
  bool needs_ssh_ = false;
  bool has_final_ = false;
};

// ssh's pattern lists: `*`, `?`, and `!` for what must not match.
bool ssh_pattern_matches(std::string_view pattern, std::string_view text);
bool ssh_pattern_list_matches(const std::vector<std::string>& patterns, std::string_view text);

}  // namespace dsi
