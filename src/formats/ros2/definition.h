// The types of a message: the text of a schema as a table.
#pragma once

#include <robocache/tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace robocache::ros2 {

enum class Kind : std::uint8_t { number, string, wstring, structure, array, sequence };

struct Type {
  Kind kind = Kind::number;
  DType dtype = DType::u8;  // of a number
  std::int32_t of = -1;     // of a structure: which; of an array or sequence: the type of its elements
  std::uint32_t count = 0;  // of an array: how many, 1 or more; of a sequence: at most, 0: any number
};

struct Member {
  std::string name;
  std::int32_t type = 0;
};

struct Structure {
  std::string name;  // always written as "sensor_msgs/Imu"
  std::vector<Member> members;
};

struct Definition {
  std::vector<Type> types;
  std::vector<Structure> structures;
  std::int32_t root = 0;  // the structure of the whole message

  // "sensor_msgs/Imu"; empty for a type that is not a structure
  std::string_view name_of(std::int32_t type) const;
  bool is(std::int32_t type, std::string_view structure) const { return name_of(type) == structure; }
};

// "sensor_msgs/msg/Imu", "sensor_msgs/Imu" and "sensor_msgs::msg::Imu" are all "sensor_msgs/Imu".
std::string short_name(std::string_view name);

// Parses the schema `name` with all types that it needs. Throws Error(file) if the text cannot be understood, a type is missing
// or holds itself, or types are nested deeper than max_depth.
inline constexpr int max_depth = 32;
inline constexpr std::size_t max_schema = 1 << 20;  // bytes of text
Definition parse_ros2msg(std::string_view name, std::string_view text);
Definition parse_ros2idl(std::string_view name, std::string_view text);

// The last step of both parsers: adds the builtin types that the text leaves out, resolves every name, refuses cycles.
class Builder {
 public:
  std::int32_t add(const Type& type) {
    definition_.types.push_back(type);
    return static_cast<std::int32_t>(definition_.types.size()) - 1;
  }
  // "pkg/msg": the scope of the names that follow.
  void enter(std::string scope) { scopes_.push_back(std::move(scope)); }
  // The type with that name in the nearest scope. It may be defined later.
  std::int32_t refer(std::string_view name);
  void define(Structure structure);
  void alias(std::string name, std::int32_t type) { aliases_.emplace_back(std::move(name), type); }
  Definition finish(std::string_view root);

 private:
  using Names = std::vector<std::pair<std::string, std::int32_t>>;  // sorted
  struct Reference {
    std::int32_t type;
    std::size_t scope;
    std::string name;
    bool resolved = false;
  };
  static std::int32_t find(const Names& names, std::string_view name);
  std::int32_t find_structure(std::string_view name);
  bool resolve(Reference& reference, std::string_view name, int depth);
  void resolve(Reference& reference, int depth);

  Definition definition_;
  std::vector<Reference> references_;  // by type
  std::vector<std::string> scopes_{""};
  Names structures_, aliases_;
};

}  // namespace robocache::ros2
