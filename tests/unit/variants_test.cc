#include "orchestrator/variants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "orchestrator/plan.h"
#include "tests/unit/survey_fixture.h"

namespace dsi {
namespace {

using ::testing::ElementsAre;
using testing::good_host;
using ::testing::HasSubstr;

Requirements build_with(const std::string& torch, const std::string& cuda = "") {
  Requirements build;
  build.arch = "x86_64";
  build.torch = torch;
  build.torch_abi = "cxx11";
  build.torch_cuda = cuda;
  return build;
}

SurveyRow host_with(const std::string& name, const std::string& torch,
                    const std::string& cuda = "") {
  SurveyRow row = good_host(name);
  if (torch.empty()) row.node.torch.path.clear();
  row.node.torch.version = torch;
  row.node.torch.cuda = cuda;
  row.node.torch.with_cuda = !cuda.empty();
  return row;
}

std::map<std::string, HostOverrides> named(const std::map<std::string, std::string>& torches) {
  std::map<std::string, HostOverrides> per_host;
  for (const auto& [host, torch] : torches) per_host[host].build_torch = torch;
  return per_host;
}

Variants choose(const std::vector<Requirements>& builds, const WantedTorches& wanted,
                const std::vector<SurveyRow>& rows) {
  return choose_variants(builds, wanted, rows, default_rules(), {});
}

TEST(WantedTorches, The_one_of_the_option_is_looked_for_only_if_some_host_needs_it) {
  const WantedTorches some = wanted_torches("/a", named({{"n2", "/b"}}), {"n1", "n2"});
  EXPECT_THAT(some.paths, ElementsAre("/a", "/b"));
  EXPECT_FALSE(some.named[0]);
  EXPECT_EQ(some.named[1], 1u);
  EXPECT_EQ(some.fallback, 0u);

  const WantedTorches all =
      wanted_torches("/a", named({{"n1", "/c"}, {"n2", "/b"}, {"n3", "/c"}}), {"n1", "n2", "n3"});
  EXPECT_THAT(all.paths, ElementsAre("/c", "/b"));
  EXPECT_EQ(all.named[2], 0u);
  EXPECT_THAT(wanted_torches("", {}, {"n1"}).paths, ElementsAre(""));
}

TEST(Variants, One_build_serves_hosts_that_differ_in_what_a_build_does_not_depend_on) {
  SurveyRow other = host_with("n2", "2.4.0");
  other.node.cpu.isa = "x86-64-v3";
  other.node.gpus.assign(1, NodeGpu{"NVIDIA A100", "8.0", 40000, false});
  const Variants one = choose({build_with("2.4.1")}, wanted_torches("", {}, {"n1", "n2"}),
                              {host_with("n1", "2.4.0"), other});
  EXPECT_THAT(one.builds, ElementsAre(0u));
  EXPECT_THAT(one.of_host, ElementsAre(0u, 0u));
}

TEST(Variants, A_host_gets_what_the_configuration_names_and_others_what_fits_their_torch) {
  const WantedTorches wanted =
      wanted_torches("/new", named({{"n1", "/old"}}), {"n0", "n1", "n2", "n3"});
  const Variants two = choose({build_with("2.11.0"), build_with("1.13.0")}, wanted,
                              {host_with("n0", "2.11.0"), host_with("n1", "1.13.1"),
                               host_with("n2", "1.13.0"), host_with("n3", "")});
  EXPECT_THAT(two.builds, ElementsAre(0u, 1u));
  EXPECT_THAT(two.of_host, ElementsAre(0u, 1u, 1u, 0u));
  EXPECT_THAT(two.why, ElementsAre("nothing else is said", "the configuration names it"));
}

TEST(Variants, What_nobody_needs_is_not_built) {
  // Every host that was not named has the torch of those that were.
  const WantedTorches wanted = wanted_torches("", named({{"n1", "/old"}}), {"n1", "n2"});
  const Variants one = choose({build_with("2.11.0"), build_with("1.13.0")}, wanted,
                              {host_with("n1", "1.13.0"), host_with("n2", "1.13.0")});
  EXPECT_THAT(one.builds, ElementsAre(1u));
  EXPECT_THAT(one.of_host, ElementsAre(0u, 0u));

  SurveyRow dead = host_with("n2", "");
  dead.status = HostStatus::kUnreachable;
  EXPECT_THAT(choose({build_with("2.11.0"), build_with("1.13.0")}, wanted,
                     {host_with("n1", "1.13.0"), dead})
                  .of_host,
              ElementsAre(0u, 0u));
}

TEST(Variants, Two_names_of_equal_torches_are_one_build) {
  const WantedTorches wanted =
      wanted_torches("/a", named({{"n2", "/b"}, {"n3", "/c"}}), {"n1", "n2", "n3"});
  const Variants both =
      choose({build_with("2.4.0"), build_with("2.4.0"), build_with("2.4.0", "12.4")}, wanted,
             {host_with("n1", "2.4.0"), host_with("n2", "2.4.0"), host_with("n3", "2.4.0")});
  EXPECT_THAT(both.builds, ElementsAre(0u, 2u));
  EXPECT_THAT(both.of_host, ElementsAre(0u, 0u, 1u));
}

TEST(Variants, A_host_that_no_build_fits_is_refused_with_what_is_required_and_found) {
  const WantedTorches wanted = wanted_torches("", named({{"n2", "/old"}}), {"n1", "n2"});
  const std::vector<SurveyRow> rows = {host_with("n1", "2.6.0"), host_with("n2", "2.6.0")};
  const std::vector<Requirements> builds = {build_with("2.11.0"), build_with("1.13.0")};
  const Variants variants = choose(builds, wanted, rows);
  std::vector<Intention> intentions;
  for (std::size_t build : variants.builds) {
    Intention& one = intentions.emplace_back();
    one.command = "install";
    one.build = builds[build];
  }
  const Plan plan = make_plan(intentions, variants.of_host, rows, default_rules(), {});
  EXPECT_TRUE(plan.all_refused());
  EXPECT_THAT(plan.hosts[0].error.what, HasSubstr("required torch 2.11.0, found torch 2.6.0"));
  EXPECT_THAT(plan.hosts[1].error.what, HasSubstr("required torch 1.13.0, found torch 2.6.0"));
}

TEST(Variants, A_plan_names_each_with_its_hosts_and_why) {
  Intention neu, old;
  neu.command = old.command = "install";
  neu.source = "all ops with torch 2.11.0";
  neu.build.torch = "2.11.0";
  neu.why = "nothing else is said";
  old.source = "all ops with torch 1.13.0";
  old.build.torch = "1.13.0";
  old.release = "abc";
  old.why = "the configuration names it";
  const Plan plan =
      make_plan({neu, old}, {0, 1, 1},
                {host_with("n1", "2.11.0"), host_with("n2", "1.13.0"), host_with("n3", "1.13.0")},
                default_rules(), {});
  std::ostringstream out, json;
  print_plan(out, plan);
  EXPECT_THAT(
      out.str(),
      ::testing::StartsWith("Plan: install 2 variants\n"
                            "  variant 1: all ops with torch 2.11.0, for n1: nothing else is said\n"
                            "  variant 2: all ops with torch 1.13.0, for n[2-3]: the configuration "
                            "names it\n"
                            "    release abc\n"));
  print_plan_json(json, plan);
  EXPECT_THAT(json.str(), HasSubstr(R"("hosts":"n[2-3]")"));
  EXPECT_THAT(json.str(), HasSubstr(R"("release":null)"));
}

}  // namespace
}  // namespace dsi
