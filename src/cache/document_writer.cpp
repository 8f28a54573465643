#include "cache/document_writer.h"

#include "core/names.h"

namespace robocache::cache {

std::vector<Variants> variants_of(const Manifest& manifest, std::optional<std::int64_t> only) {
  std::vector<Variants> variants(manifest.streams.size());
  for (const CachedEpisode& episode : manifest.episodes) {
    for (const EpisodeStream& entry : episode.streams) {
      if (!only || *only == entry.stream) variants[static_cast<std::size_t>(entry.stream)].add(*entry.metadata);
    }
  }
  return variants;
}

std::string stream_text(const StreamInfo& info, const Variants& variants) {
  Metadata metadata = variants.all().empty() ? info.metadata : *variants.all().front();
  for (const Metadata* const variant : variants.all()) agree(metadata, *variant);
  JsonObject object;
  object.add("name", info.name)
      .add("type", info.type)
      .add("dtype", name_of(info.dtype))
      .add_raw("shape", number_list(info.shape))
      .add_raw("channels", json_list(info.channels, ", ",
                                     [](const std::string& channel) {
                                       std::string text;
                                       append_json_string(text, channel);
                                       return text;
                                     }))
      .add_raw("method", json_list(info.methods, ", ",
                                   [](const MethodRange& range) {
                                     std::string text = "[";
                                     append_json_string(text, word_of(range.method));
                                     return text + ", " + std::to_string(range.begin) + ", " +
                                            std::to_string(range.end) + "]";
                                   }))
      .add("ragged", info.is_ragged)
      .add_raw("metadata", members_text(metadata));
  if (variants.all().size() > 1) {
    object.add_raw("variants", json_list(variants.all(), ", ", [](const Metadata* m) { return members_text(*m); }));
  }
  return object.text();
}

std::string source_text(const CacheSource& source) {
  return JsonObject()
      .add("path", source.path)
      .add("size", source.size)
      .add("mtime", source.mtime)
      .add("hash", source.hash)
      .add("options", source.options)
      .add("complete", source.is_complete)
      .add("stamp", source.stamp)
      .text();
}

std::string shard_text(const Manifest& manifest, const Shard& shard) {
  return JsonObject()
      .add("file", shard.file)
      .add("stream", manifest.streams[static_cast<std::size_t>(shard.stream)].name)
      .add("group", shard.group)
      .add("bytes", shard.bytes)
      .add("episodes", shard.episodes)
      .add("samples", shard.samples)
      .add("rows", shard.rows)
      .add("channels", shard.channels)
      .add_raw("xxh3", members_text(shard.hashes))
      .add("header", shard.header_hash)
      .text();
}

std::string episode_text(const Manifest& manifest, const CachedEpisode& episode,
                         const std::vector<Variants>& variants) {
  JsonObject samples, backward, latency, metadata;
  const auto add = [](JsonObject& to, const std::string& name, std::int64_t number) {
    if (number != 0) to.add(name, number);
  };
  for (const EpisodeStream& entry : episode.streams) {
    const auto stream = static_cast<std::size_t>(entry.stream);
    const std::string& name = manifest.streams[stream].name;
    samples.add(name, entry.samples);
    add(backward, name, entry.backward);
    add(latency, name, entry.latency);
    add(metadata, name, variants[stream].place_of(*entry.metadata));
  }
  JsonObject object;
  object.add("name", episode.name).add("task", episode.task);
  if (episode.source < 0) {
    object.add_raw("source", "null");
  } else {
    object.add("source", episode.source);
  }
  object.add("number", episode.number)
      .add("group", episode.group)
      .add("row", episode.row)
      .add("start", episode.start)
      .add("end", episode.end)
      .add_raw("samples", samples.text());
  if (!backward.is_empty()) object.add_raw("backward", backward.text());
  if (!latency.is_empty()) object.add_raw("latency", latency.text());
  if (!metadata.is_empty()) object.add_raw("metadata", metadata.text());
  return object.text();
}

}  // namespace robocache::cache
