// The cpu backend: pieces of clouds to keys. Dense: keys to shards of the grids, and each shard one thread's, so no cell
// is written by two, and the points of a cell come in their own order. Sparse: points are sorted by key.
#include <memory>
#include <mutex>
#include <utility>

#include "core/parallel.h"
#include "core/simd.h"
#include "ops/voxelize/cpu.h"
#include "ops/voxelize/rows.h"
#include "robocache_config.h"

namespace robocache::voxelize_op {

#define ROBOCACHE_DECLARE(target)              \
  namespace target {                           \
  extern const PieceFunctions piece_functions; \
  }
ROBOCACHE_SIMD_TARGETS(ROBOCACHE_DECLARE)
#undef ROBOCACHE_DECLARE

namespace {

constexpr std::int64_t piece_points = 1 << 15;
constexpr std::int64_t shard_cells = 1 << 15;
constexpr std::int64_t most_shards = 1 << 12;

const PieceFunctions* functions_in_use() {
#define ROBOCACHE_ENTRY(target) &target::piece_functions,
  static constexpr const PieceFunctions* targets[] = {ROBOCACHE_SIMD_TARGETS(ROBOCACHE_ENTRY) nullptr};
#undef ROBOCACHE_ENTRY
  const int target = simd_target_in_use();
  return target < 0 ? nullptr : targets[target];
}

std::vector<Piece> pieces_of(const Plan& plan) {
  std::vector<Piece> pieces;
  for (std::int64_t c = 0; c < plan.clouds; ++c) {
    Cloud<float> cloud;
    set_extent(plan, c, cloud);
    for (std::int64_t k = 0; k < cloud.count; k += piece_points) {
      pieces.push_back({c, k, std::min(k + piece_points, cloud.count)});
    }
  }
  return pieces;
}

// Keys of all pieces, one after the other, and where each piece's begin.
struct Keys {
  std::vector<Piece> pieces;
  std::vector<std::int64_t> starts;
  std::unique_ptr<std::int64_t[]> keys;

  explicit Keys(const Plan& plan) : pieces(pieces_of(plan)), starts(pieces.size() + 1) {
    for (std::size_t n = 0; n < pieces.size(); ++n) starts[n + 1] = starts[n] + pieces[n].end - pieces[n].begin;
    keys = std::make_unique_for_overwrite<std::int64_t[]>(static_cast<std::size_t>(starts.back()));
  }

  std::span<const std::int64_t> of(std::int64_t piece) const {
    const auto n = static_cast<std::size_t>(piece);
    return {keys.get() + starts[n], static_cast<std::size_t>(starts[n + 1] - starts[n])};
  }

  // Finds them, and calls then(piece) for each. `located` as in with_point_means(), or nullptr.
  template <class Then>
  void find(const Plan& plan, LocatePiece locate, char* located, const Then& then) {
    if (plan.dropped != nullptr) std::fill_n(plan.dropped, plan.clouds * drop_reasons, 0);
    const std::int64_t point_bytes = plan.dtype == DType::f64 ? 24 : 12;
    parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const Piece& piece = pieces[static_cast<std::size_t>(n)];
        std::int64_t dropped[drop_reasons] = {};
        void* const here = located == nullptr ? nullptr : located + first_point(plan, piece) * point_bytes;
        locate(plan, piece, keys.get() + starts[static_cast<std::size_t>(n)], here, dropped);
        for (int reason = 0; plan.dropped != nullptr && reason < drop_reasons; ++reason) {
          if (dropped[reason] == 0) continue;
          std::atomic_ref<std::int64_t>(plan.dropped[piece.cloud * drop_reasons + reason]) += dropped[reason];
        }
        then(n);
      }
    });
  }

  static std::int64_t first_point(const Plan& plan, const Piece& piece) {
    Cloud<float> cloud;
    set_extent(plan, piece.cloud, cloud);
    return point_number(plan, cloud, piece.begin);
  }
};

// ---- dense ---------------------------------------------------------------------------------------------------------

class Run {
 public:
  Run(const Plan& plan, LocatePiece locate) : plan_(plan), locate_(locate), keys_(plan) {
    const std::int64_t lines = plan.grids * plan.cells / plan.shape[2];
    const std::int64_t wanted = std::clamp<std::int64_t>(plan.grids * plan.cells / shard_cells, 1, most_shards);
    lines_ = lines;
    shard_lines_ = (lines + wanted - 1) / wanted;
    shards_ = shard_lines_ == 0 ? 0 : (lines + shard_lines_ - 1) / shard_lines_;
    if (shard_lines_ != 0) span_ = std::min(shards_, plan.cells / plan.shape[2] / shard_lines_ + 2);
  }

  void run() {
    locate_all();
    scatter();
    with_feature_type(plan_, [&](auto type) {
      using F = typename decltype(type)::type;
      std::vector<int> exponents;
      if (plan_.sums()) exponents = exponents_for<F>();
      parallel_for(shards_, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t shard = begin; shard < end; ++shard) write_shard<F>(shard, exponents);
      });
    });
  }

 private:
  // And how many of each piece go to each shard of its grid.
  void locate_all() {
    places_.assign(keys_.pieces.size() * static_cast<std::size_t>(span_), 0);
    keys_.find(plan_, locate_, nullptr, [&](std::int64_t n) {
      std::int64_t* const counts = places_.data() + n * span_;
      const std::int64_t first = first_shard(keys_.pieces[static_cast<std::size_t>(n)]);
      for (const std::int64_t key : keys_.of(n)) {
        if (key >= 0) ++counts[shard_of(key) - first];
      }
    });
  }

  // Points by shard, in the order of the points.
  void scatter() {
    shard_starts_.assign(static_cast<std::size_t>(shards_) + 1, 0);
    const auto each_place = [&](const auto& f) {
      for (std::size_t n = 0; n < keys_.pieces.size(); ++n) {
        const std::int64_t first = first_shard(keys_.pieces[n]);
        for (std::int64_t k = 0; k < span_ && first + k < shards_; ++k) {
          f(static_cast<std::size_t>(first + k),
            places_[n * static_cast<std::size_t>(span_) + static_cast<std::size_t>(k)]);
        }
      }
    };
    each_place([&](std::size_t shard, std::int64_t count) { shard_starts_[shard + 1] += count; });
    for (std::size_t shard = 1; shard < shard_starts_.size(); ++shard) shard_starts_[shard] += shard_starts_[shard - 1];
    std::vector<std::int64_t> next = shard_starts_;
    each_place([&](std::size_t shard, std::int64_t& place) { next[shard] += std::exchange(place, next[shard]); });
    const std::int64_t place = shard_starts_.back();
    entries_ = std::make_unique_for_overwrite<Entry[]>(static_cast<std::size_t>(place));
    parallel_for(static_cast<std::int64_t>(keys_.pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const Piece& piece = keys_.pieces[static_cast<std::size_t>(n)];
        std::int64_t point = Keys::first_point(plan_, piece);
        std::int64_t* const places = places_.data() + n * span_;
        const std::int64_t shard = first_shard(piece);
        for (const std::int64_t key : keys_.of(n)) {
          if (key >= 0) entries_[static_cast<std::size_t>(places[shard_of(key) - shard]++)] = {key, point};
          ++point;
        }
      }
    });
  }

  template <class F>
  std::vector<int> exponents_for() {
    std::vector<std::uint32_t> largest(static_cast<std::size_t>(plan_.grids * plan_.channels));
    const auto* const features = static_cast<const F*>(plan_.features);
    parallel_for(static_cast<std::int64_t>(keys_.pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::uint32_t> here(static_cast<std::size_t>(plan_.channels));
      for (std::int64_t n = begin; n < end; ++n) {
        const Piece& piece = keys_.pieces[static_cast<std::size_t>(n)];
        Cloud<float> cloud;
        set_extent(plan_, piece.cloud, cloud);
        std::int64_t point = point_number(plan_, cloud, piece.begin);
        std::fill(here.begin(), here.end(), 0);
        for (const std::int64_t key : keys_.of(n)) {
          const std::int64_t offset = feature_offset(plan_, point++);
          if (key < 0) continue;
          for (std::int64_t c = 0; c < plan_.channels; ++c) {
            const std::uint32_t magnitude = magnitude_of(feature_value(features[offset + c * plan_.channel_stride]));
            here[static_cast<std::size_t>(c)] = std::max(here[static_cast<std::size_t>(c)], magnitude);
          }
        }
        std::uint32_t* const grid = largest.data() + cloud.grid * plan_.channels;
        for (std::int64_t c = 0; c < plan_.channels; ++c) raise(grid[c], here[static_cast<std::size_t>(c)]);
      }
    });
    return exponents_of<F>(plan_, largest);
  }

  // Counts the points of each cell, puts them side by side, writes the cells that have some.
  template <class F>
  void write_shard(std::int64_t shard, const std::vector<int>& exponents) {
    const std::int64_t first = shard * shard_lines_ * plan_.shape[2];
    const std::int64_t end = std::min((shard + 1) * shard_lines_, lines_) * plan_.shape[2];
    fill_cells(plan_, first, end);
    const Entry* const entries = entries_.get() + shard_starts_[static_cast<std::size_t>(shard)];
    const std::int64_t number =
        shard_starts_[static_cast<std::size_t>(shard) + 1] - shard_starts_[static_cast<std::size_t>(shard)];
    const bool counted = plan_.count != nullptr || plan_.occupancy != nullptr || plan_.bits != nullptr;
    if (number == 0 || (!counted && !plan_.reduces_features())) return;
    std::vector<std::int32_t> counts(static_cast<std::size_t>(end - first) + 1);
    for (std::int64_t k = 0; k < number; ++k) ++counts[static_cast<std::size_t>(entries[k].key - first) + 1];
    if (counted) {
      for (std::int64_t key = first; key < end; ++key) {
        const std::int32_t points = counts[static_cast<std::size_t>(key - first) + 1];
        if (points > 0) write_count(plan_, key, points);
      }
    }
    if (!plan_.reduces_features()) return;
    std::vector<std::int64_t> points(static_cast<std::size_t>(number));
    for (std::size_t k = 1; k < counts.size(); ++k) counts[k] += counts[k - 1];
    for (std::int64_t k = 0; k < number; ++k) {  // counts becomes the end of each cell
      points[static_cast<std::size_t>(counts[static_cast<std::size_t>(entries[k].key - first)]++)] = entries[k].point;
    }
    std::int64_t begin = 0;
    for (std::int64_t key = first; key < end; ++key) {
      const std::int64_t stop = counts[static_cast<std::size_t>(key - first)];
      if (stop > begin) {
        const int* const scales = exponents.empty() ? nullptr : exponents.data() + key / plan_.cells * plan_.channels;
        write_features<F>(plan_, key, {points.data() + begin, points.data() + stop}, scales);
      }
      begin = stop;
    }
  }

  std::int64_t shard_of(std::int64_t key) const { return key / plan_.shape[2] / shard_lines_; }
  // Of the grid that a piece goes into.
  std::int64_t first_shard(const Piece& piece) const {
    Cloud<float> cloud;
    set_extent(plan_, piece.cloud, cloud);
    return shard_of(cloud.grid * plan_.cells);
  }

  const Plan& plan_;
  LocatePiece locate_;
  Keys keys_;
  std::int64_t lines_ = 0, shard_lines_ = 0, shards_ = 0;  // a line is all cells of an x and y
  std::int64_t span_ = 0;                                  // shards that one grid touches, at most
  std::vector<std::int64_t> places_, shard_starts_;
  std::unique_ptr<Entry[]> entries_;
};

// ---- sparse --------------------------------------------------------------------------------------------------------

// Entries by the lowest `bits` bits of their keys; equal ones stay in their order. Digit by digit, from the lowest.
void sort_entries(std::unique_ptr<Entry[]>& entries, std::int64_t count, int bits) {
  constexpr int most_digit_bits = 11;  // whose counters fit the first cache
  constexpr std::int64_t chunk = 1 << 15;
  if (count < 2) return;
  const int digits = (bits + most_digit_bits - 1) / most_digit_bits;
  const int digit_bits = digits == 0 ? 0 : (bits + digits - 1) / digits;
  const std::size_t buckets = std::size_t{1} << digit_bits;
  const std::int64_t chunks = (count + chunk - 1) / chunk;
  std::vector<std::int64_t> places(static_cast<std::size_t>(chunks) * buckets);
  auto sorted = std::make_unique_for_overwrite<Entry[]>(static_cast<std::size_t>(count));
  for (int digit = 0; digit < digits; ++digit) {
    const auto bucket_of = [&](const Entry& entry) {
      return static_cast<std::size_t>(entry.key >> (digit * digit_bits)) & (buckets - 1);
    };
    const auto each_chunk = [&](const auto& f) {
      parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) {
          const std::span<const Entry> part(entries.get() + n * chunk,
                                            static_cast<std::size_t>(std::min(chunk, count - n * chunk)));
          f(part, places.data() + static_cast<std::size_t>(n) * buckets);
        }
      });
    };
    std::fill(places.begin(), places.end(), 0);
    each_chunk([&](std::span<const Entry> part, std::int64_t* here) {
      for (const Entry& entry : part) ++here[bucket_of(entry)];
    });
    std::int64_t place = 0;
    for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
      for (std::size_t n = 0; n < static_cast<std::size_t>(chunks); ++n) {
        place += std::exchange(places[n * buckets + bucket], place);
      }
    }
    each_chunk([&](std::span<const Entry> part, std::int64_t* here) {
      for (const Entry& entry : part) sorted[static_cast<std::size_t>(here[bucket_of(entry)]++)] = entry;
    });
    entries.swap(sorted);
  }
}

void find_lattice(Plan& plan, const std::vector<Piece>& pieces, BoundPiece bound) {
  std::int64_t low[3] = {farthest, farthest, farthest};
  std::int64_t high[3] = {-farthest, -farthest, -farthest};
  std::mutex mutex;
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t lowest[3] = {farthest, farthest, farthest};
    std::int64_t highest[3] = {-farthest, -farthest, -farthest};
    for (std::int64_t n = begin; n < end; ++n) bound(plan, pieces[static_cast<std::size_t>(n)], lowest, highest);
    const std::scoped_lock lock(mutex);
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = std::min(low[axis], lowest[axis]);
      high[axis] = std::max(high[axis], highest[axis]);
    }
  });
  set_lattice(plan, low, high);
}

}  // namespace

void run_cpu(const Plan& plan) {
  const PieceFunctions* const functions = functions_in_use();
  if (functions == nullptr) return run_reference(plan);
  Run(plan, functions->locate).run();
}

void run_sparse_cpu(Plan plan, const SetRows& set_rows) {
  const PieceFunctions* const functions = functions_in_use();
  if (functions == nullptr) return run_sparse_reference(plan, set_rows);
  Keys keys(plan);
  if (plan.lattice) find_lattice(plan, keys.pieces, functions->bound);
  const std::int64_t point_bytes = plan.dtype == DType::f64 ? 24 : 12;
  const auto located = std::make_unique_for_overwrite<char[]>(
      static_cast<std::size_t>(plan.locates() ? plan.all_points * point_bytes : 0));
  std::vector<std::int64_t> places(keys.pieces.size() + 1);  // where the entries of a piece begin
  keys.find(plan, functions->locate, plan.locates() ? located.get() : nullptr, [&](std::int64_t n) {
    const auto here = keys.of(n);
    places[static_cast<std::size_t>(n) + 1] =
        std::count_if(here.begin(), here.end(), [](auto key) { return key >= 0; });
  });
  for (std::size_t n = 1; n < places.size(); ++n) places[n] += places[n - 1];
  const std::int64_t count = places.back();
  auto entries = std::make_unique_for_overwrite<Entry[]>(static_cast<std::size_t>(count));
  parallel_for(static_cast<std::int64_t>(keys.pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      std::int64_t point = Keys::first_point(plan, keys.pieces[static_cast<std::size_t>(n)]);
      Entry* to = entries.get() + places[static_cast<std::size_t>(n)];
      for (const std::int64_t key : keys.of(n)) {
        if (key >= 0) *to++ = {key, point};
        ++point;
      }
    }
  });
  sort_entries(entries, count, bit_width(static_cast<std::uint64_t>(plan.grids * plan.cells - 1)));
  const Loop loop = [](std::int64_t all, std::int64_t grain, const auto& piece) { parallel_for(all, grain, piece); };
  Rows(plan, {entries.get(), static_cast<std::size_t>(count)}, located.get(), set_rows, loop).write();
}

}  // namespace robocache::voxelize_op
