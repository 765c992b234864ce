#include "orchestrator/schedule.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "orchestrator/base/file.h"
#include "orchestrator/base/shell_quote.h"
#include "orchestrator/text.h"

namespace dsi {

namespace fs = std::filesystem;

namespace {

using namespace std::chrono_literals;

// How a unit is known to be one of these when they are listed or removed.
constexpr std::string_view kOurs = "# Written by ds-install schedule; change it with that.\n";

std::string command_line(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + systemd_word(word);
  return text;
}

// The value of "Key=" in a unit's text.
std::string value_in(const std::string& text, std::string_view key) {
  std::string mark = "\n" + std::string(key) + "=";
  std::size_t at = text.find(mark);
  if (at == text.npos) return "";
  at += mark.size();
  return text.substr(at, text.find('\n', at) - at);
}

std::string user_name() {
  const passwd* entry = ::getpwuid(::geteuid());
  return entry != nullptr ? entry->pw_name : std::to_string(::geteuid());
}

// Where unit files of the administrator, or of this user, lie.
fs::path unit_folder(bool of_user) {
  if (!of_user) return "/etc/systemd/system";
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && *config == '/') {
    return fs::path(config) / "systemd/user";
  }
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : "/") / ".config/systemd/user";
}

class Systemd {
 public:
  Systemd(bool of_user, ProcessRunner& processes, std::stop_token stop)
      : of_user_(of_user), processes_(processes), stop_(std::move(stop)) {}

  bool runs() const { return ::access("/run/systemd/system", F_OK) == 0; }

  // Standard output of a program that must succeed.
  Result<std::string> call(std::vector<std::string> words, const std::string& what) {
    auto result = processes_.run({std::move(words), {}, {}}, Deadline::after(60s), stop_);
    if (!result) {
      return fail_with_help(result.error().what,
                            "without systemd: ds-install schedule --cron prints a crontab line");
    }
    if (result->ok()) return std::move(result->out);
    std::string said = result->err.empty() ? result->out : result->err;
    while (said.ends_with('\n')) said.pop_back();
    return fail("{}: {}", what, printable(said, true));
  }
  Result<std::string> control(std::vector<std::string> words, const std::string& what) {
    if (of_user_) words.insert(words.begin(), "--user");
    words.insert(words.begin(), "systemctl");
    return call(std::move(words), what);
  }
  // After units came or went.
  Result<void> reload() {
    if (!runs()) return {};
    return control({"daemon-reload"}, "systemd does not read its units again").map([](auto) {});
  }

 private:
  bool of_user_;
  ProcessRunner& processes_;
  std::stop_token stop_;
};

Result<void> add(const Schedule& schedule, bool of_user, Systemd& systemd, Progress& progress,
                 std::ostream& out) {
  auto next = systemd.call({"systemd-analyze", "calendar", "--iterations=3", schedule.calendar},
                           fmt::format("--at \"{}\" is no time for systemd", schedule.calendar));
  if (!next) {
    return fail_with_help(next.error().what,
                          next.error().help.empty()
                              ? "for example \"Sun 03:00\" or daily; man systemd.time"
                              : next.error().help);
  }
  const fs::path folder = unit_folder(of_user);
  const fs::path service = folder / (schedule.unit + ".service");
  const fs::path timer = folder / (schedule.unit + ".timer");
  std::string old[2];
  for (int i = 0; i < 2; ++i) {
    const fs::path& file = i == 0 ? service : timer;
    old[i] = read_file(file).value_or("");
    if (!old[i].empty() && !old[i].starts_with(kOurs)) {
      return fail_with_help(fmt::format("{} is there, and not from ds-install", file.string()),
                            "choose another --name");
    }
  }
  std::error_code error;
  fs::create_directories(folder, error);
  DSI_CHECK(write_file_atomically(service, service_text(schedule)));
  auto undo = [&] {
    for (int i = 0; i < 2; ++i) {
      const fs::path& file = i == 0 ? service : timer;
      if (old[i].empty()) {
        fs::remove(file, error);
      } else {
        (void)write_file_atomically(file, old[i]);
      }
    }
  };
  auto done = [&]() -> Result<void> {
    DSI_CHECK(write_file_atomically(timer, timer_text(schedule)));
    std::vector<std::string> verify = {"systemd-analyze", "verify", "--man=no"};
    // Without a session of the user systemd-analyze has nowhere to look for units of users.
    if (of_user && std::getenv("XDG_RUNTIME_DIR") != nullptr) verify.emplace_back("--user");
    verify.push_back(service.string());
    verify.push_back(timer.string());
    DSI_CHECK(systemd.call(std::move(verify), "systemd-analyze does not like the units"));
    DSI_CHECK(systemd.reload());
    // One of the system can be enabled for the next boot.
    if (of_user && !systemd.runs()) return {};
    std::vector<std::string> enable = {"enable", schedule.unit + ".timer"};
    if (systemd.runs()) enable.insert(enable.begin() + 1, "--now");
    return systemd.control(std::move(enable), "cannot enable " + schedule.unit + ".timer")
        .map([](auto) {});
  }();
  if (!done) {
    undo();
    return done;
  }
  progress.lasting("Wrote", service.string());
  progress.lasting("Wrote", timer.string());
  out << *next;
  if (!systemd.runs()) {
    progress.warning(of_user ? fmt::format("systemd does not run here; where it does: systemctl "
                                           "--user enable --now {}.timer",
                                           schedule.unit)
                             : "systemd does not run here; the timer begins with the next boot");
  } else {
    out << fmt::format("What it does is in: journalctl {}-u {}.service; ds-install history\n",
                       of_user ? "--user " : "", schedule.unit);
  }
  return {};
}

Result<void> list(bool of_user, std::ostream& out) {
  std::error_code error;
  std::vector<fs::path> timers;
  for (fs::directory_iterator at(unit_folder(of_user), error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".timer") timers.push_back(at->path());
  }
  std::sort(timers.begin(), timers.end());
  std::size_t count = 0;
  for (const fs::path& timer : timers) {
    std::string text = read_file(timer).value_or("");
    if (!text.starts_with(kOurs)) continue;
    ++count;
    fs::path service = timer;
    service.replace_extension(".service");
    out << fmt::format("{}  {}\n    {}\n", timer.stem().string(), value_in(text, "OnCalendar"),
                       value_in(read_file(service).value_or(""), "ExecStart"));
  }
  if (count == 0) out << fmt::format("nothing is scheduled in {}\n", unit_folder(of_user).string());
  return {};
}

Result<void> remove(const std::string& unit, bool of_user, Systemd& systemd, Progress& progress) {
  const fs::path folder = unit_folder(of_user);
  const fs::path timer = folder / (unit + ".timer");
  std::string text = read_file(timer).value_or("");
  if (!text.starts_with(kOurs)) {
    return fail_with_help(fmt::format("there is no {} from ds-install", timer.string()),
                          "ds-install schedule list names them");
  }
  std::vector<std::string> disable = {"disable", unit + ".timer"};
  if (systemd.runs()) disable.insert(disable.begin() + 1, "--now");
  if (systemd.runs() || !of_user) {
    DSI_CHECK(systemd.control(std::move(disable), "cannot disable " + unit + ".timer"));
  }
  std::error_code error;
  fs::remove(folder / (unit + ".service"), error);
  fs::remove(timer, error);
  DSI_CHECK(systemd.reload());
  progress.lasting("Removed", unit);
  return {};
}

}  // namespace

std::string systemd_word(std::string_view word) {
  bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+=,:@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string out = "\"";
  for (char c : word) {
    switch (c) {
      case '"':
      case '\\':
        out += '\\';
        out += c;
        break;
      case '%':
        out += "%%";
        break;
      case '$':
        out += "$$";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out += c;
    }
  }
  return out + '"';
}

Needs needs_of(const Options& options) {
  Needs needs;
  std::vector<std::string> paths = {options.hostfile.string(), options.bundle.string(),
                                    options.torch.string(),    options.config.string(),
                                    options.html.string(),     options.metrics.string(),
                                    options.deepspeed,         options.package};
  for (const auto* list : {&options.ops_folders, &options.rules}) {
    for (const fs::path& path : *list) paths.push_back(path.string());
  }
  if (options.local_only) paths.push_back(options.prefix);
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    const std::string whole = fs::absolute(path).lexically_normal().string();
    needs.tmp = needs.tmp || whole.starts_with("/tmp/") || whole.starts_with("/var/tmp/");
  }
  for (const std::string* command : {&options.drain, &options.undrain, &options.notify}) {
    needs.tmp = needs.tmp || command->find("/tmp") != command->npos;
    needs.rights = needs.rights || command->find("sudo") != command->npos;
  }
  needs.rights = needs.rights || (options.local_only && options.pip_sudo);
  auto write = [&](const fs::path& folder) {
    const std::string whole = fs::absolute(folder).lexically_normal().string();
    for (const char* closed : {"/usr", "/etc", "/boot", "/efi"}) {
      if (whole == closed || whole.starts_with(std::string(closed) + "/")) {
        needs.writable.push_back(whole);
      }
    }
  };
  for (const fs::path* file : {&options.html, &options.metrics}) {
    if (!file->empty()) write(fs::absolute(*file).parent_path());
  }
  if (options.local_only && !options.prefix.empty()) write(options.prefix);
  // The system's own Python has its packages there.
  if (options.local_only && !options.python_package().empty()) write("/usr");
  return needs;
}

std::string service_text(const Schedule& schedule) {
  std::string text(kOurs);
  text += fmt::format(
      "[Unit]\n"
      "Description=Installs ops on hosts (ds-install)\n"
      "Documentation=man:ds-install(1)\n"
      "{}"
      "\n"
      "[Service]\n"
      "Type=oneshot\n"
      "ExecStart={}\n"
      "StandardInput=null\n"
      // SIGTERM means: begin nothing new, finish what is in flight. That takes its time.
      "KillMode=mixed\n"
      "TimeoutStopSec=30min\n"
      "{}",
      schedule.user.empty() ? "" : "Wants=network-online.target\nAfter=network-online.target\n",
      command_line(schedule.command),
      // Each of these takes the right to gain rights, for a user who is not root.
      schedule.needs.rights ? ""
                            : "NoNewPrivileges=yes\n"
                              "LockPersonality=yes\n"
                              "RestrictRealtime=yes\n"
                              "RestrictSUIDSGID=yes\n"
                              "SystemCallArchitectures=native\n");
  if (!schedule.user.empty()) {
    // With a user systemd sets HOME, where keys, the cache and the records are.
    text += fmt::format(
        "User={}\n"
        "{}"
        "ProtectSystem=full\n"
        "ProtectControlGroups=yes\n"
        "{}",
        schedule.user, schedule.needs.tmp ? "" : "PrivateTmp=yes\n",
        schedule.needs.rights ? ""
                              : "ProtectClock=yes\n"
                                "ProtectHostname=yes\n"
                                "ProtectKernelLogs=yes\n"
                                "ProtectKernelModules=yes\n"
                                "ProtectKernelTunables=yes\n"
                                "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n"
                                "RestrictNamespaces=yes\n");
    // A '-' before the path: systemd starts the run although the folder is not there.
    for (const std::string& folder : schedule.needs.writable) {
      text += fmt::format("ReadWritePaths={}\n", systemd_word("-" + folder));
    }
  }
  return text;
}

std::string timer_text(const Schedule& schedule) {
  return fmt::format(
      "{}[Unit]\n"
      "Description=When {}.service is run\n"
      "\n"
      "[Timer]\n"
      "OnCalendar={}\n"
      // A machine that was off at the time does it when it is on again.
      "Persistent=yes\n"
      "RandomizedDelaySec={}\n"
      "\n"
      "[Install]\n"
      "WantedBy=timers.target\n",
      kOurs, schedule.unit, schedule.calendar, schedule.random_delay);
}

Result<std::string> crontab_line(const Schedule& schedule) {
  std::istringstream fields(schedule.calendar);
  std::string field;
  int count = 0;
  bool good = true;
  while (fields >> field) {
    ++count;
    good = good && std::all_of(field.begin(), field.end(), [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '*' || c == '/' || c == ',' || c == '-';
           });
  }
  if (!good || count != 5) {
    return fail_with_help(
        fmt::format("--at \"{}\" is no time for cron", printable(schedule.calendar)),
        "give its five fields: \"0 3 * * 0\" is Sunday at 3; man 5 crontab");
  }
  std::string line = schedule.calendar + " ";
  for (char c : shell_join(schedule.command)) {
    if (c == '%') line += '\\';
    line += c;
  }
  if (line.find('\n') != line.npos) return fail("a crontab line cannot hold a newline");
  return line + "\n";
}

Result<void> run_schedule(const Options& options, const fs::path& program, ProcessRunner& processes,
                          std::stop_token stop, Progress& progress, std::ostream& out) {
  const bool of_user = options.schedule_user || ::geteuid() != 0;
  const std::string unit = "ds-install" + (options.name.empty() ? "" : "-" + options.name);
  Systemd systemd(of_user, processes, std::move(stop));
  if (options.schedule_word == "list") return list(of_user, out);
  if (options.schedule_word == "remove") return remove(unit, of_user, systemd, progress);

  Schedule schedule;
  schedule.unit = unit;
  schedule.command = {program.string(), "install"};
  schedule.command.insert(schedule.command.end(), options.scheduled.begin(),
                          options.scheduled.end());
  schedule.calendar = options.at;
  if (!options.random_delay.empty()) schedule.random_delay = options.random_delay;
  if (!of_user) schedule.user = user_name();
  schedule.needs = needs_of(options);
  if (schedule.needs.tmp && !options.cron) {
    progress.warning(
        "something that the runs use lies in a folder for temporary files; it may be "
        "gone by then");
  }
  if (schedule.calendar.empty()) {
    return fail_with_help("schedule needs --at", "for example --at \"Sun 03:00\"");
  }
  if (options.cron) {
    DSI_TRY(std::string line, crontab_line(schedule));
    out << line;
    return {};
  }
  return add(schedule, of_user, systemd, progress, out);
}

}  // namespace dsi
