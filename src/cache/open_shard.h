// A shard while it is written: values go straight into its temporary file, stamps into a scratch file, so that memory
// stays small whatever the length.
#pragma once

#include <robocache/error.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/files.h"
#include "cache/hash.h"
#include "cache/manifest.h"

namespace robocache::cache {

// What was to be written is no longer known to be what came.
class LostSamples : public Error {
 public:
  explicit LostSamples(const std::string& sentence) : Error(ErrorKind::file, sentence) {}
};

class OpenShard {
 public:
  // `stem`: of its file in `directory`; no other shard of the group has it.
  OpenShard(const Path& directory, std::string stem, std::int64_t stream, const StreamInfo& info);
  OpenShard(OpenShard&&) noexcept = default;
  OpenShard& operator=(OpenShard&&) noexcept = default;

  std::int64_t stream() const noexcept { return stream_; }
  const std::string& stem() const noexcept { return stem_; }
  std::int64_t bytes() const noexcept { return values_.size() + stamps_.size(); }

  void begin_episode(std::int64_t row);  // rows in between do not have the stream
  bool has_episode(std::int64_t row) const noexcept { return open_ && !open_->has_ended && open_->row == row; }
  // Dense, as wide as the shard.
  void append_values(std::span<const std::byte> values, std::int64_t rows);
  void append_stamps(std::span<const std::int64_t> times, std::span<const std::int64_t> arrivals,
                     std::span<const std::int64_t> lengths);
  void widen(const StreamInfo& info);  // more channels, NaN in all that is there

  struct Extent {
    std::int64_t samples = 0, backward = 0;
    std::int64_t first = 0, last = 0;  // times; where there are samples
  };
  // Sorts by time; equal times stay in their order. Every step of ending an episode that can fail is in here.
  void sort_episode();
  Extent extent() const;  // of the episode that is open
  Extent end_episode();
  // Forgets the group's last episode, open or ended, with the channels that it brought: the shard is as it was when that
  // episode began, also where finish() has been called since.
  void discard_episode(std::int64_t row) noexcept;
  void keep_episode() noexcept;  // the one that ended last cannot be discarded any more
  bool is_unused() const noexcept { return episodes_ == 0 && (!open_ || open_->has_ended); }  // no episode has it
  std::int64_t channels() const;

  // Written whole, synced and renamed; can be repeated where it failed. Where it was the sync that failed, the system may
  // have dropped what was written and would not say so again: the values go into another file, and where they are not
  // known to be what came, this throws LostSamples. Stamps that went into a scratch file, which nobody syncs, are always
  // held against the hash of what came, or of what sorting made of it. `group` describes all episodes of the group; its
  // shards are not looked at.
  Shard finish(const Manifest& group, std::int64_t number);
  void abandon() noexcept;  // removes the temporary file

 private:
  struct Stamps {
    std::int64_t time, arrival, rows;
  };
  struct Episode {
    std::int64_t row = 0, samples = 0, rows = 0;  // of the shard when it began
    std::optional<std::int64_t> last_time{};
    std::int64_t first = 0, last = 0;  // of the times
    std::int64_t backward = 0;
    std::size_t ends = 0;
    bool was_rewritten = false;
    Hash hash{}, stamps_hash{};
    bool has_ended = false;
    std::optional<Spool> narrow{};  // the values before the episode widened them,
    StreamInfo narrow_info{};       // and the stream
  };

  Path temporary();
  std::int64_t row_bytes() const;
  void read_stamps(std::int64_t first, std::span<Stamps> to) const;
  void permute_values(const Spool& order, std::int64_t count);
  template <class Sink>
  void generate(const TensorEntry& tensor, const Sink& sink) const;

  Path directory_;
  std::string stem_;
  std::int64_t stream_ = 0;
  StreamInfo info_;
  Spool values_;
  Spool stamps_;
  Hash hash_;                  // of the values, as they came
  Hash stamps_hash_;           // of the stamps, as they came or were sorted
  bool is_rewritten_ = false;  // they were sorted or widened since: the hash is taken from the file
  bool is_suspect_ = false;    // a sync failed
  bool is_misplaced_ = false;  // the values lie under the name of a finished shard: they go into another file
  std::int64_t samples_ = 0, rows_ = 0;
  std::int64_t episodes_ = 0;       // that have the stream
  std::vector<std::int64_t> ends_;  // in samples, of each episode of the group
  std::optional<Episode> open_;     // or that ended last
};

// A row of NaN; of integers, zeros.
std::vector<std::byte> blank_row(DType dtype, std::int64_t channels);

}  // namespace robocache::cache
