#include "orchestrator/facts/base.h"

#include "orchestrator/facts/kernel.h"

namespace dsi::facts {

namespace {

constexpr std::size_t kArena = 64u << 20;  // Address space; only what is used costs memory.
constinit char* arena = nullptr;
constinit std::size_t used = 0;
constinit char** own_environment = nullptr;

}  // namespace

void* allocate(std::size_t size) {
  if (arena == nullptr) arena = static_cast<char*>(sys_memory(kArena));
  size = (size + 15) & ~std::size_t{15};
  if (arena == nullptr || size > kArena - used) sys_exit(71);
  void* at = arena + used;
  used += size;
  return at;
}

Str join(std::initializer_list<Str> parts) {
  std::size_t size = 0;
  for (Str text : parts) size += text.size();
  char* to = static_cast<char*>(allocate(size + 1));
  std::size_t at = 0;
  for (Str text : parts) {
    for (char c : text) to[at++] = c;
  }
  return {to, size};
}

Str part(Str text, std::size_t begin, std::size_t size) {
  if (begin >= text.size()) return {};
  std::size_t left = text.size() - begin;
  return {text.data() + begin, size < left ? size : left};
}

std::size_t find(Str text, Str what, std::size_t from) {
  if (what.empty() || text.size() < what.size()) return kNowhere;
  for (std::size_t i = from; i + what.size() <= text.size(); ++i) {
    if (text[i] != what[0]) continue;
    if (__builtin_memcmp(text.data() + i, what.data(), what.size()) == 0) return i;
  }
  return kNowhere;
}

Str trimmed(Str text) {
  auto space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

Str take(Str& rest, char separator) {
  std::size_t end = 0;
  while (end < rest.size() && rest[end] != separator) ++end;
  Str first = part(rest, 0, end);
  rest = part(rest, end + 1);
  return first;
}

std::uint64_t number(Str text) {
  std::uint64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9' || value > UINT64_MAX / 10 - 1) break;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

Str decimal(std::uint64_t value) {
  char* to = static_cast<char*>(allocate(24));
  std::size_t at = 20;
  do {
    to[--at] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return {to + at, 20 - at};
}

bool version_less(Str a, Str b) {
  while (!a.empty() || !b.empty()) {
    std::uint64_t x = number(take(a, '.'));
    std::uint64_t y = number(take(b, '.'));
    if (x != y) return x < y;
  }
  return false;
}

Str base_name(Str path) {
  std::size_t at = path.size();
  while (at > 0 && path[at - 1] != '/') --at;
  return part(path, at);
}

Str folder_of(Str path) {
  std::size_t at = path.size();
  while (at > 0 && path[at - 1] != '/') --at;
  if (at <= 1) return at == 1 ? Str("/") : Str();
  return join({part(path, 0, at - 1)});
}

namespace {

int open_to_read(Str path, int flags = 0) {
  // Not to be stopped by a pipe that nobody writes to.
  return static_cast<int>(
      sys_openat(AT_FDCWD, path.data(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags, 0));
}

}  // namespace

Str read_file(Str path, std::size_t limit) {
  int fd = open_to_read(path);
  if (fd < 0) return {};
  // Files of /proc have no size: read until the end.
  std::size_t room = 4096;
  std::size_t size = 0;
  char* bytes = static_cast<char*>(allocate(room));
  for (;;) {
    if (size == room) {
      if (room >= limit) break;
      char* more = static_cast<char*>(allocate(2 * room));
      __builtin_memcpy(more, bytes, size);
      bytes = more;
      room *= 2;
    }
    long n = sys_read(fd, bytes + size, room - size);
    if (n == -EINTR) continue;
    if (n <= 0) break;
    size += static_cast<std::size_t>(n);
  }
  sys_close(fd);
  return {bytes, size < limit ? size : limit};
}

bool exists(Str path) {
  return !path.empty() && sys_access(path.data(), 0) == 0;
}

Str link_target(Str path) {
  char* to = static_cast<char*>(allocate(4096));
  long n = sys_readlink(path.data(), to, 4095);
  return n > 0 ? Str(to, static_cast<std::size_t>(n)) : Str();
}

Str canonical(Str path) {
  constexpr int kPath = 010000000;  // O_PATH
  int fd = static_cast<int>(sys_openat(AT_FDCWD, path.data(), kPath | O_CLOEXEC, 0));
  if (fd < 0) return {};
  Str real = link_target(join({"/proc/self/fd/", decimal(static_cast<std::uint64_t>(fd))}));
  sys_close(fd);
  return real.starts_with('/') ? real : Str();
}

List<Str> names_in(Str folder, std::size_t limit) {
  List<Str> names;
  int fd = open_to_read(folder, O_DIRECTORY);
  if (fd < 0) return names;
  constexpr std::size_t kRoom = 32768;
  char* bytes = static_cast<char*>(allocate(kRoom));
  for (long n; names.size() < limit && (n = sys_getdents(fd, bytes, kRoom)) > 0;) {
    for (long at = 0; at < n;) {
      // struct linux_dirent64: inode, offset, length, type, name.
      std::uint16_t length = 0;
      __builtin_memcpy(&length, bytes + at + 16, sizeof length);
      Str name(bytes + at + 19);
      if (name != "." && name != ".." && names.size() < limit) names.add(join({name}));
      at += length;
    }
  }
  sys_close(fd);
  return names;
}

Mapped::Mapped(Str path) {
  int fd = path.empty() ? -1 : open_to_read(path);
  if (fd < 0) return;
  struct stat status;
  if (sys_fstat(fd, &status) == 0 && (status.st_mode & 0170000) == 0100000 && status.st_size > 0) {
    long at = sys_map_file(fd, static_cast<std::size_t>(status.st_size));
    if (at > 0 || at < -4095) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): it is what the kernel gives.
      bytes_ = {reinterpret_cast<const char*>(at), static_cast<std::size_t>(status.st_size)};
    }
  }
  sys_close(fd);
}

Mapped::~Mapped() {
  if (!bytes_.empty()) sys_unmap(bytes_.data(), bytes_.size());
}

void set_environment(char** environment) {
  own_environment = environment;
}
char** environment() {
  return own_environment;
}

Str environment_value(Str name) {
  for (char** at = own_environment; at != nullptr && *at != nullptr; ++at) {
    Str entry(*at);
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return {entry.data() + name.size() + 1, entry.size() - name.size() - 1};
    }
  }
  return {};
}

Str program_path(Str name) {
  for (Str rest : {environment_value("PATH"), Str("/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/"
                                                  "usr/local/nvidia/bin:/usr/lib/wsl/lib")}) {
    while (!rest.empty()) {
      Str folder = take(rest, ':');
      if (!folder.starts_with('/')) continue;
      Str path = join({folder, "/", name});
      if (sys_access(path.data(), 1) == 0) return path;
    }
  }
  return {};
}

}  // namespace dsi::facts
