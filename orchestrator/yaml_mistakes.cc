#include "orchestrator/yaml_mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "orchestrator/text.h"

namespace dsi {

void YamlMistakes::note(const YAML::Mark& mark, std::string_view what, std::string_view help) {
  ++count_;
  if (!last_help_.empty()) lines_ += "\n  help: " + last_help_;
  lines_ += fmt::format("\n{}:{}:{}: error: {}", printable(file_.string()),
                        std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1, what);
  last_help_ = help;
}

void YamlMistakes::read_document(std::string_view text,
                                 const std::function<void(const YAML::Node&)>& read) {
  try {
    std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() > 1) {
      note(documents[1].Mark(), "a second document begins", "keep one; take the line --- out");
    } else if (documents.size() == 1) {
      read(documents[0]);
    }
  } catch (const YAML::Exception& e) {
    note(e.mark, "not YAML: " + e.msg, "");
  }
}

Error YamlMistakes::error(std::string_view subject) const {
  return {fmt::format("{} {} mistake{}{}", subject, count_, count_ == 1 ? "" : "s", lines_),
          last_help_};
}

}  // namespace dsi
