#include "orchestrator/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "hostfile/hostfile.h"
#include "orchestrator/base/file.h"
#include "orchestrator/cli.h"

namespace dsi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Config good(const std::string& text, const std::string& file = "/site/c.yaml") {
  auto config = parse_config(text, file);
  EXPECT_TRUE(config) << (config ? "" : to_string(config.error()));
  return config ? *config : Config{};
}

std::string error(const std::string& text) {
  auto config = parse_config(text, "c.yaml");
  return config ? "" : to_string(config.error());
}

std::vector<std::string> value(const Config& config, const std::string& name) {
  for (const ConfigValue& v : config.values) {
    if (v.option->name == name) return v.texts;
  }
  return {};
}

TEST(Config, Nothing_is_a_configuration) {
  EXPECT_TRUE(good("").values.empty());
  EXPECT_TRUE(good("# only words\n").values.empty());
  EXPECT_TRUE(good("\xEF\xBB\xBF"
                   "# a mark in front\r\nfanout: 3\r\n")
                  .values.size() == 1);
}

TEST(Config, Every_option_can_be_set_that_is_not_about_one_run) {
  std::string text;
  std::size_t count = 0;
  for (const OptionSpec& option : option_table()) {
    // The first of two that exclude each other.
    if (!option.in_config || option.name == "hosts" || option.name == "local_only" ||
        option.name == "partition" || option.name == "drain" || option.name == "bundle" ||
        option.name == "no_clean") {
      continue;
    }
    ++count;
    text += std::string(option.name) + ": ";
    text += option.name == "prefix"                    ? "/p"
            : option.name == "python"                  ? "/p"
            : option.name == "topology"                ? "star"
            : option.name == "rate-limit"              ? "1mbit"
            : option.name == "window"                  ? "2h"
            : option.name == "via"                     ? "slurm"
            : option.name == "drain-limit"             ? "4h"
            : option.name == "busy"                    ? "skip"
            : option.name == "busy-limit"              ? "1h"
            : option.name == "notify-url"              ? "https://host"
            : option.name == "order"                   ? "racks"
            : option.value.empty() && option.most == 0 ? "true"
                                                       : "1";
    text += "\n";
  }
  const Config config = good(text);
  EXPECT_EQ(value(config, "fanout"), std::vector<std::string>{"1"});
  EXPECT_EQ(value(config, "verbose"), std::vector<std::string>{"1"});
  EXPECT_EQ(value(config, "strict"), std::vector<std::string>{"true"});
  EXPECT_EQ(config.values.size(), count);
}

TEST(Config, Keys_are_read_in_both_spellings) {
  EXPECT_EQ(good("local-only: true\n").values.size(), 1u);
  EXPECT_EQ(good("ops_dir: x\n").values.size(), 1u);
  EXPECT_THAT(error("ops_dir: x\nops-dir: y\n"),
              HasSubstr("c.yaml:2:1: error: ops-dir is given twice"));
}

TEST(Config, A_flag_that_is_false_is_not_set_and_excludes_nothing) {
  EXPECT_TRUE(good("local_only: false\n").values.empty());
  EXPECT_EQ(good("local_only: off\nhostfile: h\n").values.size(), 1u);
}

TEST(Config, Paths_are_relative_to_the_file) {
  ::setenv("HOME", "/home/me", 1);
  const Config config = good("hostfile: hosts/../list\ntorch: /abs\nops-dir: [~/ops, ., more]\n");
  EXPECT_THAT(value(config, "hostfile"), ElementsAre("/site/list"));
  EXPECT_THAT(value(config, "torch"), ElementsAre("/abs"));
  EXPECT_THAT(value(config, "ops-dir"), ElementsAre("/home/me/ops", "/site/", "/site/more"));
  EXPECT_THAT(value(good("hostfile: h\n", "c.yaml"), "hostfile"), ElementsAre("h"));
}

TEST(Config, Hosts_are_a_list_of_hosts_or_what_differs_from_host_to_host) {
  EXPECT_THAT(value(good("hosts: node[01-02]\n"), "hosts"), ElementsAre("node[01-02]"));
  const Config config = good(R"(
hosts:
  node[01-03]: {user: train, prefix: /scratch/ds ops}
  node02:
    port: 2222
    sudo: yes
    torch: /opt/torch
    build-torch: torches/2.4
  "node[03,05]": {user: other}
)");
  ASSERT_EQ(config.hosts.size(), 4u);
  EXPECT_EQ(config.hosts.at("node01").user, "train");
  EXPECT_EQ(config.hosts.at("node01").prefix, "/scratch/ds ops");
  EXPECT_FALSE(config.hosts.at("node01").port);
  EXPECT_EQ(config.hosts.at("node02").user, "train");
  EXPECT_EQ(config.hosts.at("node02").port, 2222);
  EXPECT_EQ(config.hosts.at("node02").sudo, true);
  EXPECT_EQ(config.hosts.at("node02").torch, "/opt/torch");
  EXPECT_TRUE(config.hosts.at("node02").build_torch->ends_with("torches/2.4"));
  EXPECT_EQ(good("hosts: {a: {build_torch: /opt/x}}").hosts.at("a").build_torch, "/opt/x");
  EXPECT_EQ(config.hosts.at("node03").user, "other");
  EXPECT_EQ(config.hosts.at("node03").prefix, "/scratch/ds ops");
  EXPECT_FALSE(config.hosts.at("node05").prefix);
}

TEST(Config, All_mistakes_come_at_once_with_their_place_and_help) {
  EXPECT_EQ(error("fanot: 3\n"
                  "fanout: many\n"
                  "json: 1\n"
                  "output: x\n"
                  "hosts:\n"
                  "  node01: {prot: 22, port: 0}\n"
                  "  node02: train\n"
                  "  node03: {prefix: opt, user: -oProxyCommand=x, torch: t}\n"),
            "error: the configuration c.yaml has 10 mistakes\n"
            "c.yaml:1:1: error: unknown option fanot\n"
            "  help: did you mean fanout?\n"
            "c.yaml:2:9: error: fanout needs a number from 1 to 4096, not \"many\"\n"
            "c.yaml:3:7: error: json needs true or false\n"
            "c.yaml:4:1: error: output cannot stand in a configuration\n"
            "  help: give --output on the command line\n"
            "c.yaml:6:12: error: a host has no prot\n"
            "  help: did you mean port?\n"
            "c.yaml:6:28: error: port needs a number from 1 to 65535, not \"0\"\n"
            "c.yaml:7:11: error: node02 needs settings as `name: value`\n"
            "  help: for a host these can be set: prefix, user, port, torch, "
            "build-torch, python, rack, sudo\n"
            "c.yaml:8:20: error: prefix needs an absolute path, not \"opt\"\n"
            "  help: begin it with /; it is a folder on the hosts\n"
            "c.yaml:8:31: error: user needs the name of a user, not \"-oProxyCommand=x\"\n"
            "  help: use letters, digits and . _ + @ - only\n"
            "c.yaml:8:56: error: torch needs an absolute path, not \"t\"\n"
            "  help: it is a folder on that host");
}

TEST(Config, A_value_of_the_wrong_kind_is_refused) {
  EXPECT_THAT(error("fanout:\n"), HasSubstr("fanout has no value"));
  EXPECT_THAT(error("fanout: [1, 2]\n"), HasSubstr("c.yaml:1:9: error: fanout needs one value"));
  EXPECT_THAT(error("fanout: 1.5\n"), HasSubstr("needs a number"));
  EXPECT_THAT(error("strict: \"yes\"\n"), HasSubstr("strict needs true or false"));
  EXPECT_THAT(error("ops: {a: b}\n"), HasSubstr("ops needs a list"));
  EXPECT_THAT(error("ops: []\n"), HasSubstr("ops is an empty list"));
  EXPECT_THAT(error("ops: [[a]]\n"), HasSubstr("ops needs a list of words"));
  EXPECT_THAT(error("ops: [a, b c]\n"), HasSubstr("names of ops"));
  EXPECT_THAT(error("prefix: ''\n"), HasSubstr("prefix needs a value"));
  EXPECT_THAT(error("prefix: /a/../b\n"), HasSubstr("prefix has a part"));
  EXPECT_THAT(error("- a\n"), HasSubstr("expected options"));
  EXPECT_THAT(error("words\n"), HasSubstr("expected options"));
  EXPECT_THAT(error("hosts: {node01: {sudo: perhaps}}\n"), HasSubstr("sudo needs true or false"));
  EXPECT_THAT(error("hosts: {node01: {port: }}\n"), HasSubstr("port needs one value"));
}

TEST(Config, What_is_given_twice_is_refused) {
  EXPECT_THAT(error("fanout: 1\nfanout: 2\n"),
              HasSubstr("c.yaml:2:1: error: fanout is given twice"));
  EXPECT_THAT(error("hosts:\n  a: {user: x}\n  a: {port: 1}\n"), HasSubstr("c.yaml:3:3"));
  EXPECT_THAT(error("hosts:\n  a: {user: x, user: y}\n"), HasSubstr("user is given twice"));
  EXPECT_THAT(error("fanout: 1\n---\nfanout: 2\n"), HasSubstr("second document"));
}

TEST(Config, What_excludes_each_other_is_refused_here_too) {
  EXPECT_THAT(error("bundle: b\nops: a\n"),
              HasSubstr("c.yaml:2:1: error: --bundle and --ops exclude each other"));
}

TEST(Config, Broken_yaml_names_the_place) {
  EXPECT_THAT(error("fanout: 1\nops: [a\n"), AllOf(HasSubstr("c.yaml:3:1: error: not YAML")));
  EXPECT_THAT(error("a: b: c\n"), HasSubstr("c.yaml:1:"));
  EXPECT_THAT(error("x: *nothing\n"), HasSubstr("c.yaml:1:"));
  EXPECT_THAT(error(std::string("fanout: 1\0\n", 11)), HasSubstr("error: "));
  EXPECT_THAT(error("\x1b[31m: 1\n"), Not(HasSubstr("\x1b")));
}

TEST(Config, A_bad_range_of_hosts_is_refused) {
  EXPECT_THAT(error("hosts:\n  node[03-01]: {user: x}\n"), HasSubstr("c.yaml:2:3: error: "));
  EXPECT_THAT(error("hosts:\n  [a, b]: {user: x}\n"), HasSubstr("c.yaml:2:3: error: a host or"));
}

// Every line of an example in force: "#key: value" and "#  name: {...}" are options that are shown,
// "# words" are words.
std::string with_all_lines(const std::string& text) {
  std::string all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string line = text.substr(at, end - at);
    at = end;
    const bool words = line.starts_with("#\n") || (line.starts_with("# ") && line[2] != ' ');
    if (line.starts_with('#') && !words) line.erase(0, 1);
    all += line;
  }
  return all;
}

TEST(Config, The_example_is_valid_as_it_is_and_with_every_line_in_force) {
  auto text = read_file("examples/site.yaml");
  ASSERT_TRUE(text);
  good(*text);
  const Config config = good(with_all_lines(*text));
  EXPECT_GE(config.values.size(), 12u);
  EXPECT_GE(config.hosts.size(), 2u);
}

TEST(Config, The_weekly_examples_can_be_used_as_they_are_and_with_every_line_in_force) {
  for (const char* name : {"slurm", "ssh"}) {
    const std::string file = fmt::format("examples/maintenance/{}.yaml", name);
    auto parsed = parse_command_line({"plan", "--config", file});
    ASSERT_TRUE(parsed) << to_string(parsed.error());
    EXPECT_EQ(parsed->options.batch, "1,10%,50%");
    EXPECT_TRUE(parsed->options.strict);
    EXPECT_GT(good(with_all_lines(read_file(file).value_or(""))).values.size(), 6u);
  }
}

TEST(Config, The_example_of_a_hostfile_is_valid_without_a_warning) {
  const ParsedHosts parsed = read_hostfile("examples/hostfile");
  EXPECT_TRUE(parsed.diagnostics.empty());
  EXPECT_EQ(parsed.hosts.size(), 8u);
}

}  // namespace
}  // namespace dsi
