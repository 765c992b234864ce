#pragma once

// Who the hosts are: known_hosts files, read and indexed once per run.
//
// libssh's own check is not used: it reads the files again for every host (78 ms for a hashed file
// of 5,000 lines), and it skips @revoked lines, so that a revoked key is accepted.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

struct KnownKey {
  enum class Marker { kHost, kAuthority, kRevoked };
  Marker marker = Marker::kHost;
  std::string type;    // "ssh-ed25519"
  std::string base64;  // The key itself.
  std::string where;   // "file:line"
};

// The lines of some files. Immutable after read(), so any thread may ask.
class KnownHosts {
 public:
  // A file that is not there is empty. One that cannot be read is an error: what is in it might be
  // a revocation. A line that cannot be parsed is skipped, as ssh does.
  static Result<KnownHosts> read(const std::vector<std::string>& files,
                                 const std::vector<std::string>& revoked_keys_files);

  // What is on record for `name`: a host name, or "[name]:port" for another port than 22.
  std::vector<KnownKey> find(std::string_view name) const;

  // Keys of RevokedHostKeys files: refused whoever shows them.
  const std::vector<KnownKey>& revoked() const { return revoked_; }

 private:
  struct Hashed {
    std::string salt;  // 20 bytes
    std::string hash;  // HMAC-SHA1 of the name under the salt
    std::size_t key;
  };
  struct Pattern {
    std::vector<std::string> patterns;
    std::size_t key;
  };
  void add_line(std::string_view line, const std::string& where);

  std::vector<KnownKey> keys_;
  std::unordered_multimap<std::string, std::size_t> plain_;
  std::vector<Hashed> hashed_;
  std::vector<Pattern> patterns_;
  std::vector<KnownKey> revoked_;
};

// The names under which the key of a host is looked up, first to last: with HostKeyAlias only that;
// otherwise the host name, with its port if that is not 22 and then without.
std::vector<std::string> known_host_names(const std::string& host_name, std::uint16_t port,
                                          const std::string& alias);

// What is on record under the first of the names that has anything.
std::vector<KnownKey> find_known_keys(const KnownHosts& known,
                                      const std::vector<std::string>& names);

enum class HostKeyVerdict { kKnown, kUnknown, kChanged, kRevoked };
struct HostKeyAnswer {
  HostKeyVerdict verdict = HostKeyVerdict::kUnknown;
  Error error;  // For all but kKnown.
};
// Compares the key that a host shows with what is on record. `keyscan` is the command that would
// show the same key, for the help text.
HostKeyAnswer check_host_key(const KnownHosts& known, const std::vector<KnownKey>& on_record,
                             const std::string& host, const std::string& keyscan,
                             const std::string& type, const std::string& base64);

// Host key algorithms to ask for: those on record first, as ssh does, so that a host known by its
// ed25519 key is asked for that one; the others after, so that a host that has no such key any
// more gives a comprehensible error and not a failed negotiation.
std::string host_key_algorithms(const std::vector<KnownKey>& on_record);

// "SHA256:…" of a base64 key, as ssh-keygen -l prints it.
std::string key_fingerprint(const std::string& base64);

}  // namespace dsi
