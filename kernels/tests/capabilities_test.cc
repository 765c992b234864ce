#include "capabilities.h"

#include <gmock/gmock.h>
#include <gnu/libc-version.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <thread>

namespace ds {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A release in which `good` is a library that loads, `text` is none and `gone` is not there.
class Release : public ::testing::Test {
 protected:
  Release() {
    char name[] = "/tmp/ds-capabilities.XXXXXX";
    prefix_ = mkdtemp(name);
    mkdir((prefix_ + "/lib").c_str(), 0755);
    // A library of this process serves: loading it again is loading it. Of a function that no
    // sanitizer replaces by one of the program's own.
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&::gnu_get_libc_version), &self);
    EXPECT_EQ(symlink(self.dli_fname, (prefix_ + "/lib/libds_good.so").c_str()), 0);
    EXPECT_EQ(symlink(self.dli_fname, (prefix_ + "/lib/libds_device.so").c_str()), 0);
    std::ofstream(prefix_ + "/lib/libds_text.so") << "not a library";
    asked = 0;
  }
  ~Release() override {
    for (const char* op : {"good", "device", "text"}) {
      unlink((prefix_ + "/lib/libds_" + op + ".so").c_str());
    }
    rmdir((prefix_ + "/lib").c_str());
    rmdir(prefix_.c_str());
  }
  Capabilities with(int (*count)(std::string&)) {
    return Capabilities(prefix_,
                        {{"good", "op.good", "ds_good", "cpu"},
                         {"device", "op.device", "ds_device", "wheel"},
                         {"either", "op.either", "ds_good", "wheel cpu"},
                         {"text", "op.text", "ds_text", "cpu"},
                         {"gone", "op.gone", "ds_gone", "cpu"},
                         {"strange", "op.strange", "ds_good", "abacus"}},
                        {accelerators::cpu(), {"wheel", count}});
  }
  static std::atomic<int> asked;
  std::string prefix_;
};
std::atomic<int> Release::asked{0};

int none(std::string& why_not) {
  why_not = "it has come off";
  return 0;
}

TEST_F(Release, Supports_what_is_there_loads_and_has_a_device) {
  Capabilities here = with([](std::string&) { return ++asked, 2; });
  EXPECT_TRUE(here.supports("op.good"));
  EXPECT_TRUE(here.supports("op.device"));
  EXPECT_TRUE(here.supports("op.either"));
  EXPECT_THAT(here.keys(), ElementsAre("op.device", "op.either", "op.good"));
  EXPECT_THAT(here.why_not("op.gone"), HasSubstr("/lib/libds_gone.so is not there"));
  EXPECT_THAT(here.why_not("op.text"), HasSubstr("libds_text.so"));
  EXPECT_THAT(here.why_not("op.strange"), HasSubstr("abacus: this program knows no such"));
  EXPECT_THAT(here.why_not("op.unheard_of"), HasSubstr("no op with the capability op.unheard_of"));
  EXPECT_FALSE(here.supports("zero.3"));
}

TEST_F(Release, Without_a_device_says_why_and_what_has_another_one_works) {
  Capabilities here = with(none);
  EXPECT_EQ(here.why_not("op.device"), "no device that it has code for (wheel: it has come off)");
  EXPECT_TRUE(here.supports("op.either"));
  EXPECT_THAT(here.keys(), ElementsAre("op.either", "op.good"));
}

TEST_F(Release, Looks_for_devices_when_it_is_asked_and_once) {
  Capabilities here = with([](std::string&) { return ++asked, 1; });
  EXPECT_TRUE(here.supports("op.good"));
  EXPECT_EQ(asked, 0) << "the op for the processor is no matter of other devices";
  std::vector<std::thread> threads;
  std::atomic<int> yes{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      yes += here.supports("op.device");
      yes += here.keys().size() == 3;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(yes, 16);
  EXPECT_EQ(asked, 1);
}

TEST(Capability, Names_and_accelerators_come_from_the_ops_and_their_files) {
  EXPECT_STREQ(capability::kCpuAdam, "op.cpu_adam");
  EXPECT_STREQ(capability::kAsyncIo, "op.async_io");
  std::vector<std::string> names;
  for (const Accelerator& one : all_accelerators()) names.push_back(one.name);
  EXPECT_THAT(names, ElementsAre("cpu", "cuda"));
  bool found = false;
  for (const DescribedOp& op : described_ops()) {
    found = found || (op.capability == std::string("op.fused_adam") &&
                      op.devices == std::string("cpu cuda"));
  }
  EXPECT_TRUE(found) << "also those that this build is without";
}

// Whatever this machine has: an answer, and no device beyond those that the user shows.
TEST(Capability, CUDA_counts_what_the_process_may_see) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  std::string why;
  EXPECT_EQ(accelerators::cuda().count(why), 0);
  EXPECT_FALSE(why.empty());
  unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace ds
