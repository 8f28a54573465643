// Message types that are more than their fields: joints by name, points, images, frames of a tree.
#pragma once

#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/messages/output.h"
#include "formats/ros2/cdr.h"
#include "formats/ros2/definition.h"

namespace robocache::ros2 {

inline constexpr std::size_t max_name = 1024;  // bytes of a joint's or a frame's

struct Header {
  std::int64_t stamp = 0;
  std::string_view frame{};
};
inline std::int64_t read_time(Cursor& cursor) {
  const char* const at = cursor.numbers(4, 2);
  const auto seconds = clouds::load<std::int32_t>(at, cursor.swapped());
  const auto nanoseconds = clouds::load<std::uint32_t>(at + 4, cursor.swapped());
  return std::int64_t{seconds} * 1'000'000'000 + nanoseconds;
}
inline Header read_header(Cursor& cursor) {
  const std::int64_t stamp = read_time(cursor);
  return {stamp, cursor.string()};
}

// Reads the messages of one known type. add() may throw half way; discard() then takes back what it has done.
class Known {
 public:
  virtual ~Known() = default;
  virtual void add(Cursor& cursor, const messages::Clock& clock) = 0;
  virtual void discard() {}
  virtual void take(std::vector<StreamBatch>& to) = 0;
  virtual std::int64_t footprint() const = 0;
  virtual std::vector<StreamInfo> streams() const { return {}; }  // what is known before the first message
  std::int64_t bytes() const { return added_; }
  // By the header, which comes first.
  virtual void survey(Cursor& cursor, std::string_view topic, std::int64_t log_time, ClockSurvey& to);

 protected:
  std::int64_t added_ = 0;  // bytes since the last take()
};

inline void Known::survey(Cursor& cursor, std::string_view topic, std::int64_t log_time, ClockSurvey& to) {
  to.add(topic, log_time, read_header(cursor).stamp);
}

// nullptr: the definition is of none of them, by its name or its fields.
std::unique_ptr<Known> make_known(const Definition& definition, std::string_view type, std::string_view topic);

// The makers, each for a definition that has been found to be its own.
std::unique_ptr<Known> make_joint_state(std::string_view type, std::string_view topic);
std::unique_ptr<Known> make_point_cloud(std::string_view type, std::string_view topic);
std::unique_ptr<Known> make_image(std::string_view type, std::string_view topic, bool is_compressed);
std::unique_ptr<Known> make_transforms(std::string_view type, std::string_view topic);

// A collection that nearly always is that of the message before, byte for byte: then it is not read again.
struct Repeated {
  std::vector<char> bytes{};  // as they lay in the last message that was read, from the count on
  bool swapped = false;

  // True: it is the same, and passed over. Else it is forgotten, and the cursor is at the count.
  bool skip(Cursor& cursor) {
    cursor.collection();
    const char* const begin = cursor.numbers(4, 1);
    const std::size_t left = cursor.left() + 4;
    const bool same = !bytes.empty() && bytes.size() <= left && swapped == cursor.swapped() &&
                      std::memcmp(bytes.data(), begin, bytes.size()) == 0;
    cursor.seek_back(same ? left - bytes.size() : left);
    if (!same) bytes.clear();
    return same;
  }
  void keep(const char* begin, const Cursor& cursor) {
    bytes.assign(begin, cursor.here());
    swapped = cursor.swapped();
  }
};

}  // namespace robocache::ros2
