#include "orchestrator/base/result.h"

#include <system_error>

namespace dsi {

tl::unexpected<Error> fail_errno(int error_number, std::string what) {
  // generic_category and not strerror: several sessions fail at once, each in its own thread.
  return fail("{}: {}", what, std::generic_category().message(error_number));
}

std::string to_string(const Error& error) {
  std::string text = "error: " + error.what;
  if (!error.help.empty()) text += "\n  help: " + error.help;
  return text;
}

}  // namespace dsi
