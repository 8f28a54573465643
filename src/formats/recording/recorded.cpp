// Batches of streams, put together as streams in memory.
#include <robocache/error.h>
#include <robocache/recorded.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/interrupt.h"
#include "core/text.h"

namespace robocache {

namespace {

// Where a sample lies: so many rows of a batch, from `row` on.
struct Sample {
  std::int64_t time = 0, arrival = 0;
  const StreamBatch* batch = nullptr;
  std::int64_t row = 0, rows = 1;
};

std::int64_t row_elements(const StreamInfo& info) {
  std::int64_t count = 1;
  for (const std::int64_t size : info.shape) count *= size;
  return count;
}

[[noreturn]] void refuse(const StreamInfo& info, std::string_view what) {
  throw Error(ErrorKind::value, concat("assemble: stream ", quote(info.name), ": ", what));
}

void check(const StreamBatch& batch) {
  if (!batch.info) throw Error(ErrorKind::value, "assemble: a batch has no info");
  const StreamInfo& info = *batch.info;
  const std::size_t samples = batch.times.size();
  if (batch.arrivals.size() != samples) refuse(info, "a batch has not as many arrivals as times");
  if (batch.lengths.size() != (info.is_ragged ? samples : 0)) {
    refuse(info, "a batch has lengths that do not go with its samples");
  }
  std::int64_t rows = info.is_ragged ? 0 : static_cast<std::int64_t>(samples);
  const std::int64_t size = batch.values.shape.empty() ? -1 : batch.values.shape[0];
  for (const std::int64_t length : batch.lengths) {
    if (length < 0 || length > size - rows) refuse(info, "a batch has lengths that do not go with its samples");
    rows += length;
  }
  std::vector<std::int64_t> expected{rows};
  expected.insert(expected.end(), info.shape.begin(), info.shape.end());
  if (batch.values.dtype != info.dtype || batch.values.shape != expected) {
    refuse(info, concat("a batch has values of ", name_of(batch.values.dtype), " ", shape_text(batch.values.shape),
                        "; expected ", name_of(info.dtype), " ", shape_text(expected)));
  }
}

std::string describe(const StreamInfo& info) {
  return concat(info.is_ragged ? "rows of " : "samples of ", name_of(info.dtype), " ", shape_text(info.shape));
}

// Channels may be added at the end. They widen samples of float64.
void check_fits(const StreamInfo& before, const StreamInfo& after) {
  const std::size_t count = before.channels.size();
  if (count > after.channels.size() || !std::ranges::equal(before.channels, std::span(after.channels).first(count))) {
    refuse(after, "the channels of a batch are not the first channels of a later one");
  }
  const bool is_widened = before.dtype == DType::f64 && !before.is_ragged && before.shape.size() == 1 &&
                          after.shape.size() == 1 && before.shape[0] <= after.shape[0];
  if (before.dtype != after.dtype || before.is_ragged != after.is_ragged ||
      (before.shape != after.shape && !is_widened)) {
    refuse(after, concat("a batch has ", describe(before), " and a later one ", describe(after)));
  }
}

std::vector<Sample> samples_of(const std::vector<StreamBatch>& batches) {
  std::size_t count = 0;
  for (const StreamBatch& batch : batches) count += batch.times.size();
  std::vector<Sample> samples;
  samples.reserve(count);
  for (const StreamBatch& batch : batches) {
    std::int64_t row = 0;
    for (std::size_t k = 0; k < batch.times.size(); ++k) {
      const std::int64_t rows = batch.lengths.empty() ? 1 : batch.lengths[k];
      samples.push_back({batch.times[k], batch.arrivals[k], &batch, row, rows});
      row += rows;
    }
  }
  return samples;
}

// The rows of all samples, in the order of `samples`. Channels that a batch does not have yet: NaN.
Array gather(const std::vector<Sample>& samples, const StreamInfo& info) {
  std::int64_t rows = 0;
  for (const Sample& sample : samples) rows += sample.rows;
  std::vector<std::int64_t> shape{rows};
  shape.insert(shape.end(), info.shape.begin(), info.shape.end());
  Array all = Array::zeros(info.dtype, std::move(shape));
  const auto width = static_cast<std::size_t>(row_elements(info) * size_of(info.dtype));
  std::byte* to = all.data.get();
  for (const Sample& sample : samples) {
    const auto narrow = static_cast<std::size_t>(row_elements(*sample.batch->info) * size_of(info.dtype));
    const auto bytes = static_cast<std::size_t>(sample.rows) * narrow;
    if (bytes > 0)
      std::memcpy(to, sample.batch->values.data.get() + static_cast<std::size_t>(sample.row) * narrow, bytes);
    to += bytes;
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    for (std::size_t at = narrow; at < width; at += sizeof(nan), to += sizeof(nan)) std::memcpy(to, &nan, sizeof(nan));
  }
  return all;
}

RecordedStream join(const std::vector<StreamBatch>& batches) {
  RecordedStream stream;
  stream.info = *batches.back().info;
  for (const StreamBatch& batch : batches) check_fits(*batch.info, stream.info);
  std::vector<Sample> samples = samples_of(batches);
  for (std::size_t k = 1; k < samples.size(); ++k) stream.backward += samples[k].time < samples[k - 1].time ? 1 : 0;
  check_interrupt();
  if (stream.backward > 0) std::ranges::stable_sort(samples, {}, &Sample::time);
  check_interrupt();
  stream.times.reserve(samples.size());
  stream.arrivals.reserve(samples.size());
  for (const Sample& sample : samples) {
    stream.times.push_back(sample.time);
    stream.arrivals.push_back(sample.arrival);
  }
  Array rows = gather(samples, stream.info);
  if (!stream.info.is_ragged) {
    stream.values = std::move(rows);
    return stream;
  }
  stream.rows = std::move(rows);
  stream.offsets.reserve(samples.size() + 1);
  stream.offsets.push_back(0);
  for (const Sample& sample : samples) stream.offsets.push_back(stream.offsets.back() + sample.rows);
  stream.values = Array::zeros(DType::i64, {std::ssize(samples)});
  auto* const numbers = static_cast<std::int64_t*>(stream.values.view().data);
  std::iota(numbers, numbers + samples.size(), std::int64_t{0});
  return stream;
}

// Batches by stream, in the order of first appearance.
class Streams {
 public:
  void add(StreamBatch batch) {
    check_interrupt();
    check(batch);
    const auto [entry, is_new] = place_.try_emplace(batch.info->name, streams_.size());
    if (is_new) streams_.emplace_back();
    streams_[entry->second].push_back(std::move(batch));
  }
  std::vector<RecordedStream> finish() {
    std::vector<RecordedStream> joined;
    joined.reserve(streams_.size());
    for (std::vector<StreamBatch>& batches : streams_) {
      joined.push_back(join(batches));
      batches = std::vector<StreamBatch>{};  // so that at most one stream is held twice
    }
    return joined;
  }

 private:
  std::unordered_map<std::string, std::size_t> place_{};
  std::vector<std::vector<StreamBatch>> streams_{};
};

}  // namespace

Stream RecordedStream::view() const {
  const std::int64_t shape[] = {std::ssize(times)};
  return {.values = values.view(),
          .times = TensorView::contiguous(times.data(), DType::i64, shape),
          .arrivals = TensorView::contiguous(arrivals.data(), DType::i64, shape),
          .methods = info.is_ragged ? std::vector<MethodRange>{} : info.methods,
          .name = info.name};
}

std::vector<RecordedStream> assemble(McapBatches& batches) {
  Streams streams;
  while (std::optional<StreamBatch> batch = batches.next()) streams.add(std::move(*batch));
  return streams.finish();
}

std::vector<RecordedStream> assemble(std::vector<StreamBatch> batches) {
  Streams streams;
  for (StreamBatch& batch : batches) streams.add(std::move(batch));
  return streams.finish();
}

}  // namespace robocache
