#pragma once

// What of the installed ops works on this machine:
//
//   #include <ds/capabilities.h>
//   if (ds::supports(ds::capability::kAsyncIo)) ...      // or ds::supports("op.async_io")
//
// An op is supported if its library is in the release, loads into this process, and there is a
// device that it has code for. Nothing is looked at before it is asked about, and each only once.
// Any thread may ask. CUDA is not started, and torch is not loaded for it: a program that uses ops
// has the torch that they need, or the loader finds it.
//
// Header only; link with what dlopen() needs (-ldl before glibc 2.34). What is known comes from the
// ops' op.json: capability_names.h and all_accelerators.h are written when the ops are built.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerator.h"
#include "all_accelerators.h"
#include "capability_names.h"

namespace ds {

class Capabilities {
 public:
  // `prefix` holds lib/; the ops and accelerators are those that can be in a release.
  Capabilities(std::string prefix, std::vector<DescribedOp> ops,
               std::vector<Accelerator> accelerators)
      : prefix_(std::move(prefix)) {
    for (const Accelerator& one : accelerators) {
      devices_[one.name] = std::make_unique<Devices>(one);
    }
    for (const DescribedOp& op : ops) ops_[op.capability] = std::make_unique<Op>(op);
  }

  bool supports(std::string_view key) { return why_not(key).empty(); }

  // Empty: it is supported. Else one line that names what is missing.
  std::string why_not(std::string_view key) {
    auto at = ops_.find(std::string(key));
    if (at == ops_.end()) return "there is no op with the capability " + std::string(key);
    Op& op = *at->second;
    std::call_once(op.once, [&] { op.why_not = ask(op.described); });
    return op.why_not;
  }

  // The keys of all that is supported, sorted. Asks about every op.
  std::vector<std::string> keys() {
    std::vector<std::string> supported;
    for (const auto& op : ops_) {
      if (supports(op.first)) supported.push_back(op.first);
    }
    return supported;
  }

 private:
  struct Op {
    explicit Op(const DescribedOp& op) : described(op) {}
    DescribedOp described;
    std::once_flag once;
    std::string why_not;
  };
  struct Devices {
    explicit Devices(const Accelerator& one) : accelerator(one) {}
    Accelerator accelerator;
    std::once_flag once;
    int count = 0;
    std::string why_not;
  };

  std::string ask(const DescribedOp& op) {
    const std::string library = prefix_ + "/lib/lib" + op.library + ".so";
    if (access(library.c_str(), F_OK) != 0) return library + " is not there";
    // Devices first: without one there is no need to load anything.
    std::string none;
    bool any = false;
    std::string_view rest = op.devices;
    while (!rest.empty() && !any) {
      const std::size_t end = rest.find(' ');
      const std::string name(rest.substr(0, end));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      const std::string why = why_no_device(name);
      any = why.empty();
      none += (none.empty() ? "" : ", ") + name + ": " + why;
    }
    if (!any) return "no device that it has code for (" + none + ")";
    // It stays: who asks is going to use it.
    if (dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char* why = dlerror();
      return why != nullptr ? why : library + " does not load";
    }
    return "";
  }

  std::string why_no_device(const std::string& name) {
    auto at = devices_.find(name);
    if (at == devices_.end()) return "this program knows no such accelerator";
    Devices& devices = *at->second;
    std::call_once(devices.once, [&] {
      devices.count = devices.accelerator.count(devices.why_not);
      if (devices.count <= 0 && devices.why_not.empty()) devices.why_not = "no device";
    });
    return devices.count > 0 ? "" : devices.why_not;
  }

  std::string prefix_;
  std::map<std::string, std::unique_ptr<Op>> ops_;  // By capability.
  std::map<std::string, std::unique_ptr<Devices>> devices_;
};

// DS_OPS_PREFIX in the environment; else where ds-install installs for everybody, and for one user.
inline std::string installed_prefix() {
  if (const char* given = std::getenv("DS_OPS_PREFIX"); given != nullptr && *given != '\0') {
    return given;
  }
  const char* home = std::getenv("HOME");
  const std::string own = std::string(home != nullptr ? home : "") + "/.local/share/ds-ops/current";
  return home != nullptr && access(own.c_str(), F_OK) == 0 ? own : "/opt/ds-ops/current";
}

// Of the installed release.
inline Capabilities& installed_capabilities() {
  static Capabilities installed(installed_prefix(), described_ops(), all_accelerators());
  return installed;
}

inline bool supports(std::string_view key) {
  return installed_capabilities().supports(key);
}
inline std::string why_not(std::string_view key) {
  return installed_capabilities().why_not(key);
}
inline std::vector<std::string> capabilities() {
  return installed_capabilities().keys();
}

}  // namespace ds
