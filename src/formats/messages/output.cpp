#include "formats/messages/output.h"

#include <robocache/error.h>

#include <cstring>
#include <limits>

#include "core/methods.h"
#include "core/text.h"

namespace robocache::messages {

namespace {

constexpr std::size_t smallest = 4096;
constexpr std::size_t largest_start = std::size_t{4} << 20;
// When channels are added, a smaller batch gets them too; a larger one is ended.
constexpr std::size_t widened_in_place = 1 << 16;
constexpr std::size_t longest_note = 1024;

const char* name_of(TimeSource source) {
  switch (source) {
    case TimeSource::stamp:
      return "stamp";
    case TimeSource::publish:
      return "publish";
    default:
      return "log";
  }
}

std::size_t elements(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return static_cast<std::size_t>(count);
}

}  // namespace

void GrowingBuffer::grow(std::size_t bytes) {
  const std::size_t room = std::max({smallest, start_, 2 * capacity_, size_ + bytes});
  auto larger = std::make_unique_for_overwrite<std::byte[]>(room);
  if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_);
  data_ = std::move(larger);
  capacity_ = room;
}

std::unique_ptr<std::byte[]> GrowingBuffer::release() {
  start_ = std::min(size_ + size_ / 8, largest_start);
  size_ = capacity_ = 0;
  return data_ ? std::move(data_) : std::make_unique<std::byte[]>(1);
}

StreamBuilder::StreamBuilder(StreamInfo info)
    : info_(std::move(info)), row_bytes_(elements(info_.shape) * static_cast<std::size_t>(size_of(info_.dtype))) {}

std::byte* StreamBuilder::rows(std::size_t count, std::size_t message_bytes) {
  const std::size_t most = static_cast<std::size_t>(expansion) * message_bytes + static_cast<std::size_t>(allowance);
  if (count > most ||
      count * std::max<std::size_t>(row_bytes_, 1) > most - std::min(most, values_.size() - committed_)) {
    throw Error(ErrorKind::file, concat("a message of ", message_bytes, " bytes holds ", count, " rows of ", row_bytes_,
                                        " bytes; at most ", most, " bytes are kept of it"));
  }
  return values_.extend(count * row_bytes_);
}

std::int64_t StreamBuilder::commit(const MessageTimes& times, std::optional<std::int64_t> stamp) {
  const auto [time, source] = times.choose(stamp);
  const unsigned bit = 1U << static_cast<unsigned>(source);
  if ((sources_ | bit) != sources_) {
    sources_ |= bit;
    info_.metadata["time"] = sources_ == bit ? name_of(source) : "varies";
    shared_ = nullptr;
  }
  if (info_.is_ragged) {
    lengths_.push_back(row_bytes_ == 0 ? 0 : static_cast<std::int64_t>((values_.size() - committed_) / row_bytes_));
  }
  times_.push_back(time);
  arrivals_.push_back(times.log);
  const std::size_t values = values_.size() - std::exchange(committed_, values_.size());
  return static_cast<std::int64_t>(values + (info_.is_ragged ? 3 : 2) * sizeof(std::int64_t));
}

void StreamBuilder::add_channels(std::span<const std::string> names, std::span<const Method> methods) {
  if (names.empty()) return;
  if (committed_ > widened_in_place) seal();
  const std::size_t samples = times_.size(), before = row_bytes_;
  info_.channels.insert(info_.channels.end(), names.begin(), names.end());
  info_.shape = {static_cast<std::int64_t>(info_.channels.size())};
  info_.methods = ranges(methods, info_.dtype);
  shared_ = nullptr;
  row_bytes_ = info_.channels.size() * sizeof(double);
  if (samples == 0) return;
  GrowingBuffer wider;
  for (std::size_t k = 0; k < samples; ++k) {
    std::byte* const row = wider.extend(row_bytes_);
    if (before > 0) std::memcpy(row, values_.data() + k * before, before);
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    for (std::size_t at = before; at < row_bytes_; at += sizeof(double)) std::memcpy(row + at, &nan, sizeof(double));
  }
  values_ = std::move(wider);
  committed_ = values_.size();
}

void StreamBuilder::note(std::size_t slot, const char* key, std::string_view value) {
  if (slot >= notes_.size()) notes_.resize(slot + 1);
  Note& note = notes_[slot];
  if (note.varies || (note.key != nullptr && note.value == value)) return;
  if (value.size() > longest_note) value = value.substr(0, longest_note);
  const bool first = note.key == nullptr;
  note.key = key;
  if (!first && note.value == value) return;
  note.varies = !first;
  change(note, value);
}

void StreamBuilder::note(std::size_t slot, const char* key, std::uint64_t value) {
  if (slot >= notes_.size()) notes_.resize(slot + 1);
  Note& note = notes_[slot];
  if (note.varies || (note.key != nullptr && note.number == value)) return;
  note.varies = note.key != nullptr;
  note.key = key;
  note.number = value;
  change(note, std::to_string(value));
}

void StreamBuilder::change(Note& note, std::string_view value) {
  note.value = value;
  info_.metadata[note.key] = note.varies ? "varies" : std::string(value);
  shared_ = nullptr;
}

std::int64_t StreamBuilder::footprint() const {
  constexpr std::size_t each = 2 * (sizeof(std::string) + 32);  // a channel's name, here and in the batches
  return static_cast<std::int64_t>(sizeof(StreamBuilder) + 1024 + each * info_.channels.size());
}

void StreamBuilder::seal() {
  if (times_.empty()) return;
  if (!shared_) shared_ = std::make_shared<const StreamInfo>(info_);
  StreamBatch batch;
  batch.info = shared_;
  batch.values.dtype = info_.dtype;
  const auto rows = info_.is_ragged ? committed_ / std::max<std::size_t>(row_bytes_, 1) : times_.size();
  batch.values.shape.assign(1, static_cast<std::int64_t>(rows));  // GCC 14 warns falsely of a list in braces here
  batch.values.shape.insert(batch.values.shape.end(), info_.shape.begin(), info_.shape.end());
  batch.values.data = values_.release();
  batch.times = std::exchange(times_, {});
  batch.arrivals = std::exchange(arrivals_, {});
  batch.lengths = std::exchange(lengths_, {});
  times_.reserve(batch.times.size());
  arrivals_.reserve(batch.times.size());
  committed_ = 0;
  sealed_.push_back(std::move(batch));
}

void StreamBuilder::take(std::vector<StreamBatch>& to) {
  seal();
  std::ranges::move(sealed_, std::back_inserter(to));
  sealed_.clear();
}

std::vector<MethodRange> ranges(std::span<const Method> methods, DType dtype) {
  const Method usual = default_method(dtype);
  if (std::ranges::all_of(methods, [&](Method method) { return method == usual; })) return {};
  return ranges_of(methods);
}

}  // namespace robocache::messages
