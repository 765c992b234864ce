#pragma once

// One TCP connection between two nodes of a swarm, encrypted and authentic from the first byte on.
//
// Both ends hold the run's key, which came over SSH. The client speaks first, and who cannot prove
// that it has the key gets no answer:
//
//   client  "DSP1", ciphers it has (1 byte), nonce (32), proof (32)
//   server  cipher chosen (1), nonce (32), proof (32)
//
// A proof is keyed BLAKE2b under the run's key over everything sent so far in both directions; the
// two keys of the connection, one for each direction, are the same over the whole handshake and the
// direction's name. So a recording of one connection is worth nothing in another, and nobody on the
// way can talk the two ends into another cipher. Then both sides send records:
//
//   length of what follows (4 bytes, big-endian; the additional data), ciphertext with its tag
//
// under AES-256-GCM where both processors have the instructions, else ChaCha20-Poly1305. The nonce
// is the number of the record, so that none can be left out, repeated or moved. The plaintext is a
// type byte and a payload:
//
//   kHello     number of the sender in the run (4), SHA-256 of the swarm's index (32)
//   kFollow    stripe (4), bitmap of the stripe's chunks that the sender has: its chunk 8i+j is bit
//              j of byte i
//   kUnfollow  stripe (4)
//   kAskIndex
//   kIndex     the next bytes of the encoded index
//   kChunk     number (4), its bytes
//   kPing

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/distribute/index.h"

namespace dsi::agent {

inline constexpr std::string_view kPeerMagic = "DSP1";
inline constexpr std::size_t kMaxRecordPayload = 4 + distribute::kMaxChunkSize;

using RunKey = std::array<std::uint8_t, 32>;
Result<RunKey> run_key(const std::string& digits);  // 64 hexadecimal digits.

// To be called once before anything here is used. False: the system gives no random numbers.
bool prepare_cryptography();

enum class RecordType : std::uint8_t {
  kHello = 1,
  kFollow,
  kUnfollow,
  kAskIndex,
  kIndex,
  kChunk,
  kPing,
};

struct Record {
  RecordType type = RecordType::kPing;
  std::string_view payload;  // Valid until the next call of anything.
};

std::string number_bytes(std::uint32_t number);                     // 4 bytes, big-endian.
std::uint32_t number_at(std::string_view bytes);                    // Of at least 4 bytes.
std::string pack_bits(const std::vector<bool>& bits);               // As in kFollow.
bool unpack_bits(std::string_view bytes, std::vector<bool>& bits);  // False: the size does not fit.

// Belongs to one thread; never waits. The socket must be non-blocking.
class PeerLink {
 public:
  enum class Role { kClient, kServer };
  enum class State {
    kHandshake,
    kOpen,
    kRefused,  // The other end has another key, or does not speak this protocol.
    kClosed,   // By the other end, or by an error of the network.
    kForged,   // A record is not authentic or cannot be.
  };

  PeerLink(UniqueFd socket, Role role, const RunKey& key);
  PeerLink(PeerLink&&) noexcept;
  PeerLink& operator=(PeerLink&&) noexcept;
  ~PeerLink();

  int fd() const { return socket_.get(); }
  State state() const { return state_; }
  bool failed() const { return state_ != State::kHandshake && state_ != State::kOpen; }

  // Takes what the socket has, at most about one large record. True if anything came.
  bool receive();
  // The next whole record of what was taken. After false the state says whether there is more to
  // hope for.
  bool next(Record& record);

  // Each encrypts one record into the buffer of what is to be sent. Only when kOpen.
  void put(RecordType type, std::string_view payload);
  // The payload's first bytes, and where to write the `size` others; then seal() is due.
  char* begin(RecordType type, std::string_view first, std::size_t size);
  void seal();

  // Sends what it can. True if nothing is left.
  bool flush();
  bool idle() const { return sent_ == out_.size(); }

 private:
  struct Keys;

  void fail(State state) { state_ = state; }
  bool shake_hands();
  bool answer_client();
  bool accept_server();
  std::string proof(std::string_view who) const;
  void derive_keys(std::uint8_t cipher);
  void wait_for(std::size_t bytes);

  UniqueFd socket_;
  Role role_;
  State state_ = State::kHandshake;
  RunKey key_;
  std::string transcript_;
  std::unique_ptr<Keys> keys_;
  std::vector<std::uint8_t> in_;
  std::size_t in_begin_ = 0;  // What was taken and not yet looked at.
  std::size_t in_end_ = 0;
  int low_water_ = 1;
  std::vector<std::uint8_t> out_;
  std::size_t sent_ = 0;
  std::size_t sealing_ = 0;  // Where the record begins that begin() has begun.
};

}  // namespace dsi::agent
