#include "orchestrator/agent/nodes.h"

#include <sys/utsname.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "orchestrator/agent/prefix.h"

namespace dsi::agent {

using nlohmann::json;

namespace {

constexpr std::size_t kDay = 10;  // Of a time as text: 2026-11-30

std::string own_name() {
  utsname system{};
  ::uname(&system);
  return system.nodename;
}

}  // namespace

Nodes Nodes::read(const Folder& root) {
  Nodes nodes;
  const json all = json::parse(root.read_file(kNodesName).value_or(""), nullptr, false);
  if (!all.is_object()) return nodes;
  try {
    for (const auto& [name, node] : all.at("nodes").items()) {
      nodes.nodes_[name] = {node.at("looked").get<std::string>(),
                            node.at("may_use").get<std::set<std::string>>()};
    }
    nodes.known_ = true;
  } catch (const json::exception&) {
    nodes.nodes_.clear();
  }
  return nodes;
}

bool Nodes::may_be_used(const std::string& release) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& node) { return node.second.may_use.contains(release); });
}

bool Nodes::is_shared() const {
  return nodes_.size() > 1 || (nodes_.size() == 1 && nodes_.begin()->first != own_name());
}

void Nodes::set_own(const std::set<std::string>& releases) {
  const std::string now = utc_now();
  Node& own = nodes_[own_name()];
  if (own.may_use != releases || own.looked.substr(0, kDay) != now.substr(0, kDay)) {
    own = {now, releases};
    changed_ = true;
  }
  const std::string oldest = utc_text(std::time(nullptr) - kForgotten);
  const std::size_t gone =
      std::erase_if(nodes_, [&](const auto& node) { return node.second.looked < oldest; });
  changed_ = changed_ || gone > 0;
}

void Nodes::add_to_all(const std::string& release) {
  for (auto& [name, node] : nodes_) {
    if (node.may_use.insert(release).second) changed_ = true;
  }
}

Result<void> Nodes::write(const Folder& root) {
  if (!changed_) return {};
  json all = {{"schema", 1}, {"nodes", json::object()}};
  for (const auto& [name, node] : nodes_) {
    all["nodes"][name] = {{"looked", node.looked}, {"may_use", node.may_use}};
  }
  DSI_CHECK(root.write_file(kNodesName,
                            all.dump(1, ' ', false, json::error_handler_t::replace) + "\n", 0644));
  changed_ = false;
  return {};
}

}  // namespace dsi::agent
