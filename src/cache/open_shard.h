// A shard while it is written. Values go straight into its temporary file and stamps into a scratch file, so memory stays
// small for any length.
#pragma once

#include <robocache/error.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/manifest.h"
#include "cache/partials.h"
#include "cache/shard_header.h"
#include "cache/spool.h"
#include "io/hash.h"
#include "statistics/partial.h"

namespace robocache::cache {

// The samples that wait can no longer be proven to be those that were appended.
class LostSamples : public Error {
 public:
  explicit LostSamples(const std::string& sentence) : Error(ErrorKind::file, sentence) {}
};

class OpenShard {
 public:
  // `stem`: the name of its file in `directory` without the extension, unique in the group.
  OpenShard(const Path& directory, std::string stem, std::int64_t stream, const StreamInfo& info);
  OpenShard(OpenShard&&) noexcept = default;
  OpenShard& operator=(OpenShard&&) noexcept = default;

  std::int64_t stream() const noexcept { return stream_; }
  const std::string& stem() const noexcept { return stem_; }
  std::int64_t bytes() const noexcept { return values_.size() + stamps_.size(); }
  std::int64_t bytes_of_statistics() const noexcept { return partials_.bytes(); }  // which are kept in memory

  void begin_episode(std::int64_t row);  // the rows skipped in between do not have the stream
  bool has_episode(std::int64_t row) const noexcept { return open_ && !open_->has_ended && open_->row == row; }
  // `values` are dense, with all channels of the shard.
  void append_values(std::span<const std::byte> values, std::int64_t rows);
  void append_stamps(std::span<const std::int64_t> times, std::span<const std::int64_t> arrivals,
                     std::span<const std::int64_t> lengths);
  void widen(const StreamInfo& info);  // adds channels, which are NaN in the rows so far

  struct Extent {
    std::int64_t samples = 0, backward = 0;
    std::int64_t first = 0, last = 0;  // times, if there are samples
  };
  // Sorts the samples by time; equal times keep their order. end_episode() itself cannot fail afterwards.
  void sort_episode();
  // Adds the partial statistics of the sorted episode. end_episode() takes them.
  void summarize_episode();
  Extent extent() const;  // of the open episode
  Extent end_episode();
  // Drops the group's last episode, open or ended, with the channels that it added: the shard is again as it was when that
  // episode began, even if finish() was called since.
  void discard_episode(std::int64_t row) noexcept;
  void keep_episode() noexcept;  // the episode that ended last can no longer be discarded
  bool is_unused() const noexcept { return episodes_ == 0 && (!open_ || open_->has_ended); }  // no episode has it
  std::int64_t channels() const;

  // Writes the shard, syncs it and renames it. May be called again after it failed. After a failed sync the system may have
  // dropped what was written without saying so again; then the values are copied into another file, and if their hash is not
  // that of the appended values, this throws LostSamples. Stamps in a scratch file, which is never synced, are always checked
  // against the hash of what was appended or sorted. `group` describes all episodes of the group; its shards are ignored.
  Shard finish(const Manifest& group, std::int64_t number);
  void abandon() noexcept;  // removes the temporary file

 private:
  struct Stamps {
    std::int64_t time, arrival, rows;
  };
  struct Episode {
    std::int64_t row = 0, samples = 0, rows = 0;  // of the shard when the episode began
    std::optional<std::int64_t> last_time{};
    std::int64_t first = 0, last = 0;  // of the times
    std::int64_t backward = 0;
    std::size_t ends = 0;
    PartialsWriter::Mark partials{};
    std::optional<statistics::ByteCounts> counts{};  // of its values, where they are counted as they come
    bool was_rewritten = false;
    io::Hash hash{}, stamps_hash{};
    bool has_ended = false;
    std::optional<Spool> narrow{};  // the values before the episode added channels,
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
  io::Hash hash_;              // of the values as they were appended
  io::Hash stamps_hash_;       // of the stamps as they were appended or sorted
  bool is_rewritten_ = false;  // the values were sorted or widened since, so the hash is taken from the file
  bool is_suspect_ = false;    // a sync failed
  bool is_misplaced_ =
      false;  // the values are in a file with the name of a finished shard, and must move to another one
  std::int64_t samples_ = 0, rows_ = 0;
  std::int64_t episodes_ = 0;       // episodes that have the stream
  std::vector<std::int64_t> ends_;  // in samples, of each episode of the group
  PartialsWriter partials_;         // of each episode of the group
  std::optional<Episode> open_;     // the open episode, or the one that ended last
};

// A row of NaN, or of zeros for integers.
std::vector<std::byte> blank_row(DType dtype, std::int64_t channels);

}  // namespace robocache::cache
