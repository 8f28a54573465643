#include "cache/merge_statistics.h"

#include <robocache/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cache/partials.h"
#include "cache/safetensors.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/text.h"
#include "statistics/order.h"
#include "statistics/partial.h"
#include "statistics/select.h"

namespace robocache::cache {

namespace {

using statistics::ChannelPartial;
using statistics::ChannelTotal;
using statistics::Partial;
using statistics::Selection;
using Words = std::vector<std::uint64_t>;

constexpr std::size_t pass_memory = std::size_t{64} << 20;      // of the selections of one pass
constexpr std::int64_t bytes_at_once = std::int64_t{32} << 20;  // of samples in memory, for caches that are not mapped
constexpr std::int64_t episodes_at_once = 1024;

// The rows of an episode as a matrix, and the owner of their memory.
struct Samples {
  CachedStream stream{};
  const std::byte* data = nullptr;
  std::int64_t rows = 0, channels = 0;  // of the matrix
};

Samples samples_of(const Cache& cache, std::int64_t episode, std::int64_t stream, const StatisticsShape& shape) {
  Samples samples{.stream = cache.read(episode, stream)};
  const TensorView& values = samples.stream.values;
  std::int64_t first = 0, rows = values.shape[0];
  if (samples.stream.inner) {
    const auto* const inner = static_cast<const std::int64_t*>(samples.stream.inner.data);
    first = inner[0];
    rows = inner[samples.stream.inner.shape[0] - 1] - first;
  }
  // A shard has fewer channels than the stream where channels were added later; these are all of one dimension.
  samples.channels = shape.values > 1 ? shape.channels : std::min(samples.stream.channels, shape.channels);
  samples.rows = rows * shape.values;
  samples.data = static_cast<const std::byte*>(values.data) + first * values.strides[0] * size_of(values.dtype);
  return samples;
}

class Merge {
 public:
  Merge(const Cache& cache, std::int64_t stream, const PartialsOfGroup& partials_of)
      : cache_(cache),
        stream_(stream),
        info_(cache.streams()[static_cast<std::size_t>(stream)]),
        shape_(statistics_shape(info_)),
        partials_of_(partials_of),
        totals_(static_cast<std::size_t>(shape_.channels)) {}

  void add(std::span<const std::int64_t> episodes, bool with_quantiles) {
    std::map<std::int64_t, std::vector<std::int64_t>> groups;
    for (const std::int64_t episode : episodes) {
      const CachedEpisode& entry = cache_.episodes()[static_cast<std::size_t>(episode)];
      if (std::ranges::find(entry.streams, stream_, &EpisodeStream::stream) == entry.streams.end()) continue;
      groups[entry.group].push_back(episode);
      ++result_.episodes;
    }
    for (const auto& [group, members] : groups) {
      check_interrupt();
      add_group(group, members, with_quantiles);
    }
  }

  StreamStatistics finish(std::span<const double> quantiles) {
    const std::int64_t channels = shape_.channels;
    result_.shape = shape_.shape;
    const auto make = [&](DType dtype) { return Array::zeros(dtype, shape_.shape); };
    const bool is_float = robocache::is_float(info_.dtype);
    const DType limits = is_float ? DType::f64 : info_.dtype == DType::u64 ? DType::u64 : DType::i64;
    for (Array* const each : {&result_.count, &result_.nan, &result_.positive_infinity, &result_.negative_infinity}) {
      *each = make(DType::i64);
    }
    result_.mean = make(DType::f64);
    result_.deviation = make(DType::f64);
    result_.minimum = make(limits);
    result_.maximum = make(limits);
    for (std::int64_t c = 0; c < channels; ++c) put(c);
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(quantiles.size())};
    shape.insert(shape.end(), shape_.shape.begin(), shape_.shape.end());
    result_.quantiles = Array::zeros(DType::f64, shape);
    result_.are_quantiles_exact = !has_sketches_;
    if (quantiles.empty()) return std::move(result_);
    const std::size_t at_once = std::max<std::size_t>(pass_memory / Selection::memory_of(2 * quantiles.size()), 1);
    for (std::int64_t first = 0; first < channels; first += static_cast<std::int64_t>(at_once)) {
      select(first, std::min(channels, first + static_cast<std::int64_t>(at_once)), quantiles);
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] static void fail_damaged(const KeptPartials& kept) {
    throw Error(ErrorKind::file, concat(kept.file,
                                        ": its statistics are damaged; `robocache verify --repair` drops them, and "
                                        "they are then computed from the samples"));
  }

  void add_group(std::int64_t group, const std::vector<std::int64_t>& members, bool with_quantiles) {
    const KeptPartials kept = partials_of_(group);
    bool is_used = false;
    for (const std::int64_t episode : members) {
      const CachedEpisode& entry = cache_.episodes()[static_cast<std::size_t>(episode)];
      std::span<const std::uint64_t> words;
      if (kept.is_kept) {
        const auto found = find_partial(kept.words, entry.row);
        if (!found) fail_damaged(kept);
        words = *found;
      }
      if (words.empty()) {
        words = compute(episode, with_quantiles);
        if (keeps_partials(info_)) ++result_.computed;
      } else {
        is_used = true;
      }
      Partial partial;
      if (!statistics::parse_partial(words, info_.dtype, partial) ||
          static_cast<std::int64_t>(partial.channels.size()) > shape_.channels) {
        fail_damaged(kept);
      }
      add_partial(episode, std::move(partial), with_quantiles);
    }
    if (is_used && with_quantiles) held_.push_back(kept.memory);
  }

  // Computes the partial of an episode whose shard has none.
  std::span<const std::uint64_t> compute(std::int64_t episode, bool with_quantiles) {
    const Samples samples = samples_of(cache_, episode, stream_, shape_);
    const std::int64_t size = samples.channels * size_of(info_.dtype);
    const auto read = [&](std::int64_t first, std::int64_t) { return samples.data + first * size; };
    Words words;
    statistics::summarize({info_.dtype, samples.channels, samples.rows, read}, with_quantiles && keeps_partials(info_),
                          words);
    return computed_.emplace_back(std::make_shared<const Words>(std::move(words))).operator*();
  }

  void add_partial(std::int64_t episode, Partial partial, bool with_quantiles) {
    bool must_read = false;
    for (std::size_t c = 0; c < totals_.size(); ++c) {
      if (c >= partial.channels.size()) {  // added to the stream later
        totals_[c].nan += static_cast<std::uint64_t>(partial.rows);
        continue;
      }
      totals_[c].add(partial.channels[c]);
      must_read = must_read || (partial.channels[c].count > 0 && partial.channels[c].sketch.empty());
    }
    if (!with_quantiles) return;
    if (must_read) {
      read_.push_back(episode);
    } else {
      has_sketches_ = has_sketches_ || std::ranges::any_of(partial.channels, [](const ChannelPartial& channel) {
                        return !channel.sketch.empty() && !channel.has_histogram;
                      });
      sketched_.push_back(std::move(partial.channels));
    }
  }

  void put(std::int64_t channel) {
    const auto c = static_cast<std::size_t>(channel);
    const ChannelTotal& total = totals_[c];
    const auto at = [&]<class T>(const Array& array, T value) { reinterpret_cast<T*>(array.data.get())[c] = value; };
    at(result_.count, static_cast<std::int64_t>(total.count));
    at(result_.nan, static_cast<std::int64_t>(total.nan));
    at(result_.positive_infinity, static_cast<std::int64_t>(total.positive_infinity));
    at(result_.negative_infinity, static_cast<std::int64_t>(total.negative_infinity));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const bool is_empty = total.count == 0;
    at(result_.mean, is_empty ? nan : statistics::mean_of(total.sum, total.count));
    at(result_.deviation, is_empty ? nan : statistics::deviation_of(total.sum, total.squares, total.count));
    for (const auto& [array, key] :
         {std::pair(&result_.minimum, total.least), std::pair(&result_.maximum, total.greatest)}) {
      if (array->dtype == DType::f64) {
        at(*array, is_empty ? nan : statistics::number_of(info_.dtype, key));
      } else if (!is_empty) {  // of 64 bits, signed or not
        at(*array, statistics::integer_of(info_.dtype, key));
      }
    }
  }

  // The quantiles of channels [first, last): those of all values, as NumPy interpolates them.
  void select(std::int64_t first, std::int64_t last, std::span<const double> quantiles) {
    std::vector<Selection> selections;
    std::vector<std::vector<std::uint64_t>> ranks(static_cast<std::size_t>(last - first));
    for (std::int64_t c = first; c < last; ++c) {
      auto& wanted = ranks[static_cast<std::size_t>(c - first)];
      const std::uint64_t count = totals_[static_cast<std::size_t>(c)].count;
      for (const double q : quantiles) {
        if (count == 0) break;
        const auto low = std::min(static_cast<std::uint64_t>(position_of(q, count)), count - 1);
        wanted.insert(wanted.end(), {low, std::min(low + 1, count - 1)});
      }
      std::ranges::sort(wanted);
      wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
      selections.emplace_back(wanted, statistics::key_bits(info_.dtype));
    }
    while (!std::ranges::all_of(selections, &Selection::is_done)) {
      pass(first, selections);
      for (Selection& selection : selections) selection.next();
    }
    auto* const out = reinterpret_cast<double*>(result_.quantiles.data.get());
    for (std::int64_t c = first; c < last; ++c) {
      const auto& wanted = ranks[static_cast<std::size_t>(c - first)];
      const ChannelTotal& total = totals_[static_cast<std::size_t>(c)];
      const std::uint64_t count = total.count;
      const auto value_at = [&](std::uint64_t rank) {
        if (rank == 0) return statistics::number_of(info_.dtype, total.least);  // a sketch has neither
        if (rank == count - 1) return statistics::number_of(info_.dtype, total.greatest);
        const auto place = std::ranges::lower_bound(wanted, rank) - wanted.begin();
        const auto& keys = selections[static_cast<std::size_t>(c - first)].keys();
        return statistics::number_of(info_.dtype, keys[static_cast<std::size_t>(place)]);
      };
      for (std::size_t q = 0; q < quantiles.size(); ++q) {
        double& to = out[q * totals_.size() + static_cast<std::size_t>(c)];
        if (count == 0) {
          to = std::numeric_limits<double>::quiet_NaN();
          continue;
        }
        const double position = position_of(quantiles[q], count);
        const auto low = std::min(static_cast<std::uint64_t>(position), count - 1);
        to = between(value_at(low), value_at(std::min(low + 1, count - 1)), position - static_cast<double>(low));
      }
    }
  }

  static double position_of(double quantile, std::uint64_t count) { return quantile * static_cast<double>(count - 1); }

  // As numpy.quantile computes it.
  static double between(double a, double b, double t) {
    const double difference = b - a;
    if (!std::isfinite(difference)) return a * (1 - t) + b * t;
    return t >= 0.5 ? b - difference * (1 - t) : a + difference * t;
  }

  // Adds all values of these channels to their selections.
  void pass(std::int64_t first, std::vector<Selection>& selections) {
    const auto count = static_cast<std::int64_t>(selections.size());
    parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        Selection& selection = selections[static_cast<std::size_t>(c)];
        if (selection.is_done()) continue;
        for (const auto& channels : sketched_) {
          if (static_cast<std::size_t>(first + c) >= channels.size()) continue;
          statistics::each_entry(channels[static_cast<std::size_t>(first + c)],
                                 [&](std::uint64_t key, std::uint64_t weight) { selection.add(key, weight); });
        }
      }
    });
    std::vector<Samples> some;
    std::int64_t bytes = 0;
    for (std::size_t k = 0; k < read_.size(); ++k) {
      some.push_back(samples_of(cache_, read_[k], stream_, shape_));
      bytes += some.back().rows * some.back().channels * size_of(info_.dtype);
      if (k + 1 < read_.size() && bytes < bytes_at_once && some.size() < episodes_at_once) continue;
      check_interrupt();
      const std::int64_t work = bytes / std::max<std::int64_t>(shape_.channels, 1);
      parallel_for(count, std::max<std::int64_t>(65536 / std::max<std::int64_t>(work, 1), 1),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t c = begin; c < end; ++c) {
                       add_samples(some, first + c, selections[static_cast<std::size_t>(c)]);
                     }
                   });
      some.clear();
      bytes = 0;
    }
  }

  void add_samples(const std::vector<Samples>& some, std::int64_t channel, Selection& selection) const {
    if (selection.is_done()) return;
    with_type(info_.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      for (const Samples& samples : some) {
        if (channel >= samples.channels) continue;
        const auto* value = reinterpret_cast<const T*>(samples.data) + channel;
        for (std::int64_t k = 0; k < samples.rows; ++k, value += samples.channels) {
          if constexpr (is_float_type<T>) {
            if (!is_finite(widen(*value))) continue;
          }
          selection.add(info_.dtype == DType::boolean ? std::uint64_t{statistics::key_of(*value) != 0}
                                                      : std::uint64_t{statistics::key_of(*value)},
                        1);
        }
      }
    });
  }

  const Cache& cache_;
  std::int64_t stream_;
  const StreamInfo& info_;
  StatisticsShape shape_;
  const PartialsOfGroup& partials_of_;
  std::vector<ChannelTotal> totals_;
  std::vector<std::vector<ChannelPartial>> sketched_;  // of episodes whose samples need not be read
  std::vector<std::int64_t> read_;                     // episodes whose samples are read for quantiles
  std::vector<std::shared_ptr<const Words>> computed_;
  std::vector<std::shared_ptr<const void>> held_;  // the memory of sketched_
  bool has_sketches_ = false;
  StreamStatistics result_;
};

}  // namespace

StreamStatistics merge_statistics(const Cache& cache, std::int64_t stream, std::span<const std::int64_t> episodes,
                                  std::span<const double> quantiles, const PartialsOfGroup& partials_of) {
  const auto refuse = [](const auto&... parts) { throw Error(ErrorKind::value, concat("Cache: ", parts...)); };
  if (stream < 0 || stream >= static_cast<std::int64_t>(cache.streams().size())) {
    refuse("stream ", stream, " of ", cache.streams().size());
  }
  std::vector<std::int64_t> sorted(episodes.begin(), episodes.end());
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    refuse("statistics: episode ", *twice, " is given twice");
  }
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= static_cast<std::int64_t>(cache.episodes().size()))) {
    refuse("statistics: episode ", sorted.front() < 0 ? sorted.front() : sorted.back(), " of ",
           cache.episodes().size());
  }
  for (const double q : quantiles) {
    if (!(q >= 0 && q <= 1)) refuse("statistics: a quantile is ", q, "; it must be from 0 to 1");
  }
  Merge merge(cache, stream, partials_of);
  merge.add(sorted, !quantiles.empty());
  return merge.finish(quantiles);
}

}  // namespace robocache::cache
