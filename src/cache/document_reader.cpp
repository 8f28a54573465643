#include "cache/document_reader.h"

#include <robocache/error.h>

#include <limits>
#include <optional>
#include <set>

#include "cache/directory.h"
#include "cache/safetensors.h"
#include "core/limits.h"
#include "core/names.h"

namespace robocache::cache {

std::vector<std::int64_t> parse_shape(const JsonNode& node, std::size_t most_rank) {
  std::vector<std::int64_t> shape;
  node.each([&](const JsonNode& size) {
    shape.push_back(size.integer(0, count_limit));
    if (shape.size() > most_rank) node.fail("has over ", most_rank, " dimensions");
  });
  return shape;
}

std::string misfit(const StreamInfo& info, const Shard& shard) {
  if (!info.is_ragged && shard.rows != shard.samples) return "rows is not the number of samples";
  const std::int64_t channels = channels_of(info);
  if (shard.channels > channels || (shard.channels != channels && (info.shape.size() != 1 || info.channels.empty()))) {
    return concat("channels is ", shard.channels, ", but the stream has ", channels);
  }
  if (!bytes_of_shape(info.dtype, values_shape(info, shard))) return "rows is too large";
  if (lay_out(info, shard).back().end > shard.bytes) return "bytes is too small for the tensors of the shard";
  return {};
}

namespace {

DType parse_dtype(const JsonNode& node) {
  const std::string& word = node.string();
  if (const auto dtype = value_of<DType>(word)) return *dtype;
  node.fail("is ", quote(word), ", which is no dtype");
}

Metadata parse_metadata(const JsonNode& node) {
  Metadata metadata;
  node.each_member([&](const std::string& key, const JsonNode& value) { metadata[key] = value.string(); });
  return metadata;
}

StreamInfo parse_stream(const JsonNode& node) {
  StreamInfo info;
  info.name = node["name"].string();
  info.type = node["type"].string();
  info.dtype = parse_dtype(node["dtype"]);
  info.shape = parse_shape(node["shape"], max_rank - 1);
  if (!bytes_of_shape(info.dtype, info.shape)) node["shape"].fail("is too large");
  info.is_ragged = node["ragged"].boolean();
  node["channels"].each([&](const JsonNode& channel) { info.channels.push_back(channel.string()); });
  const std::int64_t channels = channels_of(info);
  if (!info.channels.empty() && static_cast<std::int64_t>(info.channels.size()) != channels) {
    node["channels"].fail("has ", info.channels.size(), " names for ", channels, " channels");
  }
  node["method"].each([&](const JsonNode& range) {
    const char* const expected = "is no method; expected [name, begin, end]";
    MethodRange made;
    std::size_t k = 0;
    range.each([&](const JsonNode& part) {
      if (k == 0) {
        const std::optional<Method> method = value_of<Method>(part.string());
        if (!method) part.fail("is ", quote(part.string()), ", which is no method");
        made.method = *method;
      } else if (k < 3) {
        (k == 1 ? made.begin : made.end) = part.integer(0, channels);
      }
      ++k;
    });
    if (k != 3 || made.begin > made.end) range.fail(expected);
    info.methods.push_back(made);
  });
  info.metadata = parse_metadata(node["metadata"]);
  return info;
}

CacheSource parse_source(const JsonNode& node) {
  CacheSource source;
  source.path = node["path"].string();
  source.size = node["size"].integer(-1, time_limit);
  source.mtime =
      node["mtime"].integer(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
  source.hash = node["hash"].string();
  source.options = node["options"].string();
  if (node.has("stamp")) source.stamp = node["stamp"].string();
  source.is_complete = node["complete"].boolean();
  return source;
}

std::int64_t stream_named(Manifest& manifest, StreamTable& streams, const std::string& name, const JsonNode& node) {
  const auto found = streams.places.find(name);
  if (found != streams.places.end()) return found->second;
  if (streams.are_all_described) node.fail("names the stream ", quote(name), ", which is not among the streams");
  manifest.streams.push_back({.name = name});
  streams.variants.push_back({std::make_shared<const Metadata>()});
  return streams.places[name] = static_cast<std::int64_t>(manifest.streams.size()) - 1;
}

Shard parse_shard(const JsonNode& node, Manifest& manifest, StreamTable& streams) {
  Shard shard;
  shard.file = node["file"].string();
  if (!is_shard_name(shard.file)) node["file"].fail("is ", quote(shard.file), ", which is no name of a shard");
  shard.stream = stream_named(manifest, streams, node["stream"].string(), node["stream"]);
  shard.group = node["group"].integer(0, count_limit);
  shard.bytes = node["bytes"].integer(0, time_limit);
  shard.episodes = node["episodes"].integer(0, count_limit);
  shard.samples = node["samples"].integer(0, count_limit);
  shard.rows = node["rows"].integer(0, count_limit);
  shard.channels = node["channels"].integer(0, count_limit);
  const std::string wrong = misfit(manifest.streams[static_cast<std::size_t>(shard.stream)], shard);
  if (!wrong.empty()) node.fail("does not fit its stream: ", wrong);
  node["xxh3"].each_member([&](const std::string& key, const JsonNode& hash) { shard.hashes[key] = hash.string(); });
  if (node.has("header")) shard.header_hash = node["header"].string();
  return shard;
}

CachedEpisode parse_episode(const JsonNode& node, Manifest& manifest, StreamTable& streams) {
  CachedEpisode episode;
  episode.name = node["name"].string();
  episode.task = node["task"].string();
  if (!node["source"].is_null()) {
    episode.source = node["source"].integer(0, static_cast<std::int64_t>(manifest.sources.size()) - 1);
  }
  episode.number = node["number"].integer(0, count_limit);
  episode.group = node["group"].integer(0, count_limit);
  episode.row = node["row"].integer(0, count_limit);
  episode.start = node["start"].integer(-time_limit, time_limit);
  episode.end = node["end"].integer(-time_limit, time_limit);
  std::map<std::int64_t, EpisodeStream> found;
  node["samples"].each_member([&](const std::string& name, const JsonNode& samples) {
    const std::int64_t stream = stream_named(manifest, streams, name, node["samples"]);
    found[stream] = {.stream = stream,
                     .samples = samples.integer(0, count_limit),
                     .metadata = streams.variants[static_cast<std::size_t>(stream)][0]};
  });
  const auto add = [&](const char* key, const auto& take) {
    if (!node.has(key)) return;
    node[key].each_member([&](const std::string& name, const JsonNode& value) {
      const auto entry = found.find(stream_named(manifest, streams, name, node[key]));
      if (entry == found.end()) node[key].fail("names the stream ", quote(name), ", which the episode does not have");
      take(entry->second, value);
    });
  };
  add("backward", [](EpisodeStream& entry, const JsonNode& value) { entry.backward = value.integer(0, time_limit); });
  add("latency",
      [](EpisodeStream& entry, const JsonNode& value) { entry.latency = value.integer(-time_limit, time_limit); });
  add("metadata", [&](EpisodeStream& entry, const JsonNode& value) {
    const auto& variants = streams.variants[static_cast<std::size_t>(entry.stream)];
    entry.metadata =
        variants[static_cast<std::size_t>(value.integer(0, static_cast<std::int64_t>(variants.size()) - 1))];
  });
  for (const auto& [stream, entry] : found) episode.streams.push_back(entry);
  return episode;
}

}  // namespace

std::int64_t check_version(const JsonNode& root) {
  if (root["format"].string() != format_name) {
    root["format"].fail("is ", quote(root["format"].string()), "; this is no manifest of a cache");
  }
  const std::int64_t version = root["version"].integer(1, count_limit);
  if (version > cache_version) {
    throw NewerVersion(root.sentence("was written by a newer RoboCache: it is a cache of version ", version,
                                     ", and this one reads up to ", cache_version, "; update robocache"));
  }
  return version;
}

void parse_content(const JsonNode& root, Manifest& manifest, StreamTable& streams) {
  root["streams"].each([&](const JsonNode& node) {
    manifest.streams.push_back(parse_stream(node));
    const auto place = static_cast<std::int64_t>(manifest.streams.size()) - 1;
    if (!streams.places.emplace(manifest.streams.back().name, place).second) {
      node["name"].fail("is ", quote(manifest.streams.back().name), " a second time");
    }
    auto& variants = streams.variants.emplace_back();
    if (!node.has("variants")) {  // all episodes said the same, or the cache is older than this field
      variants.push_back(std::make_shared<const Metadata>(manifest.streams.back().metadata));
      return;
    }
    const JsonNode said = node["variants"];
    if (said.size() < 1 ||
        said.size() > root["episodes"].size()) {  // each belongs to an episode, which also limits their memory
      said.fail("has ", said.size(), " entries for ", root["episodes"].size(), " episodes");
    }
    said.each([&](const JsonNode& variant) {
      variants.push_back(std::make_shared<const Metadata>(parse_metadata(variant)));
    });
  });
  root["sources"].each([&](const JsonNode& node) { manifest.sources.push_back(parse_source(node)); });
  root["shards"].each([&](const JsonNode& node) { manifest.shards.push_back(parse_shard(node, manifest, streams)); });
  root["episodes"].each(
      [&](const JsonNode& node) { manifest.episodes.push_back(parse_episode(node, manifest, streams)); });
}

void check_content(const JsonNode& root, const Manifest& manifest) {
  std::map<std::pair<std::int64_t, std::int64_t>, const Shard*> shards;  // by group and stream
  std::set<std::string_view> files;
  for (const Shard& shard : manifest.shards) {
    if (!shards.emplace(std::pair(shard.group, shard.stream), &shard).second || !files.insert(shard.file).second) {
      root["shards"].fail("has ", quote(shard.file), ", or its stream in its group, twice");
    }
    if (shard.group >= manifest.next_group) root["next_group"].fail("is not over that of ", quote(shard.file));
  }
  std::set<Row> rows;
  std::map<const Shard*, std::int64_t> samples;
  for (const CachedEpisode& episode : manifest.episodes) {
    const auto fail = [&](const auto&... parts) { root["episodes"].fail("has ", quote(episode.name), ", ", parts...); };
    if (!rows.emplace(episode.group, episode.row).second) fail("whose row another one has too");
    for (const EpisodeStream& entry : episode.streams) {
      const auto shard = shards.find({episode.group, entry.stream});
      const std::string& stream = manifest.streams[static_cast<std::size_t>(entry.stream)].name;
      if (shard == shards.end()) fail("but no shard with its stream ", quote(stream));
      if (episode.row >= shard->second->episodes) fail("which is not in the shard of its stream ", quote(stream));
      std::int64_t& sum = samples[shard->second];
      sum += entry.samples;
      if (sum > shard->second->samples) fail("which has more samples of ", quote(stream), " than the shard");
    }
    if (episode.end < episode.start) fail("which ends before it starts");
  }
}

}  // namespace robocache::cache
