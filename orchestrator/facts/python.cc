// torch and the packages beside it, without Python: from the files that they are.

#include "orchestrator/facts/kernel.h"
#include "orchestrator/facts/look.h"

namespace dsi::facts {

namespace {

constexpr Str kCpuLibrary = "libtorch_cpu.so";

bool has_torch(Str folder) {
  return exists(join({folder, "/", kCpuLibrary}));
}

// "name = true" is a line of the text.
bool is_true(Str text, Str name) {
  while (!text.empty()) {
    Str line = take(text, '\n');
    Str key = trimmed(take(line, '='));
    if (key == name) return trimmed(line) == "true";
  }
  return false;
}

// Folders of packages in the order in which the python3 of PATH searches them. False where that
// cannot be told without running it.
bool package_folders(List<Str>& folders) {
  auto add_below = [&](Str library, Str only, Str packages) {
    for (Str name : names_in(library, 4096)) {
      if (!name.starts_with("python3") || (!only.empty() && name != only)) continue;
      Str folder = join({library, "/", name, "/", packages});
      if (exists(folder)) folders.add(folder);
    }
  };
  Str path = environment_value("PYTHONPATH");
  while (!path.empty()) {
    Str folder = take(path, ':');
    if (folder.starts_with('/') && exists(folder)) folders.add(folder);
  }
  for (Str variable : {Str("VIRTUAL_ENV"), Str("CONDA_PREFIX")}) {
    Str root = environment_value(variable);
    if (root.starts_with('/')) add_below(join({root, "/lib"}), {}, "site-packages");
  }
  Str python = program_path("python3");
  if (python.empty()) return true;
  // A script, as pyenv has it, starts one that only it knows.
  if (read_file(python, 4).starts_with("#!")) return folders.size() > 0;
  // The link says which: python3 -> python3.11.
  Str which = base_name(canonical(python));
  if (!which.starts_with("python3.")) which = {};
  Str root = folder_of(folder_of(python));
  if (root == "/" || root.empty()) root = "/usr";
  Str venv = read_file(join({root, "/pyvenv.cfg"}), 64 * 1024);
  const bool shares = is_true(venv, "include-system-site-packages");
  if (venv.empty()) {
    Str home = environment_value("HOME");
    if (home.starts_with('/')) add_below(join({home, "/.local/lib"}), which, "site-packages");
  }
  // Debian's folders belong to the system's Python, which searches /usr/local first.
  const bool of_system = venv.empty() && root == "/usr";
  if (of_system) add_below("/usr/local/lib", which, "dist-packages");
  add_below(join({root, "/lib"}), which, "site-packages");
  add_below(join({root, "/lib64"}), which, "site-packages");
  // Which Python an environment was made from is in its file; nearly always the system's.
  if (shares) add_below("/usr/local/lib", which, "dist-packages");
  if ((of_system || shares) && exists("/usr/lib/python3/dist-packages")) {
    folders.add("/usr/lib/python3/dist-packages");
  }
  return true;
}

// The text in quotes behind the first '=' of the line that begins with `name`.
Str assigned(Str text, Str name) {
  while (!text.empty()) {
    Str line = take(text, '\n');
    if (!line.starts_with(name)) continue;
    Str value = line;
    take(value, '=');
    value = trimmed(value);
    if (value.empty() || (value[0] != '\'' && value[0] != '"')) return {};
    char quote = value[0];
    value.remove_prefix(1);
    return take(value, quote);
  }
  return {};
}

// Which of g++'s two strings torch's own interface takes. Its exception class has one in its
// constructor, and that symbol is in every libc10.so.
Str abi_of(Str library) {
  Mapped file(library);
  constexpr Str kConstructor = "_ZN3c105ErrorC2ENS_14SourceLocationE";
  std::size_t at = find(file.bytes(), kConstructor);
  if (at == kNowhere) return {};
  Str rest = part(file.bytes(), at + kConstructor.size(), 16);
  if (rest.starts_with("NSt7__cxx1112")) return "cxx11";
  return rest.starts_with("Ss") ? Str("old") : Str();
}

// The first library of this name in a folder: a distribution's has its version behind it.
Str library_in(Str folder, Str name) {
  Str plain = join({folder, "/", name});
  if (exists(plain)) return plain;
  Str beginning = join({name, "."});
  for (Str other : names_in(folder, 16384)) {
    if (other.starts_with(beginning)) return join({folder, "/", other});
  }
  return {};
}

struct Torch {
  Str folder;  // Of its libraries.
  Str version;
  Str cuda;
};

Torch torch_in(Str folder) {
  Torch torch{folder, {}, {}};
  Str above = folder_of(folder);
  Str text = read_file(join({above, "/version.py"}));
  torch.version = assigned(text, "__version__");
  torch.cuda = assigned(text, "cuda");
  if (torch.version.empty()) {
    Str build = read_file(join({above, "/build-version"}));
    torch.version = trimmed(take(build, '\n'));
  }
  if (torch.version.empty()) {
    Str real = base_name(canonical(library_in(folder, kCpuLibrary)));
    torch.version = part(real, kCpuLibrary.size() + 1);
  }
  // "2.1.0+cu121" says it also where there is no version.py.
  std::size_t plus = find(torch.version, "+cu");
  if (torch.cuda.empty() && plus != kNowhere) {
    Str digits = part(torch.version, plus + 3);
    if (digits.size() >= 2 && digits.find_first_not_of("0123456789") == kNowhere) {
      torch.cuda = join({part(digits, 0, digits.size() - 1), ".", part(digits, digits.size() - 1)});
    }
  }
  return torch;
}

Torch find_torch(const Libraries& libraries, const List<Str>& folders, bool all_folders,
                 const List<Str>& hints) {
  for (Str hint : hints) {
    for (Str folder : {hint, join({hint, "/lib"})}) {
      if (has_torch(folder)) return torch_in(folder);
    }
  }
  for (Str packages : folders) {
    Str folder = join({packages, "/torch/lib"});
    if (has_torch(folder)) return torch_in(folder);
  }
  if (!all_folders) return {};
  Str system = libraries.find_beginning(kCpuLibrary);
  return system.empty() ? Torch{} : torch_in(folder_of(system));
}

// "deepspeed-0.14.2.dist-info" → deepspeed, 0.14.2. Only what a rule or a person asks about here.
void write_packages(Json& json, const List<Str>& folders) {
  constexpr Str kNames[] = {
      "accelerate", "deepspeed", "fairscale",    "numpy", "onnxruntime_training",
      "optimum",    "torch",     "transformers", "triton"};
  constexpr std::size_t kCount = sizeof kNames / sizeof kNames[0];
  Str versions[kCount];
  for (Str folder : folders) {
    for (Str entry : names_in(folder, 16384)) {
      Str rest = entry;
      for (Str suffix : {Str(".dist-info"), Str(".egg-info")}) {
        if (rest.ends_with(suffix)) rest.remove_suffix(suffix.size());
      }
      if (rest.size() == entry.size()) continue;
      Str name = take(rest, '-');
      // An egg has the Python's version behind its own.
      Str version = take(rest, '-');
      for (std::size_t i = 0; i < kCount; ++i) {
        bool same = name.size() == kNames[i].size();
        for (std::size_t k = 0; same && k < name.size(); ++k) {
          char c = name[k] == '-' || name[k] == '.' ? '_' : name[k];
          same = (c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) == kNames[i][k];
        }
        if (same && versions[i].empty()) versions[i] = version;
      }
    }
  }
  json.open("packages");
  for (std::size_t i = 0; i < kCount; ++i) json.text(kNames[i], versions[i]);
  json.close();
}

}  // namespace

Python::Python(const Libraries& libraries, const List<Str>& hints) {
  all_folders_ = package_folders(folders_);
  Torch torch = find_torch(libraries, folders_, all_folders_, hints);
  torch_ = torch.folder;
  version_ = torch.version;
  cuda_ = torch.cuda;
}

void Python::lead(Libraries& libraries) const {
  constexpr Str kPackage = "/torch/lib";
  // A distribution's torch brings nothing of its own: what lies beside it is the system's.
  auto first = [&](Str folder) {
    if (!Libraries::is_system_folder(folder)) libraries.search_first(folder);
  };
  if (!torch_.empty()) first(torch_);
  if (torch_.ends_with(kPackage)) {
    // <environment>/lib/python3.11/site-packages/torch/lib
    Str packages = join({part(torch_, 0, torch_.size() - kPackage.size())});
    first(folder_of(folder_of(packages)));
    Str nvidia = join({packages, "/nvidia"});
    for (Str name : names_in(nvidia, 256)) {
      Str folder = join({nvidia, "/", name, "/lib"});
      if (exists(folder)) libraries.search_first(folder);
    }
  }
  Str path = environment_value("LD_LIBRARY_PATH");
  while (!path.empty()) {
    Str folder = take(path, ':');
    if (folder.starts_with('/')) libraries.search_first(join({folder}));
  }
}

void Python::write(Json& json) const {
  json.open("torch");
  json.text("path", torch_);
  json.text("version", version_);
  json.text("cuda", cuda_);
  if (!torch_.empty()) {
    json.text("abi", abi_of(library_in(torch_, "libc10.so")));
    json.flag("with_cuda", !library_in(torch_, "libc10_cuda.so").empty());
  }
  // Not that there is none: the python3 there may know folders that nobody else does.
  json.flag("searched", all_folders_ || !torch_.empty());
  json.close();
  write_packages(json, folders_);
}

}  // namespace dsi::facts
