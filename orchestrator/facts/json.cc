#include "orchestrator/facts/json.h"

namespace dsi::facts {

namespace {

constexpr std::size_t kRoom = 256u << 10;
// Of one text. What is longer is a path that nobody made on purpose.
constexpr std::size_t kMostText = 1024;
// From here on texts are left out, so that every bracket can still be closed.
constexpr std::size_t kFull = kRoom - 16 * kMostText;

// Length of the valid UTF-8 sequence at `at`, 0 if there is none.
std::size_t sequence(Str text, std::size_t at) {
  auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  auto follows = [&](std::size_t i) { return (byte(i) & 0xc0) == 0x80; };
  unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return follows(at + 1) ? 2 : 0;
  if (lead >= 0xe0 && lead < 0xf0) {
    bool good = follows(at + 1) && follows(at + 2) && !(lead == 0xe0 && byte(at + 1) < 0xa0) &&
                !(lead == 0xed && byte(at + 1) >= 0xa0);
    return good ? 3 : 0;
  }
  if (lead >= 0xf0 && lead < 0xf5) {
    bool good = follows(at + 1) && follows(at + 2) && follows(at + 3) &&
                !(lead == 0xf0 && byte(at + 1) < 0x90) && !(lead == 0xf4 && byte(at + 1) >= 0x90);
    return good ? 4 : 0;
  }
  return 0;
}

}  // namespace

Json::Json() : bytes_(static_cast<char*>(allocate(kRoom))) {
  put('{');
}

void Json::put(char c) {
  if (size_ < kRoom) bytes_[size_++] = c;
}
void Json::put(Str raw) {
  for (char c : raw) put(c);
}

void Json::quote(Str value) {
  constexpr char kDigits[] = "0123456789abcdef";
  put('"');
  value = part(value, 0, kMostText);
  for (std::size_t i = 0; i < value.size();) {
    std::size_t length = sequence(value, i);
    auto c = static_cast<unsigned char>(value[i]);
    if (length == 0) {
      put('?');
      ++i;
    } else if (c == '"' || c == '\\') {
      put('\\');
      put(value[i++]);
    } else if (c < 0x20) {
      put("\\u00");
      put(kDigits[c >> 4]);
      put(kDigits[c & 15]);
      ++i;
    } else {
      put(part(value, i, length));
      i += length;
    }
  }
  put('"');
}

void Json::name(Str key) {
  if (!first_) put(',');
  first_ = false;
  if (key.empty()) return;
  quote(key);
  put(':');
}

void Json::open(Str key) {
  name(key);
  put('{');
  first_ = true;
}
void Json::close() {
  put('}');
  first_ = false;
}
void Json::open_list(Str key) {
  name(key);
  put('[');
  first_ = true;
}
void Json::close_list() {
  put(']');
  first_ = false;
}

void Json::text(Str key, Str value) {
  if (value.empty() || size_ > kFull) return;
  name(key);
  quote(value);
}

void Json::number(Str key, std::uint64_t value) {
  if (size_ > kFull) return;
  name(key);
  put(decimal(value));
}

void Json::flag(Str key, bool value) {
  if (size_ > kFull) return;
  name(key);
  put(value ? "true" : "false");
}

Str Json::done() {
  put('}');
  return {bytes_, size_};
}

}  // namespace dsi::facts
