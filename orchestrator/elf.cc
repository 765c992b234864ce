#include "orchestrator/elf.h"

#include <fcntl.h>
#include <gelf.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>

#include "orchestrator/base/unique_fd.h"

namespace dsi {

namespace {

struct ElfEnd {
  void operator()(Elf* elf) const { elf_end(elf); }
};

std::string machine_name(unsigned machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_PPC64:
      return "ppc64le";
    default:
      return fmt::format("machine {}", machine);
  }
}

// "GLIBC_2.34" → family GLIBC, version 2.34. Versions without a number (GLIBC_PRIVATE) say nothing.
void note_version(std::map<std::string, std::string>& symbols, std::string_view name) {
  std::size_t at = name.rfind('_');
  if (at == std::string_view::npos || at + 1 == name.size()) return;
  std::string_view version = name.substr(at + 1);
  if (version.find_first_not_of("0123456789.") != std::string_view::npos) return;
  std::string& highest = symbols[std::string(name.substr(0, at))];
  if (highest.empty() || version_less(highest, version)) highest = version;
}

// GNU_PROPERTY_X86_ISA_1_NEEDED of the x86-64 psABI: bit 0 is the baseline, bit 3 x86-64-v4.
constexpr std::uint32_t kIsaNeeded = 0xc0008002;

// Of a section .note.gnu.property: notes of name "GNU", each an array of type, size and value, the
// values at multiples of 8.
int isa_level_in(std::string_view section) {
  auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    if (at + sizeof value <= section.size()) {
      std::memcpy(&value, section.data() + at, sizeof value);
    }
    return value;
  };
  constexpr std::size_t kNote = 16;  // Sizes of name and value, type, "GNU" and its zero.
  for (std::size_t note = 0; note + kNote <= section.size();) {
    std::size_t end = std::min<std::size_t>(section.size(), note + kNote + word(note + 4));
    std::size_t at = note + kNote;
    while (at + 12 <= end) {
      if (word(at) == kIsaNeeded && word(at + 4) == 4) {
        int level = std::bit_width(word(at + 8) & 0xfu);
        return level < 2 ? 0 : level;
      }
      at += 8 + (std::size_t{word(at + 4)} + 7) / 8 * 8;
    }
    note = (end + 7) / 8 * 8;
  }
  return 0;
}

}  // namespace

bool version_less(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    unsigned long x = 0;
    unsigned long y = 0;
    auto take = [](std::string_view& text, unsigned long& number) {
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      text.remove_prefix(static_cast<std::size_t>(end - text.data()));
      if (!text.empty()) text.remove_prefix(1);
    };
    take(a, x);
    take(b, y);
    if (x != y) return x < y;
  }
  return false;
}

Result<bool> defines_symbol(const std::filesystem::path& path, std::string_view symbol) {
  elf_version(EV_CURRENT);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", path.string()));
  std::unique_ptr<Elf, ElfEnd> elf(elf_begin(fd.get(), ELF_C_READ_MMAP, nullptr));
  if (!elf || elf_kind(elf.get()) != ELF_K_ELF) return fail("{} is no ELF file", path.string());
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr shape;
    if (gelf_getshdr(section, &shape) == nullptr || shape.sh_type != SHT_DYNSYM ||
        shape.sh_entsize == 0) {
      continue;
    }
    Elf_Data* data = elf_getdata(section, nullptr);
    if (data == nullptr) continue;
    for (int i = 0; i < static_cast<int>(shape.sh_size / shape.sh_entsize); ++i) {
      GElf_Sym entry;
      if (gelf_getsym(data, i, &entry) == nullptr || entry.st_shndx == SHN_UNDEF) continue;
      const char* name = elf_strptr(elf.get(), shape.sh_link, entry.st_name);
      if (name != nullptr && symbol == name) return true;
    }
  }
  return false;
}

Result<ElfNeeds> read_elf_needs(const std::filesystem::path& path) {
  elf_version(EV_CURRENT);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno(errno, fmt::format("cannot read {}", path.string()));
  std::unique_ptr<Elf, ElfEnd> elf(elf_begin(fd.get(), ELF_C_READ, nullptr));
  GElf_Ehdr header;
  if (!elf || elf_kind(elf.get()) != ELF_K_ELF || gelf_getehdr(elf.get(), &header) == nullptr) {
    return fail("{} is no ELF file", path.string());
  }
  ElfNeeds needs;
  needs.machine = machine_name(header.e_machine);
  std::size_t names = 0;
  elf_getshdrstrndx(elf.get(), &names);
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr shape;
    if (gelf_getshdr(section, &shape) == nullptr) continue;
    auto name_at = [&](std::size_t offset) {
      const char* name = elf_strptr(elf.get(), shape.sh_link, offset);
      return std::string(name != nullptr ? name : "");
    };
    Elf_Data* data = elf_getdata(section, nullptr);
    if (data == nullptr) continue;
    if (shape.sh_type == SHT_DYNAMIC && shape.sh_entsize > 0) {
      for (int i = 0; i < static_cast<int>(shape.sh_size / shape.sh_entsize); ++i) {
        GElf_Dyn entry;
        if (gelf_getdyn(data, i, &entry) != nullptr && entry.d_tag == DT_NEEDED) {
          needs.libraries.push_back(name_at(entry.d_un.d_val));
        }
      }
    } else if (shape.sh_type == SHT_NOTE && header.e_machine == EM_X86_64) {
      const char* name = elf_strptr(elf.get(), names, shape.sh_name);
      if (name != nullptr && std::string_view(name) == ".note.gnu.property") {
        needs.isa_level = isa_level_in({static_cast<const char*>(data->d_buf), data->d_size});
      }
    } else if (shape.sh_type == SHT_GNU_verneed) {
      GElf_Verneed need;
      std::size_t at = 0;
      for (GElf_Word i = 0; i < shape.sh_info; ++i) {
        if (gelf_getverneed(data, static_cast<int>(at), &need) == nullptr) break;
        GElf_Vernaux version;
        std::size_t version_at = at + need.vn_aux;
        for (int k = 0; k < need.vn_cnt; ++k) {
          if (gelf_getvernaux(data, static_cast<int>(version_at), &version) == nullptr) break;
          note_version(needs.symbols, name_at(version.vna_name));
          version_at += version.vna_next;
        }
        if (need.vn_next == 0) break;
        at += need.vn_next;
      }
    }
  }
  return needs;
}

}  // namespace dsi
