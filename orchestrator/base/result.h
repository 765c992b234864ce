#pragma once

// Expected failure is a value: every function that can fail for a reason outside the program
// returns Result<T>. Exceptions of libraries are caught where the library is called; a broken
// invariant is an assert.

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace dsi {

// What went wrong and what the reader can do about it.
struct Error {
  // A lower-case phrase without a final period, naming the path, host or op.
  std::string what;
  // An imperative sentence fragment; empty if there is nothing sensible to suggest.
  std::string help;
};

template <typename T>
using Result = tl::expected<T, Error>;

template <typename... Args>
[[nodiscard]] tl::unexpected<Error> fail(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{fmt::format(format, std::forward<Args>(args)...), {}});
}

[[nodiscard]] inline tl::unexpected<Error> fail_with_help(std::string what, std::string help) {
  return tl::unexpected<Error>(Error{std::move(what), std::move(help)});
}

// "<what>: No such file or directory" for the given errno value.
[[nodiscard]] tl::unexpected<Error> fail_errno(int error_number, std::string what);

// Adds the noun on the way up: `return load(path).map_error(in("while reading {}", path))`.
template <typename... Args>
[[nodiscard]] auto in(fmt::format_string<Args...> format, Args&&... args) {
  return [context = fmt::format(format, std::forward<Args>(args)...)](Error error) {
    error.what = context + ": " + error.what;
    return error;
  };
}

// "error: <what>" and, if there is one, a second line "  help: <help>".
std::string to_string(const Error& error);

}  // namespace dsi

#define DSI_CONCAT_INNER(a, b) a##b
#define DSI_CONCAT(a, b) DSI_CONCAT_INNER(a, b)

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
// DSI_TRY(auto fd, open_file(path));  gives up with the error, or binds the value.
#define DSI_TRY(declaration, expression) \
  DSI_TRY_INNER(DSI_CONCAT(dsi_try_, __LINE__), declaration, expression)
#define DSI_TRY_INNER(name, declaration, expression)                       \
  auto name = (expression);                                                \
  if (!name) return tl::unexpected<::dsi::Error>(std::move(name).error()); \
  declaration = *std::move(name)
// NOLINTEND(bugprone-macro-parentheses)

// The same for Result<void>.
#define DSI_CHECK(expression)                    \
  if (auto dsi_check = (expression); !dsi_check) \
  return tl::unexpected<::dsi::Error>(std::move(dsi_check).error())
