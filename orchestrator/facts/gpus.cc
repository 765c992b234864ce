#include "orchestrator/facts/kernel.h"
#include "orchestrator/facts/look.h"

namespace dsi::facts {

namespace {

// A driver that answers does so in a second or two; one that hangs must not hold up the survey.
constexpr std::int64_t kPatienceMs = 5000;

// How many NVIDIA devices that compute are on the bus, with or without a driver. False: the bus
// cannot be seen.
bool devices_on_bus(std::uint64_t& count) {
  count = 0;
  if (!exists("/sys/bus/pci/devices")) return false;
  for (Str name : names_in("/sys/bus/pci/devices")) {
    Str folder = join({"/sys/bus/pci/devices/", name});
    if (!read_file(join({folder, "/vendor"})).starts_with("0x10de")) continue;
    // A display controller: graphics or, without an output, "3D".
    count += read_file(join({folder, "/class"})).starts_with("0x03") ? 1 : 0;
  }
  return true;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ...": the first word of
// digits and dots.
Str driver_of_kernel() {
  Str text = read_file("/proc/driver/nvidia/version");
  Str line = take(text, '\n');
  while (!line.empty()) {
    Str word = take(line, ' ');
    if (find(word, ".") != kNowhere && word.find_first_not_of("0123456789.") == kNowhere) {
      return word;
    }
  }
  return {};
}

Str value_of(Str text, Str name) {
  while (!text.empty()) {
    Str line = trimmed(take(text, '\n'));
    if (!line.starts_with(name)) continue;
    std::size_t colon = find(line, ":");
    if (colon != kNowhere) return trimmed(part(line, colon + 1));
  }
  return {};
}

// What nvidia-smi says where there is nothing to say: "[N/A]", "[Not Supported]".
Str known(Str value) {
  return value.starts_with('[') || value == "N/A" ? Str() : value;
}

bool is_version(Str text) {
  return !text.empty() && text.find_first_not_of("0123456789.") == kNowhere;
}

}  // namespace

Gpus::Child Gpus::start(Str program, std::initializer_list<const char*> words) {
  Child child;
  int ends[2] = {-1, -1};
  if (sys_pipe(ends) != 0) return child;
  const char* argv[8] = {program.data()};
  std::size_t count = 1;
  for (const char* word : words) argv[count++] = word;
  child.pid = sys_fork();
  if (child.pid == 0) {
    sys_own_group();
    int nothing = static_cast<int>(sys_openat(AT_FDCWD, "/dev/null", O_RDWR, 0));
    sys_dup_to(nothing, 0);
    sys_dup_to(ends[1], 1);
    sys_dup_to(nothing, 2);
    sys_execve(program.data(), const_cast<char* const*>(argv), environment());
    sys_exit(127);
  }
  sys_close(ends[1]);
  child.out = ends[0];
  return child;
}

Gpus::Gpus() {
  Str program = program_path("nvidia-smi");
  if (program.empty()) return;
  query_ =
      start(program, {"--query-gpu=name,compute_cap,memory.total,driver_version,mig.mode.current",
                      "--format=csv,noheader,nounits"});
  // The only report in which the CUDA level stands in every version of the program.
  level_ = start(program, {"-q", "-d", "COMPUTE"});
}

void Gpus::wait() {
  constexpr std::size_t kRoom = 64u << 10;
  std::int64_t end = sys_now_ms() + kPatienceMs;
  for (Child* child : {&query_, &level_}) {
    if (child->pid <= 0) continue;
    char* bytes = static_cast<char*>(allocate(kRoom));
    std::size_t size = 0;
    for (;;) {
      std::int64_t left = end - sys_now_ms();
      if (left <= 0) {
        late_ = true;
        break;
      }
      struct pollfd poll = {child->out, POLLIN, 0};
      struct timespec wait = {left / 1000, left % 1000 * 1000000};
      long ready = sys_ppoll(&poll, 1, &wait);
      if (ready == -EINTR || ready == 0) continue;
      if (ready < 0) break;
      char waste[512];
      long n = size < kRoom ? sys_read(child->out, bytes + size, kRoom - size)
                            : sys_read(child->out, waste, sizeof waste);
      if (n == -EINTR) continue;
      if (n <= 0) break;
      if (size < kRoom) size += static_cast<std::size_t>(n);
    }
    // Its output has ended, and so has it, but for one that closed it and lives on.
    while (!late_ && sys_wait(child->pid, &child->status, true) == 0) {
      struct timespec wait = {0, 2'000'000};
      sys_ppoll(nullptr, 0, &wait);
      late_ = sys_now_ms() >= end;
    }
    if (late_) {
      // One that hangs in the driver cannot even be killed; it is not waited for.
      sys_kill_group(child->pid);
      sys_wait(child->pid, &child->status, true);
      child->status = -1;
    }
    child->text = {bytes, size};
    sys_close(child->out);
  }
}

void Gpus::write(Json& json) {
  wait();
  Str driver = driver_of_kernel();
  std::uint64_t count = 0;
  json.open_list("gpus");
  if (query_.status == 0) {
    Str text = query_.text;
    while (!text.empty() && count < 64) {
      Str line = take(text, '\n');
      const bool has_fields = find(line, ",") != kNowhere;
      Str name = trimmed(take(line, ','));
      Str capability = known(trimmed(take(line, ',')));
      Str memory = known(trimmed(take(line, ',')));
      Str version = known(trimmed(take(line, ',')));
      Str mig = known(trimmed(line));
      // A line that is none: "No devices were found".
      if (name.empty() || !has_fields) continue;
      ++count;
      json.open("");
      json.text("name", name);
      json.text("compute_capability", is_version(capability) ? capability : Str());
      // Where memory is the host's own, as on some boards, it says "Not Supported".
      if (!memory.empty()) json.number("memory_mib", facts::number(memory));
      // What cannot be cut into slices says "N/A".
      json.flag("mig", mig == "Enabled");
      json.close();
      if (is_version(version)) driver = version;
    }
  }
  if (count == 0) {
    // What the kernel's module says knows no compute capability.
    for (Str name : names_in("/proc/driver/nvidia/gpus", 64)) {
      Str text = read_file(join({"/proc/driver/nvidia/gpus/", name, "/information"}));
      json.open("");
      json.text("name", value_of(text, "Model"));
      json.close();
      ++count;
    }
  }
  json.close_list();
  // None is a fact only where somebody said so: the program that asks the driver, or the kernel,
  // which has no module of it.
  const bool asked = query_.pid > 0 && query_.status == 0;
  const bool no_module = !exists("/proc/driver/nvidia/version") && exists("/proc/self");
  json.flag("gpus_known", count > 0 || asked || (query_.pid <= 0 && no_module));
  json.open("driver");
  json.text("version", driver);
  Str level = level_.status == 0 ? known(value_of(level_.text, "CUDA Version")) : Str();
  json.text("cuda", is_version(level) ? level : Str());
  if (std::uint64_t on_bus = 0; devices_on_bus(on_bus)) json.number("devices_on_bus", on_bus);
  if (late_) {
    json.text("error", "nvidia-smi gave no answer within 5 s");
  } else if (query_.pid > 0 && query_.status != 0) {
    Str said = query_.text;
    json.text("error", join({"nvidia-smi failed: ", trimmed(take(said, '\n'))}));
  }
  json.close();
}

namespace {

// version.json has {"cuda": {"name": ..., "version": "12.4.1"}, ...}, older ones "CUDA Version
// 10.2.89" in version.txt.
Str toolkit_version(Str folder) {
  Str text = read_file(join({folder, "/version.json"}));
  std::size_t cuda = find(text, "\"cuda\"");
  std::size_t key = cuda == kNowhere ? kNowhere : find(text, "\"version\"", cuda);
  if (key != kNowhere) {
    Str rest = part(text, key + 9);
    take(rest, '"');
    return take(rest, '"');
  }
  Str old = read_file(join({folder, "/version.txt"}));
  std::size_t at = find(old, "CUDA Version ");
  if (at != kNowhere) {
    Str rest = part(old, at + 13);
    return trimmed(take(rest, '\n'));
  }
  // A toolkit that pip or a distribution brought has neither: #define CUDA_VERSION 12040.
  Str header = read_file(join({folder, "/include/cuda.h"}));
  constexpr Str kDefine = "#define CUDA_VERSION ";
  at = find(header, kDefine);
  std::uint64_t both = at == kNowhere ? 0 : number(trimmed(part(header, at + kDefine.size(), 16)));
  if (both < 1000) return {};
  return join({decimal(both / 1000), ".", decimal(both % 1000 / 10)});
}

}  // namespace

void look_at_toolkits(Json& json) {
  json.open_list("toolkits");
  List<Str> seen;
  auto look = [&](Str folder) {
    Str real = canonical(folder);
    if (real.empty()) return;
    for (Str known : seen) {
      if (known == real) return;
    }
    Str version = toolkit_version(real);
    bool compiler = exists(join({real, "/bin/nvcc"}));
    if (version.empty() && !compiler) return;
    seen.add(real);
    json.open("");
    json.text("path", real);
    json.text("version", is_version(version) ? version : Str());
    json.flag("nvcc", compiler);
    json.close();
  };
  for (Str name : names_in("/usr/local", 1024)) {
    if (name.starts_with("cuda") && seen.size() < 16) look(join({"/usr/local/", name}));
  }
  for (Str root : {Str("/opt/cuda"), Str("/usr/lib/cuda")}) look(root);
  if (Str nvcc = canonical(program_path("nvcc")); !nvcc.empty()) look(folder_of(folder_of(nvcc)));
  json.close_list();
}

}  // namespace dsi::facts
