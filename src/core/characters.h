// Characters of text from outside.
#pragma once

#include <string>
#include <string_view>

namespace robocache {

inline constexpr std::string_view hex_digits = "0123456789abcdef";

inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Replaces bytes that are not UTF-8 by U+FFFD.
std::string as_utf8(std::string_view text);

}  // namespace robocache
