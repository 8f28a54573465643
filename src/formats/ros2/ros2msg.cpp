// Parses the text of a .msg file, followed by the files it needs after lines of "=": docs.ros.org, "Interfaces".
#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "formats/clouds/file_view.h"
#include "formats/ros2/definition.h"

namespace robocache::ros2 {

namespace {

struct Primitive {
  std::string_view name;
  DType dtype;
};
constexpr Primitive primitives[] = {{"bool", DType::boolean}, {"byte", DType::u8},    {"char", DType::u8},
                                    {"int8", DType::i8},      {"uint8", DType::u8},   {"int16", DType::i16},
                                    {"uint16", DType::u16},   {"int32", DType::i32},  {"uint32", DType::u32},
                                    {"int64", DType::i64},    {"uint64", DType::u64}, {"float32", DType::f32},
                                    {"float64", DType::f64}};  // char is unsigned in ROS 2 (rosidl_adapter)

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

class Parser {
 public:
  Definition parse(std::string_view name, std::string_view text) {
    if (text.size() > max_schema) fail("it has ", text.size(), " bytes; at most ", max_schema, " are read");
    const std::string root = short_name(name);
    begin(root);
    bool expects_name = false;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view line = trimmed(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      ++number_;
      if (line.empty() || line.starts_with('#')) continue;
      if (line.size() >= 3 && line.find_first_not_of('=') == std::string_view::npos) {
        expects_name = true;
      } else if (line.starts_with("MSG:")) {
        if (expects_name || !structure_.members.empty())
          end_structure();  // the message itself may have a name line, too
        begin(short_name(trimmed(line.substr(4))));
        expects_name = false;
      } else {
        if (expects_name) fail("expected \"MSG: package/Type\" after the line of \"=\"");
        add_member(line);
      }
    }
    end_structure();
    return builder_.finish(root);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, concat("line ", number_, " of the schema: ", parts...));
  }

  void begin(std::string name) {
    builder_.enter(name.substr(0, std::min(name.find('/'), name.size())));
    structure_ = {std::move(name), {}};
  }
  void end_structure() { builder_.define(std::exchange(structure_, {})); }

  void add_member(std::string_view line) {
    const std::size_t end =
        std::min(line.size(), static_cast<std::size_t>(std::ranges::find_if(line, is_space) - line.begin()));
    const std::string_view type = line.substr(0, end);
    const std::string_view rest = trimmed(line.substr(end));
    const auto length = static_cast<std::size_t>(std::ranges::find_if_not(rest, is_word) - rest.begin());
    if (length == 0) fail(quote(line), " is neither a field nor a constant");
    if (trimmed(rest.substr(length)).starts_with('=')) return;  // a constant
    const std::int32_t index = parse_type(type);                // text after the name is a default value
    structure_.members.push_back({std::string(rest.substr(0, length)), index});
  }

  std::int32_t parse_type(std::string_view text) {
    const std::size_t bracket = text.find('[');
    std::int32_t type = parse_element(text.substr(0, bracket));
    if (bracket == std::string_view::npos) return type;
    std::string_view inside = text.substr(bracket + 1);
    if (!inside.ends_with(']')) fail("type ", quote(text), " has no ]");
    inside.remove_suffix(1);
    if (inside.empty()) return builder_.add({.kind = Kind::sequence, .of = type});
    const bool bounded = inside.starts_with("<=");
    const std::uint32_t count = parse_size(bounded ? inside.substr(2) : inside, text);
    return builder_.add({.kind = bounded ? Kind::sequence : Kind::array, .of = type, .count = count});
  }

  std::int32_t parse_element(std::string_view text) {
    const std::size_t bound = text.find("<=");
    if (bound != std::string_view::npos) parse_size(text.substr(bound + 2), text);
    const std::string_view name = text.substr(0, bound);
    if (name == "string") return builder_.add({.kind = Kind::string});
    if (name == "wstring") return builder_.add({.kind = Kind::wstring});
    if (bound != std::string_view::npos) fail("type ", quote(text), ": only strings and sequences have bounds");
    for (const Primitive& primitive : primitives) {
      if (name == primitive.name) return builder_.add({.kind = Kind::number, .dtype = primitive.dtype});
    }
    if (!std::ranges::all_of(name, [](char c) { return is_word(c) || c == '/'; }) || name.empty()) {
      fail(quote(text), " is no type");
    }
    return builder_.refer(name);
  }

  std::uint32_t parse_size(std::string_view digits, std::string_view type) const {
    std::uint32_t size = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    if (error != std::errc{} || end != digits.data() + digits.size() || size == 0) {
      fail("type ", quote(type), " has the size ", quote(digits), "; expected 1 to 4294967295");
    }
    return size;
  }

  Builder builder_;
  Structure structure_;
  std::int64_t number_ = 0;
};

}  // namespace

Definition parse_ros2msg(std::string_view name, std::string_view text) { return Parser().parse(name, text); }

}  // namespace robocache::ros2
