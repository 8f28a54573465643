#include "cache/change.h"

#include <robocache/error.h>

#include <algorithm>

#include "cache/document_reader.h"
#include "cache/document_writer.h"
#include "core/limits.h"
#include "core/text.h"

namespace robocache::cache {

Change parse_change(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name);
  const JsonNode root(json, name, "");
  Change change;
  StreamTable streams;
  parse_content(root, change.added, streams);
  change.added.next_group = root["next_group"].integer(0, count_limit);
  check_content(root, change.added);
  root["places"].each([&](const JsonNode& place) { change.places.push_back(place.integer(0, count_limit)); });
  if (change.places.size() != change.added.sources.size()) root["places"].fail("is not as long as sources");
  root["dropped"].each([&](const JsonNode& row) {
    std::vector<std::int64_t> numbers;
    row.each([&](const JsonNode& number) { numbers.push_back(number.integer(0, count_limit)); });
    if (numbers.size() != 2) row.fail("is not [group, row]");
    change.dropped.emplace_back(numbers[0], numbers[1]);
  });
  return change;
}

std::string write_change(const Change& change) {
  const Manifest& added = change.added;
  const std::vector<Variants> variants = variants_of(added);
  std::size_t stream = 0;
  return JsonObject()
      .add("next_group", added.next_group)
      .add_raw("streams", json_list(added.streams, ", ",
                                    [&](const StreamInfo& info) { return stream_text(info, variants[stream++]); }))
      .add_raw("sources", json_list(added.sources, ", ", source_text))
      .add_raw("places", number_list(change.places))
      .add_raw("shards", json_list(added.shards, ", ", [&](const Shard& shard) { return shard_text(added, shard); }))
      .add_raw("episodes",
               json_list(added.episodes, ", ",
                         [&](const CachedEpisode& episode) { return episode_text(added, episode, variants); }))
      .add_raw("dropped", json_list(change.dropped, ", ",
                                    [](const Row& row) { return concat("[", row.first, ", ", row.second, "]"); }))
      .text();
}

std::shared_ptr<const Metadata> MetadataPool::take(const std::shared_ptr<const Metadata>& metadata) {
  return *all_.insert(metadata).first;
}

Merger::Merger(Manifest& manifest, MetadataPool& pool) : manifest_(manifest), pool_(pool) {
  for (std::size_t k = 0; k < manifest.streams.size(); ++k) {
    places_.emplace(manifest.streams[k].name, static_cast<std::int64_t>(k));
  }
}

void Merger::add(Change change, const std::string& name) {
  const auto fail = [&](const auto&... parts) { throw Error(ErrorKind::file, concat(name, ": ", parts...)); };
  Manifest& added = change.added;
  const auto is_new = [&](std::int64_t group) { return group >= manifest_.next_group && group < added.next_group; };
  if (added.next_group < manifest_.next_group) fail("next_group is below that of the commit before");
  for (const Shard& shard : added.shards) {
    if (!is_new(shard.group)) fail("the shard ", quote(shard.file), " is not of a new group");
  }
  for (const CachedEpisode& episode : added.episodes) {
    if (!is_new(episode.group)) fail("the episode ", quote(episode.name), " is not of a new group");
  }
  std::size_t sources = manifest_.sources.size();
  for (const std::int64_t place : change.places) {
    if (static_cast<std::size_t>(place) > sources) fail("there is no place ", place, " for a source");
    sources = std::max(sources, static_cast<std::size_t>(place) + 1);
  }

  std::vector<std::int64_t> streams;
  for (StreamInfo& info : added.streams) {
    const auto [place, is_first] = places_.emplace(info.name, static_cast<std::int64_t>(manifest_.streams.size()));
    streams.push_back(place->second);
    if (is_first) {
      manifest_.streams.push_back(std::move(info));
      continue;
    }
    StreamInfo& known = manifest_.streams[static_cast<std::size_t>(place->second)];
    if (known.dtype != info.dtype || known.shape != info.shape || known.is_ragged != info.is_ragged) {
      reshaped_.insert(place->second);
    }
    Metadata metadata = std::move(known.metadata);
    agree(metadata, info.metadata);
    known = std::move(info);
    known.metadata = std::move(metadata);
  }
  manifest_.sources.resize(sources);
  for (std::size_t k = 0; k < added.sources.size(); ++k) {
    manifest_.sources[static_cast<std::size_t>(change.places[k])] = std::move(added.sources[k]);
  }
  for (Shard& shard : added.shards) {
    shard.stream = streams[static_cast<std::size_t>(shard.stream)];
    manifest_.shards.push_back(std::move(shard));
  }
  for (CachedEpisode& episode : added.episodes) {
    for (EpisodeStream& entry : episode.streams) {
      entry.stream = streams[static_cast<std::size_t>(entry.stream)];
      entry.metadata = pool_.take(entry.metadata);
    }
    std::ranges::sort(episode.streams, {}, &EpisodeStream::stream);
    if (episode.source >= 0) episode.source = change.places[static_cast<std::size_t>(episode.source)];
    manifest_.episodes.push_back(std::move(episode));
  }
  dropped_.insert(change.dropped.begin(), change.dropped.end());
  manifest_.next_group = added.next_group;
}

std::vector<Shard> Merger::finish(const std::string& name) {
  std::vector<Shard> gone;
  if (!dropped_.empty()) {
    std::set<std::int64_t> emptied, left;
    for (const Row& row : dropped_) emptied.insert(row.first);
    std::erase_if(manifest_.episodes, [&](const CachedEpisode& episode) {
      if (!emptied.contains(episode.group)) return false;
      if (dropped_.contains({episode.group, episode.row})) return true;
      left.insert(episode.group);
      return false;
    });
    for (const std::int64_t group : left) emptied.erase(group);
    std::erase_if(manifest_.shards, [&](Shard& shard) {
      if (!emptied.contains(shard.group)) return false;
      gone.push_back(std::move(shard));
      return true;
    });
    // The episodes that are left may agree on more.
    const std::vector<Variants> variants = variants_of(manifest_);
    for (std::size_t k = 0; k < variants.size(); ++k) {
      if (variants[k].all().empty()) continue;
      manifest_.streams[k].metadata = *variants[k].all().front();
      for (const Metadata* const said : variants[k].all()) agree(manifest_.streams[k].metadata, *said);
    }
  }
  if (!reshaped_.empty()) {
    for (const Shard& shard : manifest_.shards) {
      if (!reshaped_.contains(shard.stream)) continue;
      const std::string wrong = misfit(manifest_.streams[static_cast<std::size_t>(shard.stream)], shard);
      if (!wrong.empty()) {
        throw Error(ErrorKind::file, concat(name, ": the shard ", quote(shard.file),
                                            " does not fit its stream as a later commit has it: ", wrong));
      }
    }
  }
  dropped_.clear();
  reshaped_.clear();
  return gone;
}

}  // namespace robocache::cache
