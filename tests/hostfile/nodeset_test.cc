#include "orchestrator/base/nodeset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace dsi {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

Names expand(std::string_view text) {
  auto names = expand_nodeset(text);
  EXPECT_TRUE(names.has_value()) << text << ": " << (names ? "" : names.error().what);
  return names.value_or(Names{});
}

struct Where {
  std::size_t offset;
  std::string what;
};
Where refusal(std::string_view text, std::size_t limit = 100'000) {
  auto names = expand_nodeset_at(text, limit);
  if (names) {
    ADD_FAILURE() << text << " was accepted";
    return {};
  }
  return {names.error().offset, names.error().error.what};
}

TEST(Nodeset, Ranges_lists_and_plain_names_expand_in_their_order) {
  EXPECT_THAT(expand("node[01-03,07],login"),
              ElementsAre("node01", "node02", "node03", "node07", "login"));
  EXPECT_THAT(expand("[1-2]a"), ElementsAre("1a", "2a"));
  EXPECT_THAT(expand("node[8-11]"), ElementsAre("node8", "node9", "node10", "node11"));
  EXPECT_THAT(expand("node[098-101]"), ElementsAre("node098", "node099", "node100", "node101"));
  EXPECT_THAT(expand("n[0]"), ElementsAre("n0"));
  EXPECT_THAT(expand("n[00-01]"), ElementsAre("n00", "n01"));
}

TEST(Nodeset, Several_brackets_multiply) {
  EXPECT_THAT(expand("rack[1-2]n[1-2]x"),
              ElementsAre("rack1n1x", "rack1n2x", "rack2n1x", "rack2n2x"));
}

TEST(Nodeset, Empty_text_is_no_names) {
  EXPECT_THAT(expand(""), IsEmpty());
}

TEST(Nodeset, Errors_say_where) {
  EXPECT_EQ(refusal("node[5-3]").offset, 5u);
  EXPECT_THAT(refusal("node[5-3]").what, HasSubstr("backwards"));
  EXPECT_EQ(refusal("node[1,01-100]").offset, 7u);
  EXPECT_THAT(refusal("node[1,01-100]").what, HasSubstr("padding"));
  EXPECT_THAT(refusal("node[1-010]").what, HasSubstr("padding"));
  EXPECT_EQ(refusal("a,node[1-3").offset, 6u);
  EXPECT_EQ(refusal("node[").offset, 4u);
  EXPECT_EQ(refusal("node[1-").offset, 4u);
  EXPECT_THAT(refusal("node[1-3").what, HasSubstr("never closed"));
  EXPECT_EQ(refusal("node]").offset, 4u);
  EXPECT_EQ(refusal("node[]").offset, 5u);
  EXPECT_EQ(refusal("node[a-c]").offset, 5u);
  EXPECT_EQ(refusal("node[1-2-3]").offset, 8u);
  EXPECT_EQ(refusal("node[1 ,2]").offset, 6u);
  EXPECT_EQ(refusal("node[[1]]").offset, 5u);
  EXPECT_EQ(refusal("a,,b").offset, 2u);
  EXPECT_EQ(refusal("a,").offset, 2u);
  EXPECT_EQ(refusal(",").offset, 0u);
}

TEST(Nodeset, The_result_for_people_names_the_column) {
  auto names = expand_nodeset("node[5-3]");
  ASSERT_FALSE(names);
  EXPECT_EQ(names.error().what, "the range 5-3 runs backwards (column 6)");
  EXPECT_EQ(names.error().help, "write 3-5");
}

TEST(Nodeset, An_explosion_is_an_error_and_not_memory) {
  EXPECT_EQ(refusal("node[1-999999999]").offset, 4u);
  EXPECT_THAT(refusal("node[0-999999999999999999]").what, HasSubstr("more than 100000"));
  EXPECT_THAT(refusal("node[0-9999999999999999999]").what, HasSubstr("18 digits"));
  EXPECT_EQ(refusal("a[1-1000]b[1-1000]c[1-1000]").offset, 10u);
  EXPECT_THAT(refusal("a[1-60],b[1-60]", 100).what, HasSubstr("more than 100"));
  std::string brackets = "a";
  for (int i = 0; i < 1000; ++i) brackets += "[1]";
  EXPECT_THAT(refusal(brackets).what, HasSubstr("longer than"));
  EXPECT_THAT(refusal(std::string(256, 'x')).what, HasSubstr("longer than"));
}

TEST(Nodeset, The_limit_itself_is_allowed) {
  EXPECT_EQ(expand_nodeset("a[1-60],b[1-40]", 100).value().size(), 100u);
  EXPECT_FALSE(expand_nodeset("a[1-60],b[1-41]", 100));
  EXPECT_FALSE(expand_nodeset("a", 0));
}

TEST(Nodeset, Names_fold_as_people_write_them) {
  EXPECT_EQ(fold_nodeset({"node01", "node03", "node02", "login"}), "login,node[01-03]");
  EXPECT_EQ(fold_nodeset({"rack1n1", "rack1n2"}), "rack1n[1-2]");
  EXPECT_EQ(fold_nodeset({"rack1n1", "rack2n1"}), "rack[1-2]n1");
  EXPECT_EQ(fold_nodeset({"r1n1", "r1n2", "r2n1", "r2n2"}), "r[1-2]n[1-2]");
  EXPECT_EQ(fold_nodeset({"r1n1", "r1n2", "r2n1"}), "r1n[1-2],r2n1");
  EXPECT_EQ(fold_nodeset({"n1", "n2", "n4", "n9", "n10"}), "n[1-2,4,9-10]");
  EXPECT_EQ(fold_nodeset({"n08", "n09", "n10", "n100", "n99"}), "n[08-10,99-100]");
  EXPECT_EQ(fold_nodeset({"n1", "n1"}), "n1");
  EXPECT_EQ(fold_nodeset({"n10", "n9"}), "n[9-10]");
  EXPECT_EQ(fold_nodeset({"b10x", "b9y", "a"}), "a,b9y,b10x");
  EXPECT_EQ(fold_nodeset({"10.0.0.1", "10.0.0.2"}), "10.0.0.[1-2]");
  EXPECT_EQ(fold_nodeset({"fe80::1", "fe80::2"}), "fe80::1,fe80::2");
  EXPECT_EQ(fold_nodeset({}), "");
}

TEST(Nodeset, Folding_what_cannot_be_expanded_loses_nothing) {
  EXPECT_EQ(fold_nodeset({"a[1", "a[2"}), "a[1,a[2");
  EXPECT_EQ(fold_nodeset({"n12345678901234567890", "n12345678901234567891"}),
            "n12345678901234567890,n12345678901234567891");
}

// Few letters and digits, so that much is shared: the hard case for folding.
TEST(Nodeset, Expanding_what_was_folded_gives_the_same_names) {
  std::mt19937 random(20240607);
  auto below = [&](unsigned n) { return random() % n; };
  for (int round = 0; round < 3000; ++round) {
    Names names;
    for (unsigned i = 0, n = below(40); i < n; ++i) {
      std::string name;
      for (unsigned p = 0, parts = 1 + below(4); p < parts; ++p) {
        if (below(2) == 0) name += std::string(1, "ab-."[below(4)]);
        for (unsigned d = 0, digits = below(4); d < digits; ++d) name += "0019"[below(4)];
      }
      if (!name.empty()) names.push_back(name);
    }
    const std::set<std::string> wanted(names.begin(), names.end());
    const std::string folded = fold_nodeset(names);
    Names got = expand(folded);
    std::sort(got.begin(), got.end());
    ASSERT_EQ(got, Names(wanted.begin(), wanted.end())) << folded;
    std::shuffle(names.begin(), names.end(), random);
    ASSERT_EQ(fold_nodeset(names), folded) << "the order of the names must not matter";
  }
}

TEST(Nodeset, Ten_thousand_hosts_fold_to_one_word) {
  Names names;
  for (int i = 0; i < 10'000; ++i) names.push_back(fmt::format("gpu{:05}", i));
  EXPECT_EQ(fold_nodeset(names), "gpu[00000-09999]");
}

}  // namespace
}  // namespace dsi
