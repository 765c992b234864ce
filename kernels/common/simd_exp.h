// e^x for the code path DS_ISA, the same bits on each. Included by a kernel file, which
// for_each_isa.h compiles once per path; hence no #pragma once.

namespace ds::DS_ISA {
namespace {

// Within 2 ulp for -86.5 <= x <= 88; less gives 0, more is taken as 88, NaN stays NaN.
//   x = n·ln 2 + r with n whole and |r| <= ln 2 / 2;  e^x = 2^n · (1 + r + r²/2! + … + r⁷/7!)
// The series ends where its next term is below 6e-9. ln 2 in two parts, the first of so few bits
// that n times it is exact.
DS_TARGET DS_INLINE Vec exp(Vec x) {
  const Vec shift = set1(0x1.8p23f);  // Adding it rounds to a whole number.
  const Vec capped = smaller(set1(88.0f), x);
  const Vec shifted = capped * set1(0x1.715476p+0f) + shift;
  const Vec n = shifted - shift;
  const Vec r = capped - n * set1(0x1.62ep-1f) - n * set1(0x1.0bfbe8p-15f);
  Vec sum = set1(1.0f / 5040.0f);
  sum = sum * r + set1(1.0f / 720.0f);
  sum = sum * r + set1(1.0f / 120.0f);
  sum = sum * r + set1(1.0f / 24.0f);
  sum = sum * r + set1(1.0f / 6.0f);
  sum = sum * r + set1(0.5f);
  sum = sum * r + set1(1.0f);
  sum = sum * r + set1(1.0f);
  return unless_below(x, set1(-86.5f), add_exponent(sum, shifted));
}

}  // namespace
}  // namespace ds::DS_ISA
