#include "orchestrator/environment/derive.h"

#include <algorithm>
#include <map>

#include "orchestrator/base/nodeset.h"
#include "orchestrator/elf.h"
#include "orchestrator/environment/base.h"
#include "orchestrator/text.h"

namespace dsi {

namespace {

// Value by value, the hosts that have it.
using Kinds = std::map<std::string, std::vector<std::string>>;

std::string kinds_text(const Kinds& kinds) {
  std::string text;
  for (const auto& [value, hosts] : kinds) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", value, fold_nodeset(hosts));
  }
  return text;
}

void take_lower(const std::string& version, const std::string& host, std::string& lowest,
                std::string& lowest_host) {
  if (version.empty() || (!lowest.empty() && !version_less(version, lowest))) return;
  lowest = version;
  lowest_host = host;
}

void sort_versions(std::vector<std::string>& versions) {
  std::sort(versions.begin(), versions.end(), version_less);
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
}

std::string list_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

constexpr const char* kOneEach = "make one environment for each kind: --hosts names its hosts";

// "2.11.0+cu130" → "2.11".
std::string series_of(const std::string& version) {
  return first_match(version, R"(^(\d+\.\d+))");
}

void choose_base(const EnvironmentNeeds& needs, Environment& environment) {
  const DebianBase* base = newest_base_for(needs.glibc, needs.glibcxx);
  auto limit = [&](std::string_view what, const std::string& version, const std::string& host) {
    return version.empty() ? std::string() : fmt::format("{} of {} on {}", what, version, host);
  };
  std::string limits = limit("a glibc", needs.glibc, needs.glibc_host);
  std::string cxx = limit("a libstdc++", needs.glibcxx, needs.glibcxx_host);
  if (base == nullptr) {
    const DebianBase& oldest = debian_bases().front();
    const bool by_glibc = !needs.glibc.empty() && version_less(needs.glibc, oldest.glibc);
    environment.no_base = {
        fmt::format("{} is older than the {} of Debian {} ({}), the oldest base to build in",
                    by_glibc ? limits : cxx, by_glibc ? oldest.glibc : oldest.glibcxx,
                    oldest.release, oldest.suite),
        fmt::format("leave {} out, update it, or build with conda: --conda FILE writes an "
                    "environment.yml with a system library as old as that",
                    by_glibc ? needs.glibc_host : needs.glibcxx_host)};
    environment.glibc = needs.glibc;
    return;
  }
  environment.suite = base->suite;
  environment.glibc = base->glibc;
  std::string why = limits.empty() ? "no host says which C library it has" : limits;
  if (!limits.empty() && !cxx.empty()) why += ", " + cxx;
  environment.reasons.emplace_back(
      "base",
      fmt::format("Debian {} ({}), glibc {}: {}", base->release, base->suite, base->glibc, why));
}

void choose_torch(const EnvironmentNeeds& needs, const EnvironmentWishes& wishes,
                  Environment& environment) {
  const DebianBase* base = find_base(environment.suite);
  environment.torch = wishes.torch_asked || needs.torch.empty() ? wishes.torch : needs.torch;
  const std::string series = series_of(environment.torch);
  std::string whose = wishes.torch_asked    ? "--torch"
                      : needs.torch.empty() ? "the one of this machine"
                                            : "what the hosts have";
  const bool here = environment.torch == wishes.torch;
  if (base != nullptr && !base->torch.empty() && series == base->torch &&
      (!here || wishes.torch_is_debians)) {
    environment.torch_source = TorchSource::kDebian;
    whose += fmt::format("; libtorch-dev of {}", base->suite);
  } else if (here && !wishes.torch_is_debians) {
    environment.torch_source = TorchSource::kFolder;
    whose += needs.torch.empty() || wishes.torch_asked ? "" : ", and this machine";
  } else {
    environment.torch_source = TorchSource::kWheel;
    whose += "; from the Python index";
  }
  environment.reasons.emplace_back("torch", fmt::format("{}: {}", environment.torch, whose));
}

Result<void> choose_compiler(const EnvironmentNeeds& needs, const EnvironmentWishes& wishes,
                             Environment& environment) {
  if (!needs.compute_capabilities.empty()) {
    if (wishes.toolkit.empty()) {
      const std::string cuda = needs.torch_cuda.empty() ? wishes.torch_cuda : needs.torch_cuda;
      return fail_with_help(
          fmt::format("the hosts have devices ({}), and no CUDA toolkit is on this machine",
                      list_of(needs.compute_capabilities)),
          fmt::format("install one{}; or DS_ACCELERATOR=cpu, for the processor only",
                      cuda.empty() ? "" : " of version " + cuda));
    }
    environment.cuda = wishes.toolkit;
    environment.compute_capabilities = needs.compute_capabilities;
    environment.reasons.emplace_back("CUDA",
                                     fmt::format("{} of this machine, for {}", wishes.toolkit,
                                                 list_of(needs.compute_capabilities)));
  }
  const DebianBase* base = find_base(environment.suite);
  if (base == nullptr) return {};
  if (environment.cuda.empty()) {
    environment.compiler = base->compilers.back();
    environment.reasons.emplace_back(
        "compiler", fmt::format("g++-{}: the newest of {}", environment.compiler, base->suite));
    return {};
  }
  const int limit = newest_compiler_for(environment.cuda);
  for (int compiler : base->compilers) {
    if (compiler <= limit) environment.compiler = compiler;
  }
  if (environment.compiler == 0) {
    return fail_with_help(
        fmt::format("nvcc {} takes no g++ above {}, and the oldest of Debian {} ({}) is g++-{}",
                    environment.cuda, limit, base->release, base->suite, base->compilers.front()),
        "install a newer CUDA toolkit, or make the environment for older hosts, too");
  }
  environment.reasons.emplace_back(
      "compiler", fmt::format("g++-{}: the newest of {} that nvcc {} takes (up to {})",
                              environment.compiler, base->suite, environment.cuda, limit));
  return {};
}

}  // namespace

Result<EnvironmentNeeds> needs_of(const std::vector<SurveyRow>& rows, bool torch_given) {
  EnvironmentNeeds needs;
  Kinds archs;
  Kinds libcs;
  Kinds torches;
  Kinds pythons;
  for (const SurveyRow& row : rows) {
    const NodeFacts& node = row.node;
    if (!node.known) {
      needs.unknown.push_back(row.host);
      continue;
    }
    archs[node.arch].push_back(row.host);
    if (!node.libc.name.empty()) libcs[node.libc.name].push_back(row.host);
    take_lower(node.libc.glibc, row.host, needs.glibc, needs.glibc_host);
    take_lower(node.libc.glibcxx, row.host, needs.glibcxx, needs.glibcxx_host);
    if (!node.torch.version.empty()) {
      torches[node.torch.version].push_back(row.host);
      needs.torch_cuda = node.torch.cuda;
      std::string python = first_match(node.torch.path, R"(/python(3\.\d+)/)");
      if (!python.empty()) pythons[python].push_back(row.host);
    }
    for (const NodeGpu& gpu : node.gpus) {
      if (!gpu.compute_capability.empty()) {
        needs.compute_capabilities.push_back(gpu.compute_capability);
      }
    }
  }
  if (archs.empty()) {
    return fail_with_help(
        "no host answered, and an environment follows from what the hosts are",
        "ds-install survey says why; --lock FILE uses an environment that was derived before");
  }
  if (archs.size() > 1) {
    return fail_with_help(
        fmt::format("the hosts are of different processor architectures: {}", kinds_text(archs)),
        kOneEach);
  }
  if (libcs.size() > 1 || (libcs.size() == 1 && libcs.begin()->first != "glibc")) {
    return fail_with_help(fmt::format("the ops are built for glibc, and there is another C "
                                      "library: {}",
                                      kinds_text(libcs)),
                          "leave those hosts out");
  }
  if (torches.size() > 1 && !torch_given) {
    return fail_with_help(
        fmt::format("the hosts have different torches: {}", kinds_text(torches)),
        fmt::format("{}; or name the torch to compile against with --torch", kOneEach));
  }
  needs.arch = archs.begin()->first;
  if (!torches.empty()) needs.torch = torches.begin()->first;
  if (pythons.size() == 1) needs.python = pythons.begin()->first;
  sort_versions(needs.compute_capabilities);
  return needs;
}

Result<Environment> derive(const EnvironmentNeeds& needs, const EnvironmentWishes& wishes) {
  Environment environment;
  environment.machine = needs.arch;
  environment.architecture = debian_architecture(needs.arch);
  if (environment.architecture.empty()) {
    return fail_with_help(fmt::format("hosts of the architecture {} are not known", needs.arch),
                          "x86_64 and aarch64 are");
  }
  environment.python = needs.python;
  choose_base(needs, environment);
  choose_torch(needs, wishes, environment);
  DSI_CHECK(choose_compiler(needs, wishes, environment));
  return environment;
}

}  // namespace dsi
