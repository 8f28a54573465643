// tf2_msgs/TFMessage: a stream for each child frame.
#include <deque>
#include <map>
#include <string>

#include "formats/ros2/known_types.h"
#include "formats/ros2/numbers.h"

namespace robocache::ros2 {
namespace {

constexpr std::size_t max_frames = 4096;
constexpr std::size_t numbers = 7;
constexpr std::size_t smallest = 8 + 4 + 4 + numbers * 8;

class Transforms : public KnownType {
 public:
  Transforms(std::string_view type, std::string_view topic) : type_(type), topic_(topic) {}

  void add(CdrReader& cursor, const messages::MessageTimes& times) override {
    cursor.collection();
    const std::uint32_t count = cursor.count(0, smallest);
    found_.clear();
    for (std::uint32_t k = 0; k < count; ++k) {
      const StdHeader header = read_header(cursor);
      const std::string_view child = cursor.string();
      if (child.size() > max_name) cursor.fail("names a frame with ", child.size(), " bytes; at most ", max_name);
      found_.push_back({header, child, cursor.numbers(8, numbers)});
    }
    check(cursor);
    for (std::size_t k = 0; k < found_.size(); ++k) {
      const Transform& transform = found_[k];
      messages::StreamBuilder& stream = stream_of(transform.child, k);
      convert<double, double>(transform.values, stream.rows(1, cursor.size()), numbers, cursor.swapped());
      stream.note(0, "parent", transform.header.frame);
      added_ += stream.commit(times, transform.header.stamp);
    }
  }

  void survey(CdrReader& cursor, std::string_view topic, std::int64_t log_time, ClockSurvey& to) override {
    cursor.collection();
    const std::uint32_t count = cursor.count(0, smallest);
    for (std::uint32_t k = 0; k < count; ++k) {
      const StdHeader header = read_header(cursor);
      std::string_view child = cursor.string();
      if (child.size() > max_name) cursor.fail("names a frame with ", child.size(), " bytes; at most ", max_name);
      cursor.numbers(8, numbers);
      if (child.starts_with('/')) child.remove_prefix(1);
      name_.assign(topic).append("/").append(child);
      to.add(name_, log_time, header.stamp);
    }
  }

  std::int64_t footprint() const override {
    const std::int64_t each = frames_.empty() ? 0 : frames_[0].stream.footprint() + std::int64_t{sizeof(Frame)};
    return std::ssize(frames_) * each + std::ssize(found_) * std::int64_t{sizeof(Transform)};
  }
  void take(std::vector<StreamBatch>& to) override {
    for (Frame& frame : frames_) frame.stream.take(to);
    added_ = 0;
  }

 private:
  struct Transform {
    StdHeader header{};
    std::string_view child{};
    const char* values = nullptr;
  };
  struct Frame {
    std::string child;
    messages::StreamBuilder stream;
  };

  void check(const CdrReader& cursor) {
    if (found_.size() + frames_.size() <= max_frames) return;
    std::map<std::string_view, bool> added;
    for (const Transform& transform : found_) {
      if (!index_.contains(transform.child)) added[transform.child] = true;
    }
    if (added.size() + frames_.size() > max_frames) cursor.fail("brings the frames to more than ", max_frames);
  }

  // `place`: the frame's place in the message. Messages tend to list the same frames in the same order.
  messages::StreamBuilder& stream_of(std::string_view child, std::size_t place) {
    if (place >= last_.size()) last_.resize(place + 1, nullptr);
    Frame*& last = last_[place];
    if (last != nullptr && last->child == child) return last->stream;
    const auto found = index_.find(child);
    if (found != index_.end()) return (last = found->second)->stream;
    std::string_view name = child;
    if (name.starts_with('/')) name.remove_prefix(1);
    StreamInfo info{.name = concat(topic_, "/", name),
                    .type = type_,
                    .dtype = DType::f64,
                    .shape = {numbers},
                    .channels = {"translation.x", "translation.y", "translation.z", "rotation.x", "rotation.y",
                                 "rotation.z", "rotation.w"},
                    .methods = {{Method::linear, 0, 3}, {Method::slerp, 3, 7}}};
    frames_.push_back({std::string(child), messages::StreamBuilder(std::move(info))});
    last = &frames_.back();
    index_.emplace(last->child, last);
    return last->stream;
  }

  std::string type_, topic_, name_{};
  std::deque<Frame> frames_{};  // in the order of first appearance; a deque, so that they never move
  std::map<std::string_view, Frame*> index_{};
  std::vector<Frame*> last_{};
  std::vector<Transform> found_{};
};

}  // namespace

std::unique_ptr<KnownType> make_transforms(std::string_view type, std::string_view topic) {
  return std::make_unique<Transforms>(type, topic);
}

}  // namespace robocache::ros2
