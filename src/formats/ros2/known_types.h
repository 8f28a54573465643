// ROS message types whose meaning is more than their fields: joints by name, points, images, frames of a tree.
#pragma once

#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/messages/output.h"
#include "formats/ros2/cdr.h"
#include "formats/ros2/definition.h"

namespace robocache::ros2 {

inline constexpr std::size_t max_name = 1024;  // bytes of the name of a joint or a frame

struct StdHeader {
  std::int64_t stamp = 0;
  std::string_view frame{};
};
inline std::int64_t read_time(CdrReader& cursor) {
  const char* const at = cursor.numbers(4, 2);
  const auto seconds = io::load<std::int32_t>(at, cursor.swapped());
  const auto nanoseconds = io::load<std::uint32_t>(at + 4, cursor.swapped());
  return std::int64_t{seconds} * 1'000'000'000 + nanoseconds;
}
inline StdHeader read_header(CdrReader& cursor) {
  const std::int64_t stamp = read_time(cursor);
  return {stamp, cursor.string()};
}

// Reads the messages of one known type. If add() throws half way, discard() undoes what it did.
class KnownType {
 public:
  virtual ~KnownType() = default;
  virtual void add(CdrReader& cursor, const messages::MessageTimes& times) = 0;
  virtual void discard() {}
  virtual void take(std::vector<StreamBatch>& to) = 0;
  virtual std::int64_t footprint() const = 0;
  virtual std::vector<StreamInfo> streams() const { return {}; }  // those known before the first message
  std::int64_t bytes() const { return added_; }
  // The stamp is that of the header, which comes first.
  virtual void survey(CdrReader& cursor, std::string_view topic, std::int64_t log_time, ClockSurvey& to);

 protected:
  std::int64_t added_ = 0;  // bytes since the last take()
};

inline void KnownType::survey(CdrReader& cursor, std::string_view topic, std::int64_t log_time, ClockSurvey& to) {
  to.add(topic, log_time, read_header(cursor).stamp);
}

// nullptr if the definition has another name, or other fields, than every known type.
std::unique_ptr<KnownType> make_known_type(const Definition& definition, std::string_view type, std::string_view topic);

// make_known_type() calls these after it compared the definition.
std::unique_ptr<KnownType> make_joint_state(std::string_view type, std::string_view topic);
std::unique_ptr<KnownType> make_point_cloud(std::string_view type, std::string_view topic);
std::unique_ptr<KnownType> make_image(std::string_view type, std::string_view topic, bool is_compressed);
std::unique_ptr<KnownType> make_transforms(std::string_view type, std::string_view topic);

// A collection that nearly always equals that of the message before, byte for byte. Then it is not parsed again.
struct Repeated {
  std::vector<char> bytes{};  // of the last message that was parsed, from the count on
  bool swapped = false;

  // True if it is the same; then the reader is behind it. Otherwise it is forgotten, and the reader is at the count.
  bool skip(CdrReader& cursor) {
    cursor.collection();
    const char* const begin = cursor.numbers(4, 1);
    const std::size_t left = cursor.left() + 4;
    const bool same = !bytes.empty() && bytes.size() <= left && swapped == cursor.swapped() &&
                      std::memcmp(bytes.data(), begin, bytes.size()) == 0;
    cursor.seek_back(same ? left - bytes.size() : left);
    if (!same) bytes.clear();
    return same;
  }
  void keep(const char* begin, const CdrReader& cursor) {
    bytes.assign(begin, cursor.here());
    swapped = cursor.swapped();
  }
};

}  // namespace robocache::ros2
