// A block's tile of targets: how tiles are numbered, and how one of them is searched and written.
#pragma once

#include "gpu/fault_box.h"
#include "gpu/launch.h"
#include "ops/align/cuda/arrivals.h"
#include "ops/align/cuda/vectors.h"
#include "ops/align/cuda/window.h"

namespace robocache::align_op {
namespace {

// ---- the launch, as the kernel sees it -----------------------------------------------------------------------------

struct Tiling {
  std::int32_t targets = 1;        // of a tile; a block works on one tile
  std::int32_t channel_tiles = 1;  // tiles with the same targets and different channels
  std::int32_t vectors = 0;        // of a sample, in one tile
  std::int32_t all_vectors = 0;    // of a sample
  std::uint32_t tiles_per_row = 1;
  std::uint32_t magic = 0;        // k / vectors = k * magic >> 16, for k up to the threads of a block
  std::int16_t vector_bytes = 0;  // 0: by the code of evaluate.h
  bool wide = false;              // by the code of evaluate.h, and groups of wide_channels() are aligned
  bool by_row = true;             // a tile lies in one row; else it has parts of several rows, or `whole_rows` rows
  std::int32_t whole_rows = 0;
  std::uint32_t tiles = 0;
  std::uint32_t first_block = 0;
};

// Channels of a float stream that the general kernel writes at a time.
constexpr int wide_channels(int element_size) { return element_size == 8 ? 2 : 4; }

// Streams of one launch of the general kernel.
inline constexpr int general_streams = 4;

struct GeneralLaunch {
  TargetPlan targets;
  int streams = 0;
  bool checks_follow = false;     // a launch of checks follows, which should run beside this one
  bool follows_arrivals = false;  // the launch before this one is of arrivals.cu
  Tiling tilings[general_streams];
  StreamPlan plans[general_streams];
  ArrivalLevels arrivals[general_streams];  // of as_of
  Range ranges[max_ranges];
};
static_assert(sizeof(GeneralLaunch) <= 4096, "every launch copies its arguments");
static_assert(general_streams <= CudaArrivals::most_streams);

// ---- one tile of one stream ----------------------------------------------------------------------------------------

struct Tile {
  std::int64_t row = 0, first = 0;  // by row: the row and its first target; else `first` counts over all rows
  int targets = 0;
  int channel_tile = 0;
};
__device__ inline Tile tile_of(const Tiling& tiling, const TargetPlan& targets, std::uint32_t number) {
  Tile tile;
  std::uint32_t place = number;
  if (tiling.channel_tiles > 1) {
    place = number / static_cast<std::uint32_t>(tiling.channel_tiles);
    tile.channel_tile = static_cast<int>(number - place * static_cast<std::uint32_t>(tiling.channel_tiles));
  }
  std::int64_t end = targets.count;
  if (tiling.by_row) {
    const std::uint32_t row = place / tiling.tiles_per_row;
    tile.row = row;
    tile.first = static_cast<std::int64_t>(place - row * tiling.tiles_per_row) * tiling.targets;
  } else {
    tile.first = static_cast<std::int64_t>(place) * tiling.targets;
    end *= targets.rows;
  }
  tile.targets = static_cast<int>(end - tile.first < tiling.targets ? end - tile.first : tiling.targets);
  return tile;
}

// The result of a thread's search.
struct SearchResult {
  bool mine;
  std::uint32_t b, t;
  std::int64_t tau;
  std::int64_t deadline;  // deadline_of()
  Row row;
  int upper;            // how many stamps are <= search_key
  SharedStamps stamps;  // those of the window
  Window window;
};
__device__ __forceinline__ SearchResult search_tile(const StreamPlan& s, const TargetPlan& targets,
                                                    const Tiling& tiling, const Tile& tile,
                                                    const SharedStamps& shared) {
  const bool mine = thread_of_block() < tile.targets;
  const auto row_targets = static_cast<std::uint32_t>(targets.count);
  auto b = static_cast<std::uint32_t>(tile.row);
  std::uint32_t t = static_cast<std::uint32_t>(tile.first) + threadIdx.x;
  std::uint32_t first_row = b;
  if (!tiling.by_row) {  // tiling_of() keeps this under 2^32
    first_row = static_cast<std::uint32_t>(tile.first) / row_targets;
    const std::uint32_t flat = mine ? t : static_cast<std::uint32_t>(tile.first);
    b = flat / row_targets;
    t = flat - b * row_targets;
  }
  const Row row = row_of(s, b);
  const auto count = static_cast<int>(row.count);

  // Load stamps and targets at once, so that their latencies overlap.
  Window window;
  const bool whole_rows = !tiling.by_row && tiling.whole_rows > 0;
  if (tiling.by_row && count > 0) {
    window = window_by_place(t - threadIdx.x, static_cast<std::uint32_t>(tiling.targets), row_targets, count);
  } else if (whole_rows) {
    window.count = static_cast<int>(static_cast<std::uint32_t>(tile.targets) / row_targets) * count;
  }
  StagedStamps staged;
  if (window.count > 0) {
    const std::int64_t from = whole_rows ? first_row * s.times.row_stride : row.times_offset;
    with_row_stamps(s.times, from, [&](const auto& all) { staged = StagedStamps(all, window); });
  }
  std::int64_t tau = 0;
  if (mine) tau = target(targets, b, t);
  const std::int64_t deadline = deadline_of(s, b, tau);
  const std::int64_t key = search_key(s, tau, deadline);
  int upper = -1;  // -1: not known
  SharedStamps stamps = shared;
  if (window.count > 0) {
    staged.put(shared);
    int found = 0;
    if (whole_rows) {
      stamps = shared.from(static_cast<int>(b - first_row) * count);
      window.count = count;
      found = search_some(stamps, count, key);
    } else {
      found = search_window(shared, key);
    }
    if (tells(window, found, count)) upper = window.first + found;
  }
  if (tiling.by_row && count > 0) {
    if (__syncthreads_or(mine && upper < 0)) {
      window.count = 0;
      with_row_stamps(s.times, row.times_offset, [&](const auto& all) {
        upper = static_cast<int>(search_by_time(all, count, key, tile.targets, shared));
      });
    }
  } else if (upper < 0) {
    upper = mine ? static_cast<int>(upper_bound(StampsAt{&s.times, row.times_offset}, 0, count, key)) : 0;
  }
  return {mine, b, t, tau, deadline, row, upper, stamps, window};
}

// Fast path of locate(): the target is on a sample, or between two samples with no gap between them and no other
// sample with the stamp of either. Reads the window where it has all stamps that are needed.
struct FastPlace {
  bool fast = false;
  std::int64_t since = 0, span = 1;    // as in Location; since is 0 on a sample
  std::int64_t before = 0, after = 0;  // the intervals before and after it, if `neighbours`; 0: none
};
__device__ inline FastPlace fast_place(const StreamPlan& s, const SearchResult& here, bool neighbours) {
  FastPlace place;
  const int i = here.upper - 1;
  const auto last = static_cast<int>(here.row.count) - 1;
  if (s.causal || s.as_of || i < 0) return place;
  const int from = neighbours ? max(i - 1, 0) : i;
  const int to = min(i + (neighbours ? 3 : 2), last);
  std::int64_t stamps[5];  // i - 1 .. i + 3, clamped to [from, to]
  if (from >= here.window.first && to < here.window.first + here.window.count) {
#pragma unroll
    for (int k = 0; k < 5; ++k) stamps[k] = here.stamps[min(max(i - 1 + k, from), to) - here.window.first];
  } else {
#pragma unroll
    for (int k = 0; k < 5; ++k) {
      stamps[k] = stamp(s.times, here.row.times_offset + min(max(i - 1 + k, from), to) * s.times.stride);
    }
  }
  place.since = minus(shifted_target(s, here.tau), stamps[1]);
  place.fast = place.since == 0;
  if (place.fast || i == last) return place;
  place.span = minus(stamps[2], stamps[1]);
  place.fast = place.span <= s.max_gap && (i + 2 > last || stamps[3] != stamps[2]);
  if (neighbours) {
    place.before = minus(stamps[1], stamps[0]);
    place.after = minus(stamps[3], stamps[2]);
    place.fast = place.fast && (i == 0 || place.before != 0) && (i + 3 > last || stamps[4] != stamps[3]);
  }
  return place;
}

// The samples that a copying or linear method takes for a target.
template <class C>
struct Choice {
  bool valid = false;
  std::int64_t age = no_age, index = -1;
  std::int64_t sample = -1;  // to copy, or to blend with the sample `step` after it
  std::int64_t step = 0;
  C w = 0;  // as in a Tap
};
template <class C>
__device__ Choice<C> choose(const StreamPlan& s, Method method, const Location& found) {
  Choice<C> choice;
  choice.valid = is_valid(found.place);
  choice.age = age_of(found);
  const auto w = static_cast<C>(weight(found));
  if (choice.valid) {
    choice.sample = copied_sample(method, found, w);
  } else if (!has_no_sample(found.place) && s.edge == Edge::clamp) {
    choice.sample = clamped_sample(method, found);
  }
  choice.index = choice.valid && method != Method::nearest ? found.i : choice.sample;
  if (choice.sample >= 0) return choice;
  choice.sample = found.i;
  choice.step = found.j - found.i;
  choice.w = choice.valid ? w : C(fills_nan(s) ? fill_nan : fill_zero);
  return choice;
}

template <class T>
__device__ void fast_tile(const StreamPlan& s, const ArrivalLevels& arrivals, Method method, const Tiling& tiling,
                          const Tile& tile, const SearchResult& here, Tap<T>* taps) {
  if (here.mine) {
    const StampsAt at{&s.times, here.row.times_offset};
    const RowArrivals arrival_at(s, here.row, arrivals, here.b);
    const Location found = locate(s, at, arrival_at, here.row.count, here.upper, here.tau, here.deadline);
    const auto choice = choose<compute_t<T>>(s, method, found);
    if (tile.channel_tile == 0) write_marks(s, here.b, here.t, choice.valid, choice.age, choice.index);
    const std::int64_t channel = static_cast<std::int64_t>(tile.channel_tile) * tiling.vectors * tiling.vector_bytes;
    Tap<T>& tap = taps[threadIdx.x];
    tap.a = static_cast<const char*>(s.values) + channel +
            (here.row.values_offset + choice.sample * s.sample_stride) * static_cast<std::int64_t>(sizeof(T));
    tap.b = tap.a + choice.step * s.sample_stride * static_cast<std::int64_t>(sizeof(T));
    tap.w = choice.w;
    tap.out = static_cast<char*>(s.out) + channel +
              (here.b * s.out_row_stride + here.t * s.out_target_stride) * static_cast<std::int64_t>(sizeof(T));
  }
  __syncthreads();
  if (s.out != nullptr && s.channel_count != 0) {
    const int vectors = min(tiling.vectors, tiling.all_vectors - tile.channel_tile * tiling.vectors);
    move_values(taps, tiling.vector_bytes, tile.targets, vectors,
                vectors == tiling.vectors ? tiling.magic : magic_of(vectors));
  }
}

// The stream that this block works on.
__device__ inline int stream_of(const GeneralLaunch& launch) {
  int k = 0;
  while (k + 1 < launch.streams && blockIdx.x >= launch.tilings[k + 1].first_block) ++k;
  return k;
}

}  // namespace
}  // namespace robocache::align_op
