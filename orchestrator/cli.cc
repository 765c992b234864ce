#include "orchestrator/cli.h"

#include <algorithm>
#include <boost/make_shared.hpp>
#include <boost/program_options/cmdline.hpp>
#include <boost/program_options/errors.hpp>
#include <boost/program_options/option.hpp>
#include <boost/program_options/options_description.hpp>
#include <boost/program_options/parsers.hpp>
#include <charconv>
#include <optional>

#include "orchestrator/cli_help.h"
#include "orchestrator/config.h"
#include "orchestrator/options_table.h"
#include "orchestrator/text.h"
#include "orchestrator/value_checks.h"

namespace dsi {
namespace {

namespace po = boost::program_options;
using std::string_view;

string_view command_name(CommandKind kind) {
  for (const CommandSpec& command : command_table()) {
    if (command.kind == kind) return command.name;
  }
  return "--examples";
}

bool may_repeat(const OptionSpec& option) {
  return !takes_value(option) ||
         std::holds_alternative<std::vector<std::filesystem::path> Options::*>(option.field);
}

Result<int> number(const OptionSpec& option, string_view text) {
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < option.least ||
      value > option.most) {
    return fail("needs a number from {} to {}, not \"{}\"", option.least, option.most,
                printable(text));
  }
  return value;
}

// What a list may name.
struct NameKind {
  string_view option;
  string_view what;
  string_view marks;  // That stand in such a name, besides letters and digits.
  string_view example;
};
constexpr NameKind kOpNames = {"ops", "ops", "_", "cpu_adam,cpu_lion"};
constexpr NameKind kOtherNames[] = {
    {"ignore", "rules", "_-", "torch-other-version,no-space"},
    {"debian-packages", "packages", "-+.", "libnuma-dev,libfoo-dev"},
};

const NameKind& names_in(string_view option) {
  for (const NameKind& kind : kOtherNames) {
    if (kind.option == option) return kind;
  }
  return kOpNames;
}

// No name begins with a mark: it must not be taken for an option by whoever is given it.
bool is_name(string_view name, const NameKind& kind) {
  return !name.empty() && name.front() != '-' && name.front() != '+' && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [&](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  kind.marks.find(static_cast<char>(c)) != string_view::npos;
         });
}

Result<void> add_names(std::vector<std::string>& names, string_view text, const NameKind& kind) {
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string name(text.substr(at, comma - at));
    at = comma + 1;
    if (!is_name(name, kind)) {
      return tl::unexpected(Error{fmt::format("needs names of {} with commas between, not \"{}\"",
                                              kind.what, printable(text)),
                                  fmt::format("for example {}", kind.example)});
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return {};
}

// ---- The command line as it was typed ----------------------------------------------------------

struct Given {
  const OptionSpec* option;
  std::string typed;  // "-H", "--hostfile".
  std::string value;
};

struct Typed {
  std::vector<Given> options;
  std::vector<std::string> words;  // What is not an option.
};

po::options_description boost_description() {
  po::options_description description;
  for (const OptionSpec& option : option_table()) {
    std::string names(option.name);
    const std::string other = other_spelling(option.name);
    if (other != option.name) names += "," + other;
    if (option.letter) names += fmt::format(",{}", option.letter);
    // Text for every value: set_option() knows the types, for the configuration as well.
    description.add(boost::make_shared<po::option_description>(
        names.c_str(), new po::untyped_value(!takes_value(option)), ""));
  }
  return description;
}

Error unknown_long_option(string_view name) {
  std::string help = suggest_option(name.substr(2), false);
  if (help.empty()) help = "ds-install --help lists the options";
  return {fmt::format("unknown option {}", printable(name)), help};
}

Error unknown_option(const po::option& found) {
  const std::string token =
      found.original_tokens.empty() ? found.string_key : found.original_tokens[0];
  if (!token.starts_with("--")) {
    // Of "-lz" Boost has read the "-l" and left "-z".
    return {fmt::format("unknown option {}", printable(found.string_key)),
            "ds-install --help lists the options"};
  }
  return unknown_long_option(token.substr(0, token.find('=')));
}

// Boost takes any word behind an option for its value. One that is an option itself means that the
// value was forgotten; who does mean it can write "--hostfile=--json".
bool is_forgotten_value(const po::option& found) {
  if (found.original_tokens.size() != 2 || found.value.size() != 1) return false;
  const std::string& word = found.value[0];
  if (word.starts_with("--")) return find_option(word.substr(2, word.find('=') - 2)) != nullptr;
  if (word.size() != 2 || word[0] != '-') return false;
  const std::span<const OptionSpec> options = option_table();
  return std::any_of(options.begin(), options.end(),
                     [&](const OptionSpec& option) { return option.letter == word[1]; });
}

Error syntax_error(const po::error_with_option_name& e) {
  const std::string name = printable(e.get_option_name());
  if (name.starts_with("--") && !find_option(name.substr(2))) return unknown_long_option(name);
  if (const auto* syntax = dynamic_cast<const po::invalid_syntax*>(&e)) {
    switch (syntax->kind()) {
      case po::invalid_syntax::missing_parameter:
      case po::invalid_syntax::empty_adjacent_parameter:
        return {fmt::format("{} needs a value", name), ""};
      case po::invalid_syntax::extra_parameter:
        return {fmt::format("{} takes no value", name), ""};
      default:
        break;
    }
  }
  return {printable(e.what()), "ds-install --help lists the options"};
}

// "--deepspeed" may stand alone. Boost cannot say so of an option whose value may also be a word of
// its own, so what such a word would be missing is put in here.
std::vector<std::string> with_implied_values(std::vector<std::string> arguments) {
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] != "--deepspeed") continue;
    if (i + 1 == arguments.size() || arguments[i + 1].starts_with('-')) {
      arguments[i] += "=deepspeed";
    }
  }
  return arguments;
}

// Boost finds where options end and values begin, as getopt would; what they mean is ours.
Typed read_arguments(const std::vector<std::string>& arguments, std::vector<Error>& errors) {
  namespace style = po::command_line_style;
  // Without allow_guessing: an abbreviation that is right today is ambiguous tomorrow.
  constexpr int kStyle = style::allow_long | style::long_allow_adjacent | style::long_allow_next |
                         style::allow_short | style::allow_dash_for_short |
                         style::short_allow_adjacent | style::short_allow_next |
                         style::allow_sticky;
  Typed typed;
  const po::options_description description = boost_description();
  std::vector<po::option> found;
  try {
    found = po::command_line_parser(with_implied_values(arguments))
                .options(description)
                .style(kStyle)
                .allow_unregistered()
                .run()
                .options;
  } catch (const po::error_with_option_name& e) {
    errors.push_back(syntax_error(e));
    return typed;
  } catch (const po::error& e) {
    errors.push_back({printable(e.what()), "ds-install --help lists the options"});
    return typed;
  }
  bool after_unknown = false;
  for (const po::option& o : found) {
    if (o.unregistered) {
      errors.push_back(unknown_option(o));
      const std::string& token = o.original_tokens.empty() ? o.string_key : o.original_tokens[0];
      after_unknown = token.find('=') == std::string::npos;
      continue;
    }
    const OptionSpec* option = o.string_key.empty() ? nullptr : find_option(o.string_key);
    if (!option) {
      // The word behind an option that nobody knows is most likely its value.
      if (!after_unknown) {
        for (const std::string& word : o.value) typed.words.push_back(word);
      }
    } else {
      std::string spelled = o.original_tokens.empty() ? dashed(*option) : o.original_tokens[0];
      spelled = spelled.starts_with("--") ? spelled.substr(0, spelled.find('='))
                                          : fmt::format("-{}", option->letter);
      if (is_forgotten_value(o)) {
        errors.push_back(
            {fmt::format("{} needs a value, not the option {}", dashed(*option), o.value[0]),
             fmt::format("write {}={} if that is its value", dashed(*option), o.value[0])});
        continue;
      }
      typed.options.push_back({option, spelled, o.value.empty() ? std::string() : o.value[0]});
    }
    after_unknown = false;
  }
  return typed;
}

bool is_given(const Typed& typed, string_view name) {
  return std::any_of(typed.options.begin(), typed.options.end(),
                     [&](const Given& given) { return given.option->name == name; });
}

bool has_package(const Typed& typed) {
  return is_given(typed, "deepspeed") || is_given(typed, "package");
}

// "history show ID"; how many of the words are understood.
std::size_t read_history_words(const std::vector<std::string>& words, Options& options,
                               std::vector<Error>& errors) {
  if (words[1] != "show") return 1;
  if (words.size() == 2) {
    errors.push_back({"history show needs the id of a run", "ds-install history lists them"});
    return 2;
  }
  options.record = words[2];
  return 3;
}

// Decides on the command and takes its words away; for -e leaves the folder in `output`.
CommandKind choose_command(const Typed& typed, bool unknown_options, Options& options,
                           std::vector<Error>& errors) {
  // As in install.sh, -e beside a source tree is about that tree's submodules.
  const bool examples = is_given(typed, "examples") && !has_package(typed);
  const bool dry_run = is_given(typed, "dry-run");
  CommandKind kind = CommandKind::kInstall;
  std::size_t used = 0;
  if (!typed.words.empty()) {
    const std::string& word = typed.words[0];
    const CommandSpec* command = find_command(word);
    if (examples) {
      used = 1;
      options.output = word;
      if (command) {
        errors.push_back({fmt::format("-e writes examples; it does not go with {}", word),
                          fmt::format("leave {0} out, or write ./{0} for a folder", word)});
      } else if (is_given(typed, "output")) {
        errors.push_back(
            {fmt::format("the examples' folder is given twice: {} and -o", printable(word)),
             "give it once"});
      }
    } else if (command) {
      used = 1;
      kind = command->kind;
      if (kind == CommandKind::kHistory && typed.words.size() > 1) {
        used = read_history_words(typed.words, options, errors);
      } else if (kind == CommandKind::kSchedule && typed.words.size() > 1 &&
                 (typed.words[1] == "list" || typed.words[1] == "remove")) {
        options.schedule_word = typed.words[1];
        used = 2;
      }
    } else if (!unknown_options) {
      used = typed.words.size();
      std::vector<std::string> names;
      for (const CommandSpec& c : command_table()) names.emplace_back(c.name);
      const std::string meant = closest(word, names);
      errors.push_back({fmt::format("unknown command {}", printable(word)),
                        word == "help"   ? "use ds-install --help"
                        : !meant.empty() ? fmt::format("did you mean {}?", meant)
                                         : "ds-install --help lists the commands; a hostfile is "
                                           "given with -H"});
    }
  }
  for (std::size_t i = used; i < typed.words.size() && !unknown_options; ++i) {
    errors.push_back({fmt::format("unexpected argument {}", printable(typed.words[i])),
                      kind == CommandKind::kBuild ? "the bundle's name is given with -o"
                                                  : "ds-install --help shows what there is"});
  }
  if (examples) return CommandKind::kExamples;
  if (dry_run && kind == CommandKind::kInstall) return CommandKind::kPlan;
  return kind;
}

void check_use(const Typed& typed, CommandKind kind, std::vector<Error>& errors) {
  std::vector<const OptionSpec*> seen;
  for (const Given& given : typed.options) {
    const OptionSpec& option = *given.option;
    if (std::find(seen.begin(), seen.end(), &option) != seen.end()) {
      if (!may_repeat(option)) {
        const bool list = std::holds_alternative<std::vector<std::string> Options::*>(option.field);
        errors.push_back({fmt::format("{} is given twice", dashed(option)),
                          list ? "put commas between the names" : "give it once"});
      }
      continue;
    }
    for (const OptionSpec* earlier : seen) {
      Error conflict = conflict_between(*earlier, option);
      if (!conflict.what.empty()) errors.push_back(std::move(conflict));
    }
    seen.push_back(&option);
    if (!(option.commands & bit(kind))) {
      std::string where;
      for (const CommandSpec& command : command_table()) {
        if (!(option.commands & bit(command.kind))) continue;
        where += (where.empty() ? "" : ", ") + std::string(command.name);
      }
      if (option.commands & bit(CommandKind::kExamples)) where += ", -e";
      errors.push_back({fmt::format("{} means nothing to {}", given.typed, command_name(kind)),
                        fmt::format("it is for: {}", where)});
    }
  }
}

// Options that mean something only beside a package.
void check_package_options(const Typed& typed, std::vector<Error>& errors) {
  if (is_given(typed, "deepspeed") && is_given(typed, "ops") && !is_given(typed, "drop-in")) {
    errors.push_back({"--ops are ops of ours, and --deepspeed installs DeepSpeed's",
                      "with --drop-in ours stand in for them; what DeepSpeed compiles is said with "
                      "DS_BUILD_<OP>=0 or 1 in the environment"});
  }
  if (has_package(typed)) return;
  for (const char* name : {"python", "with-deps", "drop-in"}) {
    // A bundle may hold a package; that is seen when it is read.
    if (!is_given(typed, name) || is_given(typed, "bundle")) continue;
    errors.push_back({fmt::format("--{} is about a Python package, and none is named", name),
                      "give --deepspeed SOURCE or --package SOURCE"});
  }
}

// What the configuration says as far as the command line leaves it open, then the command line.
void set_all(const Typed& typed, const Config& config, Options& options,
             std::vector<Error>& errors) {
  for (const ConfigValue& value : config.values) {
    const OptionSpec& option = *value.option;
    const bool overruled =
        std::any_of(typed.options.begin(), typed.options.end(), [&](const Given& given) {
          return given.option == &option || !conflict_between(*given.option, option).what.empty();
        });
    if (overruled || !(option.commands & bit(options.command))) continue;
    for (const std::string& text : value.texts) {
      // The configuration's reader has checked it.
      if (auto done = set_option(options, option, text); !done) errors.push_back(done.error());
    }
    if (option.name == "hostfile") options.hostfile_given = true;
  }
  options.per_host = config.hosts;
  for (const Given& given : typed.options) {
    if (!(given.option->commands & bit(options.command))) continue;
    auto done = set_option(options, *given.option, given.value);
    if (!done) {
      errors.push_back({fmt::format("{} {}", given.typed, done.error().what), done.error().help});
    }
    if (given.option->name == "hostfile") options.hostfile_given = true;
  }
}

// The options of the runs that are scheduled, as words of a command line that means the same from
// whatever folder.
std::vector<std::string> words_of(const Typed& typed) {
  std::vector<std::string> words;
  for (const Given& given : typed.options) {
    const OptionSpec& option = *given.option;
    if (!(option.commands & bit(CommandKind::kInstall))) continue;
    std::string value = given.value;
    const bool path =
        std::holds_alternative<std::filesystem::path Options::*>(option.field) ||
        std::holds_alternative<std::vector<std::filesystem::path> Options::*>(option.field);
    // A source may be a path or the name of a package.
    const bool source = option.name == "deepspeed" || option.name == "package";
    if (path || (source && std::filesystem::exists(value)))
      value = std::filesystem::absolute(value).string();
    words.push_back(dashed(option) + (takes_value(option) ? "=" + value : ""));
  }
  return words;
}

}  // namespace

Result<void> set_option(Options& options, const OptionSpec& option, string_view value) {
  if (takes_value(option) && value.empty()) return fail("needs a value");
  DSI_CHECK(check_value(option.name, value));
  if (const auto* flag = std::get_if<bool Options::*>(&option.field)) {
    options.** flag = value != "false";
  } else if (const auto* count = std::get_if<int Options::*>(&option.field)) {
    if (!takes_value(option) && value.empty()) {
      ++(options.**count);
    } else {
      DSI_TRY(options.**count, number(option, value));
    }
  } else if (const auto* text = std::get_if<std::string Options::*>(&option.field)) {
    options.** text = value;
  } else if (const auto* path = std::get_if<std::filesystem::path Options::*>(&option.field)) {
    options.** path = value;
  } else if (const auto* time = std::get_if<std::chrono::seconds Options::*>(&option.field)) {
    DSI_TRY(const int seconds, number(option, value));
    options.** time = std::chrono::seconds(seconds);
  } else if (const auto* ops = std::get_if<std::vector<std::string> Options::*>(&option.field)) {
    DSI_CHECK(add_names(options.**ops, value, names_in(option.name)));
  } else if (const auto* paths =
                 std::get_if<std::vector<std::filesystem::path> Options::*>(&option.field)) {
    (options.**paths).emplace_back(value);
  }
  return {};
}

Error all_of(const std::vector<Error>& errors) {
  Error all;
  for (std::size_t i = 0; i + 1 < errors.size(); ++i) all.what += to_string(errors[i]) + '\n';
  all.what += to_string(errors.back());
  // to_string() will put this in front again, and the help behind.
  all.what.erase(0, string_view("error: ").size());
  if (!errors.back().help.empty()) {
    all.what.resize(all.what.size() - string_view("\n  help: ").size() - errors.back().help.size());
  }
  all.help = errors.back().help;
  return all;
}

Result<ParsedCommandLine> parse_command_line(const std::vector<std::string>& arguments) {
  std::vector<Error> errors;
  const Typed typed = read_arguments(arguments, errors);
  ParsedCommandLine parsed;
  Options& options = parsed.options;
  // Somebody who asks for help gets it, whatever else is wrong.
  if (is_given(typed, "help")) {
    const CommandSpec* command = typed.words.empty() ? nullptr : find_command(typed.words[0]);
    parsed.print = PrintAndExit{command ? help_text(*command) : help_text()};
    return parsed;
  }
  if (is_given(typed, "man")) {
    parsed.print = PrintAndExit{man_page()};
    return parsed;
  }
  if (is_given(typed, "version")) {
    parsed.print = PrintAndExit{"ds-install " DSI_VERSION "\n"};
    return parsed;
  }
  options.command = choose_command(typed, !errors.empty(), options, errors);
  check_use(typed, options.command, errors);
  check_package_options(typed, errors);

  Config config;
  if (options.command != CommandKind::kExamples) {
    std::filesystem::path file;
    for (const Given& given : typed.options) {
      if (given.option->name == "config") file = given.value;
    }
    const bool asked = !file.empty();
    if (!asked) file = default_config_file();
    if (!file.empty()) {
      auto loaded = load_config(file);
      if (loaded) {
        config = *std::move(loaded);
        options.config = file;
      } else {
        errors.push_back(loaded.error());
      }
    }
  }
  set_all(typed, config, options, errors);
  if (!options.max_fail.empty() && options.batch.empty()) {
    errors.push_back({"--max-fail decides between batches, and there is one batch only",
                      "say with --batch how large they are: 1,10%,50%"});
  }
  if (options.command == CommandKind::kSchedule && is_given(typed, "notify-url")) {
    errors.push_back({"the URL of --notify-url would stand in a unit file that everybody can read",
                      "put it into the configuration, as notify-url, and keep that to its owner"});
  }
  if (!options.reason.empty() && options.reason.size() > 500) {
    errors.push_back({"--reason is longer than 500 characters", "say it in fewer"});
  }
  if (!options.partition.empty() && options.via != "slurm") {
    errors.push_back({"--partition is of Slurm", "give --via slurm as well"});
  }
  if (options.via == "slurm" && !options.drain.empty()) {
    errors.push_back({"srun reaches no host that is drained", "drain with --via ssh"});
  }
  if (!options.undrain.empty() && (options.drain.empty() || options.drain == "slurm")) {
    errors.push_back({"--undrain is for hosts that a command of --drain took out of service",
                      "give --drain 'CMD'; --drain slurm gives its nodes back by itself"});
  }
  if (!errors.empty()) return tl::unexpected(all_of(errors));

  if (options.command == CommandKind::kSchedule) options.scheduled = words_of(typed);
  // A batch that went on after an op that crashes would not be a test of anything.
  if (!options.batch.empty()) options.strict = true;
  if (options.command == CommandKind::kCheck) options.strict = true;
  if (options.output.empty()) {
    if (options.command == CommandKind::kBuild) {
      options.output = options.python_package().empty() ? "ds-ops.tar.zst" : "ds-package.tar.zst";
    }
    if (options.command == CommandKind::kExamples) options.output = "./ds-install-examples";
  }
  options.update_submodules = has_package(typed) && is_given(typed, "examples");
  // In a configuration it is for whenever a package is installed.
  if (is_given(typed, "pip_mirror") && !has_package(typed)) {
    parsed.warnings.push_back(
        "--pip_mirror is used only for a Python package; the ops themselves need none");
  }
  return parsed;
}

}  // namespace dsi
