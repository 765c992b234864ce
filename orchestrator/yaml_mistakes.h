#pragma once

// The mistakes of one YAML file that people write, all of them at once.

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "orchestrator/base/result.h"

namespace dsi {

class YamlMistakes {
 public:
  // `file` is for messages.
  explicit YamlMistakes(std::filesystem::path file) : file_(std::move(file)) {}

  void note(const YAML::Mark& mark, std::string_view what, std::string_view help);
  std::size_t count() const { return count_; }

  // The only document of the text, given to `read` if there is one. That there are two, or that it
  // is not YAML, is a mistake.
  void read_document(std::string_view text, const std::function<void(const YAML::Node&)>& read);

  // "<subject> 2 mistakes", then a line `file:line:col: error: …` for each with a `help:` line
  // below. The last help is the Error's own. `subject`: "the rules in site.yaml have".
  Error error(std::string_view subject) const;

 private:
  std::filesystem::path file_;
  std::size_t count_ = 0;
  std::string lines_;
  std::string last_help_;
};

}  // namespace dsi
