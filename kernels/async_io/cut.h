#pragma once

// How a range of a file is cut into operations that the device takes as they are. Pure.

#include <algorithm>
#include <cstdint>

namespace ds {

struct CutRules {
  bool write;
  bool direct;                // Past the page cache; false: any range will do.
  std::int64_t block;         // Longest operation; a multiple of align.
  std::int64_t bounce;        // Longest that goes through memory of our own; a multiple of align.
  std::int64_t align;         // Of offsets and lengths of direct operations.
  std::int64_t memory_align;  // Of their addresses.
};

// [begin, end) is what was asked for, [io_begin, io_end) what is read or written for it.
struct Cut {
  std::int64_t begin, end;
  std::int64_t io_begin, io_end;
  bool direct;
  bool bounce;  // Through memory of our own.
};

// The first operation of [begin, end), which is not empty; `address` is where its first byte lies
// in memory. Reads take in the whole pages around their ends. Writes must not: the bytes around
// them may be another writer's at the same moment, so a page that is written in part is left to
// the page cache, which knows both.
inline Cut next_cut(const CutRules& rules, std::int64_t begin, std::int64_t end,
                    std::uintptr_t address) {
  if (!rules.direct) {
    const std::int64_t stop = std::min(end, begin + rules.block);
    return {begin, stop, begin, stop, false, false};
  }
  const std::int64_t page = begin / rules.align * rules.align;
  const std::int64_t last_page = end / rules.align * rules.align;
  const bool memory_fits = address % static_cast<std::uintptr_t>(rules.memory_align) == 0;
  if (page != begin) {  // The rest of a page, and for a read what follows it.
    const std::int64_t stop = std::min(end, rules.write ? page + rules.align : page + rules.bounce);
    if (rules.write) return {begin, stop, begin, stop, false, false};
    const std::int64_t io_end = (stop + rules.align - 1) / rules.align * rules.align;
    return {begin, stop, page, io_end, true, true};
  }
  if (begin == last_page) {  // The beginning of a page.
    if (rules.write) return {begin, end, begin, end, false, false};
    return {begin, end, begin, begin + rules.align, true, true};
  }
  if (!memory_fits && !rules.write && end - begin <= rules.bounce) {
    return {begin, end, begin, (end + rules.align - 1) / rules.align * rules.align, true, true};
  }
  const std::int64_t stop = std::min(last_page, begin + (memory_fits ? rules.block : rules.bounce));
  // A short read that only its last page spoils is one operation rather than two.
  if (!rules.write && stop == last_page && end != last_page && end - begin <= rules.bounce) {
    return {begin, end, begin, last_page + rules.align, true, true};
  }
  return {begin, stop, begin, stop, true, !memory_fits};
}

// A write so short that its whole pages are not worth an operation of their own goes through the
// page cache as a whole.
inline bool is_worth_direct(const CutRules& rules, std::int64_t begin, std::int64_t end) {
  if (!rules.write || (begin % rules.align == 0 && end % rules.align == 0)) return true;
  return end - begin >= (std::int64_t{64} << 10);
}

}  // namespace ds
