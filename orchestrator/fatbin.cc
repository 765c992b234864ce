// The layout was read from what nvcc 13.0 writes, and agrees with what others have published. A
// section holds containers, little-endian, each at a multiple of 8:
//
//   u32 magic 0xBA55ED50   u16 version   u16 size of this header   u64 size of what follows
//
// then entries until that size is used up, each a header and a payload:
//
//   0 u16 kind (1 PTX, 2 machine code)   4 u32 size of this header   8 u64 size of the payload
//   28 u32 architecture (90)             40 u64 flags: bit 20 is the "a" of 90a, bit 21 the "f"

#include "orchestrator/fatbin.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gelf.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <tuple>

#include "orchestrator/base/unique_fd.h"

namespace dsi {

namespace {

constexpr std::uint32_t kMagic = 0xBA55ED50;
constexpr std::size_t kContainerHeader = 16;
constexpr std::size_t kLeastEntryHeader = 48;
constexpr std::uint16_t kPtx = 1;
constexpr std::uint16_t kMachineCode = 2;
constexpr std::uint64_t kArchSpecific = 1u << 20;
constexpr std::uint64_t kFamilySpecific = 1u << 21;

template <typename T>
T number_at(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Sorts as people expect: 9.0 before 10.0.
using Capability = std::tuple<std::uint32_t, std::string, bool>;  // 90, "a", whether it is PTX.

void read_entries(std::string_view entries, std::set<Capability>& found) {
  while (entries.size() >= kLeastEntryHeader) {
    const auto kind = number_at<std::uint16_t>(entries, 0);
    const std::uint64_t header = number_at<std::uint32_t>(entries, 4);
    const auto payload = number_at<std::uint64_t>(entries, 8);
    if (header < kLeastEntryHeader || header > entries.size() ||
        payload > entries.size() - header) {
      return;
    }
    const auto flags = number_at<std::uint64_t>(entries, 40);
    if (kind == kPtx || kind == kMachineCode) {
      const char* suffix = (flags & kArchSpecific) != 0     ? "a"
                           : (flags & kFamilySpecific) != 0 ? "f"
                                                            : "";
      found.emplace(number_at<std::uint32_t>(entries, 28), suffix, kind == kPtx);
    }
    entries.remove_prefix(header + payload);
  }
}

struct ElfEnd {
  void operator()(Elf* elf) const { elf_end(elf); }
};

// "9.0a+PTX" → 9, 0, "a", true.
bool split(std::string_view text, int& major, int& minor, std::string_view& suffix, bool& ptx) {
  ptx = text.ends_with("+PTX");
  if (ptx) text.remove_suffix(4);
  auto [dot, e1] = std::from_chars(text.data(), text.data() + text.size(), major);
  if (e1 != std::errc() || dot == text.data() + text.size() || *dot != '.') return false;
  auto [end, e2] = std::from_chars(dot + 1, text.data() + text.size(), minor);
  suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  return e2 == std::errc();
}

}  // namespace

std::vector<std::string> compute_capabilities_in(std::string_view section) {
  std::set<Capability> found;
  for (std::size_t at = 0; at + kContainerHeader <= section.size();) {
    if (number_at<std::uint32_t>(section, at) != kMagic) {
      at += 8;
      continue;
    }
    const auto header = number_at<std::uint16_t>(section, at + 6);
    const auto size = number_at<std::uint64_t>(section, at + 8);
    if (header < kContainerHeader || header > section.size() - at ||
        size > section.size() - at - header) {
      at += 8;
      continue;
    }
    read_entries(section.substr(at + header, size), found);
    at += (header + size + 7) / 8 * 8;
  }
  std::vector<std::string> texts;
  for (const auto& [arch, suffix, ptx] : found) {
    texts.push_back(fmt::format("{}.{}{}{}", arch / 10, arch % 10, suffix, ptx ? "+PTX" : ""));
  }
  return texts;
}

Result<std::vector<std::string>> read_compute_capabilities(const std::filesystem::path& file) {
  elf_version(EV_CURRENT);
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", file.string()));
  std::unique_ptr<Elf, ElfEnd> elf(elf_begin(fd.get(), ELF_C_READ_MMAP, nullptr));
  std::size_t names = 0;
  if (!elf || elf_kind(elf.get()) != ELF_K_ELF || elf_getshdrstrndx(elf.get(), &names) != 0) {
    return fail("{} is no ELF file", file.string());
  }
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr shape;
    if (gelf_getshdr(section, &shape) == nullptr) continue;
    const char* name = elf_strptr(elf.get(), names, shape.sh_name);
    if (name == nullptr || std::string_view(name) != ".nv_fatbin") continue;
    Elf_Data* data = elf_getdata(section, nullptr);
    if (data == nullptr || data->d_buf == nullptr) continue;
    return compute_capabilities_in({static_cast<const char*>(data->d_buf), data->d_size});
  }
  return std::vector<std::string>{};
}

bool runs_on(const std::vector<std::string>& has, std::string_view gpu) {
  int gpu_major = 0;
  int gpu_minor = 0;
  std::string_view rest;
  bool ptx = false;
  if (!split(gpu, gpu_major, gpu_minor, rest, ptx)) return false;
  for (const std::string& text : has) {
    int major = 0;
    int minor = 0;
    std::string_view suffix;
    if (!split(text, major, minor, suffix, ptx)) continue;
    const bool same = major == gpu_major && minor == gpu_minor;
    const bool later_minor = major == gpu_major && minor <= gpu_minor;
    if (suffix == "a" ? same : later_minor) return true;
    if (ptx && suffix.empty() && major < gpu_major) return true;
  }
  return false;
}

}  // namespace dsi
