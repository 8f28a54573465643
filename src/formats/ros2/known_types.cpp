#include "formats/ros2/known_types.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

namespace robocache::ros2 {
namespace {

using Fields = std::initializer_list<std::pair<std::string_view, std::string_view>>;

// "float64[]", "std_msgs/Header"
std::string text_of(const Definition& definition, std::int32_t index) {
  const Type& type = definition.types[static_cast<std::size_t>(index)];
  switch (type.kind) {
    case Kind::number:
      return name_of(type.dtype);
    case Kind::string:
      return "string";
    case Kind::structure:
      return std::string(definition.name_of(index));
    case Kind::sequence:
      return text_of(definition, type.of) + "[]";
    default:
      return "";
  }
}

// Whether the structure is there and has these fields and no other.
bool has(const Definition& definition, std::string_view name, Fields fields) {
  const auto structure = std::ranges::find(definition.structures, name, &Structure::name);
  return structure != definition.structures.end() &&
         std::ranges::equal(structure->members, fields, [&](const Member& member, const auto& field) {
           return member.name == field.first && text_of(definition, member.type) == field.second;
         });
}

bool has_header(const Definition& definition) {
  return has(definition, "std_msgs/Header", {{"stamp", "builtin_interfaces/Time"}, {"frame_id", "string"}}) &&
         has(definition, "builtin_interfaces/Time", {{"sec", "int32"}, {"nanosec", "uint32"}});
}

class Image : public KnownType {
 public:
  Image(std::string_view type, std::string_view topic, bool is_compressed)
      : is_compressed_(is_compressed),
        stream_({.name = std::string(topic),
                 .type = std::string(type),
                 .dtype = DType::u8,
                 .methods = {{Method::hold, 0, 1}},
                 .is_ragged = true}) {}

  void add(CdrReader& cursor, const messages::MessageTimes& times) override {
    const StdHeader header = read_header(cursor);
    std::uint32_t height = 0, width = 0, step = 0;
    unsigned is_bigendian = 0;
    if (!is_compressed_) {
      height = cursor.count();
      width = cursor.count();
    }
    const std::string_view format = cursor.string();
    if (!is_compressed_) {
      is_bigendian = static_cast<unsigned char>(*cursor.numbers(1, 1));
      step = cursor.count();
    }
    const std::uint32_t size = cursor.count(0, 1);
    const char* const data = cursor.numbers(1, size);
    if (size > 0) std::memcpy(stream_.rows(size, cursor.size()), data, size);
    if (!header.frame.empty()) stream_.note(0, "frame_id", header.frame);
    if (is_compressed_) {
      stream_.note(1, "format", format);
    } else {
      stream_.note(1, "encoding", format);
      stream_.note(2, "height", height);
      stream_.note(3, "width", width);
      stream_.note(4, "step", step);
      stream_.note(5, "is_bigendian", is_bigendian);
    }
    added_ += stream_.commit(times, header.stamp);
  }
  void discard() override { stream_.discard(); }
  std::int64_t footprint() const override { return stream_.footprint(); }
  std::vector<StreamInfo> streams() const override { return {stream_.info()}; }
  void take(std::vector<StreamBatch>& to) override {
    stream_.take(to);
    added_ = 0;
  }

 private:
  bool is_compressed_;
  messages::StreamBuilder stream_;
};

}  // namespace

std::unique_ptr<KnownType> make_image(std::string_view type, std::string_view topic, bool is_compressed) {
  return std::make_unique<Image>(type, topic, is_compressed);
}

std::unique_ptr<KnownType> make_known_type(const Definition& definition, std::string_view type,
                                           std::string_view topic) {
  const std::string& name = definition.structures[static_cast<std::size_t>(definition.root)].name;
  if (!has_header(definition)) return nullptr;
  if (name == "sensor_msgs/JointState" && has(definition, name,
                                              {{"header", "std_msgs/Header"},
                                               {"name", "string[]"},
                                               {"position", "float64[]"},
                                               {"velocity", "float64[]"},
                                               {"effort", "float64[]"}})) {
    return make_joint_state(type, topic);
  }
  if (name == "sensor_msgs/PointCloud2" &&
      has(definition, name,
          {{"header", "std_msgs/Header"},
           {"height", "uint32"},
           {"width", "uint32"},
           {"fields", "sensor_msgs/PointField[]"},
           {"is_bigendian", "bool"},
           {"point_step", "uint32"},
           {"row_step", "uint32"},
           {"data", "uint8[]"},
           {"is_dense", "bool"}}) &&
      has(definition, "sensor_msgs/PointField",
          {{"name", "string"}, {"offset", "uint32"}, {"datatype", "uint8"}, {"count", "uint32"}})) {
    return make_point_cloud(type, topic);
  }
  if (name == "sensor_msgs/Image" && has(definition, name,
                                         {{"header", "std_msgs/Header"},
                                          {"height", "uint32"},
                                          {"width", "uint32"},
                                          {"encoding", "string"},
                                          {"is_bigendian", "uint8"},
                                          {"step", "uint32"},
                                          {"data", "uint8[]"}})) {
    return make_image(type, topic, false);
  }
  if (name == "sensor_msgs/CompressedImage" &&
      has(definition, name, {{"header", "std_msgs/Header"}, {"format", "string"}, {"data", "uint8[]"}})) {
    return make_image(type, topic, true);
  }
  if (name == "tf2_msgs/TFMessage" && has(definition, name, {{"transforms", "geometry_msgs/TransformStamped[]"}}) &&
      has(definition, "geometry_msgs/TransformStamped",
          {{"header", "std_msgs/Header"}, {"child_frame_id", "string"}, {"transform", "geometry_msgs/Transform"}}) &&
      has(definition, "geometry_msgs/Transform",
          {{"translation", "geometry_msgs/Vector3"}, {"rotation", "geometry_msgs/Quaternion"}}) &&
      has(definition, "geometry_msgs/Vector3", {{"x", "float64"}, {"y", "float64"}, {"z", "float64"}}) &&
      has(definition, "geometry_msgs/Quaternion",
          {{"x", "float64"}, {"y", "float64"}, {"z", "float64"}, {"w", "float64"}})) {
    return make_transforms(type, topic);
  }
  return nullptr;
}

}  // namespace robocache::ros2
