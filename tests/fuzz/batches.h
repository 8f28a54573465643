// What must hold of every batch that a decoder hands out, whatever its messages were.
#pragma once

#include <robocache/formats.h>

#include <cstdlib>
#include <numeric>

namespace robocache::fuzz {

inline void require(bool holds) {
  if (!holds) std::abort();
}

inline void visit(const StreamBatch& batch) {
  const StreamInfo& info = *batch.info;
  require(!batch.times.empty() && batch.times.size() == batch.arrivals.size());
  require(batch.lengths.size() == (info.is_ragged ? batch.times.size() : 0));
  const auto samples = static_cast<std::int64_t>(batch.times.size());
  const std::int64_t rows =
      info.is_ragged ? std::accumulate(batch.lengths.begin(), batch.lengths.end(), std::int64_t{0}) : samples;
  std::vector<std::int64_t> shape{rows};
  shape.insert(shape.end(), info.shape.begin(), info.shape.end());
  require(batch.values.shape == shape && batch.values.dtype == info.dtype);
  require(info.shape.empty() || (info.shape.size() == 1 && info.shape[0] == std::ssize(info.channels)));
  std::int64_t covered = 0;
  for (const MethodRange& range : info.methods) {
    require(range.begin == covered && range.end > range.begin);
    require(range.method != Method::slerp || (range.end - range.begin) % 4 == 0);
    covered = range.end;
  }
  require(info.methods.empty() || covered == (info.shape.empty() ? 1 : info.shape[0]));
  // The sum is taken so that the sanitizers see each byte.
  unsigned sum = 0;
  const std::int64_t bytes = batch.values.view().size() * size_of(info.dtype);
  for (std::int64_t k = 0; k < bytes; ++k) sum += static_cast<unsigned>(batch.values.data[k]);
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

}  // namespace robocache::fuzz
