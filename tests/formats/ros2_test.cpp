// Messages into streams from C++, under the sanitizers too. Every type and every sentence is in
// tests/python/test_messages.py.
#include <gtest/gtest.h>
#include <robocache/error.h>
#include <robocache/formats.h>
#include <robocache/mcap.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "sentence.h"

namespace robocache {
namespace {

// Writes CDR of either byte order.
class Cdr {
 public:
  explicit Cdr(bool is_big = false) : is_big_(is_big) {
    bytes_ = {'\0', static_cast<char>(is_big ? 0 : 1), '\0', '\0'};
  }

  template <class T>
  Cdr& add(T value) {
    while ((bytes_.size() - 4) % sizeof(T) != 0) bytes_ += '\0';
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    if (is_big_) std::reverse(std::begin(raw), std::end(raw));
    bytes_.append(raw, sizeof(T));
    return *this;
  }
  Cdr& add(const std::string& text) {
    add(static_cast<std::uint32_t>(text.size() + 1));
    bytes_ += text + '\0';
    return *this;
  }
  Cdr& add(const std::vector<double>& values) {
    add(static_cast<std::uint32_t>(values.size()));
    for (const double value : values) add(value);
    return *this;
  }
  Cdr& stamp(std::int32_t seconds, const std::string& frame) { return add(seconds).add(std::uint32_t{7}).add(frame); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  bool is_big_;
};

const std::string header = R"(
===
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
)";
const Schema point{"geometry_msgs/msg/PointStamped", "ros2msg",
                   "std_msgs/Header header\ngeometry_msgs/Point point\n===\nMSG: geometry_msgs/Point\n"
                   "float64 x\nfloat64 y\nfloat64 z" +
                       header};
const Schema scan{"p/msg/Scan", "ros2msg",
                  "std_msgs/Header header\nuint8 flag true\nint32 K=3\nfloat64[] ranges # in m\nPart[<=3] parts\n===\n"
                  "MSG: p/Part\nstring name\nint16 a\nfloat64 b\nuint8[] inner" +
                      header};
const Schema joints{
    "sensor_msgs/msg/JointState", "ros2msg",
    "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort" + header};

void add(Decoder& decoder, const std::string& message, std::int64_t time = 5) {
  // A block of its own, so that a sanitizer sees what reads past its end.
  const std::vector<char> copy(message.begin(), message.end());
  decoder.add(std::as_bytes(std::span(copy)), time, time + 1);
}

template <class F>
std::string sentence(const F& f) {
  return test::sentence(f, ErrorKind::file);
}

template <class T>
std::vector<T> values_of(const StreamBatch& batch) {
  std::vector<T> values(static_cast<std::size_t>(batch.values.view().size()));
  if (!values.empty()) std::memcpy(values.data(), batch.values.data.get(), values.size() * sizeof(T));
  return values;
}

using Doubles = std::vector<double>;
using Names = std::vector<std::string>;
using Times = std::vector<std::int64_t>;

std::string scan_message(bool is_big) {
  Cdr cdr(is_big);
  cdr.stamp(2, "laser").add(std::uint8_t{9}).add(Doubles{1.5, -2}).add(std::uint32_t{2});
  for (const int k : {1, 2}) {
    cdr.add("part" + std::to_string(k)).add(static_cast<std::int16_t>(-k)).add(0.5 * k).add(std::uint32_t{1});
    cdr.add(std::uint8_t{3});
  }
  return cdr.bytes();
}

std::string joint_message(const Names& names, const Doubles& position) {
  Cdr cdr;
  cdr.stamp(1, "base").add(static_cast<std::uint32_t>(names.size()));
  for (const std::string& name : names) cdr.add(name);
  return cdr.add(position).add(Doubles{}).add(Doubles{}).bytes();
}

TEST(Decoder, AJointsNameIsBounded) {
  Decoder decoder(joints, "cdr", "/joints");
  const std::string said = sentence([&] { add(decoder, joint_message({std::string(2000, 'j')}, {1})); });
  EXPECT_NE(said.find("names a joint with 2000 bytes; at most 1024"), std::string::npos) << said;
  add(decoder, joint_message({"a"}, {1}));
  EXPECT_EQ(decoder.take().at(0).info->channels, Names{"position.a"});
}

TEST(Decoder, Dense) {
  for (const bool is_big : {false, true}) {
    Decoder decoder(point, "cdr", "/p");
    add(decoder, Cdr(is_big).stamp(3, "map").add(1.0).add(2.0).add(3.0).bytes());
    add(decoder, Cdr(is_big).stamp(0, "map").add(4.0).add(5.0).add(6.0).bytes());
    EXPECT_EQ(decoder.bytes(), 2 * (24 + 16));
    const std::vector<StreamBatch> batches = decoder.take();
    ASSERT_EQ(batches.size(), 1);
    EXPECT_EQ(batches[0].info->name, "/p");
    EXPECT_EQ(batches[0].info->channels, (Names{"point.x", "point.y", "point.z"}));
    EXPECT_EQ(batches[0].values.shape, (Times{2, 3}));
    EXPECT_EQ(values_of<double>(batches[0]), (Doubles{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(batches[0].times, (Times{3'000'000'007, 7}));
    EXPECT_EQ(batches[0].arrivals, (Times{5, 5}));
    EXPECT_EQ(batches[0].info->metadata.at("frame_id"), "map");
    EXPECT_EQ(decoder.bytes(), 0);
    EXPECT_TRUE(decoder.take().empty());
  }
}

TEST(Decoder, WhatTheSchemaAloneTells) {
  const std::vector<StreamInfo> told = Decoder(scan, "cdr", "/scan").streams();
  ASSERT_EQ(told.size(), 3);
  EXPECT_EQ(told[0].name, "/scan");
  EXPECT_EQ(told[0].shape, (Times{1}));
  EXPECT_EQ(told[2].name, "/scan/parts");
  EXPECT_TRUE(told[2].is_ragged);
  EXPECT_EQ(told[2].channels, (Names{"a", "b"}));
  EXPECT_TRUE(Decoder(joints, "cdr", "/joints").streams().empty());
  EXPECT_TRUE(Decoder({}, "json", "/j").streams().empty());
}

TEST(Decoder, RaggedBesideDense) {
  for (const bool is_big : {false, true}) {
    Decoder decoder(scan, "cdr", "/scan");
    add(decoder, scan_message(is_big));
    add(decoder, scan_message(is_big));
    const std::vector<StreamBatch> batches = decoder.take();
    ASSERT_EQ(batches.size(), 3);
    EXPECT_EQ(batches[0].info->dtype, DType::u8);
    EXPECT_EQ(values_of<std::uint8_t>(batches[0]), (std::vector<std::uint8_t>{9, 9}));
    EXPECT_EQ(batches[1].info->name, "/scan/ranges");
    EXPECT_EQ(values_of<double>(batches[1]), (Doubles{1.5, -2, 1.5, -2}));
    EXPECT_EQ(batches[1].lengths, (Times{2, 2}));
    EXPECT_EQ(batches[2].info->name, "/scan/parts");
    EXPECT_EQ(batches[2].info->channels, (Names{"a", "b"}));
    EXPECT_EQ(batches[2].info->metadata.at("left_out"), "inner");
    EXPECT_EQ(values_of<double>(batches[2]), (Doubles{-1, 0.5, -2, 1, -1, 0.5, -2, 1}));
  }
}

TEST(Decoder, TruncatedAndChangedMessagesLeaveNoTrace) {
  std::mt19937 random(1);
  for (const auto& [schema, message] :
       {std::pair(scan, scan_message(false)), std::pair(joints, joint_message({"a", "bb"}, {1, 2}))}) {
    Decoder decoder(schema, "cdr", "/t");
    for (std::size_t size = 0; size < message.size(); ++size) {
      const std::string part = message.substr(0, size);
      EXPECT_TRUE(sentence([&] { add(decoder, part); }).starts_with("\"/t\": a message "));
    }
    EXPECT_EQ(decoder.bytes(), 0);
    EXPECT_TRUE(decoder.take().empty());
    for (int k = 0; k < 3000; ++k) {
      std::string changed = message;
      changed[random() % changed.size()] = static_cast<char>(random());
      changed[random() % changed.size()] = static_cast<char>(random());
      sentence([&] { add(decoder, changed); });
    }
    for (const StreamBatch& batch : decoder.take()) {
      std::int64_t rows = batch.info->is_ragged ? 0 : std::ssize(batch.times);
      for (const std::int64_t length : batch.lengths) rows += length;
      EXPECT_EQ(batch.values.shape[0], rows);
    }
  }
}

TEST(Decoder, JointsByName) {
  Decoder decoder(joints, "cdr", "/j");
  add(decoder, joint_message({"a", "b"}, {1, 2}));
  add(decoder, joint_message({"b", "a"}, {3, 4}));
  add(decoder, joint_message({"c"}, {5}));
  const std::vector<StreamBatch> batches = decoder.take();
  ASSERT_EQ(batches.size(), 1);
  EXPECT_EQ(batches[0].info->channels, (Names{"position.a", "position.b", "position.c"}));
  Doubles values = values_of<double>(batches[0]);
  for (double& value : values) value = std::isnan(value) ? -1 : value;
  EXPECT_EQ(values, (Doubles{1, 2, -1, 4, 3, -1, -1, -1, 5}));
}

TEST(Decoder, Json) {
  Decoder decoder({}, "json", "/j");
  add(decoder, R"({"a": 1, "b": [true, 2.5]})");
  add(decoder, R"({"b": [false], "c": {"d": -3}})");
  EXPECT_EQ(sentence([&] { add(decoder, R"({"e": 1, "f": )"); }), "\"/j\": a message is not JSON after byte 15");
  const std::vector<StreamBatch> batches = decoder.take();
  ASSERT_EQ(batches.size(), 1);
  EXPECT_EQ(batches[0].info->channels, (Names{"a", "b[0]", "b[1]", "c.d"}));
}

TEST(Decoder, RefusedSchemas) {
  const auto refused = [](const std::string& text, const std::string& encoding = "ros2msg") {
    return sentence([&] { Decoder({"p/msg/T", encoding, text}, "cdr", "/t"); });
  };
  EXPECT_EQ(refused("T[] t"), "\"/t\": type \"p/T\" holds itself");
  EXPECT_EQ(refused("Q q"), "\"/t\": type \"Q\" is not defined");
  EXPECT_EQ(refused("module p { struct T { T t; }; };", "ros2idl"), "\"/t\": type \"p/T\" holds itself");
  EXPECT_TRUE(refused("uint8 a", "protobuf").starts_with("\"/t\": messages of encoding \"cdr\""));
}

TEST(McapRecording, BatchesOfAllTopics) {
  std::string file;
  mcap::Writer writer(
      [&](std::span<const std::byte> bytes) { file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); },
      "memory");
  const auto points = writer.add_channel("/p", "cdr", writer.add_schema(point.name, point.encoding, point.text));
  const auto states = writer.add_channel("/j", "cdr", writer.add_schema(joints.name, joints.encoding, joints.text));
  const auto others = writer.add_channel("/x", "x", 0);
  const std::string joint = joint_message({"a"}, {1});
  constexpr std::uint64_t count = 100'000;
  for (std::uint64_t k = 0; k < count; ++k) {
    const std::string message = Cdr().stamp(3, "map").add(static_cast<double>(k)).add(2.0).add(3.0).bytes();
    writer.write({points, 0, k, k, std::as_bytes(std::span(message))});
    if (k % 100 == 0) writer.write({states, 0, k, k, std::as_bytes(std::span(joint))});
    if (k % 100 == 0) writer.write({others, 0, k, k, std::as_bytes(std::span(joint))});
  }
  writer.finish();

  McapRecording recording(bytes_of(std::as_bytes(std::span(file)), "memory"));
  const Summary summary = recording.summary();
  ASSERT_EQ(summary.topics.size(), 3);
  EXPECT_EQ(summary.topics[1].name, "/p");
  EXPECT_EQ(summary.topics[1].messages, std::int64_t{count});
  EXPECT_EQ(summary.end, std::int64_t{count - 1});
  McapBatches batches = recording.batches();
  Times arrivals;
  std::size_t pieces = 0;
  while (const std::optional<StreamBatch> batch = batches.next()) {
    EXPECT_LE(batch->values.view().size() * 8, 4 << 20);
    if (batch->info->name != "/p") continue;
    ++pieces;
    arrivals.insert(arrivals.end(), batch->arrivals.begin(), batch->arrivals.end());
  }
  EXPECT_GT(pieces, 1);
  ASSERT_EQ(arrivals.size(), count);
  for (std::size_t k = 0; k < count; ++k) ASSERT_EQ(arrivals[k], static_cast<std::int64_t>(k));
  ASSERT_EQ(batches.problems().size(), 1);
  EXPECT_TRUE(batches.problems()[0].sentence.starts_with("memory: \"/x\": "));
}

}  // namespace
}  // namespace robocache
