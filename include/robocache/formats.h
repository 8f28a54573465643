// From messages to streams: what a recording holds, whatever its format.
//
//   robocache::Decoder decoder({.name = "sensor_msgs/msg/Imu", .encoding = "ros2msg", .text = definition}, "cdr", "/imu");
//   for (const auto& message : messages) decoder.add(message.data, message.log_time, message.publish_time);
//   for (robocache::StreamBatch& batch : decoder.take()) batch.values.view();   // [N, 10]
//
// A stream is values [N, ...] with times and arrivals in nanoseconds. It comes in batches of bounded size, so that a
// recording of any length passes through little memory; batches of one stream follow each other.
#pragma once

#include <robocache/align.h>
#include <robocache/array.h>
#include <robocache/bytes.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace robocache {

// Where a sample's time comes from: its header's stamp, or when it was logged, or published. automatic: the stamp where
// it is there and not zero, else the log time.
enum class TimeSource : std::uint8_t { automatic, stamp, log, publish };

struct StreamInfo {
  std::string name{};                             // "/odom"; a message type that holds many: "/tf/base_link"
  std::string type{};                             // "nav_msgs/msg/Odometry"
  DType dtype = DType::f64;                       // mixed numeric fields are float64
  std::vector<std::int64_t> shape{};              // of a sample; of a row where samples are ragged
  std::vector<std::string> channels{};            // a name for each channel of the flattened shape, or none
  std::vector<MethodRange> methods{};             // how the channels are aligned; empty: align's default
  bool is_ragged = false;                         // a sample has any number of rows: points, bytes of an image
  std::map<std::string, std::string> metadata{};  // "encoding": "rgb8"; "varies" where messages disagree
};

struct StreamBatch {
  std::shared_ptr<const StreamInfo> info{};  // channels may be added from one batch to the next, never taken away
  Array values{};                            // [N, shape...]; where ragged [rows of all samples, shape...]
  std::vector<std::int64_t> times{};         // [N] nanoseconds, as recorded: they may go backward
  std::vector<std::int64_t> arrivals{};      // [N] log times
  std::vector<std::int64_t> lengths{};       // [N] where ragged: rows of each sample; else empty
};

struct Schema {
  std::string name{};      // "sensor_msgs/msg/Imu"
  std::string encoding{};  // "ros2msg", "ros2idl", "jsonschema", "" for none
  std::string text{};
};

// The messages of one topic, decoded into streams: most types give one, of the topic's name; some give several, or one
// per name that they carry.
class Decoder {
 public:
  // Throws Error(file) where the encodings are unknown or the schema cannot be understood.
  Decoder(const Schema& schema, std::string_view message_encoding, std::string_view topic,
          TimeSource time = TimeSource::automatic);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Throws Error(file) where the message is not what its schema says; nothing of it is kept.
  void add(std::span<const std::byte> message, std::int64_t log_time, std::int64_t publish_time);

  std::int64_t bytes() const noexcept;  // that take() would hand out
  std::vector<StreamBatch> take();      // what was added since the last time, in the order of first appearance

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace robocache
