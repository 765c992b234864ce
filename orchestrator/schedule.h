#pragma once

// Runs at set times: a systemd service with a timer, or a line for a crontab.

#include <filesystem>
#include <ostream>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/base/result.h"
#include "orchestrator/options.h"
#include "orchestrator/ports/process.h"
#include "orchestrator/progress.h"

namespace dsi {

// What a run has to reach that a hardened unit would keep from it.
struct Needs {
  bool tmp = false;     // Something lies in /tmp or /var/tmp, so it cannot have a /tmp of its own.
  bool rights = false;  // sudo is called, which a process without new privileges cannot.
  std::vector<std::string> writable;  // Folders below those that would be read-only.
};
Needs needs_of(const Options& options);

// What is to be run, and when.
struct Schedule {
  std::string unit;                    // "ds-install", "ds-install-gpu": without .service, .timer.
  std::vector<std::string> command;    // argv; argv[0] absolute.
  std::string calendar;                // Of systemd.time(7), or five fields of crontab(5).
  std::string random_delay = "15min";  // systemd's.
  std::string user;  // Whom a system service runs as; empty: a user's own service.
  Needs needs{};
};

// The texts of the two unit files. A service of the system is hardened by what systemd offers; one
// of a user by what needs no rights.
std::string service_text(const Schedule& schedule);
std::string timer_text(const Schedule& schedule);
// One line, with '%' as crontab(5) wants it. An error if `calendar` is not five fields.
Result<std::string> crontab_line(const Schedule& schedule);

// A word of ExecStart= as systemd.service(5) reads it back: quoted, nothing expanded.
std::string systemd_word(std::string_view word);

// The commands schedule, schedule list and schedule remove, as the options say. `program` is this
// program's own file. Nothing stays half done: if systemd does not like what was written, it is
// taken away again.
Result<void> run_schedule(const Options& options, const std::filesystem::path& program,
                          ProcessRunner& processes, std::stop_token stop, Progress& progress,
                          std::ostream& out);

}  // namespace dsi
