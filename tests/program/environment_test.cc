// build --env with real Debian roots. They need a mirror of Debian and a Python index; what was
// fetched is kept in the user's own cache, so that a machine pays for it once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/bundle.h"
#include "orchestrator/elf.h"
#include "orchestrator/environment/debian.h"
#include "orchestrator/environment/lock.h"
#include "orchestrator/environment/root.h"
#include "orchestrator/environment/wheels.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

const DebianBase& bullseye() {
  return *find_base("bullseye");
}

ProcessResult run(const fs::path& cache, const fs::path& folder, std::vector<std::string> command) {
  LocalProcessRunner processes;
  auto result = processes.run({std::move(command),
                               folder,
                               {{"XDG_CACHE_HOME", cache.string()},
                                {"XDG_STATE_HOME", (folder / "state").string()},
                                {"XDG_CONFIG_HOME", (folder / "config").string()}},
                               {}},
                              Deadline::after(1500s), {});
  if (!result) {
    ADD_FAILURE() << result.error().what;
    return {};
  }
  return *result;
}

// XDG_CACHE_HOME of what is fetched: kept between runs.
fs::path kept_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  return cache != nullptr && cache[0] == '/' ? fs::path(cache)
                                             : fs::path(home != nullptr ? home : "/tmp") / ".cache";
}

// A lock for hosts with bullseye's C library, whatever this machine is. An error: no mirror, no
// index.
Result<EnvironmentLock> lock_of_bullseye(const fs::path& torch_folder) {
  LocalProcessRunner processes;
  Progress progress(Progress::detect(0));
  EnvironmentLock lock;
  lock.suite = bullseye().suite;
  lock.architecture = "amd64";
  lock.compiler = bullseye().compilers.back();
  DSI_TRY(Torch torch, inspect_torch(torch_folder));
  lock.torch = torch.version;
  DSI_TRY(lock.torch_sha256, torch_digest(torch));
  const fs::path cache = kept_cache() / "ds-install";
  DSI_TRY(DebianArchive archive,
          DebianArchive::open(bullseye(), lock.architecture, "", cache, processes, progress, {}));
  DSI_TRY(lock.packages, archive.resolve(packages_for(bullseye(), lock.compiler, false, {})));
  DSI_TRY(LockedPackage cmake,
          resolve_wheel("cmake>=3.23,<4", {"x86_64", "2.31", "", ""}, processes, {}));
  lock.wheels.push_back(std::move(cmake));
  return lock;
}

// What an op needs of the C library; "0" if nothing.
std::string glibc_of(const Manifest& manifest, const std::string& op) {
  for (const ManifestOp& row : manifest.ops) {
    if (row.name != op) continue;
    auto at = row.needs_symbols.find("GLIBC");
    return at == row.needs_symbols.end() ? "0" : at->second;
  }
  return "";
}

// What ds-probe of the bundle says of an op, run in the root. `libraries` is where torch lies.
std::string probed_in(const fs::path& root, const fs::path& bundle, const fs::path& folder,
                      const std::string& op, const fs::path& torch = {}) {
  auto payload = read_bundle(bundle, folder / "unpacked");
  if (!payload) return payload.error().what;
  fs::create_directories(folder / "release");
  auto place = [&](const std::string& path, const std::string& name) {
    for (const ManifestFile& file : payload->manifest.files) {
      if (file.path != path) continue;
      fs::copy_file(payload->content.at(file.sha256), folder / "release" / name,
                    fs::copy_options::overwrite_existing);
      fs::permissions(folder / "release" / name, fs::perms::owner_all);
    }
  };
  place("bin/ds-probe", "ds-probe");
  place("lib/libds_" + op + ".so", "op.so");
  LocalProcessRunner processes;
  std::vector<ShownFolder> shown = {{folder / "release", false}};
  // A torch of the index finds CUDA's libraries beside its own folder.
  if (!torch.empty()) shown.push_back({torch.parent_path(), false});
  Sandbox sandbox(processes, root, shown);
  auto ran = sandbox.run({{"sh", "-c", "./ds-probe ./op.so \"$0\" cpu 3>&1", op},
                          folder / "release",
                          {{"DS_PROBE_NONCE", "n"}, {"LD_LIBRARY_PATH", (torch / "lib").string()}},
                          {}},
                         Deadline::after(120s), {});
  if (!ran) return ran.error().what;
  return ran->out + ran->err;
}

class Environments : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write("torch/lib/libtorch_cpu.so", "");
    folder_.write("torch/lib/libc10.so", "");
    folder_.write("torch/include/torch/version.h", "#define TORCH_VERSION \"2.0.0\"\n");
    auto lock = lock_of_bullseye(at("torch"));
    if (!lock) GTEST_SKIP() << "no bullseye to build in: " << lock.error().what;
    lock_ = *lock;
    ASSERT_TRUE(write_file_atomically(at("ds-env.lock"), lock_text(lock_)));
  }
  fs::path at(const std::string& name) const { return folder_.path() / name; }

  void make(const std::string& root) {
    ProcessResult made = run(kept_cache(), folder_.path(),
                             {DSI_PROGRAM, "env", "--lock", "ds-env.lock", "--make", root});
    ASSERT_TRUE(made.ok()) << made.err;
  }
  // With a build cache of its own, so that nothing is taken from another root's build.
  Manifest build(const std::string& name, std::vector<std::string> where) {
    std::vector<std::string> command = {
        DSI_PROGRAM, "build", "--ops-dir", DSI_PROGRAM_PLAIN_OPS, "--ops", "weigh",
        "--torch",   "torch", "-o",        name + ".tar.zst"};
    command.insert(command.end(), where.begin(), where.end());
    ProcessResult built = run(at(name + " cache"), folder_.path(), command);
    EXPECT_TRUE(built.ok()) << built.err;
    auto payload = read_bundle(at(name + ".tar.zst"), at(name + " read"));
    return payload ? payload->manifest : Manifest{};
  }

  TempFolder folder_;
  EnvironmentLock lock_;
};

TEST_F(Environments,
       Two_roots_of_one_lock_build_the_same_bytes_which_run_where_this_machine_s_do_not) {
  make("one");
  make("somewhere else/deeper/two");
  Manifest one = build("first", {"--env", "one"});
  Manifest two = build("second", {"--env", "somewhere else/deeper/two"});
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(sha256_file(at("first.tar.zst")).value_or("1"),
            sha256_file(at("second.tar.zst")).value_or("2"));
  EXPECT_EQ(one.built_with["environment"], fingerprint(lock_));
  EXPECT_THAT(one.built_with["compiler"], HasSubstr(" 10."));

  EXPECT_FALSE(version_less("2.31", glibc_of(one, "weigh"))) << glibc_of(one, "weigh");
  EXPECT_THAT(probed_in(at("one"), at("first.tar.zst"), folder_.path(), "weigh"),
              HasSubstr("n result 0 32"));

  // The same op of this machine's compiler, where that is newer, is what the root is there for.
  Manifest here = build("third", {});
  EXPECT_EQ(here.built_with.count("environment"), 0u);
  if (version_less("2.31", glibc_of(here, "weigh"))) {
    EXPECT_THAT(probed_in(at("one"), at("third.tar.zst"), folder_.path(), "weigh"),
                HasSubstr("GLIBC_" + glibc_of(here, "weigh")));
  }
}

TEST_F(Environments, A_lock_that_the_mirror_no_more_has_names_the_package_and_leaves_nothing) {
  EnvironmentLock moved = lock_;
  // Of one package another content, of one another version.
  auto dash = std::find_if(moved.packages.begin(), moved.packages.end(),
                           [](const LockedPackage& p) { return p.name == "dash"; });
  ASSERT_NE(dash, moved.packages.end());
  const LockedPackage right = *dash;
  dash->sha256 = std::string(64, '0');
  ASSERT_TRUE(write_file_atomically(at("moved.lock"), lock_text(moved)));
  std::vector<std::string> command = {DSI_PROGRAM, "env", "--lock", "moved.lock", "--make", "root"};
  ProcessResult content = run(kept_cache(), folder_.path(), command);
  EXPECT_EQ(content.exit_code, 3);
  EXPECT_THAT(content.err, AllOf(HasSubstr("dash " + right.version),
                                 HasSubstr("is not the one of the lock"), HasSubstr("--mirror")));
  dash->version = "0.1-1";
  ASSERT_TRUE(write_file_atomically(at("moved.lock"), lock_text(moved)));
  ProcessResult version = run(kept_cache(), folder_.path(), command);
  EXPECT_EQ(version.exit_code, 3);
  EXPECT_THAT(version.err, AllOf(HasSubstr("dash 0.1-1 of the lock"), HasSubstr("any more")));
  for (fs::directory_iterator it(folder_.path()), end; it != end; ++it) {
    EXPECT_FALSE(it->path().filename().string().starts_with("root")) << it->path();
  }
}

TEST_F(Environments, Another_torch_than_the_lock_s_is_refused) {
  fs::create_directories(at("root"));
  ASSERT_TRUE(write_file_atomically(at("root/ds-env.lock"), lock_text(lock_)));
  folder_.write("torch/include/torch/version.h", "#define TORCH_VERSION \"2.0.1\"\n");
  ProcessResult built =
      run(at("cache"), folder_.path(), {DSI_PROGRAM, "build", "--env", "root", "--torch", "torch"});
  EXPECT_EQ(built.exit_code, 3);
  EXPECT_THAT(built.err, AllOf(HasSubstr("for torch 2.0.0"), HasSubstr("is torch 2.0.1"),
                               HasSubstr("--torch")));
}

TEST(Environment, A_folder_that_is_no_environment_is_said) {
  TempFolder folder;
  ProcessResult built =
      run(folder.path(), folder.path(), {DSI_PROGRAM, "build", "--env", folder.path().string()});
  EXPECT_EQ(built.exit_code, 3);
  EXPECT_THAT(built.err,
              AllOf(HasSubstr("is no environment"), HasSubstr("env -H hostfile --make")));
}

TEST(Environment, A_mirror_that_does_not_answer_is_said) {
  TempFolder folder;
  ProcessResult made = run(folder.path(), folder.path(),
                           {DSI_PROGRAM, "env", "-l", "--mirror", "file:/nonexistent/debian"});
  EXPECT_EQ(made.exit_code, 3) << made.out << made.err;
  EXPECT_THAT(made.err, AllOf(HasSubstr("cannot be read from the mirror file:/nonexistent/debian"),
                              HasSubstr("--mirror URL")));
  EXPECT_FALSE(fs::exists(folder.path() / "ds-env.lock"));
}

// Minutes, and a torch of the index: DSI_TEST_ENVIRONMENT_TORCH names its folder.
TEST(Environment, Every_op_against_a_torch_of_the_index_runs_in_bullseye_on_request) {
  const char* torch = std::getenv("DSI_TEST_ENVIRONMENT_TORCH");
  if (torch == nullptr) GTEST_SKIP() << "DSI_TEST_ENVIRONMENT_TORCH names no torch";
  TempFolder folder;
  auto lock = lock_of_bullseye(torch);
  ASSERT_TRUE(lock) << lock.error().what;
  ASSERT_TRUE(write_file_atomically(folder.path() / "ds-env.lock", lock_text(*lock)));
  std::string digests[2];
  Manifest manifest;
  for (int i = 0; i < 2; ++i) {
    const std::string root = i == 0 ? "one" : "other/two";
    ProcessResult made = run(kept_cache(), folder.path(),
                             {DSI_PROGRAM, "env", "--lock", "ds-env.lock", "--make", root});
    ASSERT_TRUE(made.ok()) << made.err;
    ProcessResult built =
        run(folder.path() / ("cache" + root), folder.path(),
            {DSI_PROGRAM, "build", "--env", root, "--torch", torch, "-o", "ops.tar.zst"});
    ASSERT_TRUE(built.ok()) << built.err;
    digests[i] = sha256_file(folder.path() / "ops.tar.zst").value_or("");
    auto payload = read_bundle(folder.path() / "ops.tar.zst", folder.path() / "read");
    ASSERT_TRUE(payload);
    manifest = payload->manifest;
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_GE(manifest.ops.size(), 7u);
  for (const ManifestOp& op : manifest.ops) {
    EXPECT_FALSE(version_less("2.31", glibc_of(manifest, op.name)))
        << op.name << " needs " << glibc_of(manifest, op.name);
    const std::string said = probed_in(folder.path() / "one", folder.path() / "ops.tar.zst",
                                       folder.path(), op.name, torch);
    // oneCCL is nowhere, and ccl_comm says so of itself.
    EXPECT_THAT(said, HasSubstr("n result 0")) << op.name;
  }
}

}  // namespace
}  // namespace dsi
