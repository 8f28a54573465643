#include <fcntl.h>
#include <robocache/cache.h>
#include <robocache/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "cache/directory.h"
#include "cache/files.h"
#include "cache/hash.h"
#include "cache/manifest.h"
#include "cache/open_shard.h"
#include "cache/quarantine.h"
#include "cache/safetensors.h"
#include "core/text.h"

namespace robocache {

using namespace cache;

namespace {

constexpr std::int64_t max_time = std::int64_t{1} << 62;
constexpr std::int64_t max_count = std::int64_t{1} << 48;
constexpr std::size_t pack_bytes = 1 << 20;
// Bytes. Fold the journal into the manifest once it is longer than both this and the manifest.
constexpr std::int64_t least_journal = 64 << 10;

bool is_time(std::int64_t time) { return time > -max_time && time < max_time; }

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error(ErrorKind::value, concat(parts...));
}

bool is_dense(const TensorView& view) {
  std::int64_t expected = 1;
  for (int k = view.rank - 1; k >= 0; --k) {
    const auto d = static_cast<std::size_t>(k);
    if (view.shape[d] != 1 && view.strides[d] != expected) return false;
    expected *= view.shape[d];
  }
  return true;
}

// Elements of a view of any strides, in order, from dimension `d` on.
void pack(const TensorView& view, int d, const std::byte* from, std::byte*& to) {
  const auto size = static_cast<std::size_t>(size_of(view.dtype));
  if (d == view.rank) {
    std::memcpy(to, from, size);
    to += size;
    return;
  }
  const auto dimension = static_cast<std::size_t>(d);
  const std::int64_t step = view.strides[dimension] * static_cast<std::int64_t>(size);
  for (std::int64_t k = 0; k < view.shape[dimension]; ++k) pack(view, d + 1, from + k * step, to);
}

std::string sample_text(const StreamInfo& info) {
  return concat(name_of(info.dtype), " ", shape_text(info.shape), info.is_ragged ? " (ragged)" : "");
}

bool are_unique(std::vector<std::string> names) {
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) == names.end();
}

bool is_same(const std::vector<MethodRange>& a, const std::vector<MethodRange>& b) {
  return std::ranges::equal(a, b, [](const MethodRange& x, const MethodRange& y) {
    return x.method == y.method && x.begin == y.begin && x.end == y.end;
  });
}

std::vector<Method> methods_by_channel(const StreamInfo& info) {
  const Method usual = is_float(info.dtype) ? Method::linear : Method::hold;
  std::vector<Method> methods(static_cast<std::size_t>(channels_of(info)), usual);
  for (const MethodRange& range : info.methods) {
    std::fill(methods.begin() + range.begin, methods.begin() + range.end, range.method);
  }
  return methods;
}

std::vector<MethodRange> ranges_of(const std::vector<Method>& methods) {
  std::vector<MethodRange> ranges;
  for (std::size_t k = 0; k < methods.size(); ++k) {
    const auto at = static_cast<std::int64_t>(k);
    if (ranges.empty() || ranges.back().method != methods[k]) ranges.push_back({methods[k], at, at});
    ranges.back().end = at + 1;
  }
  return ranges;
}

}  // namespace

// What is committed is `manifest`, and nothing else changes it. What waits for a commit lies beside it: a commit makes a
// Change of that, which goes to the disk first and into `manifest` then, by the same code that readers use.
// There is one for a writer, and its parts are in the order of their meaning.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct CacheWriter::State {
  Path path;
  Options options;
  std::optional<Lock> lock;
  const pid_t process = getpid();
  std::string nonce = new_identity().substr(0, 8);  // in the names of this writer's shards: no other writer has them
  std::recursive_mutex mutex;

  // On the disk
  Manifest manifest;
  MetadataPool pool;
  std::string checksum;             // the next line of the journal continues it
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
  std::unordered_map<std::string, Row> by_name;                             // episodes that have no source

  // The group that is written
  std::map<std::int64_t, OpenShard> shards;  // by stream
  std::vector<CachedEpisode> episodes;       // whole ones
  std::set<Row> replaced;                    // episodes that go when these are committed
  bool must_commit = false;                  // a commit failed: it is tried again before anything is added
  std::map<std::int64_t, Shard> finished;    // by it

  // The episode that is open, or ended last
  std::optional<CachedEpisode> episode;
  std::int64_t row = 0;
  std::optional<Row> replaces;
  std::map<std::int64_t, std::int64_t> latencies;     // by stream
  std::map<std::int64_t, Metadata> said;              // by stream, in all its batches
  std::map<std::int64_t, StreamInfo> streams_before;  // those that it changed
  std::size_t stream_count = 0;                       // when it began
  bool has_failed = false;

  std::map<std::int64_t, std::shared_ptr<const Metadata>> last_said;  // by stream: of episodes that say the same, one
  std::int64_t source = -1;
  std::vector<Path> source_files;
  std::vector<FileStamp> source_stamps;
  bool has_lost = false;  // whole episodes of this source were dropped, so it must not be marked complete

  ~State() { abandon(); }
  bool is_forked() const noexcept { return getpid() != process; }
  void abandon() noexcept {
    if (!is_forked()) {  // else the files are the parent's
      for (auto& [stream, shard] : shards) shard.abandon();
    }
    shards.clear();
    episodes.clear();
    episode.reset();
    journal = {};
    lock.reset();
  }

  void open();
  void remove_leftovers(bool is_journal_whole) const;
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
  std::size_t drop_group();  // returns how many episodes went
};

namespace {

// One thread at a time; and none of a process that was forked while the writer was open.
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

}  // namespace

// ---- Opening

void CacheWriter::State::open() {
  const bool is_new = !std::filesystem::exists(manifest_path(path));
  if (is_new && std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name != "shards" && name != "lock" && name != "manifest.json.tmp" && !is_journal_name(name)) {
        throw Error(ErrorKind::file,
                    concat(path.string(), ": this is no cache, and not empty: it holds ", in_quotes(name)));
      }
    }
  }
  make_directory(path);
  refuse_links(path);
  lock.emplace(path);
  // Asked again: whoever had the lock may have made it. A manifest is there before any shard is.
  if (!std::filesystem::exists(manifest_path(path))) {
    const auto in_shards = find_leftovers(path, {});
    if (std::ranges::any_of(in_shards, [](const Path& p) { return is_shard_name(p.filename().string()); })) {
      require_manifest(path);  // throws: there are shards, and verify can help
    }
    make_directory(shards_path(path), false);  // save_manifest() syncs the folder that it is in
    Manifest empty;
    save_manifest(path, empty, false);
  }
  LoadedCache loaded = load_cache(path);
  const bool is_old = loaded.version < cache_version;
  manifest = std::move(loaded.manifest);
  checksum = std::move(loaded.journal.checksum);
  manifest_bytes = loaded.manifest_bytes;
  journal_bytes = loaded.journal.bytes;
  make_directory(shards_path(path));
  const bool has_journal = std::filesystem::exists(journal_path(path, manifest));
  remove_leftovers(has_journal && loaded.journal.torn_bytes == 0);
  manifest.next_group = std::max(manifest.next_group, first_group_after_quarantine(path));
  // A journal that another writer left is not continued: its last line may not be whole, or not on the disk.
  needs_snapshot = tidy(manifest) || has_journal || is_old;
  streams = manifest.streams;
  sources = manifest.sources;
  make_index();
}

// What a crash left. A whole shard that nothing names may have been committed, by a line of the journal that is damaged now,
// or by a journal that is gone: only a whole journal proves that it was not. So it is kept, in the quarantine.
void CacheWriter::State::remove_leftovers(bool is_journal_whole) const {
  std::vector<Taken> kept;
  for (const Path& leftover : find_leftovers(path, manifest)) {
    if (is_journal_whole || !is_shard_name(leftover.filename().string())) {
      remove_file(path / leftover);
    } else {
      kept.push_back({leftover, "no commit that is known names it"});
    }
  }
  if (kept.empty()) return;
  std::string report =
      concat("A writer opened this cache on ", time_in_words(), " and found shards that no commit names.\n",
             "Either a crash interrupted their commit, or the journal that named them was damaged.\n",
             "To take their episodes into the cache: move the files back to the folder shards,\n",
             "then run `robocache verify --repair`. They are:\n");
  for (const Taken& taken : kept) report += concat("  ", taken.file.string(), "\n");
  Quarantine(path).take(kept, report);
}

void CacheWriter::State::index(const CachedEpisode& entry) {
  const Row place{entry.group, entry.row};
  if (entry.source >= 0) {
    by_source[entry.source][place] = entry.number;
  } else if (!replaced.contains(place)) {
    by_name[entry.name] = place;
  }
}

void CacheWriter::State::make_index() {
  by_path.clear();
  by_source.clear();
  by_name.clear();
  for (std::size_t k = 0; k < sources.size(); ++k) by_path[sources[k].path].push_back(static_cast<std::int64_t>(k));
  for (const auto* const all : {&manifest.episodes, &episodes}) {
    for (const CachedEpisode& entry : *all) index(entry);
  }
}

CacheWriter::CacheWriter(const std::filesystem::path& path, const Options& options)
    : state_(std::make_unique<State>()) {
  if (options.group_bytes < 1) refuse("CacheWriter: group_bytes is ", options.group_bytes, "; it must be positive");
  state_->path = path;
  state_->options = options;
  try {
    state_->open();
  } catch (const std::filesystem::filesystem_error& error) {
    fail_errno(path, "cannot be read", error.code().value());
  }
}
CacheWriter::~CacheWriter() = default;
CacheWriter::CacheWriter(CacheWriter&&) noexcept = default;
CacheWriter& CacheWriter::operator=(CacheWriter&&) noexcept = default;

// In a forked process nobody else uses the state, and the mutex may be locked for ever.
std::int64_t CacheWriter::committed_episodes() const noexcept {
  std::unique_lock guard(state_->mutex, std::defer_lock);
  if (!state_->is_forked()) guard.lock();
  return static_cast<std::int64_t>(state_->manifest.episodes.size());
}

std::int64_t CacheWriter::waiting_episodes() const noexcept {
  std::unique_lock guard(state_->mutex, std::defer_lock);
  if (!state_->is_forked()) guard.lock();
  return static_cast<std::int64_t>(state_->episodes.size());
}

bool CacheWriter::is_forked() const noexcept { return state_->is_forked(); }

// ---- Sources

namespace {

std::vector<Path> sorted(std::span<const Path> files) {
  std::vector<Path> result(files.begin(), files.end());
  std::ranges::sort(result);
  return result;
}

// A source as its files are now. Its stamp tells of a change of any of them, also where two have changed places.
CacheSource source_of(std::string_view name, std::span<const Path> files, std::span<const FileStamp> stamps,
                      std::string_view options) {
  CacheSource source{.path = as_utf8(name), .options = as_utf8(options)};
  Hash hash;
  for (std::size_t k = 0; k < files.size(); ++k) {
    source.size += stamps[k].size;
    source.mtime = std::max(source.mtime, stamps[k].mtime);
    const std::string file = files[k].filename().string();
    const std::int64_t numbers[] = {static_cast<std::int64_t>(file.size()), stamps[k].size, stamps[k].mtime};
    hash.add(std::as_bytes(std::span(numbers)));
    hash.add(std::as_bytes(std::span(file)));
  }
  if (files.empty()) source.size = -1;
  source.stamp = hash.text();
  return source;
}

bool is_unchanged(std::span<const Path> files, const std::vector<FileStamp>& stamps) {
  try {
    return stamps_of(files) == stamps;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

// The versions of a source, by their entries.
std::vector<SourceVersion> CacheWriter::State::versions_of(const std::vector<std::int64_t>& entries) const {
  std::vector<SourceVersion> versions;
  for (const std::int64_t place : entries) {
    const auto rows = by_source.find(place);
    versions.push_back(
        {sources[static_cast<std::size_t>(place)].is_complete, rows != by_source.end() && !rows->second.empty()});
  }
  return versions;
}

// The entry that has this version of it; -1 where none has. An entry that a later version replaces has nothing: a file
// that is what it was two versions ago is read again.
std::int64_t CacheWriter::State::find_source(const CacheSource& wanted, std::span<const Path> files) const {
  const auto entries = by_path.find(wanted.path);
  if (entries == by_path.end() || wanted.size < 0) return -1;
  const std::vector<bool> is_replaced = replaced_versions(versions_of(entries->second));
  std::string hash;
  for (std::size_t k = entries->second.size(); k-- > 0;) {
    const std::int64_t place = entries->second[k];
    const CacheSource& known = sources[static_cast<std::size_t>(place)];
    if (is_replaced[k] || known.options != wanted.options || known.size != wanted.size) continue;
    if (known.stamp.empty() ? known.mtime == wanted.mtime : known.stamp == wanted.stamp) return place;
    if (known.hash.empty()) continue;
    if (hash.empty()) hash = hash_of(files);
    if (known.hash == hash) return place;
  }
  return -1;
}

bool CacheWriter::knows(std::string_view path, std::span<const std::filesystem::path> files, std::string_view options) {
  State& state = *state_;
  const Entry entry(state);
  const std::vector<Path> in_order = sorted(files);
  const CacheSource now = source_of(path, in_order, stamps_of(in_order), options);
  const std::int64_t found = state.find_source(now, in_order);
  if (found < 0) return false;
  CacheSource& source = state.sources[static_cast<std::size_t>(found)];
  if (!source.is_complete) return false;
  if (source.stamp != now.stamp) {  // the hash has said that it is the same: the next time the stamp will
    source.mtime = now.mtime;
    source.stamp = now.stamp;
    state.changed_sources.insert(found);
    state.is_dirty = true;
  }
  return true;
}

std::vector<std::int64_t> CacheWriter::begin_source(std::string_view path, std::span<const std::filesystem::path> files,
                                                    std::string_view options, std::span<const FileStamp> opened) {
  State& state = *state_;
  const Entry entry(state);
  if (!state.lock) refuse("CacheWriter: it is closed");
  if (state.episode) refuse("CacheWriter: a source cannot begin inside an episode");
  if (!opened.empty() && opened.size() != files.size()) {
    refuse("CacheWriter: ", files.size(), " files of a source, but ", opened.size(), " stamps of opened ones");
  }
  std::vector<std::size_t> order(files.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t k) -> const Path& { return files[k]; });
  state.source_files.clear();
  state.source_stamps.clear();
  for (const std::size_t k : order) {
    state.source_files.push_back(files[k]);
    if (!opened.empty()) state.source_stamps.push_back(opened[k]);
  }
  if (opened.empty()) state.source_stamps = stamps_of(state.source_files);
  state.has_lost = false;
  const CacheSource now = source_of(path, state.source_files, state.source_stamps, options);
  // Only files that are still those that were opened can be known by their hash.
  const bool is_current = opened.empty() || is_unchanged(state.source_files, state.source_stamps);
  state.source = is_current ? state.find_source(now, state.source_files) : -1;
  std::vector<std::int64_t> numbers;
  if (state.source < 0) {
    state.source = static_cast<std::int64_t>(state.sources.size());
    state.sources.push_back(now);
    state.by_path[now.path].push_back(state.source);
  } else {
    CacheSource& known = state.sources[static_cast<std::size_t>(state.source)];
    known.mtime = now.mtime;
    known.stamp = now.stamp;
    for (const auto& [row, number] : state.by_source[state.source]) numbers.push_back(number);
  }
  state.changed_sources.insert(state.source);
  return numbers;
}

bool CacheWriter::end_source() {
  State& state = *state_;
  const Entry entry(state);
  if (state.source < 0) refuse("CacheWriter: no source has begun");
  if (state.episode) refuse("CacheWriter: a source cannot end inside an episode");
  CacheSource& source = state.sources[static_cast<std::size_t>(state.source)];
  std::string hash = source.hash;
  try {
    if (hash.empty()) hash = hash_of(state.source_files);
  } catch (const Error&) {
    hash.clear();
  }
  // Where a file changed meanwhile, nobody knows what was read: the source is read again the next time.
  const bool is_same = is_unchanged(state.source_files, state.source_stamps);
  source.hash = is_same ? hash : std::string();
  if (source.hash.empty()) source.size = -1;
  source.is_complete = is_same && !state.has_lost;
  state.source = -1;
  state.is_dirty = true;
  return is_same;
}

void CacheWriter::leave_source() noexcept {
  if (state_->is_forked()) return;
  const std::lock_guard guard(state_->mutex);
  state_->source = -1;
}

// ---- Episodes

bool CacheWriter::has_episode(std::string_view name) const {
  const Entry entry(*state_);
  return state_->by_name.contains(std::string(name));
}

void CacheWriter::begin_episode(const Episode& wanted) {
  State& state = *state_;
  const Entry entry(state);
  if (!state.lock) refuse("CacheWriter: it is closed");
  if (state.episode) refuse("CacheWriter: episode ", in_quotes(state.episode->name), " has not ended");
  if (wanted.number < 0 || wanted.number > max_count) {
    refuse("CacheWriter: the number of an episode is ", wanted.number, "; it must be from 0 to 2^48");
  }
  if (state.must_commit) state.commit(false);
  CachedEpisode episode;
  episode.name = as_utf8(wanted.name);
  episode.task = as_utf8(wanted.task);
  episode.source = state.source;
  episode.number = wanted.number;
  episode.group = state.manifest.next_group;
  episode.row = state.episodes.empty() ? 0 : state.episodes.back().row + 1;
  state.replaces.reset();
  if (const auto other = state.by_name.find(episode.name); state.source < 0 && other != state.by_name.end()) {
    if (!wanted.replaces) {
      refuse("CacheWriter: there is an episode ", in_quotes(episode.name),
             " already; give another name, or replace it");
    }
    state.replaces = other->second;
  }
  state.row = episode.row;
  state.episode = std::move(episode);
  state.latencies.clear();
  state.said.clear();
  state.streams_before.clear();
  state.stream_count = state.streams.size();
  state.has_failed = false;
}

void CacheWriter::append(const StreamBatch& batch, std::int64_t latency) {
  append(*batch.info, batch.values.view(), batch.times, batch.arrivals, batch.lengths, latency);
}

void CacheWriter::append(const StreamInfo& given, const TensorView& values, std::span<const std::int64_t> times,
                         std::span<const std::int64_t> arrivals, std::span<const std::int64_t> lengths,
                         std::int64_t latency) {
  State& state = *state_;
  const Entry entry(state);
  if (!state.episode) refuse("CacheWriter: no episode has begun");
  if (state.has_failed) refuse("CacheWriter: an earlier append failed; discard the episode");
  const std::string where = concat("CacheWriter: stream ", in_quotes(given.name), ": ");
  StreamInfo info = given;
  info.name = as_utf8(given.name);
  info.type = as_utf8(given.type);
  for (std::string& channel : info.channels) channel = as_utf8(channel);
  info.metadata.clear();
  for (const auto& [key, value] : given.metadata) info.metadata[as_utf8(key)] = as_utf8(value);

  // Everything that can be wrong with the batch, before anything is written.
  if (info.name.empty()) refuse("CacheWriter: a stream has no name");
  if (info.shape.size() >= static_cast<std::size_t>(max_rank) || !bytes_of_shape(info.dtype, info.shape) ||
      std::ranges::any_of(info.shape, [](std::int64_t size) { return size > max_count; })) {
    refuse(where, "samples of shape ", shape_text(info.shape), " are too large");
  }
  const std::int64_t channels = channels_of(info);
  if (!info.channels.empty() && static_cast<std::int64_t>(info.channels.size()) != channels) {
    refuse(where, info.channels.size(), " names for ", channels, " channels");
  }
  for (const MethodRange& range : info.methods) {
    if (range.begin < 0 || range.end < range.begin || range.end > channels) {
      refuse(where, "a method is for channels ", range.begin, " to ", range.end, ", but there are ", channels);
    }
  }
  if (values.device.kind != DeviceKind::cpu) {
    throw Error(ErrorKind::type, where + "values are on a GPU; a cache takes those in host memory");
  }
  if (values.dtype != info.dtype) {
    throw Error(ErrorKind::type, concat(where, "values are ", name_of(values.dtype), ", not ", name_of(info.dtype)));
  }
  const std::span<const std::int64_t> shape(values.shape.data(), static_cast<std::size_t>(std::max(values.rank, 0)));
  if (shape.empty() || !std::ranges::equal(shape.subspan(1), info.shape)) {
    refuse(where, "values are ", shape_text(shape), ", but samples are ", sample_text(info));
  }
  if (arrivals.size() != times.size()) refuse(where, times.size(), " times, but ", arrivals.size(), " arrivals");
  std::int64_t rows = 0;
  if (info.is_ragged) {
    if (lengths.size() != times.size()) refuse(where, times.size(), " times, but ", lengths.size(), " lengths");
    for (const std::int64_t length : lengths) {
      if (length < 0 || length > shape[0] - rows)
        refuse(where, "lengths must add up to the ", shape[0], " rows of values");
      rows += length;
    }
    if (rows != shape[0]) refuse(where, "lengths add up to ", rows, ", but values have ", shape[0], " rows");
  } else if (shape[0] != static_cast<std::int64_t>(times.size())) {
    refuse(where, shape[0], " values, but ", times.size(), " times");
  }
  if (!std::ranges::all_of(times, is_time) || !std::ranges::all_of(arrivals, is_time) || !is_time(latency)) {
    refuse(where, "times, arrivals and latency must be below 2^62 ns (146 years)");
  }
  if (!std::ranges::all_of(times, [&](std::int64_t time) { return is_time(time - latency); })) {
    refuse(where, "times with the latency taken off must be below 2^62 ns (146 years); latency is ", latency, " ns");
  }

  std::int64_t stream = -1;
  const std::vector<std::int64_t> columns = state.merge(info, stream);
  state.has_failed = true;  // until all of it is there
  OpenShard& shard = state.shard_of(stream);
  state.append_values(shard, values, columns, info);
  shard.append_stamps(times, arrivals, info.is_ragged ? lengths : std::span<const std::int64_t>());
  state.latencies[stream] = latency;
  unite(state.said[stream], info.metadata);
  state.has_failed = false;
}

// Where in the stream each channel of the batch goes; empty: all of them, in order. The stream takes in what is new.
std::vector<std::int64_t> CacheWriter::State::merge(const StreamInfo& info, std::int64_t& stream) {
  const auto found = std::ranges::find(streams, info.name, &StreamInfo::name);
  stream = found - streams.begin();
  if (found == streams.end()) {
    streams.push_back(info);
    return {};
  }
  StreamInfo known = *found;
  const auto is_used = [&] {
    return shards.contains(stream) ||
           std::ranges::any_of(manifest.shards, [&](const Shard& s) { return s.stream == stream; });
  };
  const auto disagree = [&](std::string_view why) {
    refuse("CacheWriter: stream ", in_quotes(info.name), ": samples are ", sample_text(info),
           ", but the cache has them as ", sample_text(known), why, "; give it another name");
  };
  const auto take = [&](StreamInfo changed) {
    if (static_cast<std::size_t>(stream) < stream_count) streams_before.emplace(stream, *found);
    *found = std::move(changed);
  };
  const bool is_plain =
      info.shape == known.shape && (info.channels == known.channels || info.channels.empty() || known.channels.empty());
  const bool can_widen = info.shape.size() == 1 && known.shape.size() == 1 && !info.channels.empty() &&
                         !known.channels.empty() && are_unique(info.channels) && are_unique(known.channels);
  if (info.dtype != known.dtype || info.is_ragged != known.is_ragged || (!is_plain && !can_widen)) {
    if (is_used()) disagree("");
    take(info);
    return {};
  }
  std::vector<std::int64_t> columns;
  std::vector<std::string> added;
  if (!is_plain) {
    for (const std::string& channel : info.channels) {
      const auto same = std::ranges::find(known.channels, channel);
      columns.push_back(same - known.channels.begin());
      if (same != known.channels.end()) continue;
      columns.back() += static_cast<std::int64_t>(added.size());
      added.push_back(channel);
    }
    const std::size_t width = known.channels.size() + added.size();
    if (width != info.channels.size() || !added.empty()) {
      if (!is_float(known.dtype)) disagree(" with other channels, and integers have no NaN for those that are missing");
    }
  }
  check_methods(info, stream, columns);
  const bool has_methods = !info.methods.empty() || !known.methods.empty();
  bool is_changed = !added.empty();
  known.channels.insert(known.channels.end(), added.begin(), added.end());
  if (!added.empty()) known.shape[0] += static_cast<std::int64_t>(added.size());
  if (is_plain && known.channels.empty() && !info.channels.empty()) {
    known.channels = info.channels;
    is_changed = true;
  }
  if (has_methods) {
    std::vector<Method> methods = methods_by_channel(known);
    if (!info.methods.empty()) {
      const std::vector<Method> given = methods_by_channel(info);
      for (std::size_t k = 0; k < given.size(); ++k) {
        methods[columns.empty() ? k : static_cast<std::size_t>(columns[k])] = given[k];
      }
    }
    std::vector<MethodRange> ranges = ranges_of(methods);
    is_changed = is_changed || !is_same(known.methods, ranges);
    known.methods = std::move(ranges);
  }
  if (known.type.empty() && !info.type.empty()) {
    known.type = info.type;
    is_changed = true;
  }
  if (is_changed) take(std::move(known));
  return columns;
}

// A method that was given stays: an episode that gives none changes nothing, and one that gives another is refused, unless
// all episodes that have the stream are of an older version of the source that is read now.
void CacheWriter::State::check_methods(const StreamInfo& info, std::int64_t stream,
                                       const std::vector<std::int64_t>& columns) const {
  const StreamInfo& known = streams[static_cast<std::size_t>(stream)];
  if (info.methods.empty() || known.methods.empty()) return;
  const std::vector<Method> given = methods_by_channel(info), there = methods_by_channel(known);
  const auto stays = [&](const CachedEpisode& entry) {
    const bool has = std::ranges::any_of(entry.streams, [&](const EpisodeStream& s) { return s.stream == stream; });
    const bool is_older =
        source >= 0 && entry.source >= 0 && entry.source != source &&
        sources[static_cast<std::size_t>(entry.source)].path == sources[static_cast<std::size_t>(source)].path;
    return has && !is_older;
  };
  for (std::size_t k = 0; k < given.size(); ++k) {
    const auto place = columns.empty() ? k : static_cast<std::size_t>(columns[k]);
    if (place >= there.size() || given[k] == there[place]) continue;
    const bool is_in_this_one = said.contains(stream);
    if (!is_in_this_one && !std::ranges::any_of(manifest.episodes, stays) && !std::ranges::any_of(episodes, stays))
      return;
    const std::string channel =
        info.channels.empty() ? concat("channel ", k) : concat("channel ", in_quotes(info.channels[k]));
    refuse("CacheWriter: stream ", in_quotes(info.name), ": the method of ", channel, " is ", method_name(given[k]),
           ", but the cache has it as ", method_name(there[place]),
           "; a stream has one method: give none, give the stream another name, or write to a new cache");
  }
}

OpenShard& CacheWriter::State::shard_of(std::int64_t stream) {
  const StreamInfo& info = streams[static_cast<std::size_t>(stream)];
  auto found = shards.find(stream);
  if (found == shards.end()) {
    const std::string stem = concat(shard_stem(manifest.next_group, info.name), "-", nonce);
    std::string unique = stem;
    const auto is_taken = [&](const auto& entry) { return entry.second.stem() == unique; };
    for (int k = 2; std::ranges::any_of(shards, is_taken); ++k) unique = concat(stem, "-", k);
    found = shards.emplace(stream, OpenShard(shards_path(path), unique, stream, info)).first;
  }
  OpenShard& shard = found->second;
  if (!shard.has_episode(episode->row)) shard.begin_episode(episode->row);
  if (shard.channels() < channels_of(info)) shard.widen(info);
  return shard;
}

void CacheWriter::State::append_values(OpenShard& shard, const TensorView& values,
                                       const std::vector<std::int64_t>& columns, const StreamInfo& info) {
  const auto size = static_cast<std::size_t>(size_of(values.dtype));
  const auto* const data = static_cast<const std::byte*>(values.data);
  const std::int64_t rows = values.shape[0];
  const auto narrow = static_cast<std::size_t>(channels_of(info)) * size;
  const auto wide = static_cast<std::size_t>(channels_of(streams[static_cast<std::size_t>(shard.stream())])) * size;
  if (columns.empty() && is_dense(values)) {
    shard.append_values({data, static_cast<std::size_t>(rows) * narrow}, rows);
    return;
  }
  if (rows == 0 || wide == 0) {
    shard.append_values({}, rows);
    return;
  }
  const std::vector<std::byte> blank = blank_row(values.dtype, static_cast<std::int64_t>(wide / size));
  const auto at_once = static_cast<std::int64_t>(std::max<std::size_t>(pack_bytes / std::max(wide, narrow), 1));
  std::vector<std::byte> dense, placed;
  for (std::int64_t row = 0; row < rows; row += at_once) {
    TensorView some = values;
    some.shape[0] = std::min(at_once, rows - row);
    dense.resize(static_cast<std::size_t>(some.shape[0]) * narrow);
    std::byte* to = dense.data();
    pack(some, 0, data + row * values.strides[0] * static_cast<std::int64_t>(size), to);
    if (columns.empty()) {
      shard.append_values(dense, some.shape[0]);
      continue;
    }
    placed.resize(static_cast<std::size_t>(some.shape[0]) * wide);
    for (std::size_t k = 0; k < static_cast<std::size_t>(some.shape[0]); ++k) {
      std::memcpy(&placed[k * wide], blank.data(), wide);
      for (std::size_t c = 0; c < columns.size(); ++c) {
        std::memcpy(&placed[k * wide + static_cast<std::size_t>(columns[c]) * size], &dense[k * narrow + c * size],
                    size);
      }
    }
    shard.append_values(placed, some.shape[0]);
  }
}

void CacheWriter::end_episode() {
  State& state = *state_;
  const Entry entry(state);
  if (!state.episode) refuse("CacheWriter: no episode has begun");
  if (state.has_failed) refuse("CacheWriter: an append failed; discard the episode");
  state.has_failed = true;
  CachedEpisode& episode = *state.episode;
  std::int64_t bytes = 0;
  for (auto& [stream, shard] : state.shards) {
    bytes += shard.bytes();
    if (!shard.has_episode(episode.row)) continue;
    const OpenShard::Extent extent = shard.extent();
    const std::int64_t latency = state.latencies[stream];
    if (extent.samples > 0 && (!is_time(extent.first - latency) || !is_time(extent.last - latency))) {
      refuse("CacheWriter: stream ", in_quotes(state.streams[static_cast<std::size_t>(stream)].name),
             ": times with the latency taken off must be below 2^62 ns (146 years); latency is ", latency, " ns");
    }
    shard.sort_episode();
  }
  bool is_empty = true;
  for (auto& [stream, shard] : state.shards) {
    if (!shard.has_episode(episode.row)) continue;
    const OpenShard::Extent extent = shard.end_episode();
    const std::int64_t latency = state.latencies[stream];
    auto& metadata = state.last_said[stream];
    if (!metadata || *metadata != state.said[stream]) metadata = std::make_shared<const Metadata>(state.said[stream]);
    episode.streams.push_back({stream, extent.samples, extent.backward, latency, metadata});
    if (extent.samples == 0) continue;
    episode.start = is_empty ? extent.first - latency : std::min(episode.start, extent.first - latency);
    episode.end = is_empty ? extent.last - latency : std::max(episode.end, extent.last - latency);
    is_empty = false;
  }
  if (state.replaces) state.replaced.insert(*state.replaces);
  state.index(episode);
  state.episodes.push_back(std::move(episode));
  state.episode.reset();
  state.has_failed = false;
  const bool is_full =
      bytes >= state.options.group_bytes || static_cast<std::int64_t>(state.episodes.size()) >= max_group_episodes;
  if (!is_full) {
    for (auto& [stream, shard] : state.shards) shard.keep_episode();
    return;
  }
  try {
    state.commit(false);
  } catch (...) {  // also Ctrl-C, which is not an Error
    if (state.episodes.empty() || state.take_back()) throw;
    try {
      throw;
    } catch (const Error& error) {
      throw Error(error.kind(), concat(error.what(), "; episode ", in_quotes(state.episodes.back().name),
                                       " is kept, and waits for the next commit"));
    }
  }
}

void CacheWriter::discard_episode() {
  State& state = *state_;
  if (state.is_forked()) return;
  const Entry entry(state);
  if (!state.episode) return;
  state.discard();
}

// The episode that is open, or ended last: its samples, and what it changed of the streams.
void CacheWriter::State::discard() noexcept {
  for (auto it = shards.begin(); it != shards.end();) {
    it->second.discard_episode(row);
    if (it->second.is_unused()) {
      it->second.abandon();
      it = shards.erase(it);
    } else {
      ++it;
    }
  }
  for (auto& [stream, info] : streams_before) streams[static_cast<std::size_t>(stream)] = std::move(info);
  streams_before.clear();
  streams.resize(std::min(streams.size(), stream_count));
  episode.reset();
  replaces.reset();
  has_failed = false;
}

// Takes the episode that ended last out of those that wait, after a commit failed. False: that is not possible, because the
// disk may have the commit, and cannot be told otherwise.
bool CacheWriter::State::take_back() noexcept {
  try {
    if (is_uncertain) {  // what was committed before is written again, so that nothing names the new shards
      Manifest again = manifest;
      bool may_be_there = false;
      try {
        const SavedManifest saved = save_manifest(path, again, false, &may_be_there);
        manifest.identity = again.identity;
        take_saved(saved);
      } catch (...) {
        if (may_be_there) tried_identity = again.identity;
        throw;
      }
    }
    if (replaces) replaced.erase(*replaces);
    finished.clear();
    episodes.pop_back();
    discard();
    must_commit = !episodes.empty();
    make_index();
    return true;
  } catch (...) {
    return false;
  }
}

// ---- Commit

// Another writer may have come where somebody has removed the lock.
void CacheWriter::State::check_fence() {
  const bool is_renewed = lock->renew();
  const std::string there = read_identity(path);
  std::error_code error;
  const auto size = std::filesystem::file_size(journal_path(path, manifest), error);
  const bool is_same_journal =
      needs_snapshot || (error ? journal_bytes == 0 : static_cast<std::int64_t>(size) == journal_bytes);
  const bool is_same = (there == manifest.identity && is_same_journal) || (is_uncertain && there == tried_identity);
  const auto is_there = [&](const auto& entry) { return std::filesystem::exists(shard_path(path, entry.second)); };
  if (!is_same || (is_renewed && !std::ranges::all_of(finished, is_there))) {
    throw Error(ErrorKind::file,
                concat(path.string(),
                       ": another writer has changed this cache since this one opened it, because the file `lock` was "
                       "removed; what waits here is not committed: open the cache again, and add it again"));
  }
}

void CacheWriter::State::finish_group() {
  // What the shards say of the group: the sources that it needs, and all its episodes.
  Manifest group{.streams = streams, .episodes = episodes};
  std::map<std::int64_t, std::int64_t> places;
  for (CachedEpisode& entry : group.episodes) {
    if (entry.source < 0) continue;
    const auto [place, is_new] = places.emplace(entry.source, static_cast<std::int64_t>(group.sources.size()));
    if (is_new) group.sources.push_back(sources[static_cast<std::size_t>(entry.source)]);
    entry.source = place->second;
  }
  for (auto& [stream, shard] : shards) {
    if (!finished.contains(stream)) finished[stream] = shard.finish(group, manifest.next_group);
  }
  sync_directory(shards_path(path));
}

// `useless`: shards of this group, where none of its episodes stays.
Change CacheWriter::State::make_change(std::vector<Path>& useless) {
  Change change;
  Manifest& added = change.added;
  added.next_group = manifest.next_group + (episodes.empty() ? 0 : 1);
  std::set<Row> gone = replaced;

  // A complete new version replaces every older one. An incomplete version replaces older incomplete ones once it has an
  // episode.
  std::map<std::int64_t, CacheSource> changed;
  std::set<std::string_view> paths;
  for (const std::int64_t k : changed_sources) {
    changed.emplace(k, sources[static_cast<std::size_t>(k)]);
    paths.insert(sources[static_cast<std::size_t>(k)].path);
  }
  for (const std::string_view name : paths) {
    const std::vector<std::int64_t>& entries = by_path.at(std::string(name));
    const std::vector<SourceVersion> versions = versions_of(entries);
    const std::vector<bool> is_replaced = replaced_versions(versions);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      if (!is_replaced[k]) continue;
      if (versions[k].has_episodes) {
        for (const auto& [row, number] : by_source.at(entries[k])) gone.insert(row);
      }
      if (!versions[k].is_complete) continue;
      CacheSource entry = sources[static_cast<std::size_t>(entries[k])];
      entry.is_complete = false;
      changed.insert_or_assign(entries[k], std::move(entry));
    }
  }
  std::map<std::int64_t, std::int64_t> source_places, stream_places;
  for (auto& [place, entry] : changed) {
    source_places.emplace(place, static_cast<std::int64_t>(added.sources.size()));
    change.places.push_back(place);
    added.sources.push_back(std::move(entry));
  }
  for (const CachedEpisode& entry : episodes) {
    if (!gone.contains({entry.group, entry.row})) added.episodes.push_back(entry);
  }
  for (const Row& row : gone) {
    if (row.first != manifest.next_group) change.dropped.push_back(row);
  }
  for (const auto& [stream, shard] : finished) {
    if (added.episodes.empty()) {
      useless.push_back(shard_path(path, shard));
      continue;
    }
    stream_places.emplace(stream, static_cast<std::int64_t>(added.streams.size()));
    added.streams.push_back(streams[static_cast<std::size_t>(stream)]);
    added.shards.push_back(shard);
    added.shards.back().stream = stream_places.at(stream);
  }
  for (CachedEpisode& entry : added.episodes) {
    for (EpisodeStream& of : entry.streams) of.stream = stream_places.at(of.stream);
    if (entry.source >= 0) entry.source = source_places.at(entry.source);
  }
  return change;
}

void CacheWriter::State::write_snapshot(Change change, bool is_last, std::vector<Path>& useless) {
  Manifest next = manifest;
  Merger merger(next, pool);
  merger.add(std::move(change), manifest_path(path).string());
  for (const Shard& shard : merger.finish(manifest_path(path).string())) useless.push_back(shard_path(path, shard));
  if (is_last) tidy(next);
  needs_snapshot = true;
  SavedManifest saved;
  bool may_be_there = false;
  try {
    saved = save_manifest(path, next, false, &may_be_there);
  } catch (...) {
    if (may_be_there) tried_identity = next.identity;
    is_uncertain = is_uncertain || may_be_there;
    throw;
  }
  manifest = std::move(next);
  take_saved(saved);
}

void CacheWriter::State::take_saved(const SavedManifest& saved) {
  checksum = saved.checksum;
  manifest_bytes = saved.bytes;
  journal_bytes = 0;
  journal = {};
  needs_snapshot = false;
  is_uncertain = false;
}

void CacheWriter::State::write_line(Change change, const std::string& text, std::vector<Path>& useless) {
  const std::string name = journal_path(path, manifest).string();
  JournalLine line = journal_line(checksum, text);
  needs_snapshot = true;  // where anything fails
  const bool is_new = !journal;
  if (is_new) journal = File(name, O_WRONLY | O_CREAT | O_EXCL);
  journal.write(journal_bytes, std::as_bytes(std::span(line.text)));
  is_uncertain = true;
  journal.sync();
  if (is_new) sync_directory(path);
  is_uncertain = false;
  needs_snapshot = false;
  journal_bytes += static_cast<std::int64_t>(line.text.size());
  checksum = std::move(line.checksum);
  Merger merger(manifest, pool);
  merger.add(std::move(change), name);
  for (const Shard& shard : merger.finish(name)) useless.push_back(shard_path(path, shard));
}

// After a commit, or where it is given up. Streams and sources are those of the manifest again.
void CacheWriter::State::forget_group() {
  for (auto& [stream, shard] : shards) shard.keep_episode();
  shards.clear();
  finished.clear();
  episodes.clear();
  replaced.clear();
  streams = manifest.streams;
  streams_before.clear();
  must_commit = false;
}

// Only while a shard is not finished: until all are, no manifest names one.
std::size_t CacheWriter::State::drop_group() {
  for (const CachedEpisode& entry : episodes) {
    if (entry.source < 0) continue;
    sources[static_cast<std::size_t>(entry.source)].is_complete = false;
    changed_sources.insert(entry.source);
    has_lost = has_lost || entry.source == source;
  }
  for (auto& [stream, shard] : shards) shard.abandon();
  for (const auto& [stream, shard] : finished) remove_file(shard_path(path, shard));
  const std::size_t count = episodes.size();
  forget_group();
  make_index();
  return count;
}

void CacheWriter::State::commit(bool is_last) {
  const bool has_news = !episodes.empty() || is_dirty;
  const bool has_journal = journal_bytes > 0;
  if (!has_news && !(is_last && has_journal)) return;
  must_commit = must_commit || has_news;
  check_fence();
  if (!episodes.empty()) {
    try {
      finish_group();
    } catch (const LostSamples& lost) {
      const std::size_t count = drop_group();
      throw Error(ErrorKind::file, concat(lost.what(), "; what was committed before is kept, the ", count,
                                          " episode(s) that waited are dropped: add them again"));
    }
  }
  std::vector<Path> useless;
  const std::string text = write_change(make_change(useless));
  // What is written must be what readers accept.
  Change change = parse_change(text, journal_path(path, manifest).string());
  const std::vector<std::int64_t> changed = change.places;
  const std::vector<Row> dropped = change.dropped;
  const auto length = static_cast<std::int64_t>(text.size());
  if (is_last || needs_snapshot || journal_bytes + length > std::max(manifest_bytes, least_journal)) {
    write_snapshot(std::move(change), is_last, useless);
  } else {
    write_line(std::move(change), text, useless);
  }
  is_uncertain = false;
  for (const Path& file : useless) remove_file(file);
  if (!is_last) {
    for (const std::int64_t place : changed) {
      sources[static_cast<std::size_t>(place)] = manifest.sources[static_cast<std::size_t>(place)];
    }
  }
  const bool must_index = !dropped.empty() || !useless.empty();
  forget_group();
  if (must_index) make_index();
  changed_sources.clear();
  if (source >= 0) changed_sources.insert(source);
  is_dirty = false;
}

void CacheWriter::commit() {
  const Entry entry(*state_);
  if (!state_->lock) refuse("CacheWriter: it is closed");
  if (state_->episode)
    refuse("CacheWriter: episode ", in_quotes(state_->episode->name), " has not ended; nothing is committed");
  state_->commit(false);
}

void CacheWriter::close() {
  if (state_->is_forked()) return;
  const Entry entry(*state_);
  if (!state_->lock) return;
  try {
    discard_episode();
    state_->commit(true);
  } catch (...) {
    abandon();
    throw;
  }
  state_->abandon();
}

void CacheWriter::abandon() noexcept {
  if (state_->is_forked()) return;
  const std::lock_guard guard(state_->mutex);
  state_->abandon();
}

}  // namespace robocache
