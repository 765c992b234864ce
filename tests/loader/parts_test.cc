// The pure parts: what they compute is compared with what others compute.

#include <arpa/inet.h>

#include <algorithm>
#include <memory>

#include "orchestrator/loader/lzma.h"
#include "orchestrator/loader/sha256.h"
#include "orchestrator/loader/text.h"
#include "orchestrator/loader/x86.h"
#include "tests/loader/fixture.h"

namespace dsi::testing {
namespace {

// Nothing that is written beyond the end goes unseen, with or without a sanitizer.
bool decode(const std::string& wire, std::size_t size, std::string* result = nullptr) {
  constexpr std::size_t kGuard = 512;
  auto model = std::make_unique<lzma_model>();
  // Exact blocks, so that an address sanitizer sees a read beyond the end too.
  std::unique_ptr<std::uint8_t[]> in(new std::uint8_t[wire.size()]);
  std::copy(wire.begin(), wire.end(), in.get());
  std::string out(size + kGuard, '\x5a');
  bool good = lzma_decode(model.get(), in.get(), wire.size(),
                          reinterpret_cast<std::uint8_t*>(out.data()), size);
  EXPECT_EQ(out.substr(size), std::string(kGuard, '\x5a'));
  if (result != nullptr) *result = out.substr(0, size);
  return good;
}

std::vector<std::string> samples() {
  std::string runs;
  for (int i = 0; i < 3000; ++i)
    runs += std::string(static_cast<std::size_t>(i % 300), "ab-"[i % 3]);
  std::string program = read_file("/proc/self/exe").value_or("").substr(0, 300'000);
  return {"a",
          "abcabcabcabcabcabcabcabcabcabcabc",
          std::string(100'000, 'x'),
          noise(50'000, 2),
          runs,
          program,
          program + noise(70'000, 3) + program};
}

TEST(Lzma, Unpacks_what_xz_packs_whatever_its_settings) {
  for (const std::string& data : samples()) {
    for (const char* options :
         {"-0", "-9e", "--lzma1=preset=6,lc=0,lp=0,pb=0", "--lzma1=preset=6,lc=4,lp=0,pb=4",
          "--lzma1=preset=6,lc=0,lp=4,pb=1", "--lzma1=preset=9,lc=2,lp=2,pb=3",
          "--lzma1=preset=1,dict=4096"}) {
      std::string result;
      EXPECT_TRUE(decode(xz(data, options), data.size(), &result)) << options;
      EXPECT_EQ(result == data, true) << options << ", " << data.size() << " bytes";
    }
  }
}

TEST(Lzma, Takes_nothing_but_one_whole_stream_of_the_right_size) {
  std::string data = noise(20'000, 4);
  std::string wire = xz(data);
  ASSERT_TRUE(decode(wire, data.size()));
  EXPECT_FALSE(decode(wire, data.size() - 1));
  EXPECT_FALSE(decode(wire, data.size() + 1));
  EXPECT_FALSE(decode(wire, 0));
  EXPECT_FALSE(decode(wire + "x", data.size()));
  for (std::size_t size = 0; size < wire.size(); size += size < 40 ? 1 : 97) {
    EXPECT_FALSE(decode(wire.substr(0, size), data.size())) << size;
  }
  std::string properties = wire;
  properties[0] = static_cast<char>(225);
  EXPECT_FALSE(decode(properties, data.size()));
  std::string contexts = wire;
  contexts[0] = static_cast<char>((2 * 5 + 4) * 9 + 4);  // lc + lp = 8
  EXPECT_FALSE(decode(contexts, data.size()));
}

TEST(Lzma, Writes_nothing_beyond_the_end_whatever_comes) {
  std::mt19937 random(5);
  std::size_t refused = 0;
  for (const std::string& data : samples()) {
    if (data.size() > 100'000) continue;
    const std::string wire = xz(data, "-9e");
    for (int i = 0; i < 200; ++i) {
      std::string flipped = wire;
      for (unsigned k = random() % 4 + 1; k > 0; --k) {
        flipped[random() % flipped.size()] ^= static_cast<char>(1u << random() % 8);
      }
      std::string result;
      bool good = decode(flipped, data.size(), &result);
      refused += good ? 0 : 1;
    }
    for (int i = 0; i < 50; ++i) {
      std::string random_bytes = wire.substr(0, 13) + std::string(1, '\0');
      for (int k = 0; k < 2000; ++k) random_bytes += static_cast<char>(random());
      EXPECT_FALSE(decode(random_bytes, data.size()));
    }
  }
  EXPECT_GT(refused, 200u) << "flips that change nothing would test nothing";
}

// Random bytes hold no calls; these are opcodes and distances close to each other, which is where
// the filter has its exceptions.
std::string crowded_calls(std::size_t size, unsigned seed) {
  constexpr std::array<unsigned char, 6> kBytes = {0xe8, 0xe9, 0x00, 0xff, 0x01, 0xfe};
  std::mt19937 random(seed);
  std::string code(size, '\0');
  for (char& c : code) {
    c = static_cast<char>(random() % 8 < 6 ? kBytes[random() % kBytes.size()] : random());
  }
  return code;
}

TEST(X86, Restores_what_xz_filters) {
  std::vector<std::string> programs = samples();
  for (unsigned seed : {9u, 10u, 11u}) programs.push_back(crowded_calls(300'000, seed));
  for (std::size_t size : {1u, 4u, 5u, 6u, 9u, 10u, 11u}) {
    programs.push_back(crowded_calls(size, 12));
    programs.push_back("\xe8" + std::string(size, '\0'));
  }
  std::size_t changed = 0;
  for (const std::string& program : programs) {
    std::string filtered;
    ASSERT_TRUE(decode(pack(program), program.size(), &filtered));
    changed += filtered == program ? 0 : 1;
    // An exact block, for an address sanitizer.
    std::unique_ptr<std::uint8_t[]> code(new std::uint8_t[program.size()]);
    std::copy(filtered.begin(), filtered.end(), code.get());
    x86_restore(code.get(), program.size());
    EXPECT_TRUE(std::equal(program.begin(), program.end(), reinterpret_cast<char*>(code.get())))
        << program.size() << " bytes";
  }
  EXPECT_GT(changed, 8u) << "a filter that changes nothing would test nothing";
}

std::string hex(const std::uint8_t* bytes, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

TEST(LoaderSha256, Is_the_SHA_256_of_OpenSSL) {
  for (std::size_t size : {0u, 1u, 3u, 55u, 56u, 63u, 64u, 65u, 119u, 120u, 1000u, 100'000u}) {
    std::string data = noise(size, 6);
    LoaderSha256 sha;
    std::uint8_t digest[kSha256Size];
    loader_sha256_start(&sha);
    loader_sha256_add(&sha, data.data(), size / 3);
    loader_sha256_add(&sha, data.data() + size / 3, size - size / 3);
    loader_sha256_end(&sha, digest);
    EXPECT_EQ(hex(digest, sizeof digest), sha256_hex(data)) << size;
  }
}

// RFC 2104, by the hash that is trusted.
TEST(LoaderSha256, Its_HMAC_is_what_the_RFC_says) {
  std::string key = noise(32, 7);
  std::string data = noise(68, 8);
  auto padded = [&](char pad) {
    std::string text = key + std::string(32, '\0');
    for (char& c : text) c = static_cast<char>(c ^ pad);
    return text;
  };
  std::string inner_hex = sha256_hex(padded(0x36) + data);
  std::string inner;
  for (std::size_t i = 0; i < 64; i += 2) {
    inner += static_cast<char>(std::stoi(inner_hex.substr(i, 2), nullptr, 16));
  }
  std::uint8_t proof[kSha256Size];
  loader_hmac(reinterpret_cast<const std::uint8_t*>(key.data()), data.data(), data.size(), proof);
  EXPECT_EQ(hex(proof, sizeof proof), sha256_hex(padded(0x5c) + inner));
}

TEST(LoaderText, Reads_the_addresses_that_inet_pton_reads) {
  for (const char* text : {"10.0.0.3",
                           "255.255.255.255",
                           "0.0.0.0",
                           "1.2.3",
                           "1.2.3.4.5",
                           "256.1.1.1",
                           "1..2.3",
                           "",
                           "::",
                           "::1",
                           "fe80::1",
                           "2001:db8::8a2e:370:7334",
                           "1:2:3:4:5:6:7:8",
                           "1:2:3:4:5:6:7",
                           "1:2:3:4:5:6:7:8:9",
                           "1::2::3",
                           "1:::2",
                           ":1",
                           "1:",
                           "1:2:3:4:5:6:7::",
                           "::2:3:4:5:6:7:8",
                           "12345::",
                           "g::",
                           "::ffff:10.0.0.3",
                           "1:2:3:4:5:6:10.0.0.3",
                           "1:2:3:4:5:6:7:10.0.0.3",
                           "::10.0.0",
                           "fe80::1%eth0",
                           "ffff:FFFF:aBcD::",
                           "1.2.3.4 ",
                           " ::1",
                           "node001"}) {
    std::uint8_t bytes[16] = {};
    std::uint8_t expected[16] = {};
    unsigned size = ::inet_pton(AF_INET, text, expected) == 1    ? 4
                    : ::inet_pton(AF_INET6, text, expected) == 1 ? 16
                                                                 : 0;
    EXPECT_EQ(parse_address(text, bytes), size) << text;
    if (size > 0) {
      EXPECT_EQ(hex(bytes, size), hex(expected, size)) << text;
    }
  }
}

TEST(LoaderText, Reads_numbers_and_digests_and_nothing_else) {
  std::uint64_t number = 0;
  EXPECT_TRUE(parse_number("65535", 65535, &number));
  EXPECT_EQ(number, 65535u);
  for (const char* text : {"", "65536", "-1", "+1", "1 ", "0x10", "99999999999999999999999999"}) {
    EXPECT_FALSE(parse_number(text, 65535, &number)) << text;
  }
  std::uint8_t bytes[32];
  EXPECT_TRUE(parse_hex32((std::string(62, '0') + "fE").c_str(), bytes));
  EXPECT_EQ(bytes[31], 0xfe);
  EXPECT_FALSE(parse_hex32(std::string(63, '0').c_str(), bytes));
  EXPECT_FALSE(parse_hex32(std::string(65, '0').c_str(), bytes));
  EXPECT_FALSE(parse_hex32((std::string(63, '0') + "g").c_str(), bytes));
}

TEST(LoaderText, Keeps_to_its_room) {
  text text;
  text_clear(&text);
  for (int i = 0; i < 1000; ++i) text_add(&text, "ten bytes.");
  EXPECT_EQ(text.size, sizeof text.chars - 1);
  EXPECT_EQ(text_length(text.chars), text.size);
}

}  // namespace
}  // namespace dsi::testing
