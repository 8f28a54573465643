// JSON documents of a cache, read with sentences that say where a value is.
#pragma once

#include <robocache/error.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.h"

namespace robocache::cache {

using Json = nlohmann::json;

// Throws Error(file), `name` first, if the text is not JSON, is nested over 16 deep, or would take far more memory than its
// length lets expect.
Json parse_json(std::string_view text, const std::string& name);

// A value in a document, and the path to it: "streams[2].shape". Every member throws Error(file) if the value is of another
// type.
class JsonNode {
 public:
  JsonNode(const Json& json, const std::string& file, std::string path)
      : json_(&json), file_(&file), path_(std::move(path)) {}

  template <class... Parts>
  std::string sentence(const Parts&... parts) const {
    return concat(*file_, ": ", path_.empty() ? "" : path_ + " ", parts...);
  }
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, sentence(parts...));
  }

  bool has(const char* key) const { return object().contains(key); }
  JsonNode operator[](const char* key) const {
    const auto found = object().find(key);
    if (found == object().end()) fail("lacks ", quote(key));
    return {*found, *file_, path_.empty() ? key : concat(path_, ".", key)};
  }
  std::int64_t integer(std::int64_t least, std::int64_t most) const {
    const bool fits =
        json_->is_number_integer() &&
        (!json_->is_number_unsigned() ||
         json_->get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    const std::int64_t value = fits ? json_->get<std::int64_t>() : 0;
    if (!fits || value < least || value > most) {
      fail("is ", json_->is_number() ? json_->dump() : json_->type_name(), "; expected a whole number from ", least,
           " to ", most);
    }
    return value;
  }
  const std::string& string() const {
    if (!json_->is_string()) fail("is ", json_->type_name(), "; expected a string");
    return json_->get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!json_->is_boolean()) fail("is ", json_->type_name(), "; expected true or false");
    return json_->get<bool>();
  }
  bool is_null() const { return json_->is_null(); }

  template <class F>
  void each(const F& f) const {
    if (!json_->is_array()) fail("is ", json_->type_name(), "; expected a list");
    std::size_t k = 0;
    for (const Json& item : *json_) f(JsonNode(item, *file_, concat(path_, "[", k++, "]")));
  }
  template <class F>
  void each_member(const F& f) const {
    for (const auto& [key, value] : object().items())
      f(key, JsonNode(value, *file_, concat(path_, "[", quote(key), "]")));
  }
  std::size_t size() const { return json_->size(); }

 private:
  const Json& object() const {
    if (!json_->is_object()) fail("is ", json_->type_name(), "; expected an object");
    return *json_;
  }
  const Json* json_;
  const std::string* file_;
  std::string path_;
};

}  // namespace robocache::cache
