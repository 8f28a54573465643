#include "cache/shard_header.h"

#include <robocache/error.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cache/checksum.h"
#include "cache/document_reader.h"
#include "cache/document_writer.h"
#include "cache/safetensors.h"
#include "core/names.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr Seal description_seal{", \"checksum\": \"", "\"}"};

// The words of the safetensors format.
constexpr auto safetensors_words = std::to_array<Word<DType>>({{DType::boolean, "BOOL"},
                                                               {DType::u8, "U8"},
                                                               {DType::u16, "U16"},
                                                               {DType::u32, "U32"},
                                                               {DType::u64, "U64"},
                                                               {DType::i8, "I8"},
                                                               {DType::i16, "I16"},
                                                               {DType::i32, "I32"},
                                                               {DType::i64, "I64"},
                                                               {DType::f16, "F16"},
                                                               {DType::bf16, "BF16"},
                                                               {DType::f32, "F32"},
                                                               {DType::f64, "F64"}});

}  // namespace

const TensorEntry* ShardHeader::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &TensorEntry::name);
  return found == tensors.end() ? nullptr : &*found;
}

ShardHeader parse_header(std::string_view text, std::int64_t data_bytes, const std::string& name) {
  const Json json = parse_json(text, name);
  const JsonNode root(json, name, "");
  ShardHeader header;
  root.each_member([&](const std::string& key, const JsonNode& node) {
    if (key == "__metadata__") {
      if (node.has(format_name)) header.description = node[format_name].string();
      return;
    }
    TensorEntry& tensor = header.tensors.emplace_back();
    tensor.name = key;
    const JsonNode dtype = node["dtype"];
    const auto* const found =
        std::ranges::find(safetensors_words, std::string_view(dtype.string()), &Word<DType>::text);
    if (found == safetensors_words.end()) dtype.fail("is ", quote(dtype.string()), ", which no tensor of a cache has");
    tensor.dtype = found->value;
    tensor.shape = parse_shape(node["shape"], max_rank);
    std::vector<std::int64_t> offsets;
    node["data_offsets"].each([&](const JsonNode& offset) { offsets.push_back(offset.integer(0, data_bytes)); });
    if (offsets.size() != 2 || offsets[1] < offsets[0]) node["data_offsets"].fail("is not [begin, end]");
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
    if (bytes_of_shape(tensor.dtype, tensor.shape) != tensor.end - tensor.begin) {
      node["data_offsets"].fail("are ", tensor.end - tensor.begin, " bytes apart, which is not what its shape needs");
    }
  });
  std::ranges::sort(header.tensors, {}, [](const TensorEntry& t) { return std::pair(t.begin, t.end); });
  std::int64_t at = 0;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin != at) root.fail("leaves a gap, or an overlap, before the tensor ", quote(tensor.name));
    at = tensor.end;
  }
  if (at != data_bytes) root.fail("describes ", at, " bytes of tensors, but ", data_bytes, " follow it");
  return header;
}

std::string write_header(std::span<const TensorEntry> tensors, std::string_view description) {
  JsonObject object;
  object.add_raw("__metadata__", JsonObject().add(format_name, description).text());
  for (const TensorEntry& tensor : tensors) {
    const std::int64_t offsets[] = {tensor.begin, tensor.end};
    const auto* const dtype = std::ranges::find(safetensors_words, tensor.dtype, &Word<DType>::value);
    object.add_raw(tensor.name, JsonObject()
                                    .add("dtype", dtype->text)
                                    .add_raw("shape", number_list(tensor.shape))
                                    .add_raw("data_offsets", number_list(offsets))
                                    .text());
  }
  return object.text();
}

Manifest parse_description(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name);
  const JsonNode root(json, name, "");
  if (check_version(root) > 1 && !is_sealed(text, description_seal)) {
    root.fail("the checksum of its description is wrong: the file was changed after it was written");
  }
  Manifest manifest;
  StreamTable streams{.are_all_described = false};
  parse_content(root, manifest, streams);
  if (manifest.shards.size() != 1) root["shards"].fail("is not one shard");
  for (const CachedEpisode& episode : manifest.episodes) {
    if (episode.group != manifest.shards[0].group) root["episodes"].fail("has one of another group");
  }
  return manifest;
}

std::string write_description(const Manifest& group, const Shard& shard) {
  const auto items = [](const auto& all, const auto& f) { return json_list(all, ", ", f); };
  const auto stream = static_cast<std::size_t>(shard.stream);
  const std::vector<Variants> variants = variants_of(group, shard.stream);
  std::string text =
      JsonObject()
          .add("format", format_name)
          .add("version", std::int64_t{cache_version})
          .add_raw("streams", "[" + stream_text(group.streams[stream], variants[stream]) + "]")
          .add_raw("sources", items(group.sources, [](const CacheSource& source) { return source_text(source); }))
          .add_raw("shards", "[" + shard_text(group, shard) + "]")
          .add_raw("episodes",
                   items(group.episodes,
                         [&](const CachedEpisode& episode) { return episode_text(group, episode, variants); }))
          .text();
  text.pop_back();  // the closing brace
  return sealed(std::move(text), description_seal);
}

}  // namespace robocache::cache
