// The content of a file from outside, and what every format needs to read it without trusting it.
#pragma once

#include <robocache/error.h>
#include <robocache/tensor.h>

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.h"

namespace robocache::clouds {

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

struct Source {
  std::string_view name;
  std::string_view bytes;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(ErrorKind::file, concat(name, ": ", parts...));
  }
};

// Asks for huge pages, as NumPy does: the faults on small ones take longer than reading (32 MB of KITTI points: 17 ms
// with huge pages, 53 without).
void prefer_huge_pages(void* memory, std::int64_t bytes);

// Memory for char or std::byte, not set to anything.
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

template <class T>
T load(const char* from, bool swapped = false) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, from, sizeof(T));
  if (swapped) {
    for (std::size_t k = 0; k < sizeof(T) / 2; ++k) std::swap(bytes[k], bytes[sizeof(T) - 1 - k]);
  }
  return std::bit_cast<T>(bytes);
}

// A whole number that is not negative. -1: the word is none, or is past int64.
std::int64_t parse_count(std::string_view word);

inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
std::vector<std::string_view> words_of(std::string_view line);

// The lines of a text header. One that is longer than a header needs is refused: it is no text, or means to cost memory.
class Lines {
 public:
  explicit Lines(const Source& source) : source_(source) {}

  // Without its end. The end of the file inside the header is a sentence.
  std::string_view next();
  // What follows the line that next() gave last.
  std::string_view rest() const { return source_.bytes.substr(position_); }

  // "scan.ply: line 3: "
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    source_.fail("line ", number_, ": ", parts...);
  }

 private:
  const Source& source_;
  std::size_t position_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace robocache::clouds
