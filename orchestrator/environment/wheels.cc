#include "orchestrator/environment/wheels.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/elf.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

// pip with what says for whom, and not for the Python that runs it.
std::vector<std::string> pip(const char* command, const WheelTarget& target) {
  std::vector<std::string> argv = {"python3",
                                   "-m",
                                   "pip",
                                   command,
                                   "--quiet",
                                   "--no-input",
                                   "--no-deps",
                                   "--only-binary=:all:",
                                   "--disable-pip-version-check"};
  for (const std::string& platform : wheel_platforms(target.machine, target.glibc)) {
    argv.insert(argv.end(), {"--platform", platform});
  }
  if (!target.python.empty()) argv.insert(argv.end(), {"--python-version", target.python});
  if (!target.index.empty()) argv.insert(argv.end(), {"--index-url", target.index});
  return argv;
}

fs::path wheel_in(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".whl") return it->path();
  }
  return {};
}

Error pip_error(const std::string& what, const Result<ProcessResult>& ran) {
  std::string why = ran ? ran->err : ran.error().what;
  why = why.substr(0, why.find_last_not_of('\n') + 1);
  why = why.substr(why.rfind('\n') + 1);
  return {fmt::format("pip cannot fetch {}: {}", what, printable(why)),
          "it needs python3 with pip and an index; -m URL names another one"};
}

}  // namespace

std::vector<std::string> wheel_platforms(const std::string& machine, const std::string& glibc) {
  std::vector<std::string> all;
  for (int minor = 50; minor >= 17; --minor) {
    if (version_less(glibc, fmt::format("2.{}", minor))) continue;
    all.push_back(fmt::format("manylinux_2_{}_{}", minor, machine));
  }
  all.push_back("manylinux2014_" + machine);
  return all;
}

Result<LockedPackage> resolve_wheel(const std::string& requirement, const WheelTarget& target,
                                    ProcessRunner& processes, std::stop_token stop) {
  std::vector<std::string> argv = pip("install", target);
  // Nothing is installed, but pip takes a platform only with a target.
  argv.insert(argv.end(), {"--dry-run", "--ignore-installed", "--target", "/nonexistent",
                           "--report", "-", "--", requirement});
  auto ran = processes.run({argv, "/", {}}, Deadline::after(5min), stop);
  if (!ran || !ran->ok()) return tl::unexpected<Error>(pip_error(requirement, ran));
  try {
    const auto report = nlohmann::json::parse(ran->out);
    const auto& item = report.at("install").at(0);
    return LockedPackage{item.at("metadata").at("name"), item.at("metadata").at("version"),
                         item.at("download_info").at("archive_info").at("hashes").at("sha256")};
  } catch (const nlohmann::json::exception&) {
    return fail_with_help(fmt::format("the index says nothing of a digest of {}", requirement),
                          "name an index that does with -m URL; pip must be 22.2 or later");
  }
}

fs::path kept_wheel(const LockedPackage& wheel, const fs::path& folder) {
  return wheel_in(folder / wheel.sha256);
}

Result<void> fetch_wheel(const LockedPackage& wheel, const WheelTarget& target,
                         const fs::path& folder, ProcessRunner& processes, std::stop_token stop) {
  const fs::path fresh = folder / fmt::format("new.{}", ::getpid());
  std::error_code error;
  fs::create_directories(fresh, error);
  if (error) return fail("cannot make {}: {}", fresh.string(), error.message());
  const std::string what = wheel.name + "==" + wheel.version;
  DSI_CHECK(write_file_atomically(fresh / "requirements.txt",
                                  what + " --hash=sha256:" + wheel.sha256 + "\n"));
  std::vector<std::string> argv = pip("download", target);
  argv.insert(argv.end(), {"--require-hashes", "--dest", fresh.string(), "-r",
                           (fresh / "requirements.txt").string()});
  auto ran = processes.run({argv, "/", {}}, Deadline::after(30min), stop);
  const fs::path file = wheel_in(fresh);
  if (!ran || !ran->ok() || file.empty()) {
    fs::remove_all(fresh, error);
    return tl::unexpected<Error>(pip_error(what + " as the lock has it", ran));
  }
  DSI_TRY(std::string digest, sha256_file(file));
  if (digest != wheel.sha256) return fail("{} arrived damaged: its SHA-256 is {}", what, digest);
  fs::create_directory(folder / digest, error);
  fs::rename(file, folder / digest / file.filename(), error);
  if (error) return fail("cannot keep {}: {}", file.string(), error.message());
  fs::remove_all(fresh, error);
  return {};
}

}  // namespace dsi
