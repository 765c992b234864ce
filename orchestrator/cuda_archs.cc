#include "orchestrator/cuda_archs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

#include "orchestrator/elf.h"
#include "orchestrator/text.h"

namespace dsi {

namespace {

using std::string_view;

struct NamedArchs {
  string_view name;  // In small letters.
  string_view archs;
};
// torch's own names (torch.utils.cpp_extension).
constexpr std::array<NamedArchs, 16> kNames = {{
    {"kepler+tesla", "3.7"},
    {"kepler", "3.5+PTX"},
    {"maxwell+tegra", "5.3"},
    {"maxwell", "5.0;5.2+PTX"},
    {"pascal", "6.0;6.1+PTX"},
    {"volta+tegra", "7.2"},
    {"volta", "7.0+PTX"},
    {"turing", "7.5+PTX"},
    {"ampere+tegra", "8.7"},
    {"ampere", "8.0;8.6+PTX"},
    {"ada", "8.9+PTX"},
    {"hopper", "9.0+PTX"},
    {"blackwell+tegra", "11.0"},
    {"blackwell", "10.0;10.3;12.0;12.1+PTX"},
    {"auto", ""},
    {"native", ""},
}};

std::string lower(string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool all_digits(string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

int number(string_view digits) {
  int value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// "9.0a", "90a", "sm_90", "compute_120f"; `word` in small letters, without "+ptx".
bool read_numbers(string_view word, CudaArch& arch) {
  bool virtual_arch = word.starts_with("compute_");
  for (string_view prefix : {"sm_", "compute_"}) {
    if (word.starts_with(prefix)) word.remove_prefix(prefix.size());
  }
  if (word.ends_with('a') || word.ends_with('f')) {
    arch.suffix = word.back();
    word.remove_suffix(1);
  }
  string_view major = word;
  string_view minor;
  if (std::size_t dot = word.find('.'); dot != word.npos) {
    major = word.substr(0, dot);
    minor = word.substr(dot + 1);
  } else if (word.size() >= 2) {
    major = word.substr(0, word.size() - 1);
    minor = word.substr(word.size() - 1);
  }
  if (!all_digits(major) || !all_digits(minor) || major.size() > 3 || minor.size() > 1)
    return false;
  arch.major = number(major);
  arch.minor = number(minor);
  // "compute_80" is PTX by another name.
  arch.ptx = arch.ptx || virtual_arch;
  return arch.major >= 2;
}

// One device once: PTX if any of them asks for it.
std::vector<CudaArch> sorted_once(std::vector<CudaArch> archs) {
  std::sort(archs.begin(), archs.end());
  std::vector<CudaArch> once;
  for (const CudaArch& arch : archs) {
    bool same = !once.empty() && once.back().major == arch.major &&
                once.back().minor == arch.minor && once.back().suffix == arch.suffix;
    if (same) {
      once.back().ptx = once.back().ptx || arch.ptx;
    } else {
      once.push_back(arch);
    }
  }
  return once;
}

Error unknown(string_view word, std::size_t column, string_view source) {
  std::vector<std::string> names;
  for (const NamedArchs& named : kNames) names.emplace_back(named.name);
  std::string meant = closest(lower(word), names);
  if (!meant.empty())
    meant[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(meant[0])));
  return {
      fmt::format("{}:{}: \"{}\" is no NVIDIA architecture", source, column + 1, printable(word)),
      meant.empty() ? "write compute capabilities with ; between: 8.0;9.0a;12.0+PTX"
                    : fmt::format("did you mean {}?", meant)};
}

Result<void> add_word(string_view word, std::size_t column, string_view source,
                      std::vector<CudaArch>& archs) {
  std::string small = lower(word);
  for (const NamedArchs& named : kNames) {
    // "Ampere+PTX": the name, and PTX of its last.
    bool ptx = small == std::string(named.name) + "+ptx";
    if (small != named.name && !ptx) continue;
    DSI_TRY(std::vector<CudaArch> more, parse_cuda_archs(named.archs, source));
    if (ptx && !more.empty()) more.back().ptx = true;
    archs.insert(archs.end(), more.begin(), more.end());
    return {};
  }
  CudaArch arch;
  constexpr string_view kPtx = "+ptx";
  string_view numbers = small;
  if (numbers.ends_with(kPtx)) {
    arch.ptx = true;
    numbers.remove_suffix(kPtx.size());
  }
  if (!read_numbers(numbers, arch)) return tl::unexpected(unknown(word, column, source));
  archs.push_back(arch);
  return {};
}

// "12.4" of "12.4.1".
std::string major_minor(string_view version) {
  std::size_t dot = version.find('.');
  std::size_t second = dot == version.npos ? dot : version.find('.', dot + 1);
  return std::string(version.substr(0, second));
}
string_view major_of(string_view version) {
  return version.substr(0, version.find('.'));
}

}  // namespace

std::string to_string(const CudaArch& arch) {
  std::string text = fmt::format("{}.{}", arch.major, arch.minor);
  if (arch.suffix != 0) text += arch.suffix;
  return text + (arch.ptx ? "+PTX" : "");
}

std::string to_string(const std::vector<CudaArch>& archs) {
  std::string text;
  for (const CudaArch& arch : archs) text += (text.empty() ? "" : ";") + to_string(arch);
  return text;
}

Result<std::vector<CudaArch>> parse_cuda_archs(string_view text, string_view source) {
  constexpr string_view kBetween = ";, \t\n\r\"'";
  std::vector<CudaArch> archs;
  for (std::size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != text.npos;) {
    std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    DSI_CHECK(add_word(text.substr(at, end - at), at, source, archs));
    at = end;
  }
  return sorted_once(std::move(archs));
}

std::vector<CudaArch> archs_of_devices(const std::vector<std::string>& compute_capabilities) {
  std::vector<CudaArch> archs;
  for (const std::string& capability : compute_capabilities) {
    CudaArch arch;
    if (read_numbers(capability, arch)) archs.push_back(arch);
  }
  return sorted_once(std::move(archs));
}

ClampedArchs clamp_archs(const std::vector<CudaArch>& wanted,
                         const std::vector<std::string>& nvcc_codes) {
  ClampedArchs result;
  std::vector<CudaArch> known;
  for (const std::string& code : nvcc_codes) {
    CudaArch arch;
    if (code.starts_with("sm_") && read_numbers(lower(code), arch)) known.push_back(arch);
  }
  std::sort(known.begin(), known.end());
  if (known.empty()) return {wanted, {}};  // It does not say what it knows.
  auto same_device = [](const CudaArch& a, const CudaArch& b) {
    return a.major == b.major && a.minor == b.minor;
  };
  for (const CudaArch& arch : wanted) {
    // Every nvcc that knows a device knows what is special to it; older ones do not list it.
    auto at = std::find_if(known.begin(), known.end(),
                           [&](const CudaArch& one) { return same_device(one, arch); });
    if (at != known.end()) {
      result.archs.push_back(arch);
      continue;
    }
    // The newest that is not newer than the device: its PTX, if that is special to no device, runs.
    auto below = std::find_if(known.rbegin(), known.rend(), [&](const CudaArch& one) {
      return one.suffix == 0 && std::pair(one.major, one.minor) < std::pair(arch.major, arch.minor);
    });
    if (below == known.rend() || arch.suffix != 0) {
      result.remarks.push_back(fmt::format("{} is left out: this nvcc compiles for {} to {}",
                                           to_string(arch), to_string(known.front()),
                                           to_string(known.back())));
      continue;
    }
    CudaArch replacement = *below;
    replacement.ptx = true;
    result.remarks.push_back(fmt::format("{} becomes {}: this nvcc does not know {}.{}",
                                         to_string(arch), to_string(replacement), arch.major,
                                         arch.minor));
    result.archs.push_back(replacement);
  }
  result.archs = sorted_once(std::move(result.archs));
  return result;
}

Result<std::string> check_toolkit(const std::string& toolkit, const std::string& torch_cuda,
                                  bool skip) {
  if (skip) return std::string();
  if (torch_cuda.empty()) {
    return fail_with_help("torch is built without CUDA, and code for devices needs one with it",
                          "name another torch with --torch, or leave the ops for devices out");
  }
  std::string ours = major_minor(toolkit);
  std::string theirs = major_minor(torch_cuda);
  if (major_of(ours) != major_of(theirs)) {
    return fail_with_help(
        fmt::format("the CUDA toolkit is {}, torch is built with CUDA {}", toolkit, torch_cuda),
        fmt::format("install a toolkit {}.x, name one with CUDA_HOME, or set DS_SKIP_CUDA_CHECK=1 "
                    "if you know that it works",
                    major_of(theirs)));
  }
  if (ours == theirs) return std::string();
  return fmt::format(
      "the CUDA toolkit is {}, torch is built with CUDA {}; within one major version "
      "that works",
      toolkit, torch_cuda);
}

int choose_toolkit(const std::vector<std::string>& toolkits, const std::string& torch_cuda) {
  int best = -1;
  // Smaller is better: the same, then above, then below.
  auto rank = [&](const std::string& version) {
    std::string minor = major_minor(version);
    std::string wanted = major_minor(torch_cuda);
    return minor == wanted ? 0 : version_less(wanted, minor) ? 1 : 2;
  };
  for (std::size_t i = 0; i < toolkits.size(); ++i) {
    const std::string& one = toolkits[i];
    if (one.empty() || major_of(one) != major_of(torch_cuda)) continue;
    if (best < 0) {
      best = static_cast<int>(i);
      continue;
    }
    const std::string& other = toolkits[static_cast<std::size_t>(best)];
    bool better = rank(one) != rank(other) ? rank(one) < rank(other)
                  : rank(one) == 1         ? version_less(one, other)  // The nearest above.
                                           : version_less(other, one);         // The highest.
    if (better) best = static_cast<int>(i);
  }
  return best;
}

std::string sane_cuda_home(string_view value) {
  while (!value.empty()) {
    std::size_t colon = std::min(value.find(':'), value.size());
    std::string_view part = value.substr(0, colon);
    value.remove_prefix(std::min(colon + 1, value.size()));
    auto strip = [&part](string_view end) {
      while (part.size() > 1 && part.ends_with('/')) part.remove_suffix(1);
      if (part.ends_with(end)) part.remove_suffix(end.size());
    };
    strip("/nvcc");
    strip("/bin");
    strip("");
    while (part.size() > 1 && part.ends_with('/')) part.remove_suffix(1);
    if (part.starts_with('/') && part.size() > 1) return std::string(part);
  }
  return {};
}

}  // namespace dsi
