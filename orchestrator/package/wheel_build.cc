#include "orchestrator/package/wheel_build.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/build.h"
#include "orchestrator/lock_folder.h"
#include "orchestrator/package/build_inputs.h"
#include "orchestrator/package/explain.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr auto kBuildTime = 4h;

fs::path wheel_in(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".whl") return it->path();
  }
  return {};
}

// What the log's lines say of where it is, for the progress line.
std::string step_of(std::string_view line) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  line.remove_prefix(begin);
  // Ninja's "[3/12] c++ …", and setuptools' "building 'deepspeed.ops.aio.async_io_op' extension".
  if (line.starts_with('[') && line.find_first_not_of("0123456789/", 1) == line.find(']')) {
    return std::string(line.substr(1, line.find(']') - 1));
  }
  if (line.starts_with("building '")) {
    line.remove_prefix(10);
    return std::string(line.substr(0, line.find('\'')));
  }
  return "";
}

Error failure(const std::string& name, const std::string& text, const fs::path& log) {
  Error known = explain_failure(text);
  Error error;
  error.what = fmt::format("{} cannot be built{}; no host was touched\n{}", name,
                           known.what.empty() ? "" : ": " + known.what, failing_part(text));
  error.help = known.help.empty()
                   ? fmt::format("the whole log is {}", log.string())
                   : fmt::format("{}; the whole log is {}", known.help, log.string());
  return error;
}

}  // namespace

Result<fs::path> wheel_folder(const WheelRequest& request, const fs::path& cache) {
  DSI_TRY(std::string sources, digest_source(request.source, request.keep_build));
  DSI_TRY(std::string files, read_build_files(request.source));
  const nlohmann::json key = {
      {"sources", sources},
      {"python", request.python.executable},
      {"python_version", request.python.version},
      {"tag", request.python.tag},
      {"torch", request.python.torch},
      {"torch_path", request.python.torch_path},
      {"compiler", request.compiler},
      {"nvcc", request.nvcc},
      {"commit", request.git.commit},
      {"branch", request.git.branch},
      {"added", request.environment},
      {"tools", build_tools(build_path(request.python.executable))},
      // Without isolation a build may use, and find at run time, any of them.
      {"installed", request.python.installed},
      {"variables", build_variables(request.name, files)}};
  const std::string text = key.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return cache / "wheels" / sha256_hex(text).substr(0, 20);
}

Result<WheelBuild> build_wheel(const WheelRequest& request, const fs::path& cache,
                               ProcessRunner& processes, Progress& progress, std::stop_token stop) {
  WheelBuild build;
  if (request.source.kind == SourceKind::kWheel) {
    build.wheel = request.source.path;
    return build;
  }
  DSI_TRY(fs::path folder, wheel_folder(request, cache));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return fail_with_help(
        fmt::format("cannot make the build folder {}: {}", folder.string(), error.message()),
        "set XDG_CACHE_HOME to a folder that can be written");
  }
  DSI_TRY(UniqueFd lock, lock_folder(folder / "lock", progress, stop));
  build.log = folder / "build.log";
  build.wheel = wheel_in(folder / "wheel");
  if (!build.wheel.empty()) return build;

  const std::string name = request.source.path.filename().string();
  const fs::path tree = folder / "tree";
  const fs::path out = folder / "wheel.new";
  fs::remove_all(tree, error);
  fs::remove_all(out, error);
  DSI_CHECK(copy_source(request.source, tree, request.keep_build)
                .map_error(in("while copying {}", request.source.path.string())));

  Command command;
  // pip and not `build`: every environment has it. With -v it passes on what the compilers say.
  // One stream, so that an error stands behind the command that it is about.
  command.argv = {"sh",
                  "-c",
                  "exec \"$@\" 2>&1",
                  "sh",
                  request.python.executable,
                  "-m",
                  "pip",
                  "wheel",
                  "-v",
                  "--no-deps",
                  "--no-index",
                  "--no-build-isolation",
                  "--no-cache-dir",
                  "--no-input",
                  "--disable-pip-version-check",
                  "--wheel-dir",
                  out.string(),
                  tree.string()};
  command.folder = folder;
  for (const auto& [variable, value] : request.environment) {
    command.environment.emplace_back(variable, value);
  }
  command.environment.emplace_back("PATH", build_path(request.python.executable));
  const int jobs = request.jobs > 0 ? request.jobs : default_jobs();
  const char* user_jobs = std::getenv("MAX_JOBS");
  if (request.jobs > 0 || user_jobs == nullptr || *user_jobs == '\0') {
    command.environment.emplace_back("MAX_JOBS", std::to_string(jobs));
  }
  // The copy has no .git, and a repository that the cache happens to lie in is not its own.
  command.environment.emplace_back("GIT_CEILING_DIRECTORIES", folder.string());
  if (!request.git.git_dir.empty()) {
    command.environment.emplace_back("GIT_DIR", request.git.git_dir.string());
  }
  std::ofstream log(build.log, std::ios::trunc);
  std::string text;
  progress.update("Building", name);
  auto on_line = [&](std::string_view line) {
    log << line << '\n';
    text.append(line).append("\n");
    progress.detail(2, line);
    if (std::string step = step_of(line); !step.empty()) {
      progress.update("Building", fmt::format("{}: {}", name, step));
    }
  };
  auto ran = processes.run(command, Deadline::after(kBuildTime), stop, on_line);
  if (!ran) return tl::unexpected<Error>(in("while building {}", name)(ran.error()));
  log.flush();
  progress.clear();
  const fs::path made = wheel_in(out);
  if (!ran->ok() || made.empty()) {
    return tl::unexpected<Error>(failure(name, text, build.log));
  }
  fs::remove_all(tree, error);
  fs::remove_all(folder / "wheel", error);
  fs::rename(out, folder / "wheel", error);
  if (error) return fail("cannot keep {}: {}", made.string(), error.message());
  build.wheel = folder / "wheel" / made.filename();
  build.fresh = true;
  return build;
}

}  // namespace dsi
