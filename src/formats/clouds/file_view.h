// The content of a file from outside, and what every format needs to read it without trusting it.
#pragma once

#include <robocache/error.h>
#include <robocache/tensor.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/characters.h"
#include "core/text.h"
#include "io/endian.h"

namespace robocache::clouds {

struct FileView {
  std::string_view name;
  std::string_view bytes;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, concat(name, ": ", parts...));
  }
};

// Asks for huge pages, as NumPy does: page faults take longer than reading (32 MB of KITTI points take 17 ms with huge pages,
// 53 without).
void prefer_huge_pages(void* memory, std::int64_t bytes);

// Uninitialised memory for char or std::byte.
template <class T>
std::unique_ptr<T[]> allocate(std::int64_t bytes) {
  auto memory = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(bytes));
  prefer_huge_pages(memory.get(), bytes);
  return memory;
}

// Products and sums of sizes that a file claims: at most `huge`, never negative, never wrapped.
inline constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
inline std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? huge : result;
}
inline std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? huge : result;
}

inline std::int64_t size_of(std::string_view bytes) { return static_cast<std::int64_t>(bytes.size()); }

using io::load;

// A whole number that is not negative; -1 if the word is no such number, or it does not fit int64.
std::int64_t parse_count(std::string_view word);

std::vector<std::string_view> words_of(std::string_view line);

// The lines of a text header. A line that is longer than any header needs is refused: it is not text, or meant to cost memory.
class Lines {
 public:
  explicit Lines(const FileView& source) : source_(source) {}

  // The next line, without its end. Throws Error(file) at the end of the file.
  std::string_view next();
  // The bytes after the line that next() returned last.
  std::string_view rest() const { return source_.bytes.substr(position_); }

  // "scan.ply: line 3: "
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    source_.fail("line ", number_, ": ", parts...);
  }

 private:
  const FileView& source_;
  std::size_t position_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace robocache::clouds
