#include "cache/manifest.h"

#include <robocache/error.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "cache/directory.h"
#include "cache/hash.h"
#include "cache/safetensors.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

using Json = nlohmann::json;

constexpr std::int64_t max_time = std::int64_t{1} << 62;
constexpr std::int64_t max_count = std::int64_t{1} << 48;
constexpr const char* format_name = "robocache";

struct DTypeName {
  DType dtype;
  std::string_view safetensors;
};
constexpr std::array<DTypeName, 13> dtype_names{{{DType::boolean, "BOOL"},
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
                                                 {DType::f64, "F64"}}};

constexpr std::array<std::pair<Method, std::string_view>, 11> method_names{{{Method::linear, "linear"},
                                                                            {Method::hold, "hold"},
                                                                            {Method::nearest, "nearest"},
                                                                            {Method::slerp, "slerp"},
                                                                            {Method::angle, "angle"},
                                                                            {Method::angle_degrees, "angle_degrees"},
                                                                            {Method::cubic, "cubic"},
                                                                            {Method::mean, "mean"},
                                                                            {Method::max, "max"},
                                                                            {Method::min, "min"},
                                                                            {Method::last, "last"}}};

// ---- Checksums: a document ends with one, of all the text before it.

struct Seal {
  std::string_view before, after;  // the checksum
};
constexpr Seal manifest_seal{",\n  \"checksum\": \"", "\"\n}\n"};
constexpr Seal description_seal{", \"checksum\": \"", "\"}"};
constexpr std::size_t hash_digits = 32;

std::string hash_text(std::string_view text) {
  Hash hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.text();
}

std::string sealed(std::string body, const Seal& seal) {
  const std::string hash = hash_text(body);
  body += seal.before;
  body += hash;
  return body += seal.after;
}

// The checksum that the text says it has; empty where it does not end with one.
std::string_view said_checksum(std::string_view text, const Seal& seal) {
  const std::size_t length = seal.before.size() + hash_digits + seal.after.size();
  if (text.size() < length || !text.ends_with(seal.after)) return {};
  const std::string_view end = text.substr(text.size() - length);
  return end.starts_with(seal.before) ? end.substr(seal.before.size(), hash_digits) : std::string_view();
}

bool is_sealed(std::string_view text, const Seal& seal) {
  const std::string_view said = said_checksum(text, seal);
  if (said.empty()) return false;
  return hash_text(text.substr(0, text.size() - seal.before.size() - hash_digits - seal.after.size())) == said;
}

bool is_identity(std::string_view text) {
  return text.size() == hash_digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// ---- Reading

// A value in a document, and the way to it, for sentences.
class Node {
 public:
  Node(const Json& json, const std::string& file, std::string way) : json_(&json), file_(&file), way_(std::move(way)) {}

  template <class... Parts>
  std::string sentence(const Parts&... parts) const {
    return concat(*file_, ": ", way_.empty() ? "" : way_ + " ", parts...);
  }
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, sentence(parts...));
  }

  bool has(const char* key) const { return object().contains(key); }
  Node operator[](const char* key) const {
    const auto found = object().find(key);
    if (found == object().end()) fail("lacks ", in_quotes(key));
    return {*found, *file_, way_.empty() ? key : concat(way_, ".", key)};
  }
  std::int64_t integer(std::int64_t least, std::int64_t most) const {
    const bool fits =
        json_->is_number_integer() &&
        (!json_->is_number_unsigned() ||
         json_->get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    const std::int64_t value = fits ? json_->get<std::int64_t>() : 0;
    if (!fits || value < least || value > most) {
      fail("is ", json_->is_number() ? json_->dump() : json_->type_name(), "; expected a whole number from ", least,
           " to ", most);
    }
    return value;
  }
  const std::string& string() const {
    if (!json_->is_string()) fail("is ", json_->type_name(), "; expected a string");
    return json_->get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!json_->is_boolean()) fail("is ", json_->type_name(), "; expected true or false");
    return json_->get<bool>();
  }
  bool is_null() const { return json_->is_null(); }

  template <class F>
  void each(const F& f) const {
    if (!json_->is_array()) fail("is ", json_->type_name(), "; expected a list");
    std::size_t k = 0;
    for (const Json& item : *json_) f(Node(item, *file_, concat(way_, "[", k++, "]")));
  }
  template <class F>
  void each_member(const F& f) const {
    for (const auto& [key, value] : object().items())
      f(key, Node(value, *file_, concat(way_, "[", in_quotes(key), "]")));
  }
  std::size_t size() const { return json_->size(); }

 private:
  const Json& object() const {
    if (!json_->is_object()) fail("is ", json_->type_name(), "; expected an object");
    return *json_;
  }
  const Json* json_;
  const std::string* file_;
  std::string way_;
};

// As the library keeps it: 16 bytes a value, a node of a tree for each key. Refused before they are over a cap that what we
// write stays far under, however many episodes there are (an episode takes 11 times its text); and no nesting that nothing
// here has.
Json parse(std::string_view text, const std::string& name) {
  const std::size_t most = 20 * text.size() + (std::size_t{128} << 20);
  std::size_t used = 0;
  const auto count = [&](int depth, Json::parse_event_t event, Json&) {
    check_interrupt();
    if (depth > 16) throw Error(ErrorKind::file, concat(name, ": its lists and objects are nested over 16 deep"));
    const bool is_item = event == Json::parse_event_t::key || event == Json::parse_event_t::value;
    const std::size_t cost = event == Json::parse_event_t::key ? 112 : is_item ? 48 : 64;
    used += depth > (is_item ? 4 : 3) ? cost * 3 / 2 : cost;  // metadata variants: copied while this is held
    if (used > most) throw Error(ErrorKind::file, concat(name, ": has too many values for its size"));
    return true;
  };
  try {
    return Json::parse(text, count);
  } catch (const Json::exception& error) {
    std::string words = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const std::size_t at = words.find("] "); at != std::string::npos) words.erase(0, at + 2);
    words.resize(std::min<std::size_t>(words.size(), 200));
    std::ranges::replace_if(
        words, [](char c) { return c < ' ' || c > '~'; }, '?');
    throw Error(ErrorKind::file, concat(name, ": is damaged: ", words));
  }
}

DType parse_dtype(const Node& node) {
  const std::string& word = node.string();
  for (const DTypeName& entry : dtype_names) {
    if (word == name_of(entry.dtype)) return entry.dtype;
  }
  node.fail("is ", in_quotes(word), ", which is no dtype");
}

std::vector<std::int64_t> parse_shape(const Node& node, std::size_t most_rank) {
  std::vector<std::int64_t> shape;
  node.each([&](const Node& size) {
    shape.push_back(size.integer(0, max_count));
    if (shape.size() > most_rank) node.fail("has over ", most_rank, " dimensions");
  });
  return shape;
}

Metadata parse_metadata(const Node& node) {
  Metadata metadata;
  node.each_member([&](const std::string& key, const Node& value) { metadata[key] = value.string(); });
  return metadata;
}

StreamInfo parse_stream(const Node& node) {
  StreamInfo info;
  info.name = node["name"].string();
  info.type = node["type"].string();
  info.dtype = parse_dtype(node["dtype"]);
  info.shape = parse_shape(node["shape"], max_rank - 1);
  if (!bytes_of_shape(info.dtype, info.shape)) node["shape"].fail("is too large");
  info.is_ragged = node["ragged"].boolean();
  node["channels"].each([&](const Node& channel) { info.channels.push_back(channel.string()); });
  const std::int64_t channels = channels_of(info);
  if (!info.channels.empty() && static_cast<std::int64_t>(info.channels.size()) != channels) {
    node["channels"].fail("has ", info.channels.size(), " names for ", channels, " channels");
  }
  node["method"].each([&](const Node& range) {
    const char* const expected = "is no method; expected [name, begin, end]";
    MethodRange made;
    std::size_t k = 0;
    range.each([&](const Node& part) {
      if (k == 0) {
        const auto* const found = std::ranges::find(method_names, std::string_view(part.string()),
                                                    &std::pair<Method, std::string_view>::second);
        if (found == method_names.end()) part.fail("is ", in_quotes(part.string()), ", which is no method");
        made.method = found->first;
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

CacheSource parse_source(const Node& node) {
  CacheSource source;
  source.path = node["path"].string();
  source.size = node["size"].integer(-1, max_time);
  source.mtime =
      node["mtime"].integer(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
  source.hash = node["hash"].string();
  source.options = node["options"].string();
  if (node.has("stamp")) source.stamp = node["stamp"].string();
  source.is_complete = node["complete"].boolean();
  return source;
}

struct Streams {
  std::map<std::string, std::int64_t> places{};
  std::vector<std::vector<std::shared_ptr<const Metadata>>> variants{};  // by stream, of its episodes; never empty
  bool are_all_described = true;  // else a name is enough: a shard describes one, and its episodes have others too
};

std::int64_t stream_named(Manifest& manifest, Streams& streams, const std::string& name, const Node& node) {
  const auto found = streams.places.find(name);
  if (found != streams.places.end()) return found->second;
  if (streams.are_all_described) node.fail("names the stream ", in_quotes(name), ", which is not among the streams");
  manifest.streams.push_back({.name = name});
  streams.variants.push_back({std::make_shared<const Metadata>()});
  return streams.places[name] = static_cast<std::int64_t>(manifest.streams.size()) - 1;
}

// Why a shard cannot be one of this stream; empty where it can.
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

Shard parse_shard(const Node& node, Manifest& manifest, Streams& streams) {
  Shard shard;
  shard.file = node["file"].string();
  if (!is_shard_name(shard.file)) node["file"].fail("is ", in_quotes(shard.file), ", which is no name of a shard");
  shard.stream = stream_named(manifest, streams, node["stream"].string(), node["stream"]);
  shard.group = node["group"].integer(0, max_count);
  shard.bytes = node["bytes"].integer(0, max_time);
  shard.episodes = node["episodes"].integer(0, max_count);
  shard.samples = node["samples"].integer(0, max_count);
  shard.rows = node["rows"].integer(0, max_count);
  shard.channels = node["channels"].integer(0, max_count);
  const std::string wrong = misfit(manifest.streams[static_cast<std::size_t>(shard.stream)], shard);
  if (!wrong.empty()) node.fail("does not fit its stream: ", wrong);
  node["xxh3"].each_member([&](const std::string& key, const Node& hash) { shard.hashes[key] = hash.string(); });
  if (node.has("header")) shard.header_hash = node["header"].string();
  return shard;
}

CachedEpisode parse_episode(const Node& node, Manifest& manifest, Streams& streams) {
  CachedEpisode episode;
  episode.name = node["name"].string();
  episode.task = node["task"].string();
  if (!node["source"].is_null()) {
    episode.source = node["source"].integer(0, static_cast<std::int64_t>(manifest.sources.size()) - 1);
  }
  episode.number = node["number"].integer(0, max_count);
  episode.group = node["group"].integer(0, max_count);
  episode.row = node["row"].integer(0, max_count);
  episode.start = node["start"].integer(-max_time, max_time);
  episode.end = node["end"].integer(-max_time, max_time);
  std::map<std::int64_t, EpisodeStream> found;
  node["samples"].each_member([&](const std::string& name, const Node& samples) {
    const std::int64_t stream = stream_named(manifest, streams, name, node["samples"]);
    found[stream] = {.stream = stream,
                     .samples = samples.integer(0, max_count),
                     .metadata = streams.variants[static_cast<std::size_t>(stream)][0]};
  });
  const auto add = [&](const char* key, const auto& take) {
    if (!node.has(key)) return;
    node[key].each_member([&](const std::string& name, const Node& value) {
      const auto entry = found.find(stream_named(manifest, streams, name, node[key]));
      if (entry == found.end())
        node[key].fail("names the stream ", in_quotes(name), ", which the episode does not have");
      take(entry->second, value);
    });
  };
  add("backward", [](EpisodeStream& entry, const Node& value) { entry.backward = value.integer(0, max_time); });
  add("latency", [](EpisodeStream& entry, const Node& value) { entry.latency = value.integer(-max_time, max_time); });
  add("metadata", [&](EpisodeStream& entry, const Node& value) {
    const auto& variants = streams.variants[static_cast<std::size_t>(entry.stream)];
    entry.metadata =
        variants[static_cast<std::size_t>(value.integer(0, static_cast<std::int64_t>(variants.size()) - 1))];
  });
  for (const auto& [stream, entry] : found) episode.streams.push_back(entry);
  return episode;
}

std::int64_t check_version(const Node& root) {
  if (root["format"].string() != format_name) {
    root["format"].fail("is ", in_quotes(root["format"].string()), "; this is no manifest of a cache");
  }
  const std::int64_t version = root["version"].integer(1, max_count);
  if (version > cache_version) {
    throw NewerVersion(root.sentence("was written by a newer RoboCache: it is a cache of version ", version,
                                     ", and this one reads up to ", cache_version, "; update robocache"));
  }
  return version;
}

// What all documents have.
void parse_content(const Node& root, Manifest& manifest, Streams& streams) {
  root["streams"].each([&](const Node& node) {
    manifest.streams.push_back(parse_stream(node));
    const auto place = static_cast<std::int64_t>(manifest.streams.size()) - 1;
    if (!streams.places.emplace(manifest.streams.back().name, place).second) {
      node["name"].fail("is ", in_quotes(manifest.streams.back().name), " a second time");
    }
    auto& variants = streams.variants.emplace_back();
    if (!node.has("variants")) {  // all episodes said the same, or the cache is of a time when nobody asked
      variants.push_back(std::make_shared<const Metadata>(manifest.streams.back().metadata));
      return;
    }
    const Node said = node["variants"];
    if (said.size() < 1 || said.size() > root["episodes"].size()) {  // each is of an episode: bounds their memory, too
      said.fail("has ", said.size(), " entries for ", root["episodes"].size(), " episodes");
    }
    said.each(
        [&](const Node& variant) { variants.push_back(std::make_shared<const Metadata>(parse_metadata(variant))); });
  });
  root["sources"].each([&](const Node& node) { manifest.sources.push_back(parse_source(node)); });
  root["shards"].each([&](const Node& node) { manifest.shards.push_back(parse_shard(node, manifest, streams)); });
  root["episodes"].each([&](const Node& node) { manifest.episodes.push_back(parse_episode(node, manifest, streams)); });
}

// What readers rely on beyond the types of single values.
void check_content(const Node& root, const Manifest& manifest) {
  std::map<std::pair<std::int64_t, std::int64_t>, const Shard*> shards;  // by group and stream
  std::set<std::string_view> files;
  for (const Shard& shard : manifest.shards) {
    if (!shards.emplace(std::pair(shard.group, shard.stream), &shard).second || !files.insert(shard.file).second) {
      root["shards"].fail("has ", in_quotes(shard.file), ", or its stream in its group, twice");
    }
    if (shard.group >= manifest.next_group) root["next_group"].fail("is not over that of ", in_quotes(shard.file));
  }
  std::set<Row> rows;
  std::map<const Shard*, std::int64_t> samples;
  for (const CachedEpisode& episode : manifest.episodes) {
    const auto fail = [&](const auto&... parts) {
      root["episodes"].fail("has ", in_quotes(episode.name), ", ", parts...);
    };
    if (!rows.emplace(episode.group, episode.row).second) fail("whose row another one has too");
    for (const EpisodeStream& entry : episode.streams) {
      const auto shard = shards.find({episode.group, entry.stream});
      const std::string& stream = manifest.streams[static_cast<std::size_t>(entry.stream)].name;
      if (shard == shards.end()) fail("but no shard with its stream ", in_quotes(stream));
      if (episode.row >= shard->second->episodes) fail("which is not in the shard of its stream ", in_quotes(stream));
      std::int64_t& sum = samples[shard->second];
      sum += entry.samples;
      if (sum > shard->second->samples) fail("which has more samples of ", in_quotes(stream), " than the shard");
    }
    if (episode.end < episode.start) fail("which ends before it starts");
  }
}

// ---- Writing

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

// One line of a document: keys and values in the order they are added.
class Object {
 public:
  Object& add(std::string_view key, std::string_view text) {
    append_string(begin(key), text);
    return *this;
  }
  Object& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  Object& add(std::string_view key, std::int64_t number) {
    begin(key) += std::to_string(number);
    return *this;
  }
  Object& add(std::string_view key, bool flag) {
    begin(key) += flag ? "true" : "false";
    return *this;
  }
  Object& add_raw(std::string_view key, std::string_view json) {
    begin(key) += json;
    return *this;
  }
  bool is_empty() const noexcept { return text_.empty(); }
  std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string& begin(std::string_view key) {
    text_ += text_.empty() ? "{" : ", ";
    append_string(text_, key);
    text_ += ": ";
    return text_;
  }
  std::string text_;
};

template <class Items, class F>
std::string list(const Items& items, const char* between, const F& f) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += between;
    text += f(item);
  }
  return text + "]";
}

std::string number_list(std::span<const std::int64_t> numbers) { return shape_text(numbers); }

std::string members_text(const std::map<std::string, std::string>& members) {
  Object object;
  for (const auto& [key, value] : members) object.add(key, value);
  return object.text();
}

// The different metadata of a stream's episodes, in the order of the first that has them.
class Variants {
 public:
  void add(const Metadata& metadata) {
    if (places_.emplace(&metadata, static_cast<std::int64_t>(all_.size())).second) all_.push_back(&metadata);
  }
  const std::vector<const Metadata*>& all() const noexcept { return all_; }
  std::int64_t place_of(const Metadata& metadata) const {  // 0 where they were not added
    const auto found = places_.find(&metadata);
    return found == places_.end() ? 0 : found->second;
  }

 private:
  struct ByContent {
    bool operator()(const Metadata* a, const Metadata* b) const { return a != b && *a < *b; }
  };
  std::vector<const Metadata*> all_;
  std::map<const Metadata*, std::int64_t, ByContent> places_;
};

// By stream; of all, or of one.
std::vector<Variants> variants_of(const Manifest& manifest, std::optional<std::int64_t> only = {}) {
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
  Object object;
  object.add("name", info.name)
      .add("type", info.type)
      .add("dtype", name_of(info.dtype))
      .add_raw("shape", number_list(info.shape))
      .add_raw("channels", list(info.channels, ", ",
                                [](const std::string& channel) {
                                  std::string text;
                                  append_string(text, channel);
                                  return text;
                                }))
      .add_raw("method", list(info.methods, ", ",
                              [](const MethodRange& range) {
                                std::string text = "[";
                                append_string(text, method_name(range.method));
                                return text + ", " + std::to_string(range.begin) + ", " + std::to_string(range.end) +
                                       "]";
                              }))
      .add("ragged", info.is_ragged)
      .add_raw("metadata", members_text(metadata));
  if (variants.all().size() > 1) {
    object.add_raw("variants", list(variants.all(), ", ", [](const Metadata* m) { return members_text(*m); }));
  }
  return object.text();
}

std::string source_text(const CacheSource& source) {
  return Object()
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
  return Object()
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

std::string episode_text(const Manifest& manifest, const CachedEpisode& episode, std::int64_t source,
                         const std::vector<Variants>& variants) {
  Object samples, backward, latency, metadata;
  const auto add = [](Object& to, const std::string& name, std::int64_t number) {
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
  Object object;
  object.add("name", episode.name).add("task", episode.task);
  if (source < 0) {
    object.add_raw("source", "null");
  } else {
    object.add("source", source);
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

}  // namespace

// ---- Text

std::string_view method_name(Method method) {
  return std::ranges::find(method_names, method, &std::pair<Method, std::string_view>::first)->second;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string result = "\"";
  for (const char c : text.substr(0, longest)) {
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      result += {'\\', 'x', "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    }
  }
  return result + (text.size() > longest ? "...\"" : "\"");
}

std::string as_utf8(std::string_view text) {
  std::string result;
  for (std::size_t k = 0; k < text.size();) {
    const auto byte = [&](std::size_t i) { return k + i < text.size() ? static_cast<unsigned char>(text[k + i]) : 0; };
    const int first = byte(0);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xc2 && first < 0xe0 ? 2
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xf0 && first < 0xf5 ? 4
                                                               : 0;
    bool is_good = length > 0;
    for (std::size_t i = 1; i < length; ++i) is_good = is_good && (byte(i) & 0xc0) == 0x80;
    if (length == 3) is_good = is_good && !(first == 0xe0 && byte(1) < 0xa0) && !(first == 0xed && byte(1) > 0x9f);
    if (length == 4) is_good = is_good && !(first == 0xf0 && byte(1) < 0x90) && !(first == 0xf4 && byte(1) > 0x8f);
    if (is_good) {
      result += text.substr(k, length);
      k += length;
    } else {
      result += "\xef\xbf\xbd";
      ++k;
    }
  }
  return result;
}

// ---- Manifest

void unite(Metadata& into, const Metadata& more) {
  for (const auto& [key, value] : more) {
    const auto [place, is_new] = into.emplace(key, value);
    if (!is_new && place->second != value) place->second = "varies";
  }
}

void agree(Metadata& into, const Metadata& more) {
  for (auto& [key, value] : into) {
    const auto found = more.find(key);
    if (found == more.end() || found->second != value) value = "varies";
  }
  for (const auto& entry : more) into.try_emplace(entry.first, "varies");
}

std::int64_t Manifest::find_stream(std::string_view name) const {
  const auto found = std::ranges::find(streams, name, &StreamInfo::name);
  return found == streams.end() ? -1 : found - streams.begin();
}

const Shard* Manifest::find_shard(std::int64_t group, std::int64_t stream) const {
  const auto found =
      std::ranges::find_if(shards, [&](const Shard& s) { return s.group == group && s.stream == stream; });
  return found == shards.end() ? nullptr : &*found;
}

std::vector<bool> replaced_versions(const std::vector<SourceVersion>& versions) {
  std::vector<bool> replaced(versions.size());
  bool is_begun = false, is_complete = false;  // a later version
  for (std::size_t k = versions.size(); k-- > 0;) {
    replaced[k] = versions[k].is_complete ? is_complete : is_begun;
    is_begun = is_begun || versions[k].has_episodes || versions[k].is_complete;
    is_complete = is_complete || versions[k].is_complete;
  }
  return replaced;
}

std::string new_identity() {
  std::random_device random;
  std::string text;
  while (text.size() < hash_digits) {
    for (std::uint32_t bits = random(), k = 0; k < 8; ++k, bits >>= 4) text += "0123456789abcdef"[bits & 15];
  }
  return text;
}

bool tidy(Manifest& manifest) {
  constexpr std::int64_t gone = -1;
  // New numbers of what stays; `gone` for the rest, which is removed.
  const auto keep = [&](auto& items, const std::vector<bool>& needed) {
    std::vector<std::int64_t> places;
    std::size_t count = 0;
    for (std::size_t k = 0; k < items.size(); ++k) {
      places.push_back(needed[k] ? static_cast<std::int64_t>(count) : gone);
      if (!needed[k]) continue;
      if (count != k) items[count] = std::move(items[k]);
      ++count;
    }
    items.resize(count);
    return places;
  };
  std::vector<bool> used(manifest.streams.size(), false), needed;
  for (const Shard& shard : manifest.shards) used[static_cast<std::size_t>(shard.stream)] = true;
  for (const CacheSource& source : manifest.sources) needed.push_back(source.is_complete);
  for (const CachedEpisode& episode : manifest.episodes) {
    if (episode.source >= 0) needed[static_cast<std::size_t>(episode.source)] = true;
  }
  const auto all = [](const std::vector<bool>& flags) { return std::ranges::find(flags, false) == flags.end(); };
  if (all(used) && all(needed)) return false;
  const std::vector<std::int64_t> streams = keep(manifest.streams, used), sources = keep(manifest.sources, needed);
  for (Shard& shard : manifest.shards) shard.stream = streams[static_cast<std::size_t>(shard.stream)];
  for (CachedEpisode& episode : manifest.episodes) {
    for (EpisodeStream& entry : episode.streams) entry.stream = streams[static_cast<std::size_t>(entry.stream)];
    if (episode.source >= 0) episode.source = sources[static_cast<std::size_t>(episode.source)];
  }
  return true;
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  const Json json = parse(text, name);
  const Node root(json, name, "");
  Manifest manifest;
  if (check_version(root) == 1) {
    manifest.identity = hash_text(text);
  } else {
    if (!is_sealed(text, manifest_seal)) root.fail("its checksum is wrong: the file was changed after it was written");
    manifest.identity = root["identity"].string();
    if (!is_identity(manifest.identity)) root["identity"].fail("is not 32 hexadecimal digits");
  }
  Streams streams;
  parse_content(root, manifest, streams);
  manifest.next_group = root["next_group"].integer(0, max_count);

  check_content(root, manifest);
  return manifest;
}

namespace {

constexpr std::string_view manifest_head = "{\n  \"format\": \"robocache\",\n  \"version\": ";
constexpr std::string_view identity_key = ",\n  \"identity\": \"";

}  // namespace

std::string write_manifest(const Manifest& manifest) {
  const std::vector<Variants> variants = variants_of(manifest);
  std::string text = concat(manifest_head, cache_version, identity_key, manifest.identity,
                            "\",\n  \"next_group\": ", manifest.next_group);
  const auto add = [&](std::string_view key, std::size_t count, const auto& item) {
    text += concat(",\n  \"", key, "\": [");
    for (std::size_t k = 0; k < count; ++k) {
      text += k == 0 ? "\n    " : ",\n    ";
      text += item(k);
    }
    text += count == 0 ? "]" : "\n  ]";
  };
  add("streams", manifest.streams.size(), [&](std::size_t k) { return stream_text(manifest.streams[k], variants[k]); });
  add("sources", manifest.sources.size(), [&](std::size_t k) { return source_text(manifest.sources[k]); });
  add("shards", manifest.shards.size(), [&](std::size_t k) { return shard_text(manifest, manifest.shards[k]); });
  add("episodes", manifest.episodes.size(), [&](std::size_t k) {
    return episode_text(manifest, manifest.episodes[k], manifest.episodes[k].source, variants);
  });
  return sealed(std::move(text), manifest_seal);
}

std::string checksum_of_manifest(std::string_view text) {
  const std::string_view said = said_checksum(text, manifest_seal);
  return said.empty() ? hash_text(text) : std::string(said);
}

std::string identity_of_manifest(std::string_view head) {
  const std::size_t at = head.find(identity_key);
  if (!head.starts_with(manifest_head) || at == std::string_view::npos) return {};
  const std::string_view identity = head.substr(at + identity_key.size(), hash_digits);
  return is_identity(identity) ? std::string(identity) : std::string();
}

// ---- Changes

Change parse_change(std::string_view text, const std::string& name) {
  const Json json = parse(text, name);
  const Node root(json, name, "");
  Change change;
  Streams streams;
  parse_content(root, change.added, streams);
  change.added.next_group = root["next_group"].integer(0, max_count);
  check_content(root, change.added);
  root["places"].each([&](const Node& place) { change.places.push_back(place.integer(0, max_count)); });
  if (change.places.size() != change.added.sources.size()) root["places"].fail("is not as long as sources");
  root["dropped"].each([&](const Node& row) {
    std::vector<std::int64_t> numbers;
    row.each([&](const Node& number) { numbers.push_back(number.integer(0, max_count)); });
    if (numbers.size() != 2) row.fail("is not [group, row]");
    change.dropped.emplace_back(numbers[0], numbers[1]);
  });
  return change;
}

std::string write_change(const Change& change) {
  const Manifest& added = change.added;
  const std::vector<Variants> variants = variants_of(added);
  std::size_t stream = 0;
  return Object()
      .add("next_group", added.next_group)
      .add_raw("streams",
               list(added.streams, ", ", [&](const StreamInfo& info) { return stream_text(info, variants[stream++]); }))
      .add_raw("sources", list(added.sources, ", ", source_text))
      .add_raw("places", number_list(change.places))
      .add_raw("shards", list(added.shards, ", ", [&](const Shard& shard) { return shard_text(added, shard); }))
      .add_raw("episodes", list(added.episodes, ", ",
                                [&](const CachedEpisode& episode) {
                                  return episode_text(added, episode, episode.source, variants);
                                }))
      .add_raw("dropped",
               list(change.dropped, ", ", [](const Row& row) { return concat("[", row.first, ", ", row.second, "]"); }))
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
    if (!is_new(shard.group)) fail("the shard ", in_quotes(shard.file), " is not of a new group");
  }
  for (const CachedEpisode& episode : added.episodes) {
    if (!is_new(episode.group)) fail("the episode ", in_quotes(episode.name), " is not of a new group");
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
    // What the episodes agree on may be more now.
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
        throw Error(ErrorKind::file, concat(name, ": the shard ", in_quotes(shard.file),
                                            " does not fit its stream as a later commit has it: ", wrong));
      }
    }
  }
  dropped_.clear();
  reshaped_.clear();
  return gone;
}

// ---- Shards

const TensorEntry* ShardHeader::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &TensorEntry::name);
  return found == tensors.end() ? nullptr : &*found;
}

ShardHeader parse_header(std::string_view text, std::int64_t data_bytes, const std::string& name) {
  const Json json = parse(text, name);
  const Node root(json, name, "");
  ShardHeader header;
  root.each_member([&](const std::string& key, const Node& node) {
    if (key == "__metadata__") {
      if (node.has(format_name)) header.description = node[format_name].string();
      return;
    }
    TensorEntry& tensor = header.tensors.emplace_back();
    tensor.name = key;
    const Node dtype = node["dtype"];
    const auto* const found = std::ranges::find(dtype_names, std::string_view(dtype.string()), &DTypeName::safetensors);
    if (found == dtype_names.end()) dtype.fail("is ", in_quotes(dtype.string()), ", which no tensor of a cache has");
    tensor.dtype = found->dtype;
    tensor.shape = parse_shape(node["shape"], max_rank);
    std::vector<std::int64_t> offsets;
    node["data_offsets"].each([&](const Node& offset) { offsets.push_back(offset.integer(0, data_bytes)); });
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
    if (tensor.begin != at) root.fail("leaves a gap, or an overlap, before the tensor ", in_quotes(tensor.name));
    at = tensor.end;
  }
  if (at != data_bytes) root.fail("describes ", at, " bytes of tensors, but ", data_bytes, " follow it");
  return header;
}

std::string write_header(std::span<const TensorEntry> tensors, std::string_view description) {
  Object object;
  object.add_raw("__metadata__", Object().add(format_name, description).text());
  for (const TensorEntry& tensor : tensors) {
    const std::int64_t offsets[] = {tensor.begin, tensor.end};
    const auto* const dtype = std::ranges::find(dtype_names, tensor.dtype, &DTypeName::dtype);
    object.add_raw(tensor.name, Object()
                                    .add("dtype", dtype->safetensors)
                                    .add_raw("shape", number_list(tensor.shape))
                                    .add_raw("data_offsets", number_list(offsets))
                                    .text());
  }
  return object.text();
}

Manifest parse_description(std::string_view text, const std::string& name) {
  const Json json = parse(text, name);
  const Node root(json, name, "");
  if (check_version(root) > 1 && !is_sealed(text, description_seal)) {
    root.fail("the checksum of its description is wrong: the file was changed after it was written");
  }
  Manifest manifest;
  Streams streams{.are_all_described = false};
  parse_content(root, manifest, streams);
  if (manifest.shards.size() != 1) root["shards"].fail("is not one shard");
  for (const CachedEpisode& episode : manifest.episodes) {
    if (episode.group != manifest.shards[0].group) root["episodes"].fail("has one of another group");
  }
  return manifest;
}

std::string write_description(const Manifest& group, const Shard& shard) {
  const auto items = [](const auto& all, const auto& f) { return list(all, ", ", f); };
  const auto stream = static_cast<std::size_t>(shard.stream);
  const std::vector<Variants> variants = variants_of(group, shard.stream);
  std::string text =
      Object()
          .add("format", format_name)
          .add("version", std::int64_t{cache_version})
          .add_raw("streams", "[" + stream_text(group.streams[stream], variants[stream]) + "]")
          .add_raw("sources", items(group.sources, [](const CacheSource& source) { return source_text(source); }))
          .add_raw("shards", "[" + shard_text(group, shard) + "]")
          .add_raw("episodes", items(group.episodes,
                                     [&](const CachedEpisode& episode) {
                                       return episode_text(group, episode, episode.source, variants);
                                     }))
          .text();
  text.pop_back();  // the closing brace
  return sealed(std::move(text), description_seal);
}

}  // namespace robocache::cache
