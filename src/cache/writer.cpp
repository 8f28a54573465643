#include <robocache/cache.h>
#include <robocache/error.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "cache/directory.h"
#include "cache/files.h"
#include "cache/hash.h"
#include "cache/manifest.h"
#include "cache/open_shard.h"
#include "cache/safetensors.h"
#include "core/text.h"

namespace robocache {

using namespace cache;

namespace {

constexpr std::int64_t max_time = std::int64_t{1} << 62;
constexpr std::size_t pack_bytes = 1 << 20;

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

struct CacheWriter::State {
  using Row = std::pair<std::int64_t, std::int64_t>;  // group, row

  Path path;
  Options options;
  std::optional<Lock> lock;
  Manifest manifest;      // as committed; but for streams, sources, which have what is not committed yet too
  bool is_dirty = false;  // there is more to commit than episodes

  // The group that is written
  std::map<std::int64_t, OpenShard> shards;  // by stream
  std::vector<CachedEpisode> episodes;       // whole ones
  std::set<Row> replaced;                    // episodes that go when these are committed
  bool must_commit = false;                  // a commit failed: it is tried again before anything is added
  std::map<std::int64_t, Shard> finished;    // by it

  // The episode that is open
  std::optional<CachedEpisode> episode;
  std::optional<Row> replaces;
  std::map<std::int64_t, std::int64_t> latencies;  // by stream
  std::map<std::int64_t, Metadata> said;           // by stream, in all its batches
  bool has_failed = false;

  std::map<std::int64_t, std::shared_ptr<const Metadata>> last_said;  // by stream: of episodes that say the same, one
  std::int64_t source = -1;
  std::vector<Path> source_files;
  std::vector<FileStamp> source_stamps;
  bool has_lost = false;  // episodes of it that were whole: it is not complete, whoever says so

  ~State() { abandon(); }
  void abandon() noexcept {
    for (auto& [stream, shard] : shards) shard.abandon();
    shards.clear();
    episodes.clear();
    episode.reset();
    lock.reset();
  }

  void open();
  std::int64_t find_source(const CacheSource& wanted, std::span<const Path> files) const;
  std::vector<std::int64_t> merge(const StreamInfo& info, std::int64_t& stream);
  OpenShard& shard_of(std::int64_t stream);
  void append_values(OpenShard& shard, const TensorView& values, const std::vector<std::int64_t>& columns,
                     const StreamInfo& info);
  void commit();
  void finish_group(Manifest& next);
  std::size_t drop_group();  // returns how many episodes went
};

// ---- Opening

void CacheWriter::State::open() {
  const bool is_new = !std::filesystem::exists(manifest_path(path));
  if (is_new && std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name != "shards" && name != "lock" && name != "manifest.json.tmp") {
        throw Error(ErrorKind::file,
                    concat(path.string(), ": this is no cache, and not empty: it holds ", in_quotes(name)));
      }
    }
  }
  make_directory(path);
  lock.emplace(path);
  // Asked again: whoever had the lock may have made it. A manifest is there before any shard is.
  if (!std::filesystem::exists(manifest_path(path))) {
    const auto in_shards = find_leftovers(path, {});
    if (std::ranges::any_of(in_shards, [](const Path& p) { return is_shard_name(p.filename().string()); })) {
      require_manifest(path);  // throws: there are shards, and verify can help
    }
    make_directory(shards_path(path));
    Manifest empty;
    save_manifest(path, empty);
  }
  manifest = load_manifest(path);
  make_directory(shards_path(path));
  for (const Path& leftover : find_leftovers(path, manifest)) remove_file(path / leftover);
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

std::int64_t CacheWriter::committed_episodes() const noexcept {
  return static_cast<std::int64_t>(state_->manifest.episodes.size());
}

std::int64_t CacheWriter::waiting_episodes() const noexcept {
  return static_cast<std::int64_t>(state_->episodes.size());
}

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

}  // namespace

// The entry that has this version of it; -1 where none has.
std::int64_t CacheWriter::State::find_source(const CacheSource& wanted, std::span<const Path> files) const {
  std::string hash;
  for (std::size_t k = manifest.sources.size(); k-- > 0;) {
    const CacheSource& known = manifest.sources[k];
    if (known.path != wanted.path || known.options != wanted.options) continue;
    if (wanted.size < 0 || known.size != wanted.size) continue;
    if (known.stamp.empty() ? known.mtime == wanted.mtime : known.stamp == wanted.stamp) {
      return static_cast<std::int64_t>(k);
    }
    if (known.hash.empty()) continue;
    if (hash.empty()) hash = hash_of(files);
    if (known.hash == hash) return static_cast<std::int64_t>(k);
  }
  return -1;
}

bool CacheWriter::knows(std::string_view path, std::span<const std::filesystem::path> files, std::string_view options) {
  State& state = *state_;
  const std::vector<Path> in_order = sorted(files);
  const CacheSource now = source_of(path, in_order, stamps_of(in_order), options);
  const std::int64_t found = state.find_source(now, in_order);
  if (found < 0) return false;
  CacheSource& source = state.manifest.sources[static_cast<std::size_t>(found)];
  if (!source.is_complete) return false;
  if (source.stamp != now.stamp) {  // the hash has said that it is the same: the next time the stamp will
    source.mtime = now.mtime;
    source.stamp = now.stamp;
    state.is_dirty = true;
  }
  return true;
}

std::vector<std::int64_t> CacheWriter::begin_source(std::string_view path, std::span<const std::filesystem::path> files,
                                                    std::string_view options) {
  State& state = *state_;
  if (!state.lock) refuse("CacheWriter: it is closed");
  if (state.episode) refuse("CacheWriter: a source cannot begin inside an episode");
  state.has_lost = false;
  state.source_files = sorted(files);
  state.source_stamps = stamps_of(state.source_files);
  const CacheSource now = source_of(path, state.source_files, state.source_stamps, options);
  state.source = state.find_source(now, state.source_files);
  if (state.source < 0) {
    state.source = static_cast<std::int64_t>(state.manifest.sources.size());
    state.manifest.sources.push_back(now);
    return {};
  }
  CacheSource& known = state.manifest.sources[static_cast<std::size_t>(state.source)];
  known.mtime = now.mtime;
  known.stamp = now.stamp;
  std::vector<std::int64_t> numbers;
  for (const auto* const all : {&state.manifest.episodes, &state.episodes}) {
    for (const CachedEpisode& episode : *all) {
      if (episode.source == state.source) numbers.push_back(episode.number);
    }
  }
  return numbers;
}

void CacheWriter::end_source() {
  State& state = *state_;
  if (state.source < 0) refuse("CacheWriter: no source has begun");
  if (state.episode) refuse("CacheWriter: a source cannot end inside an episode");
  CacheSource& source = state.manifest.sources[static_cast<std::size_t>(state.source)];
  if (source.hash.empty()) {
    // Where it changed meanwhile, nobody knows what was read: without a hash, it is read again the next time.
    try {
      std::string hash = hash_of(state.source_files);
      if (stamps_of(state.source_files) == state.source_stamps) source.hash = std::move(hash);
    } catch (const Error&) {
      source.size = -1;
    }
    if (source.hash.empty()) source.size = -1;
  }
  source.is_complete = !state.has_lost;
  state.source = -1;
  state.is_dirty = true;
}

void CacheWriter::leave_source() noexcept { state_->source = -1; }

// ---- Episodes

bool CacheWriter::has_episode(std::string_view name) const {
  for (const auto* const all : {&state_->manifest.episodes, &state_->episodes}) {
    for (const CachedEpisode& episode : *all) {
      if (episode.source < 0 && episode.name == name && !state_->replaced.contains({episode.group, episode.row}))
        return true;
    }
  }
  return false;
}

void CacheWriter::begin_episode(const Episode& wanted) {
  State& state = *state_;
  if (!state.lock) refuse("CacheWriter: it is closed");
  if (state.episode) refuse("CacheWriter: episode ", in_quotes(state.episode->name), " has not ended");
  if (state.must_commit) commit();
  CachedEpisode episode;
  episode.name = as_utf8(wanted.name);
  episode.task = as_utf8(wanted.task);
  episode.source = state.source;
  episode.number = wanted.number;
  episode.group = state.manifest.next_group;
  episode.row = state.episodes.empty() ? 0 : state.episodes.back().row + 1;
  state.replaces.reset();
  if (state.source < 0) {
    for (const auto* const all : {&state.manifest.episodes, &state.episodes}) {
      for (const CachedEpisode& other : *all) {
        const State::Row row{other.group, other.row};
        if (other.source >= 0 || other.name != episode.name || state.replaced.contains(row)) continue;
        if (!wanted.replaces) {
          refuse("CacheWriter: there is an episode ", in_quotes(episode.name),
                 " already; give another name, or replace it");
        }
        state.replaces = row;
      }
    }
  }
  state.episode = std::move(episode);
  state.latencies.clear();
  state.said.clear();
  state.has_failed = false;
}

void CacheWriter::append(const StreamBatch& batch, std::int64_t latency) {
  append(*batch.info, batch.values.view(), batch.times, batch.arrivals, batch.lengths, latency);
}

void CacheWriter::append(const StreamInfo& given, const TensorView& values, std::span<const std::int64_t> times,
                         std::span<const std::int64_t> arrivals, std::span<const std::int64_t> lengths,
                         std::int64_t latency) {
  State& state = *state_;
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
  if (info.shape.size() >= static_cast<std::size_t>(max_rank) || !bytes_of_shape(info.dtype, info.shape)) {
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
  const auto is_time = [](std::int64_t time) { return time > -max_time && time < max_time; };
  if (!std::ranges::all_of(times, is_time) || !std::ranges::all_of(arrivals, is_time) || !is_time(latency)) {
    refuse(where, "times, arrivals and latency must be below 2^62 ns (146 years)");
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
  stream = manifest.find_stream(info.name);
  if (stream < 0) {
    stream = static_cast<std::int64_t>(manifest.streams.size());
    manifest.streams.push_back(info);
    return {};
  }
  StreamInfo& known = manifest.streams[static_cast<std::size_t>(stream)];
  const auto is_used = [&] {
    return shards.contains(stream) ||
           std::ranges::any_of(manifest.shards, [&](const Shard& s) { return s.stream == stream; });
  };
  const auto disagree = [&](std::string_view why) {
    refuse("CacheWriter: stream ", in_quotes(info.name), ": samples are ", sample_text(info),
           ", but the cache has them as ", sample_text(known), why, "; give it another name");
  };
  const bool is_plain =
      info.shape == known.shape && (info.channels == known.channels || info.channels.empty() || known.channels.empty());
  if (info.dtype != known.dtype || info.is_ragged != known.is_ragged) {
    if (is_used()) disagree("");
    known = info;
    return {};
  }
  std::vector<std::int64_t> columns;
  std::vector<std::string> added;
  if (!is_plain) {
    if (info.shape.size() != 1 || known.shape.size() != 1 || info.channels.empty() || known.channels.empty() ||
        !are_unique(info.channels) || !are_unique(known.channels)) {
      if (is_used()) disagree("");
      known = info;
      return {};
    }
    for (const std::string& channel : info.channels) {
      const auto found = std::ranges::find(known.channels, channel);
      columns.push_back(found - known.channels.begin());
      if (found != known.channels.end()) continue;
      columns.back() += static_cast<std::int64_t>(added.size());
      added.push_back(channel);
    }
    const std::size_t width = known.channels.size() + added.size();
    if (width != info.channels.size() || !added.empty()) {
      if (!is_float(known.dtype)) disagree(" with other channels, and integers have no NaN for those that are missing");
    }
  }
  if (!added.empty()) {
    if (!known.methods.empty() || !info.methods.empty()) known.methods = ranges_of(methods_by_channel(known));
    known.channels.insert(known.channels.end(), added.begin(), added.end());
    known.shape[0] += static_cast<std::int64_t>(added.size());
  }
  if (is_plain) {
    if (known.channels.empty()) known.channels = info.channels;
    if (!info.methods.empty() && !is_same(known.methods, info.methods)) known.methods = info.methods;
  } else if (!info.methods.empty() || !known.methods.empty()) {
    std::vector<Method> methods = methods_by_channel(known);
    const std::vector<Method> given = methods_by_channel(info);
    for (std::size_t k = 0; k < columns.size(); ++k) methods[static_cast<std::size_t>(columns[k])] = given[k];
    known.methods = ranges_of(methods);
  }
  if (known.type.empty()) known.type = info.type;
  return columns;
}

OpenShard& CacheWriter::State::shard_of(std::int64_t stream) {
  auto found = shards.find(stream);
  if (found == shards.end()) {
    const StreamInfo& info = manifest.streams[static_cast<std::size_t>(stream)];
    const std::string stem = shard_stem(manifest.next_group, info.name);
    std::string unique = stem;
    const auto is_taken = [&](const auto& entry) { return entry.second.stem() == unique; };
    for (int k = 2; std::ranges::any_of(shards, is_taken); ++k) unique = concat(stem, "-", k);
    found = shards.emplace(stream, OpenShard(shards_path(path), unique, stream, info)).first;
  }
  OpenShard& shard = found->second;
  if (!shard.has_episode(episode->row)) shard.begin_episode(episode->row);
  const StreamInfo& info = manifest.streams[static_cast<std::size_t>(stream)];
  if (shard.channels() < channels_of(info)) shard.widen(info);
  return shard;
}

void CacheWriter::State::append_values(OpenShard& shard, const TensorView& values,
                                       const std::vector<std::int64_t>& columns, const StreamInfo& info) {
  const auto size = static_cast<std::size_t>(size_of(values.dtype));
  const auto* const data = static_cast<const std::byte*>(values.data);
  const std::int64_t rows = values.shape[0];
  const auto narrow = static_cast<std::size_t>(channels_of(info)) * size;
  const auto wide =
      static_cast<std::size_t>(channels_of(manifest.streams[static_cast<std::size_t>(shard.stream())])) * size;
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
  if (!state.episode) refuse("CacheWriter: no episode has begun");
  if (state.has_failed) refuse("CacheWriter: an append failed; discard the episode");
  state.has_failed = true;
  CachedEpisode& episode = *state.episode;
  bool is_empty = true;
  std::int64_t bytes = 0;
  // What ended before a failure of another stream is still known to be of this episode by its row.
  for (auto& [stream, shard] : state.shards) {
    if (!shard.has_episode(episode.row)) continue;
    shard.sort_episode();
  }
  for (auto& [stream, shard] : state.shards) {
    bytes += shard.bytes();
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
  state.replaces.reset();
  state.episodes.push_back(std::move(episode));
  state.episode.reset();
  state.has_failed = false;
  if (bytes >= state.options.group_bytes || static_cast<std::int64_t>(state.episodes.size()) >= max_group_episodes) {
    state.commit();
  }
}

void CacheWriter::discard_episode() {
  State& state = *state_;
  if (!state.episode) return;
  for (auto it = state.shards.begin(); it != state.shards.end();) {
    it->second.discard_episode();
    if (it->second.is_unused()) {
      it->second.abandon();
      it = state.shards.erase(it);
    } else {
      ++it;
    }
  }
  state.episode.reset();
  state.replaces.reset();
  state.has_failed = false;
}

// ---- Commit

void CacheWriter::State::finish_group(Manifest& next) {
  // What the shards say of the group: the sources that it needs, and all its episodes.
  Manifest group{.streams = manifest.streams, .episodes = episodes};
  std::map<std::int64_t, std::int64_t> places;
  for (CachedEpisode& entry : group.episodes) {
    if (entry.source < 0) continue;
    const auto [place, is_new] = places.emplace(entry.source, static_cast<std::int64_t>(group.sources.size()));
    if (is_new) group.sources.push_back(manifest.sources[static_cast<std::size_t>(entry.source)]);
    entry.source = place->second;
  }
  for (auto& [stream, shard] : shards) {
    if (!finished.contains(stream)) finished[stream] = shard.finish(group, manifest.next_group);
    next.shards.push_back(finished[stream]);
  }
  sync_directory(shards_path(path));
  ++next.next_group;
}

// Only while a shard is not finished: until all are, no manifest names one.
std::size_t CacheWriter::State::drop_group() {
  for (const CachedEpisode& entry : episodes) {
    if (entry.source < 0) continue;
    manifest.sources[static_cast<std::size_t>(entry.source)].is_complete = false;
    has_lost = has_lost || entry.source == source;
  }
  for (auto& [stream, shard] : shards) shard.abandon();
  for (const auto& [stream, shard] : finished) remove_file(shard_path(path, shard));
  const std::size_t count = episodes.size();
  shards.clear();
  finished.clear();
  episodes.clear();
  replaced.clear();
  must_commit = false;
  return count;
}

void CacheWriter::State::commit() {
  if (episodes.empty() && !is_dirty) return;
  must_commit = true;
  Manifest next = manifest;

  // A source that was read anew takes the place of what was read before: of all of it when it is complete, of what never was
  // when it has an episode.
  std::vector<bool> has_new(next.sources.size(), false);
  for (const CachedEpisode& entry : episodes) {
    if (entry.source >= 0) has_new[static_cast<std::size_t>(entry.source)] = true;
  }
  for (const CachedEpisode& entry : manifest.episodes) {
    if (entry.source >= 0) has_new[static_cast<std::size_t>(entry.source)] = true;
  }
  std::vector<bool> is_old(next.sources.size(), false);
  std::set<std::string_view> begun, complete;  // paths, from the last entry on
  for (std::size_t k = next.sources.size(); k-- > 0;) {
    CacheSource& source = next.sources[k];
    is_old[k] = (source.is_complete ? complete : begun).contains(source.path);
    if (is_old[k]) source.is_complete = false;
    if (has_new[k] || source.is_complete) begun.insert(manifest.sources[k].path);
    if (source.is_complete) complete.insert(manifest.sources[k].path);
  }
  const auto is_gone = [&](const CachedEpisode& entry) {
    return replaced.contains({entry.group, entry.row}) ||
           (entry.source >= 0 && is_old[static_cast<std::size_t>(entry.source)]);
  };

  if (!episodes.empty()) {
    try {
      finish_group(next);
    } catch (const LostSamples& lost) {
      const std::size_t count = drop_group();
      throw Error(ErrorKind::file, concat(lost.what(), "; what was committed before is kept, the ", count,
                                          " episode(s) that waited are dropped: add them again"));
    }
  }
  next.episodes.insert(next.episodes.end(), episodes.begin(), episodes.end());
  std::erase_if(next.episodes, is_gone);
  std::set<std::int64_t> groups;
  for (const CachedEpisode& entry : next.episodes) groups.insert(entry.group);
  std::vector<Path> useless;
  std::erase_if(next.shards, [&](const Shard& shard) {
    if (groups.contains(shard.group)) return false;
    useless.push_back(shard_path(path, shard));
    return true;
  });

  save_manifest(path, next);
  manifest = std::move(next);
  for (const Path& file : useless) remove_file(file);
  shards.clear();
  finished.clear();
  episodes.clear();
  replaced.clear();
  is_dirty = false;
  must_commit = false;
}

void CacheWriter::commit() {
  if (!state_->lock) refuse("CacheWriter: it is closed");
  if (state_->episode)
    refuse("CacheWriter: episode ", in_quotes(state_->episode->name), " has not ended; nothing is committed");
  state_->commit();
}

void CacheWriter::close() {
  if (!state_->lock) return;
  try {
    discard_episode();
    state_->commit();
  } catch (...) {
    abandon();
    throw;
  }
  state_->lock.reset();
}

void CacheWriter::abandon() noexcept { state_->abandon(); }

}  // namespace robocache
