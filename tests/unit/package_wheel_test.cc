// Wheels and the sources they are built from: read, checked, repacked; real pip where it is asked.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/fatbin.h"
#include "orchestrator/package/build_inputs.h"
#include "orchestrator/package/source.h"
#include "orchestrator/package/wheel_build.h"
#include "orchestrator/package/wheel_file.h"
#include "tests/unit/temp_folder.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

ProcessResult run(std::vector<std::string> argv, const fs::path& folder = {},
                  std::vector<std::pair<std::string, std::string>> environment = {}) {
  LocalProcessRunner processes;
  auto result =
      processes.run({std::move(argv), folder, std::move(environment)}, Deadline::after(120s), {});
  EXPECT_TRUE(result) << (result ? "" : result.error().what);
  return result ? *result : ProcessResult{};
}

// A wheel with one compiled module, one that only looks like one, a script and pure Python; made by
// Python's zipfile, compressed, with the times of now. `damage` is Python that changes `files`.
constexpr char kMakeWheel[] = R"py(
import base64, hashlib, os, sys, zipfile
target, library, damage = sys.argv[1:4]
code = open(library, "rb").read()
files = {
  "pkg/__init__.py": b"", "pkg/core.cpython-311-x86_64-linux-gnu.so": code,
  "pkg/libs/helper.so": code, "pkg/a,b.txt": b"comma",
  "pkg-1.0.data/scripts/pkg-tool": b"#!python\n",
  "pkg-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: Pkg\nVersion: 1.0\n"
    b"Requires-Dist: hjson\nRequires-Dist: tqdm ;\n  extra == 'x'\n\nName: not a header\n",
  "pkg-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
    b"Tag: cp311.cp312-abi3-linux_x86_64\n",
}
rows = ""
for name in sorted(files):
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
    rows += '"%s",sha256=%s,%d\n' % (name, digest, len(files[name]))
files["pkg-1.0.dist-info/RECORD"] = (rows + "pkg-1.0.dist-info/RECORD,,\n").encode()
exec(damage)
with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as z:
    for name in files:
        info = zipfile.ZipInfo(name, (2020, 5, 4, 3, 2, 2))
        info.external_attr = (0o100755 if "scripts" in name else 0o100664) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        z.writestr(info, files[name])
)py";

class WheelFile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    library_ = new TempFolder;
    auto source = library_->write("core.c",
                                  "#include <math.h>\nvoid *PyInit_core(void) { return 0; }\n"
                                  "double f(double x) { return exp(x); }\n");
    ProcessResult made = run({"cc", "-shared", "-fPIC", "-o",
                              (library_->path() / "core.so").string(), source.string(), "-lm"});
    ASSERT_TRUE(made.ok()) << made.err;
  }
  static void TearDownTestSuite() {
    delete library_;
    library_ = nullptr;
  }

  fs::path make(const std::string& damage = "",
                const std::string& name = "pkg-1.0-cp311.cp312-abi3-linux_x86_64.whl") {
    fs::path wheel = folder_.path() / name;
    ProcessResult made = run({"python3", "-c", kMakeWheel, wheel.string(),
                              (library_->path() / "core.so").string(), damage});
    EXPECT_TRUE(made.ok()) << made.err;
    return wheel;
  }
  Result<WheelContent> open(const fs::path& wheel) {
    fs::path tree = folder_.path() / fmt::format("tree{}", trees_++);
    fs::create_directories(tree);
    return open_wheel(wheel, tree);
  }

  static inline TempFolder* library_ = nullptr;
  TempFolder folder_;
  int trees_ = 0;
};

TEST_F(WheelFile, Says_what_it_is_and_what_it_asks_for) {
  auto content = open(make());
  ASSERT_TRUE(content) << content.error().what;
  EXPECT_EQ(content->name, "pkg");
  EXPECT_EQ(content->version, "1.0");
  EXPECT_THAT(content->tags, ElementsAre("cp311-abi3-linux_x86_64", "cp312-abi3-linux_x86_64"));
  EXPECT_THAT(content->requires_dist, ElementsAre("hjson", "tqdm ;  extra == 'x'"));
  // pkg/libs/helper.so has the same bytes and no PyInit_helper.
  ASSERT_EQ(content->modules.size(), 1u);
  EXPECT_EQ(content->modules[0].name, "pkg.core");
  EXPECT_TRUE(content->modules[0].needs_symbols.contains("GLIBC"));
  EXPECT_TRUE(content->modules[0].compute_capabilities.empty());
  EXPECT_TRUE(content->needs_symbols.contains("GLIBC"));
  EXPECT_FALSE(content->uses_torch);
}

TEST_F(WheelFile, Repacked_it_has_the_same_bytes_whenever_and_wherever_it_is_made) {
  const fs::path wheel = make();
  std::vector<std::string> digests;
  for (const char* zone : {"UTC", "Asia/Kathmandu"}) {
    ::setenv("TZ", zone, 1);
    const fs::path tree = folder_.path() / fmt::format("packed-{}", digests.size());
    fs::create_directories(tree);
    ASSERT_TRUE(open_wheel(wheel, tree));
    const fs::path packed = folder_.path() / fmt::format("{}", digests.size()) / wheel.filename();
    fs::create_directories(packed.parent_path());
    auto done = pack_wheel(tree, packed);
    ASSERT_TRUE(done) << done.error().what;
    digests.push_back(sha256_file(packed).value());
  }
  ::unsetenv("TZ");
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(WheelFile, Repacked_it_is_a_wheel_that_Python_and_pip_take) {
  const fs::path wheel = make();
  const fs::path tree = folder_.path() / "tree";
  fs::create_directories(tree);
  ASSERT_TRUE(open_wheel(wheel, tree));
  const fs::path packed = folder_.path() / "packed" / wheel.filename();
  fs::create_directories(packed.parent_path());
  ASSERT_TRUE(pack_wheel(tree, packed));
  auto again = open(packed);
  ASSERT_TRUE(again) << again.error().what;
  ProcessResult listed = run({"python3", "-c",
                              "import sys, zipfile\n"
                              "z = zipfile.ZipFile(sys.argv[1])\n"
                              "assert z.testzip() is None\n"
                              "for i in z.infolist(): print(i.filename, i.compress_type, "
                              "oct(i.external_attr >> 16), i.date_time[0])",
                              packed.string()});
  ASSERT_TRUE(listed.ok()) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("pkg-1.0.data/scripts/pkg-tool 0 0o100755 1980"));
  EXPECT_THAT(listed.out, HasSubstr("pkg/__init__.py 0 0o100644 1980"));
  EXPECT_TRUE(listed.out.ends_with("pkg-1.0.dist-info/RECORD 0 0o100644 1980\n")) << listed.out;
  ProcessResult installed =
      run({"/usr/bin/python3", "-m", "pip", "install", "--no-index", "--no-deps", "--quiet",
           "--target", (folder_.path() / "site").string(), packed.string()},
          {}, {{"PIP_DISABLE_PIP_VERSION_CHECK", "1"}});
  // Debian's 3.11 on x86_64 is what the tag is for; elsewhere pip refuses the tag, not the file.
  if (!installed.ok()) {
    EXPECT_THAT(installed.err, HasSubstr("not a supported wheel on this platform"));
  } else {
    EXPECT_TRUE(fs::exists(folder_.path() / "site/pkg/a,b.txt"));
  }
}

TEST_F(WheelFile, One_that_is_not_what_its_RECORD_says_is_refused) {
  for (const auto& [damage, word] : std::vector<std::pair<std::string, std::string>>{
           {"files['pkg/__init__.py'] = b'changed'", "not what its RECORD says"},
           {"files['pkg/more.py'] = b''", "not in its RECORD"},
           {"del files['pkg/__init__.py']", "in its RECORD and not in it"},
           {"del files['pkg-1.0.dist-info/RECORD']", "no RECORD"},
           {"files['../out.py'] = b''", "no file of its own"},
           {"files['/etc/out.py'] = b''", "no file of its own"},
           {"files = {'x': b''}", "no .dist-info"},
       }) {
    auto content = open(make(damage));
    ASSERT_FALSE(content) << damage;
    EXPECT_THAT(content.error().what, HasSubstr(word)) << damage;
    EXPECT_FALSE(fs::exists(folder_.path() / "out.py"));
  }
  EXPECT_FALSE(open(make("", "other-1.0-cp311-abi3-linux_x86_64.whl")));
  EXPECT_FALSE(open(folder_.write("pkg-1.0-py3-none-any.whl", "no zip")));
}

TEST(Tags, Compressed_ones_are_expanded) {
  EXPECT_THAT(expand_tag("py2.py3-none-any"), ElementsAre("py2-none-any", "py3-none-any"));
  EXPECT_THAT(expand_tag("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"),
              ElementsAre("cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64"));
}

// ---- device code

TEST(Fatbin, Says_what_nvcc_was_told) {
  if (!run({"sh", "-c", "command -v nvcc"}).ok()) GTEST_SKIP() << "there is no nvcc here";
  TempFolder folder;
  auto source = folder.write("x.cu",
                             "__global__ void k(float* p) { p[threadIdx.x] *= 2.f; }\n"
                             "void run(float* p) { k<<<1, 32>>>(p); }\n");
  const fs::path library = folder.path() / "x.so";
  ProcessResult made =
      run({"nvcc", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-gencode",
           "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90a,code=sm_90a", "-gencode",
           "arch=compute_90,code=compute_90", source.string(), "-o", library.string()});
  ASSERT_TRUE(made.ok()) << made.err;
  auto capabilities = read_compute_capabilities(library);
  ASSERT_TRUE(capabilities);
  EXPECT_THAT(*capabilities, ElementsAre("8.0", "9.0+PTX", "9.0a"));
}

TEST(Fatbin, Bytes_that_are_none_harm_nobody) {
  std::string magic("\x50\xed\x55\xba\x01\x00\x10\x00\xff\xff\xff\xff\xff\xff\xff\xff", 16);
  EXPECT_TRUE(compute_capabilities_in("").empty());
  EXPECT_TRUE(compute_capabilities_in(magic).empty());
  EXPECT_TRUE(compute_capabilities_in(magic + std::string(100, '\xff')).empty());
  std::string small = magic;
  small.replace(8, 8, std::string("\x30\0\0\0\0\0\0\0", 8));
  EXPECT_TRUE(compute_capabilities_in(small + std::string(48, '\xff')).empty());
}

// ---- sources

class Source : public testing::Test {
 protected:
  // A project with everything that a build leaves behind.
  Source() {
    folder_.write("p/setup.py",
                  "from setuptools import setup\nsetup(name='proj', version='1.2', "
                  "packages=['proj'])\n");
    folder_.write("p/proj/__init__.py", "x = 1\n");
    folder_.write("p/csrc/a.h", "// a\n");
    fs::create_directory_symlink("../csrc", folder_.path() / "p/proj/csrc");
    folder_.write("p/build/lib/old.o", "old");
    folder_.write("p/dist/old.whl", "old");
    folder_.write("p/proj.egg-info/PKG-INFO", "old");
    folder_.write("p/proj/__pycache__/x.pyc", "old");
    folder_.write("p/.git/HEAD", "ref: refs/heads/x\n");
    folder_.write("p/proj/build/keep.py", "part of the source\n");
  }
  PackageSource source() { return read_source((folder_.path() / "p").string()).value(); }
  TempFolder folder_;
};

TEST_F(Source, Is_a_folder_an_sdist_a_wheel_or_a_requirement) {
  EXPECT_EQ(source().kind, SourceKind::kFolder);
  EXPECT_EQ(read_source(folder_.write("d-1.tar.gz", "").string())->kind, SourceKind::kSdist);
  EXPECT_EQ(read_source(folder_.write("d-1-py3-none-any.whl", "").string())->kind,
            SourceKind::kWheel);
  auto requirement = read_source("DeepSpeed[all]==0.19.8");
  ASSERT_TRUE(requirement);
  EXPECT_EQ(requirement->kind, SourceKind::kRequirement);
  EXPECT_EQ(requirement_name(requirement->requirement), "deepspeed");
  for (const char* bad : {"./none", "none/", "x.whl", "x-1.tar.gz", "-rf", "a b/c", "$(x)"}) {
    EXPECT_FALSE(read_source(bad)) << bad;
  }
  auto empty = read_source((folder_.path() / "p/csrc").string());
  ASSERT_FALSE(empty);
  EXPECT_THAT(empty.error().what, HasSubstr("neither setup.py nor pyproject.toml"));
}

TEST_F(Source, Is_copied_without_what_a_build_left_in_it) {
  const fs::path copy = folder_.path() / "copy";
  auto copied = copy_source(source(), copy, false);
  ASSERT_TRUE(copied) << copied.error().what;
  EXPECT_TRUE(fs::exists(copy / "setup.py"));
  EXPECT_TRUE(fs::exists(copy / "proj/csrc/a.h"));
  EXPECT_TRUE(fs::is_symlink(copy / "proj/csrc"));
  EXPECT_TRUE(fs::exists(copy / "proj/build/keep.py"));
  for (const char* gone : {"build", "dist", "proj.egg-info", "proj/__pycache__", ".git"}) {
    EXPECT_FALSE(fs::exists(copy / gone)) << gone;
  }
  const fs::path with_build = folder_.path() / "with build";
  ASSERT_TRUE(copy_source(source(), with_build, true));
  EXPECT_TRUE(fs::exists(with_build / "build/lib/old.o"));
}

TEST_F(Source, Has_a_digest_of_what_is_copied_and_of_nothing_else) {
  const std::string before = digest_source(source(), false).value();
  folder_.write("p/build/lib/new.o", "new");
  folder_.write("p/proj/__pycache__/y.pyc", "new");
  EXPECT_EQ(digest_source(source(), false).value(), before);
  EXPECT_NE(digest_source(source(), true).value(), before);
  folder_.write("p/csrc/a.h", "// b\n");
  const std::string after = digest_source(source(), false).value();
  EXPECT_NE(after, before);
  ::chmod((folder_.path() / "p/csrc/a.h").c_str(), 0755);
  EXPECT_NE(digest_source(source(), false).value(), after);
}

TEST_F(Source, A_link_out_of_the_tree_is_copied_as_what_it_leads_to) {
  folder_.write("elsewhere/b.h", "// b\n");
  fs::create_directory_symlink("../elsewhere", folder_.path() / "p/linked");
  const fs::path copy = folder_.path() / "copy";
  ASSERT_TRUE(copy_source(source(), copy, false));
  EXPECT_FALSE(fs::is_symlink(copy / "linked"));
  EXPECT_TRUE(fs::exists(copy / "linked/b.h"));
  fs::create_symlink("../nowhere", folder_.path() / "p/dangling");
  auto dangling = copy_source(source(), folder_.path() / "copy2", false);
  ASSERT_FALSE(dangling);
  EXPECT_THAT(dangling.error().help, HasSubstr("-e"));
}

TEST_F(Source, A_link_out_of_the_tree_by_way_of_others_is_copied_as_what_it_leads_to) {
  folder_.write("elsewhere/b.h", "// b\n");
  folder_.write("c.h", "// c\n");
  fs::create_directories(folder_.path() / "p/deep/er");
  // By its letters the second one stays in the tree, and so does the third.
  fs::create_directory_symlink("../..", folder_.path() / "p/deep/er/top");
  fs::create_directory_symlink("deep/er/top/../elsewhere", folder_.path() / "p/out");
  fs::create_directory_symlink("../p/csrc", folder_.path() / "p/round");
  fs::create_symlink("../c.h", folder_.path() / "elsewhere/c.h");
  const fs::path copy = folder_.path() / "copies/copy";
  auto copied = copy_source(source(), copy, false);
  ASSERT_TRUE(copied) << copied.error().what;
  EXPECT_TRUE(fs::is_symlink(copy / "deep/er/top"));
  EXPECT_FALSE(fs::is_symlink(copy / "out"));
  EXPECT_TRUE(fs::exists(copy / "out/b.h"));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(copy / "out/c.h")));
  EXPECT_TRUE(fs::exists(copy / "round/a.h"));
}

// Each member of the archive is a tuple: name, and content or what it links to.
constexpr char kMakeTar[] = R"py(
import io, sys, tarfile
with tarfile.open(sys.argv[1], "w:gz") as t:
    for kind, name, value in eval(sys.argv[2]):
        i = tarfile.TarInfo(name)
        if kind == "file":
            i.size = len(value)
            t.addfile(i, io.BytesIO(value.encode()))
            continue
        i.type = tarfile.SYMTYPE if kind == "link" else tarfile.LNKTYPE
        i.linkname = value
        t.addfile(i)
)py";

class Sdist : public Source {
 protected:
  Result<void> unpack(const std::string& name, const std::string& members) {
    ProcessResult made =
        run({"python3", "-c", kMakeTar, (folder_.path() / (name + ".tar.gz")).string(), members});
    EXPECT_TRUE(made.ok()) << made.err;
    return copy_source(read_source((folder_.path() / (name + ".tar.gz")).string()).value(),
                       folder_.path() / "deep/er" / name, false);
  }
};

TEST_F(Sdist, Cannot_write_outside_its_folder_or_lead_out_of_it) {
  folder_.write("deep/secret", "not the project's");
  const std::pair<const char*, const char*> archives[] = {
      {"up", "[('file', 'a/../../out.py', 'x')]"},
      {"absolute", "[('file', '/a/setup.py', 'x'), ('link', 'a/l', '/etc')]"},
      {"above", "[('link', 'a/l', '../..')]"},
      {"through", "[('link', 'a/l', '../..'), ('file', 'a/l/out.py', 'x')]"},
      {"folder", "[('file', 'a/d/x', 'x'), ('link', 'a/l', 'd'), ('file', 'a/l/y', 'x')]"},
      // Each of the two is inside by its letters.
      {"two",
       "[('file', 'a/b/c/x', 'x'), ('link', 'a/b/c/s', '../..'),"
       " ('link', 'a/l', 'b/c/s/../secret')]"},
      {"later",
       "[('link', 'a/l', 'b/c/s/../secret'), ('file', 'a/b/c/x', 'x'),"
       " ('link', 'a/b/c/s', '../..')]"},
      {"round", "[('link', 'a/l', '../round/setup.py'), ('file', 'a/setup.py', 'x')]"},
      {"loop", "[('link', 'a/l', 'm'), ('link', 'a/m', 'l')]"},
      {"hard", "[('hard', 'a/l', 'a/../../secret')]"},
      {"hard-absolute", "[('hard', 'a/l', '/etc/passwd')]"},
      {"hard-link", "[('link', 'a/m', '../../secret'), ('hard', 'a/l', 'a/m')]"},
      {"hard-through", "[('link', 'a/m', '../..'), ('hard', 'a/l', 'a/m/secret')]"},
      {"hard-none", "[('hard', 'a/l', 'a/nothing')]"},
  };
  for (const auto& [name, members] : archives) {
    auto done = unpack(name, members);
    ASSERT_FALSE(done) << name;
    EXPECT_THAT(done.error().what, HasSubstr(std::string(name) + ".tar.gz")) << name;
  }
  EXPECT_FALSE(fs::exists(folder_.path() / "out.py"));
  EXPECT_FALSE(fs::exists(folder_.path() / "deep/out.py"));
  EXPECT_FALSE(fs::exists(folder_.path() / "deep/er/out.py"));
}

TEST_F(Sdist, Says_how_it_is_built) {
  ASSERT_TRUE(unpack("a-1",
                     "[('file', 'a-1/setup.py', 'the one'), ('file', 'a-1/a/setup.py', 'other'),"
                     " ('file', 'a-1/pyproject.toml', 'two')]"));
  PackageSource source = read_source((folder_.path() / "a-1.tar.gz").string()).value();
  EXPECT_EQ(read_build_files(source).value(), "the one\ntwo\n");
}

TEST_F(Sdist, Has_its_own_links) {
  auto done = unpack("good-1",
                     "[('link', 'good-1/early', 'csrc/a.h'), ('file', 'good-1/csrc/a.h', 'a'),"
                     " ('link', 'good-1/pkg/csrc', '../csrc'), ('link', 'good-1/none', 'absent'),"
                     " ('link', 'good-1/twice', 'pkg/csrc/a.h'),"
                     " ('hard', 'good-1/pkg/b.h', 'good-1/csrc/a.h')]");
  ASSERT_TRUE(done) << done.error().what;
  const fs::path tree = folder_.path() / "deep/er/good-1";
  for (const char* name : {"early", "csrc/a.h", "pkg/csrc/a.h", "twice", "pkg/b.h"}) {
    EXPECT_EQ(read_file(tree / name).value_or("unreadable"), "a") << name;
  }
  EXPECT_TRUE(fs::is_symlink(tree / "none"));
}

// ---- the build, with the real pip

class WheelBuilding : public Source {
 protected:
  WheelBuilding() {
    auto python = find_build_python(processes_, "/usr/bin/python3", {});
    EXPECT_TRUE(python) << python.error().what;
    if (python) request_.python = *python;
    request_.source = source();
  }
  Result<WheelBuild> build() {
    Progress progress({{false, false, 80}, 0, null_});
    return build_wheel(request_, folder_.path() / "cache", processes_, progress, {});
  }
  ~WheelBuilding() override { std::fclose(null_); }
  std::FILE* null_ = std::fopen("/dev/null", "w");
  LocalProcessRunner processes_;
  WheelRequest request_;
};

TEST_F(WheelBuilding, The_same_source_is_built_once_and_its_tree_is_only_read) {
  if (!run({"/usr/bin/python3", "-c", "import setuptools, wheel"}).ok()) {
    GTEST_SKIP() << "Debian's python3-setuptools and python3-wheel are not here";
  }
  auto listing = [&] {
    return run({"sh", "-c", "find p | sort; find p -newer cache"}, folder_.path()).out;
  };
  fs::create_directories(folder_.path() / "cache");
  const std::string before = listing();
  auto first = build();
  ASSERT_TRUE(first) << first.error().what;
  EXPECT_TRUE(first->fresh);
  EXPECT_EQ(first->wheel.filename(), "proj-1.2-py3-none-any.whl");
  EXPECT_EQ(listing(), before);
  auto second = build();
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->fresh);
  EXPECT_EQ(second->wheel, first->wheel);
  folder_.write("p/proj/__init__.py", "x = 2\n");
  EXPECT_TRUE(build()->fresh);
  request_.environment["DS_BUILD_OPS"] = "1";
  EXPECT_TRUE(build()->fresh);
}

TEST_F(WheelBuilding, All_that_goes_into_a_wheel_is_in_the_key_of_its_build) {
  folder_.write("p/setup.py", "import os\nos.environ.get('SOME_SWITCH', os.environ['PATH'])\n");
  request_.name = "my-proj";
  const fs::path cache = folder_.path() / "cache";
  auto key = [&] { return wheel_folder(request_, cache).value(); };
  const fs::path first = key();
  EXPECT_EQ(key(), first);
  for (const char* name : {"CC", "CXX", "CFLAGS", "LDFLAGS", "NVCC_PREPEND_FLAGS", "CUDAHOSTCXX",
                           "TORCH_CUDA_ARCH_LIST", "CMAKE_ARGS", "PKG_CONFIG_PATH",
                           "LD_LIBRARY_PATH", "DS_BUILD_OPS", "MY_PROJ_FAST", "SOME_SWITCH"}) {
    const char* before = std::getenv(name);
    const std::string kept = before != nullptr ? before : "";
    ::setenv(name, "/another/one", 1);
    EXPECT_NE(key(), first) << name;
    before != nullptr ? ::setenv(name, kept.c_str(), 1) : ::unsetenv(name);
  }
  for (const char* name : {"MAX_JOBS", "CMAKE_CXX_COMPILER_LAUNCHER", "OTHER_SWITCH",
                           "CUDA_VISIBLE_DEVICES", "NVCC_THREADS"}) {
    ::setenv(name, "7", 1);
    EXPECT_EQ(key(), first) << name;
    ::unsetenv(name);
  }
  // What is installed beside it: the build imports it, and its headers may be compiled in.
  for (const char* name : {"setuptools", "pybind11", "numpy"}) {
    auto kept = request_.python.installed;
    request_.python.installed[name] = "0.0.1";
    EXPECT_NE(key(), first) << name;
    request_.python.installed = kept;
  }
  request_.python.torch = "9.9";
  EXPECT_NE(key(), first);
}

TEST_F(WheelBuilding, Another_compiler_of_the_same_name_is_another_build) {
  const fs::path tool = folder_.write("bin/c++", "#!/bin/sh\nexec /usr/bin/c++ \"$@\"\n");
  ::chmod(tool.c_str(), 0755);
  const std::string path = std::getenv("PATH");
  const fs::path cache = folder_.path() / "cache";
  const fs::path first = wheel_folder(request_, cache).value();
  ::setenv("PATH", (tool.parent_path().string() + ":" + path).c_str(), 1);
  const fs::path other = wheel_folder(request_, cache).value();
  EXPECT_NE(other, first);
  folder_.write("bin/c++", "#!/bin/sh\nexec /usr/bin/c++ -O1 \"$@\"\n");
  EXPECT_NE(wheel_folder(request_, cache).value(), other);
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(wheel_folder(request_, cache).value(), first);
}

// torch looks for ninja on the PATH, where an environment that nobody activated is not.
TEST_F(WheelBuilding, Programs_of_the_environment_are_found_without_activating_it) {
  if (!run({"/usr/bin/python3", "-c", "import setuptools, wheel"}).ok()) {
    GTEST_SKIP() << "Debian's python3-setuptools and python3-wheel are not here";
  }
  ASSERT_TRUE(run({"/usr/bin/python3", "-m", "venv", "--without-pip", "--system-site-packages",
                   (folder_.path() / "env").string()})
                  .ok());
  auto python = find_build_python(processes_, (folder_.path() / "env/bin/python").string(), {});
  ASSERT_TRUE(python) << python.error().what;
  request_.python = *python;
  const fs::path cache = folder_.path() / "cache";
  folder_.write("p/setup.py",
                "import subprocess\nfrom setuptools import setup\n"
                "print(subprocess.check_output(['ninja', '--version']))\n"
                "setup(name='proj', version='1.2', packages=['proj'])\n");
  const fs::path without = wheel_folder(request_, cache).value();
  const fs::path ninja = folder_.write("env/bin/ninja", "#!/bin/sh\necho the one of env\n");
  ::chmod(ninja.c_str(), 0755);
  EXPECT_NE(wheel_folder(request_, cache).value(), without);
  auto built = build();
  ASSERT_TRUE(built) << built.error().what;
  EXPECT_THAT(read_file(built->log).value(), HasSubstr("the one of env"));
  // In front of nothing that the user has put in an order of his own.
  EXPECT_EQ(build_path("/usr/bin/python3"), std::getenv("PATH"));
}

TEST_F(WheelBuilding, A_failure_shows_the_error_keeps_the_log_and_is_tried_again) {
  folder_.write("p/setup.py", "import no_such_module\n");
  auto failed = build();
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().what, HasSubstr("imports no_such_module"));
  EXPECT_THAT(failed.error().help, HasSubstr("build.log"));
  const std::string log = failed.error().help.substr(failed.error().help.rfind(' ') + 1);
  EXPECT_THAT(read_file(log).value(), HasSubstr("no_such_module"));
  EXPECT_FALSE(build());
}

TEST_F(WheelBuilding, What_the_Python_lacks_is_named_beforehand) {
  auto lacking = check_build_needs(request_.python, {"setuptools", "no-such-distribution"});
  ASSERT_FALSE(lacking);
  EXPECT_THAT(lacking.error().what, HasSubstr("no-such-distribution"));
  EXPECT_THAT(lacking.error().help, HasSubstr("-m pip install no-such-distribution"));
  auto none = find_build_python(processes_, "/no/such/python", {});
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().what, HasSubstr("/no/such/python does not run here"));
}

}  // namespace
}  // namespace dsi
