#include "hostfile/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/base/nodeset.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string all_diagnostics(const ParsedHosts& parsed) {
  std::string text;
  for (const Diagnostic& diagnostic : parsed.diagnostics) text += to_string(diagnostic) + "\n";
  return text;
}

// A host in one word: [user@]name[:port][*slots][/max_slots].
std::vector<std::string> words(const ParsedHosts& parsed) {
  std::vector<std::string> out;
  for (const Host& host : parsed.hosts) {
    std::string word = host.user.empty() ? host.name : host.user + "@" + host.name;
    if (host.port != 0) word += ":" + std::to_string(host.port);
    if (host.slots != 0) word += "*" + std::to_string(host.slots);
    if (host.max_slots != 0) word += "/" + std::to_string(host.max_slots);
    out.push_back(word);
  }
  return out;
}

Result<std::string> no_files(const fs::path&) {
  return fail("does not exist");
}

// Text that has to be read without a word.
std::vector<std::string> hosts_of(std::string_view text) {
  auto parsed = parse_hostfile(text, "hosts", no_files);
  EXPECT_EQ(all_diagnostics(parsed), "") << text;
  return words(parsed);
}

std::vector<std::string> hosts_of_list(std::string_view text) {
  auto parsed = parse_host_list(text, "--hosts", no_files);
  EXPECT_EQ(all_diagnostics(parsed), "") << text;
  return words(parsed);
}

// The first line of the only diagnostic.
std::string only_finding(const ParsedHosts& parsed) {
  if (parsed.diagnostics.size() != 1) {
    ADD_FAILURE() << "not one finding but:\n" << all_diagnostics(parsed);
    return {};
  }
  std::string text = to_string(parsed.diagnostics[0]);
  return text.substr(0, text.find('\n'));
}

std::string error_of(std::string_view text) {
  auto parsed = parse_hostfile(text, "hosts", no_files);
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_THAT(parsed.hosts, IsEmpty());
  return only_finding(parsed);
}

std::string error_of_list(std::string_view text) {
  auto parsed = parse_host_list(text, "--hosts", no_files);
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_THAT(parsed.hosts, IsEmpty());
  return only_finding(parsed);
}

std::string warning_of(std::string_view text) {
  auto parsed = parse_hostfile(text, "hosts", no_files);
  EXPECT_TRUE(parsed.ok()) << all_diagnostics(parsed);
  return only_finding(parsed);
}

// --- What surrounds the words -------------------------------------------------------------------

TEST(Hostfile, Comments_of_every_kind_and_blank_lines_are_skipped) {
  EXPECT_THAT(hosts_of("# a comment\n"
                       "\n"
                       "   \t \n"
                       "a slots=1 # behind a line\n"
                       "b slots=1// so, too\n"
                       "c/* inside */slots=1\n"
                       "/* over\n d slots=1\n lines */ e slots=1\n"
                       "f slots=1#and without a blank\n"),
              ElementsAre("a*1", "b*1", "c*1", "e*1", "f*1"));
}

TEST(Hostfile, Lines_keep_their_numbers_and_columns_behind_comments) {
  auto parsed = parse_hostfile("/* one\ntwo */ a\n\nb\n", "hosts");
  ASSERT_THAT(parsed.hosts, SizeIs(2));
  EXPECT_EQ(parsed.hosts[0].line, 2);
  EXPECT_EQ(parsed.hosts[1].line, 4);
  EXPECT_THAT(error_of("/* x */ a slots=no"), HasSubstr("hosts:1:17: error: slots has to be"));
}

TEST(Hostfile, An_unclosed_comment_is_an_error_where_it_begins) {
  EXPECT_THAT(error_of("a\n b /* c\nd\n"), HasSubstr("hosts:2:4: error: the comment"));
}

TEST(Hostfile, Windows_line_ends_and_a_byte_order_mark_are_no_part_of_names) {
  EXPECT_THAT(hosts_of("\xef\xbb\xbf"
                       "a slots=2\r\nb slots=3\r\n\r\n#x\r\nc\r\r\n"),
              ElementsAre("a*2", "b*3", "c"));
}

TEST(Hostfile, Tabs_separate_words) {
  EXPECT_THAT(hosts_of("\ta\tslots\t=\t2\t\n"), ElementsAre("a*2"));
}

TEST(Hostfile, The_last_line_needs_no_newline) {
  EXPECT_THAT(hosts_of("a\nb"), ElementsAre("a", "b"));
}

TEST(Hostfile, A_file_without_hosts_is_an_error) {
  for (std::string_view text :
       {"", "\n\n", "# only\n// comments\n/* here */\n", "\xef\xbb\xbf", "\r\n"}) {
    EXPECT_THAT(error_of(text), HasSubstr("hosts: error: names no host"));
  }
}

TEST(Hostfile, What_is_no_text_is_one_error_and_not_thousands) {
  EXPECT_THAT(error_of(std::string_view("\xff\xfe"
                                        "a\0\n\0",
                                        6)),
              HasSubstr("UTF-16"));
  EXPECT_THAT(error_of(std::string_view("a\n;\0;\n;\n", 8)),
              HasSubstr("hosts:2:2: error: not a text file"));
}

TEST(Hostfile, A_pdsh_include_directive_is_not_silently_a_comment) {
  EXPECT_THAT(warning_of("a\n#include more\n"), HasSubstr("hosts:2:1: warning: `#include`"));
}

// --- Formats ------------------------------------------------------------------------------------

TEST(Hostfile, DeepSpeed_slots) {
  EXPECT_THAT(hosts_of("worker-0 slots=4\nworker-1 slots=8\n"),
              ElementsAre("worker-0*4", "worker-1*8"));
}

TEST(Hostfile, Open_MPI_keys_in_any_case_with_blanks_and_quotes) {
  EXPECT_THAT(hosts_of("a SLOTS = 4 Max-Slots=8\n"
                       "b count=2 slots_max = 3\n"
                       "c cpu=1 username=bob port=2222\n"
                       "\"d\" slots=\"4\" user='eve' boards=1 sockets=2 cores=8\n"
                       "zoe@e slots=1 max_slots=1\n"),
              ElementsAre("a*4/8", "b*2/3", "bob@c:2222*1", "eve@d*4", "zoe@e*1/1"));
}

TEST(Hostfile, Open_MPI_rankfiles_count_ranks) {
  EXPECT_THAT(hosts_of("rank 0=a slot=0:0-3\nrank 1 = a slot=p1\nRANK 2=b slots=0\n"),
              ElementsAre("a*2", "b*1"));
  EXPECT_THAT(hosts_of("rank slots=2\n"), ElementsAre("rank*2")) << "a host may be called rank";
  EXPECT_THAT(error_of("rank 0=a\nrank 0=b\n"),
              HasSubstr("hosts:2:6: error: rank 0 is given a second time"));
  EXPECT_THAT(error_of("rank 0=+n0 slot=0\n"),
              HasSubstr("hosts:1:8: error: `+n0` is a host relative"));
  EXPECT_THAT(error_of("rank 0=a[1-2]\n"), HasSubstr("a rank has one host"));
  EXPECT_THAT(error_of("rank 0=a\na slots=2\n"), HasSubstr("a is already named at line 1"));
}

TEST(Hostfile, Hydra_and_Intel_write_slots_behind_a_colon) {
  EXPECT_THAT(hosts_of("a:2\nb:4 user=eve binding=user:0,1 # x\nc[1-2]:3\n"),
              ElementsAre("a*2", "eve@b*4", "c1*3", "c2*3"));
  EXPECT_THAT(warning_of("a:2 ifhn=a-ib\nb:2 ifhn=b-ib\n"),
              HasSubstr("hosts:1:5: warning: `ifhn`"));
  EXPECT_THAT(warning_of("a ifname=eth0\n"), HasSubstr("no effect"));
}

TEST(Hostfile, A_port_behind_a_colon_is_never_taken_for_slots) {
  auto parsed = parse_hostfile("a:2222\n", "hosts");
  EXPECT_FALSE(parsed.ok());
  EXPECT_EQ(all_diagnostics(parsed),
            "hosts:1:3: error: `:2222` would be 2222 slots\n"
            "  help: for the port write port=2222; if slots are meant, slots=2222\n");
  EXPECT_THAT(warning_of("a:22\n"), HasSubstr("hosts:1:3: warning: `:22` is read as 22 slots"));
  EXPECT_THAT(hosts_of("a slots=2222\nb port=22\n"), ElementsAre("a*2222", "b:22"));
}

TEST(Hostfile, Slurm_ranges_lists_and_counts) {
  EXPECT_THAT(hosts_of("tux[0-2,08-09],login\n"),
              ElementsAre("tux0", "tux1", "tux2", "tux08", "tux09", "login"));
  EXPECT_THAT(hosts_of("r[1-2]n[1-2] slots=8\n"),
              ElementsAre("r1n1*8", "r1n2*8", "r2n1*8", "r2n2*8"));
  EXPECT_THAT(hosts_of("a*4\nb\n"), ElementsAre("a*4", "b"));
}

TEST(Hostfile, Pdsh_exclusions_hold_for_the_whole_file) {
  EXPECT_THAT(hosts_of("foo[01-04],-foo[02-03]\nbar,-baz\nbaz\n"),
              ElementsAre("foo01", "foo04", "bar"));
  EXPECT_THAT(warning_of("a,-b\n"),
              HasSubstr("hosts:1:3: warning: b to be left out, but named nowhere"));
  EXPECT_THAT(error_of("a,-a\n"), HasSubstr("every host is left out"));
}

TEST(Hostfile, Pdsh_names_the_way_in) {
  EXPECT_THAT(hosts_of("ssh:eve@a\nssh:b\nssh:2\n"), ElementsAre("eve@a", "b", "ssh*2"));
  EXPECT_THAT(error_of("rsh:eve@a\n"), HasSubstr("by ssh only, not by rsh"));
}

TEST(Hostfile, PBS_lines_add_slots) {
  EXPECT_THAT(hosts_of("a\na\nb\na\n"), ElementsAre("a*3", "b*1"));
  EXPECT_THAT(hosts_of("a\nb\n"), ElementsAre("a", "b")) << "no host twice: nothing says one slot";
}

TEST(Hostfile, Addresses) {
  EXPECT_THAT(hosts_of("[::1]:2222\nfe80::1%eth0 "
                       "slots=2\n10.0.0.7:4\nbob@[fd00::1]\nbob@fd00::2\n[fd00::3] slots=8\n"),
              ElementsAre("::1:2222", "fe80::1%eth0*2", "10.0.0.7*4", "bob@fd00::1", "bob@fd00::2",
                          "fd00::3*8"));
  EXPECT_THAT(error_of("fd00::g\n"), HasSubstr("hosts:1:1: error: `fd00::g` is no IPv6 address"));
  EXPECT_THAT(error_of("[fd00:::1]:22\n"), HasSubstr("hosts:1:2: error"));
  EXPECT_THAT(error_of("[::1\n"), HasSubstr("hosts:1:1: error: `[` is never closed"));
  EXPECT_THAT(error_of("[::1]x\n"), HasSubstr("hosts:1:6: error"));
  EXPECT_THAT(error_of("[::1]:0\n"), HasSubstr("port has to be a number from 1 to 65535"));
  EXPECT_THAT(error_of("[::1]:65536\n"), HasSubstr("port has to be"));
  EXPECT_THAT(error_of("fe80::1%$(id)\n"), HasSubstr("is no IPv6 address"));
  for (std::string_view text :
       {"12", "1.2", "1.2.3.4.5", "256.1.1.1", "0x7f", "a.0x7f", "1.2.3.08", "node.7."}) {
    EXPECT_THAT(error_of(text), HasSubstr("is a number, but not an IPv4 address")) << text;
  }
}

// --- Duplicates ---------------------------------------------------------------------------------

TEST(Hostfile, A_duplicate_is_an_error_that_names_both_lines) {
  EXPECT_THAT(error_of("a slots=2\nb\na slots=2\n"),
              HasSubstr("hosts:3:1: error: a is already named at line 1"));
  EXPECT_THAT(error_of("a\na\nb slots=1\n"), HasSubstr("hosts:2:1")) << "not all lines are bare";
  EXPECT_THAT(error_of("n[01-08]\nx,n[03-05]\n"),
              HasSubstr("hosts:2:3: error: n[03-05] are already named at line 1"));
  EXPECT_THAT(error_of("a,a\n"), HasSubstr("hosts:1:3: error: a is already"));
}

TEST(Hostfile, The_same_host_in_another_spelling_is_a_duplicate) {
  EXPECT_THAT(error_of("Node1 slots=1\nnode1. slots=1\n"), HasSubstr("already named"));
  EXPECT_THAT(error_of("fd00::1 slots=1\nFD00:0::1 slots=1\n"), HasSubstr("already named"));
}

TEST(Hostfile, Two_ports_of_one_address_are_two_hosts) {
  EXPECT_THAT(hosts_of("localhost port=2201\nlocalhost port=2202\n"),
              ElementsAre("localhost:2201", "localhost:2202"));
}

TEST(Hostfile, One_host_for_two_users_is_an_error) {
  EXPECT_THAT(error_of("a@h\nb@h\n"),
              HasSubstr("hosts:2:1: error: host `h` is named for two users, `a` and `b`"));
}

// --- Keys ---------------------------------------------------------------------------------------

TEST(Hostfile, Unknown_keys_warn_once_and_suggest) {
  auto parsed = parse_hostfile("a slot=4\nb slot=4 colour=red\n", "hosts");
  EXPECT_TRUE(parsed.ok());
  EXPECT_EQ(all_diagnostics(parsed),
            "hosts:1:3: warning: the key `slot` is unknown and has no effect\n"
            "  help: did you mean `slots`?\n"
            "hosts:2:10: warning: the key `colour` is unknown and has no effect\n"
            "  help: known are slots, max_slots, user and port; see FORMAT.md\n");
  EXPECT_THAT(words(parsed), ElementsAre("a", "b"));
}

TEST(Hostfile, Bad_values_and_contradictions_are_errors) {
  const std::map<std::string, std::string> cases = {
      {"a slots=0", "hosts:1:9: error: slots has to be a number from 1"},
      {"a slots=-1", "hosts:1:9: error: slots"},
      {"a slots=4x", "hosts:1:9: error: slots"},
      {"a slots=99999999999999999999", "hosts:1:9: error: slots"},
      {"a slots=", "hosts:1:3: error: `slots` has no value"},
      {"a slots", "hosts:1:3: error: expected key=value, not `slots`"},
      {"a 8", "hosts:1:3: error: expected key=value, not `8`"},
      {"a b", "hosts:1:3: error: expected key=value, not `b`"},
      {"a =4", "hosts:1:3: error: a key is missing"},
      {"slots=4", "hosts:1:1: error: the host name before `slots=4` is missing"},
      {"slots = 4", "hosts:1:7: error: a key is missing"},
      {"a slots=4 slots=4", "hosts:1:11: error: `slots` is set a second time"},
      {"a slots=4 count=4", "hosts:1:11: error: `count` is set a second time"},
      {"a:2 slots=4", "hosts:1:1: error: two numbers of slots"},
      {"a slots=4 max_slots=2", "hosts:1:1: error: max_slots=2 is less"},
      {"x@a user=y", "hosts:1:1: error: two users"},
      {"[::1]:22 port=23", "hosts:1:1: error: two ports"},
      {"a port=70000", "hosts:1:8: error: port"},
      {"a user=-x", "hosts:1:8: error: the user name `-x` begins with `-`"},
      {"a user=x;y", "hosts:1:9: error: `;` is not allowed in the user name"},
      {"a user=\"x", "hosts:1:8: error: the quote is never closed"},
      {"\"a", "hosts:1:1: error: the quote is never closed"},
      {"\"a\"b", "hosts:1:4: error: expected a blank"},
      {"a:x", "hosts:1:3: error: slots"},
      {"a:", "hosts:1:3: error: slots"},
      {"^x slots=2", "hosts:1:4: error: keys without a host"},
  };
  for (const auto& [text, error] : cases) {
    auto parsed =
        parse_hostfile(text, "hosts", [](const fs::path&) { return Result<std::string>("other"); });
    EXPECT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(only_finding(parsed), HasSubstr(error)) << text;
  }
}

// --- Ranges -------------------------------------------------------------------------------------

TEST(Hostfile, Bad_ranges_are_errors_with_their_column) {
  EXPECT_THAT(error_of("ok,node[5-3]\n"),
              HasSubstr("hosts:1:9: error: the range 5-3 runs backwards"));
  EXPECT_THAT(error_of("node[01-100]\n"), HasSubstr("hosts:1:6: error: the range 01-100 mixes"));
  EXPECT_THAT(error_of("bob@node[1-3\n"), HasSubstr("hosts:1:9: error: `[` is never closed"));
  EXPECT_THAT(error_of("node[1-999999999]\n"),
              HasSubstr("hosts:1:5: error: more than 100000 names"));
  EXPECT_THAT(error_of("node[01, 02]\n"), HasSubstr("hosts:1:5: error: `[` is never closed"));
  EXPECT_THAT(error_of("a,\n"), HasSubstr("hosts:1:3: error: a name is missing behind the comma"));
  EXPECT_THAT(error_of("a, b\n"), HasSubstr("hosts:1:3: error: a name is missing"));
  EXPECT_THAT(error_of(",a\n"), HasSubstr("hosts:1:1: error: a name is missing before"));
}

TEST(Hostfile, Many_large_ranges_end_at_the_limit) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("h{}x[1-99999],-h{}x[1-99999]\n", i, i);
  auto parsed = parse_hostfile(text, "hosts");
  EXPECT_FALSE(parsed.ok());
  EXPECT_THAT(only_finding(parsed), HasSubstr("hosts:2:1: error: more than 100000 hosts"));
}

TEST(Hostfile, Many_errors_end_at_the_limit) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += ";\n";
  auto parsed = parse_hostfile(text, "hosts");
  EXPECT_THAT(parsed.diagnostics, SizeIs(10'001));
  EXPECT_THAT(parsed.diagnostics.back().message, HasSubstr("the rest is not read"));
}

// --- Names that are refused ---------------------------------------------------------------------

TEST(Hostfile, A_host_that_could_be_an_option_or_shell_code_is_refused) {
  const std::map<std::string, std::string> cases = {
      {"-oProxyCommand=x", "hosts:1:1: error: the host name `-oProxyCommand=x` begins with `-`"},
      {"--version", "begins with `-`"},
      {"bob@-x", "hosts:1:5: error: the host name `-x` begins with `-`"},
      {"-l@a", "the user name `-l` begins with `-`"},
      {"a;id", "hosts:1:2: error: `;` is not allowed in the host name `a;id`"},
      {"$(id)", "hosts:1:1: error: `$` is not allowed"},
      {"a`id`", "hosts:1:2: error: a backquote is not allowed"},
      {"a|b", "`|` is not allowed"},
      {"a&b", "`&` is not allowed"},
      {"a>b", "`>` is not allowed"},
      {"a\\b", "`\\` is not allowed"},
      {"a'b", "`'` is not allowed"},
      {"\"a b\"", "hosts:1:3: error: ` ` is not allowed"},
      {"a/../b", "`/` is not allowed"},
      {"a!b", "`!` is not allowed"},
      {"~a", "`~` is not allowed"},
      {"{a,b}", "`{` is not allowed"},
      {"$x@a", "`$` is not allowed in the user name"},
      {"a@b@c", "hosts:1:4: error: a second `@`"},
      {".a", "begins with `.`"},
      {"a..b", "hosts:1:2: error: two dots"},
      {"/a.*/", "regular expression"},
      {"a\x01", "hosts:1:2: error: the control character 0x01"},
      {"a\x1b[31m", "control character 0x1b"},
      {"a\x7f", "control character 0x7f"},
      {"a\rb", "control character 0x0d"},
      {"a\vb", "control character 0x0b"},
      {"kn\xc3\xb6ten",
       "hosts:1:3: error: a character outside ASCII in the host name `kn\\xc3\\xb6ten`"},
      {"a\xc2\xa0slots=4", "hosts:1:2: error: a no-break space"},
      {"a\xff", "outside ASCII"},
      {std::string(254, 'a'), "more than 253 characters"},
      {std::string(300, 'a'), "longer than 255 characters"},
      {"%h", "`%` is not allowed"},
      {"a%b", "`%` is not allowed"},
  };
  for (const auto& [text, error] : cases) {
    auto parsed = parse_hostfile(text + " slots=2\n", "hosts", no_files);
    EXPECT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.hosts, IsEmpty());
    ASSERT_THAT(parsed.diagnostics, ::testing::Not(IsEmpty())) << text;
    EXPECT_THAT(to_string(parsed.diagnostics[0]), HasSubstr(error)) << text;
  }
}

TEST(Hostfile, Messages_hold_nothing_that_a_terminal_would_obey) {
  for (int byte = 1; byte < 256; ++byte) {
    std::string text =
        std::string("a") + static_cast<char>(byte) + "b c=" + static_cast<char>(byte);
    for (const ParsedHosts& parsed :
         {parse_hostfile(text, "hosts", no_files), parse_host_list(text, "--hosts", no_files)}) {
      for (const Diagnostic& diagnostic : parsed.diagnostics) {
        for (char c : diagnostic.message + diagnostic.help) {
          EXPECT_TRUE(c >= 0x20 && c < 0x7f) << "byte " << byte << ": " << to_string(diagnostic);
        }
      }
    }
  }
}

TEST(Hostfile, All_errors_are_reported_at_once_and_no_host_is_given) {
  auto parsed = parse_hostfile("good\n;bad\nworse slots=x\n$a,$b\n", "hosts");
  EXPECT_THAT(parsed.diagnostics, SizeIs(4));
  EXPECT_THAT(parsed.hosts, IsEmpty());
}

// --- Files --------------------------------------------------------------------------------------

class HostfileOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "hostfile-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const fs::path& name, std::string_view text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::string finding(const fs::path& path) {
    auto parsed = read_hostfile(path);
    EXPECT_FALSE(parsed.ok());
    std::string text = only_finding(parsed);
    return text.starts_with(folder_.string()) ? text.substr(folder_.string().size() + 1) : text;
  }

  fs::path folder_;
};

TEST_F(HostfileOnDisk, A_file_that_cannot_be_read_says_why) {
  EXPECT_EQ(finding(folder_ / "missing"),
            "missing: error: cannot be opened: No such file or directory");
  EXPECT_EQ(finding(folder_ / "."), ".: error: is a folder");
  auto big = write("big", "a\n");
  fs::resize_file(big, kMaxHostfileBytes + 1);
  EXPECT_EQ(finding(big), "big: error: is larger than 16 MiB");
  if (::geteuid() != 0) {
    auto secret = write("secret", "a\n");
    fs::permissions(secret, fs::perms::none);
    EXPECT_EQ(finding(secret), "secret: error: cannot be opened: Permission denied");
  }
}

TEST_F(HostfileOnDisk, A_pipe_is_read_to_its_end) {
  fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream out(pipe);
    out << "a\n" << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    out << "b slots=2\n";
  });
  auto parsed = read_hostfile(pipe);
  writer.join();
  EXPECT_EQ(all_diagnostics(parsed), "");
  EXPECT_THAT(words(parsed), ElementsAre("a", "b*2"));
}

TEST_F(HostfileOnDisk, What_was_read_does_not_change_with_the_file) {
  auto path = write("hosts", "a\nb\n");
  auto parsed = read_hostfile(path);
  write("hosts", "c\n");
  EXPECT_THAT(words(parsed), ElementsAre("a", "b"));
}

TEST_F(HostfileOnDisk, Includes_are_relative_to_the_file_that_names_them) {
  auto path = write("hosts", "a slots=1\n^sub/more\nz slots=1\n");
  write("sub/more", "b slots=1\n^\"even more\",^//" + folder_.string() + "/abs\n");
  write("sub/even more", "c slots=1\n");
  write("abs", "d slots=1\n");
  auto parsed = read_hostfile(path);
  EXPECT_EQ(all_diagnostics(parsed), "");
  EXPECT_THAT(words(parsed), ElementsAre("a*1", "b*1", "c*1", "d*1", "z*1"));
}

TEST_F(HostfileOnDisk, An_error_in_an_included_file_names_that_file) {
  auto path = write("hosts", "a slots=1\n^more\n");
  write("more", "b slots=1\na slots=2\n");
  EXPECT_EQ(finding(path),
            fmt::format("more:2:1: error: a is already named at {}:1", path.string()));
}

TEST_F(HostfileOnDisk, Includes_that_cannot_work_are_errors) {
  EXPECT_THAT(finding(write("self", "a\n^./self\n")), HasSubstr("self:2:1: error:"));
  write("ring2", "b\n^ring1\n");
  EXPECT_THAT(finding(write("ring1", "a\n^ring2\n")), HasSubstr("includes itself"));
  write("once", "c\n");
  EXPECT_THAT(finding(write("twice", "a\n^once\n^./once\n")), HasSubstr("twice:3:1: error:"));
  for (int i = 0; i < 9; ++i)
    write(fmt::format("deep{}", i), fmt::format("d{}x\n^deep{}\n", i, i + 1));
  EXPECT_THAT(finding(folder_ / "deep0"),
              HasSubstr("deep7:2:1: error: files include files more than 8 deep"));
  EXPECT_THAT(finding(write("gone", "a\n^nowhere\n")), HasSubstr("No such file"));
  EXPECT_THAT(finding(write("folder", "a\n^.\n")), HasSubstr("is a folder"));
  EXPECT_THAT(finding(write("device", "a\n^/dev/zero\n")), HasSubstr("is no regular file"));
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(finding(write("waits", "a\n^fifo\n")), HasSubstr("is no regular file"));
  EXPECT_THAT(finding(write("lone", "a\n^\n")), HasSubstr("`^` without a file"));
  write("nothing", "# nothing\n");
  EXPECT_THAT(finding(write("empty", "a\n^nothing\n")), HasSubstr("nothing: error: names no host"));
}

// Links that lead back to their own folder give every file endlessly many names.
TEST_F(HostfileOnDisk, A_maze_of_links_comes_to_an_end) {
  for (char c = 'a'; c < 'p'; ++c) fs::create_directory_symlink(".", folder_ / std::string(1, c));
  std::string text;
  for (char c = 'a'; c < 'p'; ++c) text += fmt::format("^{}/hosts\n", c);
  auto parsed = read_hostfile(write("hosts", text));
  EXPECT_FALSE(parsed.ok());
  EXPECT_LE(parsed.diagnostics.size(), 10'001u);
}

// --- The command line ---------------------------------------------------------------------------

TEST(HostList, Names_ranges_users_and_ports) {
  EXPECT_THAT(hosts_of_list("node[01-03],user@gw:2222"),
              ElementsAre("node01", "node02", "node03", "user@gw:2222"));
  EXPECT_THAT(hosts_of_list("a,b c\nd\t[::1]:22,fe80::1"),
              ElementsAre("a", "b", "c", "d", "::1:22", "fe80::1"));
  EXPECT_THAT(hosts_of_list("eve@n[1-2]:2201"), ElementsAre("eve@n1:2201", "eve@n2:2201"));
  EXPECT_EQ(parse_host_list("a").hosts[0].slots, 0);
}

TEST(HostList, The_list_of_a_Slurm_job) {
  EXPECT_THAT(hosts_of_list("tux[0-1,12],r[1-2]n[01-02]"),
              ElementsAre("tux0", "tux1", "tux12", "r1n01", "r1n02", "r2n01", "r2n02"));
}

TEST(HostList, Lists_are_sets_that_may_overlap) {
  EXPECT_THAT(hosts_of_list("n[1-3],n2,N3"), ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(error_of_list("a@h,b@h"), HasSubstr("--hosts:1:5: error: host `h` is named for two"));
}

TEST(HostList, Exclusions_may_stand_anywhere) {
  EXPECT_THAT(hosts_of_list("-n2,n[1-4],-n[4-4]"), ElementsAre("n1", "n3"));
  EXPECT_THAT(hosts_of_list("::1,::2 -0::1"), ElementsAre("::2"));
  EXPECT_THAT(error_of_list("n1,-n1"), HasSubstr("every host is left out"));
  EXPECT_THAT(error_of_list("-n1"), HasSubstr("names no host"));
}

TEST(HostList, What_could_be_an_option_or_code_is_refused) {
  EXPECT_THAT(error_of_list("a,-oProxyCommand=x"), HasSubstr("--hosts:1:16: error: `=`"));
  EXPECT_THAT(error_of_list("--x"), HasSubstr("begins with `-`"));
  EXPECT_THAT(error_of_list("a;b"), HasSubstr("`;` is not allowed"));
  EXPECT_THAT(error_of_list("a#b"), HasSubstr("`#` is not allowed"));
  EXPECT_THAT(error_of_list("a*2"), HasSubstr("`*` is not allowed"));
  EXPECT_THAT(error_of_list("a:0"), HasSubstr("port has to be"));
  EXPECT_THAT(error_of_list("a,"), HasSubstr("behind the comma"));
  EXPECT_THAT(error_of_list("a[1-2"), HasSubstr("--hosts:1:2: error: `[` is never closed"));
  EXPECT_THAT(error_of_list(""), HasSubstr("--hosts: error: names no host"));
  EXPECT_THAT(error_of_list(" \n"), HasSubstr("--hosts: error: names no host"));
}

TEST(HostList, Every_wrong_item_is_reported) {
  auto parsed = parse_host_list("a;,b,c:x $d", "SLURM_JOB_NODELIST");
  EXPECT_THAT(parsed.diagnostics, SizeIs(3));
  EXPECT_THAT(to_string(parsed.diagnostics[2]), HasSubstr("SLURM_JOB_NODELIST:1:10: error"));
}

TEST(HostList, Files_are_read_as_hostfiles) {
  auto read = [](const fs::path& path) {
    return path == "more" ? Result<std::string>("b slots=4\nc:2\n")
                          : Result<std::string>(fail("?"));
  };
  auto parsed = parse_host_list("a,^more,-c", "--hosts", read);
  EXPECT_EQ(all_diagnostics(parsed), "");
  EXPECT_THAT(words(parsed), ElementsAre("a", "b*4"));
}

// --- Samples and golden text --------------------------------------------------------------------

std::string read_text(const fs::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.is_open()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Samples, Each_is_read_as_its_own_program_reads_it) {
  const std::map<std::string, std::vector<std::string>> samples = {
      {"deepspeed.hostfile", {"worker-0*8", "worker-1*8", "worker-3*4"}},
      {"openmpi.hostfile",
       {"node01.cluster*4/8", "node02.cluster*4/8", "node03.cluster*4", "alice@node04.cluster*2",
        "bob@192.168.7.5:2222*2", "fd00::6*2"}},
      {"openmpi.rankfile", {"node01*2", "node02*1"}},
      {"hydra.hostfile", {"node01*4", "alice@node02*2", "node03"}},
      {"intel.hostfile", {"node01*8", "node02*8", "node03"}},
      {"slurm.hostfile",
       {"tux0", "tux1", "tux2", "tux3", "tux4", "tux5", "tux12", "tux20", "tux21", "tux22", "tux23",
        "tux24", "tux25", "login", "rack1n01", "rack1n02", "rack2n01", "rack2n02"}},
      {"pdsh.hostfile", {"foo01", "foo02", "foo04", "foo05", "alice@gateway", "bar1", "bar2"}},
      {"pdsh-more.hostfile", {"bar1", "bar2"}},
      {"pbs.nodefile", {"node07*3", "node08*2", "node09*1"}},
  };
  std::size_t tested = 0;
  for (const auto& entry : fs::directory_iterator("hostfile/samples")) {
    std::string name = entry.path().filename();
    if (name == "slurm.nodelist") continue;  // The next test's.
    auto expected = samples.find(name);
    ASSERT_NE(expected, samples.end()) << name << " is not tested";
    auto parsed = read_hostfile(entry.path());
    EXPECT_TRUE(parsed.ok()) << all_diagnostics(parsed);
    EXPECT_EQ(words(parsed), expected->second) << name;
    EXPECT_THAT(parsed.diagnostics, SizeIs(name == "intel.hostfile" ? 1 : 0))  // ifhn=
        << all_diagnostics(parsed);
    ++tested;
  }
  EXPECT_EQ(tested, samples.size());
}

TEST(Samples, The_node_list_of_a_Slurm_job) {
  auto parsed = parse_host_list(read_text("hostfile/samples/slurm.nodelist"), "SLURM_JOB_NODELIST");
  EXPECT_EQ(all_diagnostics(parsed), "");
  EXPECT_THAT(parsed.hosts, SizeIs(17));
}

// DSI_UPDATE_GOLDEN=1 writes the expected text anew.
TEST(Golden, The_diagnostics_of_a_bad_file_read_well) {
  const fs::path expected = "tests/hostfile/golden/bad.expected";
  auto parsed =
      parse_hostfile(read_text("tests/hostfile/golden/bad.hostfile"), "bad.hostfile", no_files);
  std::string text = all_diagnostics(parsed);
  if (std::getenv("DSI_UPDATE_GOLDEN") != nullptr) std::ofstream(expected) << text;
  EXPECT_EQ(text, read_text(expected));
}

}  // namespace
}  // namespace dsi
