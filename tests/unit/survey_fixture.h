#pragma once

#include "orchestrator/requirements.h"

namespace dsi::testing {

// A host of a good cluster, and a release that suits it.
inline SurveyRow good_host(const std::string& name) {
  SurveyRow row;
  row.host = name;
  row.facts.arch = "x86_64";
  row.facts.kernel = "6.1.0-26-amd64";
  row.facts.prefix = "/opt/ds-ops";
  NodeFacts& node = row.node;
  node.known = true;
  node.arch = "x86_64";
  node.user = "train";
  node.cpu = {"Intel Xeon", "x86-64-v4", true, "", 96, 2};
  node.memory = {2ull << 40, 1ull << 40, 1ull << 40, INT64_MAX};
  node.libc = {"glibc", "2.36", "3.4.30", "1.3.13", "/lib/libstdc++.so.6"};
  node.prefix = {"/opt/ds-ops", "/opt", true,   100ull << 30, true,  1'000'000, false,
                 false,         true,   "ext4", "/dev/sda1",  false, ""};
  node.temp = node.prefix;
  node.temp.path = node.temp.at = "/tmp";
  node.extensions = node.prefix;
  node.extensions.path = "/home/train/.cache/torch_extensions";
  node.libraries = {{"libaio.so.1", "/lib/libaio.so.1"}};
  node.absent_libraries = {"libcufile.so.0"};
  node.torch = {"/venv/torch/lib", "2.4.0+cu124", "12.4", "cxx11", true, true};
  node.packages = {{"transformers", "4.44.0"}, {"deepspeed", "0.14.2"}};
  node.gpus.assign(8, NodeGpu{"NVIDIA H100", "9.0", 81559, false});
  node.gpus_known = true;
  node.driver = {"550.54.15", "12.4", 8, ""};
  node.clock_off_s = 0;
  return row;
}

inline Requirements good_release() {
  Requirements build;
  build.arch = "x86_64";
  build.torch = "2.4.1+cu124";
  build.torch_abi = "cxx11";
  build.torch_cuda = "12.4";
  build.cuda = "12.4";
  build.bytes = 50 << 20;
  build.files = 40;
  build.ops = {
      {"async_io", "2.34", "3.4.30", "1.3.9", {"libaio.so.1", "libc.so.6"}, {"cpu"}, {}, 0},
      {"cpu_adam", "2.34", "3.4.30", "1.3.9", {"libc.so.6"}, {"cpu"}, {}, 2},
      {"fused_adam", "2.17", "", "", {"libc.so.6", "libc10_cuda.so"}, {"cuda"}, {"8.0", "9.0"}, 0}};
  return build;
}

}  // namespace dsi::testing
