#include "orchestrator/agent/hold.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

namespace dsi::agent {

using nlohmann::json;

std::string find_hold(const std::string& prefix) {
  auto root = Folder::open(prefix);
  if (!root || !root->exists(kHoldName)) return "";
  // One that cannot be read is still one: nothing is changed by mistake.
  return protocol::to_text(protocol::parse_hold(root->read_file(kHoldName).value_or("")));
}

Result<void> respect_hold(const std::string& prefix, const protocol::Care& care,
                          protocol::HostResult& result) {
  if (care.ignore_holds) return {};
  const std::string text = find_hold(prefix);
  if (text.empty()) return {};
  result.result = "held";
  return fail_with_help("held " + text, "ds-install unhold ends that; --ignore-holds goes past it");
}

Result<void> change_hold(const std::string& path, const protocol::HoldRequest& request, Wire& wire,
                         protocol::HostResult& result) {
  result.result = request.hold ? "held" : "unheld";
  if (!request.hold && ::access(path.c_str(), F_OK) != 0) return {};
  DSI_TRY(Prefix prefix, Prefix::lock(path, {request.run, request.by},
                                      std::chrono::seconds(request.lock_timeout_s), wire));
  if (request.hold) {
    const json hold = {
        {"by", request.by}, {"time", utc_now()}, {"run", request.run}, {"reason", request.reason}};
    return prefix.root().write_file(
        kHoldName, hold.dump(-1, ' ', false, json::error_handler_t::replace) + "\n", 0644);
  }
  DSI_CHECK(prefix.root().remove(kHoldName));
  prefix.leave_no_trace();
  return {};
}

}  // namespace dsi::agent
