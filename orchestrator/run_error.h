#pragma once

// For the stages of a run, in which an Error becomes a RunError with the exit code that it means.

#include <utility>

#include "orchestrator/install.h"

namespace dsi {

inline auto with_exit(int code) {
  return [code](Error error) { return RunError{code, std::move(error)}; };
}

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
// DSI_TRY and DSI_CHECK for them.
#define RUN_TRY(declaration, code, expression) \
  RUN_TRY_INNER(DSI_CONCAT(run_try_, __LINE__), declaration, code, expression)
#define RUN_TRY_INNER(name, declaration, code, expression)                                     \
  auto name = (expression);                                                                    \
  if (!name) return tl::unexpected<::dsi::RunError>(with_exit(code)(std::move(name).error())); \
  declaration = *std::move(name)
// NOLINTEND(bugprone-macro-parentheses)
#define RUN_CHECK(code, expression)                                                        \
  do {                                                                                     \
    auto checked = (expression);                                                           \
    if (!checked)                                                                          \
      return tl::unexpected<::dsi::RunError>(with_exit(code)(std::move(checked).error())); \
  } while (false)
// What is a RunError already.
#define RUN_STEP(expression)                                                    \
  do {                                                                          \
    auto step = (expression);                                                   \
    if (!step) return tl::unexpected<::dsi::RunError>(std::move(step).error()); \
  } while (false)

}  // namespace dsi
