#pragma once

#include <cstddef>
#include <string>

namespace dsi {

// So many bytes that nobody can guess, as hexadecimal digits. Ends the program if the system has
// none: a key that can be guessed is worse.
std::string random_hex(std::size_t bytes);

}  // namespace dsi
