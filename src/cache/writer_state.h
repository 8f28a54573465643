// What a CacheWriter keeps while it is open, and how its parts work together.
#pragma once

#include <robocache/cache.h>
#include <robocache/error.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/change.h"
#include "cache/directory.h"
#include "cache/lock.h"
#include "cache/manifest.h"
#include "cache/open_shard.h"
#include "core/text.h"

namespace robocache {

using namespace cache;  // only the files of CacheWriter include this one

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error(ErrorKind::value, concat(parts...));
}

// `manifest` has what is committed; only a commit changes it. Episodes that wait for a commit are kept apart. A commit makes a
// Change of them, writes it to the disk, and then merges it into `manifest` with the same code that readers use.
// The members are in the order of their meaning.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct CacheWriter::State {
  Path path;
  Options options;
  std::optional<Lock> lock;
  const pid_t process = getpid();
  Path quarantine;  // within the cache: where opening moved shards that no commit names; empty: there were none
  std::string nonce = new_identity().substr(0, 8);  // makes the names of this writer's shards unique
  std::recursive_mutex mutex;

  // On the disk
  Manifest manifest;
  MetadataPool pool;
  std::string checksum;             // of the last commit; the next line of the journal continues it
  std::int64_t manifest_bytes = 0;  // of manifest.json
  std::int64_t journal_bytes = 0;   // of the journal's whole lines
  File journal;                     // of this writer; none until it is needed
  bool needs_snapshot = false;  // the journal cannot be continued: another writer's, of version 1, or a write failed
  // The last commit failed but may have reached the disk. tried_identity: the identity of the manifest it wrote, if it
  // wrote one.
  bool is_uncertain = false;
  std::string tried_identity;

  // Committed or waiting
  std::vector<StreamInfo> streams;
  std::vector<CacheSource> sources;
  std::set<std::int64_t> changed_sources;  // since the last commit
  bool is_dirty = false;                   // some of them must be committed, even if no episode waits
  std::unordered_map<std::string, std::vector<std::int64_t>> by_path;       // sources, ascending
  std::unordered_map<std::int64_t, std::map<Row, std::int64_t>> by_source;  // numbers of its episodes
  std::unordered_map<std::string, Row> by_name;                             // of episodes without a source

  // The group that is being written
  std::map<std::int64_t, OpenShard> shards;  // by stream
  std::vector<CachedEpisode> episodes;       // that wait for the commit
  std::set<Row> replaced;                    // committed episodes that this commit removes
  bool must_commit = false;                  // a commit failed: try it again before anything is added
  std::map<std::int64_t, Shard> finished;    // by that failed commit

  // The episode that is open, or ended last
  std::optional<CachedEpisode> episode;
  std::int64_t row = 0;
  std::optional<Row> replaces;
  std::map<std::int64_t, std::int64_t> latencies;     // by stream
  std::map<std::int64_t, Metadata> said;              // by stream: the metadata of all its batches
  std::map<std::int64_t, StreamInfo> streams_before;  // before this episode changed them
  std::size_t stream_count = 0;                       // when the episode began
  bool has_failed = false;

  std::map<std::int64_t, std::shared_ptr<const Metadata>>
      last_said;  // by stream: shared by episodes with equal metadata
  std::int64_t source = -1;
  std::vector<Path> source_files;
  std::vector<FileStamp> source_stamps;
  bool has_lost = false;  // whole episodes of this source were dropped, so it must not be marked complete

  ~State() { abandon(); }
  bool is_forked() const noexcept { return getpid() != process; }
  void abandon() noexcept {
    if (!is_forked()) {  // a forked child must not touch the files of its parent
      for (auto& [stream, shard] : shards) shard.abandon();
    }
    shards.clear();
    episodes.clear();
    episode.reset();
    journal = {};
    lock.reset();
  }

  void open();
  void check_folder() const;
  void load();
  void remove_leftovers();
  void make_index();
  void index(const CachedEpisode& entry);
  std::vector<SourceVersion> versions_of(const std::vector<std::int64_t>& entries) const;
  std::int64_t find_source(const CacheSource& wanted, std::span<const Path> files) const;
  std::vector<std::int64_t> merge(const StreamInfo& info, std::int64_t& stream);
  void check_methods(const StreamInfo& info, std::int64_t stream, const std::vector<std::int64_t>& columns) const;
  OpenShard& shard_of(std::int64_t stream);
  void append_values(OpenShard& shard, const TensorView& values, const std::vector<std::int64_t>& columns,
                     const StreamInfo& info);
  void discard() noexcept;
  bool take_back() noexcept;
  void commit(bool is_last);
  void check_fence();
  void finish_group();
  Change make_change(std::vector<Path>& useless);
  void write_snapshot(Change change, bool is_last, std::vector<Path>& useless);
  void take_saved(const SavedManifest& saved);
  void write_line(Change change, const std::string& text, std::vector<Path>& useless);
  void forget_group();
  std::size_t drop_group();  // returns how many episodes it dropped
};

// Every call holds one: one thread at a time, and no thread of a process that was forked while the writer was open.
template <class State>
class Entry {
 public:
  explicit Entry(State& state) {
    if (state.is_forked()) {
      refuse("CacheWriter: it was opened by process ", state.process,
             ", and this one was forked from it; a cache has one writer: open it here after the other has closed it");
    }
    guard_ = std::unique_lock(state.mutex);
  }

 private:
  std::unique_lock<std::recursive_mutex> guard_;
};

}  // namespace robocache
