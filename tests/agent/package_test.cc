// A release with a package: the real agent, a real environment, its real pip, and a wheel that is
// built here (tests/package/greet.py).

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "orchestrator/base/shell_quote.h"
#include "tests/agent/fixture.h"

namespace dsi::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  for (std::size_t n; (n = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << text;
  return text;
}

class PackageTest : public AgentTest {
 protected:
  // An environment and two wheels, once for all tests: both take seconds.
  static void SetUpTestSuite() {
    shared_ = new TemporaryFolder;
    output_of("/usr/bin/python3 -m venv " + quoted(shared_->path() / "template"));
    for (const char* version : {"1.0", "2.0"}) {
      output_of("/usr/bin/python3 " + quoted(fs::path(DSI_PACKAGE_TESTS) / "greet.py") + " " +
                quoted(shared_->path()) + " " + version);
    }
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }

  void SetUp() override {
    output_of("cp -a " + quoted(shared_->path() / "template") + " " + quoted(environment_));
    for (const auto& entry : fs::directory_iterator(environment_ / "lib")) {
      site_ = entry.path() / "site-packages";
    }
  }

  static std::string quoted(const fs::path& path) { return shell_quote(path.string()); }

  TestRelease package_release(const std::string& version) {
    TestRelease release;
    release.add_file("bin/ds-package", slurp(DSI_PACKAGE_PROGRAM));
    ManifestPackage package;
    package.name = "greet";
    package.version = version;
    for (const auto& entry : fs::directory_iterator(shared_->path() / ("wheel-" + version))) {
      package.wheel = "wheels/" + entry.path().filename().string();
      release.add_file(package.wheel, slurp(entry.path()));
    }
    package.tags = {"cp311-cp311-linux_x86_64"};
    ManifestModule module;
    module.name = "greet.ops.adder_op";
    module.op = "adder";
    package.modules = {module};
    release.manifest.packages = {package};
    return release;
  }

  std::string python() const { return environment_ / "bin" / "python"; }

  std::string install_package(const TestRelease& release, protocol::InstallRequest request = {}) {
    request.python = python();
    return install(release, std::move(request));
  }

  protocol::HostResult ask(const std::string& type, const nlohmann::json& request) {
    Head head(DSI_AGENT, prefix_);
    head.send(type, request);
    return head.result().value_or(protocol::HostResult{"no result", {}, {}, {}, {}});
  }
  protocol::HostResult rollback() {
    return ask("rollback",
               protocol::RollbackRequest{"run-r", "tester", {}, 60, 30, "greet", python()});
  }
  protocol::HostResult uninstall() {
    return ask("uninstall", protocol::UninstallRequest{"run-u", "tester", 30, "greet", python()});
  }
  protocol::HostResult report() {
    return ask("report", protocol::ReportRequest{{}, 60, "greet", python()});
  }

  // Whatever the environment's Python runs.
  int programs_of_the_environment() {
    int count = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      std::string program;
      if (std::getline(file, program, '\0')) count += program.starts_with(environment_.string());
    }
    return count;
  }

  std::string value() {
    return output_of(quoted(python()) + " -I -B -c 'import greet, greet.ops.adder_op as op; " +
                     "print(greet.VERSION, op.value())'");
  }
  void pip_install(const std::string& version) {
    for (const auto& entry : fs::directory_iterator(shared_->path() / ("wheel-" + version))) {
      output_of("cd / && " + quoted(python()) + " -I -m pip install --no-index --no-deps " +
                quoted(entry.path()));
    }
  }

  protocol::PythonFacts facts(const std::string& given, const HeadSettings& settings = {}) {
    Head head(DSI_AGENT, prefix_, settings);
    head.send("python", protocol::PythonRequest{given, "greet"});
    auto message = head.receive();
    protocol::PythonFacts none;
    if (!message || message->type != "python") return none;
    return protocol::body_as<protocol::PythonFacts>(*message).value_or(none);
  }
  // A home whose login does what `profile` says.
  HeadSettings home(const std::string& profile) {
    fs::path home = folder_.path() / "home";
    fs::create_directory(home);
    write(home / ".bash_profile", profile);
    write(home / ".profile", profile);
    return {{}, [home] { ::setenv("HOME", home.c_str(), 1); }};
  }

  static TemporaryFolder* shared_;
  fs::path environment_ = folder_.path() / "env";
  fs::path site_;
};

TemporaryFolder* PackageTest::shared_ = nullptr;

TEST_F(PackageTest, The_python_that_was_named_is_described) {
  protocol::PythonFacts found = facts(python());
  EXPECT_EQ(found.error.what, "");
  EXPECT_EQ(found.executable, python());
  EXPECT_EQ(found.found_by, "given");
  EXPECT_EQ(found.prefix, environment_);
  EXPECT_EQ(found.site, site_);
  EXPECT_THAT(found.version, StartsWith("3."));
  EXPECT_THAT(found.tags, ::testing::Contains(HasSubstr("-linux_")));
  EXPECT_EQ(found.installed.at("pip"), found.pip);
  EXPECT_EQ(found.torch, "");
  EXPECT_THAT(found.glibc, StartsWith("2."));
  EXPECT_THAT(found.glibcxx, StartsWith("3.4."));
  EXPECT_THAT(found.cxxabi, StartsWith("1.3."));
  EXPECT_TRUE(found.writable) << found.not_writable;
  EXPECT_GT(found.free_bytes, 0u);
  EXPECT_EQ(found.current, "");
  EXPECT_FALSE(fs::exists(prefix_)) << "a question changes nothing";
  EXPECT_EQ(facts(environment_.string()).prefix, found.prefix) << "its folder names it too";
}

TEST_F(PackageTest, What_is_installed_is_named_whoever_installed_it) {
  pip_install("1.0");
  protocol::PythonFacts by_pip = facts(python());
  EXPECT_EQ(by_pip.installed.at("greet"), "1.0");
  EXPECT_EQ(by_pip.current, "greet 1.0");
  TestRelease two = package_release("2.0");
  ASSERT_EQ(install_package(two), "installed") << last_.error.what;
  protocol::PythonFacts ours = facts(python());
  EXPECT_EQ(ours.current, two.id());
  EXPECT_EQ(ours.previous, "greet 1.0");
  EXPECT_FALSE(ours.interrupted);
}

TEST_F(PackageTest, A_login_that_activates_an_environment_names_its_python) {
  HeadSettings settings =
      home("echo welcome\nexport PATH=" + quoted(environment_ / "bin") + ":$PATH\n");
  protocol::PythonFacts found = facts("", settings);
  EXPECT_EQ(found.error.what, "");
  EXPECT_EQ(found.executable, environment_ / "bin" / "python3");
  EXPECT_EQ(found.found_by, "login");
}

TEST_F(PackageTest, A_login_that_ends_at_once_is_an_error_that_says_what_to_do) {
  protocol::PythonFacts found = facts("", home("echo this account is closed\nexit 3\n"));
  EXPECT_THAT(found.error.what, HasSubstr("does not run a command: this account is closed"));
  EXPECT_THAT(found.error.help, HasSubstr("--python"));
}

TEST_F(PackageTest, What_is_no_python_is_an_error_that_names_it) {
  EXPECT_THAT(facts("/nowhere/python3").error.what,
              HasSubstr("there is no interpreter /nowhere/python3"));
  EXPECT_THAT(facts("python3").error.what, HasSubstr("no absolute path"));
  EXPECT_THAT(facts("/bin/false").error.what, HasSubstr("/bin/false does not run"));
  EXPECT_THAT(facts(folder_.path()).error.what, HasSubstr("has no bin/python3"));
}

TEST_F(PackageTest, An_install_goes_over_what_pip_installed_and_rollback_brings_that_back) {
  pip_install("1.0");
  auto before = snapshot(environment_);
  TestRelease two = package_release("2.0");
  Head head(DSI_AGENT, prefix_);
  protocol::InstallRequest request;
  request.python = python();
  auto result = head.install(two, request);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->result, "installed") << result->error.what;
  EXPECT_EQ(result->from, "greet 1.0");
  EXPECT_EQ(result->to, two.id());
  // "installing" comes as often as the time it takes says.
  std::vector<std::string> stages = head.stages();
  std::erase(stages, "installing");
  EXPECT_THAT(stages, ::testing::ElementsAre("staged", "probed", "switched"));
  EXPECT_EQ(value(), "2.0 2.0\n");
  last_ = *result;
  EXPECT_EQ(status_of("adder"), "ok");

  protocol::HostResult back = rollback();
  EXPECT_EQ(back.result, "rolled-back") << back.error.what;
  EXPECT_EQ(back.to, "greet 1.0");
  EXPECT_EQ(value(), "1.0 1.0\n");
  auto after = snapshot(environment_);
  std::erase_if(after,
                [](const auto& one) { return one.first.find("/ds-install") != std::string::npos; });
  EXPECT_EQ(after, before);
  EXPECT_EQ(facts(python()).current, "greet 1.0");

  EXPECT_EQ(rollback().to, two.id()) << "and forward again";
  EXPECT_EQ(value(), "2.0 2.0\n");
}

TEST_F(PackageTest, The_same_release_again_is_up_to_date_and_sends_nothing) {
  TestRelease one = package_release("1.0");
  ASSERT_EQ(install_package(one), "installed") << last_.error.what;
  EXPECT_GT(files_sent_, 0u);
  EXPECT_EQ(install_package(one), "up-to-date") << last_.error.what;
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_EQ(status_of("adder"), "ok");
  write(site_ / "greet" / "data.txt", "altered");
  EXPECT_THAT(report().error.what, HasSubstr("data.txt is altered"));
  EXPECT_EQ(install_package(one), "repaired") << last_.error.what;
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_EQ(report().error.what, "");
}

constexpr char kRecalled[] = "as on 20..-..-..T..:..:..Z, nothing it loads has changed";

// The environment has just been made; what is younger than two seconds is nothing to build on.
void let_settle() {
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
}

TEST_F(PackageTest, An_install_that_finds_nothing_to_do_tries_nothing_again_and_says_so) {
  let_settle();
  TestRelease one = package_release("1.0");
  ASSERT_EQ(install_package(one), "installed") << last_.error.what;
  EXPECT_EQ(detail_of("adder"), "");
  auto before = snapshot(prefix_);
  for (int again = 0; again < 2; ++again) {
    ASSERT_EQ(install_package(one), "up-to-date") << last_.error.what;
    EXPECT_EQ(status_of("adder"), "ok");
    EXPECT_THAT(detail_of("adder"), ::testing::MatchesRegex(kRecalled));
  }
  EXPECT_EQ(snapshot(prefix_), before) << "and it writes nothing";
  ASSERT_EQ(report().ops.size(), 1u);
  EXPECT_EQ(report().ops[0].detail, "") << "who asks gets a new answer";
  // With and without our ops are two things.
  protocol::InstallRequest other;
  other.drop_in = true;
  EXPECT_NE(install_package(one, other), "up-to-date");
}

TEST_F(PackageTest, What_an_import_would_meet_anew_makes_it_be_tried_again) {
  let_settle();
  TestRelease one = package_release("1.0");
  ASSERT_EQ(install_package(one), "installed") << last_.error.what;
  auto is_recalled = [&] {
    EXPECT_EQ(install_package(one), "up-to-date") << last_.error.what;
    return !detail_of("adder").empty();
  };
  ASSERT_TRUE(is_recalled());
  // A module that would be found first, in the package and beside it.
  for (const fs::path& folder : {site_ / "greet" / "ops", site_}) {
    write(folder / "new.py", "");
    EXPECT_FALSE(is_recalled()) << folder;
    EXPECT_FALSE(is_recalled()) << "so young that it may yet change: " << folder;
  }
  let_settle();
  EXPECT_FALSE(is_recalled());
  EXPECT_TRUE(is_recalled());
  // What Python has compiled is no file of the wheel's; its times are as they were.
  for (const auto& entry : fs::directory_iterator(site_ / "greet" / "__pycache__")) {
    const auto time = fs::last_write_time(entry.path());
    write(entry.path(), slurp(entry.path()));
    fs::last_write_time(entry.path(), time);
  }
  EXPECT_FALSE(is_recalled());
  HeadSettings elsewhere{{}, [] { ::setenv("LD_LIBRARY_PATH", "/nowhere", 1); }};
  Head head(DSI_AGENT, prefix_, elsewhere);
  protocol::InstallRequest request;
  request.python = python();
  request.manifest = one.text();
  head.send("install", request);
  auto answer = head.result();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->result, "up-to-date");
  EXPECT_EQ(answer->ops.at(0).detail, "");
}

TEST_F(PackageTest, What_is_damaged_is_mended_whatever_is_remembered) {
  let_settle();
  TestRelease one = package_release("1.0");
  ASSERT_EQ(install_package(one), "installed") << last_.error.what;
  // No import reads it.
  write(site_ / "greet" / "data.txt", "altered");
  ASSERT_EQ(install_package(one), "repaired") << last_.error.what;
  EXPECT_EQ(detail_of("adder"), "");
  ASSERT_EQ(install_package(one), "up-to-date") << last_.error.what;
  EXPECT_THAT(detail_of("adder"), ::testing::MatchesRegex(kRecalled));
}

TEST_F(PackageTest, A_later_agent_asks_an_older_copy_of_the_program_and_understands_it) {
  let_settle();
  TestRelease one = package_release("1.0");
  ASSERT_EQ(install_package(one), "installed") << last_.error.what;
  // A copy that knows of no recalling, as if of an earlier release of this program.
  fs::path sources = folder_.path() / "sources";
  fs::create_directory(sources);
  fs::copy_file(fs::path(DSI_PACKAGE_SOURCES) / "pack.py", sources / "pack.py");
  fs::copy(fs::path(DSI_PACKAGE_SOURCES) / "ds_package", sources / "ds_package");
  std::string options = slurp(sources / "ds_package/supervisor.py");
  std::size_t at = options.find("    parser.add_argument(\"--untried\"");
  ASSERT_NE(at, std::string::npos);
  options.erase(at, options.find("    parser.add_argument(\"--run\"", at) - at);
  write(sources / "ds_package/supervisor.py", options);
  std::string commands = slurp(sources / "ds_package/commands.py");
  constexpr std::string_view kUse = "arguments.untried";
  ASSERT_NE(commands.find(kUse), std::string::npos);
  for (std::size_t use; (use = commands.find(kUse)) != std::string::npos;) {
    commands.replace(use, kUse.size(), "False");
  }
  write(sources / "ds_package/commands.py", commands);
  output_of("/usr/bin/python3 " + quoted(sources / "pack.py") + " " +
            quoted(site_.parent_path() / "ds-install/greet/ds-package"));
  ASSERT_EQ(install_package(one), "up-to-date") << last_.error.what;
  EXPECT_EQ(status_of("adder"), "ok");
  EXPECT_EQ(rollback().error.what, "there is nothing to go back to");
  EXPECT_EQ(uninstall().result, "uninstalled");
  EXPECT_FALSE(fs::exists(site_ / "greet"));
}

TEST_F(PackageTest, A_dependency_that_came_along_and_is_damaged_is_mended_by_the_same_release) {
  output_of("/usr/bin/python3 " + quoted(fs::path(DSI_PACKAGE_TESTS) / "greet.py") + " " +
            quoted(folder_.path()) + " 3.0 '' '' helper");
  TestRelease one = package_release("1.0");
  for (const auto& entry : fs::directory_iterator(folder_.path() / "wheel-3.0")) {
    std::string path = "wheels/" + entry.path().filename().string();
    one.add_file(path, slurp(entry.path()));
    one.manifest.packages[0].dependencies = {path};
  }
  ASSERT_EQ(install_package(one), "installed") << last_.error.what;
  EXPECT_EQ(install_package(one), "up-to-date") << last_.error.what;
  write(site_ / "helper" / "data.txt", "altered");
  EXPECT_THAT(report().error.what, HasSubstr("helper/data.txt is altered"));
  EXPECT_EQ(install_package(one), "repaired") << last_.error.what;
  EXPECT_EQ(install_package(one), "up-to-date") << last_.error.what;
  fs::remove_all(site_ / "helper");
  EXPECT_THAT(report().error.what, HasSubstr("helper/__init__.py is missing"));
  EXPECT_EQ(install_package(one), "repaired") << last_.error.what;
  EXPECT_EQ(slurp(site_ / "helper" / "data.txt"), "data of 3.0\n");
  EXPECT_EQ(report().error.what, "");
}

TEST_F(PackageTest, Two_environments_on_a_node_do_not_mix) {
  fs::path other = folder_.path() / "other";
  output_of("/usr/bin/python3 -m venv " + quoted(other));
  ASSERT_EQ(install_package(package_release("1.0")), "installed") << last_.error.what;
  protocol::InstallRequest request;
  request.python = other / "bin" / "python";
  ASSERT_EQ(install(package_release("2.0"), request), "installed") << last_.error.what;
  EXPECT_EQ(value(), "1.0 1.0\n");
  EXPECT_EQ(uninstall().result, "uninstalled");
  EXPECT_EQ(facts(python()).current, "");
  EXPECT_EQ(facts(request.python).current, package_release("2.0").id());
}

TEST_F(PackageTest, A_held_environment_keeps_its_package_until_the_hold_is_ended) {
  auto change = [&](bool hold) {
    return ask("hold", protocol::HoldRequest{"run-h", "alice@head", hold, "a paper's numbers", 30,
                                             "greet", python()})
        .result;
  };
  ASSERT_EQ(install_package(package_release("1.0")), "installed") << last_.error.what;
  EXPECT_EQ(change(true), "held");
  EXPECT_THAT(facts(python()).held, HasSubstr("by alice@head: a paper's numbers"));
  EXPECT_EQ(Head(DSI_AGENT, prefix_).hello().facts.held, "") << "the ops of the node are not held";

  EXPECT_EQ(install_package(package_release("2.0")), "held");
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_THAT(last_.error.what, HasSubstr("a paper's numbers"));
  EXPECT_EQ(install_package(package_release("1.0")), "up-to-date");
  EXPECT_EQ(rollback().result, "held");
  EXPECT_EQ(uninstall().result, "held");
  EXPECT_THAT(value(), StartsWith("1.0 "));

  protocol::InstallRequest request;
  request.care.ignore_holds = true;
  EXPECT_EQ(install_package(package_release("2.0"), request), "installed") << last_.error.what;
  EXPECT_EQ(rollback().result, "held") << "a hold outlives being ignored";
  EXPECT_EQ(change(false), "unheld");
  EXPECT_EQ(rollback().result, "rolled-back");
  EXPECT_EQ(uninstall().result, "uninstalled");
  EXPECT_FALSE(fs::exists(prefix_));
}

TEST_F(PackageTest, An_environment_without_the_package_can_be_held_too) {
  auto change = [&](bool hold) {
    return ask("hold",
               protocol::HoldRequest{"run-h", "alice@head", hold, "", 30, "greet", python()})
        .result;
  };
  EXPECT_EQ(change(true), "held");
  EXPECT_EQ(install_package(package_release("1.0")), "held");
  EXPECT_EQ(uninstall().result, "held") << "it does not end the hold by the way";
  EXPECT_EQ(install_package(package_release("1.0")), "held");
  EXPECT_EQ(change(false), "unheld");
  EXPECT_FALSE(fs::exists(prefix_)) << "nothing is left of it";
}

TEST_F(PackageTest, Uninstall_leaves_nothing) {
  auto before = snapshot(environment_);
  ASSERT_EQ(install_package(package_release("1.0")), "installed") << last_.error.what;
  ASSERT_EQ(install_package(package_release("2.0")), "installed") << last_.error.what;
  protocol::HostResult result = uninstall();
  EXPECT_EQ(result.result, "uninstalled") << result.error.what;
  EXPECT_EQ(result.to, "");
  EXPECT_EQ(snapshot(environment_), before);
  EXPECT_FALSE(fs::exists(prefix_));
  EXPECT_EQ(uninstall().result, "uninstalled") << "again";
}

TEST_F(PackageTest, Uninstall_leaves_the_ops_that_are_in_the_same_prefix) {
  ASSERT_EQ(install(make_release("1")), "installed") << last_.error.what;
  ASSERT_EQ(install_package(package_release("1.0")), "installed") << last_.error.what;
  auto link = fs::read_symlink(fs::path(prefix_) / "current");
  auto ops = snapshot(fs::path(prefix_) / link);
  ASSERT_FALSE(ops.empty());
  EXPECT_EQ(uninstall().result, "uninstalled") << last_.error.what;
  ASSERT_TRUE(fs::exists(fs::path(prefix_) / "current"));
  EXPECT_EQ(fs::read_symlink(fs::path(prefix_) / "current"), link);
  EXPECT_EQ(snapshot(fs::path(prefix_) / link), ops);
}

TEST_F(PackageTest, Uninstall_takes_what_one_that_was_cut_off_has_left) {
  auto before = snapshot(environment_);
  ASSERT_EQ(install_package(package_release("1.0")), "installed") << last_.error.what;
  fs::path shared = site_.parent_path() / "ds-install";
  fs::copy(shared, folder_.path() / "kept", fs::copy_options::recursive);
  EXPECT_EQ(uninstall().result, "uninstalled") << last_.error.what;
  // The package is gone, and its state says so.
  fs::copy(folder_.path() / "kept", shared, fs::copy_options::recursive);
  write(shared / "greet" / "state.json", R"({"token": "t", "release": "", "saved": null})");
  EXPECT_EQ(uninstall().result, "uninstalled") << last_.error.what;
  EXPECT_FALSE(fs::exists(shared));
  EXPECT_EQ(snapshot(environment_).size(), before.size());
}

TEST_F(PackageTest, Uninstall_and_report_do_not_touch_what_something_else_installed) {
  pip_install("1.0");
  auto before = snapshot(environment_);
  EXPECT_THAT(uninstall().error.what, HasSubstr("was not installed by ds-install"));
  EXPECT_THAT(report().error.what, HasSubstr("the greet 1.0 in"));
  EXPECT_EQ(snapshot(environment_), before);
}

TEST_F(PackageTest, Strict_does_not_switch_to_a_package_with_a_broken_module) {
  pip_install("1.0");
  auto before = snapshot(environment_);
  TestRelease two = package_release("2.0");
  ManifestModule absent;
  absent.name = "greet.ops.absent_op";
  absent.op = "absent";
  two.manifest.packages[0].modules.insert(two.manifest.packages[0].modules.begin(), absent);
  protocol::InstallRequest strict;
  strict.strict = true;
  EXPECT_EQ(install_package(two, strict), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("absent on cpu is missing"));
  EXPECT_EQ(last_.to, "greet 1.0");
  EXPECT_EQ(snapshot(environment_), before);
  EXPECT_FALSE(fs::exists(prefix_));
  EXPECT_EQ(install_package(two), "installed") << "without strict it is";
  EXPECT_THAT(detail_of("absent"), HasSubstr("the package has no module greet.ops.absent_op"));
}

TEST_F(PackageTest, A_wheel_that_pip_refuses_changes_nothing) {
  pip_install("1.0");
  auto before = snapshot(environment_);
  TestRelease two = package_release("2.0");
  std::string other = "wheels/greet-2.0-cp36-cp36m-linux_x86_64.whl";
  two.add_file(other, two.contents.at(two.manifest.find(two.manifest.packages[0].wheel)->sha256));
  two.manifest.packages[0].wheel = other;
  EXPECT_EQ(install_package(two), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("not a supported wheel"));
  EXPECT_THAT(last_.error.help, HasSubstr("another Python"));
  EXPECT_EQ(snapshot(environment_), before);
  EXPECT_FALSE(fs::exists(prefix_));
}

TEST_F(PackageTest, A_read_only_environment_is_refused_before_a_byte_is_sent) {
  if (::geteuid() == 0) {
    // Root may write anywhere but on what is mounted read-only.
    std::string mount = "mount --bind " + quoted(environment_) + " " + quoted(environment_) +
                        " && mount -o remount,ro,bind " + quoted(environment_);
    if (std::system((mount + " 2>/dev/null").c_str()) != 0) GTEST_SKIP() << "no right to mount";
  } else {
    fs::permissions(site_, fs::perms(0555));
  }
  EXPECT_EQ(install_package(package_release("1.0")), "failed");
  EXPECT_EQ(files_sent_, 0u);
  EXPECT_THAT(last_.error.what,
              ::testing::AnyOf(HasSubstr("read-only file system"), HasSubstr("may not write")));
  EXPECT_FALSE(fs::exists(prefix_));
  if (::geteuid() == 0) {
    output_of("umount " + quoted(environment_));
  } else {
    fs::permissions(site_, fs::perms(0755));
  }
}

// What the head is told is what there is: not "failed", with the new package coming afterwards.
TEST_F(PackageTest, A_switch_that_does_not_end_is_cancelled_and_put_back) {
  pip_install("1.0");
  // Every Python of the environment that is started in the middle of the switch stands still.
  fs::path phase = site_.parent_path() / "ds-install" / "journal.phase";
  write(site_ / "hang.pth", "import os, time; exec(\"while os.path.exists('" + phase.string() +
                                "'): time.sleep(0.05)\")\n");
  auto before = snapshot(environment_);
  protocol::InstallRequest request;
  request.probe_timeout_s = 3600;
  request.switch_timeout_s = 1;
  EXPECT_EQ(install_package(package_release("2.0"), request), "failed");
  EXPECT_THAT(last_.error.what, HasSubstr("did not end within 1 s; install was cancelled"));
  EXPECT_EQ(last_.error.help, "the environment is as it was");
  EXPECT_EQ(last_.to, "greet 1.0");
  EXPECT_EQ(snapshot(environment_), before);
  EXPECT_EQ(programs_of_the_environment(), 0) << "what hung is gone";
  fs::remove(site_ / "hang.pth");
  EXPECT_EQ(install_package(package_release("2.0")), "installed") << last_.error.what;
}

TEST_F(PackageTest, A_head_that_dies_at_any_message_leaves_the_old_package_or_the_new) {
  pip_install("1.0");
  auto before = snapshot(environment_);
  TestRelease two = package_release("2.0");
  bool done = false;
  int writes = 1;
  for (; writes < 20 && !done; ++writes) {
    {
      Head head(DSI_AGENT, prefix_);
      head.leave_after(writes);
      protocol::InstallRequest request;
      request.python = python();
      done = head.install(two, request).has_value();
      head.leave();
      EXPECT_TRUE(WIFEXITED(head.wait()));
    }
    if (!done) {
      EXPECT_EQ(snapshot(environment_), before) << writes;
    }
  }
  EXPECT_TRUE(done);
  EXPECT_GT(writes, 3);
  EXPECT_EQ(value(), "2.0 2.0\n");
}

TEST_F(PackageTest, An_agent_that_is_killed_while_pip_works_leaves_the_old_package) {
  pip_install("1.0");
  auto before = snapshot(environment_);
  TestRelease two = package_release("2.0");
  Head head(DSI_AGENT, prefix_);
  protocol::InstallRequest request;
  request.manifest = two.text();
  request.python = python();
  head.send("install", request);
  auto need = head.receive();
  ASSERT_TRUE(need);
  for (const auto& digest : need->body["digests"]) {
    head.send_file(digest, two.contents.at(digest));
  }
  head.send("commit", nullptr);
  ASSERT_EQ(head.receive()->body.at("stage"), "staged");
  head.kill();
  head.wait();
  // What worked for it notices, and puts everything back by itself.
  for (int i = 0; i < 3000 && fs::exists(site_.parent_path() / "ds-install"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(snapshot(environment_), before);
  EXPECT_EQ(install_package(two), "installed") << last_.error.what;
}

}  // namespace
}  // namespace dsi::testing
