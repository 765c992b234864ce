#include "orchestrator/environment/lock.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "orchestrator/base/file.h"
#include "orchestrator/base/sha256.h"
#include "orchestrator/environment/base.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

constexpr int kVersion = 1;

struct SourceName {
  TorchSource source;
  std::string_view name;
};
constexpr SourceName kSources[] = {{TorchSource::kFolder, "folder"},
                                   {TorchSource::kDebian, "debian"},
                                   {TorchSource::kWheel, "wheel"}};

std::string_view name_of(TorchSource source) {
  for (const SourceName& known : kSources) {
    if (known.source == source) return known.name;
  }
  return "";
}

// A name, a version: what may be a word of a command line of apt or pip, and never an option.
bool is_plain(std::string_view word) {
  auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("+-.:~_").find(c) != std::string_view::npos;
  };
  return !word.empty() && word.size() <= 200 && word.front() != '-' && word.front() != '.' &&
         std::all_of(word.begin(), word.end(), plain);
}

bool is_digest(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

void write_packages(const char* key, const std::vector<LockedPackage>& packages,
                    std::string& text) {
  if (packages.empty()) return;
  text += fmt::format("{}:\n", key);
  for (const LockedPackage& package : packages) {
    text += fmt::format("  - {{name: \"{}\", version: \"{}\", sha256: {}}}\n", package.name,
                        package.version, package.sha256);
  }
}

// Reads one lock. The first mistake is kept, with its place.
class Reader {
 public:
  explicit Reader(fs::path file) : file_(std::move(file)) {}

  Result<EnvironmentLock> read(const YAML::Node& root) {
    if (!root.IsMap()) {
      note(root, "a lock is a map of keys and values");
      return done({});
    }
    EnvironmentLock lock;
    std::set<std::string> known = {"version", "base", "compiler", "python",
                                   "torch",   "cuda", "packages", "wheels"};
    only(root, known);
    if (word(root, "version") != std::to_string(kVersion)) {
      note(root, fmt::format("it is not of version {} of locks", kVersion));
    }
    YAML::Node base = map(root, "base", {"suite", "architecture"}, true);
    lock.suite = word(base, "suite");
    lock.architecture = word(base, "architecture");
    if (find_base(lock.suite) == nullptr) note(base, "there is no base " + printable(lock.suite));
    std::string compiler = first_match(word(root, "compiler"), R"(^g\+\+-(\d{1,2})$)");
    if (compiler.empty()) note(root, "compiler must be g++-N");
    lock.compiler = compiler.empty() ? 0 : std::stoi(compiler);
    lock.python = word(root, "python", false);
    read_torch(root, lock);
    read_cuda(root, lock);
    lock.packages = packages(root, "packages");
    lock.wheels = packages(root, "wheels");
    if (lock.packages.empty()) note(root, "it names no packages");
    return done(std::move(lock));
  }

 private:
  void note(const YAML::Node& node, const std::string& what) {
    if (!mistake_.empty()) return;
    const YAML::Mark mark = node.IsDefined() ? node.Mark() : YAML::Mark::null_mark();
    mistake_ =
        fmt::format("{}:{}: {}", printable(file_.string()), std::max(mark.line, 0) + 1, what);
  }

  Result<EnvironmentLock> done(EnvironmentLock lock) const {
    if (mistake_.empty()) return lock;
    return fail_with_help("while reading the lock of an environment: " + mistake_,
                          "locks are written by ds-install env and not by hand; make it anew");
  }

  void only(const YAML::Node& node, const std::set<std::string>& known) {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (!known.contains(key)) note(entry.first, "the key " + printable(key) + " is not known");
      if (!seen.insert(key).second) note(entry.first, "the key " + key + " is there twice");
    }
  }

  YAML::Node map(const YAML::Node& node, const char* key, const std::set<std::string>& known,
                 bool needed) {
    YAML::Node inner = node[key];
    if (!inner && !needed) return {};
    if (!inner || !inner.IsMap()) {
      note(node, fmt::format("the key {} must be a map", key));
      return YAML::Node(YAML::NodeType::Map);
    }
    only(inner, known);
    return inner;
  }

  std::string word(const YAML::Node& node, const char* key, bool needed = true) {
    const YAML::Node value = node[key];
    if (!value && !needed) return "";
    if (!value || !value.IsScalar() || !is_plain(value.Scalar())) {
      note(node, fmt::format("the key {} must be a name or a version", key));
      return "";
    }
    return value.Scalar();
  }

  std::string digest(const YAML::Node& node, bool needed = true) {
    std::string text = word(node, "sha256", needed);
    if (!text.empty() && !is_digest(text)) note(node, "sha256 must be 64 hexadecimal digits");
    return text;
  }

  void read_torch(const YAML::Node& root, EnvironmentLock& lock) {
    const YAML::Node torch = map(root, "torch", {"version", "from", "sha256"}, true);
    lock.torch = word(torch, "version");
    const std::string from = word(torch, "from");
    const auto* source = std::find_if(std::begin(kSources), std::end(kSources),
                                      [&](const SourceName& known) { return known.name == from; });
    if (source == std::end(kSources)) {
      note(torch, "a torch is from: folder, debian or wheel");
    } else {
      lock.torch_source = source->source;
    }
    lock.torch_sha256 = digest(torch, lock.torch_source == TorchSource::kFolder);
  }

  void read_cuda(const YAML::Node& root, EnvironmentLock& lock) {
    if (!root["cuda"]) return;
    const YAML::Node cuda = map(root, "cuda", {"version", "sha256", "compute_capabilities"}, true);
    lock.cuda = word(cuda, "version");
    lock.cuda_sha256 = digest(cuda);
    for (const auto& one : cuda["compute_capabilities"]) {
      if (!one.IsScalar() || !is_plain(one.Scalar()))
        note(cuda, "a compute capability is like 9.0");
      lock.compute_capabilities.push_back(one.IsScalar() ? one.Scalar() : "");
    }
  }

  std::vector<LockedPackage> packages(const YAML::Node& root, const char* key) {
    std::vector<LockedPackage> all;
    const YAML::Node list = root[key];
    if (!list) return all;
    if (!list.IsSequence()) note(root, fmt::format("the key {} must be a list", key));
    for (const auto& node : list) {
      if (!node.IsMap()) {
        note(node, "a package has name, version and sha256");
        continue;
      }
      only(node, {"name", "version", "sha256"});
      all.push_back({word(node, "name"), word(node, "version"), digest(node)});
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return all;
  }

  fs::path file_;
  std::string mistake_;
};

}  // namespace

std::string lock_text(const EnvironmentLock& lock) {
  std::string text = fmt::format("version: {}\nbase: {{suite: {}, architecture: {}}}\n", kVersion,
                                 lock.suite, lock.architecture);
  text += fmt::format("compiler: g++-{}\n", lock.compiler);
  if (!lock.python.empty()) text += fmt::format("python: \"{}\"\n", lock.python);
  text += fmt::format("torch: {{version: \"{}\", from: {}{}}}\n", lock.torch,
                      name_of(lock.torch_source),
                      lock.torch_sha256.empty() ? "" : ", sha256: " + lock.torch_sha256);
  if (!lock.cuda.empty()) {
    std::string list;
    for (const std::string& one : lock.compute_capabilities) {
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", one);
    }
    text += fmt::format("cuda: {{version: \"{}\", sha256: {}, compute_capabilities: [{}]}}\n",
                        lock.cuda, lock.cuda_sha256, list);
  }
  write_packages("packages", lock.packages, text);
  write_packages("wheels", lock.wheels, text);
  return text;
}

std::string fingerprint(const EnvironmentLock& lock) {
  return sha256_hex(lock_text(lock));
}

Result<EnvironmentLock> parse_lock(std::string_view text, const fs::path& file) {
  try {
    return Reader(file).read(YAML::Load(std::string(text)));
  } catch (const YAML::Exception& e) {
    return fail_with_help(fmt::format("{}:{}: not YAML: {}", printable(file.string()),
                                      std::max(e.mark.line, 0) + 1, e.msg),
                          "a lock is written by ds-install env");
  }
}

Result<EnvironmentLock> read_lock(const fs::path& file) {
  DSI_TRY(std::string text, read_file(file));
  return parse_lock(text, file);
}

}  // namespace dsi
