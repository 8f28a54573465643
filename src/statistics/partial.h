// The partial statistics of one stream of one episode. A cache stores them, and merges them exactly.
//
// Values are a matrix [rows, channels]. A partial is a list of words: channels, rows, and then for each channel
//   the number of finite values;
//   packed: bits 0..7 the number of words of the sum, 8..15 the place of its first word, 16 whether it is negative, 17
//   whether there are values that are not finite, 18 whether the sketch is a histogram, 24..31 and 32..39 number and place
//   of the words of the squares, 40..55 the number of words of the sketch;
//   if there are values that are not finite: the numbers of NaN, of +Inf and of -Inf;
//   if there are finite ones: the least and the greatest key (order.h);
//   the words of the sum and of the squares (exact.h); the sketch.
// Values of one byte have a histogram: a word for each value that occurs, its key in the top 8 bits and its number below.
// More than most_read other values have a sketch: keys in ascending order, each of which stands for an equal share of the
// values. Of n values, key j of k keys stands for those with ranks j n / k up to (j + 1) n / k, and is the middle one.
// Up to most_read values have no sketch, because reading the values themselves is fast.
#pragma once

#include <robocache/tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "statistics/exact.h"

namespace robocache::statistics {

inline constexpr std::int64_t most_read = 16384;  // the most values of a channel that need no sketch

// Returns rows [first, first + count) of the matrix, dense; valid until the next call.
using ReadRows = std::function<const std::byte*(std::int64_t first, std::int64_t count)>;

struct Matrix {
  DType dtype = DType::f32;
  std::int64_t channels = 0;
  std::int64_t rows = 0;
  ReadRows read{};
};

// Appends the matrix's partial to `words`. It reads at most 1 MiB, or one row, at once, and uses 4 MiB of memory. The
// result depends only on the rows and their order.
void summarize(const Matrix& matrix, bool with_sketch, std::vector<std::uint64_t>& words);

// Counts values of one byte while they are written, so that they need not be read again.
class ByteCounts {
 public:
  explicit ByteCounts(std::int64_t channels) : counts_(static_cast<std::size_t>(channels)) {}
  void add(const std::byte* values, std::int64_t rows);  // the next rows of the matrix, dense
  // Appends the partial of all rows, as summarize() does.
  void summarize(DType dtype, std::vector<std::uint64_t>& words) const;

 private:
  using Counts = std::array<std::uint64_t, 256>;  // by the byte
  std::vector<Counts> counts_;                    // of each channel
  std::int64_t rows_ = 0;
};

// One channel of a partial. The spans lie in the partial's words.
struct ChannelPartial {
  std::uint64_t count = 0;  // of finite values
  std::uint64_t nan = 0, positive_infinity = 0, negative_infinity = 0;
  std::uint64_t least = 0, greatest = 0;  // keys, where count is not 0
  std::span<const std::uint64_t> sum{}, squares{};
  std::size_t first_of_sum = 0, first_of_squares = 0;
  bool is_negative = false;
  bool has_histogram = false;
  std::span<const std::uint64_t> sketch{};  // or histogram
};

struct Partial {
  std::int64_t rows = 0;
  std::vector<ChannelPartial> channels{};
};

// Returns false if the words are not a partial of values of this dtype.
bool parse_partial(std::span<const std::uint64_t> words, DType dtype, Partial& partial);

// Calls f(key, weight) for each entry of a sketch or histogram.
template <class F>
void each_entry(const ChannelPartial& channel, const F& f) {
  constexpr std::uint64_t number = (std::uint64_t{1} << 56) - 1;
  const std::uint64_t size = channel.sketch.size();
  std::uint64_t begin = 0;
  for (std::uint64_t j = 0; j < size; ++j) {
    const std::uint64_t word = channel.sketch[j];
    if (channel.has_histogram) {
      f(word >> 56, word & number);
      continue;
    }
    const auto end = static_cast<std::uint64_t>(Wide{j + 1} * channel.count / size);
    f(word, end - begin);
    begin = end;
  }
}

// The merged statistics of one channel.
struct ChannelTotal {
  std::uint64_t count = 0, nan = 0, positive_infinity = 0, negative_infinity = 0;
  std::uint64_t least = 0, greatest = 0;
  Sum sum{};
  Squares squares{};

  void add(const ChannelPartial& channel);
};

}  // namespace robocache::statistics
