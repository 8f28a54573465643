#include "cache/json_writer.h"

#include "core/characters.h"

namespace robocache::cache {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += hex_digits[byte >> 4];
      out += hex_digits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

std::string members_text(const std::map<std::string, std::string>& members) {
  JsonObject object;
  for (const auto& [key, value] : members) object.add(key, value);
  return object.text();
}

}  // namespace robocache::cache
