#pragma once

// Real hosts for a test, and the program run against them as a user would.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "orchestrator/adapters/local_process.h"

namespace dsi {

// What a program came to.
struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// The JSON Lines that ds-install prints, taken apart.
struct JsonReport {
  int exit_code = -1;
  std::string err;
  std::vector<nlohmann::json> rows;

  const nlohmann::json& summary() const;
  const nlohmann::json& host(const std::string& name) const;
  const nlohmann::json& op(const std::string& host, const std::string& op) const;
  int count(const std::string& result) const;  // Hosts with this result.
  bool every_op_is_ok() const;                 // And there is one.
};

JsonReport read_json_report(const Outcome& outcome);  // Of ds-install --json.

// N hosts, taken down at the end. `node` numbers from 1, host names node001, node002, ...
class Cluster {
 public:
  explicit Cluster(int hosts);
  ~Cluster();

  // Empty if the hosts are up as hosts of their own; else why the test cannot run here.
  const std::string& why_not() const { return why_not_; }

  Outcome control(const std::vector<std::string>& arguments);
  Outcome on_head(const std::vector<std::string>& command);
  Outcome on_node(int node, const std::string& script);  // By sh, as root.

  // ds-install on the head, with -r, and with a hostfile of all hosts unless the arguments say
  // which. The builds are shared by all tests.
  Outcome ds_install(std::vector<std::string> arguments);
  JsonReport ds_install_json(std::vector<std::string> arguments);

  // Another ds-install than the one that was built.
  void use_program(const std::string& path) { program_ = path; }

  // The command line of that, to be run on the head in another way.
  std::vector<std::string> ds_install_command(std::vector<std::string> arguments);

  std::string write_hostfile(const std::string& text);  // Its path.
  std::string default_hostfile();
  const std::string& name() const { return name_; }
  const std::string& folder() const { return folder_; }  // The test's own, visible to the head.

 private:
  std::string name_;
  std::string folder_;
  std::string why_not_;
  std::string program_;
  int files_ = 0;
};

// Declares `cluster` with n hosts, or skips the test and says why.
#define DSI_CLUSTER(cluster, n) \
  ::dsi::Cluster cluster(n);    \
  if (!(cluster).why_not().empty()) GTEST_SKIP() << (cluster).why_not()

}  // namespace dsi
