#include "orchestrator/agent/python.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "orchestrator/agent/child.h"
#include "orchestrator/agent/facts.h"
#include "orchestrator/base/deadline.h"

namespace dsi::agent {

using protocol::PythonFacts;
using protocol::PythonRequest;

namespace {

// python_facts.py; the build makes a string of it.
constexpr char kFactsScript[] =
#include "python_facts.inc"
    ;

// Start-up files may well load modules from a slow shared file system.
constexpr std::chrono::seconds kLoginTime{30};
constexpr std::chrono::seconds kFactsTime{60};
constexpr char kMark[] = "ds-python-is:";
constexpr char kNameOne[] =
    "name the interpreter with --python, or for one host in the configuration";

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.pop_back();
  }
  return text.substr(text.find_last_of('\n') + 1).substr(0, 300);
}

bool is_program(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

// An interpreter, or the folder of an environment.
Result<std::string> given_python(std::string path) {
  const std::string home = find_login_account().home;
  if (path.starts_with("~/") && !home.empty()) path = home + path.substr(1);
  if (path.front() != '/') {
    return fail_with_help(fmt::format("--python {} is no absolute path", path),
                          "give the full path of an interpreter, or of an environment's folder");
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    for (const char* name : {"/bin/python3", "/bin/python"}) {
      if (is_program(path + name)) return path + name;
    }
    return fail_with_help(fmt::format("{} has no bin/python3", path), kNameOne);
  }
  if (is_program(path)) return path;
  return fail_with_help(
      fmt::format("there is no {} {}",
                  std::filesystem::exists(path, ignored) ? "program at" : "interpreter", path),
      kNameOne);
}

Result<std::string> login_python() {
  Account account = find_login_account();
  std::string shell = account.shell.substr(account.shell.find_last_of('/') + 1);
  // Any shell passes this on; the question itself is sh's.
  std::string question =
      fmt::format("/bin/sh -c 'echo {}$(command -v python3 || command -v python)'", kMark);
  ChildSpec spec;
  // C shells take -l alone only; theirs is the file that every shell of theirs reads.
  spec.argv = shell == "csh" || shell == "tcsh"
                  ? std::vector<std::string>{account.shell, "-c", question}
                  : std::vector<std::string>{account.shell, "-l", "-i", "-c", question};
  if (account.name != find_account().name) {
    // Their files are for them to run, and may ask who they are.
    spec.argv.insert(spec.argv.begin(), {"sudo", "-n", "-H", "-u", account.name, "--"});
  }
  spec.environment = {"TERM=dumb"};
  spec.new_session = true;
  DSI_TRY(Ran ran, run_child(spec, kLoginTime));
  std::size_t at = ran.out.rfind(kMark);
  if (at == std::string::npos) {
    std::string said = last_line(ran.out);
    return fail_with_help(
        ran.timed_out ? fmt::format("a login shell of {} ({}) did not answer within {} s",
                                    account.name, account.shell, kLoginTime.count())
                      : fmt::format("a login shell of {} ({}) does not run a command{}{}",
                                    account.name, account.shell, said.empty() ? "" : ": ", said),
        kNameOne);
  }
  std::string path = ran.out.substr(at + sizeof kMark - 1);
  path = path.substr(0, path.find_first_of("\r\n"));
  if (path.empty()) {
    return fail_with_help(fmt::format("a login shell of {} finds no python3", account.name),
                          std::string("install Python on this node, or ") + kNameOne);
  }
  return path;
}

Result<Environment> ask(const std::string& python, const std::string& package, bool brief) {
  ChildSpec spec;
  // The answer goes to descriptor 3: a sitecustomize may print.
  std::string script =
      std::string("import os, sys\nsys.stdout = os.fdopen(3, 'w')\n") + kFactsScript;
  spec.argv = {python, "-I", "-B", "-c", script, package};
  if (brief) spec.argv.emplace_back("brief");
  DSI_TRY(Ran ran, run_child(spec, kFactsTime));
  if (ran.timed_out) {
    return fail_with_help(fmt::format("{} did not answer within {} s", python, kFactsTime.count()),
                          kNameOne);
  }
  auto object = nlohmann::json::parse(ran.answer, nullptr, false);
  if (!object.is_object()) {
    std::string said = last_line(ran.out);
    return fail_with_help(
        fmt::format("{} does not run{}{}", python, said.empty() ? "" : ": ", said), kNameOne);
  }
  Environment found;
  try {
    found.facts = object.get<PythonFacts>();
    found.state = object.value("state", "");
  } catch (const nlohmann::json::exception& error) {
    return fail("{} gave no sensible answer: {}", python, error.what());
  }
  if (found.facts.executable.empty()) {
    return fail_with_help(
        fmt::format("{} is Python {}; 3.6 or later is needed", python, found.facts.version),
        kNameOne);
  }
  return found;
}

}  // namespace

Environment find_environment(const PythonRequest& request) {
  bool given = !request.python.empty();
  auto found = [&]() -> Result<Environment> {
    DSI_TRY(std::string python, given ? given_python(request.python) : login_python());
    return ask(python, request.package, false);
  }();
  if (found) {
    found->facts.found_by = given ? "given" : "login";
    return *std::move(found);
  }
  Environment none;
  none.facts.error = found.error();
  return none;
}

Result<Environment> open_environment(const std::string& python, const std::string& package) {
  DSI_TRY(std::string path, given_python(python));
  return ask(path, package, true);
}

}  // namespace dsi::agent
