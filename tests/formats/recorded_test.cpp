// Logs as streams in memory: what is written here comes back, in order, and goes into align.
#include <gtest/gtest.h>
#include <robocache/error.h>
#include <robocache/mcap.h>
#include <robocache/recorded.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "sentence.h"

namespace robocache {
namespace {

using Doubles = std::vector<double>;
using Integers = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

constexpr std::int64_t start = 1'700'000'000'000'000'000;  // nanoseconds since the epoch
constexpr std::int64_t millisecond = 1'000'000;

// An MCAP file in memory.
class Log {
 public:
  std::uint16_t add_channel(const std::string& topic, const std::string& encoding, const std::string& type = "",
                            const std::string& definition = "") {
    const std::uint16_t schema = type.empty() ? std::uint16_t{0} : writer_.add_schema(type, "ros2msg", definition);
    return writer_.add_channel(topic, encoding, schema);
  }
  void write(std::uint16_t channel, std::int64_t logged, const std::string& data, std::int64_t published = 0) {
    writer_.write(mcap::Message{.channel_id = channel,
                                .log_time = static_cast<std::uint64_t>(logged),
                                .publish_time = static_cast<std::uint64_t>(published),
                                .data = std::as_bytes(std::span(data))});
  }
  McapRecording open(TimeSource time = TimeSource::automatic) {
    writer_.finish();
    return McapRecording(bytes_of(std::as_bytes(std::span(file_)), "log"), time);
  }

 private:
  std::string file_{};
  mcap::Writer writer_{[this](std::span<const std::byte> bytes) {
                         file_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                       },
                       "log"};
};

std::string json(std::int64_t stamp, const std::string& members) {
  return R"({"stamp": {"sec": )" + std::to_string(stamp / 1'000'000'000) + R"(, "nanosec": )" +
         std::to_string(stamp % 1'000'000'000) + "}, " + members + "}";
}

// A message with one sequence of float64, in CDR.
std::string sequence(const Doubles& values) {
  std::string bytes{'\0', '\1', '\0', '\0'};
  const std::uint32_t head[] = {static_cast<std::uint32_t>(values.size()), 0};
  bytes.append(reinterpret_cast<const char*>(head), values.empty() ? 4 : sizeof(head));
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  return bytes;
}

template <class T>
std::vector<T> elements(const Array& array) {
  const TensorView view = array.view();
  const auto* const data = static_cast<const T*>(view.data);
  return std::vector<T>(data, data + view.size());
}

StreamBatch made(StreamInfo info, const Doubles& values, const Integers& times, const Integers& lengths = {}) {
  StreamBatch batch;
  Integers shape{lengths.empty() ? std::ssize(times) : 0};
  for (const std::int64_t length : lengths) shape[0] += length;
  shape.insert(shape.end(), info.shape.begin(), info.shape.end());
  batch.values = Array::zeros(DType::f64, shape);
  if (!values.empty()) std::memcpy(batch.values.data.get(), values.data(), values.size() * sizeof(double));
  batch.info = std::make_shared<const StreamInfo>(std::move(info));
  batch.times = batch.arrivals = times;
  batch.lengths = lengths;
  return batch;
}

template <class... Batches>
std::vector<RecordedStream> assembled(Batches&&... batches) {
  std::vector<StreamBatch> all;
  (all.push_back(std::forward<Batches>(batches)), ...);
  return assemble(std::move(all));
}

template <class... Batches>
std::string sentence(Batches&&... batches) {
  return test::sentence([&] { assembled(std::forward<Batches>(batches)...); }, ErrorKind::value);
}

TEST(Recorded, AllSamplesInTheOrderOfTheirStamps) {
  Log log;
  const std::uint16_t joint = log.add_channel("/joint", "json"), other = log.add_channel("/other", "json");
  constexpr std::int64_t count = 60'000;  // several batches
  // The stamps of messages 1000 and 1001 have changed places.
  const auto stamp_of = [](std::int64_t k) { return start + millisecond * (k == 1000 ? 1001 : k == 1001 ? 1000 : k); };
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t stamp = stamp_of(k);
    const std::string at = std::to_string((stamp - start) / millisecond);
    log.write(joint, start + k * millisecond + 2, json(stamp, R"("x": )" + at + R"(.5, "y": [)" + at + ", -1]"));
    if (k % 100 == 0) log.write(other, start + k * millisecond + 2, json(stamp, R"("z": 7)"));
  }
  McapRecording recording = log.open();
  McapBatches pass = recording.batches();
  const std::vector<RecordedStream> recorded = assemble(pass);
  EXPECT_TRUE(pass.problems().empty());
  ASSERT_EQ(recorded.size(), 2);
  const auto& stream = *std::ranges::find(recorded, "/joint", [](const auto& each) { return each.info.name; });
  EXPECT_EQ(stream.info.channels, (Names{"x", "y[0]", "y[1]"}));
  EXPECT_EQ(stream.values.shape, (Integers{count, 3}));
  EXPECT_EQ(stream.backward, 1);
  EXPECT_TRUE(stream.offsets.empty());
  const Doubles values = elements<double>(stream.values);
  ASSERT_EQ(stream.times.size(), count);
  for (std::int64_t k = 0; k < count; ++k) {
    const auto at = static_cast<std::size_t>(k);
    ASSERT_EQ(stream.times[at], start + k * millisecond);
    ASSERT_EQ(stream.arrivals[at], stamp_of(k) + 2);  // the message with stamp k was logged where the other belongs
    const auto x = static_cast<double>(k);
    ASSERT_EQ(Doubles(&values[3 * at], &values[3 * at] + 3), (Doubles{x + 0.5, x, -1}));
  }
  McapBatches one = recording.batches({{"/other"}});
  const std::vector<RecordedStream> alone = assemble(one);
  ASSERT_EQ(alone.size(), 1);
  EXPECT_EQ(alone[0].times.size(), count / 100);
}

TEST(Recorded, GoesStraightIntoAlign) {
  Log log;
  const std::uint16_t joint = log.add_channel("/joint", "json"), gripper = log.add_channel("/gripper", "json");
  for (std::int64_t k = 0; k <= 50; ++k) {  // 1 rad/s, logged 2 ms after it was measured
    const std::int64_t stamp = start + 8 * k * millisecond;
    log.write(joint, stamp + 2 * millisecond,
              json(stamp, R"("angle": )" + std::to_string(0.008 * static_cast<double>(k))));
    if (k % 25 == 0) log.write(gripper, stamp, json(stamp, R"("open": )" + std::to_string(k)));
  }
  McapRecording recording = log.open();
  McapBatches pass = recording.batches();
  const std::vector<RecordedStream> recorded = assemble(pass);
  ASSERT_EQ(recorded.size(), 2);
  std::vector<Stream> streams;
  for (const RecordedStream& stream : recorded) streams.push_back(stream.view());
  EXPECT_EQ(streams[0].name, recorded[0].info.name);
  const Timeline timeline{.start = start, .rate = 50, .count = 21};
  const Array values = Array::zeros(DType::f64, {21, 2}), valid = Array::zeros(DType::boolean, {21, 2});
  fuse({}, streams, timeline, {}, {.values = values.view(), .valid = valid.view()});
  const std::size_t angle = recorded[0].info.name == "/joint" ? 0 : 1;
  const Doubles aligned = elements<double>(values);
  for (std::size_t k = 0; k < 21; ++k) {
    EXPECT_NEAR(aligned[2 * k + angle], 0.02 * static_cast<double>(k), 1e-9);
    EXPECT_NEAR(aligned[2 * k + 1 - angle], 2.5 * static_cast<double>(k), 1e-9);
  }
  EXPECT_EQ(elements<bool>(valid), std::vector<bool>(42, true));

  // By arrival: at 8 ms the sample of that time was not there yet.
  const Array held = Array::zeros(DType::f64, {2, 1});
  Stream causal = streams[angle];
  causal.methods = {{Method::hold, 0, 1}};
  resample({}, causal, Timeline{.start = start + 9 * millisecond, .rate = 500, .count = 2}, {.causal = true},
           {.values = held.view()});
  EXPECT_EQ(elements<double>(held), (Doubles{0, 0.008}));
}

TEST(Recorded, ChannelsThatComeLaterAreNanBefore) {
  Log log;
  const std::uint16_t topic = log.add_channel("/t", "json");
  log.write(topic, start, json(start, R"("x": 1)"));
  log.write(topic, start + 1, json(start + 1, R"("x": 2, "y": 3)"));
  McapRecording recording = log.open();
  McapBatches pass = recording.batches();
  const std::vector<RecordedStream> recorded = assemble(pass);
  ASSERT_EQ(recorded.size(), 1);
  EXPECT_EQ(recorded[0].info.channels, (Names{"x", "y"}));
  const Doubles values = elements<double>(recorded[0].values);
  EXPECT_EQ(values[0], 1);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(Doubles(values.begin() + 2, values.end()), (Doubles{2, 3}));

  // The same between batches.
  const StreamInfo narrow{.name = "s", .shape = {1}, .channels = {"a"}};
  const StreamInfo wide{.name = "s", .shape = {2}, .channels = {"a", "b"}};
  const std::vector<RecordedStream> joined = assembled(made(narrow, {1, 2}, {5, 6}), made(wide, {3, 4}, {7}));
  const Doubles all = elements<double>(joined.at(0).values);
  EXPECT_EQ(joined[0].values.shape, (Integers{3, 2}));
  EXPECT_TRUE(std::isnan(all[1]) && std::isnan(all[3]));
  EXPECT_EQ((Doubles{all[0], all[2], all[4], all[5]}), (Doubles{1, 2, 3, 4}));
}

TEST(Recorded, RaggedSamplesKeepTheirRows) {
  Log log;
  const std::uint16_t scan = log.add_channel("/scan", "cdr", "p/msg/Scan", "float64[] ranges");
  const Doubles samples[] = {{1, 2}, {}, {3}, {4, 5, 6}};
  const Integers published = {30, 10, 20, 40};
  for (std::size_t k = 0; k < 4; ++k) {
    log.write(scan, static_cast<std::int64_t>(k), sequence(samples[k]), published[k]);
  }
  McapRecording recording = log.open(TimeSource::publish);
  McapBatches pass = recording.batches();
  const std::vector<RecordedStream> recorded = assemble(pass);
  EXPECT_TRUE(pass.problems().empty());
  ASSERT_EQ(recorded.size(), 1);
  const RecordedStream& stream = recorded[0];
  EXPECT_EQ(stream.info.name, "/scan/ranges");
  EXPECT_TRUE(stream.info.is_ragged);
  EXPECT_EQ(stream.times, (Integers{10, 20, 30, 40}));
  EXPECT_EQ(stream.arrivals, (Integers{1, 2, 0, 3}));
  EXPECT_EQ(stream.backward, 1);
  EXPECT_EQ(stream.offsets, (Integers{0, 0, 1, 3, 6}));
  EXPECT_EQ(elements<double>(stream.rows), (Doubles{3, 1, 2, 4, 5, 6}));
  EXPECT_EQ(elements<std::int64_t>(stream.values), (Integers{0, 1, 2, 3}));

  const Array seen = Array::zeros(DType::i64, {3}), targets = Array::zeros(DType::i64, {3});
  const Integers wanted = {15, 29, 100};
  std::memcpy(targets.data.get(), wanted.data(), sizeof(std::int64_t) * 3);
  resample({}, stream.view(), targets.view(), {}, {.values = seen.view()});
  EXPECT_EQ(elements<std::int64_t>(seen), (Integers{0, 1, 3}));
}

TEST(Recorded, EqualTimesStayInTheirOrderAndMethodsAreKept) {
  const StreamInfo info{.name = "s", .shape = {4}, .methods = {{Method::slerp, 0, 4}}};
  const StreamInfo empty{.name = "nothing", .shape = {1}};
  const std::vector<RecordedStream> joined = assembled(made(info, {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, {7, 5, 7}),
                                                       made(empty, {}, {}), made(info, {4, 0, 0, 0}, {5}));
  ASSERT_EQ(joined.size(), 2);
  const Doubles values = elements<double>(joined[0].values);
  EXPECT_EQ((Doubles{values[0], values[4], values[8], values[12]}), (Doubles{2, 4, 1, 3}));
  EXPECT_EQ(joined[0].times, (Integers{5, 5, 7, 7}));
  EXPECT_EQ(joined[0].backward, 2);
  const Stream view = joined[0].view();
  ASSERT_EQ(view.methods.size(), 1);
  EXPECT_EQ(view.methods[0].method, Method::slerp);
  EXPECT_EQ(joined[1].values.shape, (Integers{0, 1}));
  EXPECT_EQ(joined[1].view().times.shape[0], 0);
}

TEST(Recorded, FromADecoderWithoutAFile) {
  Decoder decoder({}, "json", "/joint");
  for (std::int64_t k = 0; k < 3; ++k) {
    const std::string text = json(start + k, R"("x": )" + std::to_string(k));
    decoder.add(std::as_bytes(std::span(text)), start + 10 * k, 0);
  }
  const std::vector<RecordedStream> recorded = assemble(decoder.take());
  ASSERT_EQ(recorded.size(), 1);
  EXPECT_EQ(recorded[0].times, (Integers{start, start + 1, start + 2}));
  EXPECT_EQ(recorded[0].arrivals, (Integers{start, start + 10, start + 20}));
  EXPECT_EQ(elements<double>(recorded[0].values), (Doubles{0, 1, 2}));
  EXPECT_TRUE(assemble(std::vector<StreamBatch>{}).empty());
}

TEST(Recorded, BrokenTopicsAreToldAndOthersRead) {
  Log log;
  const std::uint16_t good = log.add_channel("/good", "json"), bad = log.add_channel("/bad", "unknown");
  log.write(good, start, json(start, R"("x": 1)"));
  log.write(good, start + 1, "{");
  log.write(bad, start, "?");
  McapRecording recording = log.open();
  McapBatches pass = recording.batches();
  const std::vector<RecordedStream> recorded = assemble(pass);
  ASSERT_EQ(recorded.size(), 1);
  EXPECT_EQ(recorded[0].times, Integers{start});
  ASSERT_EQ(pass.problems().size(), 2);
}

TEST(Recorded, BatchesThatDoNotFitAreRefused) {
  const StreamInfo info{.name = "s", .shape = {1}, .channels = {"a"}};
  const StreamInfo ragged{.name = "s", .shape = {1}, .is_ragged = true};
  const auto changed = [&](const auto& change) {
    StreamBatch batch = made(info, {1, 2}, {1, 2});
    change(batch);
    return sentence(std::move(batch));
  };
  EXPECT_EQ(changed([](StreamBatch& batch) { batch.info = nullptr; }), "assemble: a batch has no info");
  EXPECT_EQ(changed([](StreamBatch& batch) { batch.arrivals.pop_back(); }),
            "assemble: stream \"s\": a batch has not as many arrivals as times");
  EXPECT_EQ(changed([](StreamBatch& batch) {
              batch.lengths = {1, 1};
            }),
            "assemble: stream \"s\": a batch has lengths that do not go with its samples");
  EXPECT_EQ(changed([](StreamBatch& batch) { batch.values.dtype = DType::i64; }),
            "assemble: stream \"s\": a batch has values of int64 [2, 1]; expected float64 [2, 1]");
  EXPECT_EQ(changed([](StreamBatch& batch) {
              batch.values.shape = {3, 1};
            }),
            "assemble: stream \"s\": a batch has values of float64 [3, 1]; expected float64 [2, 1]");
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (const Integers& lengths : {Integers{-1, 3}, {3, 0}, {1, 2}, {1, huge}, {1}}) {
    StreamBatch batch = made(ragged, {1, 2}, {1, 2}, {1, 1});
    batch.lengths = lengths;
    EXPECT_NE(sentence(std::move(batch)).find("a batch has lengths"), std::string::npos);
  }
  EXPECT_EQ(sentence(made(info, {1}, {1}), made({.name = "s", .shape = {2}, .channels = {"b", "a"}}, {1, 2}, {1})),
            "assemble: stream \"s\": the channels of a batch are not the first channels of a later one");
  EXPECT_EQ(sentence(made({.name = "s", .shape = {2}}, {1, 2}, {1}), made(info, {1}, {1})),
            "assemble: stream \"s\": a batch has samples of float64 [2] and a later one samples of float64 [1]");
  EXPECT_EQ(sentence(made({.name = "s", .shape = {1}}, {1}, {1}), made(ragged, {1}, {1}, {1})),
            "assemble: stream \"s\": a batch has samples of float64 [1] and a later one rows of float64 [1]");
}

}  // namespace
}  // namespace robocache
