#include "cache/json_reader.h"

#include <algorithm>

#include "core/interrupt.h"

namespace robocache::cache {

// The JSON library keeps 16 bytes for each value and a tree node for each key. A document that would take more than 20 times
// its text and 128 MiB is refused while it is parsed; what a cache writes takes at most about 11 times its text.
Json parse_json(std::string_view text, const std::string& name) {
  const std::size_t most = 20 * text.size() + (std::size_t{128} << 20);
  std::size_t used = 0;
  const auto count = [&](int depth, Json::parse_event_t event, Json&) {
    check_interrupt();
    if (depth > 16) throw Error(ErrorKind::file, concat(name, ": its lists and objects are nested over 16 deep"));
    const bool is_item = event == Json::parse_event_t::key || event == Json::parse_event_t::value;
    const std::size_t cost = event == Json::parse_event_t::key ? 112 : is_item ? 48 : 64;
    used += depth > (is_item ? 4 : 3) ? cost * 3 / 2 : cost;  // metadata variants are copied while this is held
    if (used > most) throw Error(ErrorKind::file, concat(name, ": has too many values for its size"));
    return true;
  };
  try {
    return Json::parse(text, count);
  } catch (const Json::exception& error) {
    std::string words = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const std::size_t at = words.find("] "); at != std::string::npos) words.erase(0, at + 2);
    words.resize(std::min<std::size_t>(words.size(), 200));
    std::ranges::replace_if(
        words, [](char c) { return c < ' ' || c > '~'; }, '?');
    throw Error(ErrorKind::file, concat(name, ": is damaged: ", words));
  }
}

}  // namespace robocache::cache
