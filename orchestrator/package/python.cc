#include "orchestrator/package/python.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "orchestrator/manifest.h"

namespace dsi {

using namespace std::chrono_literals;

namespace {

// Asks the interpreter itself. Torch is imported in the end, since only that tells whether it
// works; its word of warning must not get between.
constexpr char kFacts[] = R"py(
import json, os, sys, sysconfig
f = {"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3]}
platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
soabi = sysconfig.get_config_var("SOABI") or ""
cp = "cp%d%d" % sys.version_info[:2]
abi = cp + ("m" if soabi.split("-")[1:2] and soabi.split("-")[1].endswith("m") else "")
if soabi.split("-")[1:2] and soabi.split("-")[1].endswith("t"): abi += "t"
f["tag"] = "%s-%s-%s" % (cp, abi, platform)
include = sysconfig.get_paths()["include"]
f["headers"] = include if os.path.exists(os.path.join(include, "Python.h")) else ""
try:
    import pip
    f["pip"] = pip.__version__
except Exception:
    f["pip"] = ""
f["installed"] = {}
try:
    from importlib import metadata
    for d in metadata.distributions():
        name = d.metadata["Name"]
        if name and name not in f["installed"]: f["installed"][name] = d.version or ""
except ImportError:
    pass
f["torch"] = f["torch_path"] = f["torch_cuda"] = ""
f["torch_cxx11_abi"] = True
try:
    import torch
    f["torch"] = str(torch.__version__)
    f["torch_path"] = os.path.dirname(torch.__file__)
    f["torch_cuda"] = torch.version.cuda or ""
    f["torch_cxx11_abi"] = bool(torch._C._GLIBCXX_USE_CXX11_ABI)
except Exception as e:
    f["torch_error"] = "%s: %s" % (type(e).__name__, e)
sys.stdout.write("\n" + json.dumps(f) + "\n")
)py";

}  // namespace

Result<BuildPython> find_build_python(ProcessRunner& processes, const std::string& option,
                                      std::stop_token stop) {
  std::string name = option.empty() ? "python3" : option;
  std::error_code ignored;  // As on the hosts, the folder of an environment names its interpreter.
  if (std::filesystem::is_directory(name, ignored)) name += "/bin/python3";
  // From a folder in which nothing can be imported by accident.
  auto ran = processes.run({{name, "-c", kFacts}, "/", {{"PYTHONDONTWRITEBYTECODE", "1"}}},
                           Deadline::after(60s), stop);
  const std::string help =
      option.empty() ? "activate the environment that the package is for, or name it with --python"
                     : "--python names the same path here and on the hosts; build where it exists "
                       "with ds-install build, or give each host its own in the configuration";
  if (!ran || !ran->ok()) {
    std::string why = ran ? ran->err.substr(0, ran->err.find('\n')) : ran.error().what;
    return fail_with_help(fmt::format("the Python {} does not run here: {}", name, why), help);
  }
  BuildPython python;
  try {
    std::string_view text = ran->out;
    while (text.ends_with('\n')) text.remove_suffix(1);
    const auto facts = nlohmann::json::parse(text.substr(text.rfind('\n') + 1));
    facts.at("executable").get_to(python.executable);
    facts.at("version").get_to(python.version);
    facts.at("tag").get_to(python.tag);
    facts.at("pip").get_to(python.pip);
    facts.at("headers").get_to(python.headers);
    facts.at("torch").get_to(python.torch);
    facts.at("torch_path").get_to(python.torch_path);
    facts.at("torch_cuda").get_to(python.torch_cuda);
    facts.at("torch_cxx11_abi").get_to(python.torch_cxx11_abi);
    for (const auto& [distribution, version] : facts.at("installed").items()) {
      python.installed[normalised_package_name(distribution)] = version.get<std::string>();
    }
  } catch (const nlohmann::json::exception& e) {
    return fail_with_help(
        fmt::format("the Python {} is no CPython that can be asked: {}", name, e.what()), help);
  }
  if (python.pip.empty()) {
    return fail_with_help(
        fmt::format("the Python {} has no pip", python.executable),
        fmt::format("{} -m ensurepip, or apt-get install python3-pip", python.executable));
  }
  return python;
}

Result<void> check_build_needs(const BuildPython& python,
                               const std::vector<std::string>& distributions) {
  std::string missing;
  for (const std::string& name : distributions) {
    // Debian's torch has no metadata; what can be imported is there.
    if (name == "torch" && !python.torch.empty()) continue;
    if (!python.installed.contains(normalised_package_name(name))) missing += " " + name;
  }
  if (!missing.empty()) {
    return fail_with_help(
        fmt::format("the Python {} lacks what the build needs:{}", python.executable, missing),
        fmt::format("{} -m pip install{}", python.executable, missing));
  }
  if (python.headers.empty()) {
    return fail_with_help(
        fmt::format("the Python {} has no Python.h, and compiled parts need it", python.executable),
        "apt-get install python3-dev, or use an environment that brings its headers");
  }
  return {};
}

}  // namespace dsi
