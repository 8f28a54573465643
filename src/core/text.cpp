#include "core/text.h"

namespace robocache {

std::string quote(std::string_view text) {
  constexpr std::size_t longest = 40;
  constexpr const char* digits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    if (result.size() > longest) return result + "...\"";
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      result += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return result + '"';
}

}  // namespace robocache
