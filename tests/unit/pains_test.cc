// docs/pains.md: nothing is left out, and the rules and tests that it names are there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "orchestrator/base/file.h"
#include "orchestrator/rules.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::IsSupersetOf;

// From the root of the sources, where ctest runs it.
std::string document() {
  return read_file("orchestrator/docs/pains.md").value_or("");
}

std::set<std::string> all(const std::string& text, const char* expression) {
  const std::regex pattern(expression);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

TEST(Pains, None_is_left_out) {
  EXPECT_THAT(all(document(), R"((#\d+))"),
              IsSupersetOf({"#3223", "#2902", "#2772", "#4553", "#7452", "#5511", "#3255", "#5724",
                            "#6549", "#607",  "#3299", "#7587", "#7144", "#3410", "#3385", "#7666",
                            "#6465", "#2886", "#4257", "#1687", "#5627", "#4576", "#3929", "#5659",
                            "#7174", "#1037", "#6972", "#7346", "#8001", "#4669", "#730",  "#5205",
                            "#5723", "#1886", "#7556", "#5553", "#5677", "#1124", "#1343", "#6489",
                            "#573",  "#2885", "#3530", "#4370", "#579"}));
}

TEST(Pains, The_rules_that_are_named_are_there) {
  std::set<std::string> rules;
  for (const Rule& rule : default_rules()) rules.insert(rule.id);
  const std::set<std::string> named = all(document(), R"(`([a-z]+(?:-[a-z]+)+)`)");
  EXPECT_GE(named.size(), 12u);
  for (const std::string& rule : named) EXPECT_TRUE(rules.contains(rule)) << rule;
}

TEST(Pains, The_tests_that_are_named_are_there) {
  std::set<std::string> tests;
  for (const auto& entry : fs::recursive_directory_iterator("tests")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string text = read_file(entry.path()).value_or("");
    const std::regex pattern(R"(TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))");
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
      tests.insert((*at)[1].str() + "." + (*at)[2].str());
    }
  }
  const std::set<std::string> named = all(document(), R"(`([A-Z]\w+\.\w+)`)");
  EXPECT_GE(named.size(), 25u);
  for (const std::string& test : named) EXPECT_TRUE(tests.contains(test)) << test;
}

}  // namespace
}  // namespace dsi
