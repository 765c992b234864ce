#include "orchestrator/toolchain.h"

#include <sys/utsname.h>

#include <array>
#include <cstdlib>
#include <regex>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

Result<std::string> output_of(ProcessRunner& processes, std::vector<std::string> argv,
                              std::string package, std::stop_token stop) {
  auto result = processes.run({argv, {}, {}}, Deadline::after(30s), stop);
  if (!result || !result->ok()) {
    return fail_with_help(fmt::format("{} does not run, and a build needs it: {}", argv.front(),
                                      result ? first_line(result->err) : result.error().what),
                          fmt::format("install it: apt-get install {}", package));
  }
  return result->out;
}

fs::path python_torch(ProcessRunner& processes, std::stop_token stop) {
  auto result = processes.run({{"python3", "-c",
                                "import importlib.util as u; s = u.find_spec('torch'); "
                                "print(s.submodule_search_locations[0] if s else '')"},
                               {},
                               {}},
                              Deadline::after(20s), stop);
  if (!result || !result->ok()) return {};
  return first_line(result->out);
}

}  // namespace

Result<Torch> inspect_torch(const fs::path& prefix) {
  Torch torch;
  torch.prefix = prefix;
  for (const fs::path& folder : {prefix / "lib", prefix / "lib64", prefix / "lib/x86_64-linux-gnu",
                                 prefix / "lib/aarch64-linux-gnu"}) {
    if (fs::exists(folder / "libtorch_cpu.so")) {
      torch.library = folder;
      break;
    }
  }
  fs::path header = prefix / "include/torch/csrc/api/include/torch/version.h";
  if (!fs::exists(header)) header = prefix / "include/torch/version.h";
  if (torch.library.empty() || !fs::exists(header)) {
    return fail_with_help(
        fmt::format("{} holds no libtorch: {} is not there", prefix.string(),
                    torch.library.empty() ? "lib/libtorch_cpu.so" : "include/torch/version.h"),
        "name a torch Python package folder, an unpacked libtorch, or /usr for Debian's "
        "libtorch-dev");
  }
  DSI_TRY(std::string text, read_file(header));
  torch.version = first_match(text, R"re(#define\s+TORCH_VERSION\s+(?:\\\s*)?"([^"]+)")re");
  // The Python package knows the variant too: 2.11.0+cu130.
  if (auto python = read_file(prefix / "version.py")) {
    std::string exact = first_match(*python, R"re(__version__\s*=\s*['"]([^'"]+)['"])re");
    if (!exact.empty()) torch.version = exact;
    // cuda: Optional[str] = '13.0', or None.
    torch.cuda = first_match(*python, R"re((?:^|\n)cuda\b[^=\n]*=\s*['"]([\d.]+)['"])re");
  } else if (auto build = read_file(prefix / "build-version")) {
    // An unpacked libtorch: 2.11.0+cu130.
    std::string exact = first_match(*build, R"(^\s*(\S+))");
    if (exact.starts_with(torch.version)) torch.version = exact;
  }
  std::error_code error;
  torch.has_cuda = fs::exists(torch.library / "libc10_cuda.so", error);
  if (torch.has_cuda && torch.cuda.empty()) {
    std::string digits = first_match(torch.version, R"(\+cu(\d{2,}))");
    if (!digits.empty()) {
      std::size_t minor = digits.size() - 1;
      torch.cuda = fmt::format("{}.{}", digits.substr(0, minor), digits.substr(minor));
    }
  }
  if (torch.version.empty()) {
    // 1.x has the numbers apart.
    auto number = [&](const char* part) {
      return first_match(text, fmt::format(R"(#define\s+TORCH_VERSION_{}\s+(\d+))", part).c_str());
    };
    torch.version = number("MAJOR") + "." + number("MINOR") + "." + number("PATCH");
  }
  if (auto cmake = read_file(prefix / "share/cmake/Torch/TorchConfig.cmake")) {
    torch.cxx11_abi = first_match(*cmake, R"(_GLIBCXX_USE_CXX11_ABI=(\d))") != "0";
  }
  fs::path library = torch.library / "libtorch_cpu.so";
  torch.stamp = fmt::format("{} {}", fs::file_size(library, error),
                            fs::last_write_time(library, error).time_since_epoch().count());
  return torch;
}

bool is_systems(const fs::path& torch_prefix) {
  std::error_code error;
  const fs::path headers = fs::weakly_canonical(torch_prefix / "include/torch", error);
  return !error && headers == fs::weakly_canonical("/usr/include/torch", error);
}

std::map<std::string, std::string> Toolchain::as_map() const {
  std::map<std::string, std::string> all = {
      {"arch", arch},   {"compiler", compiler},   {"cmake", cmake},
      {"ninja", ninja}, {"torch", torch.version}, {"torch_cxx11_abi", torch.cxx11_abi ? "1" : "0"}};
  if (!torch.cuda.empty()) all["torch_cuda"] = torch.cuda;
  if (!environment.empty()) all["environment"] = environment;
  return all;
}

Result<Toolchain> find_tools(ProcessRunner& processes, const std::string& compiler,
                             std::stop_token stop) {
  Toolchain toolchain;
  utsname name{};
  ::uname(&name);
  toolchain.arch = name.machine;

  DSI_TRY(std::string answer, output_of(processes, {compiler, "--version"}, "g++", stop));
  toolchain.compiler = first_line(answer);
  DSI_TRY(std::string cmake, output_of(processes, {"cmake", "--version"}, "cmake", stop));
  toolchain.cmake = first_match(cmake, R"(version (\S+))");
  DSI_TRY(std::string ninja, output_of(processes, {"ninja", "--version"}, "ninja-build", stop));
  toolchain.ninja = first_line(ninja);
  return toolchain;
}

Result<Torch> find_torch(ProcessRunner& processes, const fs::path& torch_option,
                         std::stop_token stop) {
  if (!torch_option.empty()) {
    DSI_TRY(Torch torch, inspect_torch(fs::absolute(torch_option).lexically_normal()));
    torch.found_by = "--torch";
    return torch;
  }
  if (fs::path python = python_torch(processes, stop); !python.empty()) {
    // Debian's python3-torch has its headers and libraries in the system's folders.
    if (auto torch = inspect_torch(python)) {
      torch->found_by = "python3";
      return torch;
    }
  }
  if (auto torch = inspect_torch("/usr")) {
    torch->found_by = "the system";
    return torch;
  }
  return fail_with_help("no libtorch is on this machine, and the ops are built against one",
                        "activate a Python environment that has torch, name one with --torch, or "
                        "apt-get install libtorch-dev");
}

Result<Toolchain> find_toolchain(ProcessRunner& processes, const fs::path& torch_option,
                                 std::stop_token stop) {
  const char* cxx = std::getenv("CXX");
  DSI_TRY(Toolchain toolchain,
          find_tools(processes, cxx != nullptr && *cxx != '\0' ? cxx : "c++", stop));
  DSI_TRY(toolchain.torch, find_torch(processes, torch_option, stop));
  return toolchain;
}

}  // namespace dsi
