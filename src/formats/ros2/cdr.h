// Reads CDR, the way DDS lays out a message: numbers are aligned to their size, counted from the end of the 4-byte header.
// OMG, "DDS-XTypes 1.3", 7.4: XCDR1, and XCDR2 of plain types, where 8 bytes are aligned to 4 and collections of anything
// but numbers begin with their size.
#pragma once

#include <robocache/error.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "core/text.h"
#include "io/endian.h"

namespace robocache::ros2 {

class CdrReader {
 public:
  // Throws Error(file) if the message has no known header.
  explicit CdrReader(std::span<const std::byte> message)
      : begin_(reinterpret_cast<const char*>(message.data())), size_(message.size()) {
    if (size_ < 4) fail("has ", size_, " bytes; CDR begins with 4");
    const unsigned kind = static_cast<unsigned char>(begin_[0]) << 8 | static_cast<unsigned char>(begin_[1]);
    if (kind != 0 && kind != 1 && kind != 6 && kind != 7 && kind != 0x10 && kind != 0x11) {
      fail("is CDR of kind ", kind, "; plain CDR (0, 1) and CDR2 (6, 7) are read");
    }
    swapped_ = (kind & 1) == 0;
    is_second_ = kind > 1;
    position_ = 4;
  }

  bool swapped() const { return swapped_; }
  bool is_second() const { return is_second_; }  // XCDR2
  std::size_t size() const { return size_; }
  std::size_t left() const { return size_ - position_; }
  const char* here() const { return begin_ + position_; }
  void seek_back(std::size_t left) { position_ = size_ - left; }

  // Where `count` numbers of `size` bytes begin. Zero numbers need no room and no alignment.
  const char* numbers(std::size_t size, std::size_t count) {
    if (count == 0) return here();
    align(size);
    if (count > left() / size) {
      fail("ends after ", size_, " bytes, where ", count, " numbers of ", size, " bytes should follow byte ",
           position_);
    }
    const char* const at = here();
    position_ += size * count;
    return at;
  }
  std::uint32_t count() { return io::load<std::uint32_t>(numbers(4, 1), swapped_); }
  // The count of a sequence with at most `most` elements (0: any number) of at least `smallest` bytes.
  std::uint32_t count(std::uint32_t most, std::size_t smallest) {
    const std::uint32_t n = count();
    if (most != 0 && n > most) fail("has a sequence of ", n, " elements; its schema says ", most, " at most");
    if (n > left() / smallest) {
      fail("ends after ", size_, " bytes, where a sequence of ", n, " elements should follow byte ", position_);
    }
    return n;
  }
  std::string_view string() {
    const std::uint32_t length = count();
    if (length > left()) fail("ends inside a string of ", length, " bytes after byte ", position_);
    const std::string_view text(here(), length);
    position_ += length;
    return text.ends_with('\0') ? text.substr(0, length - 1) : text;
  }
  void wstring(std::size_t character) {
    const std::uint32_t length = count();
    if (length > left() / character)
      fail("ends inside a wide string of ", length, " characters after byte ", position_);
    position_ += length * character;
  }
  // Skips the size before an array or sequence of anything but numbers.
  void collection() {
    if (is_second_) count();
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, concat("a message ", parts...));
  }

 private:
  void align(std::size_t size) {
    const std::size_t to = is_second_ ? std::min<std::size_t>(size, 4) : size;
    const std::size_t padding = (0 - (position_ - 4)) & (to - 1);
    if (padding > left()) fail("ends after ", size_, " bytes, where a number should follow byte ", position_);
    position_ += padding;
  }

  const char* begin_;
  std::size_t size_, position_ = 0;
  bool swapped_ = false, is_second_ = false;
};

}  // namespace robocache::ros2
