#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "../accelerator.h"

namespace ds::accelerators {

// Asks NVML, which knows the devices without starting CUDA: a process that has asked may still
// fork, and may still choose its devices.
inline int count_cuda_devices(std::string& why_not) {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) {
    why_not = "there is no NVIDIA driver";
    return 0;
  }
  using Plain = int (*)();
  using Count = int (*)(unsigned*);
  auto init = reinterpret_cast<Plain>(dlsym(nvml, "nvmlInit_v2"));
  auto count = reinterpret_cast<Count>(dlsym(nvml, "nvmlDeviceGetCount_v2"));
  auto shutdown = reinterpret_cast<Plain>(dlsym(nvml, "nvmlShutdown"));
  unsigned devices = 0;
  int failed = -1;
  if (init != nullptr && count != nullptr && shutdown != nullptr && (failed = init()) == 0) {
    failed = count(&devices);
    shutdown();
  }
  dlclose(nvml);
  if (failed != 0) {
    why_not = "NVIDIA's driver does not answer (NVML error " + std::to_string(failed) + ")";
    return 0;
  }
  if (devices == 0) why_not = "NVIDIA's driver has no device";
  // A list of numbers or of UUIDs; the first that is none ends it.
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    std::string list(visible);
    unsigned named = 0;
    for (std::size_t at = 0; at <= list.size() && !list.empty();) {
      std::size_t end = list.find(',', at);
      if (end == std::string::npos) end = list.size();
      std::string one = list.substr(at, end - at);
      while (!one.empty() && one.front() == ' ') one.erase(0, 1);
      const bool number = !one.empty() && one.front() >= '0' && one.front() <= '9';
      const bool exists = number ? std::strtoul(one.c_str(), nullptr, 10) < devices
                                 : one.rfind("GPU-", 0) == 0 || one.rfind("MIG-", 0) == 0;
      if (!exists) break;
      ++named;
      at = end + 1;
    }
    if (named < devices) devices = named;
    if (devices == 0 && why_not.empty()) why_not = "CUDA_VISIBLE_DEVICES names none";
  }
  return static_cast<int>(devices);
}

inline Accelerator cuda() {
  return {"cuda", count_cuda_devices};
}

}  // namespace ds::accelerators
