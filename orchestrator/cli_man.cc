#include <fmt/format.h>

#include <string_view>

#include "orchestrator/cli_help.h"

namespace dsi {
namespace {

using std::string_view;

// Text for roff: nothing in it is a request or an escape, and a dash is one that can be searched
// for.
std::string roff(string_view text) {
  std::string out;
  bool line_begins = true;
  for (char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    line_begins = c == '\n';
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string option_head(const OptionSpec& option) {
  std::string head;
  if (option.letter) head += fmt::format("\\fB\\-{}\\fR, ", option.letter);
  head += fmt::format("\\fB{}\\fR", roff(dashed(option)));
  if (takes_value(option)) head += fmt::format(" \\fI{}\\fR", roff(option.value));
  return head;
}

// "install, plan", or nothing for an option of every command.
std::string commands_of(const OptionSpec& option) {
  if (option.commands == kEverywhere) return "";
  std::string names;
  for (const CommandSpec& command : command_table()) {
    if (option.commands & bit(command.kind))
      names += (names.empty() ? "" : ", ") + std::string(command.name);
  }
  return names;
}

}  // namespace

std::string man_page() {
  std::string out = fmt::format(
      ".TH DS\\-INSTALL 1 \"\" \"ds\\-install {}\" \"User Commands\"\n"
      ".SH NAME\n"
      "ds\\-install \\- compile ops once and install them on every host of a hostfile\n"
      ".SH SYNOPSIS\n"
      ".B ds\\-install\n"
      "[\\fIcommand\\fR] [\\fIoption\\fR ...]\n"
      ".SH DESCRIPTION\n"
      "Compiles every C++/CUDA op once, on this machine, and puts the same verified release on "
      "every "
      "host over SSH, or leaves a host exactly as it was. Hosts need no compiler and no agent "
      "beforehand. What the report calls ok was loaded on that host, and its self\\-test gave the "
      "right numbers.\n"
      ".SH COMMANDS\n",
      roff(DSI_VERSION));
  for (const CommandSpec& command : command_table()) {
    out += fmt::format(".TP\n.B {}\n{}\n", roff(command.name), roff(command.help));
  }
  out += ".SH OPTIONS\nIn a name \\- and _ are the same.\n";
  for (const auto& [group, title] : option_groups()) {
    out += fmt::format(".SS {}\n", roff(title));
    for (const OptionSpec& option : option_table()) {
      if (option.group != group) continue;
      out += fmt::format(".TP\n{}\n{}.", option_head(option), roff(option.help));
      if (std::string names = commands_of(option); !names.empty()) {
        out += fmt::format("\nFor: {}.", roff(names));
      }
      out += '\n';
    }
  }
  out += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : exit_codes()) {
    out += fmt::format(".TP\n.B {}\n{}.\n", code, roff(meaning));
  }
  out +=
      ".SH FILES\n"
      ".TP\n.I /job/hostfile\nThe hosts, if none are named; without it this machine is meant.\n"
      ".TP\n.I ~/.config/ds\\-install/config.yaml\n"
      ".TQ\n.I /etc/ds\\-install/config.yaml\n"
      "The options as keys, and what differs from host to host. \\fBds\\-install \\-e\\fR writes "
      "one.\n"
      ".TP\n.I ~/.cache/ds\\-install\nBuilds, by toolchain and content of all sources.\n"
      ".TP\n.I ~/.local/state/ds\\-install/runs\n"
      "A record of each run: plan, report, what each host said. \\fBds\\-install history\\fR reads "
      "them.\n"
      ".TP\n.I /opt/ds\\-ops\n"
      ".TQ\n.I ~/.local/share/ds\\-ops\nOn the hosts: the releases, and \\fIcurrent\\fR, the one "
      "that is used.\n"
      ".SH ENVIRONMENT\n"
      ".TP\n.B XDG_CACHE_HOME\n.TQ\n.B XDG_CONFIG_HOME\n.TQ\n.B XDG_STATE_HOME\n"
      "Where the files above are, instead of below the home folder.\n"
      ".TP\n.B NO_COLOR\nIf set, nothing is coloured.\n"
      ".SH EXAMPLES\n"
      ".TP\nOn the hosts of a hostfile, one first, then a tenth, then half and half:\n"
      ".B ds\\-install \\-H hosts.txt \\-\\-batch 1,10%,50%\n"
      ".TP\nThe same every Sunday night, on hosts that run Slurm's jobs:\n"
      ".B ds\\-install schedule \\-\\-at \\(dqSun 03:00\\(dq \\-H hosts.txt \\-\\-batch 1,10%,50% "
      "\\-\\-drain slurm\n"
      ".TP\nWhether anything has changed since:\n"
      ".B ds\\-install check \\-H hosts.txt \\-\\-metrics "
      "/var/lib/node_exporter/ds\\-install.prom\n"
      ".SH SEE ALSO\n"
      ".BR ssh_config (5),\n.BR systemd.time (7),\n.BR scontrol (1)\n";
  return out;
}

}  // namespace dsi
