// From messages to streams: what a recording holds, whatever its format.
//
//   robocache::McapRecording recording(robocache::open_bytes("drive.mcap"));
//   recording.summary().topics;                                       // no message is read
//   robocache::McapBatches batches = recording.batches();
//   while (const auto batch = batches.next()) batch->values.view();   // [N, 10], of the stream batch->info->name
//
//   robocache::Decoder decoder({.name = "sensor_msgs/msg/Imu", .encoding = "ros2msg", .text = definition}, "cdr", "/imu");
//   for (const auto& message : messages) decoder.add(message.data, message.log_time, message.publish_time);
//   for (robocache::StreamBatch& batch : decoder.take()) batch.values.view();
//
// A stream is values [N, ...] with times and arrivals in nanoseconds. It comes in batches of bounded size, so that a
// recording of any length passes through little memory; batches of one stream follow each other.
//
// ROS 2 (CDR, little and big endian, XCDR1 and plain XCDR2; schemas of ros2msg and of what rosidl writes of ros2idl). A
// topic is a stream of its name. Its channels are the numbers and bools of the message in the schema's order, named by
// path ("angular_velocity.x", "position[3]"): of one dtype where all are, else float64. Strings are none, nor is anything
// in a std_msgs/Header, nor the covariances of common types. Floats are aligned linearly, integers and bools are held, a
// geometry_msgs/Quaternion is slerped. A sequence (of numbers, or of structures with numbers in them) is a ragged stream
// of its own, "<topic>/<path>", and is held; sequences inside its elements are left out, and metadata["left_out"] names
// them. Types with a reading of their own, known by name and fields (all in sensor_msgs but TFMessage):
//   JointState        channels "position.<joint>", "velocity.<joint>", "effort.<joint>"; where a message has none: NaN
//   PointCloud2       ragged: a row is a point, a channel a field ("x", "normal[0]"); float32 where that is exact
//   Image,            ragged uint8: the bytes of data; metadata: encoding, height, width, step, is_bigendian, or format
//   CompressedImage
//   tf2_msgs/TFMessage  a stream "<topic>/<child>" for each child frame; metadata: parent
// Messages that are compressed by themselves (rosbag2 can) are unpacked. A char is unsigned, as rosidl has it.
// JSON: numbers and bools by path, in the order in which they first appear, as float64; null, and what is not there: NaN.
// A message is a sample from the first on that has a number. Up to 1024 elements of an array, and up to 4096 channels, are
// kept. The time is the first of header.stamp, stamp and timestamp, at the top of the message, that is {sec, nanosec} (also
// secs, nsec, nsecs) or a number, and is then no channel. Of numbers the first that is read and is not 0 tells the unit of
// all of its field: 1e9 to 4e9 (2001 to 2096), or that times 1e3, 1e6, 1e9, is s, ms, us, ns since 1970; else it counts from
// elsewhere (a simulation's, an uptime), and is ns where it is an integer of 1e6 or more, and s. Such ms and us are misread,
// and such ns where the first is in one of those ranges: TimeSource::log then. metadata["stamp_unit"] says what was taken;
// "stamp_doubt" that a later number has a fraction of a ns, or is past 4e9 seconds (it is then no stamp).
// Foxglove's images in JSON (schemas foxglove.CompressedImage and foxglove.RawImage) are ragged uint8, as Image above.
// metadata["time"] says what the times are: "stamp", "log", "publish", or "varies"; "frame_id": the header's.
//
// Schemas and messages may be hostile: every step is checked, a type that holds itself or is nested deeper than 32 is
// refused, as is one of over 65,536 channels, and a message becomes at most 4 times its size and 256 MiB.
#pragma once

#include <robocache/align.h>
#include <robocache/array.h>
#include <robocache/bytes.h>
#include <robocache/clock.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// Where a sample's time comes from: its header's stamp, or when it was logged, or published. automatic: the stamp where
// it is there and not zero, else the log time. Where messages have no header.stamp, `stamp` is refused (JSON, where
// stamp and timestamp are stamps as well: log time).
enum class TimeSource : std::uint8_t { automatic, stamp, log, publish };

using Metadata = std::map<std::string, std::string>;  // "encoding": "rgb8"; "varies" where messages disagree

struct StreamInfo {
  std::string name{};                   // "/odom"; a message type that holds many: "/tf/base_link"
  std::string type{};                   // "nav_msgs/msg/Odometry"
  DType dtype = DType::f64;             // mixed numeric fields are float64
  std::vector<std::int64_t> shape{};    // of a sample; of a row where samples are ragged
  std::vector<std::string> channels{};  // a name for each channel of the flattened shape, or none
  std::vector<MethodRange> methods{};   // how the channels are aligned; empty: align's default
  bool is_ragged = false;               // a sample has any number of rows: points, bytes of an image
  Metadata metadata{};
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
// per name that they carry. For one thread at a time.
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

  // Adds the stamps of a message to a survey. Reads the header only where it comes first. A decoder that surveys must not
  // be used for add(). Throws Error(file) where the message is broken.
  void survey(std::span<const std::byte> message, std::int64_t log_time, ClockSurvey& to);

  // What the schema alone tells of its streams. None where only messages do: joints by name, points, frames, JSON.
  std::vector<StreamInfo> streams() const;

  std::int64_t bytes() const noexcept;      // that take() would hand out
  std::int64_t footprint() const noexcept;  // about what it holds besides: the schema, the names it has seen
  std::vector<StreamBatch> take();          // what was added since the last time, in the order of first appearance

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A topic of a recording, without a message of it being read.
struct Topic {
  std::string name{};
  std::string type{};  // "" where there is no schema
  std::string message_encoding{};
  std::string schema_encoding{};
  std::optional<std::int64_t> messages{};  // none: the file does not say
};

struct Summary {
  std::vector<Topic> topics{};                             // by name
  std::optional<std::int64_t> messages{}, start{}, end{};  // log times of the first and the last
  std::vector<std::string> warnings{};                     // what is wrong with the file; of mcap::Reader
  std::vector<std::string> latched{};                      // topics whose publishers are all transient-local
};

// Whether "offered_qos_profiles" of rosbag2 (YAML) says that all publishers of a topic are transient-local.
bool is_transient_local(std::string_view profiles);

struct Problem {
  std::string topic{};
  std::int64_t messages = 0;  // that are left out; 0: the topic is, as it cannot be decoded
  std::string sentence{};     // of the first of them; begins with the file's name
};

// One pass over the messages of an McapRecording, which must outlive it. For one thread at a time.
class McapBatches {
 public:
  ~McapBatches();
  McapBatches(McapBatches&&) noexcept;
  McapBatches& operator=(McapBatches&&) noexcept;

  // None: that was all. About 2 MiB each, or one message; at the end what is left of each stream. What is held besides a
  // batch: 32 MiB of values, decoders of at most 4 times the file and 128 MiB (topics beyond that are left out and told),
  // and what mcap::Messages holds.
  std::optional<StreamBatch> next();
  const std::vector<Problem>& problems() const noexcept;  // so far

 private:
  friend class McapRecording;
  struct State;
  explicit McapBatches(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The streams that topics turn out to have.
struct Discovery {
  std::map<std::string, std::vector<std::string>> streams{};  // by topic, in the order of first appearance
  std::vector<Problem> problems{};
};

// An MCAP file as streams. Any thread may call it, also while others read batches of theirs.
class McapRecording {
 public:
  // Throws Error(file) where it is no MCAP; reads its summary, or scans it where it has none.
  explicit McapRecording(Bytes bytes, TimeSource time = TimeSource::automatic);
  ~McapRecording();
  McapRecording(McapRecording&&) noexcept;
  McapRecording& operator=(McapRecording&&) noexcept;

  Summary summary() const;
  // Of all topics, or of these; throws Error(value) where there is no such topic. Log times in [start, end): only chunks
  // that may have such messages are read.
  McapBatches batches(std::optional<std::vector<std::string>> topics = {}, std::uint64_t start = 0,
                      std::optional<std::uint64_t> end = {});
  // Adds the stamps of all messages, or at a glance: of those in three short stretches and of the first message of each
  // topic, by the index; all where the file has none. Broken messages are left out.
  void survey(ClockSurvey& to, bool at_a_glance = false);
  // Which streams the topics have, by the first messages of each: one pass, which ends when all have told. A topic of which
  // 1024 messages in order tell nothing has none. (JSON: the first number may come in any message.)
  Discovery discover(const std::vector<std::string>& topics);

 private:
  friend class McapBatches;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace robocache

#pragma GCC visibility pop
