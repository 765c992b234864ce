#include "orchestrator/node_facts.h"

#include <nlohmann/json.hpp>
#include <set>

// null is what could not be found out. This version of the library knows no std::optional.
template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& to, const std::optional<T>& value) {
    if (value) {
      to = *value;
    } else {
      to = nullptr;
    }
  }
  static void from_json(const json& from, std::optional<T>& value) {
    value = from.is_null() ? std::optional<T>() : std::optional<T>(from.get<T>());
  }
};

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
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeTorch, path, version, cuda, abi, with_cuda,
                                                searched)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeLock, path, age_s)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeFacts, host_name, arch, kernel, user, root,
                                                sudo, shell, cpu, memory, prefix, temp, extensions,
                                                libc, libraries, absent_libraries, torch, packages,
                                                toolkits, locks, gpus, gpus_known, driver, clock_ns)

namespace {

// null is what to_json() writes for what is not known; ds-facts leaves it out.
void drop_nulls(json& value) {
  if (value.is_object()) {
    for (auto at = value.begin(); at != value.end();) {
      at = at->is_null() ? value.erase(at) : std::next(at);
    }
  }
  if (value.is_structured()) {
    for (json& part : value) drop_nulls(part);
  }
}

}  // namespace

Result<NodeFacts> parse_node_facts(std::string_view text) {
  try {
    json said = json::parse(text);
    drop_nulls(said);
    auto facts = said.get<NodeFacts>();
    facts.known = true;
    return facts;
  } catch (const json::exception& e) {
    return fail("what the host says about itself is malformed: {}", e.what());
  }
}

namespace {

// An empty text is a fact that was not found, but for these: they say what is not the matter.
void null_what_is_empty(json& object) {
  static const std::set<std::string> kNone = {"hypervisor", "error", "share"};
  for (auto& item : object.items()) {
    json& value = item.value();
    if (value.is_string() && value.get_ref<const std::string&>().empty() &&
        !kNone.contains(item.key())) {
      value = nullptr;
    } else if (value.is_structured()) {
      null_what_is_empty(value);
    }
  }
}

}  // namespace

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
  if (!facts.clock_ns) return facts;
  Clock::time_point there{
      std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(*facts.clock_ns))};
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
  null_what_is_empty(all);
  all["known"] = true;
  all["clock_off_s"] = facts.clock_off_s;
  return all;
}

}  // namespace dsi
