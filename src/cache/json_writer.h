// JSON text, written value by value in a fixed order.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/text.h"

namespace robocache::cache {

void append_json_string(std::string& out, std::string_view text);

// An object on one line: keys and values in the order in which they are added.
class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view text) {
    append_json_string(begin(key), text);
    return *this;
  }
  JsonObject& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  JsonObject& add(std::string_view key, std::int64_t number) {
    begin(key) += std::to_string(number);
    return *this;
  }
  JsonObject& add(std::string_view key, bool flag) {
    begin(key) += flag ? "true" : "false";
    return *this;
  }
  JsonObject& add_raw(std::string_view key, std::string_view json) {
    begin(key) += json;
    return *this;
  }
  bool is_empty() const noexcept { return text_.empty(); }
  std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string& begin(std::string_view key) {
    text_ += text_.empty() ? "{" : ", ";
    append_json_string(text_, key);
    text_ += ": ";
    return text_;
  }
  std::string text_;
};

template <class Items, class F>
std::string json_list(const Items& items, const char* between, const F& f) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += between;
    text += f(item);
  }
  return text + "]";
}

inline std::string number_list(std::span<const std::int64_t> numbers) { return shape_text(numbers); }

std::string members_text(const std::map<std::string, std::string>& members);

}  // namespace robocache::cache
