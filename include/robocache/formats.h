// From messages to streams: what a recording holds, whatever its format.
//
// ```cpp no_run
// robocache::McapRecording recording(robocache::open_bytes("drive.mcap"));
// for (const robocache::Topic& topic : recording.summary().topics) std::puts(topic.name.c_str());  // no message is read
// robocache::McapBatches batches = recording.batches();
// while (const std::optional<robocache::StreamBatch> batch = batches.next()) {
//   batch->values.view();  // [N, ...], of the stream batch->info->name
// }
// ```
//
// ```cpp
// const std::string message = R"({"stamp": 1700000000.25, "angle": 0.5})";
// constexpr std::int64_t logged = 1'700'000'000'300'000'000;
// robocache::Decoder decoder({.name = "demo/Joint", .encoding = "jsonschema"}, "json", "/joint");
// decoder.add(std::as_bytes(std::span(message)), logged, logged);
// for (const robocache::StreamBatch& batch : decoder.take()) batch.values.view();  // [1, 1] float64: the channel "angle"
// ```
//
// A stream is values [N, ...] with times and arrivals in nanoseconds. It comes in batches of bounded size, so a recording of
// any length needs little memory. The batches of one stream come in the order of its samples. recorded.h puts them together.
//
// ROS 2 (CDR, little and big endian, XCDR1 and plain XCDR2; schemas of ros2msg, and ros2idl as rosidl writes it). A topic is a
// stream of its name. Its channels are the numbers and bools of the message in the schema's order, named by path
// ("angular_velocity.x", "position[3]"): of one dtype where all are of that dtype, else float64. Strings are left out, and so
// are std_msgs/Header and the covariances of common types. Floats are aligned linearly, integers and bools are held, a
// geometry_msgs/Quaternion is slerped. A sequence (of numbers, or of structures with numbers in them) is a ragged stream of its
// own, "<topic>/<path>", and is held. Sequences inside its elements are left out, and metadata["left_out"] names them. Some
// types, known by name and fields, are read in a way of their own (all in sensor_msgs but TFMessage):
//   JointState        channels "position.<joint>", "velocity.<joint>", "effort.<joint>"; where a message has none: NaN
//   PointCloud2       ragged: a row is a point, a channel a field ("x", "normal[0]"); float32 where that is exact
//   Image,            ragged uint8: the bytes of data; metadata: encoding, height, width, step, is_bigendian, or format
//   CompressedImage
//   tf2_msgs/TFMessage  a stream "<topic>/<child>" for each child frame; metadata: parent
// Messages that are compressed one by one (rosbag2 can do that) are unpacked. A char is unsigned, as rosidl has it.
//
// JSON: numbers and bools by path, in the order in which they first appear, as float64; null, and what is not there: NaN. A
// topic's samples begin with the first message that has a number. Up to 1024 elements of an array, and up to 4096 channels, are
// kept. The time is the first of header.stamp, stamp and timestamp, at the top of the message, that is {sec, nanosec} (also
// secs, nsec, nsecs) or a number; it is then no channel. Of numbers, the first that is read and is not 0 tells the unit of the
// whole field: 1e9 to 4e9 (2001 to 2096), or that times 1e3, 1e6, 1e9, is s, ms, us, ns since 1970. Other numbers count from
// elsewhere (a simulation's time, an uptime): ns where it is an integer of 1e6 or more, else s. Such a count in ms or us is
// misread, and so is one in ns whose first number lies in the ranges above: use TimeSource::log then. metadata["stamp_unit"]
// says which unit was taken; metadata["stamp_doubt"] says that a later number has a fraction of a ns, or is past 4e9 seconds
// (it is then no stamp). Foxglove's images in JSON (schemas foxglove.CompressedImage and foxglove.RawImage) are ragged uint8,
// as Image above.
//
// metadata["time"] says what the times are: "stamp", "log", "publish", or "varies". metadata["frame_id"] is the header's.
//
// Errors. A message that is not what its schema says throws Error(file), or becomes a Problem, and leaves nothing of itself.
// Limits. Schemas and messages may be hostile: every step is checked. A type that holds itself, is nested deeper than 32, or
// has over 65,536 channels is refused. A message becomes at most 4 times its size and 256 MiB. Log and publish times are within
// 2^62 ns.
// Determinism. The same messages give the same streams, bit for bit.
// Threads. Each class says which threads may use it. The values of an Array are aligned for any dtype.
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
// there is one that is not zero, else the log time. `stamp` is refused where messages have no header.stamp; JSON messages
// without a stamp have their log time.
enum class TimeSource : std::uint8_t { automatic, stamp, log, publish };

using Metadata = std::map<std::string, std::string>;  // "encoding": "rgb8"; "varies" where messages differ

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
  std::shared_ptr<const StreamInfo> info{};  // from batch to batch, channels may be added at the end, never removed
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

  // Throws Error(file) where the message is not what its schema says; nothing of it is kept then. The message is copied.
  void add(std::span<const std::byte> message, std::int64_t log_time, std::int64_t publish_time);

  // Adds the stamps of a message to a survey. Where the header comes first, nothing else is read. A decoder that surveys must
  // not be used for add(). Throws Error(file) where the message is broken.
  void survey(std::span<const std::byte> message, std::int64_t log_time, ClockSurvey& to);

  // The streams that the schema alone defines. None where only messages show them: joints by name, points, frames, JSON.
  std::vector<StreamInfo> streams() const;

  std::int64_t bytes() const noexcept;      // that take() would return
  std::int64_t footprint() const noexcept;  // the approximate bytes of all else: the schema, the names it has seen
  std::vector<StreamBatch> take();          // what was added since the last time, in the order of first appearance

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A topic of a recording, as known before a message is read.
struct Topic {
  std::string name{};
  std::string type{};  // "" where there is no schema
  std::string message_encoding{};
  std::string schema_encoding{};
  std::optional<std::int64_t> messages{};  // none: the file does not say how many
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
  std::int64_t messages = 0;  // how many are left out; 0: the whole topic, because it cannot be decoded
  std::string sentence{};     // about the first of them; begins with the file's name
};

// One pass over the messages of an McapRecording, which must outlive it. For one thread at a time.
class McapBatches {
 public:
  ~McapBatches();
  McapBatches(McapBatches&&) noexcept;
  McapBatches& operator=(McapBatches&&) noexcept;

  // None: that was all. A batch is about 2 MiB, or one message; at the end, what is left of each stream. Memory besides a
  // batch: 32 MiB of values, decoders of at most 4 times the file and 128 MiB (topics beyond that are left out, and
  // problems() says so), and what mcap::Messages holds. Throws what Bytes::read throws.
  std::optional<StreamBatch> next();
  const std::vector<Problem>& problems() const noexcept;  // so far

 private:
  friend class McapRecording;
  struct State;
  explicit McapBatches(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The streams that topics have.
struct Discovery {
  std::map<std::string, std::vector<std::string>> streams{};  // by topic, in the order of first appearance
  std::vector<Problem> problems{};
};

// An MCAP file as streams. Any thread may call it, also while others read batches of theirs.
class McapRecording {
 public:
  // Reads the summary, or scans the file where it has none. Throws Error(file) where it is no MCAP.
  explicit McapRecording(Bytes bytes, TimeSource time = TimeSource::automatic);
  ~McapRecording();
  McapRecording(McapRecording&&) noexcept;
  McapRecording& operator=(McapRecording&&) noexcept;

  Summary summary() const;
  // Messages of all topics, or of these, with log times in [start, end): only chunks that may have such messages are read.
  // Throws Error(value) where there is no such topic.
  McapBatches batches(std::optional<std::vector<std::string>> topics = {}, std::uint64_t start = 0,
                      std::optional<std::uint64_t> end = {});
  // Adds the stamps of all messages. At a glance: of the messages in three short stretches, and of the first message of each
  // topic, which the index finds; of all messages where the file has no index. Broken messages are left out.
  void survey(ClockSurvey& to, bool at_a_glance = false);
  // Which streams the topics have, as their first messages tell. One pass, which ends when every topic is known. A topic has no
  // streams where 1024 whole messages tell nothing. (JSON: the first number may come in any message.)
  Discovery discover(const std::vector<std::string>& topics);

 private:
  friend class McapBatches;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace robocache

#pragma GCC visibility pop
