// What is read and said about Python packages: build failures, requirements, DeepSpeed's own ways.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "orchestrator/package/deepspeed.h"
#include "orchestrator/package/explain.h"
#include "orchestrator/package/marker.h"

namespace dsi {
namespace {

using testing::HasSubstr;

// ---- failures, each with the message that people reported

struct Known {
  const char* log;
  const char* what;
  const char* help;
};

TEST(Explain, Knows_the_failures_that_people_meet) {
  for (
      const Known& known : std::vector<Known>{
          {"RuntimeError:\nThe detected CUDA version (12.6) mismatches the version that was used "
           "to "
           "compile\nPyTorch (13.0). Please make sure to use the same CUDA versions.",
           "the CUDA 12.6 that compiles", "DS_SKIP_CUDA_CHECK"},
          {"Exception: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the "
           "version torch was compiled with 12.1, unable to compile cuda/cpp extensions without a "
           "matching cuda version.",
           "the CUDA 11.8", "CUDA_HOME"},
          {"op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile "
           "CUDA op(s)",
           "no CUDA toolkit", "the hosts need none"},
          {"FileNotFoundError: [Errno 2] No such file or directory: "
           "':/usr/local/cuda/bin/nvcc'",
           "begins with a colon", "not a list"},
          {"OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install "
           "root.",
           "no CUDA toolkit", "bin/nvcc"},
          {"nvcc fatal   : Unsupported gpu architecture 'compute_60'", "compute_60",
           "TORCH_CUDA_ARCH_LIST"},
          {"ValueError: Unknown CUDA arch (12.1a) or GPU not supported", "12.1a",
           "TORCH_CUDA_ARCH_LIST"},
          {"ValueError: invalid literal for int() with base 10: '90a'", "90a", "without letters"},
          {"/usr/local/cuda/include/crt/host_config.h:132:2: error: #error -- unsupported GNU "
           "version! gcc versions later than 11 are not supported!",
           "gcc up to version 11", "ccbin"},
          {"torch/csrc/python_headers.h:12:10: fatal error: Python.h: No such file or directory",
           "Python.h", "python3-dev"},
          {"csrc/aio/py_lib/deepspeed_py_io_handle.h:14:10: fatal error: libaio.h: No such file or "
           "directory",
           "libaio.h", "libaio-dev"},
          {"csrc/x/y.h:3:10: fatal error: cutlass/cutlass.h: No such file or directory", "CUTLASS",
           "CUTLASS_PATH"},
          {"ATen/cuda/CUDAContextLight.h:7:10: fatal error: cusparse.h: No such file or directory",
           "cusparse.h", "toolkit is incomplete"},
          {"x.cpp:1:10: fatal error: rdma/fabric.h: No such file or directory", "rdma/fabric.h",
           "development package"},
          {"/usr/bin/ld: cannot find -lcurand: No such file or directory", "curand",
           "LIBRARY_PATH"},
          {"/usr/bin/ld: cannot find -laio", "libaio", "libaio-dev"},
          {"/usr/bin/ld: cannot find -lnuma", "numa", "development package"},
          {"AssertionError: Unable to pre-compile ops without torch installed. Please install "
           "torch "
           "before attempting to pre-compile ops.",
           "has no torch", "--python"},
          {"torch/csrc/Exceptions.h:13:10: fatal error: pybind11/pybind11.h: No such file or "
           "directory",
           "pybind11", "pybind11-dev"},
          {"No module named 'intel_extension_for_pytorch'\nValueError: CPU_Accelerator requires "
           "intel_extension_for_pytorch, which is not installed on this system.",
           "CPU accelerator", "DS_ACCELERATOR=cuda"},
          {"ModuleNotFoundError: No module named 'cpuinfo'", "imports cpuinfo", "install it"},
          {"/torch/include/c10/util/C++17.h:29:2: error: #error You need C++20 to compile PyTorch",
           "needs C++20", "older torch"},
          {"RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)",
           "ninja", "ninja-build"},
          {"error: command 'x86_64-linux-gnu-g++' failed: No such file or directory",
           "x86_64-linux-gnu-g++", "g++"},
          {"c++: fatal error: Killed signal terminated program cc1plus", "want of memory",
           "--jobs 1"},
          {"fatal error: error writing to /tmp/ccX.s: No space left on device", "disk is full",
           "TMPDIR"},
          {"ImportError: x.so: undefined symbol: _ZN3c105ErrorC2E", "_ZN3c105ErrorC2E", "torch"},
          {"ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "3.4.32",
           "libstdc++"},
          {"error: invalid command 'bdist_wheel'", "wheels", "install wheel"},
      }) {
    const Error error = explain_failure(std::string("before\n") + known.log + "\nafter\n");
    EXPECT_THAT(error.what, HasSubstr(known.what)) << known.log;
    EXPECT_THAT(error.help, HasSubstr(known.help)) << known.log;
  }
}

TEST(Explain, Says_nothing_about_what_it_does_not_know) {
  EXPECT_EQ(explain_failure("everything went well\nbut for this\n").what, "");
  EXPECT_EQ(explain_failure("").what, "");
  // A line as long as a link command must be no danger.
  EXPECT_EQ(explain_failure(std::string(1 << 20, 'x')).what, "");
}

TEST(Explain, Shows_the_first_error_and_not_what_pip_says_after_it) {
  std::string log = "copying a\ncopying b\nx.cpp:3:1: error: expected ';'\n  3 | x\n";
  for (int i = 0; i < 90; ++i) log += "  File \"setup.py\", line 1, in run\n";
  log += "error: subprocess-exited-with-error\nrunning clean\n";
  const std::string part = failing_part(log);
  EXPECT_THAT(part, testing::StartsWith("    copying b\n    x.cpp:3:1: error: expected ';'"));
  EXPECT_THAT(part, testing::Not(HasSubstr("clean")));
  EXPECT_LT(std::count(part.begin(), part.end(), '\n'), 20);
  EXPECT_EQ(failing_part("a\nb\n"), "    a\n    b");
  EXPECT_EQ(failing_part(""), "");
}

TEST(Explain, What_it_shows_cannot_harm_a_terminal) {
  EXPECT_EQ(failing_part("x\x1b[2Jy"), "    x?[2Jy");
  EXPECT_LT(failing_part(std::string(100000, 'x')).size(), 1000u);
}

// ---- requirements

TEST(Marker, Requirements_come_in_the_spellings_of_all_ages) {
  Requirement one = parse_requirement("pydantic>=2.0.0");
  EXPECT_EQ(one.name, "pydantic");
  EXPECT_EQ(one.specifier, ">=2.0.0");
  EXPECT_EQ(one.marker, "");
  one = parse_requirement("Py_CPUinfo (>=1.0,<2) ; python_version < '3.9'");
  EXPECT_EQ(one.name, "py-cpuinfo");
  EXPECT_EQ(one.specifier, ">=1.0,<2");
  EXPECT_EQ(one.marker, "python_version < '3.9'");
  one = parse_requirement("requests[security,socks] != 2.1");
  EXPECT_EQ(one.name, "requests");
  EXPECT_EQ(one.specifier, "!=2.1");
  EXPECT_EQ(parse_requirement("numpy >=1.20, <2").specifier, ">=1.20,<2");
  EXPECT_EQ(parse_requirement("x @ https://example.org/x.whl").specifier, "");
}

TEST(Marker, Versions_compare_as_pip_compares_them) {
  EXPECT_TRUE(version_satisfies("2.11.0+cu130", ">=2.0.0"));
  EXPECT_TRUE(version_satisfies("1.10", ">1.9,<2"));
  EXPECT_FALSE(version_satisfies("1.10.17", ">=2.0.0"));
  EXPECT_FALSE(version_satisfies("2.0", "<2.0.0"));
  EXPECT_TRUE(version_satisfies("2.0", "==2.0.0"));
  EXPECT_TRUE(version_satisfies("1.4.5", "~=1.4"));
  EXPECT_FALSE(version_satisfies("2.0", "~=1.4"));
  EXPECT_TRUE(version_satisfies("1.4.5", "==1.4.*"));
  EXPECT_FALSE(version_satisfies("1.40", "==1.4.*"));
  EXPECT_TRUE(version_satisfies("2.0rc1", "<2.0"));
  EXPECT_TRUE(version_satisfies("2.0.post1", ">2.0"));
  EXPECT_FALSE(version_satisfies("1.0.dev3", ">=1.0"));
  EXPECT_TRUE(version_satisfies("1!0.1", ">5"));
  EXPECT_TRUE(version_satisfies("3", ""));
  EXPECT_FALSE(version_satisfies("1.24", "!=1.24"));
}

TEST(Marker, Markers_are_decided_where_they_can_be) {
  const std::map<std::string, std::string> here = {{"python_version", "3.11"},
                                                   {"sys_platform", "linux"},
                                                   {"platform_machine", "x86_64"},
                                                   {"extra", ""}};
  EXPECT_EQ(marker_holds("", here), true);
  EXPECT_EQ(marker_holds("python_version < '3.9'", here), false);
  EXPECT_EQ(marker_holds("python_version >= \"3.9\"", here), true);
  EXPECT_EQ(marker_holds("extra == 'dev'", here), false);
  EXPECT_EQ(marker_holds("sys_platform == 'win32' or python_version > '3.10'", here), true);
  EXPECT_EQ(marker_holds("(sys_platform == 'linux' and platform_machine == 'x86_64')", here), true);
  EXPECT_EQ(marker_holds("'linux' in sys_platform", here), true);
  EXPECT_EQ(marker_holds("platform_machine not in 'arm64 aarch64'", here), true);
  EXPECT_EQ(marker_holds("platform_release > '5'", here), std::nullopt);
  EXPECT_EQ(marker_holds("platform_release > '5' and extra == 'x'", here), false);
  EXPECT_EQ(marker_holds("platform_release > '5' or sys_platform == 'linux'", here), true);
  EXPECT_EQ(marker_holds("what?", here), std::nullopt);
  EXPECT_EQ(marker_holds("sys_platform == 'linux", here), std::nullopt);
  EXPECT_EQ(marker_holds(std::string(10000, '('), here), std::nullopt);
}

// ---- DeepSpeed

TEST(DeepSpeed, Modules_are_its_ops) {
  EXPECT_EQ(deepspeed::op_of_module("deepspeed.ops.aio.async_io_op"), "async_io");
  EXPECT_EQ(deepspeed::op_of_module("deepspeed.ops.adam.cpu_adam_op"), "cpu_adam");
  EXPECT_EQ(deepspeed::op_of_module("deepspeed.elsewhere.cpu_adam_op"), "cpu_adam");
  EXPECT_EQ(deepspeed::op_of_module("deepspeed.ops.new_op"), "deepspeed.ops.new_op");
}

TEST(DeepSpeed, Compiles_its_ops_unless_the_user_has_chosen) {
  using Variables = std::map<std::string, std::string>;
  const deepspeed::BuildTarget gpus{{"8.0", "9.0"}, true, true, true};
  EXPECT_EQ(deepspeed::build_environment({}, gpus), (Variables{{"DS_BUILD_OPS", "1"},
                                                               {"DS_ACCELERATOR", "cuda"},
                                                               {"TORCH_CUDA_ARCH_LIST", "8.0;9.0"},
                                                               {"DS_ENABLE_NINJA", "1"}}));
  EXPECT_EQ(deepspeed::build_environment({{"DS_BUILD_CPU_ADAM", "1"}}, gpus).count("DS_BUILD_OPS"),
            0u);
  EXPECT_EQ(
      deepspeed::build_environment({{"DS_BUILD_STRING", ".dev1"}}, gpus).count("DS_BUILD_OPS"), 1u);
  const Variables set = {{"TORCH_CUDA_ARCH_LIST", "7.0"}, {"DS_ACCELERATOR", "cpu"}};
  EXPECT_EQ(deepspeed::build_environment(set, gpus),
            (Variables{{"DS_BUILD_OPS", "1"}, {"DS_ENABLE_NINJA", "1"}}));
  // Hosts without a GPU get the CPU's ops, whatever this machine has; without hosts nobody knows.
  EXPECT_EQ(deepspeed::build_environment({}, {{}, true, true, false}).at("DS_ACCELERATOR"), "cpu");
  EXPECT_EQ(deepspeed::build_environment({}, {{}, false, true, false}).count("DS_ACCELERATOR"), 0u);
  EXPECT_EQ(deepspeed::build_environment({}, {{}, true, true, false, true}).count("DS_ACCELERATOR"),
            0u);
}

TEST(DeepSpeed, A_wheel_says_what_it_was_built_with) {
  const deepspeed::VersionInfo info = deepspeed::read_version_info(
      "version='0.19.8'\ngit_hash='unknown'\n"
      "installed_ops={'async_io': 1, 'cpu_adam': True, 'gds': False, 'utils': 0}\n"
      "accelerator_name='cuda'\n"
      "torch_info={'version': '2.11', 'bf16_support': False, 'cuda_version': '13.0'}\n");
  EXPECT_EQ(info.installed_ops,
            (std::map<std::string, bool>{
                {"async_io", true}, {"cpu_adam", true}, {"gds", false}, {"utils", false}}));
  EXPECT_EQ(info.accelerator, "cuda");
  EXPECT_EQ(info.torch, "2.11");
  EXPECT_EQ(info.torch_cuda, "13.0");
  EXPECT_EQ(
      deepspeed::read_version_info("torch_info={'version': '0.0', 'cuda_version': '0.0'}\n").torch,
      "");
}

TEST(DeepSpeed, An_op_asked_for_and_left_out_is_an_error) {
  const std::vector<std::string> modules = {"deepspeed.ops.aio.async_io_op"};
  EXPECT_TRUE(deepspeed::check_asked_ops({{"DS_BUILD_AIO", "1"}, {"DS_BUILD_OPS", "1"}}, modules));
  EXPECT_TRUE(deepspeed::check_asked_ops({{"DS_BUILD_CPU_ADAM", "0"}}, modules));
  auto missing = deepspeed::check_asked_ops({{"DS_BUILD_CPU_ADAM", "1"}}, modules);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().what, HasSubstr("cpu_adam"));
}

}  // namespace
}  // namespace dsi
