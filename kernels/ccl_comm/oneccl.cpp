#include "oneccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <type_traits>

namespace ds::oneccl {
namespace {

constexpr const char* kName = "libccl.so.2";  // The first that has the C interface.

Found load() {
  void* handle = nullptr;
  std::string refused;
  const auto open = [&](const std::string& path) {
    if (handle != nullptr) return;
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) refused += (refused.empty() ? "" : "; ") + std::string(dlerror());
  };
  if (const char* const root = std::getenv("CCL_ROOT"); root != nullptr && *root != '\0') {
    open(std::string(root) + "/lib/" + kName);
  }
  open(kName);
  if (handle == nullptr) return {nullptr, refused};
  static Library library;
  std::string missing;
  const auto take = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  take("onecclGetVersion", library.get_version);
  take("onecclGetUniqueId", library.get_unique_id);
  take("onecclCommInitRank", library.comm_init_rank);
  take("onecclCommDestroy", library.comm_destroy);
  take("onecclAllReduce", library.all_reduce);
  take("onecclAllGather", library.all_gather);
  take("onecclBroadcast", library.broadcast);
  take("onecclGetErrorString", library.get_error_string);
  if (missing.empty()) return {&library, ""};
  return {nullptr, std::string(kName) + " has no function " + missing};
}

}  // namespace

std::string Library::version() const {
  int number = 0;
  if (get_version(&number) != 0) return "of unknown version";
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100);
}

const Found& find() {
  static const Found found = load();
  return found;
}

}  // namespace ds::oneccl
