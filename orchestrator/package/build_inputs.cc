#include "orchestrator/package/build_inputs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "orchestrator/base/result.h"

extern char** environ;

namespace dsi {

namespace fs = std::filesystem;

namespace {

// GCC's, Clang's, nvcc's, Python's own and those of the build systems that wheels are made with.
constexpr std::string_view kNames[] = {"AR",
                                       "ARCHFLAGS",
                                       "ARFLAGS",
                                       "AS",
                                       "BASECFLAGS",
                                       "CC",
                                       "CFLAGS",
                                       "COMPILER_PATH",
                                       "CPATH",
                                       "CPLUS_INCLUDE_PATH",
                                       "CPP",
                                       "CPPFLAGS",
                                       "CUDACXX",
                                       "CUDAFLAGS",
                                       "CUDAHOSTCXX",
                                       "CUDA_HOME",
                                       "CUDA_PATH",
                                       "CUDNN_HOME",
                                       "CUTLASS_PATH",
                                       "CXX",
                                       "CXXFLAGS",
                                       "C_INCLUDE_PATH",
                                       "FC",
                                       "FFLAGS",
                                       "FORCE_CUDA",
                                       "GCC_EXEC_PREFIX",
                                       "LD",
                                       "LDCXXSHARED",
                                       "LDFLAGS",
                                       "LDSHARED",
                                       "LD_LIBRARY_PATH",
                                       "LD_RUN_PATH",
                                       "LIBRARY_PATH",
                                       "LIBS",
                                       "MAKEFLAGS",
                                       "OPT",
                                       "PYTHONPATH",
                                       "RUSTFLAGS",
                                       "SOURCE_DATE_EPOCH"};
constexpr std::string_view kPrefixes[] = {
    "CARGO_",      "CMAKE_",    "DISTUTILS_", "DS_",   "HIP_",        "MESON_",   "NVCC_",
    "PKG_CONFIG_", "PYBIND11_", "PYTORCH_",   "ROCM_", "SETUPTOOLS_", "SKBUILD_", "TORCH_"};
// Named by many a setup.py, and another one at each login; or, as ccache, no part of what is made.
constexpr std::string_view kNeverCount[] = {"CMAKE_BUILD_PARALLEL_LEVEL",
                                            "CMAKE_CUDA_COMPILER_LAUNCHER",
                                            "CMAKE_CXX_COMPILER_LAUNCHER",
                                            "CMAKE_C_COMPILER_LAUNCHER",
                                            "DS_NVCC_THREADS",
                                            "HOME",
                                            "LANG",
                                            "LOGNAME",
                                            "MAX_JOBS",
                                            "NVCC_THREADS",
                                            "PATH",
                                            "PWD",
                                            "SHELL",
                                            "TERM",
                                            "TMPDIR",
                                            "USER",
                                            "CUDA_VISIBLE_DEVICES"};

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// The words of a text that could be names of variables.
std::set<std::string, std::less<>> words_in(std::string_view text) {
  std::set<std::string, std::less<>> words;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_word_character(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && is_word_character(text[end])) ++end;
    words.emplace(text.substr(at, end - at));
    at = end;
  }
  return words;
}

// "flash-attn" → "FLASH_ATTN_"
std::string prefix_of(std::string_view package) {
  std::string prefix;
  for (char c : package) {
    prefix +=
        is_word_character(c) ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : '_';
  }
  return prefix.empty() ? prefix : prefix + '_';
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Where a command's program is: "ccache gcc" → "/usr/bin/ccache". Empty: nowhere.
fs::path program_of(const std::string& command, const std::string& path) {
  const std::string name = command.substr(0, command.find(' '));
  if (name.empty()) return {};
  if (name.find('/') != std::string::npos) return name;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    fs::path file = fs::path(path.substr(begin, end - begin)) / name;
    if (::access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return {};
}

}  // namespace

std::map<std::string, std::string> build_variables(std::string_view package,
                                                   std::string_view build_files) {
  const std::set<std::string, std::less<>> named = words_in(build_files);
  const std::string own = prefix_of(package);
  auto counts = [&](std::string_view name) {
    auto is_in = [&](const auto& list) {
      return std::find(std::begin(list), std::end(list), name) != std::end(list);
    };
    if (is_in(kNeverCount)) return false;
    return is_in(kNames) || named.contains(name) || (!own.empty() && name.starts_with(own)) ||
           std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                       [&](std::string_view prefix) { return name.starts_with(prefix); });
  };
  std::map<std::string, std::string> variables;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view line = *at;
    const std::size_t equals = line.find('=');
    if (equals == line.npos || !counts(line.substr(0, equals))) continue;
    variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return variables;
}

std::string build_path(const std::string& executable) {
  std::string path = variable("PATH");
  const std::string folder = fs::path(executable).parent_path().string();
  if (folder.empty() || (":" + path + ":").find(":" + folder + ":") != std::string::npos) {
    return path;
  }
  return folder + (path.empty() ? "" : ":" + path);
}

std::map<std::string, std::string> build_tools(const std::string& path) {
  const std::string cc = variable("CC");
  const std::string cxx = variable("CXX");
  std::string cuda = variable("CUDA_HOME");
  if (cuda.empty()) cuda = variable("CUDA_PATH");
  std::map<std::string, std::string> tools;
  for (const auto& [name, command] :
       {std::pair<std::string, std::string>{"cc", cc.empty() ? "cc" : cc},
        {"c++", cxx.empty() ? "c++" : cxx},
        {"nvcc", cuda.empty() ? "nvcc" : cuda + "/bin/nvcc"},
        {"as", "as"},
        {"ld", "ld"},
        {"cmake", "cmake"},
        {"ninja", "ninja"}}) {
    std::error_code error;
    const fs::path file = fs::canonical(program_of(command, path), error);
    struct stat status {};
    if (error || ::stat(file.c_str(), &status) != 0) continue;
    tools[name] = fmt::format("{} {} {}.{:09}", file.string(), status.st_size,
                              status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return tools;
}

}  // namespace dsi
