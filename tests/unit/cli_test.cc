#include "orchestrator/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "orchestrator/cli_help.h"
#include "orchestrator/examples.h"
#include "orchestrator/options.h"
#include "orchestrator/options_table.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Without the configuration of whoever runs the tests.
class Cli : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "dsi-cli-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    ::setenv("XDG_CONFIG_HOME", (folder_ / "xdg").c_str(), 1);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const fs::path& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  static ParsedCommandLine parse(const std::vector<std::string>& arguments) {
    auto parsed = parse_command_line(arguments);
    EXPECT_TRUE(parsed) << (parsed ? "" : to_string(parsed.error()));
    return parsed ? *parsed : ParsedCommandLine{};
  }
  static Options options(const std::vector<std::string>& arguments) {
    return parse(arguments).options;
  }
  // As the user sees it; empty if there was none.
  static std::string error(const std::vector<std::string>& arguments) {
    auto parsed = parse_command_line(arguments);
    return parsed ? "" : to_string(parsed.error());
  }

  fs::path folder_;
};

TEST_F(Cli, Nothing_at_all_installs_on_the_default_hostfile) {
  const Options o = options({});
  EXPECT_EQ(o.command, CommandKind::kInstall);
  EXPECT_EQ(o.hostfile, "/job/hostfile");
  EXPECT_FALSE(o.hostfile_given);
  EXPECT_FALSE(o.local_only);
  EXPECT_EQ(o.fanout, 64);
}

TEST_F(Cli, The_letters_of_install_sh_mean_what_they_did) {
  Options o = options({"-l", "-s", "-r", "-n", "-v", "-m", "https://mirror"});
  EXPECT_TRUE(o.local_only && o.pip_sudo && o.allow_sudo && o.no_clean);
  EXPECT_EQ(o.verbose, 1);
  EXPECT_EQ(o.pip_mirror, "https://mirror");
  o = options({"-H", "/some where/hosts"});
  EXPECT_EQ(o.hostfile, "/some where/hosts");
  EXPECT_TRUE(o.hostfile_given);
}

TEST_F(Cli, The_long_names_are_read_in_both_spellings_and_both_ways_to_give_a_value) {
  const Options o =
      options({"--local_only", "--pip-sudo", "--allow_sudo", "--no-clean", "--pip_mirror=u",
               "--ops_dir", "a b", "--ops-dir=c", "--connect_timeout", "7", "--probe-timeout=8"});
  EXPECT_TRUE(o.local_only && o.pip_sudo && o.allow_sudo && o.no_clean);
  EXPECT_EQ(o.pip_mirror, "u");
  EXPECT_THAT(o.ops_folders, ElementsAre("a b", "c"));
  EXPECT_EQ(o.connect_timeout, std::chrono::seconds(7));
  EXPECT_EQ(o.probe_timeout, std::chrono::seconds(8));
}

TEST_F(Cli, Letters_combine_as_in_getopt) {
  Options o = options({"-lrvvv"});
  EXPECT_TRUE(o.local_only && o.allow_sudo);
  EXPECT_EQ(o.verbose, 3);
  o = options({"-Hhosts"});
  EXPECT_EQ(o.hostfile, "hosts");
  o = options({"-rvHhosts.txt"});
  EXPECT_TRUE(o.allow_sudo);
  EXPECT_EQ(o.verbose, 1);
  EXPECT_EQ(o.hostfile, "hosts.txt");
}

TEST_F(Cli, The_first_word_is_the_command_wherever_it_stands) {
  EXPECT_EQ(options({"report", "-H", "h"}).command, CommandKind::kReport);
  EXPECT_EQ(options({"-H", "h", "rollback"}).command, CommandKind::kRollback);
  EXPECT_EQ(options({"-r", "--", "uninstall"}).command, CommandKind::kUninstall);
  EXPECT_EQ(options({"hosts"}).command, CommandKind::kHosts);
  EXPECT_EQ(options({"install"}).command, CommandKind::kInstall);
  EXPECT_EQ(options({"plan"}).command, CommandKind::kPlan);
  EXPECT_EQ(options({"--dry-run"}).command, CommandKind::kPlan);
  EXPECT_EQ(options({"--dry_run", "install"}).command, CommandKind::kPlan);
}

TEST_F(Cli, Build_writes_to_a_name_of_its_own_unless_told) {
  EXPECT_EQ(options({"build"}).output, "ds-ops.tar.zst");
  EXPECT_EQ(options({"build", "-o", "x y.tar.zst"}).output, "x y.tar.zst");
  EXPECT_THAT(error({"build", "x.tar.zst"}), HasSubstr("given with -o"));
}

TEST_F(Cli, Examples_go_to_a_folder_and_take_no_command) {
  EXPECT_EQ(options({"-e"}).command, CommandKind::kExamples);
  EXPECT_EQ(options({"-e"}).output, "./ds-install-examples");
  EXPECT_EQ(options({"-e", "there"}).output, "there");
  EXPECT_EQ(options({"--examples", "-o", "there"}).output, "there");
  EXPECT_THAT(error({"-e", "there", "-o", "here"}), HasSubstr("twice"));
  EXPECT_THAT(error({"-e", "report"}), HasSubstr("does not go with report"));
  EXPECT_THAT(error({"-e", "-H", "h"}), HasSubstr("-H means nothing to --examples"));
}

TEST_F(Cli, DeepSpeed_is_named_by_its_source_or_not_at_all) {
  EXPECT_EQ(options({"--deepspeed", "/src/DeepSpeed"}).deepspeed, "/src/DeepSpeed");
  EXPECT_EQ(options({"--deepspeed=deepspeed==0.19.8"}).python_package(), "deepspeed==0.19.8");
  EXPECT_EQ(options({"report", "--deepspeed", "-H", "h"}).deepspeed, "deepspeed");
  EXPECT_EQ(options({"rollback", "--deepspeed"}).deepspeed, "deepspeed");
  EXPECT_EQ(options({"uninstall", "--package", "deepspeed"}).python_package(), "deepspeed");
  EXPECT_EQ(options({"build", "--deepspeed", "d"}).output, "ds-package.tar.zst");
  EXPECT_THAT(error({"--deepspeed", "a", "--package", "b"}), HasSubstr("exclude each other"));
  EXPECT_THAT(error({"--deepspeed", "a", "--bundle", "b"}), HasSubstr("exclude each other"));
}

TEST_F(Cli, Beside_a_source_tree_the_e_of_install_sh_is_about_its_submodules) {
  const Options o = options({"--deepspeed", "/src", "-e", "-n"});
  EXPECT_EQ(o.command, CommandKind::kInstall);
  EXPECT_TRUE(o.update_submodules && o.no_clean);
  EXPECT_FALSE(options({"--deepspeed", "/src"}).update_submodules);
}

TEST_F(Cli, What_is_about_a_package_needs_one) {
  for (const char* option : {"--python=/p", "--with-deps", "--drop-in"}) {
    EXPECT_THAT(error({option}), HasSubstr("none is named")) << option;
    EXPECT_EQ(error({option, "--deepspeed=d"}), "") << option;
  }
  // A bundle may hold one.
  EXPECT_EQ(options({"--bundle", "b", "--python", "/p"}).python, "/p");
  EXPECT_THAT(error({"--python", "bin/python", "--deepspeed"}), HasSubstr("absolute path"));
}

TEST_F(Cli, Our_ops_and_a_package_go_together_only_where_ours_stand_in) {
  EXPECT_THAT(error({"--deepspeed=d", "--ops", "cpu_adam"}), HasSubstr("--drop-in"));
  EXPECT_EQ(options({"--deepspeed=d", "--ops", "cpu_adam", "--drop-in"}).ops.size(), 1u);
  EXPECT_THAT(error({"--package=p", "--drop-in"}), HasSubstr("exclude each other"));
  EXPECT_THAT(error({"--deepspeed=d", "--torch", "/t"}), HasSubstr("--python"));
}

TEST_F(Cli, Ops_are_a_list_of_names) {
  EXPECT_THAT(options({"--ops", "cpu_adam,cpu_lion,cpu_adam"}).ops,
              ElementsAre("cpu_adam", "cpu_lion"));
  EXPECT_THAT(error({"--ops", "cpu_adam,"}), HasSubstr("--ops needs names"));
  EXPECT_THAT(error({"--ops", "../x"}), HasSubstr("cpu_adam,cpu_lion"));
  EXPECT_THAT(error({"--ops", "a", "--ops", "b"}), HasSubstr("put commas between"));
}

TEST_F(Cli, A_mistyped_option_gets_a_suggestion_and_its_value_is_not_taken_for_a_command) {
  EXPECT_EQ(error({"--hostfle", "hosts.txt"}),
            "error: unknown option --hostfle\n  help: did you mean --hostfile?");
  EXPECT_THAT(error({"--hostfle=x"}), HasSubstr("option --hostfle\n"));
  EXPECT_THAT(error({"--opsdir", "x"}), HasSubstr("did you mean --ops-dir?"));
  EXPECT_THAT(error({"--local-onyl"}), HasSubstr("did you mean --local-only?"));
  EXPECT_THAT(error({"--local_onyl"}), HasSubstr("did you mean --local_only?"));
  EXPECT_THAT(error({"--frobnicate"}),
              AllOf(HasSubstr("unknown option --frobnicate"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(error({"-z"}), HasSubstr("unknown option -z"));
  EXPECT_THAT(error({"-lz"}), HasSubstr("unknown option -z"));
}

TEST_F(Cli, An_abbreviation_is_not_guessed) {
  EXPECT_THAT(error({"--verb"}), HasSubstr("did you mean --verbose?"));
  EXPECT_THAT(error({"--host", "h"}), HasSubstr("unknown option --host\n"));
  EXPECT_THAT(error({"--conf=x"}), HasSubstr("did you mean --config?"));
}

TEST_F(Cli, A_mistyped_command_gets_a_suggestion) {
  EXPECT_EQ(error({"instal"}), "error: unknown command instal\n  help: did you mean install?");
  EXPECT_THAT(error({"rolback"}), HasSubstr("did you mean rollback?"));
  EXPECT_THAT(error({"/job/hosts"}), HasSubstr("given with -H"));
  EXPECT_THAT(error({"help"}), HasSubstr("ds-install --help"));
  EXPECT_THAT(error({"report", "node01"}), HasSubstr("unexpected argument node01"));
}

TEST_F(Cli, A_value_that_is_missing_or_too_many_is_said) {
  EXPECT_THAT(error({"-H"}), HasSubstr("--hostfile needs a value"));
  EXPECT_THAT(error({"--hostfile="}), HasSubstr("--hostfile needs a value"));
  EXPECT_THAT(error({"--hostfile", ""}), HasSubstr("--hostfile needs a value"));
  EXPECT_THAT(error({"--hostfile", "--local_only"}),
              HasSubstr("--hostfile needs a value, not the option --local_only\n"
                        "  help: write --hostfile=--local_only if that is its value"));
  EXPECT_THAT(error({"-H", "-l"}), HasSubstr("--hostfile needs a value"));
  EXPECT_EQ(options({"--hostfile=--local_only"}).hostfile, "--local_only");
  EXPECT_EQ(options({"build", "-o", "-"}).output, "-");
  EXPECT_THAT(error({"--json=yes"}), HasSubstr("--json takes no value"));
  EXPECT_THAT(error({"-H", "a", "--hostfile", "b"}), HasSubstr("--hostfile is given twice"));
  EXPECT_TRUE(options({"-l", "-l"}).local_only);
}

TEST_F(Cli, Numbers_have_ranges) {
  EXPECT_EQ(options({"--fanout", "4096"}).fanout, 4096);
  for (const char* bad : {"0", "4097", "-1", "1.5", "many", "99999999999", " 3", "0x10"}) {
    EXPECT_THAT(error({std::string("--fanout=") + bad}), HasSubstr("number from 1 to 4096"));
  }
  EXPECT_THAT(error({"--stall-timeout", "0"}), HasSubstr("number from 1 to 86400"));
  EXPECT_THAT(error({"--jobs", "0"}), HasSubstr("number from 1 to 4096"));
}

TEST_F(Cli, What_excludes_each_other_is_refused_in_either_order) {
  const std::vector<std::vector<std::string>> pairs = {{"-l", "-Hx"},
                                                       {"-l", "--hosts=x"},
                                                       {"-Hx", "--hosts=x"},
                                                       {"--bundle=b", "--ops=a"},
                                                       {"--bundle=b", "--ops-dir=d"},
                                                       {"--bundle=b", "--torch=t"},
                                                       {"--clean", "-n"}};
  for (const auto& pair : pairs) {
    EXPECT_THAT(error({pair[0], pair[1]}), HasSubstr("exclude each other")) << pair[0] << pair[1];
    EXPECT_THAT(error({pair[1], pair[0]}), HasSubstr("exclude each other")) << pair[0] << pair[1];
  }
}

TEST_F(Cli, An_option_that_means_nothing_to_the_command_is_refused) {
  EXPECT_EQ(error({"-o", "x"}),
            "error: -o means nothing to install\n  help: it is for: build, env, -e");
  EXPECT_THAT(error({"build", "-H", "x"}), HasSubstr("-H means nothing to build"));
  EXPECT_THAT(error({"report", "--bundle", "x"}), HasSubstr("--bundle means nothing to report"));
  EXPECT_THAT(error({"build", "--dry-run"}), HasSubstr("--dry-run means nothing to build"));
  EXPECT_THAT(error({"hosts", "--prefix", "/x"}), HasSubstr("--prefix means nothing to hosts"));
}

TEST_F(Cli, A_prefix_is_absolute_and_harmless_in_every_shell) {
  EXPECT_EQ(options({"--prefix", "/opt/my ops/a_b-c.d+e@f:g=h,i~"}).prefix,
            "/opt/my ops/a_b-c.d+e@f:g=h,i~");
  for (const char* bad :
       {"opt",  "~/ops", "./x",       "",      "/a/../b", "/..",   "/",     "//",
        "/.",   "/a;b",  "/a'b",      "/a\"b", "/$HOME",  "/a`b`", "/a\nb", "/a\\b",
        "/a!b", "/a*",   "/\xC3\xA9", "/a{b}", "/a&b",    "/a#b",  "/a%b",  "/(x)"}) {
    EXPECT_THAT(error({"--prefix", bad}), HasSubstr("error: --prefix ")) << bad;
  }
  EXPECT_EQ(options({"--prefix", "/a/..b/c.."}).prefix, "/a/..b/c..");
}

TEST_F(Cli, All_errors_come_at_once) {
  const std::string text = error({"instal", "--fanout=0", "-l", "-H", "x", "--prefix", "p"});
  EXPECT_EQ(text,
            "error: unknown command instal\n"
            "  help: did you mean install?\n"
            "error: --local_only and --hostfile exclude each other\n"
            "  help: name the hosts in one way only\n"
            "error: --fanout needs a number from 1 to 4096, not \"0\"\n"
            "error: --prefix needs an absolute path, not \"p\"\n"
            "  help: begin it with /; it is a folder on the hosts");
}

TEST_F(Cli, Several_errors_print_as_their_list_whether_or_not_they_have_help) {
  const std::vector<Error> errors = {{"a", ""}, {"b", "do b"}, {"c", ""}};
  EXPECT_EQ(to_string(all_of(errors)), "error: a\nerror: b\n  help: do b\nerror: c");
  EXPECT_EQ(to_string(all_of({{"b", "do b"}})), "error: b\n  help: do b");
}

TEST_F(Cli, What_is_typed_cannot_paint_the_terminal) {
  EXPECT_THAT(error({"\x1b[31mred"}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(error({"--\x1b[31mred"}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(error({"--\x1b[31mred="}), AllOf(HasSubstr("unknown"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(error({"-\x1b", "-\xff"}), AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xff"))));
  EXPECT_THAT(error({"--fanout", "\x1b[31mred"}), Not(HasSubstr("\x1b")));
}

TEST_F(Cli, Any_words_at_all_are_understood_or_refused) {
  const std::vector<std::string> pieces = {
      "-",      "--", "=",      "-l",      "-H", "v",  "-vv", "hosts",   "--ops",
      "a",      "",   "report", "-e",      " ",  "-o", "--=", "---",     "\xff",
      "\x1b[m", "-=", "--json", "--hosts", "9",  ",",  "-9",  "--fanout"};
  std::minstd_rand random(1);
  int refused = 0;
  for (int run = 0; run < 3000; ++run) {
    std::vector<std::string> arguments(random() % 5);
    for (std::string& argument : arguments) {
      for (unsigned long part = random() % 3 + 1; part > 0; --part) {
        argument += pieces[random() % pieces.size()];
      }
    }
    const auto parsed = parse_command_line(arguments);
    if (parsed) continue;
    ++refused;
    EXPECT_FALSE(parsed.error().what.empty());
    EXPECT_THAT(to_string(parsed.error()), AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xff"))));
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

TEST_F(Cli, A_mirror_is_accepted_with_one_line) {
  EXPECT_THAT(parse({"-m", "u"}).warnings, ElementsAre(HasSubstr("only for a Python package")));
  EXPECT_THAT(parse({"-n"}).warnings, IsEmpty());
}

TEST_F(Cli, Help_wins_over_mistakes_and_reads_no_configuration) {
  write("xdg/ds-install/config.yaml", "nonsense: 1\n");
  EXPECT_THAT(parse({"--fanout=0", "-h"}).print->text, HasSubstr("Usage: ds-install [command]"));
  EXPECT_THAT(parse({"report", "--help"}).print->text, HasSubstr("Usage: ds-install report"));
  EXPECT_EQ(parse({"--version"}).print->text, "ds-install " DSI_VERSION "\n");
  EXPECT_EQ(options({"-e"}).command, CommandKind::kExamples);
}

TEST_F(Cli, Every_option_is_in_the_help_and_is_found_by_its_name) {
  std::string letters;
  for (const OptionSpec& option : option_table()) {
    EXPECT_THAT(help_text(), HasSubstr("--" + std::string(option.name)));
    EXPECT_EQ(find_option(option.name), &option);
    EXPECT_FALSE(option.help.empty());
    if (!option.letter) continue;
    EXPECT_EQ(letters.find(option.letter), letters.npos) << option.letter;
    letters += option.letter;
  }
}

TEST_F(Cli, The_command_line_wins_over_the_configuration) {
  const fs::path file = write("c.yaml",
                              "fanout: 8\nstrict: true\nhostfile: hosts.txt\nops: [a, b]\n"
                              "ops-dir: more\noutput_is_not_here: 1\n");
  EXPECT_THAT(error({"--config", file}), HasSubstr("output_is_not_here"));
  write("c.yaml", "fanout: 8\nstrict: true\nhostfile: hosts.txt\nops: [a, b]\nops-dir: more\n");

  Options o = options({"--config", file});
  EXPECT_EQ(o.fanout, 8);
  EXPECT_TRUE(o.strict);
  EXPECT_EQ(o.hostfile, folder_ / "hosts.txt");
  EXPECT_TRUE(o.hostfile_given);
  EXPECT_THAT(o.ops, ElementsAre("a", "b"));
  EXPECT_THAT(o.ops_folders, ElementsAre(folder_ / "more"));
  EXPECT_EQ(o.config, file);

  o = options({"--config", file, "--fanout", "3", "--ops", "c"});
  EXPECT_EQ(o.fanout, 3);
  EXPECT_THAT(o.ops, ElementsAre("c"));
}

TEST_F(Cli, What_excludes_a_configured_option_puts_it_out_of_force) {
  const fs::path file = write("c.yaml", "hostfile: hosts.txt\nops: [a]\n");
  Options o = options({"--config", file, "-l"});
  EXPECT_TRUE(o.local_only);
  EXPECT_FALSE(o.hostfile_given);
  EXPECT_EQ(o.hostfile, "/job/hostfile");
  o = options({"--config", file, "--bundle", "b"});
  EXPECT_THAT(o.ops, IsEmpty());
  EXPECT_TRUE(o.hostfile_given);
}

TEST_F(Cli, Configured_options_that_mean_nothing_to_the_command_are_passed_over) {
  const fs::path file = write("c.yaml", "hostfile: hosts.txt\njobs: 3\n");
  const Options o = options({"build", "--config", file});
  EXPECT_EQ(o.jobs, 3);
  EXPECT_FALSE(o.hostfile_given);
}

TEST_F(Cli, The_users_configuration_is_read_by_itself_and_replaced_by_config) {
  write("xdg/ds-install/config.yaml", "fanout: 5\n");
  EXPECT_EQ(options({}).fanout, 5);
  EXPECT_EQ(options({"--config", write("other.yaml", "strict: yes\n")}).fanout, 64);
  EXPECT_THAT(error({"--config", folder_ / "none"}), HasSubstr("No such file"));
}

TEST_F(Cli, Examples_are_copied_once_and_never_over_a_file) {
  write("data/hostfile", "node01\n");
  write("data/site.yaml", "{}\n");
  write("data/cpp/main.cc", "int main() {}\n");
  write("data/python/__pycache__/x.pyc", "x");
  auto written = write_examples(folder_ / "data", folder_ / "new/deep er");
  ASSERT_TRUE(written) << to_string(written.error());
  EXPECT_EQ(written->files.size(), 3u);
  EXPECT_THAT(written->text, AllOf(HasSubstr("Wrote 3 example files"), HasSubstr("cpp/main.cc"),
                                   HasSubstr("deep er/hostfile'"), Not(HasSubstr("pycache"))));
  EXPECT_TRUE(fs::exists(folder_ / "new/deep er/cpp/main.cc"));

  fs::remove(folder_ / "new/deep er/cpp/main.cc");
  auto again = write_examples(folder_ / "data", folder_ / "new/deep er");
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().what, HasSubstr("deep er/hostfile is there already"));
  EXPECT_FALSE(fs::exists(folder_ / "new/deep er/cpp/main.cc"));

  EXPECT_FALSE(write_examples(folder_ / "none", folder_ / "x"));
  EXPECT_FALSE(fs::exists(folder_ / "x"));
  // A file where a folder is needed: what was written before it goes again.
  write("half/python", "a file");
  write("data/python/a.py", "");
  EXPECT_FALSE(write_examples(folder_ / "data", folder_ / "half"));
  EXPECT_FALSE(fs::exists(folder_ / "half/hostfile"));
  EXPECT_FALSE(fs::exists(folder_ / "half/cpp"));
  EXPECT_TRUE(fs::exists(folder_ / "half/python"));
}

TEST_F(Cli, Holds_busy_hosts_and_webhooks_have_their_words) {
  Options o = options({"hold", "--hosts", "a,b", "--reason", "the paper's numbers"});
  EXPECT_EQ(o.command, CommandKind::kHold);
  EXPECT_EQ(o.reason, "the paper's numbers");
  EXPECT_EQ(options({"unhold", "-l"}).command, CommandKind::kUnhold);
  o = options({"--busy", "wait", "--busy-limit", "30m", "--ignore-holds"});
  EXPECT_EQ(o.busy, "wait");
  EXPECT_TRUE(o.ignore_holds);
  EXPECT_EQ(options({}).busy, "proceed");
  EXPECT_EQ(options({"rollback", "--to", "20261130-141502-3f9c"}).to, "20261130-141502-3f9c");
  EXPECT_THAT(error({"--busy", "kill"}), HasSubstr("give proceed, wait or skip"));
  EXPECT_THAT(error({"rollback", "--to", "../x"}), HasSubstr("--to"));
  EXPECT_THAT(error({"install", "--to", "x"}), HasSubstr("--to means nothing to install"));
  EXPECT_THAT(error({"--reason", "x"}), HasSubstr("--reason means nothing to install"));
}

TEST_F(Cli, The_url_of_a_webhook_is_in_no_error_and_in_no_unit) {
  EXPECT_EQ(options({"--notify-url", "https://u:p@host/x?y"}).notify_url, "https://u:p@host/x?y");
  for (const char* url : {"SECRET", "ftp://SECRET", "https://host/SEC RET"}) {
    const std::string text = error({"--notify-url", url});
    EXPECT_THAT(text, HasSubstr("--notify-url needs a URL of a webhook"));
    EXPECT_THAT(text, Not(HasSubstr("SEC")));
  }
  const std::string text =
      error({"schedule", "--at", "daily", "--notify-url", "https://host/SECRET"});
  EXPECT_THAT(text, AllOf(HasSubstr("put it into the configuration"), Not(HasSubstr("SECRET"))));
  const fs::path config = write("site.yaml", "notify-url: https://host/SECRET\nbusy: skip\n");
  const Options o =
      options({"schedule", "--at", "daily", "--busy=wait", "--config", config.string()});
  EXPECT_EQ(o.notify_url, "https://host/SECRET");
  EXPECT_EQ(o.busy, "wait");
  for (const std::string& word : o.scheduled) EXPECT_THAT(word, Not(HasSubstr("SECRET")));
}

}  // namespace
}  // namespace dsi
