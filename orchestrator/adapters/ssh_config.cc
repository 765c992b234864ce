#include "orchestrator/adapters/ssh_config.h"

#include <glob.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "orchestrator/adapters/local_process.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/shell_quote.h"

namespace dsi {
namespace {

constexpr int kMaxIncludeDepth = 16;
const std::filesystem::path kSystemConfig = "/etc/ssh/ssh_config";

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// One line's arguments: blanks separate, either quote groups, backslash escapes a quote, a
// backslash or (outside quotes) a blank, # starts a comment.
Result<std::vector<std::string>> split_arguments(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '\\' && (next == '\'' || next == '"' || next == '\\' || (quote == 0 && next == ' '))) {
      word += next;
      in_word = true;
      ++i;
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
    } else if (c == '#' && !in_word) {
      break;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0) return fail("a quote is not closed");
  if (in_word) words.push_back(word);
  return words;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<std::string> glob_paths(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return paths;
}

Result<std::uint16_t> parse_port(const std::string& text) {
  unsigned port = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0 || port > 65535) {
    return fail("ssh configuration: '{}' is not a port", text);
  }
  return static_cast<std::uint16_t>(port);
}

// `ssh -W` through the hops, as ssh itself translates ProxyJump: the last hop is the one that
// opens the connection, the ones before it are its own way there. BatchMode: nobody can type a
// password into it. Strict checking, because an unknown hop sees where we go.
Result<std::string> jump_command(const std::string& jump, const SshLocations& locations) {
  std::vector<std::string> hops = split(jump, ',');
  if (hops.empty()) return fail("ssh configuration: ProxyJump names no host");
  std::string last = hops.back();
  hops.pop_back();
  std::vector<std::string> words = {"ssh", "-o", "BatchMode=yes", "-o",
                                    "StrictHostKeyChecking=yes"};
  if (!locations.config.empty()) words.insert(words.end(), {"-F", locations.config.string()});
  if (!hops.empty()) {
    std::string before = hops[0];
    for (std::size_t i = 1; i < hops.size(); ++i) before += "," + hops[i];
    words.insert(words.end(), {"-J", before});
  }
  if (last.starts_with("ssh://")) last = last.substr(6);
  if (std::size_t at = last.rfind('@'); at != std::string::npos) {
    words.insert(words.end(), {"-l", last.substr(0, at)});
    last = last.substr(at + 1);
  }
  if (last.starts_with('[')) {
    std::size_t close = last.find(']');
    if (close == std::string::npos) return fail("ssh configuration: ProxyJump {}: no ']'", jump);
    if (close + 1 < last.size() && last[close + 1] == ':') {
      words.insert(words.end(), {"-p", last.substr(close + 2)});
    }
    last = last.substr(1, close - 1);
  } else if (std::size_t colon = last.rfind(':');
             colon != std::string::npos && last.find(':') == colon) {
    words.insert(words.end(), {"-p", last.substr(colon + 1)});
    last = last.substr(0, colon);
  }
  if (last.empty() || last.starts_with('-')) {
    return fail("ssh configuration: ProxyJump {} names no host", jump);
  }
  // A percent sign of ours would be taken for a token; only -W's two are meant.
  std::string line = shell_join(words);
  for (std::size_t at = 0; (at = line.find('%', at)) != std::string::npos; at += 2) {
    line.insert(at, "%");
  }
  return line + " -W '[%h]:%p' -- " + shell_quote(last);
}

}  // namespace

bool ssh_pattern_matches(std::string_view pattern, std::string_view text) {
  // The usual two-pointer glob: on a mismatch, let the last * swallow one more.
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool ssh_pattern_list_matches(const std::vector<std::string>& patterns, std::string_view text) {
  bool matched = false;
  for (std::string_view pattern : patterns) {
    bool negated = pattern.starts_with('!');
    if (negated) pattern.remove_prefix(1);
    if (!ssh_pattern_matches(pattern, text)) continue;
    if (negated) return false;
    matched = true;
  }
  return matched;
}

SshLocations SshLocations::from_environment() {
  SshLocations locations;
  std::array<char, 16 * 1024> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found);
  locations.home = environment_value("HOME");
  if (locations.home.empty() && found != nullptr) locations.home = found->pw_dir;
  locations.user = found != nullptr ? found->pw_name : environment_value("USER");
  locations.agent_socket = environment_value("SSH_AUTH_SOCK");
  return locations;
}

Result<std::vector<SshConfig::Directive>> SshConfig::read_file_tree(
    const std::filesystem::path& file, const std::filesystem::path& base,
    const SshLocations& locations, int depth) {
  std::vector<Directive> directives;
  if (depth > kMaxIncludeDepth) return fail("{}: Include goes too deep", file.string());
  std::error_code error;
  if (!std::filesystem::exists(file, error) && !error) return directives;
  DSI_TRY(std::string text, read_file(file));
  int number = 0;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    ++number;
    std::string where = fmt::format("{}:{}", file.string(), number);
    std::size_t start = line.find_first_not_of(" \t\r\f");
    if (start == std::string::npos || line[start] == '#') continue;
    line.erase(line.find_last_not_of(" \t\r\f") + 1);
    std::size_t end = line.find_first_of(" \t=\"", start);
    Directive directive;
    directive.keyword = lower(line.substr(start, end - start));
    directive.where = where;
    // `Key value`, `Key=value`, `Key = value`.
    std::size_t value = end == std::string::npos ? end : line.find_first_not_of(" \t", end);
    if (value != std::string::npos && line[value] == '=') {
      value = line.find_first_not_of(" \t", value + 1);
    }
    if (value != std::string::npos) directive.rest = line.substr(value);
    auto words = split_arguments(directive.rest);
    if (!words) return tl::unexpected<Error>(in("{}", where)(words.error()));
    directive.args = *std::move(words);
    if (directive.args.empty()) return fail("{}: {} has no value", where, directive.keyword);
    if (directive.keyword == "include") {
      for (std::string pattern : directive.args) {
        if (pattern.starts_with("~/")) {
          pattern = (locations.home / pattern.substr(2)).string();
        } else if (!pattern.starts_with('/')) {
          pattern = (base / pattern).string();
        }
        for (const std::string& path : glob_paths(pattern)) {
          DSI_TRY(auto nested, read_file_tree(path, base, locations, depth + 1));
          // Each file gets its own scope: a Host line in one does not reach into the next.
          Directive scope;
          scope.keyword = "include";
          scope.where = where;
          scope.included = std::move(nested);
          directives.push_back(std::move(scope));
        }
      }
      continue;
    }
    directives.push_back(std::move(directive));
  }
  return directives;
}

// Finds out whether evaluation here is enough.
void SshConfig::scan(const std::vector<Directive>& directives) {
  for (const Directive& directive : directives) {
    scan(directive.included);
    if (directive.keyword == "canonicalizehostname") {
      needs_ssh_ = needs_ssh_ || lower(directive.args[0]) != "no";
    }
    if (directive.keyword != "match") continue;
    for (std::size_t i = 0; i < directive.args.size(); ++i) {
      std::string criterion = lower(directive.args[i]);
      if (criterion.starts_with('!')) criterion.erase(0, 1);
      std::string name = criterion.substr(0, criterion.find('='));
      if (name == "final") {
        has_final_ = true;
      } else if (name == "host" || name == "originalhost" || name == "user" ||
                 name == "localuser") {
        if (name == criterion) ++i;  // Its value is the next word.
      } else if (name != "all") {
        needs_ssh_ = true;
        break;
      }
    }
  }
}

Result<SshConfig> SshConfig::read(SshLocations locations) {
  SshConfig config;
  std::filesystem::path folder = locations.home / ".ssh";
  if (!locations.config.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(locations.config, error)) {
      return fail("ssh configuration {} is not there", locations.config.string());
    }
    DSI_TRY(config.user_, read_file_tree(locations.config, folder, locations, 0));
  } else {
    DSI_TRY(config.user_, read_file_tree(folder / "config", folder, locations, 0));
    DSI_TRY(config.system_,
            read_file_tree(kSystemConfig, kSystemConfig.parent_path(), locations, 0));
  }
  config.locations_ = std::move(locations);
  config.scan(config.user_);
  config.scan(config.system_);
  return config;
}

bool SshConfig::match_applies(const Directive& directive, const Names& names) const {
  for (std::size_t i = 0; i < directive.args.size(); ++i) {
    std::string criterion = directive.args[i];
    bool negated = criterion.starts_with('!');
    if (negated) criterion.erase(0, 1);
    std::size_t equals = criterion.find('=');
    std::string name = lower(criterion.substr(0, equals));
    bool holds = false;
    if (name == "all") {
      holds = true;
    } else if (name == "final") {
      holds = names.final_pass;
    } else {
      std::string value = equals != std::string::npos     ? criterion.substr(equals + 1)
                          : i + 1 < directive.args.size() ? directive.args[++i]
                                                          : "";
      const std::string& subject = name == "host"           ? names.host
                                   : name == "originalhost" ? names.original
                                   : name == "user"         ? names.user
                                                            : locations_.user;
      holds = ssh_pattern_list_matches(split(value, ','), subject);
    }
    if (holds == negated) return false;
  }
  return true;
}

void SshConfig::evaluate(const std::vector<Directive>& directives, bool outer, const Names& names,
                         Values& values) const {
  bool active = outer;
  for (const Directive& directive : directives) {
    if (directive.keyword == "host") {
      active = outer && ssh_pattern_list_matches(directive.args, names.host);
    } else if (directive.keyword == "match") {
      // Match host and user look at what is set so far.
      Names now = names;
      if (auto it = values.find("hostname"); it != values.end()) now.host = it->second[0][0];
      if (auto it = values.find("user"); it != values.end() && now.user == locations_.user) {
        now.user = it->second[0][0];
      }
      active = outer && match_applies(directive, now);
    } else if (directive.keyword == "include") {
      evaluate(directive.included, active, names, values);
    } else if (active) {
      if (directive.keyword == "proxycommand") {
        values[directive.keyword].push_back({directive.rest});
        // ProxyCommand and ProxyJump compete: whichever is read first.
        values["proxyjump"].push_back({"none"});
      } else if (directive.keyword == "proxyjump") {
        values[directive.keyword].push_back(directive.args);
        values["proxycommand"].push_back({"none"});
      } else {
        values[directive.keyword].push_back(directive.args);
      }
    }
  }
}

Result<SshConfig::Values> SshConfig::ask_ssh(const Host& host, Deadline deadline,
                                             std::stop_token stop) const {
  Command command{.argv = {"ssh", "-G"}, .folder = {}, .environment = {}};
  command.environment = {{"HOME", locations_.home.string()}};
  if (!locations_.config.empty()) {
    command.argv.insert(command.argv.end(), {"-F", locations_.config.string()});
  }
  if (!host.user.empty()) command.argv.insert(command.argv.end(), {"-l", host.user});
  if (host.port != 0) command.argv.insert(command.argv.end(), {"-p", std::to_string(host.port)});
  command.argv.insert(command.argv.end(), {"--", host.name});
  LocalProcessRunner runner;
  DSI_TRY(ProcessResult result, runner.run(command, deadline, stop));
  if (!result.ok()) return fail("ssh -G {}: {}", host.name, result.err);
  Values values;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) {
    std::size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    std::string keyword = line.substr(0, space);
    std::string rest = line.substr(space + 1);
    if (keyword == "proxycommand") {
      values[keyword].push_back({rest});
    } else {
      DSI_TRY(auto words, split_arguments(rest));
      if (!words.empty()) values[keyword].push_back(std::move(words));
    }
  }
  return values;
}

// Tokens and ~ as in ssh_config(5), TOKENS.
Result<std::string> SshConfig::expand(const std::string& text, const SshTarget& target,
                                      const Host& host, const std::string& keyword) const {
  std::string result;
  std::size_t start = 0;
  if (keyword != "proxycommand" && (text == "~" || text.starts_with("~/"))) {
    result = locations_.home.string();
    start = 1;
  }
  for (std::size_t i = start; i < text.size(); ++i) {
    if (keyword != "proxycommand" && text[i] == '$' && i + 1 < text.size() && text[i + 1] == '{') {
      std::size_t close = text.find('}', i);
      if (close == std::string::npos)
        return fail("ssh configuration: {} {}: no '}}'", keyword, text);
      std::string name = text.substr(i + 2, close - i - 2);
      result += environment_value(name.c_str());
      i = close;
      continue;
    }
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    char token = ++i < text.size() ? text[i] : '\0';
    std::array<char, 256> local{};
    switch (token) {
      case '%':
        result += '%';
        break;
      case 'd':
        result += locations_.home.string();
        break;
      case 'h':
        result += target.host_name;
        break;
      case 'i':
        result += std::to_string(::getuid());
        break;
      case 'k':
        result += target.host_key_alias.empty() ? host.name : target.host_key_alias;
        break;
      case 'n':
        result += host.name;
        break;
      case 'p':
        result += std::to_string(target.port);
        break;
      case 'r':
        result += target.user;
        break;
      case 'u':
        result += locations_.user;
        break;
      case 'l':
      case 'L': {
        ::gethostname(local.data(), local.size() - 1);
        std::string name = local.data();
        result += token == 'L' ? name.substr(0, name.find('.')) : name;
        break;
      }
      default:
        return fail("ssh configuration: {} {}: '%{}' is not supported", keyword, text, token);
    }
  }
  return result;
}

Result<SshTarget> SshConfig::target_from(const Host& host, const Values& values) const {
  auto all = [&](const std::string& keyword) {
    auto it = values.find(keyword);
    return it == values.end() ? std::vector<std::vector<std::string>>{} : it->second;
  };
  auto first = [&](const std::string& keyword) -> std::string {
    auto it = values.find(keyword);
    return it == values.end() ? "" : it->second[0][0];
  };
  auto yes = [&](const std::string& keyword) { return lower(first(keyword)) == "yes"; };

  SshTarget target;
  target.user = !host.user.empty() ? host.user : first("user");
  if (target.user.empty()) target.user = locations_.user;
  target.port = host.port;
  if (target.port == 0 && !first("port").empty()) {
    DSI_TRY(target.port, parse_port(first("port")));
  }
  if (target.port == 0) target.port = 22;
  target.host_name = host.name;
  if (std::string name = first("hostname"); !name.empty()) {
    DSI_TRY(target.host_name, expand(name, target, host, "hostname"));
  }
  target.host_name = lower(target.host_name);
  target.host_key_alias = lower(first("hostkeyalias"));
  target.identities_only = yes("identitiesonly");
  target.bind_address = first("bindaddress");
  std::string family = lower(first("addressfamily"));
  target.address_family = family == "inet" ? AF_INET : family == "inet6" ? AF_INET6 : AF_UNSPEC;
  std::string strict = lower(first("stricthostkeychecking"));
  target.accept_unknown_host_key =
      strict == "no" || strict == "off" || strict == "false" || strict == "accept-new";
  if (std::string seconds = first("connecttimeout"); !seconds.empty() && seconds != "none") {
    int value = std::atoi(seconds.c_str());
    if (value > 0) target.connect_timeout = std::chrono::seconds(value);
  }

  auto add_paths = [&](const std::string& keyword, std::vector<std::string>& paths,
                       bool every_line) -> Result<void> {
    for (const auto& arguments : all(keyword)) {
      for (const std::string& argument : arguments) {
        if (argument == "none") continue;
        DSI_TRY(std::string path, expand(argument, target, host, keyword));
        if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
      }
      if (!every_line) break;
    }
    return {};
  };
  std::string folder = (locations_.home / ".ssh").string() + "/";
  const std::vector<std::string> defaults = {
      folder + "id_rsa",        folder + "id_ecdsa", folder + "id_ecdsa_sk", folder + "id_ed25519",
      folder + "id_ed25519_sk", folder + "id_xmss",  folder + "id_dsa"};
  DSI_CHECK(add_paths("identityfile", target.identity_files, true));
  // `ssh -G` prints the defaults as if they had been configured.
  bool only_defaults = std::all_of(
      target.identity_files.begin(), target.identity_files.end(), [&](const std::string& path) {
        return std::find(defaults.begin(), defaults.end(), path) != defaults.end();
      });
  target.identities_configured =
      values.count("identityfile") != 0 && !(only_defaults && target.identity_files.size() > 1);
  if (!target.identities_configured) {
    target.identity_files = {folder + "id_ed25519", folder + "id_ecdsa", folder + "id_rsa"};
  }
  DSI_CHECK(add_paths("certificatefile", target.certificate_files, true));
  DSI_CHECK(add_paths("revokedhostkeys", target.revoked_keys_files, false));
  if (values.count("userknownhostsfile") != 0) {
    DSI_CHECK(add_paths("userknownhostsfile", target.known_hosts_files, false));
  } else {
    target.known_hosts_files = {folder + "known_hosts", folder + "known_hosts2"};
  }
  if (values.count("globalknownhostsfile") != 0) {
    DSI_CHECK(add_paths("globalknownhostsfile", target.known_hosts_files, false));
  } else {
    target.known_hosts_files.insert(target.known_hosts_files.end(),
                                    {"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"});
  }

  std::string agent = first("identityagent");
  if (agent.empty() || agent == "SSH_AUTH_SOCK") {
    target.agent_socket = locations_.agent_socket;
  } else if (agent.starts_with('$') && !agent.starts_with("${")) {
    target.agent_socket = environment_value(agent.c_str() + 1);
  } else if (agent != "none") {
    DSI_TRY(target.agent_socket, expand(agent, target, host, "identityagent"));
  }

  std::string command = first("proxycommand");
  std::string jump = first("proxyjump");
  if (command.empty() || command == "none") {
    command.clear();
    if (!jump.empty() && jump != "none") {
      DSI_TRY(command, jump_command(jump, locations_));
    }
  }
  if (!command.empty()) {
    target.proxy_key = command;
    DSI_TRY(target.proxy_command, expand(command, target, host, "proxycommand"));
  }
  return target;
}

Result<SshTarget> SshConfig::resolve(const Host& host, Deadline deadline,
                                     std::stop_token stop) const {
  if (needs_ssh_) {
    DSI_TRY(Values values, ask_ssh(host, deadline, stop));
    return target_from(host, values);
  }
  Values values;
  Names names{.original = host.name,
              .host = host.name,
              .user = host.user.empty() ? locations_.user : host.user};
  evaluate(user_, true, names, values);
  evaluate(system_, true, names, values);
  if (has_final_) {
    // ssh reads its files a second time, now with the final host name.
    if (auto it = values.find("hostname"); it != values.end()) {
      DSI_TRY(SshTarget so_far, target_from(host, values));
      names.host = so_far.host_name;
    }
    names.final_pass = true;
    evaluate(user_, true, names, values);
    evaluate(system_, true, names, values);
  }
  return target_from(host, values);
}

}  // namespace dsi
