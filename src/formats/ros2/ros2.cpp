// Reads ROS 2 messages: known types with their own readers, all others with a compiled program.
#include <zstd.h>

#include <memory>
#include <string>
#include <utility>

#include "formats/ros2/known_types.h"
#include "formats/ros2/program.h"

namespace robocache::messages {

using namespace ros2;

namespace {

// rosbag2 may compress each message separately. CDR begins with a zero byte, so it cannot be mistaken for zstd.
constexpr unsigned char zstd_magic[] = {0x28, 0xb5, 0x2f, 0xfd};

class Unpacker {
 public:
  // Held while a message is used. Afterwards it frees memory that only few messages need.
  class Use {
   public:
    explicit Use(Unpacker& unpacker) : unpacker_(unpacker) {}
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      if (unpacker_.room_size_ <= most_kept) return;
      unpacker_.room_ = {};
      unpacker_.room_size_ = 0;
    }

   private:
    Unpacker& unpacker_;
  };

  std::span<const std::byte> unpack(std::span<const std::byte> message) {
    if (message.size() < 4 || std::memcmp(message.data(), zstd_magic, 4) != 0) return message;
    const unsigned long long size = ZSTD_getFrameContentSize(message.data(), message.size());
    const auto most = static_cast<unsigned long long>(expansion) * message.size() + allowance;
    if (size > most || size / most_of_zstd > message.size()) {  // also true of ZSTD_CONTENTSIZE_UNKNOWN and _ERROR
      throw Error(ErrorKind::file,
                  concat("a message of ", message.size(),
                         " bytes that is compressed by zstd does not say its size, or says more than it can hold"));
    }
    if (room_size_ < size) {
      room_ = std::make_unique_for_overwrite<std::byte[]>(size);
      room_size_ = size;
    }
    const std::size_t got = ZSTD_decompress(room_.get(), room_size_, message.data(), message.size());
    if (ZSTD_isError(got) != 0) {
      throw Error(ErrorKind::file, concat("a message that is compressed by zstd: ", ZSTD_getErrorName(got)));
    }
    return {room_.get(), got};
  }

  std::int64_t footprint() const { return static_cast<std::int64_t>(room_size_); }

 private:
  static constexpr std::size_t most_kept = std::size_t{16} << 20;
  static constexpr unsigned long long most_of_zstd =
      1 << 15;  // the most bytes that one can become: a block of 4 is 128 KiB
  std::unique_ptr<std::byte[]> room_{};
  std::size_t room_size_ = 0;
};

class KnownMessages : public MessageReader {
 public:
  explicit KnownMessages(std::unique_ptr<KnownType> known) : known_(std::move(known)) {}

  void add(std::span<const std::byte> message, const MessageTimes& times) override {
    const Unpacker::Use use(unpacker_);
    CdrReader cursor(unpacker_.unpack(message));
    try {
      known_->add(cursor, times);
    } catch (...) {
      known_->discard();
      throw;
    }
  }
  std::vector<StreamInfo> streams() const override { return known_->streams(); }
  std::int64_t bytes() const override { return known_->bytes(); }
  std::int64_t footprint() const override { return known_->footprint() + unpacker_.footprint(); }
  void take(std::vector<StreamBatch>& to) override { known_->take(to); }
  void survey(std::string_view topic, std::span<const std::byte> message, std::int64_t log_time,
              ClockSurvey& to) override {
    const Unpacker::Use use(unpacker_);
    CdrReader cursor(unpacker_.unpack(message));
    known_->survey(cursor, topic, log_time, to);
  }

 private:
  std::unique_ptr<KnownType> known_;
  Unpacker unpacker_{};
};

class AnyMessages : public MessageReader {
 public:
  AnyMessages(Program program, bool is_clock) : program_(std::move(program)), is_clock_(is_clock) {
    for (StreamInfo& info : program_.streams) streams_.emplace_back(std::move(info));
    program_.streams.clear();
    footprint_ = static_cast<std::int64_t>(program_.steps.capacity() * sizeof(Step));
    for (const StreamBuilder& stream : streams_) footprint_ += stream.footprint();
  }

  void add(std::span<const std::byte> message, const MessageTimes& times) override {
    if (streams_.empty()) return;
    const Unpacker::Use use(unpacker_);
    const std::span<const std::byte> content = unpacker_.unpack(message);
    Program::StampAndFrame header;
    if (!program_.has_wstring) {
      header = run(content, 4, false);
    } else {
      // Wide characters have 4 bytes (Fast CDR 1) or 2 (Fast CDR 2). No field says which, so take what fits the message.
      try {
        header = run(content, character_, true);
      } catch (const Error&) {
        header = run(content, 6 - character_, true);
        character_ = 6 - character_;
      }
    }
    for (StreamBuilder& stream : streams_) {
      if (!header.frame.empty()) stream.note(0, "frame_id", header.frame);
      added_ += stream.commit(times, header.stamp);
    }
  }
  std::vector<StreamInfo> streams() const override {
    std::vector<StreamInfo> infos;
    for (const StreamBuilder& stream : streams_) infos.push_back(stream.info());
    return infos;
  }
  std::int64_t bytes() const override { return added_; }
  std::int64_t footprint() const override { return footprint_ + unpacker_.footprint(); }
  void take(std::vector<StreamBatch>& to) override {
    for (StreamBuilder& stream : streams_) stream.take(to);
    added_ = 0;
  }
  void survey(std::string_view topic, std::span<const std::byte> message, std::int64_t log_time,
              ClockSurvey& to) override {
    if (streams_.empty()) return;
    if (!program_.has_stamp && !is_clock_) return to.add(topic, log_time, {});
    const Unpacker::Use use(unpacker_);
    const std::span<const std::byte> content = unpacker_.unpack(message);
    if (is_clock_ || program_.steps.front().code == Code::stamp) {
      CdrReader cursor(content);
      const std::int64_t time = read_time(cursor);
      if (is_clock_) to.add_clock(log_time, time);
      return to.add(topic, log_time, is_clock_ ? std::nullopt : std::optional(time));
    }
    const Program::StampAndFrame header = run(content, program_.has_wstring ? character_ : 4, false);
    for (StreamBuilder& stream : streams_) stream.discard();
    to.add(topic, log_time, header.stamp);
  }

 private:
  Program::StampAndFrame run(std::span<const std::byte> message, std::size_t character, bool to_the_end) {
    try {
      CdrReader cursor(message);
      const Program::StampAndFrame header = program_.run(cursor, streams_, character);
      if (to_the_end && cursor.left() > 7) cursor.fail("goes on for ", cursor.left(), " bytes after its last field");
      return header;
    } catch (...) {
      for (StreamBuilder& stream : streams_) stream.discard();
      throw;
    }
  }

  Program program_;
  bool is_clock_;  // its messages are rosgraph_msgs/msg/Clock
  std::vector<StreamBuilder> streams_{};
  Unpacker unpacker_{};
  std::int64_t added_ = 0, footprint_ = 0;
  std::size_t character_ = 4;
};

// "sensor_msgs/Imu" is "sensor_msgs/msg/Imu".
std::string full_name(std::string_view name) {
  std::string result = short_name(name);
  const std::size_t slash = result.find('/');
  if (slash != std::string::npos && result.find('/', slash + 1) == std::string::npos) result.insert(slash, "/msg");
  return result;
}

}  // namespace

std::unique_ptr<MessageReader> make_ros2(const Schema& schema, std::string_view topic, TimeSource time) {
  const Definition definition =
      schema.encoding == "ros2idl" ? parse_ros2idl(schema.name, schema.text) : parse_ros2msg(schema.name, schema.text);
  const std::string type = full_name(schema.name);
  if (std::unique_ptr<KnownType> known = make_known_type(definition, type, topic)) {
    return std::make_unique<KnownMessages>(std::move(known));
  }
  Program program = compile(definition, type, topic);
  if (time == TimeSource::stamp && !program.has_stamp && !program.streams.empty()) {
    throw Error(ErrorKind::file, concat("messages of ", type, " have no header.stamp; automatic takes their log time"));
  }
  return std::make_unique<AnyMessages>(std::move(program), type == "rosgraph_msgs/msg/Clock");
}

}  // namespace robocache::messages
