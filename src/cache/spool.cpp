#include "cache/spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "core/interrupt.h"

namespace robocache::cache {

namespace {

constexpr std::int64_t block = 1 << 20;
constexpr std::int64_t write_back_step = 8 << 20;

Path scratch_name(const Path& beside) {
  static std::atomic<unsigned> count = 0;
  return beside.string() + "." + std::to_string(getpid()) + "." + std::to_string(count++) + ".tmp";
}

}  // namespace

Spool::Spool(Path path, Kind kind, std::int64_t base, std::size_t memory)
    : path_(std::move(path)), kind_(kind), base_(base), memory_(memory) {}

void Spool::create() {
  const bool named = kind_ == Kind::named;
  file_ = File(named ? path_ : scratch_name(path_), O_RDWR | O_CREAT | O_EXCL);
  if (!named) remove_file(file_.path());
}

void Spool::flush() {
  if (tail_.empty()) return;
  if (!file_) create();
  file_.write(base_ + flushed_, tail_);
  flushed_ += static_cast<std::int64_t>(tail_.size());
  tail_.clear();
}

void Spool::append(std::span<const std::byte> from) {
  if (tail_.size() + from.size() > memory_) flush();
  if (from.size() > memory_) {
    if (!file_) create();
    file_.write(base_ + flushed_, from);
    flushed_ += static_cast<std::int64_t>(from.size());
  } else {
    tail_.insert(tail_.end(), from.begin(), from.end());
  }
  size_ += static_cast<std::int64_t>(from.size());
  if (kind_ == Kind::named && flushed_ - written_back_ >= write_back_step) {
    file_.write_back(base_ + written_back_, flushed_ - written_back_);
    written_back_ = flushed_;
  }
}

void Spool::read(std::int64_t offset, std::span<std::byte> to) const {
  const std::int64_t in_file = std::clamp<std::int64_t>(flushed_ - offset, 0, static_cast<std::int64_t>(to.size()));
  if (in_file > 0) file_.read(base_ + offset, to.first(static_cast<std::size_t>(in_file)));
  const auto rest = to.subspan(static_cast<std::size_t>(in_file));
  if (!rest.empty()) std::memcpy(rest.data(), tail_.data() + (offset + in_file - flushed_), rest.size());
}

void Spool::write(std::int64_t offset, std::span<const std::byte> from) {
  const std::int64_t in_file = std::clamp<std::int64_t>(flushed_ - offset, 0, static_cast<std::int64_t>(from.size()));
  if (in_file > 0) file_.write(base_ + offset, from.first(static_cast<std::size_t>(in_file)));
  const auto rest = from.subspan(static_cast<std::size_t>(in_file));
  if (!rest.empty()) std::memcpy(tail_.data() + (offset + in_file - flushed_), rest.data(), rest.size());
}

void Spool::truncate(std::int64_t size) {
  if (size >= size_) return;
  tail_.resize(static_cast<std::size_t>(std::max<std::int64_t>(size - flushed_, 0)));
  flushed_ = std::min(flushed_, size);
  written_back_ = std::min(written_back_, size);
  size_ = size;
}

std::int64_t Spool::settle(std::int64_t base, const Path& other, bool anew) {
  if (!file_) base_ = base;  // nothing was written yet: no need to reserve
  if (file_ && (anew || base > base_)) {
    Spool moved(other, kind_, base, memory_);
    try {
      moved.create();
      std::vector<std::byte> bytes(static_cast<std::size_t>(block));
      for (std::int64_t at = 0; at < size_; at += block) {
        check_interrupt();
        const auto part = std::span(bytes).first(static_cast<std::size_t>(std::min(block, size_ - at)));
        read(at, part);
        moved.append(part);
      }
    } catch (...) {
      remove_file(other);
      throw;
    }
    if (path_ != other) remove_file(path_);
    *this = std::move(moved);
  }
  if (!file_) create();
  flush();
  return base_;
}

void Spool::rename(const Path& to) {
  if (file_) file_.rename(to);
  path_ = to;
}

}  // namespace robocache::cache
