// RoboCache from somebody else's project: a log is written, and aligned at 50 Hz twice: straight from the file, and out of the
// memory of a cache that it was read into.
#include <robocache/robocache.h>

#include "expect.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rc = robocache;

namespace {

constexpr std::int64_t start = 1'700'000'000'000'000'000;  // nanoseconds since the epoch
constexpr std::int64_t millisecond = 1'000'000;

// A joint that turns at 1 rad/s, logged every 8 ms, 2 ms after it was measured.
void write_log(const std::filesystem::path& path) {
  rc::mcap::Writer writer(path);
  const std::uint16_t channel = writer.add_channel("/joint", "json");
  for (std::int64_t k = 0; k <= 50; ++k) {
    const std::int64_t stamp = start + 8 * k * millisecond;
    const std::string text = R"({"header": {"stamp": {"sec": )" + std::to_string(stamp / 1'000'000'000) +
                             R"(, "nanosec": )" + std::to_string(stamp % 1'000'000'000) + R"(}}, "angle": )" +
                             std::to_string(0.008 * static_cast<double>(k)) + "}";
    const auto logged = static_cast<std::uint64_t>(stamp + 2 * millisecond);
    writer.write(rc::mcap::Message{
        .channel_id = channel, .log_time = logged, .publish_time = logged, .data = std::as_bytes(std::span(text))});
  }
  writer.finish();
}

void build(const std::filesystem::path& log, const std::filesystem::path& cache) {
  rc::McapRecording recording(rc::open_bytes(log));
  rc::CacheWriter writer(cache);
  writer.begin_episode({.name = "episode-0", .task = "turn"});
  rc::McapBatches batches = recording.batches();
  while (const std::optional<rc::StreamBatch> batch = batches.next()) writer.append(*batch);
  expect(batches.problems().empty(), "every message can be decoded");
  writer.end_episode();
  writer.close();
}

const rc::Timeline timeline{.start = start, .rate = 50, .count = 21};

void align_log(const std::filesystem::path& log, const rc::Aligned& output) {
  rc::McapRecording recording(rc::open_bytes(log));
  rc::McapBatches batches = recording.batches({{"/joint"}});
  const std::vector<rc::RecordedStream> recorded = rc::assemble(batches);
  expect(batches.problems().empty(), "every message can be decoded");
  rc::resample({}, recorded.at(0).view(), timeline, {}, output);
}

}  // namespace

int main() {
  std::array<double, 21> angles{};
  std::array<bool, 21> valid{};
  const rc::Array straight = rc::Array::zeros(rc::DType::f64, {21, 1});
  try {
    std::filesystem::remove_all("turn-cache");
    write_log("turn.mcap");
    align_log("turn.mcap", {.values = straight.view()});
    build("turn.mcap", "turn-cache");

    const rc::Cache cache("turn-cache");
    const rc::StreamInfo& info = cache.streams().at(0);
    const rc::CachedStream joint = cache.read(0, 0);  // views of the file, no copy
    std::printf("%s: %lld samples of %s\n", info.name.c_str(),
                static_cast<long long>(cache.episodes().at(0).streams.at(0).samples), info.channels.at(0).c_str());
    const rc::Stream stream{.values = joint.values,
                            .times = joint.times,
                            .arrivals = joint.arrivals,
                            .methods = info.methods,
                            .name = info.name};
    rc::resample({}, stream, timeline, {},
                 {.values = rc::TensorView::contiguous(angles.data(), rc::DType::f64, {21, 1}),
                  .valid = rc::TensorView::contiguous(valid.data(), rc::DType::boolean, {21})});
    expect(rc::verify_cache("turn-cache", false).problems.empty(), "what was written is whole");
  } catch (const rc::Error& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
  for (std::size_t k = 0; k < angles.size(); ++k) {
    expect(std::abs(angles[k] - 0.02 * static_cast<double>(k)) < 1e-9, "the stamps are the time, not the log times");
    expect(valid[k], "the log covers the whole timeline");
  }
  const auto* const read = static_cast<const double*>(straight.view().data);
  expect(std::equal(angles.begin(), angles.end(), read), "with and without a cache the bits are the same");

  // A file that is no MCAP gets a sentence, and the library works on.
  try {
    rc::McapRecording(rc::open_bytes("turn-cache/manifest.json"));
    expect(false, "a file that is no MCAP must be refused");
  } catch (const rc::Error& error) {
    std::printf("refused as it must: %s\n", error.what());
    expect(error.kind() == rc::ErrorKind::file, "a file that is no MCAP is an Error of the kind file");
  }
  return mismatches == 0 ? 0 : 1;
}
