#include <fcntl.h>
#include <robocache/cache.h>
#include <robocache/error.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "cache/directory.h"
#include "cache/files.h"
#include "cache/manifest.h"
#include "cache/safetensors.h"
#include "core/text.h"

namespace robocache {

using namespace cache;

namespace {

// A shard in memory, and where its tensors are.
struct Mapping {
  void* data = nullptr;
  std::size_t size = 0;
  std::map<std::string, TensorView> tensors{};

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data != nullptr) munmap(data, size);
  }
};

// The shards that were mapped last, of all caches of the process, stay mapped beyond their views: to read a header again
// costs what its group is long. Linux allows a process some 65,000 maps.
class Recent {
 public:
  static Recent& all() {
    static auto* const made = new Recent;  // never destroyed: caches may live until the process ends
    return *made;
  }
  void add(const void* owner, std::shared_ptr<const Mapping> mapping) {
    const std::lock_guard guard(mutex_);
    if (entries_.size() == most) entries_.pop_front();
    entries_.emplace_back(owner, std::move(mapping));
  }
  void drop(const void* owner) {
    const std::lock_guard guard(mutex_);
    std::erase_if(entries_, [&](const auto& entry) { return entry.first == owner; });
  }
  void drop_all() {
    const std::lock_guard guard(mutex_);
    entries_.clear();
  }

 private:
  static constexpr std::size_t most = 1024;
  std::mutex mutex_;
  std::deque<std::pair<const void*, std::shared_ptr<const Mapping>>> entries_;
};

std::string size_sentence(const Path& path, const Shard& shard, std::int64_t size) {
  return concat(path.string(), ": has ", size, " bytes, but the manifest says ", shard.bytes,
                "; `robocache verify --repair` keeps what is whole");
}

std::shared_ptr<const Mapping> map_shard(const Path& path, const StreamInfo& stream, const Shard& shard) {
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::file,
                concat(path.string(), ": is gone; the cache was changed since it was opened, open it again"));
  }
  const File file(path, O_RDONLY);
  const std::int64_t size = file.size();
  if (size != shard.bytes) throw Error(ErrorKind::file, size_sentence(path, shard, size));
  const Bytes bytes{path.string(), size, [&](std::int64_t at, std::span<std::byte> to) { file.read(at, to); }};
  const ShardHeader header = read_header(bytes);
  check_header(header, stream, shard, path.string());
  auto mapping = std::make_shared<Mapping>();
  mapping->size = static_cast<std::size_t>(size);
  const auto map = [&] { return mmap(nullptr, mapping->size, PROT_READ, MAP_SHARED, file.descriptor(), 0); };
  void* data = map();
  if (data == MAP_FAILED && errno == ENOMEM) {
    Recent::all().drop_all();
    data = map();
  }
  if (data == MAP_FAILED) fail_errno(path, "cannot be mapped", errno);
  mapping->data = data;
  for (const TensorEntry& tensor : header.tensors) {
    mapping->tensors[tensor.name] = TensorView::contiguous(
        static_cast<const std::byte*>(data) + header.data + tensor.begin, tensor.dtype, tensor.shape);
  }
  return mapping;
}

TensorView slice(const TensorView& view, std::int64_t begin, std::int64_t end) {
  TensorView part = view;
  part.data = static_cast<std::byte*>(view.data) + begin * view.strides[0] * size_of(view.dtype);
  part.shape[0] = end - begin;
  return part;
}

std::int64_t at(const TensorView& view, std::int64_t k) { return static_cast<const std::int64_t*>(view.data)[k]; }

}  // namespace

struct Cache::State {
  Path path;
  Manifest manifest;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> shards;  // by group and stream
  std::int64_t bytes = 0;
  std::mutex mutex;
  std::vector<std::weak_ptr<const Mapping>> mappings;  // by shard: of those that are mapped

  ~State() { Recent::all().drop(this); }
  std::shared_ptr<const Mapping> map(std::size_t k) {
    const std::lock_guard guard(mutex);
    if (auto held = mappings[k].lock()) return held;
    const Shard& shard = manifest.shards[k];
    auto made = map_shard(shard_path(path, shard), manifest.streams[static_cast<std::size_t>(shard.stream)], shard);
    mappings[k] = made;
    Recent::all().add(this, made);
    return made;
  }
};

namespace {

// The first shard whose file is not as the manifest says, as a sentence; empty where all are.
std::string find_damage(const Path& path, const std::vector<Shard>& shards) {
  for (const Shard& shard : shards) {
    const Path file = shard_path(path, shard);
    struct stat status {};
    if (stat(file.c_str(), &status) != 0) {
      if (errno != ENOENT) fail_errno(file, "cannot be read", errno);
      return concat(file.string(), ": is missing; `robocache verify --repair` keeps what is whole");
    }
    if (status.st_size != shard.bytes) return size_sentence(file, shard, status.st_size);
  }
  return {};
}

// A source that is being read anew is not seen before it is complete: until then there is what was read before.
void hide_unfinished(Manifest& manifest) {
  std::set<std::string_view> complete;
  std::vector<bool> hidden;
  for (const CacheSource& source : manifest.sources) {
    hidden.push_back(!source.is_complete && complete.contains(source.path));
    if (source.is_complete) complete.insert(source.path);
  }
  std::erase_if(manifest.episodes, [&](const CachedEpisode& episode) {
    return episode.source >= 0 && hidden[static_cast<std::size_t>(episode.source)];
  });
}

}  // namespace

Cache::Cache(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  // A writer may replace the manifest, and remove what only the old one names, between two looks: then the new one holds.
  for (std::string last;;) {
    LoadedCache loaded = load_cache(path);
    state_->manifest = std::move(loaded.manifest);
    const std::string damage = find_damage(path, state_->manifest.shards);
    if (damage.empty()) break;
    if (last == loaded.journal.checksum) throw Error(ErrorKind::file, damage);
    last = loaded.journal.checksum;
  }
  tidy(state_->manifest);
  hide_unfinished(state_->manifest);
  const std::vector<Shard>& shards = state_->manifest.shards;
  for (std::size_t k = 0; k < shards.size(); ++k) {
    state_->shards[{shards[k].group, shards[k].stream}] = k;
    state_->bytes += shards[k].bytes;
  }
  state_->mappings.resize(shards.size());
}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

const std::vector<StreamInfo>& Cache::streams() const noexcept { return state_->manifest.streams; }
const std::vector<CachedEpisode>& Cache::episodes() const noexcept { return state_->manifest.episodes; }
const std::vector<CacheSource>& Cache::sources() const noexcept { return state_->manifest.sources; }
std::int64_t Cache::bytes() const noexcept { return state_->bytes; }

CachedStream Cache::read_group(std::int64_t group, std::int64_t stream) const {
  const auto found = state_->shards.find({group, stream});
  if (found == state_->shards.end()) {
    throw Error(ErrorKind::value, concat("Cache: group ", group, " has no stream ", stream));
  }
  const auto mapping = state_->map(found->second);
  const auto view = [&](const char* name) {
    const auto entry = mapping->tensors.find(name);
    return entry == mapping->tensors.end() ? TensorView{} : entry->second;
  };
  CachedStream result{state_->manifest.shards[found->second].channels,
                      view("values"),
                      view("times"),
                      view("arrivals"),
                      view("inner"),
                      view("offsets"),
                      mapping};
  if (!state_->manifest.streams[static_cast<std::size_t>(stream)].is_ragged) result.inner = {};
  return result;
}

CachedStream Cache::read(std::int64_t episode, std::int64_t stream) const {
  const auto& episodes = state_->manifest.episodes;
  if (episode < 0 || episode >= static_cast<std::int64_t>(episodes.size())) {
    throw Error(ErrorKind::value, concat("Cache: episode ", episode, " of ", episodes.size()));
  }
  const CachedEpisode& entry = episodes[static_cast<std::size_t>(episode)];
  const auto of = std::ranges::find(entry.streams, stream, &EpisodeStream::stream);
  if (of == entry.streams.end()) {
    throw Error(ErrorKind::value, concat("Cache: episode ", in_quotes(entry.name), " has no stream ", stream));
  }
  CachedStream all = read_group(entry.group, stream);
  const std::string name = state_->path.string();
  const std::int64_t begin = at(all.offsets, entry.row), end = at(all.offsets, entry.row + 1);
  const auto fail =
      [&](const char* what) {  // data that were never checked: `offsets` and `inner` are in the mapped file
        const Shard& shard = state_->manifest.shards[state_->shards.at({entry.group, stream})];
        throw Error(ErrorKind::file,
                    concat(shard_path(state_->path, shard).string(), ": ", what, " of episode ", in_quotes(entry.name),
                           " are damaged; `robocache verify --repair` keeps what is whole"));
      };
  if (begin < 0 || end < begin || end > all.times.shape[0] || end - begin != of->samples) fail("the offsets");
  CachedStream result = all;
  result.times = slice(all.times, begin, end);
  result.arrivals = slice(all.arrivals, begin, end);
  result.offsets = {};
  if (!all.inner) {
    result.values = slice(all.values, begin, end);
    return result;
  }
  result.inner = slice(all.inner, begin, end + 1);
  std::int64_t last = 0;
  for (std::int64_t k = 0; k <= end - begin; ++k) {  // whoever slices by them must not leave the file
    if (at(result.inner, k) < last || at(result.inner, k) > all.values.shape[0]) fail("the inner offsets");
    last = at(result.inner, k);
  }
  return result;
}

}  // namespace robocache
