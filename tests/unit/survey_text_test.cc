#include "orchestrator/survey_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/unit/survey_fixture.h"

namespace dsi {
namespace {

using testing::good_host;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const std::vector<SurveyRow>& rows) {
  std::ostringstream out;
  print_survey(out, rows, default_rules(), {});
  return out.str();
}

// 1,000 hosts as a site has them: two kinds, one of them with an older system on a few.
std::vector<SurveyRow> thousand_hosts() {
  std::vector<SurveyRow> rows;
  for (int i = 0; i < 1000; ++i) {
    SurveyRow row = good_host(fmt::format("node{:04}", i));
    if (i >= 900) {
      row.node.gpus.assign(4, NodeGpu{"NVIDIA A100", "8.0", 40960, false});
      row.node.cpu.isa = "x86-64-v3";
    }
    if (i % 100 == 7) row.node.libc.glibc = "2.31";
    row.node.prefix.free_bytes = (std::uint64_t{50} << 30) + static_cast<std::uint64_t>(i) * 1000;
    rows.push_back(row);
  }
  return rows;
}

TEST(Survey, Hosts_that_a_build_cannot_tell_apart_are_one_group) {
  std::vector<SurveyRow> rows = {good_host("a"), good_host("b"), good_host("c")};
  rows[1].node.prefix.free_bytes = 1;
  rows[1].node.clock_off_s = 3;
  rows[1].node.cpu.model = "another one";
  rows[2].node.libc.glibc = "2.31";
  HostGroups found = group_hosts(rows);
  ASSERT_EQ(found.groups.size(), 2u);
  EXPECT_EQ(found.groups[0].rows, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(found.groups[1].rows, std::vector<std::size_t>{2});
}

TEST(Survey, A_host_is_described_in_one_line) {
  EXPECT_EQ(describe(good_host("a").node),
            "x86_64, x86-64-v4, glibc 2.36, 8 × NVIDIA H100 (9.0), driver 550.54.15 (CUDA 12.4), "
            "torch 2.4.0+cu124, deepspeed 0.14.2");
  NodeFacts bare;
  bare.known = true;
  bare.arch = "aarch64";
  bare.driver.devices_on_bus = 4;
  bare.torch.searched = true;
  EXPECT_EQ(describe(bare), "aarch64, 4 NVIDIA devices without a driver, no torch found");
}

TEST(Survey, What_differs_is_said_with_the_hosts_on_either_side) {
  std::vector<SurveyRow> rows = {good_host("n1"), good_host("n2"), good_host("n3")};
  rows[2].node.libc.glibc = "2.31";
  rows[1].node.libraries.clear();
  std::string text = text_of(rows);
  EXPECT_THAT(text, HasSubstr("\nWhat differs:\n"
                              "  libc.glibc                  2.36  n[1-2]\n"
                              "                              2.31  n3\n"
                              "  libraries                   no libaio.so.1  n2\n"));
  EXPECT_THAT(text, HasSubstr("3 hosts in 3 groups\n"));
  rows.resize(1);
  EXPECT_THAT(text_of(rows), Not(HasSubstr("differs")));
}

TEST(Survey, What_no_build_depends_on_has_a_least_and_a_most) {
  std::vector<SurveyRow> rows = {good_host("n1"), good_host("n2"), good_host("n3")};
  rows[1].node.prefix.free_bytes = 3ull << 30;
  rows[2].node.clock_off_s = -63;
  std::string text = text_of(rows);
  EXPECT_THAT(text,
              HasSubstr("  prefix.free_bytes           3.0 GiB (n2) to 100.0 GiB (n[1,3])\n"));
  EXPECT_THAT(text, HasSubstr("  clock_off                   -63.0 s (n3) to 0.0 s (n[1-2])\n"));
  EXPECT_THAT(text, HasSubstr("  cpu.cores                   96\n"));
  EXPECT_THAT(text, HasSubstr("Warnings:\nn3: the host's clock is far from this machine's (found "
                              "-63.0 s ahead) [clock-off]"));
}

TEST(Survey, Hosts_that_did_not_answer_fold_by_the_reason) {
  std::vector<SurveyRow> rows = {good_host("n1"), good_host("n2"), good_host("n3")};
  for (std::size_t i : {1u, 2u}) {
    rows[i].status = HostStatus::kUnreachable;
    rows[i].error = {"connection refused by " + rows[i].host + " port 22", "is sshd running?"};
  }
  std::string text = text_of(rows);
  EXPECT_THAT(text, HasSubstr("Not looked at:\nn[2-3]: unreachable: connection refused by it port "
                              "22\n  help: is sshd running?\n"));
  EXPECT_THAT(text, HasSubstr("3 hosts in 1 group, 2 not looked at\n"));
}

TEST(Survey, What_a_host_says_cannot_move_the_cursor) {
  std::vector<SurveyRow> rows = {good_host("n1"), good_host("n2")};
  rows[1].node.torch.version = "2.4.0\x1b[2J\n";
  EXPECT_EQ(text_of(rows).find('\x1b'), std::string::npos);
}

TEST(Survey, A_thousand_hosts_fold_into_a_page) {
  std::vector<SurveyRow> rows = thousand_hosts();
  std::string text = text_of(rows);
  EXPECT_THAT(text, HasSubstr("1000 hosts in 4 groups\n"));
  EXPECT_THAT(text, HasSubstr("Code for all their devices: TORCH_CUDA_ARCH_LIST=\"8.0;9.0\"\n"));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 40);
}

TEST(Survey, JSON_says_which_rules_an_unknown_fact_left_open) {
  std::vector<SurveyRow> rows = {good_host("n1")};
  rows[0].node.prefix.read_only = false;
  rows[0].node.prefix.known = false;
  std::ostringstream out;
  print_survey_json(out, rows, default_rules(), {});
  auto first = nlohmann::json::parse(out.str().substr(0, out.str().find('\n')));
  EXPECT_EQ(first["undecided"][0]["rule"], "prefix-read-only");
  EXPECT_EQ(first["undecided"][0]["unknown"][0], "node.prefix.read_only");
}

TEST(Survey, JSON_has_each_host_each_group_and_a_summary) {
  std::vector<SurveyRow> rows = {good_host("n1"), good_host("n2")};
  rows[1].status = HostStatus::kUnreachable;
  rows[1].error = {"no route", ""};
  rows[0].node.prefix.no_exec = true;
  rows[0].node.torch.path = "\xff";
  std::ostringstream out;
  print_survey_json(out, rows, default_rules(), {});
  std::istringstream lines(out.str());
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0]["facts"]["libc"]["glibc"], "2.36");
  EXPECT_EQ(all[0]["findings"][0]["rule"], "prefix-noexec");
  EXPECT_EQ(all[1]["result"], "unreachable");
  EXPECT_EQ(all[1]["error"]["what"], "no route");
  EXPECT_EQ(all[2]["hosts"], "n1");
  EXPECT_EQ(all[2]["facts"]["node.gpus.count"], "8");
  EXPECT_EQ(all[3]["groups"], 1);
  EXPECT_EQ(all[3]["not_looked_at"], 1);
}

TEST(NodeFacts, What_was_not_found_out_is_null_and_zero_is_zero) {
  auto facts = parse_node_facts(
      R"({"memory":{"bytes":0},"prefix":{"known":true,"free_bytes":0},"driver":{"version":""}})");
  ASSERT_TRUE(facts) << facts.error().what;
  EXPECT_EQ(facts->memory.bytes, 0u);
  EXPECT_EQ(facts->memory.shm_bytes, std::nullopt);
  nlohmann::json text = to_json(*facts);
  EXPECT_EQ(text["memory"]["bytes"], 0);
  EXPECT_EQ(text["prefix"]["free_bytes"], 0);
  for (const auto& unknown : {text["memory"]["shm_bytes"], text["prefix"]["free_inodes"],
                              text["cpu"]["cores"], text["libc"]["glibc"], text["clock_off_s"],
                              text["torch"]["with_cuda"], text["driver"]["devices_on_bus"]}) {
    EXPECT_TRUE(unknown.is_null()) << unknown;
  }
  EXPECT_EQ(text["driver"]["error"], "") << "there was none";
  // And back: null is unknown.
  auto again = parse_node_facts(text.dump());
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(to_json(*again), text);
}

TEST(NodeFacts, What_a_host_says_in_another_shape_is_an_error_and_no_exception) {
  EXPECT_TRUE(parse_node_facts("{}"));
  EXPECT_TRUE(parse_node_facts(R"({"new":1,"cpu":{"isa":"x86-64-v2"}})"));
  for (const char* text :
       {"", "[]", "{\"cpu\":7}", "{\"gpus\":{}}", "{\"clock_ns\":\"x\"}", "nul"}) {
    auto facts = parse_node_facts(text);
    ASSERT_FALSE(facts) << text;
    EXPECT_THAT(facts.error().what, HasSubstr("malformed"));
  }
}

}  // namespace
}  // namespace dsi
