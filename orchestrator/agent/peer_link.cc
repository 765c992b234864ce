#include "orchestrator/agent/peer_link.h"

#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dsi::agent {

namespace {

constexpr std::uint8_t kAes = 1;
constexpr std::uint8_t kChaCha = 2;
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kProofBytes = 32;
constexpr std::size_t kClientHello = 4 + 1 + kNonceBytes + kProofBytes;
constexpr std::size_t kServerHello = 1 + kNonceBytes + kProofBytes;
constexpr std::size_t kTag = 16;
static_assert(kTag == crypto_aead_aes256gcm_ABYTES &&
              kTag == crypto_aead_chacha20poly1305_IETF_ABYTES);
constexpr std::size_t kMaxRecord = 1 + kMaxRecordPayload + kTag;
// Before the other end has proved anything it gets no more memory than its hello needs.
constexpr std::size_t kFirstBuffer = 256;
constexpr std::size_t kSmallBuffer = 8u << 10;
// Waking up for each packet would cost more than all the cryptography.
constexpr std::size_t kMostAwaited = 32u << 10;

std::uint8_t ciphers_here() {
  return crypto_aead_aes256gcm_is_available() != 0 ? kAes | kChaCha : kChaCha;
}

std::string random_bytes(std::size_t n) {
  std::string bytes(n, '\0');
  randombytes_buf(bytes.data(), n);
  return bytes;
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::uint32_t read_number(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 |
         at[3];
}

}  // namespace

bool prepare_cryptography() {
  return sodium_init() >= 0;
}

Result<RunKey> run_key(const std::string& digits) {
  auto bytes = distribute::hash_from_hex(digits);
  // The text must not show up in an error.
  if (!bytes) return dsi::fail("the key of the run is malformed");
  return *bytes;
}

std::string number_bytes(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>((number >> shift) & 0xff);
  return bytes;
}

std::uint32_t number_at(std::string_view bytes) {
  return read_number(bytes_of(bytes));
}

std::string pack_bits(const std::vector<bool>& bits) {
  std::string bytes((bits.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) bytes[i / 8] = static_cast<char>(bytes[i / 8] | 1 << i % 8);
  }
  return bytes;
}

bool unpack_bits(std::string_view bytes, std::vector<bool>& bits) {
  if (bytes.size() != (bits.size() + 7) / 8) return false;
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = (bytes[i / 8] >> i % 8 & 1) != 0;
  return true;
}

// One key and one counter for each direction.
struct PeerLink::Keys {
  struct Direction {
    crypto_aead_aes256gcm_state aes;
    std::array<unsigned char, 32> key{};
    std::uint64_t counter = 0;
    // The number of the record, big-endian, after four zeros.
    std::array<unsigned char, 12> nonce() {
      std::array<unsigned char, 12> bytes{};
      for (std::size_t i = 0; i < 8; ++i) {
        bytes[11 - i] = static_cast<unsigned char>(counter >> 8 * i);
      }
      ++counter;
      return bytes;
    }
  };

  ~Keys() { sodium_memzero(this, sizeof *this); }

  void prepare(Direction& direction, std::string_view transcript, std::string_view name,
               const RunKey& run) const {
    std::string text = std::string(transcript) + "key " + std::string(name);
    crypto_generichash(direction.key.data(), direction.key.size(), bytes_of(text), text.size(),
                       run.data(), run.size());
    if (cipher == kAes) crypto_aead_aes256gcm_beforenm(&direction.aes, direction.key.data());
  }

  // In place: `size` bytes at `text`, room for the tag after them; the length before them is what
  // is authentic besides.
  void encrypt(unsigned char* text, std::size_t size) {
    auto nonce = out.nonce();
    if (cipher == kAes) {
      crypto_aead_aes256gcm_encrypt_afternm(text, nullptr, text, size, text - 4, 4, nullptr,
                                            nonce.data(), &out.aes);
    } else {
      crypto_aead_chacha20poly1305_ietf_encrypt(text, nullptr, text, size, text - 4, 4, nullptr,
                                                nonce.data(), out.key.data());
    }
  }
  bool decrypt(unsigned char* text, std::size_t size) {
    auto nonce = in.nonce();
    if (cipher == kAes) {
      return crypto_aead_aes256gcm_decrypt_afternm(text, nullptr, nullptr, text, size, text - 4, 4,
                                                   nonce.data(), &in.aes) == 0;
    }
    return crypto_aead_chacha20poly1305_ietf_decrypt(text, nullptr, nullptr, text, size, text - 4,
                                                     4, nonce.data(), in.key.data()) == 0;
  }

  std::uint8_t cipher = 0;
  Direction in;
  Direction out;
};

PeerLink::PeerLink(UniqueFd socket, Role role, const RunKey& key)
    : socket_(std::move(socket)), role_(role), key_(key), in_(kFirstBuffer) {
  if (role_ == Role::kServer) return;
  transcript_ = std::string(kPeerMagic) + static_cast<char>(ciphers_here());
  transcript_ += random_bytes(kNonceBytes);
  transcript_ += proof("client");
  out_.assign(transcript_.begin(), transcript_.end());
}

PeerLink::PeerLink(PeerLink&&) noexcept = default;
PeerLink& PeerLink::operator=(PeerLink&&) noexcept = default;

PeerLink::~PeerLink() {
  sodium_memzero(key_.data(), key_.size());
}

std::string PeerLink::proof(std::string_view who) const {
  std::string text = transcript_ + "proof " + std::string(who);
  std::string bytes(kProofBytes, '\0');
  crypto_generichash(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), bytes_of(text),
                     text.size(), key_.data(), key_.size());
  return bytes;
}

void PeerLink::derive_keys(std::uint8_t cipher) {
  keys_ = std::make_unique<Keys>();
  keys_->cipher = cipher;
  bool client = role_ == Role::kClient;
  keys_->prepare(keys_->out, transcript_, client ? "client" : "server", key_);
  keys_->prepare(keys_->in, transcript_, client ? "server" : "client", key_);
  in_.resize(kSmallBuffer);
  state_ = State::kOpen;
}

bool PeerLink::answer_client() {
  if (in_end_ - in_begin_ < kClientHello) return false;
  std::string hello(reinterpret_cast<const char*>(in_.data()) + in_begin_, kClientHello);
  in_begin_ += kClientHello;
  auto offered = static_cast<std::uint8_t>(hello[4]);
  transcript_ = hello.substr(0, kClientHello - kProofBytes);
  std::string expected = proof("client");
  if (!hello.starts_with(kPeerMagic) ||
      sodium_memcmp(expected.data(), hello.data() + transcript_.size(), kProofBytes) != 0) {
    fail(State::kRefused);
    return false;
  }
  transcript_ = hello;
  std::uint8_t common = offered & ciphers_here();
  std::uint8_t cipher = (common & kAes) != 0 ? kAes : kChaCha;
  std::string answer = static_cast<char>(cipher) + random_bytes(kNonceBytes);
  transcript_ += answer;
  answer += proof("server");
  transcript_ += answer.substr(answer.size() - kProofBytes);
  out_.insert(out_.end(), answer.begin(), answer.end());
  derive_keys(cipher);
  return true;
}

bool PeerLink::accept_server() {
  if (in_end_ - in_begin_ < kServerHello) return false;
  std::string answer(reinterpret_cast<const char*>(in_.data()) + in_begin_, kServerHello);
  in_begin_ += kServerHello;
  auto cipher = static_cast<std::uint8_t>(answer[0]);
  transcript_ += answer.substr(0, kServerHello - kProofBytes);
  std::string expected = proof("server");
  if ((cipher != kAes && cipher != kChaCha) || (cipher & ciphers_here()) == 0 ||
      sodium_memcmp(expected.data(), answer.data() + kServerHello - kProofBytes, kProofBytes) !=
          0) {
    fail(State::kRefused);
    return false;
  }
  transcript_ += answer.substr(kServerHello - kProofBytes);
  derive_keys(cipher);
  return true;
}

// True once the link is open.
bool PeerLink::shake_hands() {
  if (state_ != State::kHandshake) return state_ == State::kOpen;
  return role_ == Role::kServer ? answer_client() : accept_server();
}

// The kernel need not tell of less than so many bytes.
void PeerLink::wait_for(std::size_t bytes) {
  int wanted = static_cast<int>(std::clamp<std::size_t>(bytes, 1, kMostAwaited));
  if (wanted == low_water_) return;
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) {
    low_water_ = wanted;
  }
}

bool PeerLink::receive() {
  if (failed()) return false;
  if (in_begin_ == in_end_) {
    in_begin_ = in_end_ = 0;
  } else if (in_begin_ > 0) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  if (in_end_ == in_.size()) return false;  // The caller has to take a record first.
  ssize_t n = ::recv(socket_.get(), in_.data() + in_end_, in_.size() - in_end_, MSG_DONTWAIT);
  if (n > 0) {
    in_end_ += static_cast<std::size_t>(n);
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  // Who has another key closes without a word.
  fail(state_ == State::kHandshake && role_ == Role::kClient ? State::kRefused : State::kClosed);
  return false;
}

bool PeerLink::next(Record& record) {
  if (!shake_hands()) return false;
  std::size_t there = in_end_ - in_begin_;
  if (there < 4) {
    wait_for(1);
    return false;
  }
  std::size_t length = read_number(in_.data() + in_begin_);
  if (length < 1 + kTag || length > kMaxRecord) {
    fail(State::kForged);
    return false;
  }
  if (there < 4 + length) {
    if (in_.size() < 4 + length) in_.resize(4 + kMaxRecord);
    wait_for(4 + length - there);
    return false;
  }
  std::uint8_t* text = in_.data() + in_begin_ + 4;
  if (!keys_->decrypt(text, length)) {
    fail(State::kForged);
    return false;
  }
  in_begin_ += 4 + length;
  if (text[0] < static_cast<std::uint8_t>(RecordType::kHello) ||
      text[0] > static_cast<std::uint8_t>(RecordType::kPing)) {
    fail(State::kForged);
    return false;
  }
  record.type = static_cast<RecordType>(text[0]);
  record.payload = {reinterpret_cast<const char*>(text) + 1, length - 1 - kTag};
  return true;
}

char* PeerLink::begin(RecordType type, std::string_view first, std::size_t size) {
  if (idle()) {
    out_.clear();
    sent_ = 0;
  }
  sealing_ = out_.size();
  std::string length = number_bytes(static_cast<std::uint32_t>(1 + first.size() + size + kTag));
  out_.insert(out_.end(), length.begin(), length.end());
  out_.push_back(static_cast<std::uint8_t>(type));
  out_.insert(out_.end(), first.begin(), first.end());
  out_.resize(out_.size() + size + kTag);
  return reinterpret_cast<char*>(out_.data() + sealing_ + 5 + first.size());
}

void PeerLink::seal() {
  keys_->encrypt(out_.data() + sealing_ + 4, out_.size() - sealing_ - 4 - kTag);
}

void PeerLink::put(RecordType type, std::string_view payload) {
  char* to = begin(type, {}, payload.size());
  std::copy(payload.begin(), payload.end(), to);
  seal();
}

bool PeerLink::flush() {
  while (sent_ < out_.size()) {
    if (failed()) return false;
    ssize_t n = ::send(socket_.get(), out_.data() + sent_, out_.size() - sent_,
                       MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      // What it said before it closed is still to be read: only an end of reading is the end.
      return false;
    }
    sent_ += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace dsi::agent
