// Builds streams from messages: samples are added one by one and handed out in batches. A sample that turns out to be broken
// half way is discarded completely.
#pragma once

#include <robocache/formats.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace robocache::messages {

// The most memory that one message may become: 4 times its size and 256 MiB.
inline constexpr std::int64_t expansion = 4, allowance = std::int64_t{256} << 20;

// Bytes that grow at the end.
class GrowingBuffer {
 public:
  std::size_t size() const { return size_; }
  std::byte* data() const { return data_.get(); }
  std::byte* extend(std::size_t bytes) {
    if (bytes > capacity_ - size_) grow(bytes);
    std::byte* const at = data_.get() + size_;
    size_ += bytes;
    return at;
  }
  void truncate(std::size_t size) { size_ = size; }
  std::unique_ptr<std::byte[]> release();  // hands the bytes out; the buffer starts again with as much room

 private:
  void grow(std::size_t bytes);

  std::unique_ptr<std::byte[]> data_{};
  std::size_t size_ = 0, capacity_ = 0, start_ = 0;
};

// The times of a message, and which of them counts.
struct MessageTimes {
  TimeSource source = TimeSource::automatic;
  std::int64_t log = 0, publish = 0;

  std::pair<std::int64_t, TimeSource> choose(std::optional<std::int64_t> stamp) const {
    if (source == TimeSource::publish) return {publish, source};
    const bool stamped = stamp && (source == TimeSource::stamp || (source == TimeSource::automatic && *stamp != 0));
    return stamped ? std::pair(*stamp, TimeSource::stamp) : std::pair(log, TimeSource::log);
  }
};

class StreamBuilder {
 public:
  explicit StreamBuilder(StreamInfo info);

  const StreamInfo& info() const { return info_; }
  std::int64_t footprint() const;  // about how many bytes it takes besides samples
  std::size_t row_bytes() const { return row_bytes_; }

  // Room for rows of the sample that is being added; discard() drops them. `message_bytes`: the size of the message. Throws
  // Error(file) if the message would take more memory than a message may.
  std::byte* rows(std::size_t count, std::size_t message_bytes);
  // Ends the sample, which gets all rows since the last one. Returns how many bytes it takes.
  std::int64_t commit(const MessageTimes& times, std::optional<std::int64_t> stamp);
  void discard() { values_.truncate(committed_); }

  // The samples so far get NaN there. Only for float64 streams.
  void add_channels(std::span<const std::string> names, std::span<const Method> methods);
  // Notes a fact about the messages in the metadata; "varies" if they disagree. Slots are 0, 1, ... and each has one key.
  void note(std::size_t slot, const char* key, std::string_view value);
  void note(std::size_t slot, const char* key, std::uint64_t value);

  void take(std::vector<StreamBatch>& to);

 private:
  struct Note {
    const char* key = nullptr;
    std::string value{};
    std::uint64_t number = 0;
    bool varies = false;
  };
  void seal();
  void change(Note& note, std::string_view value);

  StreamInfo info_;
  std::shared_ptr<const StreamInfo> shared_{};  // a copy of info_; none after a change
  std::size_t row_bytes_ = 0, committed_ = 0;
  unsigned sources_ = 0;  // a bit for each TimeSource that a time came from
  GrowingBuffer values_{};
  std::vector<std::int64_t> times_{}, arrivals_{}, lengths_{};
  std::vector<Note> notes_{};
  std::vector<StreamBatch> sealed_{};
};

// The methods of channels as ranges; empty if they are align's default.
std::vector<MethodRange> ranges(std::span<const Method> methods, DType dtype);

// Reads the messages of a topic.
class MessageReader {
 public:
  virtual ~MessageReader() = default;
  // Throws if the message is broken; then nothing of it is kept.
  virtual void add(std::span<const std::byte> message, const MessageTimes& times) = 0;
  virtual std::vector<StreamInfo> streams() const { return {}; }  // those known before the first message
  virtual std::int64_t bytes() const = 0;                         // of what take() would hand out
  virtual std::int64_t footprint() const = 0;
  virtual void take(std::vector<StreamBatch>& to) = 0;
  // Adds the stamps of a message to `to`, under the topic's name or those of its parts. Throws if it is broken.
  virtual void survey(std::string_view topic, std::span<const std::byte> message, std::int64_t log_time,
                      ClockSurvey& to) = 0;
};

// Their Error(file) does not name the topic.
std::unique_ptr<MessageReader> make_ros2(const Schema& schema, std::string_view topic, TimeSource time);
std::unique_ptr<MessageReader> make_json(const Schema& schema, std::string_view topic);

}  // namespace robocache::messages
