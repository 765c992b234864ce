#include "orchestrator/node_facts.h"

#include <nlohmann/json.hpp>

namespace dsi {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeCpu, model, isa, avx512_bf16, hypervisor, cores,
                                                numa_nodes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeMemory, bytes, available_bytes, shm_bytes,
                                                locked_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeLibc, name, glibc, glibcxx, cxxabi, libstdcxx)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodePlace, path, at, known, free_bytes,
                                                counts_inodes, free_inodes, read_only, no_exec,
                                                writable, file_system, source, network, share)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeGpu, name, compute_capability, memory_mib, mig)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeDriver, version, cuda, devices_on_bus, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeToolkit, path, version, nvcc)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeTorch, path, version, cuda, abi)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeLock, path, age_s)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeFacts, host_name, arch, kernel, user, root,
                                                sudo, shell, cpu, memory, prefix, temp, extensions,
                                                libc, libraries, absent_libraries, torch, packages,
                                                toolkits, locks, gpus, driver, clock_ns)

Result<NodeFacts> parse_node_facts(std::string_view text) {
  try {
    auto facts = json::parse(text).get<NodeFacts>();
    facts.known = true;
    return facts;
  } catch (const json::exception& e) {
    return fail("what the host says about itself is malformed: {}", e.what());
  }
}

NodeFacts read_answer(std::string_view text, std::chrono::system_clock::time_point asked,
                      std::chrono::system_clock::time_point answered) {
  using Clock = std::chrono::system_clock;
  auto parsed = parse_node_facts(text);
  if (!parsed) {
    NodeFacts unknown;
    unknown.unknown_because = parsed.error().what;
    return unknown;
  }
  NodeFacts facts = *std::move(parsed);
  // Its clock stood there at some time between our question and its answer.
  Clock::time_point there{
      std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(facts.clock_ns))};
  auto off = there > answered ? there - answered
             : there < asked  ? there - asked
                              : Clock::duration(0);
  facts.clock_off_s = std::chrono::duration<double>(off).count();
  return facts;
}

json to_json(const NodeFacts& facts) {
  if (!facts.known) return {{"known", false}, {"because", facts.unknown_because}};
  json all;
  to_json(all, facts);
  all["known"] = true;
  all["clock_off_s"] = facts.clock_off_s;
  return all;
}

}  // namespace dsi
