#include <fcntl.h>
#include <pthread.h>
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
#include "cache/lock.h"
#include "cache/manifest.h"
#include "cache/merge_statistics.h"
#include "cache/partials.h"
#include "cache/safetensors.h"
#include "core/text.h"
#include "io/hash.h"

namespace robocache {

using namespace cache;

namespace {

// An opened shard: its header, and its bytes if they are mapped.
struct OpenedShard {
  ShardHeader header{};
  void* data = nullptr;  // nullptr: not mapped
  std::size_t size = 0;
  std::vector<std::int64_t> offsets{};        // of a shard that is not mapped
  std::map<std::string, TensorView> views{};  // of one that is

  OpenedShard() = default;
  OpenedShard(const OpenedShard&) = delete;
  OpenedShard& operator=(const OpenedShard&) = delete;
  ~OpenedShard() {
    if (data != nullptr) munmap(data, size);
  }
};

// Guards what threads share, for all caches. No file is read while it is held, so fork() can wait for it: a child process
// never finds it locked by a thread that the child does not have.
class SharedMutex {
 public:
  static SharedMutex& get() {
    static auto* const made = new SharedMutex;  // never destroyed: caches may live until the process ends
    return *made;
  }
  std::mutex mutex;

 private:
  SharedMutex() {
    pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); }, [] { get().mutex.unlock(); });
  }
};

std::lock_guard<std::mutex> guarded() { return std::lock_guard(SharedMutex::get().mutex); }

// Keeps the shards that were opened last open after their views are gone, for all caches of the process: reading a header
// again costs time for each episode of its group. Linux allows a process some 65,000 maps. Call members only under guarded().
class RecentShards {
 public:
  using Shards = std::deque<std::pair<const void*, std::shared_ptr<const OpenedShard>>>;
  static RecentShards& all() {
    static auto* const made = new RecentShards;  // never destroyed, as above
    return *made;
  }
  // Returns the shard that had to make room. The caller drops it after it released the mutex, because unmapping takes time.
  std::shared_ptr<const OpenedShard> add(const void* owner, std::shared_ptr<const OpenedShard> shard) {
    std::shared_ptr<const OpenedShard> oldest;
    if (entries_.size() == most) {
      oldest = std::move(entries_.front().second);
      entries_.pop_front();
    }
    entries_.emplace_back(owner, std::move(shard));
    return oldest;
  }
  Shards take(const void* owner) {
    Shards taken;
    const auto rest = std::stable_partition(entries_.begin(), entries_.end(),
                                            [&](const auto& entry) { return entry.first != owner; });
    std::move(rest, entries_.end(), std::back_inserter(taken));
    entries_.erase(rest, entries_.end());
    return taken;
  }
  Shards take_all() { return std::exchange(entries_, {}); }

 private:
  static constexpr std::size_t most = 1024;
  Shards entries_;
};

std::string size_sentence(const Path& path, const Shard& shard, std::int64_t size) {
  return concat(path.string(), ": has ", size, " bytes, but the manifest says ", shard.bytes,
                "; `robocache verify --repair` keeps what is whole");
}

// Opens the file of a shard. Throws if its size is not that of the manifest.
File open_file(const Path& path, const Shard& shard) {
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::file,
                concat(path.string(), ": is gone; the cache was changed since it was opened, open it again"));
  }
  File file(path, O_RDONLY);
  const std::int64_t size = file.size();
  if (size != shard.bytes) throw Error(ErrorKind::file, size_sentence(path, shard, size));
  return file;
}

std::shared_ptr<const OpenedShard> open_shard(const Path& path, const StreamInfo& stream, const Shard& shard,
                                              bool is_mapped) {
  const File file = open_file(path, shard);
  const Bytes bytes{path.string(), shard.bytes, [&](std::int64_t at, std::span<std::byte> to) { file.read(at, to); }};
  auto opened = std::make_shared<OpenedShard>();
  opened->header = read_header(bytes);
  check_header(opened->header, stream, shard, path.string());
  if (!is_mapped) {
    const TensorEntry& offsets = *opened->header.find("offsets");
    opened->offsets.resize(static_cast<std::size_t>(offsets.shape[0]));
    file.read(opened->header.data + offsets.begin, std::as_writable_bytes(std::span(opened->offsets)));
    return opened;
  }
  opened->size = static_cast<std::size_t>(shard.bytes);
  const auto map = [&] { return mmap(nullptr, opened->size, PROT_READ, MAP_SHARED, file.descriptor().number(), 0); };
  void* data = map();
  if (data == MAP_FAILED && errno == ENOMEM) {
    RecentShards::Shards dropped;
    {
      const auto guard = guarded();
      dropped = RecentShards::all().take_all();
    }
    dropped.clear();
    data = map();
  }
  if (data == MAP_FAILED) fail_errno(path, "cannot be mapped", errno);
  opened->data = data;
  for (const TensorEntry& tensor : opened->header.tensors) {
    opened->views[tensor.name] = TensorView::contiguous(
        static_cast<const std::byte*>(data) + opened->header.data + tensor.begin, tensor.dtype, tensor.shape);
  }
  return opened;
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
  bool is_mapped = true;
  Manifest manifest;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> shards;  // by group and stream
  std::int64_t bytes = 0;
  std::int64_t torn_bytes = 0;
  std::int64_t unnamed_shards = 0;
  std::vector<std::weak_ptr<const OpenedShard>> opened;  // by shard; needs guarded()

  ~State() {
    RecentShards::Shards mine;
    const auto guard = guarded();
    mine = RecentShards::all().take(this);
  }

  // If two threads open one shard at the same time, both get the one that was finished first.
  std::shared_ptr<const OpenedShard> open(std::size_t k) {
    {
      const auto guard = guarded();
      if (auto held = opened[k].lock()) return held;
    }
    const Shard& shard = manifest.shards[k];
    const StreamInfo& stream = manifest.streams[static_cast<std::size_t>(shard.stream)];
    auto made = open_shard(shard_path(path, shard), stream, shard, is_mapped);
    std::shared_ptr<const OpenedShard> oldest;
    const auto guard = guarded();
    if (auto held = opened[k].lock()) return held;
    opened[k] = made;
    oldest = RecentShards::all().add(this, made);
    return made;
  }
};

namespace {

// A sentence about the first shard whose file is missing or has another size than the manifest says; empty if there is none.
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

// Counts the finished shards that the manifest does not name. 0 if the folder cannot be listed: reading does not need it.
std::int64_t count_unnamed(const Path& path, const Manifest& manifest) {
  try {
    return std::ranges::count_if(find_leftovers(path, manifest),
                                 [](const Path& file) { return is_shard_name(file.filename().string()); });
  } catch (const SystemError&) {
    return 0;
  }
}

// Hides the episodes of a source that is being read again until it is complete. Until then the older episodes are shown.
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

Cache::Cache(const std::filesystem::path& path, const Options& options) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->is_mapped = options.map;
  // If a writer replaces the manifest while this looks for its shards, the new manifest counts.
  for (std::string last;;) {
    LoadedCache loaded = load_cache(path);
    state_->manifest = std::move(loaded.manifest);
    const std::string damage = find_damage(path, state_->manifest.shards);
    if (damage.empty()) {
      const std::int64_t torn = loaded.journal.torn_bytes, unnamed = count_unnamed(path, state_->manifest);
      if ((torn > 0 || unnamed > 0) && !Lock::is_held(path)) {
        // Look again: a writer may just have written that line, or have committed these shards.
        const JournalEnd now = load_cache(path).journal;
        if (now.torn_bytes == torn) state_->torn_bytes = torn;
        if (now.checksum == loaded.journal.checksum) state_->unnamed_shards = unnamed;
      }
      break;
    }
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
  state_->opened.resize(shards.size());
}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

const std::vector<StreamInfo>& Cache::streams() const noexcept { return state_->manifest.streams; }
const std::vector<CachedEpisode>& Cache::episodes() const noexcept { return state_->manifest.episodes; }
const std::vector<CacheSource>& Cache::sources() const noexcept { return state_->manifest.sources; }
std::int64_t Cache::bytes() const noexcept { return state_->bytes; }
std::int64_t Cache::torn_bytes() const noexcept { return state_->torn_bytes; }
std::int64_t Cache::unnamed_shards() const noexcept { return state_->unnamed_shards; }

namespace {

// Rows [begin, end) of a tensor of the file, copied to memory.
struct ReadRows {
  TensorView view{};
  std::shared_ptr<const std::byte[]> memory{};
};

ReadRows read_rows(const File& file, const ShardHeader& header, const TensorEntry& tensor, std::int64_t begin,
                   std::int64_t end) {
  std::vector<std::int64_t> shape = tensor.shape;
  const std::int64_t row = shape[0] == 0 ? 0 : (tensor.end - tensor.begin) / shape[0];
  shape[0] = end - begin;
  const auto bytes = static_cast<std::size_t>(row * (end - begin));
  std::shared_ptr<std::byte[]> memory(new std::byte[std::max<std::size_t>(bytes, 1)]);
  file.read(header.data + tensor.begin + begin * row, {memory.get(), bytes});
  return {TensorView::contiguous(memory.get(), tensor.dtype, shape), memory};
}

// Reads the samples [begin, end) of a shard that is not mapped, with only their own rows if the stream is ragged.
CachedStream read_samples(const File& file, const OpenedShard& shard, const Shard& said, bool is_ragged,
                          std::int64_t begin, std::int64_t end) {
  const auto rows = [&](const char* name, std::int64_t from, std::int64_t to) {
    return read_rows(file, shard.header, *shard.header.find(name), from, to);
  };
  ReadRows values, inner;
  const ReadRows times = rows("times", begin, end), arrivals = rows("arrivals", begin, end);
  if (is_ragged) {
    inner = rows("inner", begin, end + 1);
    auto* const bounds = static_cast<std::int64_t*>(inner.view.data);
    const auto count = static_cast<std::size_t>(end - begin + 1);
    if (bounds[0] < 0 || bounds[count - 1] > said.rows || !std::is_sorted(bounds, bounds + count)) {
      throw Error(ErrorKind::file, concat(file.path().string(),
                                          ": the inner offsets are damaged; `robocache verify "
                                          "--repair` keeps what is whole"));
    }
    const std::int64_t first = bounds[0];
    values = rows("values", first, bounds[count - 1]);
    for (std::size_t k = 0; k < count; ++k) bounds[k] -= first;
  } else {
    values = rows("values", begin, end);
  }
  struct All {
    ReadRows values, times, arrivals, inner;
  };
  const auto all = std::make_shared<const All>(All{values, times, arrivals, inner});
  return {said.channels, values.view, times.view, arrivals.view, inner.view, {}, all};
}

}  // namespace

CachedStream Cache::read_group(std::int64_t group, std::int64_t stream) const {
  const auto found = state_->shards.find({group, stream});
  if (found == state_->shards.end()) {
    throw Error(ErrorKind::value, concat("Cache: group ", group, " has no stream ", stream));
  }
  const auto shard = state_->open(found->second);
  const Shard& said = state_->manifest.shards[found->second];
  const bool is_ragged = state_->manifest.streams[static_cast<std::size_t>(stream)].is_ragged;
  if (!state_->is_mapped) {
    const File file = open_file(shard_path(state_->path, said), said);
    CachedStream result = read_samples(file, *shard, said, is_ragged, 0, said.samples);
    result.offsets = TensorView::contiguous(shard->offsets.data(), DType::i64, {said.episodes + 1});
    result.memory = std::make_shared<const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
        result.memory, shard);
    return result;
  }
  const auto view = [&](const char* name) { return shard->views.at(name); };
  return {said.channels,   view("values"), view("times"), view("arrivals"), is_ragged ? view("inner") : TensorView{},
          view("offsets"), shard};
}

StreamStatistics Cache::statistics(std::int64_t stream, std::span<const std::int64_t> episodes,
                                   std::span<const double> quantiles) const {
  return merge_statistics(*this, stream, episodes, quantiles, [&](std::int64_t group) -> KeptPartials {
    const std::size_t place = state_->shards.at({group, stream});
    const Shard& said = state_->manifest.shards[place];
    const auto hash = said.hashes.find(statistics_name);
    if (hash == said.hashes.end()) return {};
    const auto shard = state_->open(place);
    const TensorEntry* const entry = shard->header.find(statistics_name);
    const Path path = shard_path(state_->path, said);
    KeptPartials kept{.is_kept = true, .file = path.string()};
    if (entry == nullptr || entry->dtype != DType::u64 || entry->shape.size() != 1 ||
        (shard->header.data + entry->begin) % size_of(DType::u64) != 0) {
      return kept;  // damaged, as the caller will say
    }
    const auto count = static_cast<std::size_t>(entry->shape[0]);
    if (state_->is_mapped) {
      kept.words = {static_cast<const std::uint64_t*>(shard->views.at(statistics_name).data), count};
      kept.memory = shard;
    } else {
      const auto words = std::make_shared<std::vector<std::uint64_t>>(count);
      open_file(path, said).read(shard->header.data + entry->begin, std::as_writable_bytes(std::span(*words)));
      kept.words = *words;
      kept.memory = words;
    }
    io::Hash found;
    found.add(std::as_bytes(kept.words));
    if (found.text() != hash->second) kept.words = {};
    return kept;
  });
}

CachedStream Cache::read(std::int64_t episode, std::int64_t stream) const {
  const auto& episodes = state_->manifest.episodes;
  if (episode < 0 || episode >= static_cast<std::int64_t>(episodes.size())) {
    throw Error(ErrorKind::value, concat("Cache: episode ", episode, " of ", episodes.size()));
  }
  const CachedEpisode& entry = episodes[static_cast<std::size_t>(episode)];
  const auto of = std::ranges::find(entry.streams, stream, &EpisodeStream::stream);
  if (of == entry.streams.end()) {
    throw Error(ErrorKind::value, concat("Cache: episode ", quote(entry.name), " has no stream ", stream));
  }
  const std::size_t place = state_->shards.at({entry.group, stream});
  const Shard& said = state_->manifest.shards[place];
  const auto fail = [&](const char* what) {  // opening does not check the data, so offsets and inner may be wrong
    throw Error(ErrorKind::file,
                concat(shard_path(state_->path, said).string(), ": ", what, " of episode ", quote(entry.name),
                       " are damaged; `robocache verify --repair` keeps what is whole"));
  };
  const auto check = [&](std::int64_t begin, std::int64_t end) {
    if (begin < 0 || end < begin || end > said.samples || end - begin != of->samples) fail("the offsets");
  };
  if (!state_->is_mapped) {
    const auto shard = state_->open(place);
    const auto row = static_cast<std::size_t>(entry.row);
    const std::int64_t begin = shard->offsets[row], end = shard->offsets[row + 1];
    check(begin, end);
    const bool is_ragged = state_->manifest.streams[static_cast<std::size_t>(stream)].is_ragged;
    return read_samples(open_file(shard_path(state_->path, said), said), *shard, said, is_ragged, begin, end);
  }
  const CachedStream all = read_group(entry.group, stream);
  const std::int64_t begin = at(all.offsets, entry.row), end = at(all.offsets, entry.row + 1);
  check(begin, end);
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
  for (std::int64_t k = 0; k <= end - begin;
       ++k) {  // users slice by these offsets, so they must stay inside the values
    if (at(result.inner, k) < last || at(result.inner, k) > all.values.shape[0]) fail("the inner offsets");
    last = at(result.inner, k);
  }
  return result;
}

}  // namespace robocache
