#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "orchestrator/base/sha256.h"
#include "tests/agent/head.h"

namespace dsi::testing {

inline const std::filesystem::path kOps = DSI_TEST_OPS;

class AgentTest : public ::testing::Test {
 protected:
  // A small release with one op that works. `version` makes it another one.
  static TestRelease make_release(const std::string& version) {
    TestRelease release;
    release.add_file("bin/ds-probe", slurp(DSI_PROBE), 0755);
    release.add_file("python/ds/version.py", "version = '" + version + "'\n");
    release.add_file("python/ds/same.py", "same = True\n");
    release.add_op("good", kOps / "libds_good.so");
    release.manifest.built_with["version"] = version;
    return release;
  }

  static void write(const std::filesystem::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }

  // What stands in the prefix, wherever the agent was stopped: nothing that bears a name is in
  // part.
  static void expect_consistent(const std::filesystem::path& prefix) {
    namespace fs = std::filesystem;
    if (!fs::exists(prefix / "releases")) return;
    for (const auto& entry : fs::directory_iterator(prefix / "releases")) {
      std::string id = entry.path().filename();
      if (id.ends_with(".partial")) continue;
      std::string text = slurp(entry.path() / "manifest.json");
      EXPECT_EQ(release_id(text), id);
      auto manifest = Manifest::parse(text);
      ASSERT_TRUE(manifest) << entry.path();
      for (const ManifestFile& file : manifest->files) {
        EXPECT_EQ(sha256_hex(slurp(entry.path() / file.path)), file.sha256) << file.path;
        auto mode = static_cast<std::uint32_t>(fs::status(entry.path() / file.path).permissions());
        EXPECT_EQ(mode, file.mode) << file.path;
      }
    }
    for (const auto& entry : fs::directory_iterator(prefix / "store")) {
      std::string name = entry.path().filename();
      if (!name.ends_with(".partial") && !name.ends_with(".upload") && !name.ends_with(".lzma")) {
        EXPECT_EQ(sha256_hex(slurp(entry.path())), name.substr(0, 64));
      }
    }
    if (fs::is_symlink(prefix / "current")) {
      EXPECT_TRUE(fs::exists(prefix / "current" / "manifest.json")) << "current leads nowhere";
    }
  }

  static std::string current(const std::filesystem::path& prefix) {
    std::error_code ignored;
    auto target = std::filesystem::read_symlink(prefix / "current", ignored);
    return target.filename();
  }

  // Every path in the prefix with what a change would change; the lock's text apart.
  static std::map<std::string, std::string> snapshot(const std::filesystem::path& prefix) {
    namespace fs = std::filesystem;
    std::map<std::string, std::string> all;
    if (!fs::exists(prefix)) return all;
    for (const auto& entry : fs::recursive_directory_iterator(prefix)) {
      std::string path = entry.path().lexically_relative(prefix);
      if (path == "lock") continue;
      all[path] = entry.is_symlink()     ? fs::read_symlink(entry.path()).string()
                  : entry.is_directory() ? "folder"
                                         : sha256_hex(slurp(entry.path()));
    }
    return all;
  }

  static std::vector<std::string> leftovers(const std::filesystem::path& prefix) {
    std::vector<std::string> found;
    for (const auto& [path, content] : snapshot(prefix)) {
      if (path.find(".partial") != std::string::npos) found.push_back(path);
    }
    return found;
  }

  std::string install(const TestRelease& release, protocol::InstallRequest request = {}) {
    Head head(DSI_AGENT, prefix_);
    auto result = head.install(release, std::move(request));
    files_sent_ = head.files_sent();
    if (!result) return "no result";
    last_ = *result;
    return result->result;
  }

  std::string status_of(const std::string& op) const {
    for (const auto& row : last_.ops) {
      if (row.op == op) return row.status;
    }
    return "no row";
  }
  std::string detail_of(const std::string& op) const {
    for (const auto& row : last_.ops) {
      if (row.op == op) return row.detail;
    }
    return "no row";
  }

  void copy_prefix(const std::filesystem::path& from) {
    std::filesystem::remove_all(prefix_);
    if (!std::filesystem::exists(from)) return;
    // -a keeps hard links, which the agent counts.
    std::string command = "cp -a '" + from.string() + "' '" + prefix_.string() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  TemporaryFolder folder_;
  std::filesystem::path prefix_ = folder_.path() / "ds ops";  // With a space, like people's.
  protocol::HostResult last_;
  std::size_t files_sent_ = 0;
};

}  // namespace dsi::testing
