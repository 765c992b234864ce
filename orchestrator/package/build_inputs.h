#pragma once

// What of this machine goes into a wheel besides its source and its Python: a wheel is built again
// if any of it is another one.

#include <map>
#include <string>
#include <string_view>

namespace dsi {

// The variables of this process's environment that a build reads: those of compilers, linkers and
// build systems, those that begin with the package's name, and those that `build_files`, the text
// of the project's own build files, names. Not MAX_JOBS and the like: how fast is not what.
std::map<std::string, std::string> build_variables(std::string_view package = {},
                                                   std::string_view build_files = {});

// PATH for a build with the Python in `executable`: this process's, and before it the folder of an
// environment that is not activated, so that the ninja which is installed there is found.
std::string build_path(const std::string& executable);

// The programs that a build starts, as the environment names them and `path` (a PATH) has them:
// "c++" → file, size, time. Those that are not there are left out.
std::map<std::string, std::string> build_tools(const std::string& path);

}  // namespace dsi
