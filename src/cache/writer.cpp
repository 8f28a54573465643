// The calls of CacheWriter: opening, episodes, committing, closing.
#include <algorithm>

#include "cache/writer_state.h"
#include "core/characters.h"
#include "core/limits.h"

namespace robocache {

namespace {

// Bytes. The partial statistics of the episodes that wait are in memory.
constexpr std::int64_t most_statistics = 4 << 20;

}  // namespace

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

// A forked process does not take the mutex: the thread that held it may not exist there. Nobody else uses the state.
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

const std::filesystem::path& CacheWriter::quarantine() const noexcept { return state_->quarantine; }

bool CacheWriter::has_episode(std::string_view name) const {
  const Entry entry(*state_);
  return state_->by_name.contains(std::string(name));
}

void CacheWriter::begin_episode(const Episode& wanted) {
  State& state = *state_;
  const Entry entry(state);
  if (!state.lock) refuse("CacheWriter: it is closed");
  if (state.episode) refuse("CacheWriter: episode ", quote(state.episode->name), " has not ended");
  if (wanted.number < 0 || wanted.number > count_limit) {
    refuse("CacheWriter: the number of an episode is ", wanted.number, "; it must be from 0 to ",
           limit_in_words(count_limit));
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
      refuse("CacheWriter: there is an episode ", quote(episode.name), " already; give another name, or replace it");
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

void CacheWriter::end_episode() {
  State& state = *state_;
  const Entry entry(state);
  if (!state.episode) refuse("CacheWriter: no episode has begun");
  if (state.has_failed) refuse("CacheWriter: an append failed; discard the episode");
  state.has_failed = true;
  CachedEpisode& episode = *state.episode;
  std::int64_t bytes = 0, bytes_of_statistics = 0;
  for (auto& [stream, shard] : state.shards) {
    bytes += shard.bytes();
    bytes_of_statistics += shard.bytes_of_statistics();
    if (!shard.has_episode(episode.row)) continue;
    const OpenShard::Extent extent = shard.extent();
    const std::int64_t latency = state.latencies[stream];
    if (extent.samples > 0 && (!is_in_time_limit(extent.first - latency) || !is_in_time_limit(extent.last - latency))) {
      refuse("CacheWriter: stream ", quote(state.streams[static_cast<std::size_t>(stream)].name),
             ": times with the latency taken off must be below ", time_limit_in_words(), "; latency is ", latency,
             " ns");
    }
    shard.sort_episode();
    shard.summarize_episode();
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
  const bool is_full = bytes >= state.options.group_bytes || bytes_of_statistics >= most_statistics ||
                       static_cast<std::int64_t>(state.episodes.size()) >= max_group_episodes;
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
      throw Error(error.kind(), concat(error.what(), "; episode ", quote(state.episodes.back().name),
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

// Undoes the episode that is open, or ended last: its samples, and its changes to the streams.
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

void CacheWriter::commit() {
  const Entry entry(*state_);
  if (!state_->lock) refuse("CacheWriter: it is closed");
  if (state_->episode)
    refuse("CacheWriter: episode ", quote(state_->episode->name), " has not ended; nothing is committed");
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
