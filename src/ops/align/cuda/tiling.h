// How a call is cut into tiles, on the host: which kernel a stream can take, how wide its vectors are, and how many targets
// and channels a tile has.
#pragma once

#include <algorithm>

#include "gpu/device.h"
#include "ops/align/cuda/tile.h"

namespace robocache::align_op {
namespace {

// Stamps of a window without its margins on both sides.
constexpr std::int64_t window_room = tuning::window_stamps - 2 * tuning::narrow_margin - 3;

// Whether the tiles of a stream load all its stamps into their windows, each segment once, so that they can check
// them.
bool checks_in_tiles(const StreamPlan& s, const TargetPlan& targets, const Tiling& tiling) {
  if (tiling.tiles == 0 || s.rows.data != nullptr) return false;
  if (!tiling.by_row) return tiling.whole_rows > 0;
  if (s.samples > std::int64_t{1} << 21) return false;  // a window's position is computed as a float
  return s.samples < tuning::window_stamps || window_room * targets.count >= s.samples * tiling.targets;
}

// The largest vector, in bytes, to which all addresses of the stream and its output are aligned; 0 where values are
// not dense or change their dtype.
int aligned_bytes(const StreamPlan& s) {
  const bool dense = (s.channel_count <= 1 || (s.channels.rank == 1 && s.channels.stride[0] == 1)) &&
                     (s.channel_count <= 1 || (s.out_channels.rank == 1 && s.out_channels.stride[0] == 1));
  if (s.out_dtype != s.dtype || (s.out != nullptr && !dense)) return 0;
  const int size = size_of(s.dtype);
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(s.values) | reinterpret_cast<std::uintptr_t>(s.out);
  for (const std::int64_t elements :
       {s.row_stride, s.sample_stride, s.channel_count, s.out_row_stride, s.out_target_stride}) {
    bits |= static_cast<std::uint64_t>(elements * size);
  }
  for (const int bytes : {16, 8, 4}) {
    if (bytes > size && bits % static_cast<unsigned>(bytes) == 0) return bytes;
  }
  return size;
}

// aligned_bytes() of a stream that is moved by vectors; 0 where the stream needs the code of evaluate.h.
int vector_bytes(const StreamPlan& s, std::span<const Range> ranges) {
  if (s.range_count != 1 || (s.on_nan == OnNan::skip && is_float(s.dtype))) return 0;
  const Method method = ranges[static_cast<std::size_t>(s.first_range)].method;
  if (is_bin(method) || method == Method::slerp || (!s.causal && method > Method::nearest)) return 0;
  return aligned_bytes(s);
}

// Whether the plain kernel can take the stream: dense int64 stamps, no arrivals, no as_of, marks that share their strides.
bool is_plain(const StreamPlan& s, const TargetPlan& targets) {
  const Stamps& list = targets.timeline ? targets.starts : targets.times;
  if (s.as_of || (list.data != nullptr && list.dtype != DType::i64)) return false;
  if (s.times.dtype != DType::i64 || s.times.stride != 1 || s.arrivals.data != nullptr) return false;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (s.segments > most || targets.rows > most || targets.count > most) return false;
  if (s.sample_stride < 0 || s.sample_stride * size_of(s.dtype) > most) return false;
  if (!targets.timeline && targets.times.stride != 1) return false;
  for (const Integers& integers : {s.lengths, s.offsets, s.rows}) {
    if (integers.data != nullptr && integers.stride != 1) return false;
  }
  const StreamPlan::Mark* same = nullptr;
  for (const StreamPlan::Mark* mark : {&s.valid, &s.age, &s.index}) {
    if (mark->data == nullptr) continue;
    if (same != nullptr && (mark->row_stride != same->row_stride || mark->target_stride != same->target_stride))
      return false;
    same = mark;
  }
  return true;
}

std::int64_t vectors_of(const StreamPlan& s, int vector_bytes) {
  const std::int64_t unit = vector_bytes == 0 ? 1 : vector_bytes / size_of(s.dtype);
  return s.out == nullptr ? 1 : std::max<std::int64_t>(1, s.channel_count / unit);
}

// How many vectors a tile should have, given the vectors of the launch: as many as make one wave of blocks, within
// limits.
std::int64_t vectors_of_tile(std::int64_t vectors, std::int64_t processors) {
  const std::int64_t one_wave = tuning::blocks_per_processor * processors;
  std::int64_t per_tile = std::int64_t{tuning::threads} * tuning::fewest_vectors;
  while (per_tile < std::int64_t{tuning::threads} * tuning::most_vectors && vectors > per_tile * one_wave) {
    per_tile *= 2;
  }
  while (per_tile > tuning::threads && vectors < per_tile * processors) per_tile /= 2;
  return per_tile;
}

Tiling tiling_of(const StreamPlan& s, const TargetPlan& targets, int vector_bytes, std::int64_t per_tile,
                 std::int64_t processors) {
  Tiling tiling;
  tiling.vector_bytes = static_cast<std::int16_t>(vector_bytes);
  const std::int64_t all = vectors_of(s, vector_bytes);
  std::int64_t widest = per_tile;
  const std::int64_t samples = s.offsets.data != nullptr ? divide_up(s.samples, s.segments) : s.samples;
  if (vector_bytes == 0) {
    const int together = wide_channels(size_of(s.dtype));
    tiling.wide = is_float(s.dtype) && aligned_bytes(s) >= together * size_of(s.dtype);
    std::int64_t steps = tuning::general_steps;
    if (s.bins) {
      steps =
          std::clamp<std::int64_t>(tuning::bin_samples * targets.count / std::max<std::int64_t>(samples, 1), 1, steps);
    }
    per_tile = steps * tuning::threads * (tiling.wide ? together : 1);
    widest = tuning::general_channels;
  }
  tiling.vectors = static_cast<std::int32_t>(std::min(all, widest));
  tiling.channel_tiles = static_cast<std::int32_t>(divide_up(all, tiling.vectors));
  tiling.magic = magic_of(tiling.vectors);
  tiling.all_vectors = static_cast<std::int32_t>(all);
  const std::int64_t cells = targets.rows * targets.count;
  std::int64_t wanted = std::clamp<std::int64_t>(per_tile / tiling.vectors, 1, tuning::threads);
  while (vector_bytes == 0 && wanted > 4 && cells * tiling.channel_tiles < wanted * processors) wanted /= 2;
  // In a long row: as many targets as have their stamps in one window, if that is not too few.
  const std::int64_t fit = samples < tuning::window_stamps ? wanted : window_room * targets.count / samples;
  if (fit >= tuning::fewest_targets) wanted = std::min(wanted, fit);
  // A row is cut into tiles of about equal size. Of short rows a tile has several, and, where they are contiguous,
  // all their stamps in its window.
  tiling.targets =
      static_cast<std::int32_t>(std::max<std::int64_t>(1, divide_up(targets.count, divide_up(targets.count, wanted))));
  tiling.by_row = targets.rows == 1 || 2 * targets.count > wanted || cells >= std::int64_t{1} << 32;
  if (!tiling.by_row) {
    tiling.targets = static_cast<std::int32_t>(wanted);
    const bool ragged = s.lengths.data != nullptr || s.offsets.data != nullptr || s.rows.data != nullptr;
    const bool together = s.batched && !ragged && s.times.row_stride == s.samples * s.times.stride;
    if (together && samples > 0 && targets.count > 0) {
      const std::int64_t rows = std::min(wanted / targets.count, (tuning::window_stamps - 2) / samples);
      tiling.whole_rows = static_cast<std::int32_t>(rows);
      if (rows > 0) tiling.targets = static_cast<std::int32_t>(rows * targets.count);
    }
  }
  tiling.tiles_per_row = static_cast<std::uint32_t>(divide_up(targets.count, tiling.targets));
  const std::int64_t tiles =
      tiling.channel_tiles * (tiling.by_row ? targets.rows * tiling.tiles_per_row : divide_up(cells, tiling.targets));
  if (tiles >= std::int64_t{1} << 31) {
    throw Error(ErrorKind::value, "the call is too large for one launch: split the rows");
  }
  tiling.tiles = static_cast<std::uint32_t>(tiles);
  return tiling;
}

}  // namespace
}  // namespace robocache::align_op
