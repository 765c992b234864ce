// ds-probe: loads one op and runs its self-test in a process of its own, so that an op that
// crashes, hangs or calls exit() costs one cell of the report. Started by ds-agent.
//
//   ds-probe LIBRARY OP DEVICE   tries one op
//   ds-probe --shared NAME...    loads the libraries NAME, which several ops need and which take
//   the
//                                time, then forks a process for each op that it is asked to try
//
// A process that tries an op answers on its descriptor 3 (or the one that came with the request),
// one line a step, each beginning with a nonce, so that nothing which an op prints can be taken for
// an answer:
//
//   <nonce> load                      before dlopen
//   <nonce> refused <dlerror>         the loader did not take it
//   <nonce> symbol <name>             what the C++ name of the symbol in it means, if one is
//   missing <nonce> alone <why>               only --shared: this op has to be tried without
//   <nonce> no-test <symbol>          it has no self-test
//   <nonce> test                      before the self-test
//   <nonce> result <code> <detail>    0 ok, 1 wrong, 2 missing dependency, 3 skipped
//   <nonce> file <path>               after an "ok": each file that the process has loaded
//   <nonce> end                       that were all
//
// A line that ought to follow and does not is the crash.
//
// With --shared, standard input is a socket of packets. From the agent:
//
//   run\0LIBRARY\0OP\0DEVICE\0NONCE\0  with two descriptors: for output, for answers
//   kill\0PID\0                        the process group of an op whose time is up
//
// and to it:
//
//   absent NAME         a library is not to be had; before "ready"
//   unfit WHY           nothing may be forked from this process; it ends
//   ready
//   started PID         for each "run", in order; 0 if there is no process
//   ended PID STATUS    waitpid's status; its process group is gone, too
//
// A child holds neither the socket nor any other op's descriptors, so it has no way to answer for
// another one.
#define _GNU_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  kAnswerFd = 3,
  kDetailSize = 2048,
  kRequestSize = 16384,
  kMostOps = 64,  // At the same time; the agent asks for far fewer.
};

static char nonce[65];
static int answer_fd = -1;

// One write: shorter than PIPE_BUF, so it arrives whole or not at all. On a line of its own,
// whatever an op that writes to all descriptors has left before it.
static void answer(const char* step, const char* text) {
  char line[kDetailSize + 256];
  int length = snprintf(line, sizeof line, "\n%s %s %s", nonce, step, text);
  if (length < 0) _exit(70);
  if ((size_t)length >= sizeof line) length = (int)sizeof line - 1;
  for (int i = 1; i < length; ++i) {
    if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
  }
  line[length++] = '\n';
  if (write(answer_fd, line, (size_t)length) != length) _exit(71);
}

// The name under which the loader found an object: what it would open again.
static int tell_object(struct dl_phdr_info* info, size_t size, void* unused) {
  (void)size;
  (void)unused;
  if (info->dlpi_name[0] == '/') answer("file", info->dlpi_name);
  return 0;
}

// And every file that is mapped, whoever mapped it.
static void tell_files(void) {
  dl_iterate_phdr(tell_object, NULL);
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == NULL) return;
  static char line[kDetailSize];
  static char last[kDetailSize];
  while (fgets(line, sizeof line, maps) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    const char* path = strchr(line, '/');
    if (path == NULL || strcmp(path, last) == 0) continue;
    strcpy(last, path);
    answer("file", path);
  }
  fclose(maps);
  answer("end", "");
}

static int has_own_search_path(void* library) {
  struct link_map* map = NULL;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == NULL) return 1;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_RPATH || entry->d_tag == DT_RUNPATH) return 1;
  }
  return 0;
}

// The node's C++ library knows; where there is none the name stays as it is.
static void tell_symbol(const char* refused) {
  static const char kUndefined[] = "undefined symbol: ";
  const char* at = strstr(refused, kUndefined);
  if (at == NULL) return;
  at += sizeof kUndefined - 1;
  char symbol[kDetailSize];
  size_t size = strcspn(at, ", ");
  if (size >= sizeof symbol) return;
  memcpy(symbol, at, size);
  symbol[size] = '\0';
  void* library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
  char* (*demangle)(const char*, char*, size_t*, int*) = NULL;
  if (library != NULL) *(void**)&demangle = dlsym(library, "__cxa_demangle");
  int status = -1;
  char* name = demangle != NULL ? demangle(symbol, NULL, NULL, &status) : NULL;
  if (name != NULL && status == 0) answer("symbol", name);
}

static void try_op(const char* path, const char* op, const char* device, int shared) {
  answer("load", "");
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char* why = dlerror();
    if (why == NULL) why = "dlopen failed without a reason";
    answer("refused", why);
    tell_symbol(why);
    _exit(0);
  }
  // Such an op may bring its own copy of a library that is loaded here already.
  if (shared && has_own_search_path(library)) {
    answer("alone", "it has a search path of its own");
    _exit(0);
  }
  char symbol[256];
  snprintf(symbol, sizeof symbol, "ds_self_test_%s", op);
  void* address = dlsym(library, symbol);
  if (address == NULL) {
    answer("no-test", symbol);
    _exit(0);
  }
  int (*self_test)(const char*, char*, unsigned long) = NULL;
  // ISO C knows no conversion from an object's address to a function's; POSIX promises that the
  // bytes are the same.
  memcpy(&self_test, &address, sizeof self_test);

  answer("test", "");
  static char detail[kDetailSize];
  int code = self_test(device, detail, sizeof detail);
  detail[sizeof detail - 1] = '\0';
  char result[kDetailSize + 32];
  snprintf(result, sizeof result, "%d %s", code, detail);
  answer("result", result);
  if (code == 0) tell_files();
  // Not exit(): destructors of a dozen libraries are not what is asked about.
  _exit(0);
}

// Out of the op's way: low descriptors are those that a careless program closes or writes to.
static int move_away(int fd) {
  int high = fcntl(fd, F_DUPFD_CLOEXEC, 100);
  // Where a process may have fewer than that, a little out of the way must do.
  if (high < 0) high = fcntl(fd, F_DUPFD_CLOEXEC, 10);
  close(fd);
  return high;
}

static int control = -1;
static pid_t running[kMostOps];

static void say(const char* format, const char* text, long number, long status) {
  char packet[1024];
  int length = snprintf(packet, sizeof packet, format, text, number, status);
  if (length < 0) _exit(70);
  if ((size_t)length >= sizeof packet) length = (int)sizeof packet - 1;
  if (send(control, packet, (size_t)length, MSG_NOSIGNAL) != length) _exit(72);
}

static int entries_of(const char* folder) {
  DIR* entries = opendir(folder);
  if (entries == NULL) return -1;
  int n = 0;
  while (readdir(entries) != NULL) ++n;
  closedir(entries);
  return n;
}

static void on_child(int number) {
  (void)number;  // Only to end ppoll().
}

static void reap(void) {
  for (;;) {
    siginfo_t info;
    info.si_pid = 0;
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    // Before its number can be given to another: what the op left running goes, too.
    kill(-info.si_pid, SIGKILL);
    int status = 0;
    if (waitpid(info.si_pid, &status, 0) != info.si_pid) return;
    for (int i = 0; i < kMostOps; ++i) {
      if (running[i] != info.si_pid) continue;
      running[i] = 0;
      say("%sended %ld %ld", "", info.si_pid, status);
    }
  }
}

static void kill_all(void) {
  for (int i = 0; i < kMostOps; ++i) {
    if (running[i] > 0) kill(-running[i], SIGKILL);
  }
}

// `words`: LIBRARY, OP, DEVICE, NONCE.
static void run(char** words, int out, int answers, const sigset_t* mask) {
  int slot = 0;
  while (slot < kMostOps && running[slot] != 0) ++slot;
  pid_t parent = getpid();
  pid_t pid = slot < kMostOps ? fork() : -1;
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    close(control);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    out = move_away(out);
    answer_fd = move_away(answers);
    if (out < 0 || answer_fd < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
    close(out);
    strcpy(nonce, words[3]);
    memset(words[3], 0, strlen(words[3]));
    try_op(words[0], words[1], words[2], 1);
  }
  if (pid > 0) {
    setpgid(pid, pid);  // Both sides: whoever is first.
    running[slot] = pid;
  }
  say("%sstarted %ld", "", pid > 0 ? pid : 0, 0);
}

// One packet of the agent; ends with the agent.
static void obey(const sigset_t* mask) {
  static char packet[kRequestSize + 1];
  union {
    char bytes[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
  } extra;
  struct iovec part = {packet, kRequestSize};
  struct msghdr message = {0};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = extra.bytes;
  message.msg_controllen = sizeof extra.bytes;
  ssize_t n = recvmsg(control, &message, MSG_CMSG_CLOEXEC);
  if (n < 0 && errno == EINTR) return;
  if (n <= 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    kill_all();
    _exit(0);
  }
  packet[n] = '\0';
  char* words[5];
  int count = 0;
  for (char* at = packet; at < packet + n && count < 5; at += strlen(at) + 1) words[count++] = at;
  struct cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (count == 5 && strcmp(words[0], "run") == 0 && head != NULL && head->cmsg_type == SCM_RIGHTS &&
      head->cmsg_len == CMSG_LEN(2 * sizeof(int)) && strlen(words[4]) < sizeof nonce) {
    int fds[2];
    memcpy(fds, CMSG_DATA(head), sizeof fds);
    run(words + 1, fds[0], fds[1], mask);
    close(fds[0]);
    close(fds[1]);
    // The next op's process is a copy of this one.
    memset(packet, 0, sizeof packet);
  } else if (count == 2 && strcmp(words[0], "kill") == 0) {
    long pid = strtol(words[1], NULL, 10);
    for (int i = 0; i < kMostOps; ++i) {
      // Not reaped, so the number is still its own.
      if (pid > 0 && running[i] == pid) kill(-running[i], SIGKILL);
    }
  } else {
    kill_all();
    _exit(73);
  }
}

static int share(char** names) {
  control = move_away(0);
  if (control < 0 || open("/dev/null", O_RDONLY) != 0) return 65;
  close(kAnswerFd);
  int descriptors = entries_of("/proc/self/fd");
  for (; *names != NULL; ++names) {
    // RTLD_NOW as an op alone would have it: a libtorch that lacks a symbol of its libc10 must not
    // pass because nobody has called it yet. RTLD_LOCAL: an op sees what it is linked to, no more.
    if (dlopen(*names, RTLD_NOW | RTLD_LOCAL) == NULL) say("absent %s", *names, 0, 0);
  }
  // A thread does not survive a fork, and what it held locked stays locked; a descriptor, of a
  // device above all, would be shared by all ops.
  if (entries_of("/proc/self/task") != 3) {
    say("%s", "unfit it started a thread", 0, 0);
    return 0;
  }
  if (descriptors < 0 || entries_of("/proc/self/fd") != descriptors) {
    say("%s", "unfit it opened a file and left it open", 0, 0);
    return 0;
  }
  fflush(NULL);

  struct sigaction action = {0};
  action.sa_handler = on_child;
  sigaction(SIGCHLD, &action, NULL);
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  sigdelset(&before, SIGCHLD);
  say("%s", "ready", 0, 0);
  for (;;) {
    reap();
    struct pollfd request = {control, POLLIN, 0};
    if (ppoll(&request, 1, NULL, &before) > 0) obey(&before);
  }
}

int main(int argc, char** argv) {
  if (argc >= 3 && strcmp(argv[1], "--shared") == 0) return share(argv + 2);
  const char* given = getenv("DS_PROBE_NONCE");
  if (argc != 4 || given == NULL || strlen(given) >= sizeof nonce) {
    fprintf(stderr, "usage: ds-probe LIBRARY OP DEVICE (started by ds-agent)\n");
    return 64;
  }
  strcpy(nonce, given);
  unsetenv("DS_PROBE_NONCE");
  answer_fd = move_away(kAnswerFd);
  if (answer_fd < 0) return 65;
  try_op(argv[1], argv[2], argv[3], 0);
}
