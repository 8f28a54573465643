// The MCAP file that is read: its bytes, limits and warnings, and a cursor that goes through it.
#pragma once

#include <algorithm>

#include "core/text.h"
#include "formats/mcap/records.h"

namespace robocache::mcap {

// Uninitialised memory that is used again.
class ReusedBuffer {
 public:
  std::byte* data() noexcept { return memory_.get(); }
  std::size_t capacity() const noexcept { return capacity_; }
  std::span<std::byte> first(std::size_t size) noexcept { return {memory_.get(), size}; }
  // Growing drops what it held.
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

struct InputFile {
  Bytes bytes;
  ReadOptions options;
  std::uint64_t size = 0;
  std::uint64_t max_chunk = 0;

  // Throws Error(file) if this is no MCAP file.
  InputFile(Bytes from, const ReadOptions& with);

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, concat(bytes.name, ": ", parts...));
  }
  // Adds a warning, unless it is there already. Any thread may warn.
  template <class... Parts>
  void warn(const Parts&... parts) {
    add_warning(concat(bytes.name, ": ", parts...));
  }
  void read(std::uint64_t offset, std::span<std::byte> to) const { bytes.read(static_cast<std::int64_t>(offset), to); }
  std::vector<std::string> warnings() const;  // so far
  bool contains(std::uint64_t offset, std::uint64_t length) const { return offset <= size && length <= size - offset; }

 private:
  void add_warning(std::string sentence);
  std::vector<std::string> warnings_;  // guarded by lock_shared_facts(), as is the next member
  std::uint64_t not_shown_ = 0;
};

// Serves small reads, in order, from large ones.
class Cursor {
 public:
  Cursor(const InputFile& source, std::uint64_t position) : source_(source), position_(position) {}

  std::uint64_t position() const noexcept { return position_; }
  // The next bytes, which the file must have; valid until the next call.
  Span peek(std::uint64_t count);
  void skip(std::uint64_t count) noexcept { position_ += count; }

 private:
  const InputFile& source_;
  std::uint64_t position_;
  ReusedBuffer buffer_;
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

// The record at the cursor, which does not move. Throws Damage if the record is not whole before `end`.
Head peek_head(Cursor& cursor, std::uint64_t end);

}  // namespace robocache::mcap
