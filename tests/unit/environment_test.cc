#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "orchestrator/environment/base.h"
#include "orchestrator/environment/conda.h"
#include "orchestrator/environment/debian.h"
#include "orchestrator/environment/derive.h"
#include "orchestrator/environment/lock.h"
#include "orchestrator/environment/sandbox.h"
#include "orchestrator/environment/wheels.h"
#include "orchestrator/toolchain.h"
#include "tests/unit/survey_fixture.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

SurveyRow host(const std::string& name, const std::string& glibc, const std::string& glibcxx) {
  SurveyRow row = testing::good_host(name);
  row.node.libc.glibc = glibc;
  row.node.libc.glibcxx = glibcxx;
  row.node.gpus.clear();
  return row;
}

EnvironmentWishes same_torch_here() {
  EnvironmentWishes wishes;
  wishes.torch = "2.4.0+cu124";
  wishes.torch_cuda = "12.4";
  return wishes;
}

Result<Environment> derived(const std::vector<SurveyRow>& rows, const EnvironmentWishes& wishes) {
  DSI_TRY(EnvironmentNeeds needs, needs_of(rows, wishes.torch_asked));
  return derive(needs, wishes);
}

// ---- the base

struct Libraries {
  const char* glibc;
  const char* glibcxx;
  const char* suite;
};

TEST(Environment, The_base_is_the_newest_whose_libraries_no_host_is_older_than) {
  for (const Libraries& one : {Libraries{"2.31", "3.4.28", "bullseye"},
                               {"2.35", "3.4.30", "bullseye"},
                               {"2.36", "3.4.30", "bookworm"},
                               {"2.39", "3.4.33", "bookworm"},
                               {"2.41", "3.4.33", "trixie"},
                               {"2.50", "3.4.40", "trixie"},
                               // A C++ library that is older than its glibc counts, too.
                               {"2.36", "3.4.29", "bullseye"},
                               {"2.36", "", "bookworm"}}) {
    auto environment = derived({host("new", "2.41", "3.4.33"), host("n", one.glibc, one.glibcxx)},
                               same_torch_here());
    ASSERT_TRUE(environment) << environment.error().what;
    EXPECT_EQ(environment->suite, one.suite) << one.glibc << " " << one.glibcxx;
  }
}

TEST(Environment, A_host_that_is_older_than_every_base_is_named_with_what_to_do) {
  auto environment =
      derived({host("node1", "2.36", "3.4.30"), host("old7", "2.28", "3.4.25")}, same_torch_here());
  ASSERT_TRUE(environment);
  EXPECT_EQ(environment->suite, "");
  EXPECT_THAT(environment->no_base.what,
              AllOf(HasSubstr("glibc of 2.28 on old7"), HasSubstr("2.31"), HasSubstr("bullseye")));
  EXPECT_THAT(environment->no_base.help, AllOf(HasSubstr("old7"), HasSubstr("--conda")));
  auto conda = conda_text(*environment, "ops");
  ASSERT_TRUE(conda);
  EXPECT_THAT(*conda, HasSubstr("sysroot_linux-64=2.28\n"));
}

TEST(Environment, Hosts_that_no_one_build_serves_are_told_apart_by_name) {
  SurveyRow arm = host("arm1", "2.36", "3.4.30");
  arm.node.arch = "aarch64";
  auto archs = needs_of({host("node1", "2.36", "3.4.30"), arm}, false);
  ASSERT_FALSE(archs);
  EXPECT_THAT(archs.error().what, AllOf(HasSubstr("aarch64 (arm1)"), HasSubstr("x86_64 (node1)")));

  SurveyRow other = host("node2", "2.36", "3.4.30");
  other.node.torch.version = "2.11.0+cu130";
  auto torches = needs_of({host("node1", "2.36", "3.4.30"), other}, false);
  ASSERT_FALSE(torches);
  EXPECT_THAT(torches.error().what,
              AllOf(HasSubstr("2.4.0+cu124 (node1)"), HasSubstr("2.11.0+cu130 (node2)")));
  EXPECT_THAT(torches.error().help, HasSubstr("--torch"));
  EXPECT_TRUE(needs_of({host("node1", "2.36", "3.4.30"), other}, true));

  SurveyRow musl = host("alpine1", "", "");
  musl.node.libc.name = "musl";
  auto libcs = needs_of({host("node1", "2.36", "3.4.30"), musl}, false);
  ASSERT_FALSE(libcs);
  EXPECT_THAT(libcs.error().what, HasSubstr("musl (alpine1)"));
}

TEST(Environment, A_host_that_did_not_answer_is_left_out_and_all_of_them_are_an_error) {
  SurveyRow silent;
  silent.host = "node2";
  auto needs = needs_of({host("node1", "2.36", "3.4.30"), silent}, false);
  ASSERT_TRUE(needs);
  EXPECT_THAT(needs->unknown, ElementsAre("node2"));
  EXPECT_FALSE(needs_of({silent}, false));
}

// ---- compiler and CUDA

TEST(Environment, The_compiler_is_the_newest_of_the_base_that_nvcc_takes) {
  SurveyRow row = testing::good_host("gpu1");
  row.node.libc.glibc = "2.41";
  row.node.libc.glibcxx = "3.4.33";
  EnvironmentWishes wishes = same_torch_here();
  wishes.toolkit = "12.4";
  auto environment = derived({row}, wishes);
  ASSERT_TRUE(environment) << environment.error().what;
  EXPECT_EQ(environment->suite, "trixie");
  EXPECT_EQ(environment->compiler, 13);
  EXPECT_EQ(environment->cuda, "12.4");
  EXPECT_THAT(environment->compute_capabilities, ElementsAre("9.0"));

  wishes.toolkit = "11.8";
  auto too_old = derived({row}, wishes);
  ASSERT_FALSE(too_old);
  EXPECT_THAT(too_old.error().what,
              AllOf(HasSubstr("nvcc 11.8"), HasSubstr("g++ above 11"), HasSubstr("g++-12")));

  wishes.toolkit.clear();
  auto none = derived({row}, wishes);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().what, HasSubstr("9.0"));
  EXPECT_THAT(none.error().help, HasSubstr("12.4"));
}

TEST(Environment, Limits_of_nvcc_are_those_of_its_guide) {
  EXPECT_EQ(newest_compiler_for("13.0"), 15);
  EXPECT_EQ(newest_compiler_for("12.8"), 14);
  EXPECT_EQ(newest_compiler_for("12.6"), 13);
  EXPECT_EQ(newest_compiler_for("12.3"), 12);
  EXPECT_EQ(newest_compiler_for("11.8"), 11);
  EXPECT_EQ(newest_compiler_for("11.4"), 10);
  EXPECT_EQ(newest_compiler_for("10.2"), 0);
}

// ---- torch

TEST(Environment, The_torch_comes_from_here_from_Debian_or_from_the_index) {
  auto here = derived({host("node1", "2.31", "3.4.28")}, same_torch_here());
  ASSERT_TRUE(here);
  EXPECT_EQ(here->torch_source, TorchSource::kFolder);

  EnvironmentWishes other;
  other.torch = "2.11.0+cu130";
  auto index = derived({host("node1", "2.31", "3.4.28")}, other);
  ASSERT_TRUE(index);
  EXPECT_EQ(index->torch, "2.4.0+cu124");
  EXPECT_EQ(index->torch_source, TorchSource::kWheel);

  SurveyRow debians = host("node1", "2.36", "3.4.30");
  debians.node.torch.version = "1.13.0";
  EnvironmentWishes systems;
  systems.torch = "1.13.0";
  systems.torch_is_debians = true;
  auto debian = derived({debians}, systems);
  ASSERT_TRUE(debian);
  EXPECT_EQ(debian->torch_source, TorchSource::kDebian);
}

// ---- lock

EnvironmentLock some_lock() {
  EnvironmentLock lock;
  lock.suite = "bullseye";
  lock.architecture = "amd64";
  lock.compiler = 10;
  lock.python = "3.11";
  lock.torch = "2.11.0+cu130";
  lock.torch_sha256 = std::string(64, 'a');
  lock.cuda = "13.0";
  lock.cuda_sha256 = std::string(64, 'b');
  lock.compute_capabilities = {"8.0", "9.0"};
  lock.packages = {{"dash", "0.5.11+git20200708+dd9ef66-5", std::string(64, '0')},
                   {"libcrypt1", "1:4.4.18-4~x", std::string(64, 'c')}};
  lock.wheels = {{"cmake", "3.31.10", std::string(64, 'd')}};
  return lock;
}

TEST(EnvironmentLock, What_is_written_is_read_and_has_one_fingerprint) {
  const EnvironmentLock lock = some_lock();
  auto read = parse_lock("# a remark\n\n" + lock_text(lock), "ds-env.lock");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(lock_text(*read), lock_text(lock));
  EXPECT_EQ(fingerprint(*read), fingerprint(lock));

  EnvironmentLock other = lock;
  other.packages[0].sha256[63] = '1';
  EXPECT_NE(fingerprint(other), fingerprint(lock));
}

struct Mistake {
  const char* find;
  const char* replace;
  const char* said;
};

TEST(EnvironmentLock, Nothing_is_taken_that_is_no_name_version_or_digest) {
  for (const Mistake& mistake : {Mistake{"dash", "-o", "name must be a name or a version"},
                                 {"0.5.11+git", "0.5; rm", "version must be"},
                                 {"suite: bullseye", "suite: ../bullseye", "suite must be"},
                                 {"suite: bullseye", "suite: buster", "there is no base buster"},
                                 {"g++-10", "clang", "g++-N"},
                                 {"version: 1\n", "version: 2\n", "version 1 of locks"},
                                 {"from: folder", "from: elsewhere", "folder, debian or wheel"},
                                 {"aaaaaaaa", "AAAAAAAA", "64 hexadecimal"},
                                 {"python:", "pyton:", "pyton"},
                                 {"packages:", "wheels:", "twice"},
                                 {"- {name: \"dash\"", "- [name: \"dash\"", "not YAML"}}) {
    std::string text = lock_text(some_lock());
    const std::size_t at = text.find(mistake.find);
    ASSERT_NE(at, std::string::npos) << mistake.find;
    text.replace(at, std::string(mistake.find).size(), mistake.replace);
    auto read = parse_lock(text, "my.lock");
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().what, AllOf(HasSubstr("my.lock:"), HasSubstr(mistake.said)));
  }
  EXPECT_FALSE(parse_lock("", "my.lock"));
  EXPECT_FALSE(parse_lock("- a\n- b\n", "my.lock"));
}

// ---- conda

TEST(Conda, The_text_pins_what_the_hosts_determine) {
  Environment environment;
  environment.machine = "x86_64";
  environment.glibc = "2.31";
  environment.compiler = 10;
  environment.python = "3.11";
  environment.torch = "2.11.0+cu130";
  environment.cuda = "13.0";
  environment.compute_capabilities = {"8.0", "9.0"};
  auto text = conda_text(environment, "ops");
  ASSERT_TRUE(text);
  for (const char* line : {"name: ops\n", "  - python=3.11\n", "  - gxx_linux-64=10\n",
                           "  - sysroot_linux-64=2.28\n", "  - cuda-version=13.0\n",
                           "      - torch==2.11.0\n", "TORCH_CUDA_ARCH_LIST: \"8.0;9.0\"\n"}) {
    EXPECT_THAT(*text, HasSubstr(line));
  }
  environment.cuda.clear();
  environment.machine = "aarch64";
  text = conda_text(environment, "ops");
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, AllOf(HasSubstr("gxx_linux-aarch64=10"), Not(HasSubstr("cuda-nvcc"))));
  environment.glibc = "2.12";
  EXPECT_FALSE(conda_text(environment, "ops"));
}

// ---- where packages come from

TEST(Environment, The_mirror_is_the_one_of_apts_own_configuration) {
  EXPECT_EQ(
      mirror_in("'http://mirror.example/debian-security/dists/bookworm-security/InRelease' a 0\n"
                "'https://tools.example/apt/dists/nodistro/InRelease' b 0\n"
                "'http://mirror.example/debian/dists/bookworm/InRelease' c 0 \n"),
      "http://mirror.example/debian");
  EXPECT_EQ(mirror_in("'http://archive.example/ubuntu/dists/jammy/InRelease' a 0\n"), "");
  EXPECT_EQ(mirror_in(""), "");
}

TEST(Environment, A_wheel_must_run_with_the_library_of_the_base) {
  auto platforms = wheel_platforms("x86_64", "2.31");
  EXPECT_EQ(platforms.front(), "manylinux_2_31_x86_64");
  EXPECT_THAT(platforms, Contains("manylinux_2_28_x86_64"));
  EXPECT_THAT(platforms, Contains("manylinux2014_x86_64"));
  EXPECT_THAT(platforms, Not(Contains("manylinux_2_34_x86_64")));
}

// ---- the sandbox

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

TEST(Sandbox, Folders_above_a_shown_one_are_opened_and_the_others_mounted_whole) {
  TempFolder folder;
  const fs::path root = folder.path() / "root";
  for (const char* part : {"usr/bin", "usr/local/lib", "usr/local/cuda", "etc", "proc", "tmp"}) {
    fs::create_directories(root / part);
  }
  fs::create_directory_symlink("usr/bin", root / "bin");
  Command command{{"c++", "--version"}, {}, {{"NINJA_STATUS", "[%f/%t] "}}, {}};
  const std::string line = joined(
      sandbox_command(root, {{"/usr/local/cuda/bin", false}, {"/home/me/.cache", true}}, command));
  const std::string at = root.string();
  EXPECT_THAT(line, HasSubstr("--ro-bind " + at + "/etc /etc "));
  EXPECT_THAT(line, HasSubstr("--symlink usr/bin /bin "));
  EXPECT_THAT(line, HasSubstr("--dir /usr --ro-bind " + at +
                              "/usr/bin /usr/bin --dir /usr/local "
                              "--dir /usr/local/cuda --ro-bind " +
                              at + "/usr/local/lib "));
  EXPECT_THAT(line, HasSubstr("--bind /home/me/.cache /home/me/.cache "
                              "--ro-bind /usr/local/cuda/bin /usr/local/cuda/bin "));
  EXPECT_THAT(line, AllOf(HasSubstr("--unshare-all"), HasSubstr("--clearenv"),
                          HasSubstr("--setenv NINJA_STATUS [%f/%t] "), Not(HasSubstr(at + "/proc")),
                          Not(HasSubstr(at + "/tmp"))));
  EXPECT_TRUE(line.ends_with("--chdir / -- c++ --version ")) << line;
}

TEST(Torch, Debians_Python_package_is_the_systems_by_its_headers) {
  TempFolder folder;
  folder.write("own/include/torch/version.h", "");
  std::filesystem::create_directories(folder.path() / "linked/include");
  std::filesystem::create_directory_symlink("/usr/include/torch",
                                            folder.path() / "linked/include/torch");
  EXPECT_TRUE(is_systems("/usr"));
  EXPECT_TRUE(is_systems(folder.path() / "linked"));
  EXPECT_FALSE(is_systems(folder.path() / "own"));
}

}  // namespace
}  // namespace dsi
