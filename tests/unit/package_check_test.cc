// May a package go into a host's Python? Each thing that can be wrong, alone and together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/fatbin.h"
#include "orchestrator/package/check.h"
#include "orchestrator/plan.h"

namespace dsi {
namespace {

using protocol::PythonFacts;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kBytes = 10 << 20;

protocol::Facts host_facts(const std::string& cpu_level) {
  protocol::Facts facts;
  facts.arch = "x86_64";
  facts.cpu_level = cpu_level;
  return facts;
}
const protocol::Facts kHost = host_facts("x86-64-v3");

ManifestPackage deepspeed_wheel() {
  ManifestPackage package;
  package.name = "deepspeed";
  package.version = "0.19.8";
  package.wheel = "wheels/deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl";
  package.tags = {"cp311-cp311-linux_x86_64"};
  package.torch = "2.11.0+cu130";
  package.torch_cuda = "13.0";
  package.requires_dist = {"hjson", "pydantic>=2.0.0", "torch>=2.0.0", "tqdm; extra == \"all\"",
                           "tomli; python_version < \"3.11\""};
  package.needs_symbols = {{"GLIBC", "2.34"}, {"GLIBCXX", "3.4.30"}, {"CXXABI", "1.3.13"}};
  package.modules = {
      {"deepspeed.ops.adam.cpu_adam_op", "cpu_adam", package.needs_symbols, {}, {}},
      {"deepspeed.ops.adam.fused_adam_op", "fused_adam", {{"GLIBC", "2.2.5"}}, {}, {"8.0", "9.0"}}};
  return package;
}

PythonFacts good_python() {
  PythonFacts python;
  python.executable = "/opt/env/bin/python";
  python.version = "3.11.2";
  python.site = "/opt/env/lib/python3.11/site-packages";
  python.tags = {"cp311-cp311-manylinux_2_36_x86_64", "cp311-cp311-linux_x86_64", "py3-none-any"};
  python.pip = "23.0";
  python.torch = "2.11.1+cu130";
  python.torch_cuda = "13.0";
  python.glibc = "2.36";
  python.glibcxx = "3.4.30";
  python.cxxabi = "1.3.13";
  python.writable = true;
  python.free_bytes = 1 << 30;
  python.installed = {{"hjson", "3.1"}, {"pydantic", "2.5"}, {"torch", "2.11.1+cu130"}};
  python.compute_capabilities = {"9.0"};
  return python;
}

Error refusal(const PythonFacts& python, const ManifestPackage& package = deepspeed_wheel()) {
  return check_package(package, kBytes, python, kHost).refusal;
}

TEST(PackageCheck, Lets_in_what_fits) {
  EXPECT_EQ(refusal(good_python()).what, "");
  EXPECT_TRUE(check_package(deepspeed_wheel(), kBytes, good_python(), kHost).warnings.empty());
}

TEST(PackageCheck, Names_the_Python_that_is_needed_and_the_one_that_is_there) {
  PythonFacts python = good_python();
  python.version = "3.9.2";
  python.tags = {"cp39-cp39-linux_x86_64", "py3-none-any"};
  EXPECT_THAT(refusal(python).what,
              HasSubstr("Python: needs cp311-cp311-linux_x86_64, found cp39-cp39-linux_x86_64"));
  ManifestPackage pure = deepspeed_wheel();
  pure.tags = {"py2-none-any", "py3-none-any"};
  pure.torch.clear();
  python.version = "3.11.2";  // For the markers.
  EXPECT_EQ(refusal(python, pure).what, "");
}

TEST(PackageCheck, Takes_every_manylinux_that_the_hosts_glibc_is_new_enough_for) {
  ManifestPackage package = deepspeed_wheel();
  package.needs_symbols.clear();
  package.modules.clear();
  auto refusal_of = [&](const std::string& platform, const PythonFacts& python) {
    package.tags = {"cp311-cp311-" + platform};
    return refusal(python, package).what;
  };
  PythonFacts python = good_python();
  for (const char* platform :
       {"manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64", "manylinux_2_5_x86_64",
        "manylinux_2_31_x86_64", "manylinux_2_36_x86_64"}) {
    EXPECT_EQ(refusal_of(platform, python), "") << platform;
  }
  EXPECT_THAT(refusal_of("manylinux_2_37_x86_64", python),
              HasSubstr("glibc: needs 2.37 (for cp311-cp311-manylinux_2_37_x86_64), found 2.36"));
  python.glibc = "2.4";
  EXPECT_THAT(refusal_of("manylinux1_x86_64", python), HasSubstr("glibc: needs 2.5"));
  python = good_python();
  for (const char* other : {"manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2",
                            "manylinux3_x86_64", "musllinux_1_1_x86_64"}) {
    EXPECT_THAT(refusal_of(other, python), HasSubstr("Python: needs cp311")) << other;
  }
  package.tags = {"cp312-cp312-manylinux2014_x86_64"};
  EXPECT_THAT(refusal(python, package).what, HasSubstr("Python: needs cp312"));
  // One of several is enough, and the least that is needed is told.
  package.tags = {"cp311-cp311-manylinux_2_40_x86_64", "cp311-cp311-manylinux2014_x86_64"};
  EXPECT_EQ(refusal(python, package).what, "");
  package.tags = {"cp311-cp311-manylinux_2_40_x86_64", "cp311-cp311-manylinux_2_38_x86_64"};
  EXPECT_THAT(refusal(python, package).what, HasSubstr("glibc: needs 2.38"));
}

TEST(PackageCheck, A_pip_that_does_not_know_the_tag_yet_is_named) {
  ManifestPackage package = deepspeed_wheel();
  PythonFacts python = good_python();
  python.pip = "19.3.1";
  package.tags = {"cp311-cp311-manylinux_2_31_x86_64"};
  EXPECT_THAT(refusal(python, package).what,
              HasSubstr("pip: needs 20.3 (for cp311-cp311-manylinux_2_31_x86_64), found 19.3.1"));
  package.tags = {"cp311-cp311-manylinux_2_31_x86_64", "cp311-cp311-manylinux2014_x86_64"};
  EXPECT_EQ(refusal(python, package).what, "");
}

TEST(PackageCheck, A_Python_that_takes_no_manylinux_gets_none) {
  ManifestPackage package = deepspeed_wheel();
  package.tags = {"cp311-cp311-manylinux2014_x86_64"};
  PythonFacts python = good_python();
  python.tags = {"cp311-cp311-linux_x86_64", "py3-none-any"};
  EXPECT_THAT(refusal(python, package).what, HasSubstr("Python: needs"));
  python = good_python();
  python.glibc.clear();
  EXPECT_THAT(refusal(python, package).what, HasSubstr("Python: needs"));
}

TEST(PackageCheck, Wants_the_torch_that_it_was_compiled_with) {
  PythonFacts python = good_python();
  python.torch = "1.13.1";
  python.installed["torch"] = "2.0";  // Only the torch that was imported counts.
  EXPECT_THAT(refusal(python).what, HasSubstr("torch: needs 2.11, found 1.13.1"));
  python.torch.clear();
  EXPECT_THAT(refusal(python).what, HasSubstr("torch: needs 2.11, found none"));
  python = good_python();
  python.torch_cuda = "12.6";
  EXPECT_THAT(refusal(python).what, HasSubstr("torch's CUDA: needs 13.0, found 12.6"));
  // Without device code the CUDA that torch has is no matter.
  ManifestPackage cpu = deepspeed_wheel();
  cpu.modules.pop_back();
  EXPECT_EQ(refusal(python, cpu).what, "");
}

TEST(PackageCheck, Compares_the_symbol_versions_and_names_the_op) {
  PythonFacts python = good_python();
  python.glibc = "2.31";
  EXPECT_THAT(refusal(python).what,
              HasSubstr("glibc: needs GLIBC_2.34 (for cpu_adam), found GLIBC_2.31"));
  python = good_python();
  python.glibcxx = "3.4.28";
  python.cxxabi = "1.3.9";
  EXPECT_THAT(refusal(python).what, HasSubstr("libstdc++: needs GLIBCXX_3.4.30 (for cpu_adam), "
                                              "found GLIBCXX_3.4.28"));
  EXPECT_THAT(refusal(python).what, HasSubstr("CXXABI_1.3.13"));
  // What could not be found out speaks against nobody.
  python.glibcxx.clear();
  python.cxxabi.clear();
  EXPECT_EQ(refusal(python).what, "");
}

TEST(PackageCheck, Refuses_a_processor_that_is_older_than_the_code) {
  ManifestPackage package = deepspeed_wheel();
  package.cpu_level = "x86-64-v4";
  EXPECT_THAT(check_package(package, kBytes, good_python(), kHost).refusal.what,
              HasSubstr("processor: needs x86-64-v4, found x86-64-v3"));
  EXPECT_EQ(check_package(package, kBytes, good_python(), host_facts("x86-64-v4")).refusal.what,
            "");
  EXPECT_EQ(check_package(package, kBytes, good_python(), host_facts("")).refusal.what, "");
  package.cpu_level = "x86-64";
  EXPECT_EQ(check_package(package, kBytes, good_python(), kHost).refusal.what, "");
}

TEST(PackageCheck, Refuses_a_GPU_that_no_device_code_is_for) {
  PythonFacts python = good_python();
  python.compute_capabilities = {"7.0", "9.0"};
  EXPECT_THAT(refusal(python).what, HasSubstr("compute capability: needs 7.0 (the host's GPU), "
                                              "found 8.0, 9.0 in fused_adam"));
  EXPECT_THAT(refusal(python).help, HasSubstr("TORCH_CUDA_ARCH_LIST"));
  python.compute_capabilities.clear();
  const PackageCheck check = check_package(deepspeed_wheel(), kBytes, python, kHost);
  EXPECT_EQ(check.refusal.what, "");
  EXPECT_THAT(check.warnings, ElementsAre(HasSubstr("no GPU")));
}

TEST(PackageCheck, Device_code_runs_where_the_driver_would_run_it) {
  EXPECT_TRUE(runs_on({"8.0"}, "8.6"));
  EXPECT_FALSE(runs_on({"8.6"}, "8.0"));
  EXPECT_FALSE(runs_on({"8.0"}, "9.0"));
  EXPECT_TRUE(runs_on({"8.0+PTX"}, "9.0"));
  EXPECT_FALSE(runs_on({"9.0+PTX"}, "8.0"));
  EXPECT_TRUE(runs_on({"7.0", "8.0+PTX"}, "12.0"));
  EXPECT_TRUE(runs_on({"9.0a"}, "9.0"));
  EXPECT_FALSE(runs_on({"10.0a"}, "10.3"));
  EXPECT_TRUE(runs_on({"10.0f"}, "10.3"));
  EXPECT_FALSE(runs_on({"9.0a+PTX"}, "10.0"));
  EXPECT_FALSE(runs_on({}, "9.0"));
  EXPECT_FALSE(runs_on({"nonsense"}, "9.0"));
}

TEST(PackageCheck, Wants_space_a_pip_and_leave_to_write) {
  PythonFacts python = good_python();
  python.free_bytes = 1 << 20;
  EXPECT_THAT(refusal(python).what, HasSubstr("free space: needs 20.0 MiB, found 1.0 MiB"));
  python = good_python();
  python.pip.clear();
  EXPECT_THAT(refusal(python).what, HasSubstr("it has no pip"));
  python = good_python();
  python.writable = false;
  python.not_writable = "it is mounted read-only";
  EXPECT_THAT(refusal(python).what, HasSubstr("cannot be written: it is mounted read-only"));
}

TEST(PackageCheck, Wants_what_the_package_requires_or_that_it_comes_along) {
  PythonFacts python = good_python();
  python.installed = {{"pydantic", "1.10.2"}};
  EXPECT_THAT(refusal(python).what, HasSubstr("hjson, pydantic>=2.0.0 (found 1.10.2)"));
  EXPECT_THAT(refusal(python).what, Not(HasSubstr("tqdm")));
  EXPECT_THAT(refusal(python).what, Not(HasSubstr("tomli")));
  EXPECT_THAT(refusal(python).help, HasSubstr("--with-deps"));
  ManifestPackage with = deepspeed_wheel();
  with.dependencies = {"wheels/hjson-3.1.0-py3-none-any.whl",
                       "wheels/pydantic-2.9.0-py3-none-any.whl"};
  EXPECT_EQ(refusal(python, with).what, "");
}

TEST(PackageCheck, Tells_everything_at_once) {
  PythonFacts python = good_python();
  python.torch.clear();
  python.pip.clear();
  python.glibc = "2.31";
  const Error error = refusal(python);
  EXPECT_THAT(error.what,
              HasSubstr("deepspeed 0.19.8 cannot be installed into /opt/env/bin/python"));
  EXPECT_THAT(error.what, HasSubstr("pip"));
  EXPECT_THAT(error.what, HasSubstr("torch"));
  EXPECT_THAT(error.what, HasSubstr("GLIBC_2.31"));
}

TEST(PackageCheck, A_host_without_a_Python_says_so_itself) {
  PythonFacts python;
  python.error = {"no python3 is on this host", "install one"};
  EXPECT_EQ(refusal(python).what, "no python3 is on this host");
}

// ---- in the plan

SurveyRow host(const std::string& name, std::optional<PythonFacts> python) {
  SurveyRow row;
  row.host = name;
  row.facts.arch = "x86_64";
  row.facts.prefix = "/opt/ds-ops";
  row.facts.current = "0ps0ps0ps0ps0ps0";
  row.python = std::move(python);
  return row;
}

TEST(PackagePlan, Refuses_who_cannot_take_it_and_goes_on_with_the_others) {
  Intention intention;
  intention.command = "install";
  intention.release = "1111222233334444";
  intention.package = deepspeed_wheel();
  intention.package_bytes = kBytes;
  PythonFacts fresh = good_python();
  PythonFacts foreign = good_python();
  foreign.installed["deepspeed"] = "0.14.0";
  PythonFacts same = good_python();
  same.current = intention.release;
  PythonFacts bad = good_python();
  bad.torch = "1.13.1";
  const Plan plan = make_plan(intention, {host("a", fresh), host("b", foreign), host("c", same),
                                          host("d", bad), host("e", std::nullopt)});
  EXPECT_EQ(plan.hosts[0].action, Action::kInstall);
  EXPECT_EQ(plan.hosts[0].prefix, "/opt/env/bin/python");
  EXPECT_EQ(plan.hosts[1].action, Action::kReplace);
  EXPECT_EQ(plan.hosts[1].from, "deepspeed 0.14.0");
  EXPECT_EQ(plan.hosts[2].action, Action::kVerify);
  EXPECT_EQ(plan.hosts[3].action, Action::kRefuse);
  EXPECT_EQ(plan.hosts[3].status, HostStatus::kRefused);
  EXPECT_EQ(plan.hosts[4].action, Action::kInstall);
  EXPECT_EQ(plan.hosts[4].warnings.size(), 1u);
  std::ostringstream out;
  print_plan(out, plan);
  EXPECT_THAT(out.str(), HasSubstr("b (1 host): replace deepspeed 0.14.0 in /opt/env/bin/python"));
  EXPECT_THAT(out.str(), HasSubstr("d (1 host): refused: deepspeed 0.19.8 cannot be installed"));
  EXPECT_THAT(out.str(), HasSubstr("note: nothing of ds-install is there yet"));
}

}  // namespace
}  // namespace dsi
