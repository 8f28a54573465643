#include "cache/episode_table.h"

#include <robocache/error.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/limits.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

// Linux allows a process some 65,000 maps by default, and a process may have several tables.
constexpr std::size_t most_shards_kept = 16384;

// An upper bound of the shards that hold these streams of all episodes.
std::size_t count_shards(const Cache& cache, std::size_t streams) {
  std::set<std::int64_t> groups;
  for (const CachedEpisode& episode : cache.episodes()) groups.insert(episode.group);
  return groups.size() * streams;
}

align_op::Segment segment_of(const CachedStream& found, std::int64_t latency) {
  align_op::Segment segment{.values = found.values.data,
                            .times = static_cast<const std::int64_t*>(found.times.data),
                            .arrivals = static_cast<const std::int64_t*>(found.arrivals.data),
                            .count = found.times.shape[0],
                            .latency = latency};
  if (segment.count == 0) return segment;
  segment.first_time = segment.times[0];
  const double span = static_cast<double>(segment.times[segment.count - 1]) - static_cast<double>(segment.first_time);
  if (span > 0) segment.samples_per_ns = static_cast<double>(segment.count - 1) / span;
  return segment;
}

bool has_other_channels(const CachedStream& found, const StreamInfo& now) {
  const auto& shape = found.values.shape;
  return found.values.dtype != now.dtype || found.values.rank != static_cast<int>(now.shape.size()) + 1 ||
         !std::equal(now.shape.begin(), now.shape.end(), shape.begin() + 1);
}

}  // namespace

EpisodeTable::EpisodeTable(const Cache& cache, std::vector<std::int64_t> streams, bool is_kept)
    : cache_(cache), streams_(std::move(streams)) {
  const auto known = static_cast<std::int64_t>(cache.streams().size());
  for (const std::int64_t stream : streams_) {
    if (stream < 0 || stream >= known) {
      throw Error(ErrorKind::value, concat("EpisodeTable: stream ", stream, " of ", known));
    }
  }
  if (streams_.empty() || streams_.size() > align_op::max_streams) {
    throw Error(ErrorKind::value,
                concat("EpisodeTable: ", streams_.size(), " streams; expected 1 to ", align_op::max_streams));
  }
  if (is_kept && count_shards(cache, streams_.size()) <= most_shards_kept) {
    kept_ = std::vector<std::atomic<const Episode*>>(cache.episodes().size());
  }
}

EpisodeTable::~EpisodeTable() {
  for (const std::atomic<const Episode*>& episode : kept_) delete episode.load();
}

void EpisodeTable::check(std::int64_t episode) const {
  const auto count = static_cast<std::int64_t>(cache_.episodes().size());
  if (episode < 0 || episode >= count) throw Error(ErrorKind::value, concat("align: episode ", episode, " of ", count));
}

bool EpisodeTable::find(std::span<const std::int64_t> episodes, Rows& rows) const {
  rows.segments_.resize(episodes.size());
  rows.narrow_ = 0;
  for (std::size_t b = 0; b < episodes.size(); ++b) {
    const std::int64_t number = episodes[b];
    check(number);
    const Episode* found = nullptr;
    if (!kept_.empty()) {
      found = kept_[static_cast<std::size_t>(number)].load(std::memory_order_acquire);
    } else if (const auto own = rows.own_.find(number); own != rows.own_.end()) {
      found = own->second.get();
    }
    if (found == nullptr) return false;
    rows.segments_[b] = found->segments.data();
    rows.narrow_ |= found->narrow;
  }
  return true;
}

void EpisodeTable::load(std::span<const std::int64_t> episodes, Rows& rows) {
  for (const std::int64_t number : episodes) {
    check(number);
    if (kept_.empty()) {
      std::unique_ptr<const Episode>& own = rows.own_[number];
      if (own == nullptr) own = read(number);
      continue;
    }
    std::atomic<const Episode*>& slot = kept_[static_cast<std::size_t>(number)];
    if (slot.load(std::memory_order_acquire) != nullptr) continue;
    std::unique_ptr<const Episode> made = read(number);
    const Episode* none = nullptr;  // another thread may have read it meanwhile
    if (slot.compare_exchange_strong(none, made.get(), std::memory_order_acq_rel)) static_cast<void>(made.release());
  }
  find(episodes, rows);
}

std::unique_ptr<const EpisodeTable::Episode> EpisodeTable::read(std::int64_t episode) const {
  auto made = std::make_unique<Episode>();
  made->segments.resize(streams_.size());
  const std::vector<EpisodeStream>& has = cache_.episodes()[static_cast<std::size_t>(episode)].streams;
  for (std::size_t k = 0; k < streams_.size(); ++k) {
    const auto entry = std::ranges::find(has, streams_[k], &EpisodeStream::stream);
    if (entry == has.end()) continue;
    if (!is_in_span_limit(entry->latency)) {
      throw Error(ErrorKind::value, concat("align: stream ", quote(stream(k).name), ": latency = ", entry->latency,
                                           " ns; it must be within ", limit_in_words(span_limit), " ns"));
    }
    CachedStream found = cache_.read(episode, streams_[k]);
    made->segments[k] = segment_of(found, entry->latency);
    align_op::Segment& segment = made->segments[k];
    if (!std::is_sorted(segment.arrivals, segment.arrivals + segment.count)) {
      const align_op::Stamps arrivals{segment.arrivals, 0, 1, DType::i64};
      made->blocks.push_back(std::make_unique<align_op::ArrivalBlocks>(arrivals, 0, segment.count));
      segment.blocks = made->blocks.back().get();
    }
    if (has_other_channels(found, stream(k))) made->narrow |= std::uint64_t{1} << k;
    if (made->memory.empty() || made->memory.back() != found.memory) made->memory.push_back(std::move(found.memory));
  }
  return made;
}

}  // namespace robocache::cache
