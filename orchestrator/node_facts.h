#pragma once

// What a node is, as ds-facts (orchestrator/facts) says it. Whatever could not be found out is an
// empty text or an empty optional, and never guessed: 0 is a number that was found. What is plain
// says beside it when it counts.

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"

namespace dsi {

struct NodeCpu {
  std::string model;
  std::string isa;  // "x86-64-v1" to "x86-64-v4" as the psABI has them; "armv8-a", "armv8-a+sve".
  std::optional<bool> avx512_bf16;
  std::string hypervisor;  // "KVMKVMKVM"; "TCGTCGTCGTCG": emulated. Empty: none shows itself.
  std::optional<std::uint64_t> cores;  // That this user may use.
  std::optional<std::uint64_t> numa_nodes;
};

struct NodeMemory {
  std::optional<std::uint64_t> bytes;
  std::optional<std::uint64_t> available_bytes;
  std::optional<std::uint64_t> shm_bytes;     // Free in /dev/shm; empty also: no tmpfs is there.
  std::optional<std::uint64_t> locked_bytes;  // That a process may lock; INT64_MAX: no limit.
};

struct NodeLibc {
  std::string name;  // "glibc", "musl".
  // Highest symbol versions that the libraries define: "2.36", "3.4.30", "1.3.13".
  std::string glibc;
  std::string glibcxx;
  std::string cxxabi;
  std::string libstdcxx;  // Path of the C++ library.
};

// A folder and what it lies on.
struct NodePlace {
  std::string path;
  std::string at;      // The nearest folder above that exists.
  bool known = false;  // False: the rest says nothing.
  std::optional<std::uint64_t> free_bytes;
  bool counts_inodes = false;  // False: there is no limit.
  std::optional<std::uint64_t> free_inodes;
  bool read_only = false;
  bool no_exec = false;
  bool writable = false;
  std::string file_system;  // "ext4", "nfs4".
  std::string source;       // What is mounted: "/dev/sda1", "server:/export".
  bool network = false;
  std::string share;  // Of a network file system: the folder's name, the same on all that see it.
};

struct NodeGpu {
  std::string name;
  std::string compute_capability;  // "9.0"
  std::optional<std::uint64_t> memory_mib;
  std::optional<bool> mig;
  friend bool operator==(const NodeGpu&, const NodeGpu&) = default;
};

struct NodeDriver {
  std::string version;                          // "550.54.15"
  std::string cuda;                             // The CUDA level that it supports: "12.4".
  std::optional<std::uint64_t> devices_on_bus;  // NVIDIA devices, with or without a driver.
  std::string error;                            // Why nvidia-smi does not say more.
};

struct NodeToolkit {
  std::string path;
  std::string version;
  bool nvcc = false;
};

struct NodeTorch {
  std::string path;  // The folder of its libraries.
  std::string version;
  std::string cuda;  // That it was compiled with; empty: without, or unknown.
  std::string abi;   // "cxx11", "old".
  std::optional<bool> with_cuda;
  bool searched =
      false;  // Where `path` is empty: true, there is none; false, it was not found out.
};

struct NodeLock {
  std::string path;
  std::uint64_t age_s = 0;
};

struct NodeFacts {
  bool known = false;  // False: nobody could look, and `unknown_because` says why.
  std::string unknown_because;
  std::string host_name;
  std::string arch;
  std::string kernel;
  std::string user;
  bool root = false;
  bool sudo = false;  // It worked without a password, and we are under it.
  std::string shell;
  NodeCpu cpu;
  NodeMemory memory;
  NodePlace prefix;
  NodePlace temp;
  NodePlace extensions;  // torch's folder of extensions that are compiled when used.
  NodeLibc libc;
  std::map<std::string, std::string> libraries;  // Of those that ds-facts looks for: name, path.
  std::vector<std::string> absent_libraries;     // Those of them that are not there.
  NodeTorch torch;
  std::map<std::string, std::string> packages;  // Of Python's, the few that matter: name, version.
  std::vector<NodeToolkit> toolkits;
  std::vector<NodeLock> locks;  // In that folder.
  std::vector<NodeGpu> gpus;
  bool gpus_known = false;  // False: there may be others.
  NodeDriver driver;
  std::optional<std::int64_t> clock_ns;  // Since 1970, when it answered.

  // What only the head can know.
  // How far its clock is ahead of ours, beyond what the round trip explains.
  std::optional<double> clock_off_s;
};

// Of the text that ds-facts prints.
Result<NodeFacts> parse_node_facts(std::string_view json);

// Of the text with which a host answered between these two times of our clock. What is malformed is
// unknown, and says so.
NodeFacts read_answer(std::string_view json, std::chrono::system_clock::time_point asked,
                      std::chrono::system_clock::time_point answered);

nlohmann::json to_json(const NodeFacts& facts);

}  // namespace dsi
