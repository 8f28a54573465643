#include "core/text.h"

#include "core/characters.h"

namespace robocache {

std::string quote(std::string_view text) {
  constexpr std::size_t longest = 80;  // characters of the result
  std::string result = "\"";
  for (const char c : text) {
    if (result.size() > longest) return result + "...\"";
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      result += {'\\', 'x', hex_digits[byte >> 4], hex_digits[byte & 15]};
    }
  }
  return result + '"';
}

}  // namespace robocache
