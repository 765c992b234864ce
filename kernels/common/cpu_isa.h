#pragma once

// Which code path this machine can run. Read from CPUID and XGETBV by hand: the compiler's own
// test differs between compilers and versions in the names it knows.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "ds_types.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ds {

struct CpuidWords {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_1_eax = 0;
  std::uint64_t xcr0 = 0;  // Which registers the operating system saves; 0 without OSXSAVE.
};

inline const char* isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::automatic:
      return "automatic";
    case CpuIsa::scalar:
      return "scalar";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::avx512_bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

// Pure, so that machines that are not here can be tested.
inline CpuIsa isa_of(const CpuidWords& words) {
  const auto has = [](std::uint32_t word, std::uint32_t bits) { return (word & bits) == bits; };
  constexpr std::uint32_t kFmaAvxF16c = 1u << 12 | 1u << 28 | 1u << 29;
  constexpr std::uint32_t kAvx2 = 1u << 5;
  constexpr std::uint32_t kAvx512FDqBwVl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  constexpr std::uint32_t kAvx512Bf16 = 1u << 5;
  if ((words.xcr0 & 0x06) != 0x06 || !has(words.leaf1_ecx, kFmaAvxF16c) ||
      !has(words.leaf7_ebx, kAvx2)) {
    return CpuIsa::scalar;
  }
  // A kernel or hypervisor may hide the 512-bit registers though the CPU has the instructions.
  if ((words.xcr0 & 0xe6) != 0xe6 || !has(words.leaf7_ebx, kAvx512FDqBwVl)) return CpuIsa::avx2;
  return has(words.leaf7_1_eax, kAvx512Bf16) ? CpuIsa::avx512_bf16 : CpuIsa::avx512;
}

inline CpuidWords read_cpuid() {
  CpuidWords words;
#if defined(__x86_64__)
  std::uint32_t eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return words;
  words.leaf1_ecx = ecx;
  if ((ecx & 1u << 27) != 0) {
    std::uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.xcr0 = static_cast<std::uint64_t>(high) << 32 | low;
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return words;
  words.leaf7_ebx = ebx;
  if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) words.leaf7_1_eax = eax;
#endif
  return words;
}

// `cap` is the value of DS_CPU_ISA, or null. A name that does not exist is refused: a typing error
// in a diagnosis must not look like a finding.
inline CpuIsa capped_isa(CpuIsa found, const char* cap) {
  if (cap == nullptr || *cap == '\0') return found;
  for (CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16}) {
    if (std::strcmp(cap, isa_name(isa)) == 0) return isa < found ? isa : found;
  }
  throw std::invalid_argument(std::string("DS_CPU_ISA is \"") + cap +
                              "\"; it can be scalar, avx2, avx512 or avx512_bf16");
}

// The best path of this machine under DS_CPU_ISA, which is read once.
inline CpuIsa best_isa() {
  static const CpuIsa isa = capped_isa(isa_of(read_cpuid()), std::getenv("DS_CPU_ISA"));
  return isa;
}

inline CpuIsa resolve_isa(CpuIsa asked) {
  static const CpuIsa machine = isa_of(read_cpuid());
  if (asked == CpuIsa::automatic) return best_isa();
  if (asked <= machine) return asked;
  throw std::invalid_argument(std::string("this machine cannot run the code path ") +
                              isa_name(asked) + "; its best is " + isa_name(machine));
}

}  // namespace ds
