#include "core/characters.h"

namespace robocache {

std::string as_utf8(std::string_view text) {
  std::string result;
  for (std::size_t k = 0; k < text.size();) {
    const auto byte = [&](std::size_t i) { return k + i < text.size() ? static_cast<unsigned char>(text[k + i]) : 0; };
    const int first = byte(0);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xc2 && first < 0xe0 ? 2
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xf0 && first < 0xf5 ? 4
                                                               : 0;
    bool is_good = length > 0;
    for (std::size_t i = 1; i < length; ++i) is_good = is_good && (byte(i) & 0xc0) == 0x80;
    if (length == 3) is_good = is_good && !(first == 0xe0 && byte(1) < 0xa0) && !(first == 0xed && byte(1) > 0x9f);
    if (length == 4) is_good = is_good && !(first == 0xf0 && byte(1) < 0x90) && !(first == 0xf4 && byte(1) > 0x8f);
    if (is_good) {
      result += text.substr(k, length);
      k += length;
    } else {
      result += "\xef\xbf\xbd";
      ++k;
    }
  }
  return result;
}

}  // namespace robocache
