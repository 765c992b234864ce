#include "orchestrator/patch.h"

#include <zstd.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>

#include "orchestrator/base/file.h"

namespace dsi {

namespace fs = std::filesystem;

Result<void> make_patch(const fs::path& base, const fs::path& target, const fs::path& patch) {
  DSI_TRY(std::string old, read_file(base));
  DSI_TRY(std::string text, read_file(target));
  std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  // The window must reach back from the target's end to the base's beginning.
  std::size_t reach = old.size() + text.size();
  int window = std::max(10, static_cast<int>(std::bit_width(reach)));
  int most = ZSTD_cParam_getBounds(ZSTD_c_windowLog).upperBound;
  if (window > most) return fail("{} is too large to be patched", target.string());
  // The best level for what is small; beyond, a patch must not take longer than sending the file.
  int level = reach <= (16u << 20) ? 19 : reach <= (128u << 20) ? 9 : 3;
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, window);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_enableLongDistanceMatching, 1);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 1);
  ZSTD_CCtx_refPrefix(context.get(), old.data(), old.size());
  std::string out(ZSTD_compressBound(text.size()), '\0');
  std::size_t n = ZSTD_compress2(context.get(), out.data(), out.size(), text.data(), text.size());
  if (ZSTD_isError(n) != 0) return fail("zstd: {}", ZSTD_getErrorName(n));
  out.resize(n);
  return write_file_atomically(patch, out);
}

}  // namespace dsi
