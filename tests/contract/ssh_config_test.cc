// SshConfig against the authority: `ssh -G` on the same files.

#include "orchestrator/adapters/ssh_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "orchestrator/base/shell_quote.h"
#include "tests/contract/test_sshd.h"

namespace dsi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

class SshConfigFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_.path() / ".ssh"); }

  SshLocations locations() const {
    SshLocations where = SshLocations::from_environment();
    where.home = folder_.path();
    where.config = folder_.path() / ".ssh/config";
    where.agent_socket = "/run/agent";
    return where;
  }

  Result<SshTarget> resolve(const Host& host) const {
    DSI_TRY(SshConfig config, SshConfig::read(locations()));
    return config.resolve(host, soon(), {});
  }

  // One keyword of `ssh -G`, every line of it.
  std::vector<std::string> authority(const std::string& keyword, const Host& host) const {
    std::string line = "ssh -G -F " + (folder_.path() / ".ssh/config").string();
    if (!host.user.empty()) line += " -l " + host.user;
    if (host.port != 0) line += " -p " + std::to_string(host.port);
    std::istringstream out(shell(line + " " + host.name));
    std::vector<std::string> values;
    for (std::string text; std::getline(out, text);) {
      if (text.starts_with(keyword + " ")) values.push_back(text.substr(keyword.size() + 1));
    }
    return values;
  }

  TestFolder folder_;
};

TEST_F(SshConfigFiles, Agree_with_ssh_about_every_host) {
  write_text(folder_.path() / ".ssh/config",
             "# comment\n"
             "Host gpu? !gpu9 \"login\"\n"
             "  HostName %h.example.org\n"
             "  Port=2222\n"
             "  User = alice   # the operator\n"
             "  HostKeyAlias cluster\n"
             "\n"
             "Match host=*.example.org user alice\n"
             "\tIdentitiesOnly yes\r\n"
             "Match originalhost gpu2,gpu3\n"
             "  IdentityFile /keys/second\n"
             "Match !originalhost gpu* user root\n"
             "  ConnectTimeout 7\n"
             "Match final host *.example.org\n"
             "  BindAddress 127.0.0.1\n"
             "Include " +
                 (folder_.path() / "more*.conf").string() +
                 "\n"
                 "Host *\n"
                 "  User bob\n"
                 "  Port 22022\n"
                 "  StrictHostKeyChecking accept-new\n"
                 "  AddressFamily inet\n");
  write_text(folder_.path() / "more1.conf", "Host jump*\n  ProxyJump first,last:2200\n");
  write_text(folder_.path() / "more2.conf",
             "Compression no\nHost gpu1\n  ProxyCommand nc -X 5 %h %p\n  ProxyJump never\n");
  for (Host host : std::vector<Host>{{.name = "gpu1", .user = {}},
                                     {.name = "gpu2", .user = {}},
                                     {.name = "gpu9", .user = {}},
                                     {.name = "login", .user = {}},
                                     {.name = "jump7", .user = {}},
                                     {.name = "other", .user = "root"},
                                     {.name = "gpu3", .user = "carol", .port = 99},
                                     {.name = "x.example.org", .user = "alice"}}) {
    SCOPED_TRACE(host.name);
    auto target = resolve(host);
    ASSERT_TRUE(target) << target.error().what;
    auto only = [&](const std::string& keyword) {
      auto values = authority(keyword, host);
      return values.empty() ? std::string() : values[0];
    };
    EXPECT_EQ(target->host_name, only("hostname"));
    EXPECT_EQ(std::to_string(target->port), only("port"));
    EXPECT_EQ(target->user, only("user"));
    EXPECT_EQ(target->host_key_alias, only("hostkeyalias"));
    EXPECT_EQ(target->identities_only ? "yes" : "no", only("identitiesonly"));
    EXPECT_EQ(target->bind_address, only("bindaddress"));
    EXPECT_EQ(target->accept_unknown_host_key, only("stricthostkeychecking") == "accept-new");
    std::string timeout = only("connecttimeout");
    EXPECT_EQ(target->connect_timeout ? std::to_string(target->connect_timeout->count()) : "none",
              timeout);
    if (target->identities_configured) {
      EXPECT_EQ(target->identity_files, authority("identityfile", host));
    }
    std::string proxy = only("proxycommand");
    std::string jump = only("proxyjump");
    EXPECT_EQ(target->proxy_command.empty(), proxy.empty() && jump.empty()) << proxy << jump;
    if (!proxy.empty()) {
      EXPECT_EQ(target->proxy_command,
                "nc -X 5 " + target->host_name + " " + std::to_string(target->port));
    }
  }
}

TEST_F(SshConfigFiles, ProxyJump_becomes_ssh_with_the_hops_before_the_last) {
  write_text(folder_.path() / ".ssh/config",
             "Host a\n  HostName inner\n  ProxyJump first,u@second:2200\nHost b\n  ProxyJump "
             "ssh://[::1]:23\n");
  auto a = resolve({.name = "a", .user = {}});
  ASSERT_TRUE(a) << a.error().what;
  EXPECT_THAT(a->proxy_command, HasSubstr("-J first -l u -p 2200 -W '[inner]:22' -- second"));
  EXPECT_THAT(a->proxy_command, HasSubstr("BatchMode=yes"));
  auto b = resolve({.name = "b", .user = {}});
  ASSERT_TRUE(b) << b.error().what;
  EXPECT_THAT(b->proxy_command, HasSubstr("-p 23 -W '[b]:22' -- ::1"));
}

TEST_F(SshConfigFiles, A_jump_host_is_never_taken_for_an_option) {
  write_text(folder_.path() / ".ssh/config", "ProxyJump -oProxyCommand=touch\n");
  EXPECT_FALSE(resolve({.name = "a", .user = {}}));
}

TEST_F(SshConfigFiles, Match_exec_is_left_to_ssh_itself) {
  write_text(folder_.path() / ".ssh/config",
             "Match exec \"test %h = yes\"\n  Port 1234\n  IdentityFile /keys/one\n"
             "Match exec \"false\"\n  User nobody\n");
  auto yes = resolve({.name = "yes", .user = {}});
  ASSERT_TRUE(yes) << yes.error().what;
  EXPECT_EQ(yes->port, 1234);
  EXPECT_THAT(yes->identity_files, ElementsAre("/keys/one"));
  EXPECT_TRUE(yes->identities_configured);
  auto no = resolve({.name = "no", .user = {}});
  ASSERT_TRUE(no);
  EXPECT_EQ(no->port, 22);
  EXPECT_FALSE(no->identities_configured);
}

TEST_F(SshConfigFiles, Without_configuration_the_defaults_come_from_the_home_folder) {
  write_text(folder_.path() / ".ssh/config", "");
  auto target = resolve({.name = "Node01", .user = {}});
  ASSERT_TRUE(target);
  std::string ssh = (folder_.path() / ".ssh").string();
  EXPECT_EQ(target->host_name, "node01");
  EXPECT_EQ(target->port, 22);
  EXPECT_THAT(target->identity_files,
              ElementsAre(ssh + "/id_ed25519", ssh + "/id_ecdsa", ssh + "/id_rsa"));
  EXPECT_FALSE(target->identities_configured);
  EXPECT_EQ(target->known_hosts_files[0], ssh + "/known_hosts");
  EXPECT_EQ(target->agent_socket, "/run/agent");
  EXPECT_FALSE(target->accept_unknown_host_key);
}

TEST_F(SshConfigFiles, Tokens_tildes_and_several_files_are_expanded) {
  write_text(folder_.path() / ".ssh/config",
             "UserKnownHostsFile ~/a \"%d/b c\"\nGlobalKnownHostsFile none\n"
             "IdentityFile ~/.ssh/%r@%h-%n-%p-%%\nIdentityAgent none\n");
  auto target = resolve({.name = "n", .user = "u", .port = 5});
  ASSERT_TRUE(target) << target.error().what;
  std::string home = folder_.path().string();
  EXPECT_THAT(target->known_hosts_files, ElementsAre(home + "/a", home + "/b c"));
  EXPECT_THAT(target->identity_files, ElementsAre(home + "/.ssh/u@n-n-5-%"));
  EXPECT_EQ(target->agent_socket, "");
}

TEST_F(SshConfigFiles, An_error_names_file_and_line) {
  write_text(folder_.path() / ".ssh/config", "Host a\n  User \"unclosed\n");
  auto target = resolve({.name = "a", .user = {}});
  ASSERT_FALSE(target);
  EXPECT_THAT(target.error().what, HasSubstr(".ssh/config:2"));
}

TEST_F(SshConfigFiles, Files_that_include_each_other_end) {
  std::string file = (folder_.path() / ".ssh/config").string();
  write_text(file, "Include " + file + "\n");
  auto target = resolve({.name = "a", .user = {}});
  ASSERT_FALSE(target);
  EXPECT_THAT(target.error().what, HasSubstr("Include goes too deep"));
}

}  // namespace
}  // namespace dsi
