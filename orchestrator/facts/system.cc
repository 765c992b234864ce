#include "orchestrator/facts/kernel.h"
#include "orchestrator/facts/look.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dsi::facts {

namespace {

// The value behind "name : value" or "name: value" of the first line that begins so.
Str line_value(Str text, Str name) {
  while (!text.empty()) {
    Str line = take(text, '\n');
    if (!line.starts_with(name)) continue;
    std::size_t colon = find(line, ":");
    if (colon != kNowhere) return trimmed(part(line, colon + 1));
  }
  return {};
}

// "0-3,8" has five.
std::uint64_t count_ranges(Str text) {
  std::uint64_t count = 0;
  text = trimmed(text);
  while (!text.empty()) {
    Str range = take(text, ',');
    Str first = take(range, '-');
    count += range.empty() ? 1 : number(range) - number(first) + 1;
  }
  return count;
}

#if defined(__x86_64__)

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
Leaf leaf(unsigned number, unsigned sub = 0) {
  Leaf found;
  __cpuid_count(number, sub, found.a, found.b, found.c, found.d);
  return found;
}

bool all(unsigned value, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if ((value >> bit & 1) == 0) return false;
  }
  return true;
}

// The levels of the x86-64 psABI. A processor that can and an operating system that does not save
// the registers is one that cannot.
Str isa_level(bool& bf16) {
  bf16 = false;
  unsigned most = leaf(0).a;
  unsigned most_extended = leaf(0x80000000).a;
  Leaf one = leaf(1);
  Leaf extended = most_extended >= 0x80000001 ? leaf(0x80000001) : Leaf{};
  // SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT, LAHF.
  if (!all(one.c, {0, 9, 13, 19, 20, 23}) || !all(extended.c, {0})) return "x86-64-v1";
  unsigned saved = 0;
  if (all(one.c, {27})) {
    unsigned high = 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  }
  Leaf seven = most >= 7 ? leaf(7) : Leaf{};
  // FMA, MOVBE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT.
  bool v3 = (saved & 0x06) == 0x06 && all(one.c, {12, 22, 28, 29}) && all(seven.b, {3, 5, 8}) &&
            all(extended.c, {5});
  if (!v3) return "x86-64-v2";
  // AVX512F, DQ, CD, BW, VL.
  bool v4 = (saved & 0xe6) == 0xe6 && all(seven.b, {16, 17, 28, 30, 31});
  if (!v4) return "x86-64-v3";
  bf16 = seven.a >= 1 && all(leaf(7, 1).a, {5});
  return "x86-64-v4";
}

// "KVMKVMKVM", "TCGTCGTCGTCG" (QEMU without the processor's help), "Microsoft Hv", ...
Str hypervisor() {
  if (!all(leaf(1).c, {31})) return {};
  Leaf name = leaf(0x40000000);
  char* text = static_cast<char*>(allocate(16));
  __builtin_memcpy(text, &name.b, 4);
  __builtin_memcpy(text + 4, &name.c, 4);
  __builtin_memcpy(text + 8, &name.d, 4);
  Str found(text);
  return trimmed(found.empty() ? Str("unknown") : found);
}

#endif

void look_at_processor(Json& json) {
  json.open("cpu");
  Str info = read_file("/proc/cpuinfo", 64u << 10);
  json.text("model", line_value(info, "model name"));
#if defined(__x86_64__)
  bool bf16 = false;
  json.text("isa", isa_level(bf16));
  json.flag("avx512_bf16", bf16);
  json.text("hypervisor", hypervisor());
#elif defined(__aarch64__)
  Str features = join({" ", line_value(info, "Features"), " "});
  bool sve = find(features, " sve ") != kNowhere;
  json.text("isa", sve ? "armv8-a+sve" : "armv8-a");
#endif
  std::uint64_t mask[512] = {};
  std::uint64_t cores = 0;
  if (long n = sys_affinity(mask, sizeof mask); n > 0) {
    // By hand: what the compiler would call is in its run-time.
    for (std::uint64_t word : mask) {
      for (; word != 0; word &= word - 1) ++cores;
    }
  }
  if (cores > 0) json.number("cores", cores);
  if (Str nodes = read_file("/sys/devices/system/node/online"); !nodes.empty()) {
    json.number("numa_nodes", count_ranges(nodes));
  }
  json.close();
}

struct Pair {
  Str key;
  Str line;
};

void look_at_memory(Json& json) {
  json.open("memory");
  Str info = read_file("/proc/meminfo");
  for (auto [key, line] : {Pair{"bytes", "MemTotal"}, Pair{"available_bytes", "MemAvailable"}}) {
    if (Str value = line_value(info, line); !value.empty()) json.number(key, number(value) * 1024);
  }
  constexpr long kTmpfs = 0x01021994;
  struct statfs shared;
  // Without a mount there it is a folder of the disk, or none; only a tmpfs is shared memory.
  if (sys_statfs("/dev/shm", &shared) == 0 && shared.f_type == kTmpfs) {
    json.number("shm_bytes",
                std::uint64_t(shared.f_bavail) *
                    std::uint64_t((shared.f_frsize != 0 ? shared.f_frsize : shared.f_bsize)));
  }
  constexpr int kLockedMemory = 8;
  std::uint64_t limit[2] = {0, 0};
  if (sys_memory_limit(limit, kLockedMemory) == 0) {
    json.number("locked_bytes", limit[0] >> 63 != 0 ? INT64_MAX : limit[0]);
  }
  json.close();
}

struct Account {
  Str name;
  Str home;
  Str shell;
};
Account account_of(std::uint64_t uid) {
  Str text = read_file("/etc/passwd");
  while (!text.empty()) {
    Str line = take(text, '\n');
    Str fields[7];
    for (Str& field : fields) field = take(line, ':');
    if (!fields[2].empty() && number(fields[2]) == uid) return {fields[0], fields[5], fields[6]};
  }
  return {};
}

}  // namespace

void look_at_system(Json& json) {
  struct new_utsname system;
  if (sys_uname(&system) == 0) {
    json.text("host_name", Str(system.nodename));
    json.text("arch", Str(system.machine));
    json.text("kernel", Str(system.release));
  }
  auto uid = static_cast<std::uint64_t>(sys_geteuid());
  Account account = account_of(uid);
  Str user = account.name;
  for (Str variable : {Str("USER"), Str("LOGNAME")}) {
    if (user.empty()) user = environment_value(variable);
  }
  json.text("user", user.empty() ? decimal(uid) : user);
  json.flag("root", uid == 0);
  // Under sudo the shell is root's; who logs in has another.
  Str sudo = environment_value("SUDO_UID");
  json.flag("sudo", uid == 0 && !sudo.empty());
  // A directory service keeps accounts that are not in the file; then sshd's word is all there is.
  Str shell = sudo.empty() ? account.shell : account_of(number(sudo)).shell;
  json.text("shell", shell.empty() && sudo.empty() ? environment_value("SHELL") : shell);
  look_at_processor(json);
  look_at_memory(json);
}

}  // namespace dsi::facts
