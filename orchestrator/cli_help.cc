#include "orchestrator/cli_help.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "orchestrator/text.h"

namespace dsi {
namespace {

using std::string_view;
using G = OptionGroup;

constexpr std::array<std::pair<OptionGroup, string_view>, 5> kGroups = {{
    {G::kHosts, "Which hosts"},
    {G::kBuild, "What to install"},
    {G::kNode, "On the hosts"},
    {G::kOutput, "What is told"},
    {G::kOther, "Other"},
}};

constexpr string_view kExamplesOfUse =
    R"(Compiles every op once and installs it on every host of a hostfile over SSH.

Everyday use:
  ds-install                                  install on the hosts of /job/hostfile
  ds-install -H hosts.txt                     ... of this hostfile
  ds-install --hosts node[01-08]              ... on these hosts
  ds-install -l                               ... on this machine only
  ds-install plan -H hosts.txt                say what would be done, change nothing
  ds-install survey -H hosts.txt              say what the hosts are and what differs
  ds-install report -H hosts.txt              does every op work on every host?
  ds-install build -o ops.tar.zst             compile here, then, where there is no compiler:
  ds-install --bundle ops.tar.zst             install that
  ds-install env -H hosts.txt --make ROOT     lock what these hosts need of a build, as a root
  ds-install build --env ROOT                 compile in there: the same bytes anywhere
  ds-install --deepspeed ./DeepSpeed -H hosts.txt
                                              DeepSpeed itself, built once, in every host's Python
  ds-install -e                               write examples: hostfile, configuration, programs
)";

constexpr std::array<std::pair<int, string_view>, 6> kExitCodes = {{
    {0, "every host is installed, was up to date, or is held"},
    {1, "some host failed, is in use or could not be reached; with --strict: some op is not ok"},
    {2, "the command line, the configuration or the hostfile is wrong"},
    {3, "compiling or packing failed; no host was touched"},
    {4, "the hosts cannot take what was asked for; no host was touched"},
    {130, "interrupted"},
}};

std::string exit_codes_help() {
  std::string text = "Exit codes:\n";
  for (const auto& [code, meaning] : kExitCodes)
    text += fmt::format("  {:<3}  {}\n", code, meaning);
  return text;
}

std::string one_option(const OptionSpec& option) {
  std::string text = option.letter ? fmt::format("  -{}, ", option.letter) : "      ";
  text += dashed(option);
  if (takes_value(option)) text += fmt::format(" {}", option.value);
  return text;
}

std::string options_help(unsigned commands) {
  constexpr std::size_t kColumn = 30;
  constexpr std::size_t kWidth = 98;
  std::string out;
  for (const auto& [group, title] : kGroups) {
    std::string section;
    for (const OptionSpec& option : option_table()) {
      if (option.group != group || !(option.commands & commands)) continue;
      std::string head = one_option(option);
      if (display_width(head) + 2 > kColumn) {
        section += head + '\n';
        head.clear();
      }
      for (const std::string& line : wrapped(option.help, kWidth - kColumn)) {
        section += padded(head, kColumn) + line + '\n';
        head.clear();
      }
    }
    if (!section.empty()) out += fmt::format("\n{}:\n{}", title, section);
  }
  return out;
}

}  // namespace

std::span<const std::pair<OptionGroup, string_view>> option_groups() {
  return kGroups;
}
std::span<const std::pair<int, string_view>> exit_codes() {
  return kExitCodes;
}

std::string help_text() {
  std::string out(kExamplesOfUse);
  out += "\nUsage: ds-install [command] [options]\n\nCommands:\n";
  for (const CommandSpec& command : command_table()) {
    out += fmt::format("  {} {}\n", padded(command.name, 11), command.help);
  }
  out += options_help(kEverywhere);
  out += "\nIn a name '-' and '_' are the same. The configuration file has the same options; ";
  out += "-e writes one.\n\n";
  out += exit_codes_help();
  return out;
}

std::string help_text(const CommandSpec& command) {
  return fmt::format("ds-install {0}: {1}\n\nUsage: ds-install {0} [options]\n{2}\n{3}",
                     command.name, command.help, options_help(bit(command.kind)),
                     exit_codes_help());
}

}  // namespace dsi
