#include "orchestrator/slurm.h"

#include <algorithm>
#include <map>

#include "orchestrator/parallel.h"
#include "orchestrator/text.h"

namespace dsi {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kReason = "ds-install ";
// scontrol tries for a while by itself before it says that the controller does not answer.
constexpr auto kPatience = 120s;
constexpr std::size_t kCallsAtOnce = 8;

// The value of " Key=" up to the next space.
std::string word_of(std::string_view line, std::string_view key) {
  std::string mark = " " + std::string(key) + "=";
  std::size_t at = line.starts_with(std::string_view(mark).substr(1)) ? 0 : line.find(mark);
  if (at == line.npos) return "";
  at = line.find('=', at) + 1;
  return std::string(line.substr(at, line.find(' ', at) - at));
}

// Slurm writes the reason last but for its comments, and who gave it in brackets behind.
std::string reason_of(std::string_view line) {
  std::size_t at = line.find(" Reason=");
  if (at == line.npos) return "";
  std::string_view reason = line.substr(at + std::string_view(" Reason=").size());
  if (std::size_t who = reason.rfind(" ["); who != reason.npos) reason = reason.substr(0, who);
  return std::string(reason);
}

Error error_of(const ProcessResult& result, std::string_view what) {
  std::string said = result.err.empty() ? result.out : result.err;
  while (said.ends_with('\n')) said.pop_back();
  return {fmt::format("{}: scontrol says: {}", what, printable(said)),
          "is slurmctld running, and may this user change nodes (SlurmUser, root or an operator)?"};
}

class SlurmDrain : public Drain {
 public:
  SlurmDrain(const std::string& run, std::function<bool(const std::string&)> is_over,
             ProcessRunner& processes, std::stop_token stop)
      : reason_(std::string(kReason) + run),
        is_over_(std::move(is_over)),
        processes_(processes),
        stop_(std::move(stop)) {}

  std::vector<Taken> take(const std::vector<std::string>& hosts) override {
    std::vector<Taken> taken(hosts.size());
    auto nodes = ask(stop_);
    std::string wanted;  // Names with commas between.
    std::vector<std::size_t> asked;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (!nodes) {
        taken[i].error = nodes.error();
        continue;
      }
      const SlurmNode* node = find(*nodes, hosts[i]);
      if (node == nullptr) {
        taken[i].error = {fmt::format("Slurm knows no node {}", hosts[i]),
                          "leave the host out, or run without --drain slurm"};
      } else if (node->out_of_service() && !is_ours(*node)) {
        taken[i].remark = fmt::format("was out of service before ({}{}) and stays so",
                                      node->state == "DOWN" ? "down" : "drained",
                                      node->reason.empty() ? "" : ": " + printable(node->reason));
      } else {
        wanted += (wanted.empty() ? "" : ",") + node->name;
        asked.push_back(i);
        mine_.insert(hosts[i]);
      }
    }
    if (asked.empty()) return taken;
    // Without the stop token: what was sent is done, and must be known.
    auto done = scontrol({"update", "NodeName=" + wanted, "State=DRAIN", "Reason=" + reason_}, {},
                         "cannot drain " + wanted);
    if (!done) {
      // Slurm may have drained some of them before it failed.
      for (std::size_t i : asked) {
        taken[i].error = done.error();
        auto back = std::move(give_back({hosts[i]}).front());
        if (!back) {
          taken[i].remark = "may be drained; the next run with --drain slurm gives it back";
          break;
        }
      }
      for (std::size_t i : asked) {
        taken[i].error = done.error();
        mine_.erase(hosts[i]);
      }
    }
    return taken;
  }

  Result<std::vector<Standing>> look(const std::vector<std::string>& hosts) override {
    DSI_TRY(std::vector<SlurmNode> nodes, ask(stop_));
    std::vector<Standing> standings;
    for (const std::string& host : hosts) {
      const SlurmNode* node = find(nodes, host);
      // One that somebody put back into service gets jobs again, so it is not idle.
      standings.push_back({node != nullptr && node->free() && node->out_of_service(), {}, ""});
    }
    return standings;
  }

  std::chrono::milliseconds look_every() const override { return 2s; }

  // One question and one command for all of them, however many; each by itself only if Slurm does
  // not take them together.
  std::vector<Result<std::string>> give_back(const std::vector<std::string>& hosts) override {
    std::vector<Result<std::string>> answers(hosts.size(), std::string());
    std::vector<std::size_t> mine;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (mine_.contains(hosts[i])) mine.push_back(i);
    }
    if (mine.empty()) return answers;
    // Without the stop token: also an interrupted run gives back what it took.
    auto nodes = ask({});
    std::vector<std::size_t> resumed;
    std::vector<std::string> names;
    for (std::size_t i : mine) {
      if (!nodes) {
        answers[i] = tl::unexpected(nodes.error());
        continue;
      }
      answers[i] = remark_on(find(*nodes, hosts[i]));
      if (!answers[i]->empty()) continue;
      resumed.push_back(i);
      names.push_back(find(*nodes, hosts[i])->name);
    }
    if (resumed.empty()) return answers;
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ",") + name;
    auto done = resume(all);
    if (done || resumed.size() == 1 || !ask({})) {
      for (std::size_t i : resumed) {
        if (!done) answers[i] = tl::unexpected(done.error());
      }
    } else {
      parallel_for(resumed.size(), kCallsAtOnce, {}, [&](std::size_t k) {
        if (auto one = resume(names[k]); !one) answers[resumed[k]] = tl::unexpected(one.error());
      });
    }
    for (std::size_t i : resumed) {
      if (answers[i]) mine_.erase(hosts[i]);
    }
    return answers;
  }

 private:
  Result<std::string> scontrol(std::vector<std::string> arguments, std::stop_token stop,
                               const std::string& what) {
    arguments.insert(arguments.begin(), "scontrol");
    auto result = processes_.run({std::move(arguments), {}, {}}, Deadline::after(kPatience), stop);
    if (!result) return tl::unexpected(result.error());
    if (!result->ok()) return tl::unexpected(error_of(*result, what));
    return std::move(result->out);
  }

  // Why it is not given back; empty: it is.
  std::string remark_on(const SlurmNode* node) const {
    if (node == nullptr) return "is no node of Slurm any more";
    if (!node->out_of_service()) {
      return "was put back into service by somebody else during the run";
    }
    if (node->reason == reason_) return "";
    return fmt::format("was drained by this run and by somebody else since ({}); it stays drained",
                       printable(node->reason));
  }

  Result<void> resume(const std::string& names) {
    return scontrol({"update", "NodeName=" + names, "State=RESUME"}, {},
                    "cannot give " + names + " back to Slurm")
        .map([](const auto&) {});
  }

  Result<std::vector<SlurmNode>> ask(std::stop_token stop) {
    DSI_TRY(std::string text,
            scontrol({"show", "node", "--oneliner"}, stop, "cannot ask Slurm for its nodes"));
    return parse_slurm_nodes(text);
  }

  bool is_ours(const SlurmNode& node) const {
    if (node.reason == reason_) return true;
    return node.reason.starts_with(kReason) && is_over_(node.reason.substr(kReason.size()));
  }

  // By the node's name, its host's name, its address, or the first part of a long name.
  static const SlurmNode* find(const std::vector<SlurmNode>& nodes, const std::string& host) {
    const std::string first = host.substr(0, host.find('.'));
    for (auto match : {+[](const SlurmNode&n, const std::string&h) { return n.name == h; },
                       +[](const SlurmNode&n, const std::string&h) { return n.host_name == h; },
                       +[](const SlurmNode&n, const std::string&h) { return n.address == h; }}) {
      for (const SlurmNode& node : nodes) {
        if (match(node, host)) return &node;
      }
    }
    for (const SlurmNode& node : nodes) {
      if (first != host && node.name == first) return &node;
    }
    return nullptr;
  }

  std::string reason_;
  std::function<bool(const std::string&)> is_over_;
  ProcessRunner& processes_;
  std::stop_token stop_;
  std::set<std::string> mine_;  // Hosts that this run has drained.
};

}  // namespace

bool SlurmNode::free() const {
  return (state == "IDLE" || state == "DOWN") && !flags.contains("COMPLETING");
}

bool SlurmNode::out_of_service() const {
  return state == "DOWN" || flags.contains("DRAIN") || flags.contains("FAIL");
}

std::vector<SlurmNode> parse_slurm_nodes(std::string_view text) {
  std::vector<SlurmNode> nodes;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    SlurmNode node;
    node.name = word_of(line, "NodeName");
    if (node.name.empty()) continue;
    node.host_name = word_of(line, "NodeHostName");
    node.address = word_of(line, "NodeAddr");
    node.reason = reason_of(line);
    std::string state = word_of(line, "State");
    for (std::size_t at = 0; at <= state.size();) {
      std::size_t plus = std::min(state.find('+', at), state.size());
      std::string word = state.substr(at, plus - at);
      // Marks behind the state: * does not answer, ~ # % $ @ - are of power saving and booting.
      while (!word.empty() &&
             std::string_view("*~#!%$@^-").find(word.back()) != std::string_view::npos) {
        word.pop_back();
      }
      if (at == 0) {
        node.state = word;
      } else {
        node.flags.insert(word);
      }
      at = plus + 1;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::unique_ptr<Drain> make_slurm_drain(const std::string& run,
                                        std::function<bool(const std::string&)> is_over,
                                        ProcessRunner& processes, std::stop_token stop) {
  return std::make_unique<SlurmDrain>(run, std::move(is_over), processes, std::move(stop));
}

}  // namespace dsi
