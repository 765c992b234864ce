#pragma once

// A real loader over pipes, and what it needs around it.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/base/deadline.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/base/unique_fd.h"
#include "tests/unit/temp_folder.h"

namespace dsi::testing {

using namespace std::chrono_literals;

// xz's answer, from the program itself: a decoder is not checked against its own author's encoder.
inline std::string xz(std::string_view data, const std::string& options = "-6") {
  TempFolder folder;
  auto file = folder.write("data", data);
  std::string command = std::string(DSI_XZ) + " --format=lzma -k " + options + " " + file.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
  return read_file(file.string() + ".lzma").value_or("");
}

// As the agent is packed to travel.
inline std::string pack(std::string_view program) {
  TempFolder folder;
  auto file = folder.write("program", program);
  std::string command =
      fmt::format("{} {} 6 {} {}.lzma", DSI_PACK_AGENT, DSI_XZ, file.string(), file.string());
  EXPECT_EQ(std::system(command.c_str()), 0);
  return read_file(file.string() + ".lzma").value_or("");
}

inline std::string noise(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>('a' + random() % 16);
  return text;
}

// Something that is to be started as the agent is.
struct Payload {
  std::string bytes;
  std::string digest;
  std::string wire;
};

// Greets, then repeats what is left of its input: the bytes that the loader must not have read.
inline Payload make_payload(std::size_t padding = 200'000) {
  Payload payload;
  payload.bytes = "#!/bin/sh\nprintf 'DSI1 %s %s %s\\n' \"$1\" \"$2\" \"$3\"\ncat\nexit 7\n#" +
                  noise(padding, 1) + "\n";
  payload.digest = sha256_hex(payload.bytes);
  payload.wire = pack(payload.bytes);
  return payload;
}

class Loader {
 public:
  Loader(std::vector<std::string> words, const std::function<void()>& in_child = {}) {
    int in[2];
    int out[2];
    int err[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC) | ::pipe2(out, O_CLOEXEC) | ::pipe2(err, O_CLOEXEC), 0);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      if (in_child) in_child();
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    for (int fd : {in[0], out[1], err[1]}) ::close(fd);
    in_.reset(in[1]);
    out_.reset(out[0]);
    err_.reset(err[0]);
  }
  ~Loader() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // A loader that has left does not read: what it says counts.
  void write(std::string_view bytes) {
    std::signal(SIGPIPE, SIG_IGN);
    (void)write_all(in_.get(), bytes);
  }
  void close_input() { in_.reset(); }

  // Output up to and with `end`; what there is if it does not come within 30 s.
  std::string read_until(std::string_view end) {
    Deadline deadline = Deadline::after(30s);
    std::string text;
    while (!text.ends_with(end)) {
      pollfd poll{out_.get(), POLLIN, 0};
      char c = 0;
      if (::poll(&poll, 1, deadline.poll_timeout()) <= 0 || ::read(out_.get(), &c, 1) <= 0) break;
      text += c;
    }
    return text;
  }

  // So many bytes; fewer if they do not come within 30 s.
  std::string read_bytes(std::size_t size) {
    Deadline deadline = Deadline::after(30s);
    std::string text;
    while (text.size() < size) {
      pollfd poll{out_.get(), POLLIN, 0};
      char c = 0;
      if (::poll(&poll, 1, deadline.poll_timeout()) <= 0 || ::read(out_.get(), &c, 1) <= 0) break;
      text += c;
    }
    return text;
  }

  struct End {
    int code = -1;
    std::string out;  // What was not read before.
    std::string err;
  };
  // Closes its input.
  End end() {
    close_input();
    End end;
    for (auto [fd, text] : {std::pair{out_.get(), &end.out}, {err_.get(), &end.err}}) {
      std::array<char, 4096> buffer{};
      for (ssize_t n = 0; (n = ::read(fd, buffer.data(), buffer.size())) > 0;) {
        text->append(buffer.data(), static_cast<std::size_t>(n));
      }
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return end;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd in_;
  UniqueFd out_;
  UniqueFd err_;
};

// A port of a loopback address. What the kernel has accepted lies in the backlog.
struct LoopbackPort {
  UniqueFd socket;
  std::uint16_t port = 0;

  explicit LoopbackPort(const std::string& address = "127.0.0.1", std::uint16_t wanted = 0,
                        int backlog = 64) {
    bool six = address.find(':') != std::string::npos;
    socket.reset(::socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage at{};
    socklen_t size = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* v4 = reinterpret_cast<sockaddr_in*>(&at);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&at);
    at.ss_family = six ? AF_INET6 : AF_INET;
    six ? ::inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr)
        : ::inet_pton(AF_INET, address.c_str(), &v4->sin_addr);
    v4->sin_port = htons(wanted);  // At the same place in both.
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), size) != 0 ||
        ::listen(socket.get(), backlog) != 0) {
      socket.reset();
      return;
    }
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port = ntohs(v4->sin_port);
  }
  UniqueFd accept() const {
    pollfd poll{socket.get(), POLLIN, 0};
    if (::poll(&poll, 1, 30'000) <= 0) return UniqueFd();
    return UniqueFd(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
};

inline std::string receive(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    pollfd poll{fd, POLLIN, 0};
    if (::poll(&poll, 1, 30'000) <= 0) break;
    ssize_t n = ::recv(fd, bytes.data() + done, size - done, 0);
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

inline void send_to(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

inline std::string length_of(std::string_view bytes) {
  auto size = static_cast<std::uint32_t>(bytes.size());
  return {static_cast<char>(size >> 24), static_cast<char>(size >> 16),
          static_cast<char>(size >> 8), static_cast<char>(size)};
}

inline const std::string kKeyHex(64, 'a');
inline std::array<std::uint8_t, 32> key_bytes() {
  std::array<std::uint8_t, 32> key{};
  key.fill(0xaa);
  return key;
}

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() { std::filesystem::create_directories(store_); }

  std::vector<std::string> words_for(const Payload& payload, const std::string& program) const {
    return {program,
            "load",
            payload.digest,
            std::to_string(payload.bytes.size()),
            std::to_string(payload.wire.size()),
            "abc123",
            prefix_.string(),
            store_.string()};
  }
  std::vector<std::string> words() const { return words_for(payload_, DSI_LOADER); }

  static std::string peer_request(std::uint16_t port, const std::string& addresses = "127.0.0.1",
                                  const std::string& key = kKeyHex, int stall_ms = 20'000,
                                  int total_ms = 30'000) {
    return fmt::format("peer {} {} 20000 {} {} {}\n", key, port, stall_ms, total_ms, addresses);
  }

  std::filesystem::path agent() const { return store_ / (payload_.digest + ".x"); }
  std::filesystem::path compressed() const { return store_ / (payload_.digest + ".lzma"); }
  std::string greeting() const { return "DSI1 serve abc123 " + prefix_.string() + "\n"; }
  static mode_t mode_of(const std::filesystem::path& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(store_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  void expect_whole() const {
    EXPECT_EQ(read_file(agent()).value_or(""), payload_.bytes);
    EXPECT_EQ(mode_of(agent()), 0755u);
    EXPECT_EQ(read_file(compressed()).value_or(""), payload_.wire);
    EXPECT_EQ(mode_of(compressed()), 0644u);
    EXPECT_EQ(names().size(), 2u) << "nothing unfinished may be left";
  }

  TempFolder folder_;
  std::filesystem::path prefix_ = folder_.path() / "ds ops";
  std::filesystem::path store_ = prefix_ / "store";
  Payload payload_ = make_payload();
};

inline constexpr char kReady[] = "\nDSL0 abc123 ready\n";

}  // namespace dsi::testing
