#pragma once

#include <string>
#include <string_view>

namespace dsi {

std::string encode_base64(std::string_view bytes);
// Empty if the text is no base64, without blanks and with its padding.
std::string decode_base64(std::string_view text);

}  // namespace dsi
