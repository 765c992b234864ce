// The real ds-facts, as it travels: on this machine, and in roots where next to nothing is.

#include <gmock/gmock.h>
#include <gnu/libc-version.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/agent_link.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/shell_quote.h"
#include "orchestrator/node_facts.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::StartsWith;

std::string run(std::vector<std::string> argv) {
  LocalProcessRunner processes;
  auto result = processes.run({std::move(argv), {}, {}}, Deadline::after(60s), {});
  if (!result) return result.error().what;
  EXPECT_EQ(result->exit_code, 0) << result->err;
  return result->out;
}

std::string shell(const std::string& script) {
  return run({"/bin/sh", "-c", script});
}

NodeFacts read_answer(const std::string& out) {
  EXPECT_THAT(out, StartsWith("\nDSF1 abc {"));
  EXPECT_THAT(out, EndsWith("}\n"));
  auto facts = parse_node_facts(out.substr(std::min<std::size_t>(out.size(), 10)));
  EXPECT_TRUE(facts) << facts.error().what << out;
  return facts.value_or(NodeFacts{});
}

// With these words of an environment and no others.
NodeFacts look(const std::vector<std::string>& environment = {},
               const std::string& prefix = "/opt/ds-ops",
               const std::vector<std::string>& torch = {}) {
  std::vector<std::string> argv = {"env", "-i"};
  argv.insert(argv.end(), environment.begin(), environment.end());
  argv.insert(argv.end(), {DSI_FACTS, "abc", prefix});
  argv.insert(argv.end(), torch.begin(), torch.end());
  return read_answer(run(argv));
}

// A folder that becomes the root of a process. Only root may do that.
class Root : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can change the root";
    fs::copy_file(DSI_FACTS, path("ds-facts"));
  }
  fs::path path(const std::string& name) {
    fs::path where = folder_.path() / name;
    fs::create_directories(where.parent_path());
    return where;
  }
  void write(const std::string& name, std::string_view text) {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  NodeFacts look_inside() {
    return read_answer(run({"env", "-i", "PATH=/usr/bin:/bin", "/usr/sbin/chroot", folder_.path(),
                            "/ds-facts", "abc", "/opt/ds-ops"}));
  }
  TempFolder folder_;
};

TEST(Facts, Tell_what_this_machine_is) {
  NodeFacts facts = look({"HOME=/root"});
  utsname system{};
  ::uname(&system);
  EXPECT_EQ(facts.arch, system.machine);
  EXPECT_EQ(facts.kernel, system.release);
  EXPECT_EQ(facts.host_name, system.nodename);
  EXPECT_EQ(facts.root, ::geteuid() == 0);
  struct sysinfo memory {};
  ::sysinfo(&memory);
  EXPECT_EQ(facts.memory.bytes, std::uint64_t{memory.totalram} * memory.mem_unit);
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(facts.cpu.cores, static_cast<std::uint64_t>(CPU_COUNT(&set)));
  EXPECT_EQ(facts.libc.name, "glibc");
  EXPECT_EQ(facts.libc.glibc, gnu_get_libc_version());
  EXPECT_TRUE(facts.prefix.known);
  EXPECT_EQ(facts.prefix.path, "/opt/ds-ops");
  EXPECT_GT(facts.prefix.free_bytes, 0u);
  EXPECT_FALSE(facts.prefix.file_system.empty());
  auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_NEAR(static_cast<double>(facts.clock_ns.value_or(0)),
              static_cast<double>(std::chrono::nanoseconds(now).count()), 60e9);
}

#if defined(__x86_64__)
TEST(Facts, Tell_the_level_of_the_processor_as_the_compiler_does) {
  std::string isa = look().cpu.isa;
  __builtin_cpu_init();
  EXPECT_EQ(isa, __builtin_cpu_supports("x86-64-v4")   ? "x86-64-v4"
                 : __builtin_cpu_supports("x86-64-v3") ? "x86-64-v3"
                 : __builtin_cpu_supports("x86-64-v2") ? "x86-64-v2"
                                                       : "x86-64-v1");
}
#endif

TEST(Facts, Tell_the_versions_that_the_libraries_themselves_define) {
  NodeFacts facts = look();
  ASSERT_FALSE(facts.libc.libstdcxx.empty());
  auto highest = [&](const std::string& family) {
    std::string version = shell("readelf --version-info " + facts.libc.libstdcxx + " | grep -o '" +
                                family + "_[0-9.]*' | sort -Vu | tail -n 1");
    return version.substr(family.size() + 1, version.size() - family.size() - 2);
  };
  EXPECT_EQ(facts.libc.glibcxx, highest("GLIBCXX"));
  EXPECT_EQ(facts.libc.cxxabi, highest("CXXABI"));
}

TEST(Facts, Without_words_it_does_nothing) {
  EXPECT_EQ(run({DSI_FACTS}), "");
}

TEST(Facts, Any_bytes_in_the_environment_make_valid_JSON) {
  NodeFacts facts = look({"TMPDIR=/no\n\"where\\\xff\xc3\xa9\x01", "HOME=/h\xed\xa0\x80"});
  EXPECT_EQ(facts.temp.path, "/no\n\"where\\?\u00e9\x01");
  EXPECT_EQ(facts.temp.at, "/");
}

TEST(Facts, An_enormous_environment_is_cut_off) {
  NodeFacts facts = look({"TMPDIR=/" + std::string(100'000, 'x')});
  EXPECT_EQ(facts.temp.path.size(), 1024u);
  EXPECT_GT(facts.clock_ns, 0) << "what comes after it is still there";
}

// A torch as pip lays it down, of which only what is looked at is real.
void write_torch(const fs::path& package, const std::string& version_py, const char* string_type) {
  fs::create_directories(package / "lib");
  std::ofstream(package / "lib/libtorch_cpu.so") << "ELF";
  std::ofstream(package / "version.py") << version_py;
  std::ofstream(package / "lib/libc10.so")
      << "...more..._ZN3c105ErrorC2ENS_14SourceLocationE" << string_type << '\0';
}

TEST(Facts, Torch_is_found_without_Python_with_its_version_CUDA_and_ABI) {
  TempFolder folder;
  fs::path site = folder.path() / "venv/lib/python3.11/site-packages";
  write_torch(site / "torch", "__version__ = '2.4.0+cu124'\ndebug = False\ncuda = '12.4'\n",
              "NSt7__cxx1112basic_stringIcEE");
  fs::create_directories(site / "deepspeed-0.14.2.dist-info");
  fs::create_directories(site / "Transformers-4.18.0.dist-info");
  NodeFacts facts = look({"VIRTUAL_ENV=" + (folder.path() / "venv").string()});
  EXPECT_EQ(facts.torch.path, (site / "torch/lib").string());
  EXPECT_EQ(facts.torch.version, "2.4.0+cu124");
  EXPECT_EQ(facts.torch.cuda, "12.4");
  EXPECT_EQ(facts.torch.abi, "cxx11");
  EXPECT_EQ(facts.packages.at("deepspeed"), "0.14.2");
  EXPECT_EQ(facts.packages.at("transformers"), "4.18.0");

  // A folder that is named goes before it.
  write_torch(folder.path() / "other", "__version__ = '2.1.0+cu118'\n", "SsEE");
  NodeFacts named = look({"VIRTUAL_ENV=" + (folder.path() / "venv").string()}, "/opt/ds-ops",
                         {"/nowhere", (folder.path() / "other").string()});
  EXPECT_EQ(named.torch.version, "2.1.0+cu118");
  EXPECT_EQ(named.torch.cuda, "11.8");
  EXPECT_EQ(named.torch.abi, "old");
}

TEST(Facts, A_python3_that_is_a_script_leaves_torch_unknown) {
  TempFolder folder;
  fs::permissions(folder.write("bin/python3", "#!/bin/sh\nexit 1\n"), fs::perms::owner_all);
  NodeFacts facts = look({"PATH=" + (folder.path() / "bin").string()});
  EXPECT_EQ(facts.torch.path, "") << "pyenv's script may start any Python";
  EXPECT_FALSE(facts.torch.searched);
}

constexpr char kNvidiaSmi[] = R"(#!/bin/sh
case "$*" in
  --query-gpu=*)
    echo 'NVIDIA H100 80GB HBM3, 9.0, 81559, 550.54.15, Disabled'
    echo 'NVIDIA A100-SXM4-80GB, 8.0, 81920, 550.54.15, Enabled'
    echo 'Quadro K620, [N/A], 2000, 550.54.15, [N/A]' ;;
  *) printf '\n==NVSMI LOG==\n\nDriver Version       : 550.54.15\nCUDA Version         : 12.4\n' ;;
esac
)";

TEST(Facts, Devices_are_what_nvidia_smi_says) {
  TempFolder folder;
  fs::permissions(folder.write("bin/nvidia-smi", kNvidiaSmi), fs::perms::owner_all);
  NodeFacts facts = look({"PATH=" + (folder.path() / "bin").string() + ":/usr/bin:/bin"});
  ASSERT_EQ(facts.gpus.size(), 3u);
  EXPECT_EQ(facts.gpus[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(facts.gpus[0].compute_capability, "9.0");
  EXPECT_EQ(facts.gpus[0].memory_mib, 81559u);
  EXPECT_EQ(facts.gpus[0].mig, false);
  EXPECT_EQ(facts.gpus[1].mig, true);
  EXPECT_TRUE(facts.gpus_known);
  EXPECT_EQ(facts.gpus[2].compute_capability, "");
  EXPECT_EQ(facts.driver.version, "550.54.15");
  EXPECT_EQ(facts.driver.cuda, "12.4");
  EXPECT_EQ(facts.driver.error, "");
}

TEST(Facts, A_failing_nvidia_smi_is_told_and_a_hanging_one_is_not_waited_for) {
  TempFolder folder;
  auto program = folder.write("bin/nvidia-smi",
                              "#!/bin/sh\necho NVIDIA-SMI has failed because it could not "
                              "communicate with the driver\nexit 9\n");
  fs::permissions(program, fs::perms::owner_all);
  std::string path = "PATH=" + (folder.path() / "bin").string() + ":/usr/bin:/bin";
  NodeFacts failed = look({path});
  EXPECT_THAT(failed.driver.error, StartsWith("nvidia-smi failed: NVIDIA-SMI has failed because"));
  EXPECT_THAT(failed.gpus, IsEmpty());
  EXPECT_FALSE(failed.gpus_known);

  // It and its children keep the pipe open for longer than any test may take.
  folder.write("bin/nvidia-smi", "#!/bin/sh\nsleep 600 & sleep 600\n");
  NodeFacts hung = look({path});
  EXPECT_EQ(hung.driver.error, "nvidia-smi gave no answer within 5 s");
  EXPECT_FALSE(hung.gpus_known);

  // One that finds none says so, which is an answer.
  folder.write("bin/nvidia-smi", "#!/bin/sh\necho No devices were found\n");
  NodeFacts none = look({path});
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_TRUE(none.gpus_known);
}

TEST(Facts, A_lock_that_was_left_behind_is_found) {
  TempFolder folder;
  auto lock = folder.write("py311_cu124/fused_adam/lock", "");
  folder.write("py311_cu124/fused_adam/build.ninja", "");
  shell("touch -d '3 hours ago' " + lock.string());
  NodeFacts facts = look({"TORCH_EXTENSIONS_DIR=" + folder.path().string()});
  ASSERT_EQ(facts.locks.size(), 1u);
  EXPECT_EQ(facts.locks[0].path, lock.string());
  EXPECT_NEAR(static_cast<double>(facts.locks[0].age_s), 3 * 3600, 120);
}

TEST_F(Root, With_nothing_in_it_still_gives_what_the_kernel_knows) {
  NodeFacts facts = look_inside();
  EXPECT_FALSE(facts.arch.empty());
  EXPECT_GT(facts.cpu.cores, 0u);
  EXPECT_EQ(facts.libc.name, "");
  EXPECT_EQ(facts.libc.glibc, "");
  EXPECT_THAT(facts.libraries, IsEmpty());
  EXPECT_EQ(facts.torch.path, "");
  EXPECT_EQ(facts.memory.bytes, std::nullopt) << "there is no /proc";
  EXPECT_EQ(facts.memory.shm_bytes, std::nullopt) << "nor /dev/shm";
  EXPECT_EQ(facts.cpu.numa_nodes, std::nullopt) << "nor /sys";
  EXPECT_EQ(facts.driver.devices_on_bus, std::nullopt);
  EXPECT_FALSE(facts.gpus_known) << "no program and no kernel says that there is none";
  EXPECT_EQ(facts.prefix.at, "/");
  EXPECT_GT(facts.prefix.free_bytes, 0u);
}

TEST_F(Root, Without_a_cache_of_the_loader_gives_the_libraries_of_its_folders) {
  fs::copy_file("/lib/" + look().arch + "-linux-gnu/libc.so.6", path("lib64/libc.so.6"));
  fs::copy_file(DSI_OLD_LIBSTDCXX, path("usr/lib64/libstdc++.so.6"));
  write("usr/local/lib/libaio.so.1", "");
  NodeFacts facts = look_inside();
  EXPECT_EQ(facts.libc.glibc, gnu_get_libc_version());
  EXPECT_EQ(facts.libc.glibcxx, "3.4.20") << "3.4.9 is lower, as a number";
  EXPECT_EQ(facts.libc.cxxabi, "1.3.8");
  EXPECT_EQ(facts.libraries.at("libaio.so.1"), "/usr/local/lib/libaio.so.1");
  EXPECT_THAT(facts.absent_libraries, Contains("libcufile.so.0"));
  EXPECT_THAT(facts.absent_libraries, Not(Contains("libaio.so.1")));
}

TEST_F(Root, A_cache_of_the_loader_names_folders_that_nobody_would_search) {
  fs::copy_file(DSI_OLD_LIBSTDCXX, path("odd place/libstdc++.so.6"));
  write("etc/ld.so.conf", "/odd place\n");
  run({"/sbin/ldconfig", "-r", folder_.path()});
  ASSERT_TRUE(fs::exists(path("etc/ld.so.cache")));
  NodeFacts facts = look_inside();
  EXPECT_EQ(facts.libc.libstdcxx, "/odd place/libstdc++.so.6");
  EXPECT_EQ(facts.libc.glibcxx, "3.4.20");
}

// A conda environment brings a C++ library. What runs in it loads that one, be it newer or older.
TEST_F(Root, The_C_plus_plus_library_is_the_one_beside_the_torch_that_ops_load) {
  fs::path system = look().libc.libstdcxx;
  fs::copy_file(DSI_OLD_LIBSTDCXX, path("lib64/libstdc++.so.6"));
  write("opt/conda/bin/python3", "\177ELF");
  fs::permissions(path("opt/conda/bin/python3"), fs::perms::owner_all);
  write("opt/conda/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", "");
  write("opt/conda/lib/libaio.so.1", "");
  write("opt/conda/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", "");
  auto look_in = [&](const std::string& words) {
    return read_answer(run({"/bin/sh", "-c",
                            "env -i PATH=/opt/conda/bin:/usr/bin:/bin " + words +
                                " /usr/sbin/chroot \"$1\" /ds-facts abc /opt/ds-ops",
                            "sh", folder_.path()}));
  };
  NodeFacts without = look_in("");
  EXPECT_EQ(without.torch.path, "/opt/conda/lib/python3.11/site-packages/torch/lib");
  EXPECT_EQ(without.libc.glibcxx, "3.4.20") << "a venv brings none, so the system's counts";
  EXPECT_EQ(without.libraries.at("libaio.so.1"), "/opt/conda/lib/libaio.so.1");
  EXPECT_THAT(without.libraries.at("libcudart.so.12"), HasSubstr("/nvidia/cuda_runtime/lib/"));

  fs::copy_file(system, path("opt/conda/lib/libstdc++.so.6"));
  NodeFacts newer = look_in("");
  EXPECT_EQ(newer.libc.libstdcxx, "/opt/conda/lib/libstdc++.so.6");
  EXPECT_NE(newer.libc.glibcxx, "3.4.20") << "the op loads beside conda's, and works";

  // The other way round: the system's would do, and is not what is loaded.
  fs::copy_file(system, path("lib64/libstdc++.so.6"), fs::copy_options::overwrite_existing);
  fs::copy_file(DSI_OLD_LIBSTDCXX, path("opt/conda/lib/libstdc++.so.6"),
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(look_in("").libc.glibcxx, "3.4.20");

  // Where torch is the system's, LD_LIBRARY_PATH decides.
  fs::remove_all(path("opt/conda/lib/python3.11"));
  fs::copy_file(DSI_OLD_LIBSTDCXX, path("opt/gcc/libstdc++.so.6"));
  EXPECT_NE(look_in("").libc.glibcxx, "3.4.20");
  EXPECT_EQ(look_in("LD_LIBRARY_PATH=:/opt/gcc:/x").libc.libstdcxx, "/opt/gcc/libstdc++.so.6");
}

// Whatever a disk has made of it: an answer, and never a version that is not in the file.
TEST_F(Root, A_damaged_library_is_no_fact_and_no_crash) {
  std::string whole = *read_file(DSI_OLD_LIBSTDCXX);
  for (std::size_t i = 0; i < 64; ++i) {
    std::string damaged = whole;
    if (i % 2 == 0) {
      damaged.resize(whole.size() * i / 64);
    } else {
      for (std::size_t at = i; at < damaged.size(); at += 97) damaged[at] = static_cast<char>(~i);
    }
    write("lib64/libstdc++.so.6", damaged);
    write("etc/ld.so.cache", damaged);
    NodeFacts facts = look_inside();
    EXPECT_THAT(facts.libc.glibcxx, ::testing::AnyOf("", "3.4.9", "3.4.20")) << i;
  }
}

TEST_F(Root, Toolkits_are_found_by_their_own_files) {
  write("usr/local/cuda-12.4/version.json",
        R"({"cuda" : {"name" : "CUDA SDK", "version" : "12.4.1"}})");
  write("usr/local/cuda-12.4/bin/nvcc", "");
  write("usr/local/cuda-10.2/version.txt", "CUDA Version 10.2.89\n");
  write("usr/local/cuda-13/include/cuda.h", "#define X\n#define CUDA_VERSION 13000\n");
  write("usr/local/cuda-13/bin/nvcc", "");
  fs::create_directory_symlink("cuda-12.4", path("usr/local/cuda"));
  fs::create_directories(path("proc/self"));
  // canonical() asks /proc, so it has to be there.
  NodeFacts facts =
      read_answer(run({"unshare", "-m", "sh", "-c",
                       "mount -t proc proc \"$1/proc\" && exec /usr/sbin/chroot \"$1\" "
                       "/ds-facts abc /opt/ds-ops",
                       "sh", folder_.path()}));
  std::map<std::string, std::string> found;
  for (const NodeToolkit& toolkit : facts.toolkits) found[toolkit.path] = toolkit.version;
  EXPECT_EQ(found, (std::map<std::string, std::string>{{"/usr/local/cuda-12.4", "12.4.1"},
                                                       {"/usr/local/cuda-10.2", "10.2.89"},
                                                       {"/usr/local/cuda-13", "13.0"}}));
}

TEST_F(Root, Mount_options_and_space_are_those_of_the_prefix) {
  fs::create_directories(path("small"));
  fs::create_directories(path("proc"));
  auto look_at = [&](const std::string& options) {
    return read_answer(run({"unshare", "-m", "sh", "-c",
                            "mount -t tmpfs -o " + options +
                                " dsi \"$1/small\" && exec \"$1/ds-facts\" abc "
                                "\"$1/small/not/yet there\"",
                            "sh", folder_.path()}));
  };
  NodeFacts small = look_at("noexec,size=64k,nr_inodes=9");
  EXPECT_EQ(small.prefix.at, path("small").string());
  EXPECT_EQ(small.prefix.file_system, "tmpfs");
  EXPECT_EQ(small.prefix.source, "dsi");
  EXPECT_TRUE(small.prefix.no_exec);
  EXPECT_FALSE(small.prefix.read_only);
  EXPECT_TRUE(small.prefix.writable);
  EXPECT_EQ(small.prefix.free_bytes, 65536u);
  EXPECT_TRUE(small.prefix.counts_inodes);
  EXPECT_EQ(small.prefix.free_inodes, 8u);
  EXPECT_EQ(small.prefix.writable, true);
  // Nothing is free: 0, and not unknown.
  NodeFacts full = read_answer(run({"unshare", "-m", "sh", "-c",
                                    "mount -t tmpfs -o size=64k,nr_inodes=2 dsi \"$1/small\" && "
                                    "head -c 65536 /dev/zero >\"$1/small/x\" && "
                                    "exec \"$1/ds-facts\" abc \"$1/small/y\"",
                                    "sh", folder_.path()}));
  EXPECT_EQ(full.prefix.free_bytes, 0u);
  EXPECT_EQ(full.prefix.free_inodes, 0u);
  NodeFacts sealed = look_at("ro");
  EXPECT_TRUE(sealed.prefix.read_only);
  EXPECT_FALSE(sealed.prefix.writable);
  EXPECT_FALSE(sealed.prefix.no_exec);
}

// ---- As the head asks for it: through a shell, the program on standard input.

NodeFacts ask(const std::vector<std::string>& shell_words, const std::string& prefix,
              const std::string& environment, std::string* rest = nullptr,
              const std::string& arch = "") {
  TempFolder folder;
  FactsProgram program = *FactsProgram::load(DSI_FACTS);
  if (!arch.empty()) program.arch = arch;
  AgentBinary agent(std::string(64, 'd'), "binary");
  std::string script = look_command({"abc", prefix, false}, agent, &program);
  auto input = folder.write("input", program.bytes);
  std::string words;
  for (const std::string& word : shell_words) words += shell_quote(word) + " ";
  std::string out =
      shell("env -i " + environment + " " + words + shell_quote(script) + " <" + input.string());
  EXPECT_THAT(out, HasSubstr("\nDSI0 abc\narch=")) << "the look goes on behind it";
  std::size_t at = out.find("\nDSF1 abc ");
  if (at == std::string::npos) {
    ADD_FAILURE() << out;
    return {};
  }
  std::string line = out.substr(at + 10, out.find('\n', at + 1) - at - 10);
  if (rest != nullptr) *rest = line;
  return parse_node_facts(line).value_or(NodeFacts{});
}

TEST(Facts, A_host_of_another_architecture_is_not_made_to_run_it) {
  std::string rest;
  NodeFacts facts =
      ask({"/bin/sh", "-c"}, "", "HOME=/nowhere PATH=/usr/bin:/bin", &rest, "riscv64");
  EXPECT_FALSE(facts.known);
  EXPECT_EQ(rest, "other");
}

class FactsShells : public ::testing::TestWithParam<const char*> {};

TEST_P(FactsShells, All_run_it_and_nothing_is_left) {
  if (!fs::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not installed";
  TempFolder home;  // fish puts its settings there.
  TempFolder temp;
  NodeFacts facts = ask({GetParam(), "-c"}, "",
                        fmt::format("HOME={} PATH=/usr/bin:/bin TMPDIR={}", home.path().string(),
                                    temp.path().string()));
  EXPECT_TRUE(facts.known);
  EXPECT_EQ(facts.temp.path, temp.path().string());
  EXPECT_TRUE(fs::is_empty(temp.path()));
}
INSTANTIATE_TEST_SUITE_P(All, FactsShells,
                         ::testing::Values("/bin/sh", "/bin/bash", "/usr/bin/fish", "/bin/tcsh"));

TEST_F(Root, With_busybox_only_runs_it_from_standard_input) {
  if (!fs::exists("/bin/busybox")) GTEST_SKIP() << "busybox-static is not installed";
  fs::copy_file("/bin/busybox", path("bin/busybox"));
  run({"/usr/sbin/chroot", folder_.path(), "/bin/busybox", "--install", "-s", "/bin"});
  fs::create_directories(path("tmp"));
  run({"mknod", path("dev/null"), "c", "1", "3"});
  fs::create_directories(path("proc"));
  std::string root = folder_.path();
  NodeFacts facts = ask({"unshare", "-m", "sh", "-c",
                         "mount -t proc proc \"$1/proc\" && exec /usr/sbin/chroot \"$1\" "
                         "/bin/sh -c \"$2\"",
                         "sh", root},
                        "/opt/ds-ops", "PATH=/bin:/usr/bin:/usr/sbin:/sbin");
  EXPECT_TRUE(facts.known);
  EXPECT_FALSE(facts.arch.empty());
  EXPECT_EQ(facts.prefix.path, "/opt/ds-ops");
  EXPECT_FALSE(fs::exists(path("opt")));
  EXPECT_TRUE(fs::is_empty(path("tmp")));
}

TEST_F(Root, Where_programs_may_run_in_some_folders_only_one_of_those_is_taken) {
  std::string rest;
  std::string all =
      "mount -t tmpfs -o noexec dsi /tmp && mount -t tmpfs -o noexec dsi /dev/shm && ";
  // /var/tmp is left.
  NodeFacts facts =
      ask({"unshare", "-m", "sh", "-c", all + "mount -t tmpfs dsi /var/tmp && exec sh -c \"$0\""},
          "", "HOME=/nowhere PATH=/usr/bin:/bin:/usr/sbin:/sbin");
  EXPECT_TRUE(facts.known);
  // None is left.
  NodeFacts none = ask({"unshare", "-m", "sh", "-c",
                        all + "mount -t tmpfs -o noexec dsi /var/tmp && mount -t tmpfs -o noexec "
                              "dsi /run && exec sh -c \"$0\""},
                       "", "HOME=/nowhere PATH=/usr/bin:/bin:/usr/sbin:/sbin", &rest);
  EXPECT_FALSE(none.known);
  EXPECT_EQ(rest, "none");
}

}  // namespace
}  // namespace dsi
