// How a build stays right without ever being asked to clean:
//
//   <cache>/builds/<key>/lock      one run at a time
//                        tree/     CMake's and Ninja's folder
//                        stage/    what is installed from it, made anew when Ninja did something
//                        build.log
//
// <key> is the digest of the toolchain, of every source file and of the sources' place (CMake
// refuses a tree that was made for another place). A changed compiler, torch, header or op is
// therefore another folder; inside one folder Ninja only ever finishes what is missing.

#include "orchestrator/build.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/base/unique_fd.h"
#include "orchestrator/lock_folder.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr auto kConfigureTime = 5min;
constexpr auto kBuildTime = 4h;
constexpr auto kInstallTime = 2min;

// Tests, benchmarks and prose do not end in a library.
bool is_source(const fs::path& path) {
  static const std::set<std::string> kEndings = {".h",   ".hpp", ".cuh",  ".c",     ".cc",
                                                 ".cpp", ".cu",  ".json", ".cmake", ".txt",
                                                 ".in",  ".py",  ".map",  ".ver"};
  return kEndings.contains(path.extension().string());
}

Result<void> hash_folder(const fs::path& folder, Sha256& hash) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (it->is_directory() &&
        (name == "tests" || name == "bench" || name == "build" || name.starts_with("."))) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file() && is_source(it->path()) &&
               it->path().stem().string().find("_test") == std::string::npos) {
      files.push_back(it->path());
    }
  }
  if (error) {
    return fail_with_help(
        fmt::format("cannot read the ops in {}: {}", folder.string(), error.message()),
        "--ops-dir names a folder that holds op folders, each with an op.json");
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    DSI_TRY(std::string digest, sha256_file(file));
    std::string line = file.lexically_relative(folder).string() + '\0' + digest + '\n';
    hash.update(line.data(), line.size());
  }
  return {};
}

// "[12/40] Building ..." → 12, 40.
bool ninja_step(std::string_view line, int& done, int& total) {
  if (!line.starts_with("[")) return false;
  auto [slash, e1] = std::from_chars(line.data() + 1, line.data() + line.size(), done);
  if (e1 != std::errc() || slash == line.data() + line.size() || *slash != '/') return false;
  auto [close, e2] = std::from_chars(slash + 1, line.data() + line.size(), total);
  return e2 == std::errc() && close != line.data() + line.size() && *close == ']';
}

// The line of a compiler's output that says what is wrong.
std::string first_error_line(std::string_view output) {
  for (std::string_view needle :
       {"error:", "undefined reference", "fatal", "cannot find", "Killed", "No such file"}) {
    std::size_t at = output.find(needle);
    if (at == std::string_view::npos) continue;
    std::size_t begin = output.rfind('\n', at);
    begin = begin == std::string_view::npos ? 0 : begin + 1;
    return std::string(output.substr(begin, output.find('\n', at) - begin));
  }
  return "";
}

struct Ninja {
  bool did_something = false;
  bool ok = false;
  // Output of the commands that failed, with the path component ds_<op> in their "FAILED:" line.
  std::vector<std::pair<std::string, std::string>> failures;
};

Result<Ninja> run_ninja(const fs::path& tree, const std::vector<std::string>& targets, int jobs,
                        std::ofstream& log, ProcessRunner& processes, Progress& progress,
                        std::stop_token stop) {
  Command command;
  command.argv = {"ninja", "-C", tree.string(), "-k", "0", "-j", std::to_string(jobs)};
  command.argv.insert(command.argv.end(), targets.begin(), targets.end());
  command.environment = {{"NINJA_STATUS", "[%f/%t] "}, {"CLICOLOR_FORCE", "0"}};
  Ninja ninja;
  bool in_failure = false;
  auto on_line = [&](std::string_view line) {
    log << line << '\n';
    progress.detail(2, line);
    int done = 0;
    int total = 0;
    if (ninja_step(line, done, total)) {
      in_failure = false;
      // Step 0 is CMake's look for new files, which is made every time.
      if (done == 0) return;
      ninja.did_something = true;
      std::string_view what = line.substr(line.find(']') + 1);
      progress.update("Compiling", fmt::format("{}/{}{}", done, total, what));
    } else if (line.starts_with("FAILED: ")) {
      in_failure = true;
      ninja.failures.emplace_back(line.substr(8), "");
    } else if (in_failure) {
      ninja.failures.back().second.append(line).append("\n");
    }
  };
  DSI_TRY(ProcessResult result, processes.run(command, Deadline::after(kBuildTime), stop, on_line)
                                    .map_error(in("while compiling")));
  log << result.err;
  ninja.ok = result.ok();
  if (!ninja.ok && ninja.failures.empty()) {
    return fail("ninja failed: {}", result.err.empty() ? "see the log" : result.err);
  }
  return ninja;
}

// What a message(FATAL_ERROR) says, without the place in CMake's files and the call stack, which
// tell the user nothing: the paragraph below "CMake Error at ...".
std::string cmake_message(std::string_view output) {
  std::size_t at = output.find("CMake Error");
  if (at == std::string_view::npos) return "";
  std::string message;
  std::string_view rest = output.substr(at);
  rest.remove_prefix(std::min(rest.size(), rest.find('\n') + 1));
  while (!rest.empty() && !rest.starts_with("Call Stack")) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ')));
    if (line.empty()) continue;
    if (!message.empty()) message += ' ';
    message += line;
  }
  return message;
}

Result<void> configure(const BuildRequest& request, const fs::path& tree, std::ofstream& log,
                       ProcessRunner& processes, std::stop_token stop) {
  std::string ops_folders;
  for (const fs::path& folder : request.ops_folders) {
    if (!ops_folders.empty()) ops_folders += ';';
    ops_folders += fs::absolute(folder).lexically_normal().string();
  }
  Command command;
  command.argv = {"cmake",
                  "-G",
                  "Ninja",
                  "-S",
                  request.kernels.string(),
                  "-B",
                  tree.string(),
                  "-DCMAKE_BUILD_TYPE=Release",
                  "-DDS_BUILD_TESTS=OFF",
                  "-DDS_TORCH_PREFIX=" + request.toolchain.torch.prefix.string(),
                  "-DDS_OPS_DIRS=" + ops_folders};
  if (request.cuda) {
    command.argv.insert(
        command.argv.end(),
        {"-DDS_CUDA=ON", "-DCMAKE_CUDA_COMPILER=" + request.cuda->toolkit.nvcc.string(),
         "-DCMAKE_CUDA_ARCHITECTURES=" + cmake_architectures(request.cuda->archs)});
  }
  DSI_TRY(ProcessResult result, processes.run(command, Deadline::after(kConfigureTime), stop,
                                              [&](std::string_view line) { log << line << '\n'; }));
  log << result.err << std::flush;
  if (!result.ok()) {
    std::string reason = cmake_message(result.err);
    if (reason.empty()) reason = first_error_line(result.err);
    return fail("the build cannot be configured: {}", reason);
  }
  return {};
}

Result<std::vector<BuiltOp>> read_ops(const fs::path& tree) {
  DSI_TRY(std::string text, read_file(tree / "ops.json"));
  std::vector<BuiltOp> ops;
  try {
    for (const auto& row : nlohmann::json::parse(text)) {
      BuiltOp op;
      row.at("op").get_to(op.name);
      op.description = row.value("description", "");
      op.capability = row.value("capability", "op." + op.name);
      op.devices = row.value("devices", std::vector<std::string>{});
      op.library = row.value("library", "");
      if (row.at("state") != "configured") {
        op.error = {row.value("reason", "it cannot be built here"), row.value("help", "")};
      } else {
        op.without_cuda = {row.value("reason", ""), row.value("help", "")};
      }
      ops.push_back(std::move(op));
    }
  } catch (const nlohmann::json::exception& e) {
    return fail("{} is malformed: {}", (tree / "ops.json").string(), e.what());
  }
  return ops;
}

// Leaves the ops that were asked for; a name that no op has is a mistake of the user's.
Result<void> select_ops(const std::vector<std::string>& wanted, std::vector<BuiltOp>& ops,
                        std::vector<BuiltOp>& left_out) {
  if (wanted.empty()) {
    // Nobody asked by name for an op that has no code for the CPU.
    auto stays = [](const BuiltOp& op) {
      return op.error.what.empty() ||
             std::find(op.devices.begin(), op.devices.end(), "cpu") != op.devices.end();
    };
    auto end = std::stable_partition(ops.begin(), ops.end(), stays);
    left_out.assign(std::make_move_iterator(end), std::make_move_iterator(ops.end()));
    ops.erase(end, ops.end());
    return {};
  }
  for (const std::string& name : wanted) {
    if (std::any_of(ops.begin(), ops.end(), [&](const BuiltOp& op) { return op.name == name; })) {
      continue;
    }
    std::vector<std::string> names;
    std::string all;
    for (const BuiltOp& op : ops) {
      names.push_back(op.name);
      all += (all.empty() ? "" : ", ") + op.name;
    }
    std::string meant = closest(name, names);
    return fail_with_help(fmt::format("there is no op {}", name),
                          meant.empty() ? fmt::format("the ops are {}", all)
                                        : fmt::format("did you mean {}?", meant));
  }
  std::erase_if(ops, [&](const BuiltOp& op) {
    return std::find(wanted.begin(), wanted.end(), op.name) == wanted.end();
  });
  return {};
}

Result<void> stage_ops(const std::vector<BuiltOp>& ops, const fs::path& tree, const fs::path& stage,
                       ProcessRunner& processes, std::stop_token stop) {
  std::error_code error;
  fs::path fresh = stage.string() + ".new";
  fs::remove_all(fresh, error);
  auto install = [&](const std::string& component) -> Result<void> {
    Command command;
    command.argv = {"cmake",        "--install",   tree.string(), "--prefix",
                    fresh.string(), "--component", component};
    DSI_TRY(ProcessResult result, processes.run(command, Deadline::after(kInstallTime), stop));
    if (!result.ok()) return fail("cannot collect {}: {}", component, first_error_line(result.err));
    return {};
  };
  DSI_CHECK(install("ops_common"));
  for (const BuiltOp& op : ops) {
    if (op.built) DSI_CHECK(install("op_" + op.name));
  }
  fs::remove_all(stage, error);
  fs::rename(fresh, stage, error);
  if (error) return fail("cannot collect the ops in {}: {}", stage.string(), error.message());
  return {};
}

}  // namespace

Result<std::string> hash_sources(const BuildRequest& request) {
  Sha256 hash;
  DSI_CHECK(hash_folder(request.kernels, hash));
  for (const fs::path& folder : request.ops_folders) DSI_CHECK(hash_folder(folder, hash));
  return hash.hex();
}

fs::path build_folder(const fs::path& cache, const BuildRequest& request,
                      const std::string& sources) {
  nlohmann::json key = request.toolchain.as_map();
  key["cmake"] = request.toolchain.cmake;
  key["ninja"] = request.toolchain.ninja;
  key["torch_stamp"] = request.toolchain.torch.stamp;
  key["sources"] = sources;
  if (request.cuda) {
    key["cuda"] = {request.cuda->toolkit.nvcc.string(), request.cuda->toolkit.version,
                   to_string(request.cuda->archs)};
  }
  key["places"] = {fs::absolute(request.kernels).lexically_normal().string(),
                   request.toolchain.torch.prefix.string()};
  for (const fs::path& folder : request.ops_folders) {
    key["places"].push_back(fs::absolute(folder).lexically_normal().string());
  }
  for (const char* variable : {"CXX", "CC", "CXXFLAGS", "CFLAGS", "LDFLAGS", "CUDAFLAGS",
                               "CUDAHOSTCXX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"}) {
    if (const char* value = std::getenv(variable)) key[variable] = value;
  }
  std::string text = key.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return cache / "builds" / sha256_hex(text).substr(0, 20);
}

int default_jobs() {
  int cores = std::max(1u, std::thread::hardware_concurrency());
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  long kib = 0;
  while (meminfo >> word) {
    if (word == "MemAvailable:") {
      meminfo >> kib;
      break;
    }
  }
  if (kib == 0) return cores;
  constexpr long kPerCompiler = 2L << 20;  // KiB
  return std::clamp(static_cast<int>(kib / kPerCompiler), 1, cores);
}

Result<BuildResult> build_ops(const BuildRequest& request, const fs::path& cache,
                              ProcessRunner& processes, Progress& progress, std::stop_token stop) {
  BuildResult result;
  DSI_TRY(result.sources, hash_sources(request));
  fs::path folder = build_folder(cache, request, result.sources);
  fs::path tree = folder / "tree";
  std::error_code error;
  fs::create_directories(tree, error);
  if (error) {
    return fail_with_help(
        fmt::format("cannot make the build folder {}: {}", tree.string(), error.message()),
        "set XDG_CACHE_HOME to a folder that can be written");
  }
  DSI_TRY(UniqueFd lock, lock_folder(folder / "lock", progress, stop));
  result.log = folder / "build.log";
  std::ofstream log(result.log, std::ios::app);

  if (!fs::exists(tree / "build.ninja") || !fs::exists(tree / "ops.json")) {
    progress.update("Configuring", fmt::format("with torch {}", request.toolchain.torch.version));
    auto configured = configure(request, tree, log, processes, stop);
    if (!configured) {
      // A half-configured tree must not look like a whole one next time.
      fs::remove_all(tree, error);
      Error failure = configured.error();
      if (failure.help.empty()) failure.help = fmt::format("the log is {}", result.log.string());
      return tl::unexpected<Error>(failure);
    }
  }
  DSI_TRY(result.ops, read_ops(tree));
  DSI_CHECK(select_ops(request.ops, result.ops, result.left_out));

  std::vector<std::string> targets;
  for (const BuiltOp& op : result.ops) {
    if (op.error.what.empty()) targets.push_back("ds_" + op.name);
  }
  if (!targets.empty()) {
    DSI_TRY(Ninja ninja, run_ninja(tree, targets, request.jobs > 0 ? request.jobs : default_jobs(),
                                   log, processes, progress, stop));
    log.flush();
    result.fresh = ninja.did_something;
    for (BuiltOp& op : result.ops) {
      if (!op.error.what.empty()) continue;
      op.built = true;
      for (const auto& [outputs, output] : ninja.failures) {
        // The trailing delimiter keeps op "adam" apart from "adam_w".
        if (outputs.find("ds_" + op.name + ".") == std::string::npos &&
            outputs.find("ds_" + op.name + "/") == std::string::npos) {
          continue;
        }
        op.built = false;
        std::string line = first_error_line(output);
        op.error = {line.empty() ? "it does not compile" : line,
                    fmt::format("the log is {}", result.log.string())};
        break;
      }
    }
    if (!ninja.ok && std::all_of(result.ops.begin(), result.ops.end(),
                                 [](const BuiltOp& op) { return op.built; })) {
      return fail_with_help(
          "the build failed outside any op: " + first_error_line(ninja.failures.front().second),
          fmt::format("the log is {}", result.log.string()));
    }
  }

  // One stage a set of ops: a run for some of them must not take the others' files away.
  std::string names;
  for (const BuiltOp& op : result.ops) {
    if (op.built) names += op.name + ",";
  }
  result.stage = folder / ("stage-" + sha256_hex(names).substr(0, 12));
  if (result.fresh || !fs::exists(result.stage)) {
    progress.update("Collecting", "the libraries");
    DSI_CHECK(stage_ops(result.ops, tree, result.stage, processes, stop));
  }
  progress.clear();
  return result;
}

}  // namespace dsi
