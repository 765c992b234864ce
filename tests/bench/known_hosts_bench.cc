// Figures for known_hosts files whose names are hashed. libssh's own way takes 78 ms a handshake
// for 5,000 lines, because it reads and hashes them all again for every host.

#include <benchmark/benchmark.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "orchestrator/adapters/ssh_known_hosts.h"

namespace dsi {
namespace {

namespace fs = std::filesystem;

constexpr char kKey[] =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfXkQvMrm8Iu6aG8W0B2QSM1p8mZzjN2bX5n5n5n5n5";

void BM_find_among_hashed_lines(benchmark::State& state) {
  char folder[] = "/tmp/known-hosts-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return state.SkipWithError("no temporary folder");
  std::string file = std::string(folder) + "/known_hosts";
  {
    std::ofstream out(file);
    for (int i = 0; i < state.range(0); ++i) out << "node" << i << ' ' << kKey << '\n';
  }
  int status = std::system(("ssh-keygen -q -H -f " + file).c_str());
  auto known = KnownHosts::read({file}, {});
  std::string last = "node" + std::to_string(state.range(0) - 1);
  if (status != 0 || !known || known->find(last).size() != 1) {
    state.SkipWithError("the file was not hashed or not read");
  } else {
    for (auto _ : state) benchmark::DoNotOptimize(known->find(last));
  }
  fs::remove_all(folder);
}
BENCHMARK(BM_find_among_hashed_lines)->Arg(5'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsi
