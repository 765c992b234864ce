#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "orchestrator/adapters/curl_webhook.h"
#include "orchestrator/adapters/local_host.h"
#include "orchestrator/adapters/local_process.h"
#include "orchestrator/adapters/srun_host.h"
#include "orchestrator/adapters/ssh_host.h"
#include "orchestrator/install.h"
#include "orchestrator/interrupt.h"

namespace {

// The last word on a run that gave no report.
int give_up(const dsi::Error& error, int exit_code, bool json) {
  if (json) {
    nlohmann::json version = {{"type", "version"}, {"version", 1}, {"ds_install", DSI_VERSION}};
    nlohmann::json row = {{"type", "error"}, {"what", error.what}, {"help", error.help}};
    nlohmann::json summary = {{"type", "summary"}, {"exit_code", exit_code}};
    for (const nlohmann::json& line : {version, row, summary}) {
      std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    }
  }
  // Diagnostics of a hostfile come as whole lines `file:line:col: error: ...`.
  std::string text = error.what.find(": error: ") != std::string::npos && error.help.empty()
                         ? error.what
                         : dsi::to_string(error);
  std::fprintf(stderr, "%s\n", text.c_str());
  return exit_code;
}

int run(const std::vector<std::string>& arguments) {
  auto parsed = dsi::parse_command_line(arguments);
  if (!parsed) {
    bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
    return give_up(parsed.error(), dsi::kExitUsage, json);
  }
  if (parsed->print) {
    std::cout << parsed->print->text;
    return dsi::kExitOk;
  }
  const dsi::Options& options = parsed->options;
  dsi::Interrupt interrupt;
  dsi::Progress progress(dsi::Progress::detect(options.verbose));
  for (const std::string& warning : parsed->warnings) progress.warning(warning);
  auto folders = dsi::find_folders();
  if (!folders) return give_up(folders.error(), dsi::kExitUsage, options.json);

  dsi::LocalProcessRunner processes;
  dsi::SshConnector ssh;
  dsi::LocalConnector local;
  dsi::SrunConnector slurm;
  dsi::CurlWebhook webhook;
  dsi::World world{
      *folders,          processes,        ssh, local, slurm, webhook, progress, std::cout,
      interrupt.drain(), interrupt.abort()};
  auto code = dsi::run_command(options, world);
  if (!code) {
    progress.clear();
    return give_up(code.error().error, code.error().exit_code, options.json);
  }
  return *code;
}

}  // namespace

int main(int argc, char** argv) {
  // The one place for what nobody expected (memory, a library's surprise): a line, not a trace.
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n  help: this is a defect of ds-install; please report it\n",
                 e.what());
    return dsi::kExitSomeFailed;
  }
}
