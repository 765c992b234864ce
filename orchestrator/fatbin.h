#pragma once

// Which GPUs the device code in a shared object is for.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

// What the fatbins in the bytes of a section `.nv_fatbin` hold: "8.0" and "9.0a" are machine code,
// "9.0+PTX" is what the driver compiles for that GPU and later ones. Sorted, each once. Bytes that
// are no fatbin are skipped.
std::vector<std::string> compute_capabilities_in(std::string_view section);

// The same of a file; empty if it has no device code.
Result<std::vector<std::string>> read_compute_capabilities(const std::filesystem::path& file);

// True if code for one of `has` runs on a GPU of compute capability `gpu` ("9.0").
bool runs_on(const std::vector<std::string>& has, std::string_view gpu);

}  // namespace dsi
