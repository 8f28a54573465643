// The file that is read: its bytes, its limits, its warnings; and a cursor that goes through it.
#pragma once

#include <algorithm>

#include "core/text.h"
#include "formats/mcap/records.h"

namespace robocache::mcap {

// Memory that is not set to anything and is used again.
class Buffer {
 public:
  std::byte* data() noexcept { return memory_.get(); }
  std::size_t capacity() const noexcept { return capacity_; }
  std::span<std::byte> first(std::size_t size) noexcept { return {memory_.get(), size}; }
  // What it held is gone where it grows.
  std::span<std::byte> room_for(std::size_t size) {
    if (size > capacity_) {
      memory_.reset();
      capacity_ = 0;
      memory_ = std::make_unique_for_overwrite<std::byte[]>(size);
      capacity_ = size;
    }
    return first(size);
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

struct Source {
  Bytes bytes;
  ReadOptions options;
  std::uint64_t size = 0;
  std::uint64_t max_chunk = 0;

  // Throws Error(file) where this is no MCAP file.
  Source(Bytes from, const ReadOptions& with);

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, concat(bytes.name, ": ", parts...));
  }
  // The same sentence again adds nothing. Any thread may warn.
  template <class... Parts>
  void warn(const Parts&... parts) {
    add_warning(concat(bytes.name, ": ", parts...));
  }
  void read(std::uint64_t offset, std::span<std::byte> to) const { bytes.read(static_cast<std::int64_t>(offset), to); }
  std::vector<std::string> warnings() const;  // so far
  bool contains(std::uint64_t offset, std::uint64_t length) const { return offset <= size && length <= size - offset; }

 private:
  void add_warning(std::string sentence);
  std::vector<std::string> warnings_;  // a shared fact, as is what follows
  std::uint64_t not_shown_ = 0;
};

// Small reads from large ones, in order.
class Cursor {
 public:
  Cursor(const Source& source, std::uint64_t position) : source_(source), position_(position) {}

  std::uint64_t position() const noexcept { return position_; }
  // The next bytes, which must be there; valid until the next call.
  Span peek(std::uint64_t count);
  void skip(std::uint64_t count) noexcept { position_ += count; }

 private:
  const Source& source_;
  std::uint64_t position_;
  Buffer buffer_;
  std::uint64_t begin_ = 0, end_ = 0;  // of what the buffer holds
};

// A record's place in the file.
struct Head {
  Op op{};
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // of its body
  std::uint64_t body() const noexcept { return offset + head_size; }
  std::uint64_t end() const noexcept { return body() + length; }
};

// The record at the cursor, which stays there. Throws Damage where there is no whole one before `end`.
Head peek_head(Cursor& cursor, std::uint64_t end);

}  // namespace robocache::mcap
