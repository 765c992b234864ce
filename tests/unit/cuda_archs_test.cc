#include "orchestrator/cuda_archs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsi {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string read(std::string_view text) {
  auto archs = parse_cuda_archs(text, "TORCH_CUDA_ARCH_LIST");
  return archs ? to_string(*archs) : to_string(archs.error());
}

const std::vector<std::string> kNvcc13 = {"sm_75",  "sm_80",  "sm_86",  "sm_87",
                                          "sm_88",  "sm_89",  "sm_90",  "sm_100",
                                          "sm_110", "sm_103", "sm_120", "sm_121"};
const std::vector<std::string> kNvcc118 = {"sm_35", "sm_37", "sm_50", "sm_52", "sm_53", "sm_60",
                                           "sm_61", "sm_62", "sm_70", "sm_72", "sm_75", "sm_80",
                                           "sm_86", "sm_87", "sm_89", "sm_90"};

std::string clamp(std::string_view text, const std::vector<std::string>& codes,
                  std::vector<std::string>* remarks = nullptr) {
  ClampedArchs clamped = clamp_archs(*parse_cuda_archs(text, "x"), codes);
  if (remarks != nullptr) *remarks = clamped.remarks;
  return to_string(clamped.archs);
}

TEST(CudaArchs, Are_read_in_all_spellings) {
  EXPECT_EQ(read("8.0"), "8.0");
  EXPECT_EQ(read("8.0;8.6+PTX"), "8.0;8.6+PTX");
  EXPECT_EQ(read("8.0+ptx"), "8.0+PTX");
  EXPECT_EQ(read("9.0a"), "9.0a");
  EXPECT_EQ(read("9.0a+PTX"), "9.0a+PTX");
  EXPECT_EQ(read("12.0f"), "12.0f");
  EXPECT_EQ(read("10.0;12.1"), "10.0;12.1");
  EXPECT_EQ(read("90"), "9.0");
  EXPECT_EQ(read("120a"), "12.0a");
  EXPECT_EQ(read("sm_90a"), "9.0a");
  EXPECT_EQ(read("SM_80,compute_80"), "8.0+PTX");
}

TEST(CudaArchs, Have_any_separators_between_them_and_stray_ones) {
  for (const char* text : {"8.0;9.0", "8.0,9.0", "8.0 9.0", "8.0; 9.0", ";8.0;;9.0;",
                           " 8.0 ,\t9.0;", "\"8.0;9.0\"", "'8.0 9.0'", "9.0;8.0", "8.0;9.0;8.0"}) {
    EXPECT_EQ(read(text), "8.0;9.0") << text;
  }
}

TEST(CudaArchs, Have_names) {
  EXPECT_EQ(read("Hopper"), "9.0+PTX");
  EXPECT_EQ(read("ampere"), "8.0;8.6+PTX");
  EXPECT_EQ(read("Ampere+Tegra;Volta"), "7.0+PTX;8.7");
  EXPECT_EQ(read("Kepler+Tesla"), "3.7");
  EXPECT_EQ(read("Maxwell+PTX"), "5.0;5.2+PTX");
  EXPECT_EQ(read("Ada Hopper"), "8.9+PTX;9.0+PTX");
  EXPECT_EQ(read("8.0;Ampere"), "8.0;8.6+PTX");
}

TEST(CudaArchs, Nothing_means_what_the_hosts_have) {
  for (const char* text : {"", " ", ";", "auto", "native", "\"\""}) {
    auto archs = parse_cuda_archs(text, "x");
    ASSERT_TRUE(archs) << text;
    EXPECT_THAT(*archs, IsEmpty()) << text;
  }
}

TEST(CudaArchs, What_is_none_is_named_with_its_place_and_what_was_meant) {
  EXPECT_EQ(read("8.0;Hoper"),
            "error: TORCH_CUDA_ARCH_LIST:5: \"Hoper\" is no NVIDIA architecture\n"
            "  help: did you mean Hopper?");
  EXPECT_EQ(read("8.0;x"),
            "error: TORCH_CUDA_ARCH_LIST:5: \"x\" is no NVIDIA architecture\n"
            "  help: write compute capabilities with ; between: 8.0;9.0a;12.0+PTX");
  for (const char* text : {"8", "8.", ".0", "8.0.1", "8.0b", "sm_", "8.00", "1.0", "+PTX", "-8.0",
                           "8.0+", "9999.0", "8.0\x1b[2J"}) {
    EXPECT_FALSE(parse_cuda_archs(text, "x")) << text;
  }
}

TEST(CudaArchs, Of_devices_are_each_once) {
  EXPECT_EQ(to_string(archs_of_devices({"9.0", "8.0", "9.0", ""})), "8.0;9.0");
}

TEST(CudaArchs, Are_clamped_to_what_nvcc_compiles_for) {
  std::vector<std::string> remarks;
  // DeepSpeed's own defaults on CUDA 13.
  EXPECT_EQ(clamp("6.0;6.1;7.0", kNvcc13, &remarks), "");
  EXPECT_EQ(remarks.size(), 3u);
  EXPECT_EQ(remarks[0], "6.0 is left out: this nvcc compiles for 7.5 to 12.1");
  EXPECT_EQ(clamp("7.0;8.0;9.0a", kNvcc13, &remarks), "8.0;9.0a");
  EXPECT_EQ(remarks.size(), 1u);
  // A device that is newer than the toolkit runs its newest PTX.
  EXPECT_EQ(clamp("8.0;12.0", kNvcc118, &remarks), "8.0;9.0+PTX");
  EXPECT_THAT(remarks, ElementsAre("12.0 becomes 9.0+PTX: this nvcc does not know 12.0"));
  EXPECT_EQ(clamp("9.0;12.0", kNvcc118), "9.0+PTX");
  EXPECT_EQ(clamp("10.0a", kNvcc118, &remarks), "") << "what is special to it has no replacement";
  EXPECT_EQ(clamp("8.0;99.0", {}, &remarks), "8.0;99.0") << "an nvcc that does not say";
  EXPECT_THAT(remarks, IsEmpty());
}

TEST(CudaToolkit, Major_versions_must_agree_and_minor_ones_are_remarked) {
  EXPECT_EQ(*check_toolkit("12.4.1", "12.4", false), "");
  EXPECT_THAT(*check_toolkit("12.1", "12.4", false), ::testing::HasSubstr("12.1, torch is built"));
  auto other = check_toolkit("11.8.0", "12.4", false);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().what, "the CUDA toolkit is 11.8.0, torch is built with CUDA 12.4");
  EXPECT_THAT(other.error().help, ::testing::HasSubstr("DS_SKIP_CUDA_CHECK=1"));
  EXPECT_EQ(*check_toolkit("11.8.0", "12.4", true), "");
  auto without = check_toolkit("13.0", "", false);
  ASSERT_FALSE(without) << "torch for the CPU beside an nvcc";
  EXPECT_THAT(without.error().what, ::testing::HasSubstr("without CUDA"));
}

TEST(CudaToolkit, Of_several_the_one_that_matches_is_chosen) {
  EXPECT_EQ(choose_toolkit({"11.8", "12.1", "12.4.1", "13.0"}, "12.4"), 2);
  EXPECT_EQ(choose_toolkit({"12.1", "12.8", "12.6"}, "12.4"), 2) << "the nearest above";
  EXPECT_EQ(choose_toolkit({"12.0", "12.3"}, "12.4"), 1) << "the highest below";
  EXPECT_EQ(choose_toolkit({"11.8", "", "13.0"}, "12.4"), -1);
  EXPECT_EQ(choose_toolkit({}, "12.4"), -1);
}

TEST(CudaToolkit, CUDA_HOME_is_what_people_mean_by_it) {
  EXPECT_EQ(sane_cuda_home("/usr/local/cuda"), "/usr/local/cuda");
  EXPECT_EQ(sane_cuda_home("/usr/local/cuda/"), "/usr/local/cuda");
  EXPECT_EQ(sane_cuda_home(":/usr/local/cuda"), "/usr/local/cuda");
  EXPECT_EQ(sane_cuda_home("/usr/local/cuda/bin/nvcc"), "/usr/local/cuda");
  EXPECT_EQ(sane_cuda_home("/usr/local/cuda/bin/"), "/usr/local/cuda");
  EXPECT_EQ(sane_cuda_home("/a:/b"), "/a");
  EXPECT_EQ(sane_cuda_home("cuda"), "");
  EXPECT_EQ(sane_cuda_home("/"), "");
  EXPECT_EQ(sane_cuda_home(""), "");
}

}  // namespace
}  // namespace dsi
