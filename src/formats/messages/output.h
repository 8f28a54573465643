// Streams in the making: samples are added one by one and handed out in batches. A sample that turns out to be broken
// half way leaves no trace.
#pragma once

#include <robocache/formats.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace robocache::messages {

// What one message may become, at most: 4 times its size and 256 MiB.
inline constexpr std::int64_t expansion = 4, allowance = std::int64_t{256} << 20;

// Bytes at the end of which more are written.
class Buffer {
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
  std::unique_ptr<std::byte[]> release();  // the next one starts with as much room

 private:
  void grow(std::size_t bytes);

  std::unique_ptr<std::byte[]> data_{};
  std::size_t size_ = 0, capacity_ = 0, start_ = 0;
};

// When a message was seen, and which of it is its time.
struct Clock {
  TimeSource source = TimeSource::automatic;
  std::int64_t log = 0, publish = 0;

  std::pair<std::int64_t, TimeSource> choose(std::optional<std::int64_t> stamp) const {
    if (source == TimeSource::publish) return {publish, source};
    const bool stamped = stamp && (source == TimeSource::stamp || (source == TimeSource::automatic && *stamp != 0));
    return stamped ? std::pair(*stamp, TimeSource::stamp) : std::pair(log, TimeSource::log);
  }
};

class Stream {
 public:
  explicit Stream(StreamInfo info);

  const StreamInfo& info() const { return info_; }
  std::int64_t footprint() const;  // about what it holds besides samples, in bytes
  std::size_t row_bytes() const { return row_bytes_; }

  // Room for so many rows of the sample that is being added; they are there until discard(). Of a message of
  // `message_bytes`: throws Error(file) where it would grow past what a message may become.
  std::byte* rows(std::size_t count, std::size_t message_bytes);
  // Ends the sample: all rows since the last one are its own. How many bytes it takes.
  std::int64_t commit(const Clock& clock, std::optional<std::int64_t> stamp);
  void discard() { values_.truncate(committed_); }

  // Samples so far have NaN there; float64 streams only.
  void add_channels(std::span<const std::string> names, std::span<const Method> methods);
  // A fact about the messages: "varies" where they disagree. Slots are 0, 1, ... and each has one key.
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
  std::shared_ptr<const StreamInfo> shared_{};  // of what info_ is; none after a change
  std::size_t row_bytes_ = 0, committed_ = 0;
  unsigned sources_ = 0;  // a bit for each TimeSource that a time came from
  Buffer values_{};
  std::vector<std::int64_t> times_{}, arrivals_{}, lengths_{};
  std::vector<Note> notes_{};
  std::vector<StreamBatch> sealed_{};
};

// The methods of channels of these kinds: empty where align's default says the same.
std::vector<MethodRange> ranges(std::span<const Method> methods, DType dtype);

// What reads the messages of a topic.
class Messages {
 public:
  virtual ~Messages() = default;
  // Throws where the message is broken, and then nothing of it is kept.
  virtual void add(std::span<const std::byte> message, const Clock& clock) = 0;
  virtual std::vector<StreamInfo> streams() const { return {}; }  // what is known before the first message
  virtual std::int64_t bytes() const = 0;                         // that take() would hand out
  virtual std::int64_t footprint() const = 0;
  virtual void take(std::vector<StreamBatch>& to) = 0;
  // Adds the stamps of a message to `to`, under the topic's name or those of its parts. Throws where it is broken.
  virtual void survey(std::string_view topic, std::span<const std::byte> message, std::int64_t log_time,
                      ClockSurvey& to) = 0;
};

// Throws Error(file) without the topic in its sentence.
std::unique_ptr<Messages> make_ros2(const Schema& schema, std::string_view topic, TimeSource time);
std::unique_ptr<Messages> make_json(const Schema& schema, std::string_view topic);

}  // namespace robocache::messages
