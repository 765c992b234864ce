#include "orchestrator/facts/kernel.h"
#include "orchestrator/facts/look.h"

// <elf.h> is of libc, but needs nothing of it.
#include <elf.h>

namespace dsi::facts {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kCacheFlags = 0x0303;  // x86-64, libc6.
constexpr std::uint16_t kMachine = EM_X86_64;
constexpr Str kFolders[] = {"/usr/local/lib",
                            "/lib/x86_64-linux-gnu",
                            "/usr/lib/x86_64-linux-gnu",
                            "/lib64",
                            "/usr/lib64",
                            "/lib",
                            "/usr/lib"};
#else
constexpr std::uint32_t kCacheFlags = 0x0a03;  // AArch64, libc6.
constexpr std::uint16_t kMachine = EM_AARCH64;
constexpr Str kFolders[] = {"/usr/local/lib",
                            "/lib/aarch64-linux-gnu",
                            "/usr/lib/aarch64-linux-gnu",
                            "/lib64",
                            "/usr/lib64",
                            "/lib",
                            "/usr/lib"};
#endif

// Little-endian, at any address; zeroes where the file ends before.
template <typename T>
T at(Str bytes, std::uint64_t offset) {
  T value{};
  if (offset <= bytes.size() && sizeof(T) <= bytes.size() - offset) {
    __builtin_memcpy(&value, bytes.data() + offset, sizeof(T));
  }
  return value;
}

Str text_at(Str bytes, std::uint64_t offset) {
  Str rest = part(bytes, offset);
  return take(rest, '\0');
}

// Which versions a library defines: the highest of each family, "GLIBCXX" → "3.4.30".
struct Highest {
  Str family;
  Str version;
};

class Versions {
 public:
  explicit Versions(Str bytes) : bytes_(bytes) {}

  // `families` have their versions set, as far as there are any.
  void find(Highest* families, std::size_t count) {
    auto header = at<Elf64_Ehdr>(bytes_, 0);
    if (!bytes_.starts_with("\177ELF") || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != kMachine ||
        header.e_phentsize != sizeof(Elf64_Phdr)) {
      return;
    }
    header_ = header;
    std::uint64_t definitions = 0;
    std::uint64_t strings = 0;
    std::uint64_t number = 0;
    for (unsigned i = 0; i < header.e_phnum; ++i) {
      auto segment = this->segment(i);
      if (segment.p_type != PT_DYNAMIC) continue;
      for (std::uint64_t k = 0; k < segment.p_filesz; k += sizeof(Elf64_Dyn)) {
        auto entry = at<Elf64_Dyn>(bytes_, segment.p_offset + k);
        if (entry.d_tag == DT_NULL) break;
        if (entry.d_tag == DT_VERDEF) definitions = offset_of(entry.d_un.d_ptr);
        if (entry.d_tag == DT_STRTAB) strings = offset_of(entry.d_un.d_ptr);
        if (entry.d_tag == DT_VERDEFNUM) number = entry.d_un.d_val;
      }
    }
    if (definitions == 0 || strings == 0) return;
    // The count is the file's word; no library has a tenth as many.
    for (std::uint64_t i = 0; i < number && i < 4096; ++i) {
      auto definition = at<Elf64_Verdef>(bytes_, definitions);
      auto name = at<Elf64_Verdaux>(bytes_, definitions + definition.vd_aux);
      note(text_at(bytes_, strings + name.vda_name), families, count);
      if (definition.vd_next == 0) break;
      definitions += definition.vd_next;
    }
  }

 private:
  Elf64_Phdr segment(unsigned i) const {
    return at<Elf64_Phdr>(bytes_, header_.e_phoff + std::uint64_t{i} * sizeof(Elf64_Phdr));
  }
  std::uint64_t offset_of(std::uint64_t address) const {
    for (unsigned i = 0; i < header_.e_phnum; ++i) {
      Elf64_Phdr load = segment(i);
      if (load.p_type == PT_LOAD && address >= load.p_vaddr &&
          address - load.p_vaddr < load.p_filesz) {
        return address - load.p_vaddr + load.p_offset;
      }
    }
    return 0;
  }
  static void note(Str name, Highest* families, std::size_t count) {
    Str version = name;
    Str family = take(version, '_');
    if (version.empty() || version.find_first_not_of("0123456789.") != kNowhere) return;
    for (std::size_t i = 0; i < count; ++i) {
      if (family == families[i].family && version_less(families[i].version, version)) {
        families[i].version = join({version});
      }
    }
  }

  Str bytes_;
  Elf64_Ehdr header_{};
};

}  // namespace

bool Libraries::is_system_folder(Str folder) {
  for (Str one : kFolders) {
    if (folder == one) return true;
  }
  return false;
}

Libraries::Libraries() {
  // ld.so.cache(5): a header of 48 bytes, then entries of flags, name, path, os version, hwcap.
  constexpr Str kMagic = "glibc-ld.so.cache1.1";
  Str cache = read_file("/etc/ld.so.cache", 16u << 20);
  // The older form may stand before the newer one.
  Str bytes = part(cache, facts::find(cache, kMagic));
  auto count = at<std::uint32_t>(bytes, 20);
  for (std::uint64_t i = 0; i < count && 48 + 24 * (i + 1) <= bytes.size(); ++i) {
    std::uint64_t entry = 48 + 24 * i;
    // Not those for a processor that has more than the least one.
    if ((at<std::uint32_t>(bytes, entry) & 0xffff) != kCacheFlags ||
        at<std::uint64_t>(bytes, entry + 16) != 0) {
      continue;
    }
    entries_.add({text_at(bytes, at<std::uint32_t>(bytes, entry + 4)),
                  text_at(bytes, at<std::uint32_t>(bytes, entry + 8))});
  }
}

Str Libraries::find(Str name) const {
  for (Str folder : first_) {
    Str path = join({folder, "/", name});
    if (exists(path)) return path;
  }
  for (const Entry& entry : entries_) {
    if (entry.name == name && exists(entry.path)) return entry.path;
  }
  for (Str folder : kFolders) {
    Str path = join({folder, "/", name});
    if (exists(path)) return path;
  }
  return {};
}

Str Libraries::find_beginning(Str beginning) const {
  for (const Entry& entry : entries_) {
    if (entry.name.starts_with(beginning) && exists(entry.path)) return entry.path;
  }
  for (Str folder : kFolders) {
    for (Str name : names_in(folder, 16384)) {
      if (name.starts_with(beginning)) return join({folder, "/", name});
    }
  }
  return {};
}

void look_at_libraries(Json& json, const Libraries& libraries) {
  Str c = libraries.find("libc.so.6");
  Str cxx = libraries.find("libstdc++.so.6");
  Highest found[] = {{"GLIBC", {}}, {"GLIBCXX", {}}, {"CXXABI", {}}};
  Versions(Mapped(c).bytes()).find(found, 1);
  Versions(Mapped(cxx).bytes()).find(found + 1, 2);
  json.open("libc");
  if (!found[0].version.empty()) {
    json.text("name", "glibc");
  } else if (exists("/lib/ld-musl-x86_64.so.1") || exists("/lib/ld-musl-aarch64.so.1")) {
    json.text("name", "musl");
  }
  json.text("glibc", found[0].version);
  json.text("glibcxx", found[1].version);
  json.text("cxxabi", found[2].version);
  json.text("libstdcxx", cxx);
  json.close();

  // What ops, torch and DeepSpeed load by these names, and nothing else brings along.
  constexpr Str kNames[] = {
      "libaio.so.1",       "libaio.so.1t64",   "libccl.so.1",    "libcublas.so.11",
      "libcublas.so.12",   "libcublas.so.13",  "libcuda.so.1",   "libcudart.so.11.0",
      "libcudart.so.12",   "libcudart.so.13",  "libcufile.so.0", "libcurand.so.10",
      "libgomp.so.1",      "libibverbs.so.1",  "libmpi.so.40",   "libnccl.so.2",
      "libnvidia-ml.so.1", "libstdc++.so.6",   "liburing.so.1",  "liburing.so.2",
      "libnuma.so.1",      "libopenblas.so.0",
  };
  List<Str> absent;
  json.open("libraries");
  for (Str name : kNames) {
    Str path = libraries.find(name);
    json.text(name, path);
    if (path.empty()) absent.add(name);
  }
  json.close();
  json.open_list("absent_libraries");
  for (Str name : absent) json.text("", name);
  json.close_list();
}

}  // namespace dsi::facts
