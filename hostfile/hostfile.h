#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hostfile/diagnostic.h"
#include "hostfile/host.h"
#include "orchestrator/base/result.h"

// Reads the hostfiles of DeepSpeed, Open MPI and PRRTE, MPICH's Hydra, Intel MPI, Slurm, pdsh and
// PBS. FORMAT.md has the grammar. No function here throws, whatever the bytes are, and none gives
// back a host name that a program could take for an option or a shell for code.

namespace dsi {

struct ParsedHosts {
  std::vector<Host> hosts;              // In the order of the text; empty if there is an error.
  std::vector<Diagnostic> diagnostics;  // All of them, errors and warnings, by file and line.
  bool ok() const;                      // No error; warnings do not count.
};

// How `^path` is read. The default reads regular files of up to kMaxHostfileBytes.
using IncludeReader = std::function<Result<std::string>(const std::filesystem::path&)>;
Result<std::string> read_included_file(const std::filesystem::path& path);

inline constexpr std::size_t kMaxHostfileBytes = 16 * 1024 * 1024;
inline constexpr int kMaxIncludeDepth = 8;

// `file_name` stands in the diagnostics, and `^path` is relative to its folder.
ParsedHosts parse_hostfile(std::string_view text, std::string_view file_name,
                           const IncludeReader& include = read_included_file);

// Also from a pipe: -H <(command).
ParsedHosts read_hostfile(const std::filesystem::path& path);

// The value of --hosts or of SLURM_JOB_NODELIST: `node[01-08],-node03,user@gw:2222,^file`. Here,
// and not in a hostfile, `:n` is a port. `source` stands in the diagnostics.
ParsedHosts parse_host_list(std::string_view text, std::string_view source = "--hosts",
                            const IncludeReader& include = read_included_file);

}  // namespace dsi
