#include "orchestrator/cuda_build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "orchestrator/adapters/local_process.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Torch torch_with(const std::string& cuda) {
  Torch torch;
  torch.version = cuda.empty() ? "2.4.0+cpu" : "2.4.0+cu" + cuda;
  torch.has_cuda = !cuda.empty();
  torch.cuda = cuda;
  return torch;
}

CudaToolkit toolkit(const std::string& version) {
  std::vector<std::string> codes = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90"};
  if (version.starts_with("13")) codes.insert(codes.end(), {"sm_100", "sm_120"});
  return {"/usr/local/cuda-" + version + "/bin/nvcc", version, codes};
}

CudaWish hosts_with(std::vector<std::string> compute_capabilities, std::string arch_list = "") {
  return {true, std::move(compute_capabilities), std::move(arch_list), "", false};
}

std::string decided(const CudaWish& wish, const Torch& torch,
                    const std::vector<CudaToolkit>& toolkits,
                    std::vector<std::string>* warnings = nullptr) {
  auto decision = decide_cuda(wish, torch, toolkits);
  if (!decision) return to_string(decision.error());
  if (warnings != nullptr) *warnings = decision->warnings;
  if (!decision->build) return "none";
  return decision->build->toolkit.version + " for " + to_string(decision->build->archs);
}

TEST(CudaBuild, Is_for_the_union_of_what_the_hosts_have) {
  EXPECT_EQ(decided(hosts_with({"9.0", "8.0", "8.6"}), torch_with("12.4"), {toolkit("12.4")}),
            "12.4 for 8.0;8.6;9.0");
}

TEST(CudaBuild, Is_for_what_the_user_says_in_any_spelling) {
  EXPECT_EQ(
      decided(hosts_with({"9.0"}, "; Hopper, 8.0+PTX;"), torch_with("12.4"), {toolkit("12.4")}),
      "12.4 for 8.0+PTX;9.0+PTX");
  EXPECT_THAT(decided(hosts_with({"9.0"}, "Hoper"), torch_with("12.4"), {toolkit("12.4")}),
              AllOf(HasSubstr("TORCH_CUDA_ARCH_LIST:1: \"Hoper\""), HasSubstr("Hopper")));
}

TEST(CudaBuild, Hosts_without_devices_get_none_unless_it_is_demanded) {
  EXPECT_EQ(decided(hosts_with({}, "9.0"), torch_with("12.4"), {toolkit("12.4")}), "none");
  CudaWish demanded = hosts_with({});
  demanded.accelerator = "cuda";
  EXPECT_EQ(decided(demanded, torch_with("12.4"), {toolkit("12.4")}), "12.4 for 8.0;9.0+PTX");
  CudaWish declined = hosts_with({"9.0"});
  declined.accelerator = "cpu";
  EXPECT_EQ(decided(declined, torch_with("12.4"), {toolkit("12.4")}), "none");
}

TEST(CudaBuild, For_hosts_that_nobody_looks_at_torch_or_the_user_decides) {
  CudaWish wish;
  EXPECT_EQ(decided(wish, torch_with(""), {toolkit("13.0")}), "none");
  EXPECT_EQ(decided(wish, torch_with("13.0"), {toolkit("13.0")}), "13.0 for 8.0;9.0;10.0;12.0+PTX");
  wish.arch_list = "8.6";
  EXPECT_EQ(decided(wish, torch_with(""), {toolkit("13.0")}), "13.0 for 8.6");
}

TEST(CudaBuild, A_machine_without_a_toolkit_says_what_the_hosts_will_lack) {
  std::vector<std::string> warnings;
  EXPECT_EQ(decided(hosts_with({"9.0"}), torch_with("12.4"), {}, &warnings), "none");
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("the hosts have devices (9.0)"),
                                          HasSubstr("no nvcc is on this machine"),
                                          HasSubstr("install a CUDA toolkit 12.4"))));
  EXPECT_EQ(decided(hosts_with({}), torch_with("12.4"), {}, &warnings), "none");
  EXPECT_THAT(warnings, IsEmpty());
  CudaWish demanded = hosts_with({"9.0"});
  demanded.accelerator = "cuda";
  EXPECT_THAT(decided(demanded, torch_with("12.4"), {}), HasSubstr("error: no nvcc"));
}

TEST(CudaBuild, Of_several_toolkits_the_one_for_torch_is_taken) {
  std::vector<std::string> warnings;
  std::vector<CudaToolkit> all = {toolkit("13.0"), toolkit("11.8"), toolkit("12.4")};
  EXPECT_EQ(decided(hosts_with({"9.0"}), torch_with("12.4"), all, &warnings), "12.4 for 9.0");
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_EQ(decided(hosts_with({"9.0"}), torch_with("12.1"), all, &warnings), "12.4 for 9.0");
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("the CUDA toolkit is 12.4, torch is built with CUDA "
                                              "12.1")));
}

TEST(CudaBuild, Another_major_version_than_torchs_is_an_error_unless_the_user_knows_better) {
  std::string error = decided(hosts_with({"9.0"}), torch_with("12.4"), {toolkit("13.0")});
  EXPECT_THAT(error, AllOf(HasSubstr("the CUDA toolkit is 13.0, torch is built with CUDA 12.4"),
                           HasSubstr("DS_SKIP_CUDA_CHECK=1")));
  CudaWish knows = hosts_with({"9.0"});
  knows.skip_check = true;
  EXPECT_EQ(decided(knows, torch_with("12.4"), {toolkit("11.8"), toolkit("13.0")}), "13.0 for 9.0");
}

TEST(CudaBuild, What_nvcc_does_not_know_is_said) {
  std::vector<std::string> warnings;
  EXPECT_EQ(
      decided(hosts_with({"7.0", "9.0", "12.0"}), torch_with("12.4"), {toolkit("12.4")}, &warnings),
      "12.4 for 9.0+PTX");
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("7.0 is left out"), HasSubstr("12.0 becomes 9.0+PTX")));
  EXPECT_THAT(decided(hosts_with({"6.1"}), torch_with("13.0"), {toolkit("13.0")}),
              HasSubstr("error: nvcc 13.0 compiles for none of 6.1"));
}

TEST(CudaBuild, CMake_is_told_in_its_own_words) {
  EXPECT_EQ(cmake_architectures(*parse_cuda_archs("8.0;9.0a;10.0;12.0+PTX", "x")),
            "80-real;90a-real;100-real;120");
}

TEST(CudaBuild, What_is_not_in_the_files_is_said_for_each_op) {
  Manifest manifest;
  ManifestOp whole;
  whole.name = "whole";
  whole.library = "lib/libds_whole.so";
  whole.devices = {"cuda"};
  whole.compute_capabilities = {"8.0", "9.0", "9.0+PTX"};
  ManifestOp part = whole;
  part.name = "part";
  part.compute_capabilities = {"8.0"};
  ManifestOp none = whole;
  none.name = "none";
  none.compute_capabilities = {};
  ManifestOp cpu = none;
  cpu.name = "cpu";
  cpu.devices = {"cpu"};
  manifest.ops = {whole, part, none, cpu};
  CudaBuild build{toolkit("13.0"), *parse_cuda_archs("8.0;9.0+PTX", "x")};
  EXPECT_THAT(codes_not_in(manifest, build),
              ElementsAre(HasSubstr("part has no code for 9.0, 9.0+PTX, which nvcc was asked for; "
                                    "it has 8.0"),
                          HasSubstr("none has no code for 8.0, 9.0, 9.0+PTX, which nvcc was asked "
                                    "for; it has none at all")));
  EXPECT_THAT(codes_not_in(manifest, std::nullopt), IsEmpty());
}

// What people have in these variables, with programs that answer as nvcc does.
TEST(CudaToolkits, Are_found_where_the_environment_says_each_once) {
  TempFolder folder;
  auto make = [&](const std::string& home, const std::string& version) {
    fs::path nvcc = folder.write(home + "/bin/nvcc",
                                 "#!/bin/sh\ncase $1 in\n--version) echo 'Cuda compilation tools, "
                                 "release " +
                                     version + ", V" + version +
                                     ".1' ;;\n"
                                     "*) printf 'sm_80\\nsm_90\\n' ;;\nesac\n");
    fs::permissions(nvcc, fs::perms::owner_all);
  };
  make("one", "12.4");
  make("two", "13.0");
  fs::permissions(folder.write("three/bin/nvcc", "#!/bin/sh\nexit 1\n"), fs::perms::owner_all);
  const std::string at = folder.path().string();
  std::string path = std::getenv("PATH");
  ::unsetenv("CUDACXX");
  ::unsetenv("CUDA_PATH");
  ::setenv("CUDA_HOME", (":" + at + "/one/bin/nvcc").c_str(), 1);
  ::setenv("PATH", (at + "/one/bin:" + at + "/two/bin:" + at + "/three/bin").c_str(), 1);
  std::vector<fs::path> places = nvcc_places();
  ::setenv("PATH", path.c_str(), 1);
  ::unsetenv("CUDA_HOME");
  ASSERT_GE(places.size(), 3u);
  places.resize(3);  // What is in /usr/local here comes after them.
  LocalProcessRunner processes;
  std::vector<CudaToolkit> found = find_toolkits(places, processes, {});
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].nvcc, fs::path(at) / "one/bin/nvcc");
  EXPECT_EQ(found[0].version, "12.4");
  EXPECT_THAT(found[0].codes, ElementsAre("sm_80", "sm_90"));
  EXPECT_EQ(found[1].version, "13.0");
}

}  // namespace
}  // namespace dsi
