#include "cache/open_shard.h"

#include <robocache/error.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <queue>

#include "cache/safetensors.h"
#include "core/interrupt.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::size_t values_memory = 128 << 10;
constexpr std::size_t stamps_memory = 48 << 10;
constexpr std::int64_t header_reserve = 32 << 10;  // enough for about 150 episodes; for more the file is rewritten
constexpr std::int64_t header_alignment = 64;
constexpr std::int64_t block = 1 << 20;  // bytes
// Of values at a time: they stay in the L2 cache while they are written, hashed and counted.
constexpr std::int64_t cached_bytes = 512 << 10;
constexpr std::int64_t stamps_block = 4096;

// A sample while it is sorted: its stamps, and the place of its rows.
struct Sample {
  std::int64_t time, arrival, rows, at;
};
constexpr std::int64_t run_length = 1 << 18;  // samples: 8 MiB
constexpr std::int64_t merge_memory = std::int64_t{16} << 20;

std::span<const std::byte> bytes_of(const auto& items) { return std::as_bytes(std::span(items)); }
std::span<std::byte> bytes_into(auto& items) { return std::as_writable_bytes(std::span(items)); }

// Not inlined: GCC 12 warns of an overflow that cannot happen.
[[gnu::noinline]] void add_bytes(std::vector<std::byte>& to, std::span<const std::byte> from) {
  const std::size_t size = to.size();
  to.resize(size + from.size());
  if (!from.empty()) std::memcpy(to.data() + size, from.data(), from.size());
}

constexpr std::int64_t round_up(std::int64_t size, std::int64_t unit) { return (size + unit - 1) / unit * unit; }

// Merges sorted runs into one; equal times stay in the order of the runs.
void merge_runs(const Spool& runs, std::int64_t count, Spool& merged) {
  const std::int64_t run_count = (count + run_length - 1) / run_length;
  const std::int64_t ahead =
      std::max<std::int64_t>(merge_memory / static_cast<std::int64_t>(sizeof(Sample)) / run_count, 16);
  struct Run {
    std::vector<Sample> samples{};
    std::size_t at = 0;
    std::int64_t next = 0, end = 0;  // in the spool
  };
  std::vector<Run> all(static_cast<std::size_t>(run_count));
  const auto refill = [&](Run& run) {
    check_interrupt();
    const std::int64_t some = std::min(ahead, run.end - run.next);
    run.samples.resize(static_cast<std::size_t>(some));
    runs.read(run.next * static_cast<std::int64_t>(sizeof(Sample)), bytes_into(run.samples));
    run.next += some;
    run.at = 0;
    return some > 0;
  };
  using Key = std::pair<std::int64_t, std::size_t>;  // time, run
  std::priority_queue<Key, std::vector<Key>, std::greater<>> heads;
  for (std::size_t k = 0; k < all.size(); ++k) {
    all[k].next = static_cast<std::int64_t>(k) * run_length;
    all[k].end = std::min(count, all[k].next + run_length);
    if (refill(all[k])) heads.emplace(all[k].samples[0].time, k);
  }
  while (!heads.empty()) {
    Run& run = all[heads.top().second];
    const std::size_t k = heads.top().second;
    heads.pop();
    merged.append(bytes_of(std::span(&run.samples[run.at], 1)));
    if (++run.at < run.samples.size() || refill(run)) heads.emplace(run.samples[run.at].time, k);
  }
}

// Whether the statistics of a stream's values are counted while they are written: frames, which are large and never widened.
bool is_counted(const StreamInfo& info) {
  return info.dtype == DType::u8 && info.shape.size() >= 2 && keeps_partials(info);
}

// The hash of all bytes, read back.
std::string hash_of(const Spool& spool) {
  io::Hash hash;
  std::vector<std::byte> bytes;
  for (std::int64_t at = 0; at < spool.size(); at += block) {
    check_interrupt();
    bytes.resize(static_cast<std::size_t>(std::min(block, spool.size() - at)));
    spool.read(at, bytes);
    hash.add(bytes);
  }
  return hash.text();
}

}  // namespace

std::vector<std::byte> blank_row(DType dtype, std::int64_t channels) {
  const std::uint64_t bits = dtype == DType::f16    ? 0x7e00
                             : dtype == DType::bf16 ? 0x7fc0
                             : dtype == DType::f32  ? 0x7fc00000
                             : dtype == DType::f64  ? 0x7ff8000000000000
                                                    : 0;
  const auto size = static_cast<std::size_t>(size_of(dtype));
  std::vector<std::byte> row(size * static_cast<std::size_t>(channels));
  for (std::size_t at = 0; at < row.size(); at += size) std::memcpy(&row[at], &bits, size);
  return row;
}

OpenShard::OpenShard(const Path& directory, std::string stem, std::int64_t stream, const StreamInfo& info)
    : directory_(directory),
      stem_(std::move(stem)),
      stream_(stream),
      info_(info),
      values_(temporary(), Spool::Kind::named, header_reserve, values_memory),
      stamps_(directory_ / stem_, Spool::Kind::scratch, 0, stamps_memory) {}

Path OpenShard::temporary() {
  static std::atomic<unsigned> count = 0;
  return directory_ / concat(stem_, ".", count++, ".tmp");
}

std::int64_t OpenShard::channels() const { return channels_of(info_); }
std::int64_t OpenShard::row_bytes() const { return channels() * size_of(info_.dtype); }

void OpenShard::begin_episode(std::int64_t row) {
  keep_episode();
  open_ = Episode{.row = row,
                  .samples = samples_,
                  .rows = rows_,
                  .ends = ends_.size(),
                  .partials = partials_.mark(),
                  .was_rewritten = is_rewritten_,
                  .hash = hash_,
                  .stamps_hash = stamps_hash_};
  if (is_counted(info_)) open_->counts.emplace(statistics_shape(info_).channels);
  ends_.resize(static_cast<std::size_t>(row), samples_);
  partials_.skip_to(static_cast<std::size_t>(row));
}

void OpenShard::append_values(std::span<const std::byte> values, std::int64_t rows) {
  const std::int64_t at_once = std::max<std::int64_t>(cached_bytes / std::max<std::int64_t>(row_bytes(), 1), 1);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t some = std::min(at_once, rows - first);
    const auto bytes =
        values.subspan(static_cast<std::size_t>(first * row_bytes()), static_cast<std::size_t>(some * row_bytes()));
    values_.append(bytes);
    if (!is_rewritten_) hash_.add(bytes);
    if (open_->counts) open_->counts->add(bytes.data(), some * statistics_shape(info_).values);
    rows_ += some;
  }
}

void OpenShard::append_stamps(std::span<const std::int64_t> times, std::span<const std::int64_t> arrivals,
                              std::span<const std::int64_t> lengths) {
  std::vector<Stamps> some;
  for (std::size_t first = 0; first < times.size(); first += stamps_block) {
    some.resize(std::min<std::size_t>(stamps_block, times.size() - first));
    for (std::size_t k = 0; k < some.size(); ++k) {
      const std::int64_t time = times[first + k];
      some[k] = {time, arrivals[first + k], lengths.empty() ? 1 : lengths[first + k]};
      if (open_->last_time && time < *open_->last_time) ++open_->backward;
      open_->first = open_->last_time ? std::min(open_->first, time) : time;
      open_->last = open_->last_time ? std::max(open_->last, time) : time;
      open_->last_time = time;
    }
    stamps_.append(bytes_of(some));
    stamps_hash_.add(bytes_of(some));
  }
  samples_ += static_cast<std::int64_t>(times.size());
}

void OpenShard::read_stamps(std::int64_t first, std::span<Stamps> to) const {
  stamps_.read(first * static_cast<std::int64_t>(sizeof(Stamps)), std::as_writable_bytes(to));
}

void OpenShard::widen(const StreamInfo& info) {
  const std::int64_t old_bytes = row_bytes();
  const std::int64_t channels = channels_of(info);
  const std::vector<std::byte> blank = blank_row(info.dtype, channels);
  const auto new_bytes = static_cast<std::int64_t>(blank.size());
  Spool wide(temporary(), Spool::Kind::named, header_reserve, values_memory);
  const std::int64_t rows_at_once = std::max<std::int64_t>(block / new_bytes, 1);
  std::vector<std::byte> from, to;
  try {
    for (std::int64_t row = 0; row < rows_; row += rows_at_once) {
      check_interrupt();
      const std::int64_t some = std::min(rows_at_once, rows_ - row);
      from.resize(static_cast<std::size_t>(some * old_bytes));
      values_.read(row * old_bytes, from);
      to.clear();
      for (std::int64_t k = 0; k < some; ++k) {
        to.insert(to.end(), blank.begin(), blank.end());
        std::memcpy(to.data() + k * new_bytes, from.data() + k * old_bytes, static_cast<std::size_t>(old_bytes));
      }
      wide.append(to);
    }
  } catch (...) {
    remove_file(wide.path());
    throw;
  }
  if (!open_->narrow) {
    open_->narrow = std::move(values_);
    open_->narrow_info = info_;
  } else if (values_.file()) {
    remove_file(values_.path());
  }
  values_ = std::move(wide);
  is_rewritten_ = true;
  info_ = info;
}

OpenShard::Extent OpenShard::extent() const {
  return {samples_ - open_->samples, open_->backward, open_->first, open_->last};
}

OpenShard::Extent OpenShard::end_episode() {
  const Extent result = extent();
  ends_.push_back(samples_);
  ++episodes_;
  open_->has_ended = true;
  return result;
}

void OpenShard::keep_episode() noexcept {
  if (open_ && open_->narrow && open_->narrow->file()) remove_file(open_->narrow->path());
  open_.reset();
}

void OpenShard::discard_episode(std::int64_t row) noexcept {
  const bool is_mine = open_ && open_->row == row;
  if (is_mine && open_->narrow) {
    if (values_.file()) remove_file(values_.file().path());
    values_ = std::move(*open_->narrow);
    info_ = std::move(open_->narrow_info);
    is_suspect_ = false;                                                   // this file was never synced
  } else if (values_.file() && values_.file().path() != values_.path()) {  // finish() renamed it
    try {
      values_.rename(temporary());
    } catch (const std::exception&) {
      is_misplaced_ = true;
    }
  }
  if (!is_mine) return;
  if (open_->has_ended) --episodes_;
  values_.truncate(open_->rows * row_bytes());
  stamps_.truncate(open_->samples * static_cast<std::int64_t>(sizeof(Stamps)));
  ends_.resize(open_->ends);
  partials_.go_back(open_->partials);
  samples_ = open_->samples;
  rows_ = open_->rows;
  is_rewritten_ = open_->was_rewritten;
  hash_ = std::move(open_->hash);
  stamps_hash_ = std::move(open_->stamps_hash);
  open_.reset();
}

void OpenShard::summarize_episode() {
  const std::size_t begin = partials_.partials().size();
  if (open_->counts) {
    open_->counts->summarize(info_.dtype, partials_.words());
  } else if (keeps_partials(info_)) {
    const StatisticsShape shape = statistics_shape(info_);
    const std::int64_t size = shape.channels * size_of(info_.dtype);
    std::vector<std::byte> bytes;
    const auto read = [&](std::int64_t first, std::int64_t count) {
      bytes.resize(static_cast<std::size_t>(count * size));
      values_.read(open_->rows * row_bytes() + first * size, bytes);
      return static_cast<const std::byte*>(bytes.data());
    };
    const std::int64_t rows = (rows_ - open_->rows) * shape.values;
    statistics::summarize({info_.dtype, shape.channels, rows, read}, true, partials_.words());
  }
  partials_.end_row(begin);
}

// ---- Order

void OpenShard::sort_episode() {
  if (open_->backward == 0) return;
  const std::int64_t count = samples_ - open_->samples;
  Spool runs(directory_ / stem_, Spool::Kind::scratch, 0, static_cast<std::size_t>(block));
  std::vector<Stamps> stamps(static_cast<std::size_t>(std::min(stamps_block, count)));
  std::vector<Sample> run;
  std::int64_t at = open_->rows;
  for (std::int64_t first = 0; first < count; first += run_length) {
    check_interrupt();
    const std::int64_t length = std::min(run_length, count - first);
    run.clear();
    for (std::int64_t k = 0; k < length; k += stamps_block) {
      const auto some = std::span(stamps).first(static_cast<std::size_t>(std::min(stamps_block, length - k)));
      read_stamps(open_->samples + first + k, some);
      for (const Stamps& sample : some) {
        run.push_back({sample.time, sample.arrival, sample.rows, at});
        at += sample.rows;
      }
    }
    std::ranges::stable_sort(run, {}, &Sample::time);
    runs.append(bytes_of(run));
  }
  run = {};
  Spool order(directory_ / stem_, Spool::Kind::scratch, 0, static_cast<std::size_t>(block));
  if (count > run_length) {
    merge_runs(runs, count, order);
  } else {
    std::swap(order, runs);
  }
  permute_values(order, count);
  stamps_hash_ = open_->stamps_hash;
  std::vector<Sample> sorted;
  for (std::int64_t first = 0; first < count; first += stamps_block) {
    check_interrupt();
    sorted.resize(static_cast<std::size_t>(std::min(stamps_block, count - first)));
    stamps.resize(sorted.size());
    order.read(first * static_cast<std::int64_t>(sizeof(Sample)), bytes_into(sorted));
    std::ranges::transform(sorted, stamps.begin(), [](const Sample& sample) {
      return Stamps{sample.time, sample.arrival, sample.rows};
    });
    stamps_.write((open_->samples + first) * static_cast<std::int64_t>(sizeof(Stamps)), bytes_of(stamps));
    stamps_hash_.add(bytes_of(stamps));
  }
}

void OpenShard::permute_values(const Spool& order, std::int64_t count) {
  const std::int64_t size = row_bytes();
  if (size == 0) return;
  std::vector<Sample> samples(static_cast<std::size_t>(std::min(stamps_block, count)));
  const auto each = [&](const auto& f) {  // f(sample, the place where its rows go)
    std::int64_t to = open_->rows;
    for (std::int64_t first = 0; first < count; first += stamps_block) {
      check_interrupt();
      const auto some = std::span(samples).first(static_cast<std::size_t>(std::min(stamps_block, count - first)));
      order.read(first * static_cast<std::int64_t>(sizeof(Sample)), std::as_writable_bytes(some));
      for (const Sample& sample : some) {
        f(sample, to);
        to += sample.rows;
      }
    }
  };
  // Only the rows that move are written: [begin, end).
  std::int64_t begin = -1, end = -1;
  each([&](const Sample& sample, std::int64_t to) {
    if (sample.at == to || sample.rows == 0) return;
    if (begin < 0) begin = to;
    end = to + sample.rows;
  });
  if (begin < 0) return;

  Spool moved(directory_ / stem_, Spool::Kind::scratch, 0, static_cast<std::size_t>(block));
  std::vector<std::byte> bytes;
  std::int64_t from = 0, until = 0;  // consecutive rows that are not copied yet
  const auto copy = [&] {
    for (std::int64_t at = from * size; at < until * size; at += block) {
      check_interrupt();
      bytes.resize(static_cast<std::size_t>(std::min(block, until * size - at)));
      values_.read(at, bytes);
      moved.append(bytes);
    }
  };
  each([&](const Sample& sample, std::int64_t to) {
    if (to < begin || to >= end || sample.rows == 0) return;
    if (sample.at != until) {
      copy();
      from = sample.at;
    }
    until = sample.at + sample.rows;
  });
  copy();
  for (std::int64_t at = 0; at < moved.size(); at += block) {
    check_interrupt();
    bytes.resize(static_cast<std::size_t>(std::min(block, moved.size() - at)));
    moved.read(at, bytes);
    values_.write(begin * size + at, bytes);
  }
  is_rewritten_ = true;
}

// ---- The file

// The bytes of a tensor other than the values, in blocks.
template <class Sink>
void OpenShard::generate(const TensorEntry& tensor, const Sink& sink) const {
  if (tensor.name == "padding") {
    const std::byte zeros[8] = {};
    sink(std::span(zeros).first(static_cast<std::size_t>(tensor.end - tensor.begin)));
    return;
  }
  if (tensor.name == "offsets") {
    const std::int64_t zero = 0;
    sink(std::as_bytes(std::span(&zero, 1)));
    sink(bytes_of(ends_));
    const std::vector<std::int64_t> absent(static_cast<std::size_t>(tensor.shape[0] - 1) - ends_.size(), samples_);
    sink(bytes_of(absent));
    return;
  }
  if (tensor.name == statistics_name) {
    sink(bytes_of(partials_.head()));
    sink(bytes_of(partials_.partials()));
    return;
  }
  const bool is_inner = tensor.name == "inner";
  std::vector<Stamps> stamps;
  std::vector<std::int64_t> numbers;
  std::int64_t sum = 0;
  if (is_inner) sink(std::as_bytes(std::span(&sum, 1)));
  for (std::int64_t first = 0; first < samples_; first += stamps_block) {
    check_interrupt();
    stamps.resize(static_cast<std::size_t>(std::min(stamps_block, samples_ - first)));
    read_stamps(first, stamps);
    numbers.clear();
    for (const Stamps& sample : stamps) {
      numbers.push_back(is_inner ? sum += sample.rows : tensor.name == "times" ? sample.time : sample.arrival);
    }
    sink(bytes_of(numbers));
  }
}

Shard OpenShard::finish(const Manifest& group, std::int64_t number) {
  Shard shard;
  shard.file = stem_ + ".safetensors";
  shard.stream = stream_;
  shard.group = number;
  shard.episodes = static_cast<std::int64_t>(group.episodes.empty() ? 0 : group.episodes.back().row + 1);
  shard.samples = samples_;
  shard.rows = rows_;
  shard.channels = channels_of(info_);
  std::vector<TensorEntry> tensors = lay_out(info_, shard);
  if (!partials_.is_empty()) {
    partials_.skip_to(static_cast<std::size_t>(shard.episodes));
    const auto words = static_cast<std::int64_t>(partials_.head().size() + partials_.partials().size());
    const std::int64_t begin = tensors.back().end;
    tensors.push_back({statistics_name, DType::u64, {words}, begin, begin + words * size_of(DType::u64)});
  }
  shard.bytes = tensors.back().end;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == "values") {
      shard.hashes[tensor.name] = is_rewritten_ ? hash_of(values_) : hash_.text();
    } else {
      io::Hash hash;
      generate(tensor, [&](std::span<const std::byte> bytes) { hash.add(bytes); });
      shard.hashes[tensor.name] = hash.text();
    }
  }
  std::string header = write_header(tensors, write_description(group, shard));
  const std::int64_t length = round_up(static_cast<std::int64_t>(header.size()) + 8, header_alignment);
  if (length - 8 > max_header) {
    throw Error(ErrorKind::file, concat((directory_ / shard.file).string(), ": the description of ", shard.episodes,
                                        " episodes is over 100 MB; commit more often"));
  }
  const std::int64_t base = values_.settle(length, temporary(), is_suspect_ || is_misplaced_);
  is_misplaced_ = false;
  const bool has_values = !is_suspect_ || (!is_rewritten_ && hash_of(values_) == hash_.text());
  const bool has_stamps = !stamps_.file() || hash_of(stamps_) == stamps_hash_.text();
  if (!has_values || !has_stamps) {
    throw LostSamples(concat((directory_ / shard.file).string(),
                             ": the disk failed before, and may have lost samples that wait to be committed"));
  }
  header.resize(static_cast<std::size_t>(base - 8), ' ');
  File& file = values_.file();
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == "values") continue;
    std::int64_t at = base + tensor.begin;
    std::vector<std::byte> pending;  // collects the small blocks, so that there are few writes
    const auto write = [&] {
      file.write(at, pending);
      at += static_cast<std::int64_t>(pending.size());
      pending.clear();
    };
    generate(tensor, [&](std::span<const std::byte> bytes) {
      add_bytes(pending, bytes);
      if (static_cast<std::int64_t>(pending.size()) >= block) write();
    });
    write();
  }
  const auto size = static_cast<std::uint64_t>(header.size());
  std::vector<std::byte> head(sizeof(size));
  std::memcpy(head.data(), &size, sizeof(size));
  add_bytes(head, bytes_of(header));
  io::Hash header_hash;
  header_hash.add(head);
  shard.header_hash = header_hash.text();
  file.write(0, head);
  file.resize(base + shard.bytes);
  is_suspect_ = true;
  file.sync();
  is_suspect_ = false;
  file.rename(directory_ / shard.file);
  shard.bytes += base;
  return shard;
}

void OpenShard::abandon() noexcept {
  keep_episode();
  if (values_.file() && values_.file().path().extension() == ".tmp") remove_file(values_.file().path());
}

}  // namespace robocache::cache
