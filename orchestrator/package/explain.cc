#include "orchestrator/package/explain.h"

#include <algorithm>
#include <array>
#include <regex>
#include <vector>

#include "orchestrator/text.h"

namespace dsi {

namespace {

struct Pattern {
  const char* found;  // A regular expression, matched against single lines.
  const char* what;   // "{}" is its first group, if it has one.
  const char* help;
};

// The more telling ones first: one cause often has several of these in its log.
constexpr Pattern kPatterns[] = {
    {R"(detected CUDA version \(?([\d.]+)\)? mismatches the version that was used)",
     "the CUDA {} that compiles is not the one that torch was built with",
     "set CUDA_HOME to a toolkit of torch's CUDA version, or install a torch for this one; "
     "DS_SKIP_CUDA_CHECK=1 lets another minor version pass"},
    {R"(Installed CUDA version ([\d.]+) does not match the version torch was compiled with)",
     "the CUDA {} that compiles is not the one that torch was built with",
     "set CUDA_HOME to a toolkit of torch's CUDA version, or install a torch for this one; "
     "DS_SKIP_CUDA_CHECK=1 lets another minor version pass"},
    {R"(CUDA_HOME does not exist, unable to compile CUDA op)",
     "there is no CUDA toolkit, and an op needs one",
     "install one of torch's CUDA version and set CUDA_HOME, here only; the hosts need none"},
    {R"((?:No such file or directory|not found).*'?(:[^' ]*nvcc))",
     "CUDA_HOME begins with a colon, as in {}",
     "take the colon out: CUDA_HOME is one folder, not a list"},
    {R"(CUDA_HOME environment variable is not set)",
     "there is no CUDA toolkit, or it was not found",
     "set CUDA_HOME to the folder that has bin/nvcc; only this machine needs it"},
    {R"(nvcc fatal\s*: Unsupported gpu architecture '([^']+)')",
     "this nvcc does not compile for {}",
     "set TORCH_CUDA_ARCH_LIST to what the hosts' GPUs are and nvcc --list-gpu-arch has"},
    {R"(Unknown CUDA arch \(([^)]+)\))", "torch does not know the architecture {}",
     "set TORCH_CUDA_ARCH_LIST to numbers that this torch knows, such as 8.0;9.0"},
    {R"(ValueError: invalid literal for int\(\) with base 10: '(\d+[a-z]+)')",
     "DeepSpeed cannot read the architecture {} in TORCH_CUDA_ARCH_LIST",
     "write it without letters: 9.0, not 9.0a or Hopper, and without a ';' at the end"},
    {R"(#error -- unsupported GNU version! gcc versions later than (\d+))",
     "nvcc takes gcc up to version {} only, and the compiler here is newer",
     "install that gcc and set CC, CXX and NVCC_PREPEND_FLAGS=-ccbin to it"},
    {R"(fatal error: Python\.h: No such file)", "Python.h is not there",
     "apt-get install python3-dev, or use an environment that brings its headers"},
    {R"(fatal error: pybind11/[^:]+: No such file)",
     "pybind11's headers are not there, which Debian's torch includes",
     "apt-get install pybind11-dev"},
    {R"(fatal error: libaio\.h: No such file)", "libaio.h is not there",
     "apt-get install libaio-dev, or leave the op out with DS_BUILD_AIO=0"},
    {R"(fatal error: (cutlass/[^:]+): No such file)", "CUTLASS is not there: {}",
     "set CUTLASS_PATH to a checkout of CUTLASS, or leave the op out with "
     "DS_BUILD_EVOFORMER_ATTN=0"},
    {R"(fatal error: (cu(?:blas|rand|sparse|solver|fft|da)[^:]*): No such file)",
     "a header of the CUDA toolkit is not there: {}",
     "the toolkit is incomplete; install its development packages, or set CUDA_HOME to a whole "
     "one"},
    {R"(fatal error: ([^:]+): No such file)", "the header {} is not there",
     "install the development package that has it; the log says which op asks for it"},
    {R"(cannot find -l(cu\w+|nv\w+))", "the library {} of CUDA is not found by the linker",
     "put the folder that has it, lib64 of the toolkit or pip's nvidia/…/lib, into LIBRARY_PATH"},
    {R"(cannot find -laio)", "libaio is not found by the linker",
     "apt-get install libaio-dev, or leave the op out with DS_BUILD_AIO=0"},
    {R"(cannot find -l([\w+-]+))", "the library {} is not found by the linker",
     "install its development package, or put its folder into LIBRARY_PATH"},
    {R"(Unable to pre-compile ops without torch installed)",
     "the Python that builds has no torch, and DeepSpeed's ops are compiled against it",
     "install torch there, or name the Python that has it with --python"},
    {R"(CPU_Accelerator requires intel_extension_for_pytorch)",
     "the CPU accelerator of this DeepSpeed needs intel_extension_for_pytorch",
     "set DS_ACCELERATOR=cuda, which needs no GPU: its CPU ops are built there as well"},
    {R"(No module named '([\w.]+)')", "the project's build imports {}, which is not there",
     "install it into the Python that builds; nothing is fetched for a build"},
    {R"(You need C\+\+(\d+) to compile PyTorch)", "this torch needs C++{}",
     "the project is older than this torch; take a newer one, or an older torch"},
    {R"(Ninja is required to load C\+\+ extensions)", "torch does not find ninja",
     "apt-get install ninja-build, or pip install ninja into the Python that builds"},
    {R"(error: command '?([\w./+-]*(?:gcc|g\+\+|c\+\+|cc))'? failed: No such file)",
     "the compiler {} is not there", "apt-get install g++"},
    {R"(unable to execute '([^']+)': No such file)", "the compiler {} is not there",
     "apt-get install g++"},
    {R"((?:fatal error: )?Killed(?: signal terminated program (\w+))?)",
     "a compiler was killed, most likely for want of memory",
     "--jobs 1 compiles one file at a time; each may need 4 GiB"},
    {R"(No space left on device)", "the disk is full",
     "free space below the cache and /tmp; XDG_CACHE_HOME and TMPDIR move them"},
    {R"(undefined symbol: (\w+))", "a compiled part asks for {}, which nothing here has",
     "it was compiled against another torch or C++ ABI; give --clean to build it anew"},
    {R"(GLIBCXX_(3\.4\.\d+)' not found)", "the libstdc++ that is loaded has no GLIBCXX_{}",
     "the environment brings an older libstdc++ than the compiler's; update it there"},
    {R"(error: invalid command 'bdist_wheel')", "the Python that builds cannot make wheels",
     "install wheel into it, with its own pip"},
    {R"(SSL: CERTIFICATE_VERIFY_FAILED|Temporary failure in name resolution|Network is unreachable)",
     "the build tries to fetch something and cannot",
     "fetch it beforehand; submodules are fetched with -e"},
};

}  // namespace

Error explain_failure(std::string_view log) {
  for (const Pattern& pattern : kPatterns) {
    const std::regex expression(pattern.found, std::regex::optimize);
    for (std::size_t at = 0; at < log.size();) {
      std::size_t end = std::min(log.find('\n', at), log.size());
      // A link command of ten thousand characters is no message, and std::regex would recurse.
      std::string_view line = log.substr(at, std::min<std::size_t>(end - at, 2000));
      at = end + 1;
      std::match_results<std::string_view::const_iterator> match;
      if (!std::regex_search(line.begin(), line.end(), match, expression)) continue;
      std::string what = pattern.what;
      if (std::size_t hole = what.find("{}"); hole != std::string::npos) {
        what.replace(hole, 2, printable(match[1].str()));
      }
      return {what, pattern.help};
    }
  }
  return {};
}

std::string failing_part(std::string_view log) {
  // After a failure pip runs `setup.py clean` and repeats itself.
  for (std::string_view end :
       {"error: subprocess-exited-with-error", "ERROR: Failed building wheel"}) {
    if (std::size_t at = log.find(end); at != log.npos) log = log.substr(0, at);
  }
  constexpr int kBefore = 1;
  constexpr int kAfter = 12;
  constexpr int kTail = 25;
  constexpr std::size_t kWidth = 200;
  std::vector<std::string_view> lines;
  std::size_t first = std::string_view::npos;
  for (std::size_t at = 0; at < log.size();) {
    const std::size_t end = std::min(log.find('\n', at), log.size());
    const std::string_view line = log.substr(at, end - at);
    at = end + 1;
    const bool failed = line.find("error: ") != line.npos || line.find("nvcc fatal") != line.npos ||
                        line.find("fatal error") != line.npos;
    if (failed && first == std::string_view::npos) first = lines.size();
    if (!line.empty()) lines.push_back(line);
  }
  std::size_t begin = lines.size() > kTail ? lines.size() - kTail : 0;
  std::size_t end = lines.size();
  if (first != std::string_view::npos) {
    begin = first > kBefore ? first - kBefore : 0;
    end = std::min(lines.size(), first + kAfter);
  }
  std::string part;
  for (std::size_t i = begin; i < end; ++i) {
    part += (part.empty() ? "    " : "\n    ") + truncated(printable(lines[i]), kWidth);
  }
  return part;
}

}  // namespace dsi
