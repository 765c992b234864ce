#include "orchestrator/loader/peer.h"

#include <linux/in.h>
#include <linux/in6.h>

#include "orchestrator/loader/sha256.h"
#include "orchestrator/loader/stream.h"
#include "orchestrator/loader/sys.h"

// An address that is dead must not use up the time of those that follow: each gets this start.
enum { kNextAddressMs = 250 };

static const char kMagic[4] = {'D', 'S', 'L', '1'};

// A socket that connects to the address, or a negative error number.
static long start_connecting(const char* text, uint16_t port) {
  uint8_t bytes[16];
  union {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    uint8_t all[sizeof(struct sockaddr_in6)];
  } address;
  for (size_t i = 0; i < sizeof address.all; ++i) address.all[i] = 0;
  const uint16_t network_port = (uint16_t)(port << 8 | port >> 8);
  unsigned size = parse_address(text, bytes);
  if (size == 0) return -EINVAL;
  if (size == 4) {
    address.v4.sin_family = kAfInet;
    address.v4.sin_port = network_port;
    for (unsigned i = 0; i < size; ++i) ((uint8_t*)&address.v4.sin_addr)[i] = bytes[i];
  } else {
    address.v6.sin6_family = kAfInet6;
    address.v6.sin6_port = network_port;
    for (unsigned i = 0; i < size; ++i) ((uint8_t*)&address.v6.sin6_addr)[i] = bytes[i];
  }
  long fd = sys_socket(size == 4 ? kAfInet : kAfInet6, kSockStream | kSockNonblock | kSockCloexec);
  if (fd < 0) return fd;
  long code = sys_connect((int)fd, address.all, size == 4 ? sizeof address.v4 : sizeof address.v6);
  if (code == 0 || code == -EINPROGRESS) return fd;
  sys_close((int)fd);
  return code;
}

static void add_name(struct text* text, const struct peer* peer, unsigned index) {
  text_add(text, peer->addresses[index]);
  text_add(text, " port ");
  text_add_number(text, peer->port);
}

// The first address that answers; -1 if none does.
static int connect_to(const struct peer* peer, unsigned* which, struct failure* failure) {
  struct pollfd polls[kMaxAddresses];
  long errors[kMaxAddresses];  // Of those that are given up.
  unsigned started = 0;
  unsigned open = 0;
  int winner = -1;
  const int64_t until = sys_now_ms() + peer->connect_ms;
  int64_t next = 0;  // When the next address is tried, at the latest.
  for (unsigned i = 0; i < peer->address_count; ++i) errors[i] = ETIMEDOUT;
  while (winner < 0) {
    int64_t now = sys_now_ms();
    if (now >= until || (open == 0 && started == peer->address_count)) break;
    if (started < peer->address_count && (open == 0 || now >= next)) {
      long fd = start_connecting(peer->addresses[started], peer->port);
      polls[started] = (struct pollfd){fd < 0 ? -1 : (int)fd, POLLOUT, 0};
      if (fd < 0) errors[started] = -fd;
      open += fd >= 0;
      ++started;
      next = now + kNextAddressMs;
      continue;
    }
    int64_t wait = (started < peer->address_count && next < until ? next : until) - now;
    struct timespec timeout = {wait / 1000, wait % 1000 * 1000000};
    if (sys_ppoll(polls, started, &timeout) <= 0) continue;
    for (unsigned i = 0; i < started && winner < 0; ++i) {
      if (polls[i].fd < 0 || polls[i].revents == 0) continue;
      int error = 0;
      sys_socket_error(polls[i].fd, &error);
      if (error == 0) {
        winner = polls[i].fd;
        *which = i;
      } else {
        errors[i] = error;
        sys_close(polls[i].fd);
        polls[i].fd = -1;
        --open;
      }
    }
  }
  for (unsigned i = 0; i < started; ++i) {
    if (polls[i].fd >= 0 && polls[i].fd != winner) sys_close(polls[i].fd);
  }
  if (winner < 0) {
    struct text* text = fail_with(failure, kFailConnect);
    text_add(text, "cannot connect to ");
    add_name(text, peer, 0);
    text_add(text, ": ");
    text_add_error(text, errors[0]);
    if (peer->address_count > 1) {
      text_add(text, "; nor to its other addresses, ");
      text_add(text, peer->addresses[1]);
      text_add(text, ": ");
      text_add_error(text, errors[1]);
      if (peer->address_count > 2) text_add(text, ", ...");
    }
  }
  return winner;
}

static bool explain(enum stream_end end, long error, const struct peer* peer, unsigned which,
                    const char* ended, int ended_code, struct failure* failure) {
  struct text* text = fail_with(failure, end == kStreamSilent  ? kFailSilent
                                         : end == kStreamEnded ? ended_code
                                                               : kFailBroken);
  add_name(text, peer, which);
  if (end == kStreamSilent) {
    text_add(text, " is silent or too slow");
  } else if (end == kStreamEnded) {
    text_add(text, ended);
  } else {
    text_add(text, " broke off: ");
    text_add_error(text, error);
  }
  return false;
}

static bool converse(int fd, const struct peer* peer, unsigned which, const uint8_t digest[32],
                     uint8_t* to, size_t size, struct failure* failure) {
  const struct patience patience = {sys_now_ms() + peer->total_ms, peer->stall_ms};
  const char* refuses = " refuses to send the agent";
  struct {
    uint8_t magic[4];
    uint8_t nonce[32];
    uint8_t digest[32];
  } proven;
  _Static_assert(sizeof proven == 68, "the proof is over exactly these bytes");
  for (int i = 0; i < 4; ++i) proven.magic[i] = (uint8_t)kMagic[i];
  for (int i = 0; i < 32; ++i) proven.digest[i] = digest[i];
  long error = 0;
  enum stream_end end = stream_send(fd, kMagic, sizeof kMagic, patience, &error);
  if (end == kStreamDone) {
    end = stream_read(fd, proven.nonce, sizeof proven.nonce, patience, &error);
  }
  if (end != kStreamDone) {
    return explain(end, error, peer, which, refuses, kFailRefused, failure);
  }
  uint8_t answer[64];
  loader_hmac(peer->key, &proven, sizeof proven, answer);
  for (int i = 0; i < 32; ++i) answer[32 + i] = digest[i];
  uint8_t length[4];
  end = stream_send(fd, answer, sizeof answer, patience, &error);
  if (end == kStreamDone) end = stream_read(fd, length, sizeof length, patience, &error);
  if (end != kStreamDone) {
    return explain(end, error, peer, which, refuses, kFailRefused, failure);
  }
  const uint32_t announced =
      (uint32_t)length[0] << 24 | (uint32_t)length[1] << 16 | (uint32_t)length[2] << 8 | length[3];
  if (announced != size) {
    struct text* text = fail_with(failure, kFailCorrupt);
    add_name(text, peer, which);
    text_add(text, " has ");
    text_add_number(text, announced);
    text_add(text, " bytes for the agent and not ");
    text_add_number(text, size);
    return false;
  }
  end = stream_read(fd, to, size, patience, &error);
  return end == kStreamDone || explain(end, error, peer, which,
                                       " hung up in the middle of the agent", kFailBroken, failure);
}

bool fetch_from_peer(const struct peer* peer, const uint8_t digest[32], uint8_t* to, size_t size,
                     struct failure* failure) {
  unsigned which = 0;
  int fd = connect_to(peer, &which, failure);
  if (fd < 0) return false;
  bool whole = converse(fd, peer, which, digest, to, size, failure);
  sys_close(fd);
  return whole;
}
