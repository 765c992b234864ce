#include "utils.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "self_test_frame.h"

namespace ds {
namespace {

// Less is copied before a second thread has woken.
constexpr std::int64_t kBytesPerThread = std::int64_t{1} << 18;

// Bytes [begin, end) of the run.
void copy_range(char* out, const UtilsPiece* pieces, const std::vector<std::int64_t>& starts,
                std::int64_t begin, std::int64_t end) {
  auto i = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), begin) -
                                    starts.begin() - 1);
  while (begin < end) {
    const std::int64_t inside = begin - starts[i];
    const std::int64_t bytes = std::min(end - begin, pieces[i].size - inside);
    if (bytes > 0) {
      std::memcpy(out + begin, static_cast<const char*>(pieces[i].data) + inside,
                  static_cast<std::size_t>(bytes));
      begin += bytes;
    }
    ++i;
  }
}

}  // namespace

void utils_flatten(void* out, const UtilsPiece* pieces, std::size_t count, int threads) {
  std::vector<std::int64_t> starts;
  starts.reserve(count);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (pieces[i].size < 0 || (pieces[i].size > 0 && pieces[i].data == nullptr)) {
      throw std::invalid_argument("utils_flatten: piece " + std::to_string(i) + " has " +
                                  std::to_string(pieces[i].size) + " bytes at " +
                                  (pieces[i].data == nullptr ? "null" : "an address"));
    }
    starts.push_back(total);
    total += pieces[i].size;
  }
  if (total == 0) return;
  if (out == nullptr) throw std::invalid_argument("utils_flatten: there is nothing to write to");
  const std::int64_t most = threads > 0 ? threads : omp_get_max_threads();
  const std::int64_t parts = std::max<std::int64_t>(1, std::min(most, total / kBytesPerThread));
  auto* const to = static_cast<char*>(out);
  if (parts == 1) return copy_range(to, pieces, starts, 0, total);
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static)
  for (std::int64_t part = 0; part < parts; ++part) {
    // Whole cache lines, so that no two threads write to one.
    const auto cut = [&](std::int64_t n) {
      return n == parts ? total : total / parts * n / 64 * 64;
    };
    copy_range(to, pieces, starts, cut(part), cut(part + 1));
  }
}

}  // namespace ds

int ds_self_test_utils(const char* device, char* detail, unsigned long detail_size) {
  return ds::self_test_on_cpu(device, detail, detail_size, [](const auto& say) {
    std::vector<unsigned char> source(700'001);
    for (std::size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<unsigned char>(i * 2654435761u >> 11);
    }
    std::vector<ds::UtilsPiece> pieces;
    for (std::size_t at = 0, size = 0; at < source.size(); at += size) {
      size = std::min(source.size() - at, pieces.size() * 37 % 5000);
      pieces.push_back({source.data() + at, static_cast<std::int64_t>(size)});
    }
    for (const int threads : {1, 0}) {
      std::vector<unsigned char> got(source.size());
      ds::utils_flatten(got.data(), pieces.data(), pieces.size(), threads);
      const auto differs = std::mismatch(got.begin(), got.end(), source.begin());
      if (differs.first != got.end()) {
        say("byte " + std::to_string(differs.first - got.begin()) + " is " +
            std::to_string(*differs.first) + ", should be " + std::to_string(*differs.second));
        return DS_SELF_TEST_WRONG;
      }
    }
    say(std::to_string(pieces.size()) + " pieces as one, every byte the same");
    return DS_SELF_TEST_OK;
  });
}
