#include "cache/shard_check.h"

#include <fcntl.h>
#include <robocache/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "cache/directory.h"
#include "cache/partials.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "io/hash.h"

namespace robocache::cache {

namespace {

constexpr std::int64_t block = 1 << 20;

template <class... Parts>
[[noreturn]] void fail(const Path& path, const Parts&... parts) {
  throw Error(ErrorKind::file, concat(path.string(), ": ", parts...));
}

// The hash of bytes [begin, end) of a file.
std::string hash_range(const File& file, std::int64_t begin, std::int64_t end) {
  io::Hash hash;
  std::vector<std::byte> bytes;
  for (std::int64_t at = begin; at < end; at += block) {
    check_interrupt();
    bytes.resize(static_cast<std::size_t>(std::min(block, end - at)));
    file.read(at, bytes);
    hash.add(bytes);
  }
  return hash.text();
}

// Reads the numbers of an int64 tensor one by one, through a small buffer.
template <class F>
void each(const File& file, const ShardHeader& header, const TensorEntry& tensor, const F& f) {
  std::vector<std::int64_t> numbers;
  std::int64_t k = 0;
  for (std::int64_t at = tensor.begin; at < tensor.end; at += block) {
    check_interrupt();
    numbers.resize(static_cast<std::size_t>(std::min(block, tensor.end - at)) / sizeof(std::int64_t));
    file.read(header.data + at, std::as_writable_bytes(std::span(numbers)));
    for (const std::int64_t number : numbers) f(k++, number);
  }
}

const EpisodeStream* find_stream(const CachedEpisode& episode, std::int64_t stream) {
  const auto found = std::ranges::find(episode.streams, stream, &EpisodeStream::stream);
  return found == episode.streams.end() ? nullptr : &*found;
}

bool has_same_methods(const StreamInfo& a, const StreamInfo& b) {
  return std::ranges::equal(a.methods, b.methods, [](const MethodRange& x, const MethodRange& y) {
    return x.method == y.method && x.begin == y.begin && x.end == y.end;
  });
}

}  // namespace

File open_to_check(const Path& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) fail(path, "is missing");
    fail_errno(path, "cannot be read", errno);
  }
  if (S_ISLNK(status.st_mode)) fail(path, "is a symbolic link; a cache holds its files themselves");
  if (S_ISDIR(status.st_mode)) fail(path, "is a directory");
  if (!S_ISREG(status.st_mode)) fail(path, "is not a regular file");
  return {path, O_RDONLY | O_NOFOLLOW};
}

Bytes bytes_of_file(const File& file) {
  return {file.path().string(), file.size(), [&file](std::int64_t at, std::span<std::byte> to) { file.read(at, to); }};
}

std::string hash_header(const File& file, const ShardHeader& header) { return hash_range(file, 0, header.data); }

std::string without_name(const std::string& sentence, const Path& path) {
  const std::string name = path.string() + ": ";
  return sentence.starts_with(name) ? sentence.substr(name.size()) : sentence;
}

ShardCheck::ShardCheck(Path cache, const Manifest& manifest, bool is_sealed)
    : cache_(std::move(cache)), manifest_(manifest), is_sealed_(is_sealed) {
  for (const CachedEpisode& episode : manifest.episodes) groups_[episode.group][episode.row] = &episode;
}

std::string ShardCheck::check(const Shard& shard) {
  const Path path = shard_path(cache_, shard);
  const File file = open_to_check(path);
  if (file.size() != shard.bytes) fail(path, "has ", file.size(), " bytes, but the manifest says ", shard.bytes);
  const ShardHeader header = read_header(bytes_of_file(file));
  check_header(header, manifest_.streams[static_cast<std::size_t>(shard.stream)], shard, path.string());
  if (!shard.header_hash.empty() && hash_header(file, header) != shard.header_hash) {
    fail(path, "the checksum of its header is wrong: its first ", header.data,
         " bytes are not those that were written");
  }
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.name == statistics_name) continue;
    const auto expected = shard.hashes.find(tensor.name);
    if (expected == shard.hashes.end()) fail(path, quote(tensor.name), " has no checksum");
    if (hash_range(file, header.data + tensor.begin, header.data + tensor.end) != expected->second) {
      fail(path, "the checksum of ", quote(tensor.name), " is wrong: its ", tensor.end - tensor.begin,
           " bytes are not those that were written");
    }
  }
  check_content(file, header, shard);
  if (!header.description
           .empty()) {  // without a description the shard can be read, but no manifest can be made from it
    const Manifest said = parse_description(header.description, path.string());
    if (!is_sealed_) compare_description(said, shard);
  }
  tensors_ += static_cast<std::int64_t>(header.tensors.size());
  return check_statistics(file, header, shard);
}

std::string ShardCheck::check_statistics(const File& file, const ShardHeader& header, const Shard& shard) const {
  const auto expected = shard.hashes.find(statistics_name);
  if (expected == shard.hashes.end()) return {};  // an older version wrote the shard, or a repair dropped them
  const TensorEntry* const tensor = header.find(statistics_name);
  if (tensor == nullptr || tensor->dtype != DType::u64 || tensor->shape.size() != 1 ||
      (header.data + tensor->begin) % size_of(DType::u64) != 0) {
    return concat("the tensor ", quote(statistics_name), " is missing, or not what the manifest says");
  }
  std::vector<std::uint64_t> words(static_cast<std::size_t>(tensor->shape[0]));
  file.read(header.data + tensor->begin, std::as_writable_bytes(std::span(words)));
  io::Hash hash;
  hash.add(std::as_bytes(std::span(words)));
  if (hash.text() != expected->second) {
    return concat("the checksum of ", quote(statistics_name), " is wrong: its ", tensor->end - tensor->begin,
                  " bytes are not those that were written");
  }
  const DType dtype = manifest_.streams[static_cast<std::size_t>(shard.stream)].dtype;
  const std::string wrong = check_partials(words, dtype, shard.episodes);
  return wrong.empty() ? wrong : concat(quote(statistics_name), " ", wrong);
}

void ShardCheck::check_content(const File& file, const ShardHeader& header, const Shard& shard) const {
  const Path& path = file.path();
  const auto check_offsets = [&](const char* which, std::int64_t most) {
    std::int64_t last = 0;
    each(file, header, *header.find(which), [&](std::int64_t k, std::int64_t offset) {
      if (k == 0 && offset != 0) fail(path, which, "[0] is ", offset, "; it must be 0");
      if (offset < last) fail(path, which, "[", k, "] = ", offset, " is below ", which, "[", k - 1, "] = ", last);
      last = offset;
    });
    if (last != most) fail(path, "the last of ", which, " is ", last, ", but there are ", most);
  };
  check_offsets("offsets", shard.samples);
  if (manifest_.streams[static_cast<std::size_t>(shard.stream)].is_ragged) check_offsets("inner", shard.rows);

  std::vector<std::int64_t> offsets;
  offsets.reserve(static_cast<std::size_t>(shard.episodes + 1));
  each(file, header, *header.find("offsets"), [&](std::int64_t, std::int64_t offset) { offsets.push_back(offset); });
  static const std::map<std::int64_t, const CachedEpisode*> none;
  const auto group = groups_.find(shard.group);
  const auto& rows = group == groups_.end() ? none : group->second;
  for (const auto& [row, episode] : rows) {
    const EpisodeStream* const entry = find_stream(*episode, shard.stream);
    const std::int64_t said = entry == nullptr ? 0 : entry->samples;
    if (row >= shard.episodes) {
      if (entry != nullptr) fail(path, "has no row ", row, " for episode ", quote(episode->name));
      continue;
    }
    const std::int64_t count = offsets[static_cast<std::size_t>(row + 1)] - offsets[static_cast<std::size_t>(row)];
    if (count != said) {
      fail(path, "has ", count, " samples of episode ", quote(episode->name), ", but the manifest says ", said);
    }
  }
  std::size_t row = 0;
  std::int64_t last = 0, latency = 0;
  const CachedEpisode* episode = nullptr;
  each(file, header, *header.find("times"), [&](std::int64_t k, std::int64_t time) {
    bool is_first = false;
    while (row + 1 < offsets.size() && k >= offsets[row]) {
      if (k < offsets[row + 1]) {
        is_first = k == offsets[row];
        break;
      }
      ++row;
    }
    if (is_first) {
      const auto found = rows.find(static_cast<std::int64_t>(row));
      episode = found == rows.end() ? nullptr : found->second;
      const EpisodeStream* const entry = episode == nullptr ? nullptr : find_stream(*episode, shard.stream);
      latency = entry == nullptr ? 0 : entry->latency;
    } else if (time < last) {
      fail(path, "times[", k, "] = ", time, " is before times[", k - 1, "] = ", last);
    }
    last = time;
    if (episode != nullptr && (time - latency < episode->start || time - latency > episode->end)) {
      fail(path, "times[", k, "] = ", time, " is outside of its episode ", quote(episode->name));
    }
  });
}

void ShardCheck::compare_description(const Manifest& said, const Shard& shard) {
  const StreamInfo& stream = manifest_.streams[static_cast<std::size_t>(shard.stream)];
  const StreamInfo& described = said.streams[static_cast<std::size_t>(said.shards[0].stream)];
  const std::string where = concat(", but ", (Path("shards") / shard.file).string(), " says ");
  const auto differ = [&](const auto&... parts) {
    if (disagreement_.empty()) disagreement_ = concat(parts...);
  };
  // The stream may have got more channels since, but its first ones stay.
  for (std::size_t k = 0; k < described.channels.size(); ++k) {
    const std::string name = k < stream.channels.size() ? stream.channels[k] : "";
    if (name == described.channels[k]) continue;
    differ("channel ", k, " of stream ", quote(stream.name), " is ", quote(name), where, quote(described.channels[k]));
  }
  bool& has_method = has_method_[shard.stream];
  has_method = has_method || described.methods.empty() || has_same_methods(stream, described);
  const auto group = groups_.find(shard.group);
  if (group == groups_.end()) return;
  for (const CachedEpisode& other : said.episodes) {
    const auto found = group->second.find(other.row);
    if (found == group->second.end()) continue;  // the episode was dropped since
    const CachedEpisode& episode = *found->second;
    const auto compare = [&](const char* what, const auto& mine, const auto& theirs) {
      if (mine == theirs) return;
      differ("the ", what, " of episode ", quote(episode.name), " is ", mine, where, theirs);
    };
    compare("name", quote(episode.name), quote(other.name));
    compare("task", quote(episode.task), quote(other.task));
    compare("number", episode.number, other.number);
    compare("start", episode.start, other.start);
    compare("end", episode.end, other.end);
    const EpisodeStream* const mine = find_stream(episode, shard.stream);
    const EpisodeStream* const theirs = find_stream(other, said.shards[0].stream);
    if (mine == nullptr || theirs == nullptr) continue;
    compare("number of backward stamps", mine->backward, theirs->backward);
    compare("latency", mine->latency, theirs->latency);
  }
}

std::string ShardCheck::disagreement() const {
  if (!disagreement_.empty()) return disagreement_;
  for (const auto& [stream, is_found] : has_method_) {
    if (is_found) continue;
    return concat("the method of stream ", quote(manifest_.streams[static_cast<std::size_t>(stream)].name),
                  " is not what any of its shards says");
  }
  return {};
}

}  // namespace robocache::cache
