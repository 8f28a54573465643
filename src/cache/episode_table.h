// Where the samples of some streams lie in each episode, for calls that read many thousand episodes a second.
#pragma once

#include <robocache/cache.h>

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ops/align/segments.h"

namespace robocache::cache {

// Any number of threads may use one table, and so may a child process after fork(): it has no lock.
class EpisodeTable {
 public:
  // `streams`: numbers in cache.streams(). The cache must outlive the table. `is_kept`, for a mapped cache: the table keeps
  // each episode that it has read, and its shards stay mapped, unless there are so many shards that maps could run out.
  // Otherwise each Rows reads the episodes that it needs.
  EpisodeTable(const Cache& cache, std::vector<std::int64_t> streams, bool is_kept);
  ~EpisodeTable();
  EpisodeTable(const EpisodeTable&) = delete;
  EpisodeTable& operator=(const EpisodeTable&) = delete;

  std::size_t size() const noexcept { return streams_.size(); }
  const StreamInfo& stream(std::size_t k) const { return cache_.streams()[static_cast<std::size_t>(streams_[k])]; }

  struct Episode {
    std::vector<align_op::Segment> segments{};  // by stream; without samples if the episode lacks the stream
    std::uint64_t narrow = 0;  // bit k: the shard of stream k has other channels than the stream has now
    std::vector<std::shared_ptr<const void>> memory{};
    std::vector<std::unique_ptr<const align_op::ArrivalBlocks>> blocks{};
  };

  // The segments that align_segments() reads for rows of these episodes.
  class Rows {
   public:
    align_op::Segments segments() const { return segments_.data(); }
    std::uint64_t narrow() const { return narrow_; }  // bit k: stream k, in any of the episodes

   private:
    friend class EpisodeTable;
    std::vector<const align_op::Segment*> segments_;
    std::uint64_t narrow_ = 0;
    std::map<std::int64_t, std::unique_ptr<const Episode>> own_;  // episodes that the table does not keep
  };

  // Returns false if an episode must be read first. Throws Error(value) if there is no such episode.
  bool find(std::span<const std::int64_t> episodes, Rows& rows) const;
  // As find(), after reading the missing episodes. Throws Error(file) if a shard is damaged.
  void load(std::span<const std::int64_t> episodes, Rows& rows);

 private:
  void check(std::int64_t episode) const;
  std::unique_ptr<const Episode> read(std::int64_t episode) const;

  const Cache& cache_;
  std::vector<std::int64_t> streams_;
  std::vector<std::atomic<const Episode*>> kept_;  // by episode; empty: none is kept
};

}  // namespace robocache::cache
