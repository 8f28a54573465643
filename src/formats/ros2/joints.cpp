// sensor_msgs/JointState: a channel for each joint, in whatever order a message lists them.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "formats/ros2/known_types.h"
#include "formats/ros2/numbers.h"

namespace robocache::ros2 {
namespace {

constexpr std::size_t max_joint_channels = 4096;
constexpr std::array<std::string_view, 3> fields{"position", "velocity", "effort"};

class JointState : public KnownType {
 public:
  JointState(std::string_view type, std::string_view topic)
      : stream_({.name = std::string(topic), .type = std::string(type), .shape = {0}}) {}

  void add(CdrReader& cursor, const messages::MessageTimes& times) override {
    const StdHeader header = read_header(cursor);
    read_names(cursor);
    std::array<const char*, 3> values{};
    std::array<std::uint32_t, 3> counts{};
    for (std::size_t f = 0; f < 3; ++f) {
      counts[f] = cursor.count(0, 8);
      values[f] = cursor.numbers(8, counts[f]);
      if (counts[f] != 0 && counts[f] != names_ && names_ != 0) {
        cursor.fail("has ", names_, " joints and ", counts[f], " values of ", fields[f]);
      }
    }
    if (!is_placed_ || counts != counts_) place(cursor, counts);
    if (stream_.row_bytes() == 0) return;  // no joint yet: there is no stream
    std::byte* const row = stream_.rows(1, cursor.size());
    if (!fills_) {
      constexpr double nan = std::numeric_limits<double>::quiet_NaN();
      for (std::size_t k = 0; k < stream_.row_bytes(); k += 8) std::memcpy(row + k, &nan, 8);
    }
    for (std::size_t f = 0; f < 3; ++f) write(values[f], counts[f], columns_[f], row, cursor.swapped());
    if (!header.frame.empty()) stream_.note(0, "frame_id", header.frame);
    added_ += stream_.commit(times, header.stamp);
  }

  void discard() override { stream_.discard(); }
  std::int64_t footprint() const override { return 3 * stream_.footprint() + std::ssize(block_.bytes); }
  void take(std::vector<StreamBatch>& to) override {
    stream_.take(to);
    added_ = 0;
  }

 private:
  struct Columns {
    std::vector<std::uint32_t> of{};  // joint -> channel
    bool runs = false;                // the channels are consecutive
  };

  void read_names(CdrReader& cursor) {
    if (block_.skip(cursor)) return;
    const char* const begin = cursor.here();
    is_placed_ = false;
    const std::uint32_t count = cursor.count(0, 4);
    for (std::uint32_t k = 0; k < count; ++k) {
      const std::size_t size = cursor.string().size();
      if (size > max_name) cursor.fail("names a joint with ", size, " bytes; at most ", max_name);
    }
    block_.keep(begin, cursor);
    names_ = count;
  }

  void place(CdrReader& cursor, const std::array<std::uint32_t, 3>& counts) {
    is_placed_ = false;  // in case the next lines throw
    std::vector<std::string> added;
    for (std::size_t f = 0; f < 3; ++f) {
      Columns& columns = columns_[f];
      columns.of.clear();
      const char* at = block_.bytes.data() + 4;
      for (std::uint32_t k = 0; k < counts[f]; ++k) {
        std::string name(fields[f]);
        if (names_ == 0) {
          name += concat("[", k, "]");
        } else {
          (name += '.') += next_name(at);
        }
        const auto [entry, is_new] = channels_.try_emplace(name, static_cast<std::uint32_t>(channels_.size()));
        if (is_new) added.push_back(std::move(name));
        columns.of.push_back(entry->second);
        if (channels_.size() > max_joint_channels) {
          for (const std::string& taken_back : added) channels_.erase(taken_back);
          cursor.fail("brings the joints to more than ", max_joint_channels, " channels");
        }
      }
      columns.runs = true;
      for (std::size_t k = 1; k < columns.of.size(); ++k) columns.runs &= columns.of[k] == columns.of[0] + k;
    }
    methods_.resize(channels_.size(), Method::linear);
    stream_.add_channels(added, methods_);
    std::vector<bool> filled(channels_.size(), false);
    for (const Columns& columns : columns_) {
      for (const std::uint32_t column : columns.of) filled[column] = true;
    }
    fills_ = std::ranges::find(filled, false) == filled.end();
    counts_ = counts;
    is_placed_ = true;
  }

  // Walks the block of names, whose lengths were checked when it was read.
  std::string_view next_name(const char*& at) const {
    const auto padding = static_cast<std::size_t>(-(at - block_.bytes.data())) & 3;
    at += padding;
    const auto length = io::load<std::uint32_t>(at, block_.swapped);
    const std::string_view name(at + 4, length);
    at += 4 + length;
    return name.ends_with('\0') ? name.substr(0, length - 1) : name;
  }

  static void write(const char* from, std::uint32_t count, const Columns& columns, std::byte* row, bool swapped) {
    if (count == 0) return;
    if (columns.runs) {
      convert<double, double>(from, row + std::size_t{columns.of[0]} * 8, count, swapped);
      return;
    }
    for (std::uint32_t k = 0; k < count; ++k) {
      convert<double, double>(from + std::size_t{k} * 8, row + std::size_t{columns.of[k]} * 8, 1, swapped);
    }
  }

  messages::StreamBuilder stream_;
  std::unordered_map<std::string, std::uint32_t> channels_{};
  std::vector<Method> methods_{};
  Repeated block_{};  // the names: the count, then each name with its length
  std::uint32_t names_ = 0;
  bool is_placed_ = false, fills_ = false;
  std::array<std::uint32_t, 3> counts_{};
  std::array<Columns, 3> columns_{};
};

}  // namespace

std::unique_ptr<KnownType> make_joint_state(std::string_view type, std::string_view topic) {
  return std::make_unique<JointState>(type, topic);
}

}  // namespace robocache::ros2
