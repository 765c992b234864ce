// What only SSH can do wrong: trust, logging in, servers that misbehave, the user's configuration.

#include "orchestrator/adapters/ssh_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/adapters/ssh_known_hosts.h"
#include "orchestrator/base/file.h"
#include "tests/contract/test_sshd.h"

namespace dsi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

Deadline soon() {
  return Deadline::after(seconds(30));
}

// Far more than any deadline that a test sets, and less than what it would hang for: these tests
// ask whether a wait ends, not how fast a busy machine is.
constexpr double kHang = 15;

double elapsed(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

using Connected = tl::expected<std::unique_ptr<RemoteHost>, ConnectError>;

Connected connect(const SshOptions& options, const Host& host, Deadline deadline = soon()) {
  return SshConnector(options).connect(host, deadline, {});
}

std::string run(RemoteHost& host, const std::string& command) {
  auto channel = host.exec(command, soon());
  if (!channel) return "error: " + channel.error().what;
  std::string text;
  std::vector<char> buffer(4096);
  for (;;) {
    auto n = (*channel)->read(buffer, soon());
    if (!n) return "error: " + n.error().what;
    if (*n == 0) return text;
    text.append(buffer.data(), *n);
  }
}

// Connects and runs a command, or gives the whole error.
std::string connect_and_run(const SshOptions& options, const Host& host,
                            const std::string& command = "echo in") {
  SshConnector connector(options);
  auto connected = connector.connect(host, soon(), {});
  if (!connected) return to_string(connected.error().error);
  return run(**connected, command);
}

// A TCP server on 127.0.0.1 that does one thing to each connection.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int)> serve, int backlog = 16) : serve_(std::move(serve)) {
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    ::listen(listener_.get(), backlog);
    thread_ = std::jthread([this] {
      for (;;) {
        UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) return;
        serve_(fd.get());
        kept_.push_back(std::move(fd));
      }
    });
  }
  ~FakeServer() { ::shutdown(listener_.get(), SHUT_RDWR); }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  Host host() const { return {.name = "127.0.0.1", .user = {}, .port = port_}; }

 private:
  std::function<void(int)> serve_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::vector<UniqueFd> kept_;
  std::jthread thread_;
};

std::string make_key(const std::filesystem::path& path, const std::string& type = "ed25519",
                     const std::string& passphrase = "") {
  shell("ssh-keygen -q -t " + type + " -N '" + passphrase + "' -f " + path.string());
  std::string line = read_file(path.string() + ".pub").value_or("");
  return line.substr(0, line.rfind(' '));  // Without the comment.
}

// ---- Trust

TEST(SshTrust, An_unknown_key_is_refused_with_its_fingerprint_and_what_to_do) {
  TestSshd sshd;
  sshd.set_known_hosts("");
  auto connected = connect(sshd.options(), sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kHostKey);
  std::string fingerprint = shell("ssh-keygen -lf " + (sshd.folder() / "host_key.pub").string());
  fingerprint = fingerprint.substr(fingerprint.find("SHA256:"), 50);
  EXPECT_THAT(connected.error().error.what, HasSubstr(fingerprint));
  EXPECT_THAT(connected.error().error.help,
              HasSubstr("ssh-keyscan -H -p " + std::to_string(sshd.port()) +
                        " 127.0.0.1 >> ~/.ssh/known_hosts after checking the fingerprint"));
}

TEST(SshTrust, Nothing_is_ever_written_to_known_hosts) {
  TestSshd sshd;
  sshd.set_known_hosts("");
  sshd.set_config("StrictHostKeyChecking no\n");
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n");
  EXPECT_EQ(read_file(sshd.home() / ".ssh/known_hosts").value(), "");
}

TEST(SshTrust, A_changed_key_is_refused_and_names_the_line_and_both_fingerprints) {
  TestSshd sshd;
  TestFolder folder;
  std::string other = make_key(folder.path() / "other");
  sshd.set_known_hosts("# comment\n[127.0.0.1]:" + std::to_string(sshd.port()) + " " + other +
                       "\n");
  // The user's word about unknown keys says nothing about changed ones.
  sshd.set_config("StrictHostKeyChecking no\n");
  auto connected = connect(sshd.options(), sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kHostKey);
  const std::string& what = connected.error().error.what;
  EXPECT_THAT(what, HasSubstr("has changed"));
  EXPECT_THAT(what, HasSubstr((sshd.home() / ".ssh/known_hosts").string() + ":2"));
  std::string key = sshd.host_key();
  EXPECT_THAT(what, HasSubstr(key_fingerprint(key.substr(key.find(' ') + 1))));
  EXPECT_THAT(what, HasSubstr(key_fingerprint(other.substr(other.find(' ') + 1))));
}

TEST(SshTrust, A_revoked_key_is_refused_even_if_it_is_also_listed) {
  TestSshd sshd;
  std::string name = "[127.0.0.1]:" + std::to_string(sshd.port());
  sshd.set_known_hosts(name + " " + sshd.host_key() + "\n@revoked * " + sshd.host_key() + "\n");
  auto connected = connect(sshd.options(), sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kHostKey);
  EXPECT_THAT(connected.error().error.what, HasSubstr("revoked"));
}

TEST(SshTrust, A_key_in_RevokedHostKeys_is_refused) {
  TestSshd sshd;
  write_text(sshd.home() / "revoked", sshd.host_key() + "\n");
  sshd.set_config("RevokedHostKeys " + (sshd.home() / "revoked").string() + "\n");
  EXPECT_THAT(connect_and_run(sshd.options(), sshd.host()), HasSubstr("revoked"));
}

TEST(SshTrust, A_hashed_file_is_understood) {
  TestSshd sshd;
  shell("ssh-keygen -q -H -f " + (sshd.home() / ".ssh/known_hosts").string());
  ASSERT_THAT(read_file(sshd.home() / ".ssh/known_hosts").value(), HasSubstr("|1|"));
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n");
}

TEST(SshTrust, The_name_without_the_port_and_patterns_count) {
  TestSshd sshd;
  for (std::string name : {"127.0.0.1", "127.0.0.*,!127.0.0.9", "other,127.0.0.1"}) {
    sshd.set_known_hosts(name + " " + sshd.host_key() + "\n");
    EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n") << name;
  }
  sshd.set_known_hosts("127.0.0.*,!127.0.0.1 " + sshd.host_key() + "\n");
  EXPECT_THAT(connect_and_run(sshd.options(), sshd.host()), HasSubstr("is not known"));
}

TEST(SshTrust, A_host_known_by_an_older_kind_of_key_is_asked_for_that_kind) {
  TestFolder folder;
  std::string ecdsa = make_key(folder.path() / "ecdsa", "ecdsa");
  TestSshd sshd("HostKey " + (folder.path() / "ecdsa").string());
  sshd.set_known_hosts("127.0.0.1 " + ecdsa + "\n");
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n");
}

TEST(SshTrust, A_host_known_by_another_kind_of_key_only_is_refused) {
  TestSshd sshd;
  TestFolder folder;
  sshd.set_known_hosts("127.0.0.1 " + make_key(folder.path() / "ecdsa", "ecdsa") + "\n");
  EXPECT_THAT(connect_and_run(sshd.options(), sshd.host()), HasSubstr("knows it by its ecdsa"));
}

TEST(SshTrust, A_certificate_authority_line_is_explained) {
  TestSshd sshd;
  TestFolder folder;
  sshd.set_known_hosts("@cert-authority * " + make_key(folder.path() / "ca") + "\n");
  EXPECT_THAT(connect_and_run(sshd.options(), sshd.host()),
              HasSubstr("host certificates are not supported"));
}

TEST(SshTrust, A_known_hosts_file_that_cannot_be_read_is_an_error) {
  TestSshd sshd;
  std::filesystem::remove(sshd.home() / ".ssh/known_hosts");
  std::filesystem::create_directory(sshd.home() / ".ssh/known_hosts");  // Unreadable even for root.
  auto connected = connect(sshd.options(), sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kHostKey);
  EXPECT_THAT(connected.error().error.what, HasSubstr("cannot read"));
}

TEST(SshTrust, The_key_is_found_among_five_thousand_hashed_lines) {
  TestSshd sshd;
  std::string lines;
  for (int i = 0; i < 5000; ++i) {
    lines += "node" + std::to_string(i) + " " + sshd.host_key() + "\n";
  }
  sshd.set_known_hosts(lines + "127.0.0.1 " + sshd.host_key() + "\n");
  std::string file = (sshd.home() / ".ssh/known_hosts").string();
  shell("ssh-keygen -q -H -f " + file);
  auto known = KnownHosts::read({file}, {});
  ASSERT_TRUE(known);
  EXPECT_EQ(known->find("127.0.0.1").size(), 1u);
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n");
}

// ---- Logging in

TEST(SshLogin, A_user_that_is_not_there_is_refused_and_named) {
  TestSshd sshd;
  Host host = sshd.host();
  host.user = "nobody-of-this-name";
  auto connected = connect(sshd.options(), host);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kAuth);
  EXPECT_THAT(connected.error().error.what, HasSubstr("does not let nobody-of-this-name in"));
}

TEST(SshLogin, A_key_that_the_host_does_not_take_is_an_error_with_the_methods_it_offers) {
  TestSshd sshd("PasswordAuthentication yes");
  write_text(sshd.folder() / "authorized_keys", "");
  auto connected = connect(sshd.options(), sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kAuth);
  EXPECT_THAT(connected.error().error.what, HasSubstr("with any of 1 key"));
  EXPECT_THAT(connected.error().error.what, HasSubstr("it offers publickey, password"));
  EXPECT_THAT(connected.error().error.help, HasSubstr("ssh-copy-id"));
}

TEST(SshLogin, Without_any_key_the_error_says_so) {
  TestSshd sshd;
  std::filesystem::remove(sshd.client_key());
  EXPECT_THAT(connect_and_run(sshd.options(), sshd.host()), HasSubstr("there is no key to offer"));
}

TEST(SshLogin, An_encrypted_key_without_an_agent_asks_for_ssh_add) {
  TestSshd sshd;
  shell("ssh-keygen -q -p -N secret -f " + sshd.client_key().string());
  auto connected = connect(sshd.options(), sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kAuth);
  EXPECT_THAT(connected.error().error.what, HasSubstr("is encrypted and not in an ssh agent"));
  EXPECT_EQ(connected.error().error.help, "ssh-add " + sshd.client_key().string());
}

TEST(SshLogin, No_pub_file_is_written_beside_a_key) {
  TestSshd sshd;
  std::filesystem::remove(sshd.client_key().string() + ".pub");
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n");
  EXPECT_FALSE(std::filesystem::exists(sshd.client_key().string() + ".pub"));
}

TEST(SshLogin, Every_usual_kind_of_key_works) {
  for (std::string type : {"rsa", "ecdsa"}) {
    TestSshd sshd;
    std::filesystem::remove(sshd.client_key());
    std::filesystem::path key = sshd.home() / (".ssh/id_" + type);
    write_text(sshd.folder() / "authorized_keys", make_key(key, type) + "\n");
    EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n") << type;
  }
}

TEST(SshLogin, A_user_certificate_beside_the_key_is_used) {
  TestFolder ca;
  make_key(ca.path() / "ca");
  TestSshd sshd("TrustedUserCAKeys " + (ca.path() / "ca.pub").string());
  write_text(sshd.folder() / "authorized_keys", "");
  std::string user = SshLocations::from_environment().user;
  shell("ssh-keygen -q -s " + (ca.path() / "ca").string() + " -I test -n " + user + " " +
        sshd.client_key().string() + ".pub");
  ASSERT_TRUE(std::filesystem::exists(sshd.client_key().string() + "-cert.pub"));
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n") << sshd.log();
}

TEST(SshLogin, A_key_and_something_more_is_explained) {
  TestSshd sshd("AuthenticationMethods publickey,password\nPasswordAuthentication yes");
  EXPECT_THAT(connect_and_run(sshd.options(), sshd.host()), HasSubstr("but wants more: password"));
}

// An ssh-agent with keys made for it.
class TestAgent {
 public:
  TestAgent() {
    socket_ = (folder_.path() / "agent").string();
    shell("ssh-agent -a " + socket_ + " >" + (folder_.path() / "env").string());
    std::string text = read_file(folder_.path() / "env").value_or("");
    std::size_t at = text.find("SSH_AGENT_PID=");
    pid_ = std::stoi(text.substr(at + 14));
  }
  ~TestAgent() { ::kill(pid_, SIGKILL); }
  TestAgent(const TestAgent&) = delete;
  TestAgent& operator=(const TestAgent&) = delete;
  void add(const std::filesystem::path& key) {
    shell("SSH_AUTH_SOCK=" + socket_ + " ssh-add -q " + key.string());
  }
  void add_strangers(int count) {
    for (int i = 0; i < count; ++i) {
      make_key(folder_.path() / ("key" + std::to_string(i)));
      add(folder_.path() / ("key" + std::to_string(i)));
    }
  }
  const std::string& socket() const { return socket_; }
  pid_t pid() const { return pid_; }

 private:
  TestFolder folder_;
  std::string socket_;
  pid_t pid_ = -1;
};

TEST(SshLogin, A_key_in_the_agent_logs_in) {
  TestSshd sshd;
  TestAgent agent;
  agent.add_strangers(2);
  agent.add(sshd.client_key());
  std::filesystem::remove(sshd.client_key());
  std::filesystem::remove(sshd.client_key().string() + ".pub");
  SshOptions options = sshd.options();
  options.locations.agent_socket = agent.socket();
  EXPECT_EQ(connect_and_run(options, sshd.host()), "in\n") << sshd.log();
}

TEST(SshLogin, The_configured_key_is_the_first_of_ten_that_the_agent_offers) {
  TestSshd sshd;
  TestAgent agent;
  agent.add_strangers(9);
  agent.add(sshd.client_key());
  std::filesystem::remove(sshd.client_key());  // The public half stays: it names the key.
  SshOptions options = sshd.options();
  options.locations.agent_socket = agent.socket();
  for (std::string suffix : {"", ".pub"}) {
    sshd.set_config("IdentityFile " + sshd.client_key().string() + suffix + "\n");
    EXPECT_EQ(connect_and_run(options, sshd.host()), "in\n") << suffix << sshd.log();
  }
}

TEST(SshLogin, Ten_wrong_keys_in_the_agent_end_with_a_clear_error) {
  TestSshd sshd;
  TestAgent agent;
  agent.add_strangers(10);
  std::filesystem::remove(sshd.client_key());
  SshOptions options = sshd.options();
  options.locations.agent_socket = agent.socket();
  auto connected = connect(options, sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kAuth);
  EXPECT_THAT(connected.error().error.what, HasSubstr("MaxAuthTries"));
  EXPECT_THAT(connected.error().error.help, HasSubstr("IdentitiesOnly yes"));
}

TEST(SshLogin, IdentitiesOnly_keeps_the_agents_other_keys_back) {
  TestSshd sshd;
  TestAgent agent;
  agent.add_strangers(3);
  agent.add(sshd.client_key());
  sshd.set_config("IdentityFile /nowhere/key\nIdentitiesOnly yes\n");
  SshOptions options = sshd.options();
  options.locations.agent_socket = agent.socket();
  EXPECT_THAT(connect_and_run(options, sshd.host()), HasSubstr("there is no key to offer"));
}

TEST(SshLogin, An_encrypted_key_that_the_agent_holds_logs_in) {
  TestSshd sshd;
  TestAgent agent;
  agent.add(sshd.client_key());
  shell("ssh-keygen -q -p -N secret -f " + sshd.client_key().string());
  SshOptions options = sshd.options();
  options.locations.agent_socket = agent.socket();
  EXPECT_EQ(connect_and_run(options, sshd.host()), "in\n");
}

TEST(SshLogin, An_agent_that_never_answers_costs_its_patience_and_is_named) {
  TestSshd sshd;
  TestFolder folder;
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = (folder.path() / "agent").string();
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::listen(listener.get(), 8);
  SshOptions options = sshd.options();
  options.locations.agent_socket = path;
  options.agent_patience = milliseconds(300);
  std::filesystem::rename(sshd.client_key(), sshd.home() / "away");
  SshConnector connector(options);
  auto start = Deadline::Clock::now();
  auto connected = connector.connect(sshd.host(), soon(), {});
  ASSERT_FALSE(connected);
  EXPECT_THAT(connected.error().error.what, HasSubstr("did not answer within 0.3 s"));
  EXPECT_GE(elapsed(start), 0.3);
  EXPECT_LT(elapsed(start), kHang);
}

TEST(SshLogin, An_agent_that_hangs_while_it_signs_does_not_hang_us) {
  TestSshd sshd;
  TestAgent agent;
  agent.add(sshd.client_key());
  std::filesystem::remove(sshd.client_key());
  // A relay in front of a real agent that answers the list and swallows the request to sign.
  TestFolder folder;
  std::string path = (folder.path() / "agent").string();
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::listen(listener.get(), 8);
  std::jthread relay([&] {
    UniqueFd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    UniqueFd real(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    agent.socket().copy(to.sun_path, sizeof to.sun_path - 1);
    ::connect(real.get(), reinterpret_cast<sockaddr*>(&to), sizeof to);
    char buffer[8192];
    ssize_t n = ::recv(client.get(), buffer, sizeof buffer, 0);
    ::send(real.get(), buffer, static_cast<std::size_t>(n), 0);
    n = ::recv(real.get(), buffer, sizeof buffer, 0);
    ::send(client.get(), buffer, static_cast<std::size_t>(n), 0);
    while (::recv(client.get(), buffer, sizeof buffer, 0) > 0) {
    }
  });
  SshOptions options = sshd.options();
  options.locations.agent_socket = path;
  options.agent_patience = milliseconds(300);
  auto start = Deadline::Clock::now();
  auto connected = connect(options, sshd.host());
  ASSERT_FALSE(connected);
  EXPECT_THAT(connected.error().error.what, HasSubstr("did not answer within 0.3 s"));
  EXPECT_LT(elapsed(start), kHang);
}

// ---- Servers

TEST(SshServer, A_port_that_nobody_listens_on_is_refused_by_name) {
  TestSshd sshd;
  Host host{.name = "127.0.0.1", .user = {}, .port = free_port()};
  auto connected = connect(sshd.options(), host);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kUnreachable);
  EXPECT_EQ(connected.error().error.what,
            "connection refused by 127.0.0.1 port " + std::to_string(host.port));
}

TEST(SshServer, A_name_that_does_not_resolve_is_said) {
  TestSshd sshd;
  auto connected = connect(sshd.options(), {.name = "no-such-host.invalid", .user = {}});
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kUnreachable);
  EXPECT_THAT(connected.error().error.what, HasSubstr("no-such-host.invalid"));
}

TEST(SshServer, A_server_that_accepts_and_says_nothing_runs_into_the_banner_deadline) {
  TestSshd sshd;
  FakeServer silent([](int) {});
  SshOptions options = sshd.options();
  options.banner_patience = seconds(1);
  auto start = Deadline::Clock::now();
  auto connected = connect(options, silent.host());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kUnreachable);
  EXPECT_EQ(connected.error().error.what,
            "127.0.0.1 accepted the connection but sent no SSH banner within 1 s");
  EXPECT_LT(elapsed(start), kHang);
}

TEST(SshServer, Silence_in_the_middle_of_the_handshake_runs_into_the_deadline) {
  TestSshd sshd;
  FakeServer mute([](int fd) {
    std::string banner = "SSH-2.0-OpenSSH_9.2\r\n";
    ::send(fd, banner.data(), banner.size(), MSG_NOSIGNAL);
  });
  auto start = Deadline::Clock::now();
  auto connected = connect(sshd.options(), mute.host(), Deadline::after(seconds(1)));
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kUnreachable);
  EXPECT_THAT(connected.error().error.what, HasSubstr("in the middle of the SSH handshake"));
  EXPECT_LT(elapsed(start), kHang);
}

TEST(SshServer, A_stop_ends_a_handshake_at_once) {
  TestSshd sshd;
  FakeServer silent([](int) {});
  SshConnector connector(sshd.options());
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(200));
    stop.request_stop();
  });
  auto start = Deadline::Clock::now();
  auto connected = connector.connect(silent.host(), soon(), stop.get_token());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kCancelled);
  EXPECT_LT(elapsed(start), kHang);
}

TEST(SshServer, One_that_hangs_up_is_tried_again_and_then_told) {
  TestSshd sshd;
  std::atomic<int> connections = 0;
  FakeServer rude([&](int fd) {
    ++connections;
    ::shutdown(fd, SHUT_RDWR);
  });
  auto connected = connect(sshd.options(), rude.host(), Deadline::after(seconds(2)));
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kUnreachable);
  EXPECT_THAT(connected.error().error.what,
              HasSubstr("closed the connection before its SSH banner"));
  EXPECT_GT(connections, 1);
}

TEST(SshServer, Something_that_is_not_ssh_is_refused) {
  TestSshd sshd;
  FakeServer web([](int fd) {
    std::string answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
  });
  auto connected = connect(sshd.options(), web.host(), Deadline::after(seconds(2)));
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kUnreachable);
}

TEST(SshServer, A_connection_that_breaks_in_the_middle_of_a_transfer_is_an_error_at_once) {
  TestSshd sshd;
  SshConnector connector(sshd.options());
  auto host = connector.connect(sshd.host(), soon(), {});
  ASSERT_TRUE(host) << host.error().error.what;
  auto channel = (*host)->exec("sleep 60", soon());
  ASSERT_TRUE(channel);
  std::jthread cutter([&] {
    std::this_thread::sleep_for(milliseconds(300));
    for (pid_t pid : sshd.session_processes()) ::kill(pid, SIGKILL);
  });
  std::string data(64 << 20, 'x');  // sshd has unread bytes when it dies: the kernel sends a reset.
  auto start = Deadline::Clock::now();
  auto written = (*channel)->write(data, soon());
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().what, HasSubstr("the connection to 127.0.0.1 is lost"));
  EXPECT_LT(elapsed(start), kHang);
  EXPECT_FALSE((*host)->alive());
  std::vector<char> buffer(10);
  EXPECT_FALSE((*channel)->read(buffer, soon()));
  EXPECT_FALSE((*host)->exec("true", soon()));
}

TEST(SshServer, A_stopped_sshd_runs_into_the_deadline_of_read_and_write) {
  TestSshd sshd;
  SshConnector connector(sshd.options());
  auto host = connector.connect(sshd.host(), soon(), {});
  ASSERT_TRUE(host) << host.error().error.what;
  auto channel = (*host)->exec("cat >/dev/null", soon());
  ASSERT_TRUE(channel);
  ASSERT_TRUE((*channel)->write("begin", soon()));
  for (pid_t pid : sshd.session_processes()) ::kill(pid, SIGSTOP);
  std::string data(64 << 20, 'x');
  auto start = Deadline::Clock::now();
  auto written = (*channel)->write(data, Deadline::after(milliseconds(700)));
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().what, HasSubstr("took only"));
  EXPECT_LT(elapsed(start), kHang);
  std::vector<char> buffer(10);
  EXPECT_FALSE((*channel)->read(buffer, Deadline::after(milliseconds(200))));
  EXPECT_LT(elapsed(start), kHang);
}

TEST(SshServer, A_keepalive_disturbs_nothing) {
  TestSshd sshd;
  SshOptions options = sshd.options();
  options.keepalive_after = milliseconds(50);
  EXPECT_EQ(connect_and_run(options, sshd.host(), "sleep 0.5; echo after"), "after\n");
}

TEST(SshServer, New_keys_in_the_middle_of_a_transfer_disturb_nothing) {
  TestSshd sshd("RekeyLimit 1M");
  SshConnector connector(sshd.options());
  auto host = connector.connect(sshd.host(), soon(), {});
  ASSERT_TRUE(host) << host.error().error.what;
  auto channel = (*host)->exec("wc -c", soon());
  ASSERT_TRUE(channel);
  auto written = (*channel)->write(std::string(16 << 20, 'x'), soon());
  ASSERT_TRUE(written) << written.error().what;
  ASSERT_TRUE((*channel)->close_stdin());
  std::vector<char> buffer(100);
  auto n = (*channel)->read(buffer, soon());
  ASSERT_TRUE(n) << n.error().what;
  EXPECT_EQ(std::string(buffer.data(), *n), "16777216\n");
}

TEST(SshServer, With_MaxSessions_1_commands_follow_one_another) {
  TestSshd sshd("MaxSessions 1");
  SshConnector connector(sshd.options());
  auto host = connector.connect(sshd.host(), soon(), {});
  ASSERT_TRUE(host) << host.error().error.what;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run(**host, "echo next"), "next\n");
}

TEST(SshServer, One_that_takes_two_handshakes_at_once_lets_sixteen_in) {
  TestSshd sshd("MaxStartups 2:100:2");
  SshConnector connector(sshd.options());
  std::atomic<int> in = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&] {
        auto host = connector.connect(sshd.host(), soon(), {});
        if (host && run(**host, "echo in") == "in\n") ++in;
        if (!host) ADD_FAILURE() << host.error().error.what;
      });
    }
  }
  EXPECT_EQ(in, 16);
}

TEST(SshServer, A_forced_command_is_what_runs) {
  TestSshd sshd("ForceCommand echo forced");
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "forced\n");
}

TEST(SshServer, A_dead_IPv6_address_first_costs_little) {
  // localhost is ::1 and 127.0.0.1 where the resolver says so; sshd listens on the latter only.
  TestSshd sshd;
  sshd.set_known_hosts("localhost " + sshd.host_key() + "\n");
  Host host{.name = "localhost", .user = {}, .port = sshd.port()};
  auto start = Deadline::Clock::now();
  EXPECT_EQ(connect_and_run(sshd.options(), host), "in\n");
  EXPECT_LT(elapsed(start), kHang);
}

// ---- The user's configuration

TEST(SshConfiguration, An_alias_brings_name_port_user_and_key) {
  TestSshd sshd;
  std::filesystem::rename(sshd.client_key(), sshd.home() / "own_key");
  sshd.set_config("Host other\n  HostName 192.0.2.1\nHost node*\n  HostName 127.0.0.1\n  Port " +
                  std::to_string(sshd.port()) + "\n  IdentityFile ~/own_key\n  User " +
                  SshLocations::from_environment().user + "\nHost *\n  User somebody\n");
  EXPECT_EQ(connect_and_run(sshd.options(), {.name = "node01", .user = {}}), "in\n");
}

TEST(SshConfiguration, The_second_of_two_identity_files_is_used_too) {
  TestSshd sshd;
  make_key(sshd.home() / "wrong");
  std::filesystem::rename(sshd.client_key(), sshd.home() / "right");
  sshd.set_config("IdentityFile ~/wrong\nIdentityFile %d/right\n");
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n");
}

TEST(SshConfiguration, HostKeyAlias_names_the_line_in_known_hosts) {
  TestSshd sshd;
  sshd.set_known_hosts("cluster " + sshd.host_key() + "\n");
  sshd.set_config("HostKeyAlias cluster\n");
  EXPECT_EQ(connect_and_run(sshd.options(), sshd.host()), "in\n");
}

TEST(SshConfiguration, A_proxy_command_carries_the_session) {
  TestSshd sshd;
  Host host = sshd.host();
  sshd.set_known_hosts("proxied " + sshd.host_key() + "\n");
  sshd.set_config(
      "Host proxied\n  HostKeyAlias proxied\n  ProxyCommand bash -c 'exec 3<>/dev/tcp/127.0.0.1/" +
      std::to_string(host.port) + "; cat <&3 & exec cat >&3'\n");
  EXPECT_EQ(connect_and_run(sshd.options(), {.name = "proxied", .user = {}}), "in\n");
}

TEST(SshConfiguration, A_proxy_command_that_fails_is_quoted) {
  TestSshd sshd;
  sshd.set_config("ProxyCommand sh -c 'echo the bastion is closed >&2; exit 1'\n");
  auto connected = connect(sshd.options(), {.name = "node01", .user = {}});
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ConnectFailure::kUnreachable);
  EXPECT_THAT(connected.error().error.what, HasSubstr("the bastion is closed"));
}

TEST(SshConfiguration, A_proxy_command_that_hangs_runs_into_the_deadline_and_is_ended) {
  TestSshd sshd;
  sshd.set_config("ProxyCommand sleep 1000\n");
  SshOptions options = sshd.options();
  options.banner_patience = milliseconds(500);
  auto start = Deadline::Clock::now();
  auto connected = connect(options, {.name = "node01", .user = {}});
  ASSERT_FALSE(connected);
  EXPECT_THAT(connected.error().error.what, HasSubstr("no SSH banner"));
  EXPECT_LT(elapsed(start), kHang);
}

TEST(SshConfiguration, ProxyJump_goes_through_a_second_host) {
  TestSshd inner;
  TestSshd jump;
  std::string jump_name = "[127.0.0.1]:" + std::to_string(jump.port());
  write_text(jump.folder() / "authorized_keys",
             read_file(inner.client_key().string() + ".pub").value());
  inner.set_known_hosts("inside " + inner.host_key() + "\n" + jump_name + " " + jump.host_key() +
                        "\n");
  inner.set_config("Host inside\n  HostName 127.0.0.1\n  Port " + std::to_string(inner.port()) +
                   "\n  HostKeyAlias inside\n  ProxyJump 127.0.0.1:" + std::to_string(jump.port()) +
                   "\nHost *\n  IdentityFile " + inner.client_key().string() +
                   "\n  UserKnownHostsFile " + (inner.home() / ".ssh/known_hosts").string() + "\n");
  EXPECT_EQ(connect_and_run(inner.options(), {.name = "inside", .user = {}}), "in\n") << jump.log();
  EXPECT_THAT(jump.log(), HasSubstr("Accepted publickey"));

  // And a jump host that is not known is refused, in its own words.
  inner.set_known_hosts("inside " + inner.host_key() + "\n");
  auto connected = connect(inner.options(), {.name = "inside", .user = {}});
  ASSERT_FALSE(connected);
  EXPECT_THAT(connected.error().error.what, HasSubstr("Host key verification failed"));
}

}  // namespace
}  // namespace dsi
