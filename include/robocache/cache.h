// The episode store: episodes on disk at their native rates, memory mapped. Nothing is resampled until someone asks.
//
// ```cpp
// using robocache::Array, robocache::DType;
// const Array positions = Array::zeros(DType::f32, {3, 7});
// const std::vector<std::int64_t> times = {0, 20'000'000, 40'000'000};
// robocache::CacheWriter writer("example-cache");
// writer.begin_episode({.name = "episode-7", .task = "pick", .replaces = true});
// writer.append({.name = "/joints", .dtype = DType::f32, .shape = {7}}, positions.view(), times, times, {});
// writer.end_episode();
// writer.close();  // commits what is not committed yet
//
// const robocache::Cache cache("example-cache");
// const robocache::CachedStream joints = cache.read(0, 0);  // views of the file's memory, no copy
// ```
//
// A cache is a directory:
//   manifest.json   a snapshot of the cache: version, identity, sources, streams, episodes, shards with their xxHash checksums,
//                   and a checksum of all that.
//   journal.<id>    what was committed since the snapshot of this identity was written: for each commit a line with a checksum.
//                   Manifest and journal together say what the cache holds; nothing else does. close() makes one snapshot of
//                   both.
//   shards/         <group>-<stream>-<writer>.safetensors: one stream of a group of episodes, one after the other. Tensors:
//                     values    [total, ...]: of samples; where samples are ragged, of rows
//                     times     [n] int64 nanoseconds, not decreasing within an episode
//                     arrivals  [n] int64 nanoseconds
//                     offsets   [episodes + 1] int64: the samples of episode e are offsets[e] .. offsets[e + 1]
//                     inner     [n + 1] int64, of ragged streams: the rows of sample i are inner[i] .. inner[i + 1]
//                     padding   [1..7] uint8, where the int64 tensors would not lie at multiples of 8
//                     statistics  [words] uint64: partial statistics of each episode, of streams that are not ragged and have
//                               at most 256 channels. Older versions do not write it, and ignore it.
//                   The description in __metadata__ has a checksum; `verify_cache` rebuilds a lost manifest from it.
//   lock            held (flock) by the one writer.
//   quarantine/     what repairs have taken out, and whole shards that no known commit names. Readers do not look there.
// Caches of version 1 (no journal, no checksums of the manifest and of descriptions) are read, and become version 2 with the
// first commit.
//
// What is promised
//   - A shard is written under a temporary name, synced and renamed. Then a line is appended to the journal and synced; or a
//     manifest is written, synced and renamed. A crash at any point leaves the state before the commit or the one after it.
//     The next writer removes what a crash leaves behind, and moves whole shards that no known commit names to quarantine/.
//   - The cost of a commit does not grow with the number of episodes: a snapshot is written when the journal has become longer
//     than the last snapshot.
//   - A group is committed when it holds Options::group_bytes or max_group_episodes, when commit() asks for it, and by close();
//     only whole episodes are. A shard never changes once it is committed, so readers and a writer may work at the same time.
//   - One writer at a time. Where somebody has removed the lock, and another writer has come, the first one's commit fails
//     and changes nothing. Symbolic links in place of the cache's own files are refused.
//   - A process that was forked while a writer was open has no writer: its calls are refused, and nothing that it does touches
//     the parent's files or keeps the lock.
//   - An episode that is discarded, or whose end_episode() throws, leaves nothing: no samples, streams, channels, methods.
//     The one exception says so: where the disk fails twice, and may or may not have the commit, the episode waits.
//   - Memory: under 64 MiB for the writer, whatever the length of an episode (at up to 300 streams), the manifest, and
//     16 KiB for each channel of an episode with over 65,536 samples of it. A reader holds the manifest, and maps shards while
//     views of them live; the last 1024 shards of all readers of a process stay mapped longer.
//   - Opening reads the manifest and asks for the size of each shard: its cost does not grow with the samples. A shard that is
//     missing or of another size is an Error then; its header is checked when it is first read.
//   - Stamps that go backward within a stream of an episode are sorted, equal ones staying in their order, and counted.
//   - Channels are known by name where they have names. A batch with new ones widens the stream: samples without them have NaN
//     there. Streams of integers, and those without names, cannot be widened.
//   - A stream has one method for each channel: the first one that was given. An episode that gives none changes nothing (new
//     channels beside others that have a method get the default one); one that gives another method is an Error(value),
//     unless all episodes that have the stream are of an older version of the source that is being read.
//   - Each episode has metadata of its own. Those of a stream are what its episodes agree on, "varies" where they do not.
//   - Nothing in a manifest, a journal or a shard is trusted: what does not fit gets a sentence that begins with the file's
//     name, and memory stays below 4 times the file (of a manifest 20 times) plus 256 MiB. A cache of a later version is
//     refused with a sentence.
//
// Errors. Failures of the file system are Error(file), and name the file.
// Determinism. The samples that are read are the bytes that were appended. Names of shards differ from run to run.
// Limits. A sample has fewer than max_rank dimensions. Numbers of episodes, samples, rows and the sizes of a sample are at most 2^48,
// and the bytes of a sample 2^62.
// Threads. Threads may share a Cache. Threads that share a CacheWriter wait for each other, call by call.
// Memory. Views of a cache are read only: where shards are mapped, a write into one ends the process. Their int64 arrays begin
// at multiples of 8 bytes, their values at multiples of the dtype's size.
#pragma once

#include <robocache/array.h>
#include <robocache/error.h>
#include <robocache/formats.h>
#include <robocache/tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

inline constexpr int cache_version = 2;
inline constexpr std::int64_t max_group_episodes = 4096;

// A source of a cache's episodes. It is unchanged if name, size and mtime of each file are unchanged; if they differ, the hash
// of the content decides.
struct CacheSource {
  std::string path{};      // its name: of a file, or of the directory that holds its files
  std::int64_t size = 0;   // bytes of all its files; -1: not known, so it is always read again
  std::int64_t mtime = 0;  // nanoseconds, of the file that changed last
  std::string hash{};      // xxh3-128 in hexadecimal; empty until all of it was read
  std::string options{};   // how it was read: another text means that it must be read again
  bool is_complete = false;
  std::string stamp{};  // a hash of name, size and mtime of each file; empty in caches of version 1
};

// fstat() fields that identify an opened file. If they change, the file was replaced or written.
struct FileStamp {
  std::int64_t device = 0, inode = 0, size = 0, mtime = 0;  // mtime in nanoseconds
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

struct EpisodeStream {
  std::int64_t stream = 0;  // in streams()
  std::int64_t samples = 0;
  std::int64_t backward = 0;                   // stamps that were earlier than the one before
  std::int64_t latency = 0;                    // nanoseconds, with the clock's offset: subtract it from the times
  std::shared_ptr<const Metadata> metadata{};  // of a Cache's episodes, never null; many share one
};

struct CachedEpisode {
  std::string name{};
  std::string task{};
  std::int64_t source = -1;  // in sources()
  std::int64_t number = 0;   // in its source
  std::int64_t start = 0;    // nanoseconds, latency taken off: the first sample of all streams, and the last
  std::int64_t end = 0;
  std::int64_t group = 0;                // which shards hold it
  std::int64_t row = 0;                  // which episode of the group it is
  std::vector<EpisodeStream> streams{};  // by `stream`, ascending
};

// Views of a mapped shard, or of a copy; valid as long as `memory` is held.
struct CachedStream {
  std::int64_t channels = 0;  // of a stream that was widened later: the first ones
  TensorView values{}, times{}, arrivals{};
  TensorView inner{};    // of ragged streams, [n + 1]: sample i is values[inner[i] .. inner[i + 1]]
  TensorView offsets{};  // of read_group
  std::shared_ptr<const void> memory{};
};

// The statistics of all values of a stream, by channel. NaN and Inf are counted, and left out of everything else. The arrays
// have the shape `shape`.
struct StreamStatistics {
  // The shape of a sample, or of a row where samples are ragged. A picture (two dimensions or more, and uint8 or uint16 or over
  // 1024 elements) has its last dimension if that is at most 4, the colours, else it is one channel.
  std::vector<std::int64_t> shape{};
  Array count{};                                          // int64: of finite values
  Array nan{}, positive_infinity{}, negative_infinity{};  // int64
  Array mean{};                // float64: the nearest to the exact mean; NaN where count is 0
  Array deviation{};           // float64: of the population, within 1 ulp of the exact one
  Array minimum{}, maximum{};  // float64; of integers and bools int64 or uint64, and 0 where count is 0
  Array quantiles{};           // float64 [quantiles, ...]: interpolated as numpy.quantile does
  bool are_quantiles_exact = true;
  std::int64_t episodes = 0;  // that have the stream
  std::int64_t computed = 0;  // of these: the cache lacks their partial statistics, and their samples were read
};

// Any number of threads may use one Cache, and a child process may go on with it after fork().
class Cache {
 public:
  struct Options {
    // true: shards are mapped, and read() is a view of the file. Where a mapped file becomes shorter, or its disk fails,
    // the system ends the process (SIGBUS) as soon as someone touches the samples that are gone.
    // false: read() copies the samples that are asked for into memory. A file that became shorter, or a disk that fails, is
    // an Error with the file's name. For disks that are not trusted, and for files on a network.
    bool map = true;
  };
  Cache(const std::filesystem::path& path, const Options& options);
  explicit Cache(const std::filesystem::path& path) : Cache(path, Options{}) {}
  ~Cache();
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;

  const std::vector<StreamInfo>& streams() const noexcept;
  const std::vector<CachedEpisode>& episodes() const noexcept;
  const std::vector<CacheSource>& sources() const noexcept;
  std::int64_t bytes() const noexcept;  // of all shards
  // Bytes at the end of the journal that are not a whole commit, while no writer is at work: the last commit was interrupted
  // or was damaged since, and is not in this Cache. `verify_cache` takes its episodes in where their shards are whole.
  std::int64_t torn_bytes() const noexcept;
  // Finished shards that no commit names, while no writer is at work: their commit was interrupted, or the journal lost
  // the lines that named them. `verify_cache` takes their episodes in.
  std::int64_t unnamed_shards() const noexcept;

  // Throws Error(value) where the episode does not have the stream. Of a ragged stream that is mapped, `values` are all
  // rows of the shard; of one that is not, those of the episode.
  CachedStream read(std::int64_t episode, std::int64_t stream) const;

  // Merges the partial statistics of these episodes; an episode without the stream adds nothing. `quantiles`: from 0 to 1. The
  // result does not depend on the order of the episodes, how they are grouped in shards, or threads, to the bit. Channels that
  // were added to the stream later count as NaN in older episodes.
  // Quantiles are exact for values of one byte, and where no episode has over 16,384 values of a channel; these samples are
  // read. Longer episodes have sketches: then a quantile q lies between the exact ones of q - 1/800 and q + 1/800.
  // Cost: without quantiles that of reading the partials, some 100 bytes of each channel of an episode; with them also that of
  // reading the samples of short episodes one to six times. Where the cache lacks partials (an older version wrote it, the
  // stream is ragged or has over 256 channels) all samples are read.
  // Throws Error(value) where there is no such stream or episode, an episode is given twice, or a quantile is out of range;
  // Error(file) where partials are damaged.
  StreamStatistics statistics(std::int64_t stream, std::span<const std::int64_t> episodes,
                              std::span<const double> quantiles = {}) const;

  // All episodes of a group, with offsets by CachedEpisode::row. Throws Error(value) where the group has no such stream.
  CachedStream read_group(std::int64_t group, std::int64_t stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class CacheWriter {
 public:
  struct Options {
    std::int64_t group_bytes = std::int64_t{256} << 20;
  };
  struct Episode {
    std::string name{};
    std::string task{};
    std::int64_t number = 0;
    bool replaces = false;  // an episode of this name that has no source either; else such a name is an Error(value)
  };

  // Makes the directory, or goes on with the cache in it. Throws where another writer has it.
  CacheWriter(const std::filesystem::path& path, const Options& options);
  explicit CacheWriter(const std::filesystem::path& path) : CacheWriter(path, Options{}) {}
  ~CacheWriter();  // commits nothing: whole episodes that no commit() or close() has written are lost
  CacheWriter(CacheWriter&&) noexcept;
  CacheWriter& operator=(CacheWriter&&) noexcept;

  // Whether the cache has all of this source. The files are hashed where size or mtime differ.
  bool knows(std::string_view path, std::span<const std::filesystem::path> files, std::string_view options);

  // The episodes that follow are this source's. The first commit that has new ones removes the episodes of another version of
  // the source. Returns the numbers of the episodes that are committed already and stay: an interrupted build goes on after
  // them. `opened`: fstat() of each file as it was opened, in the order of `files`; empty: the files are looked at now. The
  // source is what was opened, even where other files have these names by now.
  std::vector<std::int64_t> begin_source(std::string_view path, std::span<const std::filesystem::path> files,
                                         std::string_view options, std::span<const FileStamp> opened = {});
  // All of the source was read. Returns false where a file has changed or was replaced since it was opened: the episodes stay,
  // the source is not complete, and the next build reads it again.
  bool end_source();
  void leave_source() noexcept;  // a part of it was read: a later build goes on

  void begin_episode(const Episode& episode);
  // A batch without samples makes an empty stream.
  void append(const StreamBatch& batch, std::int64_t latency = 0);
  // The same from memory of the caller's, which is copied.
  void append(const StreamInfo& info, const TensorView& values, std::span<const std::int64_t> times,
              std::span<const std::int64_t> arrivals, std::span<const std::int64_t> lengths, std::int64_t latency = 0);
  void end_episode();      // commits where the group is full
  void discard_episode();  // what was appended since begin_episode; nothing where none is open

  // Commits the whole episodes that wait; throws Error(value) inside an episode. After a failure it may be called again, and
  // begin_episode() does so. Where the disk may have lost what waited (fsync failed), that is dropped, and a sentence says
  // so, because it may not be whole. The writer then goes on, and a source that had episodes there is not complete.
  void commit();
  void close();  // discards an episode that is open, commits, and releases the lock, also where the commit fails
  void abandon() noexcept;  // releases the lock without a commit

  std::int64_t committed_episodes() const noexcept;
  std::int64_t waiting_episodes() const noexcept;  // whole, and not committed yet
  bool has_episode(std::string_view name) const;   // of those without a source; committed, or whole
  bool is_forked() const noexcept;                 // the writer was opened before this process was forked
  // Opening moves finished shards that no commit names to this folder within the cache: a commit was interrupted, or the
  // journal that named them was damaged. report.txt there says how to take them in. Empty: there were none.
  const std::filesystem::path& quarantine() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Something that verify_cache found.
struct CacheProblem {
  std::string file{};      // within the cache
  std::string sentence{};  // what is wrong, where
  std::string repair{};    // what was done about it, or what would be
};

// A file that a repair took out of the cache, or would take out.
struct CacheMove {
  std::string file{};    // within the cache; in the quarantine it has the same name
  std::string reason{};  // one sentence
};

struct CacheReport {
  std::vector<CacheProblem> problems{};
  std::vector<CacheMove> moved{};      // a manifest.json and its journal are copied there before a new one is written
  std::vector<std::string> dropped{};  // names of episodes that the cache loses
  std::string quarantine{};            // the folder within the cache that `moved` went to; empty: nothing was moved
  bool is_repaired = false;            // there were problems, and they are mended
  std::int64_t shards = 0, tensors = 0, bytes = 0, episodes = 0, streams = 0;  // that are good
};

// Reads all of a cache: checksums, counts, offsets, the order of times, missing files and leftovers. Changes nothing.
//
// With `repair`, damage is repaired as far as possible, and nothing is deleted. Damaged shards, shards that no whole episode
// needs, and leftovers of a crash are moved to quarantine/<time>/ inside the cache, under their names;
// report.txt there says what, why, when, and how to undo it. Episodes that have a part in a damaged shard are dropped, all
// others stay, and the next build reads their sources again. A missing or damaged manifest is made anew from the shards:
// every intact shard is found again. The new manifest passes the reader's rules before anything is moved, and the old one
// is kept in the quarantine. A second repair finds nothing to do. `dry_run`: nothing changes, and the report is the plan.
//
// Damage is a wrong checksum, size or format. A file that the system fails to read (no permission, a disk that fails, too many
// open files) may be whole: the call throws, and nothing was changed. It also throws where the
// directory holds no cache, is of a later version, lacks its folder shards/, or, with `repair` or `dry_run`, has a writer.
CacheReport verify_cache(const std::filesystem::path& path, bool repair, bool dry_run = false);

}  // namespace robocache

#pragma GCC visibility pop
