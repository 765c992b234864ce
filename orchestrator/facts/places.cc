#include "orchestrator/facts/kernel.h"
#include "orchestrator/facts/look.h"

namespace dsi::facts {

namespace {

struct Mount {
  Str root;  // Of the file system, that is mounted.
  Str point;
  Str options;
  Str type;
  Str source;
};

// A space in a path stands there as \040.
Str decoded(Str text) {
  char* to = static_cast<char*>(allocate(text.size() + 1));
  std::size_t size = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto digit = [&](std::size_t k) {
      return i + k < text.size() && text[i + k] >= '0' && text[i + k] <= '7' ? text[i + k] - '0'
                                                                             : -1;
    };
    if (text[i] == '\\' && digit(1) >= 0 && digit(2) >= 0 && digit(3) >= 0) {
      to[size++] = static_cast<char>(digit(1) * 64 + digit(2) * 8 + digit(3));
      i += 3;
    } else {
      to[size++] = text[i];
    }
  }
  return {to, size};
}

// What is mounted at the real path: the longest mount point above it, of equal ones the last.
Mount mount_of(Str path) {
  Mount best;
  bool found = false;
  Str text = read_file("/proc/self/mountinfo", 4u << 20);
  while (!text.empty()) {
    Str line = take(text, '\n');
    Mount mount;
    for (int i = 0; i < 3; ++i) take(line, ' ');
    mount.root = decoded(take(line, ' '));
    mount.point = decoded(take(line, ' '));
    mount.options = take(line, ' ');
    while (!line.empty() && take(line, ' ') != "-") {
    }
    mount.type = take(line, ' ');
    mount.source = decoded(take(line, ' '));
    bool above = mount.point == "/" || path == mount.point ||
                 (path.starts_with(mount.point) && path.size() > mount.point.size() &&
                  path[mount.point.size()] == '/');
    if (above && (!found || mount.point.size() >= best.point.size())) {
      best = mount;
      found = true;
    }
  }
  return best;
}

bool is_network(Str type) {
  for (Str known :
       {"nfs",       "nfs4",         "cifs",        "smb3",     "lustre",     "gpfs",
        "beegfs",    "ceph",         "glusterfs",   "panfs",    "pvfs2",      "orangefs",
        "afs",       "9p",           "virtiofs",    "wekafs",   "fuse.sshfs", "fuse.glusterfs",
        "fuse.ceph", "fuse.juicefs", "fuse.beegfs", "fuse.s3fs"}) {
    if (type == known) return true;
  }
  return false;
}

void look_at_place(Json& json, Str key, Str path) {
  constexpr long kReadOnly = 1;
  constexpr long kNoExec = 8;
  json.open(key);
  json.text("path", path);
  // The nearest folder that is there: what is made below it lies where it lies.
  Str at = path;
  while (at.size() > 1 && !exists(at)) at = folder_of(at);
  struct statfs status;
  if (!at.empty() && sys_statfs(at.data(), &status) == 0) {
    bool root = sys_geteuid() == 0;  // May use what is reserved.
    json.text("at", at);
    std::uint64_t blocks = static_cast<std::uint64_t>(root ? status.f_bfree : status.f_bavail);
    json.flag("known", true);
    json.number("free_bytes",
                blocks * static_cast<std::uint64_t>(
                             (status.f_frsize != 0 ? status.f_frsize : status.f_bsize)));
    // Where the file system does not count them there is no limit.
    json.flag("counts_inodes", status.f_files != 0);
    if (status.f_files != 0) {
      json.number("free_inodes", static_cast<std::uint64_t>(status.f_ffree));
    }
    Mount mount = mount_of(canonical(at));
    auto has = [&](Str option) {
      Str options = mount.options;
      while (!options.empty()) {
        if (take(options, ',') == option) return true;
      }
      return false;
    };
    json.flag("read_only", (status.f_flags & kReadOnly) != 0 || has("ro"));
    json.flag("no_exec", (status.f_flags & kNoExec) != 0 || has("noexec"));
    json.flag("writable", sys_access(at.data(), 2) == 0);
    json.text("file_system", mount.type);
    json.text("source", mount.source);
    json.flag("network", is_network(mount.type));
    if (is_network(mount.type)) {
      // The same text on every host that sees the same folder.
      Str real = canonical(at);
      Str below = mount.point == "/" ? real : part(real, mount.point.size());
      json.text("share", join({mount.source, mount.root == "/" ? Str() : mount.root, below,
                               part(path, at == "/" ? 0 : at.size())}));
    }
  }
  json.close();
}

}  // namespace

namespace {

// torch's folder of extensions that are compiled when they are used; empty: no home to have it in.
Str extensions_folder() {
  Str given = environment_value("TORCH_EXTENSIONS_DIR");
  if (given.starts_with('/')) return join({given});
  Str home = environment_value("HOME");
  return home.starts_with('/') ? join({home, "/.cache/torch_extensions"}) : Str();
}

}  // namespace

void look_at_places(Json& json, Str prefix) {
  look_at_place(json, "prefix", prefix);
  Str temporary = environment_value("TMPDIR");
  look_at_place(json, "temp", temporary.starts_with('/') ? join({temporary}) : Str("/tmp"));
  look_at_place(json, "extensions", extensions_folder());
}

void look_at_locks(Json& json) {
  // torch holds `lock` in the folder of an extension while it compiles it, and waits for ever on
  // one that a killed process left.
  Str root = extensions_folder();
  json.open_list("locks");
  std::int64_t now = sys_clock_ns() / 1'000'000'000;
  std::size_t count = 0;
  auto look = [&](Str folder) {
    Str path = join({folder, "/lock"});
    int fd =
        static_cast<int>(sys_openat(AT_FDCWD, path.data(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
    if (fd < 0) return;
    struct stat status;
    if (sys_fstat(fd, &status) == 0 && count++ < 8) {
      std::int64_t age = now - static_cast<std::int64_t>(status.st_mtime);
      json.open("");
      json.text("path", path);
      json.number("age_s", age > 0 ? static_cast<std::uint64_t>(age) : 0);
      json.close();
    }
    sys_close(fd);
  };
  if (!root.empty()) {
    for (Str first : names_in(root, 64)) {
      Str folder = join({root, "/", first});
      look(folder);
      for (Str second : names_in(folder, 64)) look(join({folder, "/", second}));
    }
  }
  json.close_list();
}

}  // namespace dsi::facts
