// The cpu backend: pieces of clouds to keys, keys to shards of the grids, and each shard one thread's. So no cell is
// written by two, and the points of a cell come in their own order.
#include <atomic>
#include <memory>
#include <utility>

#include "core/parallel.h"
#include "core/simd.h"
#include "ops/voxelize/cells.h"
#include "ops/voxelize/cpu.h"
#include "robocache_config.h"

namespace robocache::voxelize_op {

#define ROBOCACHE_DECLARE(target)                                                                          \
  namespace target {                                                                                       \
  void locate_piece(const Plan&, const Piece&, std::int64_t* keys, std::int64_t (&dropped)[drop_reasons]); \
  }
ROBOCACHE_SIMD_TARGETS(ROBOCACHE_DECLARE)
#undef ROBOCACHE_DECLARE

namespace {

constexpr std::int64_t piece_points = 1 << 15;
constexpr std::int64_t shard_cells = 1 << 15;
constexpr std::int64_t most_shards = 1 << 12;

LocatePiece locate_in_use() {
#define ROBOCACHE_ENTRY(target) target::locate_piece,
  static constexpr LocatePiece targets[] = {ROBOCACHE_SIMD_TARGETS(ROBOCACHE_ENTRY) nullptr};
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

void raise(std::uint32_t& largest, std::uint32_t here) {
  std::atomic_ref<std::uint32_t> shared(largest);
  std::uint32_t known = shared.load(std::memory_order_relaxed);
  while (here > known && !shared.compare_exchange_weak(known, here, std::memory_order_relaxed)) {
  }
}

class Run {
 public:
  Run(const Plan& plan, LocatePiece locate) : plan_(plan), locate_(locate), pieces_(pieces_of(plan)) {
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
      if (plan_.sum != nullptr || plan_.mean != nullptr) exponents = exponents_for<F>();
      parallel_for(shards_, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t shard = begin; shard < end; ++shard) write_shard<F>(shard, exponents);
      });
    });
  }

 private:
  // Keys of all pieces, one after the other, and how many of each piece go to each shard of its grid.
  void locate_all() {
    starts_.resize(pieces_.size() + 1);
    for (std::size_t n = 0; n < pieces_.size(); ++n) starts_[n + 1] = starts_[n] + pieces_[n].end - pieces_[n].begin;
    keys_ = std::make_unique_for_overwrite<std::int64_t[]>(static_cast<std::size_t>(starts_.back()));
    places_.assign(pieces_.size() * static_cast<std::size_t>(span_), 0);
    if (plan_.dropped != nullptr) std::fill_n(plan_.dropped, plan_.clouds * drop_reasons, 0);
    parallel_for(static_cast<std::int64_t>(pieces_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const Piece& piece = pieces_[static_cast<std::size_t>(n)];
        std::int64_t dropped[drop_reasons] = {};
        std::int64_t* const keys = keys_.get() + starts_[static_cast<std::size_t>(n)];
        locate_(plan_, piece, keys, dropped);
        for (int reason = 0; plan_.dropped != nullptr && reason < drop_reasons; ++reason) {
          if (dropped[reason] == 0) continue;
          std::atomic_ref<std::int64_t>(plan_.dropped[piece.cloud * drop_reasons + reason]) += dropped[reason];
        }
        std::int64_t* const counts = places_.data() + n * span_;
        const std::int64_t first = first_shard(piece);
        for (std::int64_t k = 0; k < piece.end - piece.begin; ++k) {
          if (keys[k] >= 0) ++counts[shard_of(keys[k]) - first];
        }
      }
    });
  }

  // Points by shard, in the order of the points.
  void scatter() {
    shard_starts_.assign(static_cast<std::size_t>(shards_) + 1, 0);
    const auto each_place = [&](const auto& f) {
      for (std::size_t n = 0; n < pieces_.size(); ++n) {
        const std::int64_t first = first_shard(pieces_[n]);
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
    parallel_for(static_cast<std::int64_t>(pieces_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const Piece& piece = pieces_[static_cast<std::size_t>(n)];
        Cloud<float> cloud;
        set_extent(plan_, piece.cloud, cloud);
        const std::int64_t first = point_number(plan_, cloud, piece.begin);
        const std::int64_t* const keys = keys_.get() + starts_[static_cast<std::size_t>(n)];
        std::int64_t* const places = places_.data() + n * span_;
        const std::int64_t shard = first_shard(piece);
        for (std::int64_t k = 0; k < piece.end - piece.begin; ++k) {
          if (keys[k] < 0) continue;
          entries_[static_cast<std::size_t>(places[shard_of(keys[k]) - shard]++)] = {keys[k], first + k};
        }
      }
    });
  }

  template <class F>
  std::vector<int> exponents_for() {
    std::vector<std::uint32_t> largest(static_cast<std::size_t>(plan_.grids * plan_.channels));
    const auto* const features = static_cast<const F*>(plan_.features);
    parallel_for(static_cast<std::int64_t>(pieces_.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::uint32_t> here(static_cast<std::size_t>(plan_.channels));
      for (std::int64_t n = begin; n < end; ++n) {
        const Piece& piece = pieces_[static_cast<std::size_t>(n)];
        Cloud<float> cloud;
        set_extent(plan_, piece.cloud, cloud);
        const std::int64_t* const keys = keys_.get() + starts_[static_cast<std::size_t>(n)];
        std::fill(here.begin(), here.end(), 0);
        for (std::int64_t k = piece.begin; k < piece.end; ++k) {
          if (keys[k - piece.begin] < 0) continue;
          const std::int64_t offset = feature_offset(plan_, point_number(plan_, cloud, k));
          for (std::int64_t c = 0; c < plan_.channels; ++c) {
            const std::uint32_t magnitude = magnitude_of(feature_value(features[offset + c * plan_.channel_stride]));
            here[static_cast<std::size_t>(c)] = std::max(here[static_cast<std::size_t>(c)], magnitude);
          }
        }
        std::uint32_t* const grid = largest.data() + cloud.grid * plan_.channels;
        for (std::int64_t c = 0; c < plan_.channels; ++c) raise(grid[c], here[static_cast<std::size_t>(c)]);
      }
    });
    return exponents_of(plan_, largest);
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

  struct Entry {
    std::int64_t key, point;
  };
  const Plan& plan_;
  LocatePiece locate_;
  std::vector<Piece> pieces_;
  std::int64_t lines_ = 0, shard_lines_ = 0, shards_ = 0;  // a line is all cells of an x and y
  std::int64_t span_ = 0;                                  // shards that one grid touches, at most
  std::vector<std::int64_t> starts_, places_, shard_starts_;
  std::unique_ptr<std::int64_t[]> keys_;
  std::unique_ptr<Entry[]> entries_;
};

}  // namespace

void run_cpu(const Plan& plan) {
  const LocatePiece locate = locate_in_use();
  if (locate == nullptr) return run_reference(plan);
  Run(plan, locate).run();
}

}  // namespace robocache::voxelize_op
