#include "cpu_isa.h"

#include <gtest/gtest.h>

namespace ds {
namespace {

CpuidWords modern() {
  CpuidWords words;
  words.leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
  words.leaf7_ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  words.leaf7_1_eax = 1u << 5;
  words.xcr0 = 0xe7;
  return words;
}

TEST(CpuIsa, A_machine_with_everything_takes_the_best_path) {
  EXPECT_EQ(isa_of(modern()), CpuIsa::avx512_bf16);
}

TEST(CpuIsa, Each_missing_instruction_set_costs_exactly_the_paths_that_need_it) {
  CpuidWords words = modern();
  words.leaf7_1_eax = 0;
  EXPECT_EQ(isa_of(words), CpuIsa::avx512);
  for (unsigned bit : {16u, 17u, 30u, 31u}) {
    words = modern();
    words.leaf7_ebx &= ~(1u << bit);
    EXPECT_EQ(isa_of(words), CpuIsa::avx2) << bit;
  }
  words = modern();
  words.leaf7_ebx &= ~(1u << 5);
  EXPECT_EQ(isa_of(words), CpuIsa::scalar);
  for (unsigned bit : {12u, 28u, 29u}) {
    words = modern();
    words.leaf1_ecx &= ~(1u << bit);
    EXPECT_EQ(isa_of(words), CpuIsa::scalar) << bit;
  }
}

TEST(CpuIsa, Registers_that_the_system_does_not_save_are_not_used) {
  CpuidWords words = modern();
  words.xcr0 = 0x07;
  EXPECT_EQ(isa_of(words), CpuIsa::avx2);
  words.xcr0 = 0x67;  // All but the upper 16 registers.
  EXPECT_EQ(isa_of(words), CpuIsa::avx2);
  words.xcr0 = 0x03;
  EXPECT_EQ(isa_of(words), CpuIsa::scalar);
  words.xcr0 = 0;
  EXPECT_EQ(isa_of(words), CpuIsa::scalar);
}

TEST(CpuIsa, The_cap_lowers_and_never_raises) {
  EXPECT_EQ(capped_isa(CpuIsa::avx512, nullptr), CpuIsa::avx512);
  EXPECT_EQ(capped_isa(CpuIsa::avx512, ""), CpuIsa::avx512);
  EXPECT_EQ(capped_isa(CpuIsa::avx512, "avx2"), CpuIsa::avx2);
  EXPECT_EQ(capped_isa(CpuIsa::avx2, "avx512_bf16"), CpuIsa::avx2);
  EXPECT_EQ(capped_isa(CpuIsa::avx512_bf16, "scalar"), CpuIsa::scalar);
  EXPECT_THROW(capped_isa(CpuIsa::avx2, "avx"), std::invalid_argument);
}

TEST(CpuIsa, This_machine_agrees_with_the_compiler) {
#if defined(__x86_64__)
  EXPECT_EQ(isa_of(read_cpuid()) >= CpuIsa::avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(isa_of(read_cpuid()) >= CpuIsa::avx512, __builtin_cpu_supports("avx512bw") != 0);
#endif
}

TEST(CpuIsa, A_path_that_this_machine_lacks_is_refused) {
  if (isa_of(read_cpuid()) == CpuIsa::avx512_bf16) GTEST_SKIP() << "this machine has every path";
  EXPECT_THROW(resolve_isa(CpuIsa::avx512_bf16), std::invalid_argument);
}

}  // namespace
}  // namespace ds
