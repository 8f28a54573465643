// The cpu backend. Counts: pieces of the points are partitioned by shard, a shard being some of the cells, and each shard
// belongs to one thread. Features and sparse results: points are sorted by key into voxels. voxel_downsample without features:
// a bitmap of the cells instead of a sort.
#include <atomic>
#include <bit>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "ops/voxelize/cpu/cpu.h"
#include "ops/voxelize/sparse_rows.h"

namespace robocache::voxelize_op {

ROBOCACHE_SIMD_DISPATCH(cpu_functions_in_use)

namespace {

// Keys of a piece fit the second cache. Not swept.
constexpr std::int64_t piece_points = 1 << 14;

// The points of all clouds, one cloud after the other, cut into pieces. Clouds may be many and small, so a piece has parts.
class Pieces {
 public:
  Pieces(const Plan& plan, const CpuFunctions& functions)
      : plan_(plan), functions_(functions), starts_(static_cast<std::size_t>(plan.clouds) + 1) {
    for (std::int64_t c = 0; c < plan.clouds; ++c) {
      starts_[static_cast<std::size_t>(c) + 1] = starts_[static_cast<std::size_t>(c)] + extent(c).count;
    }
  }

  std::int64_t points() const { return starts_.back(); }
  std::int64_t count() const { return (points() + piece_points - 1) / piece_points; }
  std::int64_t begin(std::int64_t piece) const { return piece * piece_points; }
  std::int64_t end(std::int64_t piece) const { return std::min((piece + 1) * piece_points, points()); }

  // Calls f(part) for all of a piece.
  template <class F>
  void parts(std::int64_t piece, const F& f) const {
    std::int64_t at = begin(piece);
    for (auto c = std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1; at < end(piece); ++c) {
      const std::int64_t first = starts_[static_cast<std::size_t>(c)];
      const std::int64_t stop = std::min(starts_[static_cast<std::size_t>(c) + 1], end(piece));
      if (at < stop) f(Part{c, at - first, stop - first});
      at = stop;
    }
  }

  // Keys of a piece. Calls then(part, number of its first point, its keys). `located` as in with_point_means(), or nullptr.
  template <class Then>
  void locate(std::int64_t piece, std::int64_t* keys, char* located, const Then& then) const {
    parts(piece, [&](const Part& part) {
      const std::int64_t first = point_number(plan_, extent(part.cloud), part.begin);
      std::int64_t dropped[drop_reasons] = {};
      functions_.locate(plan_, part, keys, located == nullptr ? nullptr : located + first * plan_.located_bytes(),
                        dropped);
      for (int reason = 0; plan_.dropped != nullptr && reason < drop_reasons; ++reason) {
        if (dropped[reason] == 0) continue;
        std::atomic_ref<std::int64_t>(plan_.dropped[part.cloud * drop_reasons + reason]) += dropped[reason];
      }
      then(part, first, keys);
      keys += part.end - part.begin;
    });
  }

  Cloud<float> extent(std::int64_t number) const {
    Cloud<float> cloud;
    set_extent(plan_, number, cloud);
    return cloud;
  }

 private:
  const Plan& plan_;
  const CpuFunctions& functions_;
  std::vector<std::int64_t> starts_;  // of clouds
};

// Calls f(n) for n of [begin, end), each on any thread.
template <class F>
void parallel_each(std::int64_t begin, std::int64_t end, const F& f) {
  parallel_for(end - begin, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t n = first; n < last; ++n) f(begin + n);
  });
}

// ---- counts --------------------------------------------------------------------------------------------------------

// count, occupancy and bits: reductions that need the points in no order; a batch of points at a time.
class Counts {
 public:
  Counts(const Plan& plan, const CpuFunctions& functions) : plan_(plan), pieces_(plan, functions) {
    const std::int64_t cells = plan.grids * plan.cells;
    while (cells >> shift_ >= most_shards) ++shift_;
    shards_ = ((cells - 1) >> shift_) + 1;
  }

  void run() {
    if (plan_.occupancy != nullptr || plan_.bits != nullptr) fill_marks();
    if (plan_.count != nullptr) return count();
    parallel_for(pieces_.count(), 1, [&](std::int64_t begin, std::int64_t end) {
      const auto keys = make_scratch<std::int64_t>(static_cast<std::size_t>(std::min(pieces_.points(), piece_points)));
      for (std::int64_t piece = begin; piece < end; ++piece) locate(piece, keys.get());
    });
  }

 private:
  static constexpr std::int64_t most_shards = 1 << 12;
  static constexpr std::int64_t least_batch = 1 << 20;

  void fill_marks() const {
    Plan marks = plan_;
    marks.count = nullptr;
    const std::int64_t line = plan_.shape[2];
    parallel_for(plan_.grids * plan_.cells / line, (1 << 16) / line,
                 [&](std::int64_t begin, std::int64_t end) { fill_cells(marks, begin * line, end * line); });
  }

  // The keys of a piece. Marks their cells; threads may mark one cell at a time, because all write the same value.
  std::span<const std::int64_t> locate(std::int64_t piece, std::int64_t* keys) const {
    pieces_.locate(piece, keys, nullptr, [](const Part&, std::int64_t, const std::int64_t*) {});
    const std::span<const std::int64_t> all(keys, static_cast<std::size_t>(pieces_.end(piece) - pieces_.begin(piece)));
    const auto each = [&](const auto& f) {
      for (const std::int64_t key : all) {
        if (key >= 0) f(key);
      }
    };
    if (std::uint8_t* const occupancy = plan_.occupancy; occupancy != nullptr) {
      each([=](std::int64_t key) { std::atomic_ref(occupancy[key]).store(1, std::memory_order_relaxed); });
    }
    if (plan_.bits != nullptr) {
      each([&](std::int64_t key) {
        const Bit bit = bit_of(plan_, key);
        const std::atomic_ref<std::uint8_t> byte(plan_.bits[bit.byte]);
        if ((byte.load(std::memory_order_relaxed) & bit.mask) == 0) byte.fetch_or(bit.mask, std::memory_order_relaxed);
      });
    }
    return all;
  }

  void count() {
    // A batch is large where the grid is, since each one walks through the cells anew.
    const std::int64_t batch = std::max(least_batch, plan_.grids * plan_.cells / 8) / piece_points;
    const std::int64_t at_once = std::min(batch, pieces_.count());
    keys_ = make_scratch<std::int64_t>(static_cast<std::size_t>(std::min(at_once * piece_points, pieces_.points())));
    partitioned_ =
        make_scratch<std::uint32_t>(static_cast<std::size_t>(std::min(at_once * piece_points, pieces_.points())));
    ends_.resize(static_cast<std::size_t>(at_once * shards_));
    std::int64_t begin = 0;
    do {
      const std::int64_t end = std::min(begin + batch, pieces_.count());
      parallel_each(begin, end, [&](std::int64_t piece) { partition(piece, piece - begin); });
      parallel_each(0, shards_, [&](std::int64_t shard) { add(shard, begin, end); });
      begin = end;
    } while (begin < pieces_.count());
  }

  // Sorts a piece by shard: cells as they are counted in their shard, and where those of each shard end.
  void partition(std::int64_t piece, std::int64_t slot) {
    const std::span<const std::int64_t> all = locate(piece, keys_.get() + slot * piece_points);
    std::uint32_t* const ends = ends_.data() + slot * shards_;
    std::fill_n(ends, shards_, 0);
    const auto each = [all, shift = shift_](const auto& f) {
      for (const std::int64_t key : all) {
        if (key >= 0) f(key, key >> shift);
      }
    };
    each([=](std::int64_t, std::int64_t shard) { ++ends[shard]; });
    std::uint32_t place = 0;
    for (std::int64_t shard = 0; shard < shards_; ++shard) place += std::exchange(ends[shard], place);
    std::uint32_t* const partitioned = partitioned_.get() + slot * piece_points;
    each([=, shift = shift_](std::int64_t key, std::int64_t shard) {
      partitioned[ends[shard]++] = static_cast<std::uint32_t>(key - (shard << shift));
    });
  }

  // Counts what pieces [begin, end) put into a shard.
  void add(std::int64_t shard, std::int64_t begin, std::int64_t end) {
    std::int32_t* const first = plan_.count + (shard << shift_);
    std::int32_t* const stop = plan_.count + std::min((shard + 1) << shift_, plan_.grids * plan_.cells);
    if (begin == 0 && !plan_.accumulate) std::fill(first, stop, 0);
    for (std::int64_t slot = 0; slot < end - begin; ++slot) {
      const std::uint32_t* const ends = ends_.data() + slot * shards_ + shard;
      const std::uint32_t* const partitioned = partitioned_.get() + slot * piece_points;
      for (std::uint32_t k = shard == 0 ? 0 : ends[-1]; k < *ends; ++k) ++first[partitioned[k]];
    }
    if (plan_.empty != 0 && !plan_.accumulate && end == pieces_.count()) {
      std::replace(first, stop, 0, empty_value<std::int32_t>(plan_.empty));
    }
  }

  const Plan& plan_;
  Pieces pieces_;
  int shift_ = 15;  // 2^shift_ cells are a shard
  std::int64_t shards_ = 0;
  Scratch<std::int64_t> keys_;
  Scratch<std::uint32_t> partitioned_;
  std::vector<std::uint32_t> ends_;
};

// ---- voxels --------------------------------------------------------------------------------------------------------

// Stable radix sort of words by the `bits` bits above `low`, from the lowest digit up. Before, chunk n has counts[n]
// words from n * chunk on; after, the words have no gaps.
template <class Word>
void sort_words(Scratch<Word>& words, std::vector<std::int64_t> counts, std::int64_t chunk, int low, int bits) {
  constexpr int most_digit_bits = 11;  // whose counters fit the first cache
  constexpr std::int64_t few = 1 << 10;
  if (counts.empty()) return;
  if (counts.size() == 1 && counts[0] < few) {
    std::stable_sort(words.get(), words.get() + counts[0], [&](Word a, Word b) { return a >> low < b >> low; });
    return;
  }
  const int digits = std::max((bits + most_digit_bits - 1) / most_digit_bits, 1);
  const int digit_bits = (bits + digits - 1) / digits;
  const std::size_t buckets = std::size_t{1} << digit_bits;
  std::vector<std::uint32_t> places(counts.size() * buckets);
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  auto sorted = make_scratch<Word>(static_cast<std::size_t>(all));
  for (int digit = 0; digit < digits; ++digit) {
    const int shift = low + digit * digit_bits;
    const auto each_word = [&](const auto& f) {
      parallel_each(0, static_cast<std::int64_t>(counts.size()), [&](std::int64_t n) {
        std::uint32_t* const here = places.data() + static_cast<std::size_t>(n) * buckets;
        const Word* const first = words.get() + n * chunk;
        for (std::int64_t k = 0; k < counts[static_cast<std::size_t>(n)]; ++k) {
          f(first[k], here[static_cast<std::size_t>(first[k] >> shift) & (buckets - 1)]);
        }
      });
    };
    std::fill(places.begin(), places.end(), 0);
    each_word([&](Word, std::uint32_t& place) { ++place; });
    std::vector<std::uint32_t> next(buckets);  // place of each bucket; chunk by chunk, as the counters lie in memory
    for (std::size_t k = 0; k < places.size(); ++k) next[k & (buckets - 1)] += places[k];
    std::exclusive_scan(next.begin(), next.end(), next.begin(), std::uint32_t{0});
    for (std::size_t k = 0; k < places.size(); ++k) {
      std::uint32_t& to = next[k & (buckets - 1)];
      to += std::exchange(places[k], to);
    }
    each_word([&](Word word, std::uint32_t& to) { sorted[to++] = word; });
    words.swap(sorted);
    if (digit > 0) continue;
    for (std::size_t n = 0; n < counts.size(); ++n) {  // now there are no gaps
      counts[n] = std::clamp<std::int64_t>(all - static_cast<std::int64_t>(n) * chunk, 0, chunk);
    }
  }
}

inline void raise(std::uint32_t& largest, std::uint32_t here) {
  std::atomic_ref<std::uint32_t> shared(largest);
  std::uint32_t known = shared.load(std::memory_order_relaxed);
  while (here > known && !shared.compare_exchange_weak(known, here, std::memory_order_relaxed)) {
  }
}

class PointSort {
 public:
  PointSort(const Plan& plan, const CpuFunctions& functions)
      : plan_(plan), functions_(functions), pieces_(plan, functions) {}

  const Pieces& pieces() const { return pieces_; }

  // `sums`: whether features may be summed. `located` as in with_point_means(), or nullptr.
  void run(bool sums, char* located) {
    const int low = bit_width(static_cast<std::uint64_t>(plan_.all_points)) + run_bits;
    const int key_bits =
        bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(plan_.grids * plan_.cells, 1) - 1));
    if (sums) largest_.resize(static_cast<std::size_t>(plan_.grids * plan_.channels));
    if (key_bits + low <= 64) {
      sort_as<std::uint64_t>(located, low, key_bits);
    } else {
      sort_as<unsigned __int128>(located, low, key_bits);
    }
  }

  Voxels voxels(bool dense) const { return {dense, count_, keys_.get(), starts_.get(), runs_.get()}; }

  // The exponents of the features. For those of the points, find_lattice() knows the largest magnitudes.
  std::vector<int> exponents() const { return plan_.sums() ? exponents_of(plan_, largest_) : std::vector<int>(); }

 private:
  // A word is a key above a run of points: the number of the first, and how many more there are.
  static constexpr int run_bits = 6;
  static constexpr std::int64_t longest_run = 1 << run_bits;

  template <class Word>
  void sort_as(char* located, int low, int key_bits) {
    auto words = make_scratch<Word>(static_cast<std::size_t>(pieces_.points()));
    std::vector<std::int64_t> counts(static_cast<std::size_t>(pieces_.count()));
    parallel_for(pieces_.count(), 1, [&](std::int64_t begin, std::int64_t end) {
      const auto keys = make_scratch<std::int64_t>(static_cast<std::size_t>(std::min(pieces_.points(), piece_points)));
      for (std::int64_t piece = begin; piece < end; ++piece) {
        Word* to = words.get() + pieces_.begin(piece);
        pieces_.locate(piece, keys.get(), located, [&](const Part& part, std::int64_t first, const std::int64_t* here) {
          const std::int64_t count = part.end - part.begin;
          if (!largest_.empty()) measure(pieces_.extent(part.cloud).grid, first, count, here);
          for (std::int64_t k = 0, next = 0; k < count; k = next) {
            const std::int64_t longest = std::min(k + longest_run, count);
            for (next = k + 1; next < longest && here[next] == here[k]; ++next) {
            }
            if (here[k] < 0) continue;
            *to++ = static_cast<Word>(here[k]) << low | static_cast<Word>(first + k) << run_bits |
                    static_cast<Word>(next - k - 1);
          }
        });
        counts[static_cast<std::size_t>(piece)] = to - words.get() - pieces_.begin(piece);
      }
    });
    const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    sort_words(words, std::move(counts), piece_points, low, key_bits);
    list(words.get(), all, low);
  }

  void measure(std::int64_t grid, std::int64_t first, std::int64_t count, const std::int64_t* keys) {
    std::vector<std::uint32_t> here(static_cast<std::size_t>(plan_.channels));
    functions_.measure(plan_, first, count, keys, here.data());
    for (std::size_t c = 0; c < here.size(); ++c)
      raise(largest_[static_cast<std::size_t>(grid) * here.size() + c], here[c]);
  }

  // From words to voxels.
  template <class Word>
  void list(const Word* begin, std::int64_t all, int low) {
    runs_ = make_scratch<PointRun>(static_cast<std::size_t>(all));
    const auto key_of = [&](std::int64_t k) { return static_cast<std::int64_t>(begin[k] >> low); };
    const auto is_first = [&](std::int64_t k) { return k == 0 || key_of(k) != key_of(k - 1); };
    const std::int64_t chunks = (all + piece_points - 1) / piece_points;
    std::vector<std::int64_t> places(static_cast<std::size_t>(chunks) + 1);
    parallel_each(0, chunks, [&](std::int64_t n) {
      std::int64_t here = 0;
      for (std::int64_t k = n * piece_points; k < std::min((n + 1) * piece_points, all); ++k) {
        here += is_first(k) ? 1 : 0;
        const std::uint64_t run = static_cast<std::uint64_t>(begin[k]) & ((std::uint64_t{1} << low) - 1);
        runs_[static_cast<std::size_t>(k)] = {static_cast<std::uint32_t>(run >> run_bits),
                                              static_cast<std::uint32_t>(run % longest_run) + 1};
      }
      places[static_cast<std::size_t>(n) + 1] = here;
    });
    for (std::size_t n = 1; n < places.size(); ++n) places[n] += places[n - 1];
    count_ = places.back();
    keys_ = make_scratch<std::int64_t>(static_cast<std::size_t>(count_));
    starts_ = make_scratch<std::uint32_t>(static_cast<std::size_t>(count_) + 1);
    parallel_each(0, chunks, [&](std::int64_t n) {
      const std::int64_t stop = std::min((n + 1) * piece_points, all);
      std::int64_t k = n * piece_points;
      while (k < stop && !is_first(k)) ++k;  // the voxel of the chunk before
      std::int64_t voxel = places[static_cast<std::size_t>(n)] - 1;
      for (std::int64_t first = k; k < stop;
           ++k) {  // without branches, because whether a voxel begins is unpredictable
        const bool begins = is_first(k);
        voxel += begins ? 1 : 0;
        first = begins ? k : first;
        keys_[static_cast<std::size_t>(voxel)] = key_of(k);
        starts_[static_cast<std::size_t>(voxel)] = static_cast<std::uint32_t>(first);
      }
    });
    starts_[static_cast<std::size_t>(count_)] = static_cast<std::uint32_t>(all);
  }

  const Plan& plan_;
  const CpuFunctions& functions_;
  Pieces pieces_;
  std::vector<std::uint32_t> largest_;  // magnitudes of every grid and channel
  std::int64_t count_ = 0;
  Scratch<std::int64_t> keys_;
  Scratch<std::uint32_t> starts_;
  Scratch<PointRun> runs_;
};

// Fills the cells and writes those that have points, a shard at a time while it is in a cache.
void write_dense(const Plan& plan, const CpuFunctions& functions, const Voxels& voxels,
                 const std::vector<int>& exponents) {
  constexpr std::int64_t shard_values = 1 << 16;
  const std::int64_t lines = plan.grids * plan.cells / plan.shape[2];
  const std::int64_t shard = std::max<std::int64_t>(shard_values / (plan.shape[2] * plan.channels), 1);
  parallel_for((lines + shard - 1) / shard, 1, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t voxel =
        std::lower_bound(voxels.keys, voxels.keys + voxels.count, begin * shard * plan.shape[2]) - voxels.keys;
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int64_t stop = std::min((n + 1) * shard, lines) * plan.shape[2];
      fill_cells(plan, n * shard * plan.shape[2], stop);
      const std::int64_t first = voxel;
      for (; voxel < voxels.count && voxels.keys[voxel] < stop; ++voxel) {
        write_count(plan, voxels.keys[voxel], voxels.points_of(voxel));
      }
      functions.reduce(plan, voxels, first, voxel, exponents.data());
    }
  });
}

// Sets the shape of the lattice. Returns the largest magnitudes of the points of every grid along each axis.
std::vector<std::uint32_t> find_lattice(Plan& plan, const CpuFunctions& functions, const Pieces& pieces) {
  Bounds all;
  std::vector<std::uint32_t> largest(static_cast<std::size_t>(plan.grids) * 3);
  std::mutex mutex;
  parallel_for(pieces.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    Bounds bounds;
    for (std::int64_t piece = begin; piece < end; ++piece) {
      pieces.parts(piece, [&](const Part& part) {
        std::uint32_t here[3] = {};
        functions.bound(plan, part, bounds, here);
        const auto grid = static_cast<std::size_t>(pieces.extent(part.cloud).grid);
        for (std::size_t axis = 0; axis < 3; ++axis) raise(largest[grid * 3 + axis], here[axis]);
      });
    }
    const std::scoped_lock lock(mutex);
    for (int axis = 0; axis < 3; ++axis) {
      all.low[axis] = std::min(all.low[axis], bounds.low[axis]);
      all.high[axis] = std::max(all.high[axis], bounds.high[axis]);
    }
  });
  set_lattice(plan, all.low, all.high);
  return largest;
}

// ---- sums ----------------------------------------------------------------------------------------------------------

// voxel_downsample without features, without a sort. Every cell has a bit in a bitmap; the number of bits set before a voxel's
// own is its row, and points are added to the sums of their row.
class BitmapDownsample {
 public:
  BitmapDownsample(const Plan& plan, const CpuFunctions& functions, const Pieces& pieces)
      : plan_(plan), functions_(functions), pieces_(pieces) {}

  // false: there are too many cells or voxels, sorting is faster.
  bool find_voxels() {
    const std::int64_t points = pieces_.points(), cells = plan_.grids * plan_.cells;
    if (cells / most_cells_of_point > points) return false;
    words_ = (cells + 31) / 32;
    marks_ = make_scratch<Marks>(static_cast<std::size_t>(words_));
    each_chunk([&](std::int64_t, std::int64_t begin, std::int64_t end) {
      std::fill(marks_.get() + begin, marks_.get() + end, Marks{});
    });
    keys_ = make_scratch<std::int64_t>(static_cast<std::size_t>(points));
    parallel_each(0, pieces_.count(), [&](std::int64_t piece) {
      std::int64_t* const keys = keys_.get() + pieces_.begin(piece);
      pieces_.locate(piece, keys, nullptr, [](const Part&, std::int64_t, const std::int64_t*) {});
      mark({keys, static_cast<std::size_t>(pieces_.end(piece) - pieces_.begin(piece))});
    });
    rank();
    const std::int64_t threads = num_threads();
    tables_ = std::clamp<std::int64_t>(points / 2 / std::max<std::int64_t>(count_, 1), 1, threads);
    return tables_ * 4 >= threads;
  }

  void write(Plan& plan, const std::vector<std::uint32_t>& largest, const SetRows& set_rows) {
    const std::vector<int> exponents = exponents_of(with_point_means(plan, nullptr), largest);
    add(exponents);
    set_rows(plan, count_);
    with_point_type(plan, [&](auto type) {
      using R = compute_t<typename decltype(type)::type>;
      each_chunk([&](std::int64_t, std::int64_t begin, std::int64_t end) {
        for (std::int64_t word = begin; word < end; ++word) {
          const Marks here = marks_[static_cast<std::size_t>(word)];
          std::int64_t row = here.before;
          for (std::uint32_t bits = here.bits; bits != 0; bits &= bits - 1) {
            write_row<R>(plan, row++, word * 32 + std::countr_zero(bits), exponents);
          }
        }
      });
    });
  }

 private:
  // The bitmap is cleared and counted, two bits for each cell. With 46 cells for each point that takes half of the
  // time of sorting, with 286 one and a half times.
  static constexpr std::int64_t most_cells_of_point = 64;
  static constexpr std::int64_t chunk_words = 1 << 12;

  void mark(std::span<const std::int64_t> keys) {
    for (const std::int64_t key : keys) {
      if (key < 0) continue;
      const std::atomic_ref<std::uint32_t> bits(marks_[static_cast<std::size_t>(key) / 32].bits);
      const std::uint32_t bit = 1u << (key % 32);
      if ((bits.load(std::memory_order_relaxed) & bit) == 0) bits.fetch_or(bit, std::memory_order_relaxed);
    }
  }

  void rank() {
    std::vector<std::int64_t> before(static_cast<std::size_t>(chunks()) + 1);
    each_chunk([&](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
      before[static_cast<std::size_t>(chunk) + 1] = functions_.count_marks(marks_.get() + begin, end - begin);
    });
    std::partial_sum(before.begin(), before.end(), before.begin());
    count_ = before.back();
    each_chunk([&](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
      functions_.rank_marks(marks_.get() + begin, end - begin, before[static_cast<std::size_t>(chunk)]);
    });
  }

  // Each table of sums belongs to one thread, which adds its share of the points.
  void add(const std::vector<int>& exponents) {
    sums_ = make_scratch<PointSum>(static_cast<std::size_t>(tables_ * count_));
    parallel_each(0, tables_, [&](std::int64_t table) {
      PointSum* const sums = sums_.get() + table * count_;
      std::fill_n(sums, count_, PointSum{});
      const std::int64_t end = pieces_.count() * (table + 1) / tables_;
      for (std::int64_t piece = pieces_.count() * table / tables_; piece < end; ++piece) {
        const std::int64_t* keys = keys_.get() + pieces_.begin(piece);
        pieces_.parts(piece, [&](const Part& part) {
          const std::int64_t grid = pieces_.extent(part.cloud).grid;
          functions_.add(plan_, part, keys, marks_.get(), exponents.data() + grid * 3, sums);
          keys += part.end - part.begin;
        });
      }
    });
  }

  template <class R>
  void write_row(const Plan& plan, std::int64_t row, std::int64_t key, const std::vector<int>& exponents) const {
    PointSum all{};
    for (std::int64_t table = 0; table < tables_; ++table) {
      const PointSum& sum = sums_[static_cast<std::size_t>(table * count_ + row)];
      for (int axis = 0; axis < 3; ++axis) all.fixed[axis] += sum.fixed[axis];
      all.count += sum.count;
    }
    if (plan.counts != nullptr) plan.counts[row] = static_cast<std::int32_t>(all.count);
    write_place(plan, row, key);
    if (plan.point_means == nullptr) return;
    const int* const here = exponents.data() + (plan.grids == 1 ? 0 : key / plan.cells * 3);
    for (int axis = 0; axis < 3; ++axis) {
      static_cast<R*>(plan.point_means)[row * 3 + axis] =
          Sum{all.fixed[axis]}.value<R>(power_of_two(-here[axis]), Divisor(all.count));
    }
  }

  std::int64_t chunks() const { return (words_ + chunk_words - 1) / chunk_words; }
  // Calls f(number, begin, end) for words [begin, end) of all marks, on any thread.
  template <class F>
  void each_chunk(const F& f) const {
    parallel_each(0, chunks(), [&](std::int64_t chunk) {
      f(chunk, chunk * chunk_words, std::min((chunk + 1) * chunk_words, words_));
    });
  }

  const Plan& plan_;
  const CpuFunctions& functions_;
  const Pieces& pieces_;
  Scratch<std::int64_t> keys_;  // of points
  std::int64_t words_ = 0;
  Scratch<Marks> marks_;
  std::int64_t count_ = 0;   // voxels
  std::int64_t tables_ = 0;  // tables of sums; all together have at most half as many voxels as there are points
  Scratch<PointSum> sums_;
};

void clear_dropped(const Plan& plan) {
  if (plan.dropped != nullptr) std::fill_n(plan.dropped, plan.clouds * drop_reasons, 0);
}

}  // namespace

void run_cpu(const Plan& plan) {
  const CpuFunctions* const functions = cpu_functions_in_use();
  if (functions == nullptr) return run_reference(plan);
  clear_dropped(plan);
  if (!plan.reduces_features()) return Counts(plan, *functions).run();
  PointSort sort(plan, *functions);
  sort.run(plan.sums(), nullptr);
  write_dense(plan, *functions, sort.voxels(true), sort.exponents());
}

void run_sparse_cpu(Plan plan, const SetRows& set_rows) {
  const CpuFunctions* const functions = cpu_functions_in_use();
  if (functions == nullptr) return run_sparse_reference(plan, set_rows);
  clear_dropped(plan);
  PointSort sort(plan, *functions);
  std::vector<std::uint32_t> largest;
  if (plan.lattice) largest = find_lattice(plan, *functions, sort.pieces());
  if (plan.lattice && plan.channels == 0) {
    BitmapDownsample bitmap(plan, *functions, sort.pieces());
    if (bitmap.find_voxels()) return bitmap.write(plan, largest, set_rows);
    clear_dropped(plan);
  }
  const auto located =
      make_scratch<char>(static_cast<std::size_t>(plan.locates() ? plan.all_points * plan.located_bytes() : 0));
  sort.run(plan.channels > 0, plan.locates() ? located.get() : nullptr);  // outputs are known later
  const auto loop = [](std::int64_t count, std::int64_t grain, const auto& piece) {
    parallel_for(count, grain, piece);
  };
  const auto reduce = [&](const Plan& reduced, const Voxels& voxels, std::int64_t count) {
    const bool of_points = reduced.features == located.get();
    const std::vector<int> exponents = of_points ? exponents_of(reduced, largest) : sort.exponents();
    parallel_for(count, 256, [&](std::int64_t begin, std::int64_t end) {
      functions->reduce(reduced, voxels, begin, end, exponents.data());
    });
  };
  Rows(plan, sort.voxels(false), located.get(), set_rows, loop, reduce).write();
}

}  // namespace robocache::voxelize_op
