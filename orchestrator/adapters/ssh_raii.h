#pragma once

// Owners for libssh's handles. Included by this room's .cc files only.

#include <libssh/callbacks.h>
#include <libssh/libssh.h>

#include <memory>
#include <string>

namespace dsi {

struct SshDeleter {
  void operator()(ssh_session_struct* session) const { ssh_free(session); }
  void operator()(ssh_channel_struct* channel) const { ssh_channel_free(channel); }
  void operator()(ssh_key_struct* key) const { ssh_key_free(key); }
  void operator()(ssh_event_struct* event) const { ssh_event_free(event); }
};
using SshSession = std::unique_ptr<ssh_session_struct, SshDeleter>;
using SshChannelHandle = std::unique_ptr<ssh_channel_struct, SshDeleter>;
using SshKey = std::unique_ptr<ssh_key_struct, SshDeleter>;
using SshEvent = std::unique_ptr<ssh_event_struct, SshDeleter>;

struct SshStringDeleter {
  void operator()(char* text) const { ssh_string_free_char(text); }
};
using SshText = std::unique_ptr<char, SshStringDeleter>;

// The public key as it stands in known_hosts and authorized_keys; empty if it cannot be had.
inline std::string public_key_base64(ssh_key key) {
  char* text = nullptr;
  if (ssh_pki_export_pubkey_base64(key, &text) != SSH_OK) return {};
  return SshText(text).get();
}

}  // namespace dsi
