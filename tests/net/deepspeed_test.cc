// The real DeepSpeed, from its sdist, on real hosts with an environment each. What it needs is made
// by scripts/dev/deepspeed-environment, which scripts/test runs; where that could not be, these
// tests are skipped and say why.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "orchestrator/base/file.h"
#include "tests/net/cluster.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kHosts = 3;
constexpr char kPython[] = "/opt/env/bin/python";

// A DeepSpeed program like any other, against torch's own optimizer.
constexpr char kSteps[] = R"py(
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
torch.manual_seed(0)
a = torch.nn.Parameter(torch.randn(3001))
b = torch.nn.Parameter(a.detach().clone())
theirs = DeepSpeedCPUAdam([a], lr=1e-2, weight_decay=0.1)
torchs = torch.optim.AdamW([b], lr=1e-2, weight_decay=0.1)
for _ in range(5):
    g = torch.randn(3001)
    a.grad, b.grad = g.clone(), g.clone()
    theirs.step()
    torchs.step()
torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
print("stepped on", theirs.ds_opt_adam.__file__)
)py";

// As DeepSpeed's own swapping of tensors to disks does it.
constexpr char kFiles[] = R"py(
import os, sys
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
op = AsyncIOBuilder().load()
handle = op.aio_handle(1 << 17, 4, False, False, 1)
pinned = handle.new_cpu_locked_tensor(1 << 20, torch.empty(0, dtype=torch.uint8))
pinned.copy_(torch.arange(1 << 20) % 251)
swapped = os.path.join(os.path.dirname(sys.argv[0]), "swapped")
assert handle.sync_pwrite(pinned, swapped, 0) == 1
back = torch.zeros_like(pinned)
assert handle.sync_pread(back, swapped, 0) == 1
assert torch.equal(back, pinned)
handle.free_cpu_locked_tensor(pinned)
print("read with", op.__file__)
)py";

class DeepSpeed : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* told = std::getenv("DSI_DEEPSPEED_CACHE");
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    made_ = told != nullptr ? fs::path(told)
                            : (cache != nullptr ? fs::path(cache) : fs::path(home) / ".cache") /
                                  "ds-install/deepspeed";
    made_ /= GetParam();
    if (!fs::exists(made_ / "complete")) {
      GTEST_SKIP() << "there is no " << made_.string() << "; scripts/dev/deepspeed-environment "
                   << GetParam()
                   << " makes it: " << read_file(made_ / "why-not").value_or("it was not run");
    }
    std::ifstream lines(made_ / "variables");
    for (std::string line; std::getline(lines, line);) variables_.push_back(line);
    for (const auto& entry : fs::directory_iterator(made_ / "sdist")) sdist_ = entry.path();
  }

  // /opt/env on each host is empty and sees the packages of the large one, pip among them.
  void make_environments(Cluster& cluster, int hosts = kHosts) const {
    const std::string large = made_ / "env";
    const bool system = std::string(GetParam()) == "old";
    for (int node = 1; node <= hosts; ++node) {
      Outcome made = cluster.on_node(
          node, "mkdir -p /opt && cd / && '" + large + "/bin/python' -m venv --without-pip " +
                    (system ? "--system-site-packages " : "") + "/opt/env && echo '" + large +
                    "'/lib/python3*/site-packages >$(echo /opt/env/lib/python3*/site-packages)/"
                    "large.pth");
      ASSERT_EQ(made.exit_code, 0) << made.err;
    }
    // What has changed less than 2 s before it is tried is not remembered, and a wheel that is in
    // the cache is installed within one.
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }

  JsonReport ds_install(Cluster& cluster, std::vector<std::string> arguments) const {
    const std::string config = cluster.folder() + "/site.yaml";
    std::ofstream(config) << "python: " << (made_ / "env/bin/python").string()
                          << "\nhosts:\n  node[001-009]: { python: " << kPython << " }\n";
    arguments.insert(arguments.end(), {"--config", config, "--json"});
    std::vector<std::string> command = {
        "env", "PATH=" + (made_ / "env/bin").string() + ":" + std::getenv("PATH"),
        "XDG_CACHE_HOME=" + (made_ / "cache").string()};
    command.insert(command.end(), variables_.begin(), variables_.end());
    for (std::string& word : cluster.ds_install_command(std::move(arguments))) {
      command.push_back(std::move(word));
    }
    return read_json_report(cluster.on_head(command));
  }

  static std::string run(Cluster& cluster, int node, const std::string& program) {
    const std::string path = cluster.folder() + "/program.py";
    std::ofstream(path) << program;
    Outcome ran =
        cluster.on_node(node, "cd /opt && " + std::string(kPython) + " -B '" + path + "'");
    EXPECT_EQ(ran.exit_code, 0) << ran.err << ran.out;
    return ran.out;
  }

  bool is_new() const { return std::string(GetParam()) == "new"; }

  fs::path made_, sdist_;
  std::vector<std::string> variables_;
};

TEST_P(DeepSpeed,
       Goes_from_its_sdist_to_three_hosts_and_steps_as_torch_does_on_its_ops_and_on_ours) {
  DSI_CLUSTER(cluster, kHosts);
  make_environments(cluster);
  JsonReport plain = ds_install(cluster, {"--deepspeed", sdist_});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.count("installed"), kHosts);
  std::vector<std::string> ops = {"cpu_adam"};
  // async_io has its allocator in pin_memory.
  if (is_new()) ops.insert(ops.end(), {"async_io", "pin_memory"});
  for (int node = 1; node <= kHosts; ++node) {
    const std::string host = "node00" + std::to_string(node);
    for (const std::string& op : ops) {
      EXPECT_EQ(plain.op(host, op).value("status", ""), "ok") << plain.op(host, op);
    }
    Outcome report = cluster.on_node(node, "cd / && PATH=/opt/env/bin:$PATH ds_report 2>&1");
    EXPECT_EQ(report.exit_code, 0) << report.out;
    for (const std::string& op : ops) {
      EXPECT_THAT(report.out, ContainsRegex("\n" + op + " [.]+ [^\n]*YES[^\n]*OKAY[^\n]*\n"));
    }
  }
  EXPECT_THAT(run(cluster, 1, kSteps), HasSubstr("cpu_adam_op.cpython"));
  if (is_new()) {
    EXPECT_THAT(run(cluster, 1, kFiles), HasSubstr("async_io_op.cpython"));
  }

  JsonReport again = ds_install(cluster, {"--deepspeed", sdist_});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.count("up-to-date"), kHosts);
  EXPECT_THAT(again.op("node002", "cpu_adam").value("detail", ""),
              HasSubstr("nothing it loads has changed"));

  JsonReport ours = ds_install(cluster, {"--deepspeed", sdist_, "--drop-in"});
  ASSERT_EQ(ours.exit_code, 0) << ours.err;
  EXPECT_TRUE(ours.every_op_is_ok()) << ours.err;
  std::vector<std::string> stand_ins = {"cpu_adam", "cpu_adagrad", "deepspeed_ccl_comm"};
  // 0.10.3 has no such ops.
  if (is_new()) stand_ins.insert(stand_ins.end(), {"cpu_lion", "deepspeed_shm_comm"});
  for (const std::string& op : stand_ins) {
    EXPECT_EQ(ours.op("node002", op).value("status", ""), "ok");
  }
  EXPECT_THAT(run(cluster, 1, kSteps), HasSubstr("cpu_adam_op.py"));
  if (is_new()) {
    EXPECT_THAT(run(cluster, 3, kFiles), HasSubstr("async_io_op.py"));
  }

  JsonReport back = ds_install(cluster, {"rollback", "--deepspeed"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.count("rolled-back"), kHosts);
  EXPECT_THAT(run(cluster, 1, kSteps), HasSubstr("cpu_adam_op.cpython"));

  JsonReport report = ds_install(cluster, {"report", "--deepspeed"});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.op("node003", "cpu_adam").value("status", ""), "ok");
}

INSTANTIATE_TEST_SUITE_P(, DeepSpeed, ::testing::Values("new", "old"),
                         [](const auto& which) { return std::string(which.param); });

}  // namespace
}  // namespace dsi
