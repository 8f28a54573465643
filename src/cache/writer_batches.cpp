// Appends batches to a CacheWriter: checks them, merges their streams into those of the cache, fills the shards.
#include <algorithm>
#include <cstring>

#include "cache/safetensors.h"
#include "cache/writer_state.h"
#include "core/characters.h"
#include "core/limits.h"
#include "core/methods.h"
#include "core/names.h"

namespace robocache {

namespace {

constexpr std::size_t pack_bytes = 1 << 20;

bool is_dense(const TensorView& view) {
  std::int64_t expected = 1;
  for (int k = view.rank - 1; k >= 0; --k) {
    const auto d = static_cast<std::size_t>(k);
    if (view.shape[d] != 1 && view.strides[d] != expected) return false;
    expected *= view.shape[d];
  }
  return true;
}

// Copies the elements of a view with any strides, in order, from dimension `d` on.
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
  std::vector<Method> methods(static_cast<std::size_t>(channels_of(info)), default_method(info.dtype));
  for (const MethodRange& range : info.methods) {
    std::fill(methods.begin() + range.begin, methods.begin() + range.end, range.method);
  }
  return methods;
}

}  // namespace

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
  const std::string where = concat("CacheWriter: stream ", quote(given.name), ": ");
  StreamInfo info = given;
  info.name = as_utf8(given.name);
  info.type = as_utf8(given.type);
  for (std::string& channel : info.channels) channel = as_utf8(channel);
  info.metadata.clear();
  for (const auto& [key, value] : given.metadata) info.metadata[as_utf8(key)] = as_utf8(value);

  // Check all of the batch before anything is written.
  if (info.name.empty()) refuse("CacheWriter: a stream has no name");
  if (info.shape.size() >= static_cast<std::size_t>(max_rank) || !bytes_of_shape(info.dtype, info.shape) ||
      std::ranges::any_of(info.shape, [](std::int64_t size) { return size > count_limit; })) {
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
  if (!std::ranges::all_of(times, is_in_time_limit) || !std::ranges::all_of(arrivals, is_in_time_limit) ||
      !is_in_time_limit(latency)) {
    refuse(where, "times, arrivals and latency must be below ", time_limit_in_words());
  }
  if (!std::ranges::all_of(times, [&](std::int64_t time) { return is_in_time_limit(time - latency); })) {
    refuse(where, "times with the latency taken off must be below ", time_limit_in_words(), "; latency is ", latency,
           " ns");
  }

  std::int64_t stream = -1;
  const std::vector<std::int64_t> columns = state.merge(info, stream);
  state.has_failed = true;  // until the whole batch is written
  OpenShard& shard = state.shard_of(stream);
  state.append_values(shard, values, columns, info);
  shard.append_stamps(times, arrivals, info.is_ragged ? lengths : std::span<const std::int64_t>());
  state.latencies[stream] = latency;
  unite(state.said[stream], info.metadata);
  state.has_failed = false;
}

// Merges the batch's description into the stream's. Returns the place of each channel in the stream; empty: the same order.
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
    refuse("CacheWriter: stream ", quote(info.name), ": samples are ", sample_text(info),
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

// A stream keeps the method that it was given. An episode without one changes nothing. An episode with another one is
// refused, unless all episodes with the stream belong to an older version of the source that is being read.
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
        info.channels.empty() ? concat("channel ", k) : concat("channel ", quote(info.channels[k]));
    refuse("CacheWriter: stream ", quote(info.name), ": the method of ", channel, " is ", word_of(given[k]),
           ", but the cache has it as ", word_of(there[place]),
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

}  // namespace robocache
