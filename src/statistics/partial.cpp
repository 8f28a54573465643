#include "statistics/partial.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <mutex>
#include <type_traits>
#include <utility>

#include "core/interrupt.h"
#include "core/parallel.h"
#include "statistics/order.h"
#include "statistics/sketch.h"

namespace robocache::statistics {

namespace {

constexpr std::int64_t piece_bytes = 1 << 20;
constexpr std::int64_t values_of_a_task = 1 << 16;
constexpr std::int64_t channels_at_once = 4;  // whose keys are collected: 2 MiB

// ---- Sums over a piece of a channel: at most sketch_block values

// Floats are integers times powers of two, so values of equal exponents are added as integers.
template <class T>
class ExponentBins {
  static constexpr bool is_double = std::is_same_v<T, double>;
  using Bits = std::conditional_t<is_double, std::uint64_t, std::uint32_t>;
  static constexpr int fraction_bits = is_double ? 52 : 23;
  static constexpr int exponents = is_double ? 2048 : 256;
  static constexpr int unit = is_double ? -1075 : -150;  // a value is mantissa * 2^(exponent + unit)
  __extension__ using Signed = std::conditional_t<is_double, __int128, std::int64_t>;
  using Square = std::conditional_t<is_double, Wide, std::uint64_t>;
  static_assert(sketch_block <= 65536, "squares of 24 bits are added up in 64 bits");

 public:
  void add(const T* values, std::int64_t rows, std::int64_t stride, ChannelTotal& total) {
    using Key = decltype(key_of(T{}));
    Key least = static_cast<Key>(~Key{0}), greatest = 0;
    int lowest = exponents, highest = -1;
    std::uint64_t count = 0;
    for (std::int64_t k = 0; k < rows; ++k) {
      const T value = values[k * stride];
      const auto bits = bit_copy<Bits>(widen(value));
      const Bits fraction = bits & ((Bits{1} << fraction_bits) - 1);
      const int exponent = static_cast<int>(bits >> fraction_bits) & (exponents - 1);
      const bool is_negative = bits >> (sizeof(Bits) * 8 - 1) != 0;
      if (exponent == exponents - 1) {
        ++(fraction != 0 ? total.nan : is_negative ? total.negative_infinity : total.positive_infinity);
        continue;
      }
      const Key key = key_of(value);
      least = std::min(least, key);
      greatest = std::max(greatest, key);
      ++count;
      const int place = std::max(exponent, 1);
      const Bits mantissa = exponent == 0 ? fraction : fraction | Bits{1} << fraction_bits;
      if (mantissa == 0) continue;
      lowest = std::min(lowest, place);
      highest = std::max(highest, place);
      Bin& bin = bins_[static_cast<std::size_t>(place)];
      bin.sum += is_negative ? -static_cast<Signed>(mantissa) : static_cast<Signed>(mantissa);
      bin.squares += Square{mantissa} * mantissa;
    }
    for (int place = lowest; place <= highest; ++place) {
      Bin& bin = bins_[static_cast<std::size_t>(place)];
      if (bin.squares == 0) continue;
      const bool is_negative = bin.sum < 0;
      const Wide magnitude = is_negative ? Wide{0} - static_cast<Wide>(bin.sum) : static_cast<Wide>(bin.sum);
      if (magnitude != 0) total.sum.add(magnitude, place + unit, is_negative);
      total.squares.add(bin.squares, 2 * (place + unit), false);
      bin = {};
    }
    if (count == 0) return;
    total.least = total.count == 0 ? least : std::min<std::uint64_t>(total.least, least);
    total.greatest = total.count == 0 ? greatest : std::max<std::uint64_t>(total.greatest, greatest);
    total.count += count;
  }

 private:
  struct Bin {
    Signed sum = 0;
    Square squares = 0;
  };
  std::vector<Bin> bins_ = std::vector<Bin>(exponents);
};

template <class T>
void add_integers(const T* values, std::int64_t rows, std::int64_t stride, ChannelTotal& total) {
  using Key = decltype(key_of(T{}));
  Key least = static_cast<Key>(~Key{0}), greatest = 0;
  __extension__ __int128 sum = 0;
  Wide squares = 0;
  std::uint64_t carries = 0;
  for (std::int64_t k = 0; k < rows; ++k) {
    const T value = values[k * stride];
    const Key key = key_of(value);
    least = std::min(least, key);
    greatest = std::max(greatest, key);
    sum += value;
    const std::uint64_t magnitude =
        value < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    const Wide square = Wide{magnitude} * magnitude;
    squares += square;
    if constexpr (sizeof(T) == 8) carries += squares < square ? 1 : 0;
  }
  if (rows == 0) return;
  const bool is_negative = sum < 0;
  total.sum.add(is_negative ? Wide{0} - static_cast<Wide>(sum) : static_cast<Wide>(sum), 0, is_negative);
  total.squares.add(squares, 0, false);
  if (carries != 0) total.squares.add(carries, 128, false);
  total.least = total.count == 0 ? least : std::min<std::uint64_t>(total.least, least);
  total.greatest = total.count == 0 ? greatest : std::max<std::uint64_t>(total.greatest, greatest);
  total.count += static_cast<std::uint64_t>(rows);
}

// ---- Values of one byte

using Histogram = std::array<std::uint64_t, 256>;  // by the byte

// Each channel has several tables, so that an increment need not wait for the one before it.
using SmallCounts = std::array<std::uint32_t, 256>;

void count_bytes(const std::uint8_t* values, std::int64_t rows, std::int64_t stride, Histogram& histogram) {
  std::array<SmallCounts, 4> tables{};
  std::int64_t k = 0;
  for (; k + 4 <= rows; k += 4, values += 4 * stride) {
    ++tables[0][values[0]];
    ++tables[1][values[stride]];
    ++tables[2][values[2 * stride]];
    ++tables[3][values[3 * stride]];
  }
  for (; k < rows; ++k, values += stride) ++tables[0][*values];
  for (std::size_t byte = 0; byte < 256; ++byte) {
    histogram[byte] += std::uint64_t{tables[0][byte]} + tables[1][byte] + tables[2][byte] + tables[3][byte];
  }
}

// All channels of at most 2^31 rows in one pass, eight bytes at a time.
template <std::size_t channels>
void count_pixels(const std::uint8_t* values, std::int64_t rows, std::span<Histogram> histograms) {
  constexpr std::size_t depth = 4;
  // Not 256 counters: a load 4 KiB after a store looks to the CPU like a load of what was stored.
  using Table = std::array<std::uint32_t, 264>;
  std::array<Table, channels * depth> tables{};
  std::array<std::uint64_t, channels> words{};  // of 8 rows
  const auto count = [&]<std::size_t... at>(std::index_sequence<at...>) {
    constexpr bool is_little = std::endian::native == std::endian::little;
    (++tables[at % channels * depth + at / channels % depth]
             [words[at / 8] >> (is_little ? at % 8 : 7 - at % 8) * 8 & 255],
     ...);
  };
  std::int64_t row = 0;
  for (; row + 8 <= rows; row += 8, values += sizeof words) {
    std::memcpy(words.data(), values, sizeof words);
    count(std::make_index_sequence<8 * channels>());
  }
  for (; row < rows; ++row, values += channels) {
    for (std::size_t c = 0; c < channels; ++c) ++tables[c * depth][values[c]];
  }
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t k = 0; k < depth; ++k) histograms[c][byte] += tables[c * depth + k][byte];
    }
  }
}

void count_rows(const std::uint8_t* values, std::int64_t rows, std::span<Histogram> histograms) {
  switch (histograms.size()) {
    case 1:
      return count_pixels<1>(values, rows, histograms);
    case 3:
      return count_pixels<3>(values, rows, histograms);
    default:
      break;
  }
  const auto channels = static_cast<std::int64_t>(histograms.size());
  for (std::int64_t c = 0; c < channels; ++c) {
    count_bytes(values + c, rows, channels, histograms[static_cast<std::size_t>(c)]);
  }
}

// Turns counts by byte into counts by key, and adds up the sums. Any byte but 0 is the bool true.
std::vector<std::uint64_t> finish_histogram(DType dtype, const Histogram& bytes, ChannelTotal& total) {
  Histogram keys{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::size_t key = dtype == DType::i8 ? byte ^ 0x80 : dtype == DType::boolean ? (byte != 0 ? 1 : 0) : byte;
    keys[key] += bytes[byte];
  }
  std::vector<std::uint64_t> words;
  for (std::size_t key = 0; key < 256; ++key) {
    const std::uint64_t number = keys[key];
    if (number == 0) continue;
    const int value = dtype == DType::i8 ? static_cast<int>(key) - 128 : static_cast<int>(key);
    const auto magnitude = static_cast<Wide>(value < 0 ? -value : value);
    total.sum.add(magnitude * number, 0, value < 0);
    total.squares.add(magnitude * magnitude * number, 0, false);
    if (total.count == 0) total.least = key;
    total.greatest = key;
    total.count += number;
    words.push_back(std::uint64_t{key} << 56 | number);
  }
  return words;
}

// ---- A matrix

// Calls f(first row, rows, data) for pieces of at most 1 MiB and sketch_block rows.
template <class F>
void each_piece(const Matrix& matrix, std::int64_t first, std::int64_t last, const F& f) {
  const std::int64_t row_bytes = matrix.channels * size_of(matrix.dtype);
  const std::int64_t at_once =
      std::clamp<std::int64_t>(piece_bytes / std::max<std::int64_t>(row_bytes, 1), 1, sketch_block);
  for (std::int64_t row = first; row < last; row += at_once) {
    check_interrupt();
    const std::int64_t rows = std::min(at_once, last - row);
    f(row, rows, matrix.read(row, rows));
  }
}

// Calls f for each channel, on several threads if there is enough work.
template <class F>
void each_channel(std::int64_t first, std::int64_t last, std::int64_t rows, const F& f) {
  const std::int64_t grain = std::max<std::int64_t>(values_of_a_task / std::max<std::int64_t>(rows, 1), 1);
  parallel_for(last - first, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) f(first + c);
  });
}

void add_up(const Matrix& matrix, std::vector<ChannelTotal>& totals,
            std::vector<std::vector<std::uint64_t>>& histograms) {
  const bool is_byte = size_of(matrix.dtype) == 1;
  std::vector<Histogram> counted(is_byte ? totals.size() : 0);
  with_type(matrix.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    each_piece(matrix, 0, matrix.rows, [&](std::int64_t, std::int64_t rows, const std::byte* data) {
      each_channel(0, matrix.channels, rows, [&](std::int64_t c) {
        const auto channel = static_cast<std::size_t>(c);
        if constexpr (sizeof(T) == 1) {
          count_bytes(reinterpret_cast<const std::uint8_t*>(data) + c, rows, matrix.channels, counted[channel]);
        } else if constexpr (is_float_type<T>) {
          static thread_local ExponentBins<T> binned;
          binned.add(reinterpret_cast<const T*>(data) + c, rows, matrix.channels, totals[channel]);
        } else {
          add_integers(reinterpret_cast<const T*>(data) + c, rows, matrix.channels, totals[channel]);
        }
      });
    });
  });
  for (std::size_t c = 0; c < counted.size(); ++c) {
    histograms[c] = finish_histogram(matrix.dtype, counted[c], totals[c]);
  }
}

void make_sketches(const Matrix& matrix, std::vector<std::vector<std::uint64_t>>& sketches) {
  const int bits = key_bits(matrix.dtype);
  std::vector<std::vector<std::uint64_t>> keys(static_cast<std::size_t>(channels_at_once));
  with_type(matrix.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for (std::int64_t first = 0; first < matrix.channels; first += channels_at_once) {
      const std::int64_t last = std::min(first + channels_at_once, matrix.channels);
      std::vector<Sketch> made(static_cast<std::size_t>(last - first));
      for (std::int64_t row = 0; row < matrix.rows; row += sketch_block) {
        const std::int64_t end = std::min(row + sketch_block, matrix.rows);
        for (auto& each : keys) each.clear();
        each_piece(matrix, row, end, [&](std::int64_t, std::int64_t rows, const std::byte* data) {
          for (std::int64_t c = first; c < last; ++c) {
            auto& into = keys[static_cast<std::size_t>(c - first)];
            const T* const values = reinterpret_cast<const T*>(data) + c;
            for (std::int64_t k = 0; k < rows; ++k) {
              const T value = values[k * matrix.channels];
              if constexpr (is_float_type<T>) {
                if (!is_finite(widen(value))) continue;
              }
              into.push_back(key_of(value));
            }
          }
        });
        each_channel(0, last - first, end - row, [&](std::int64_t c) {
          static thread_local std::vector<std::uint64_t> scratch;
          made[static_cast<std::size_t>(c)].add_block(keys[static_cast<std::size_t>(c)], scratch, bits);
        });
      }
      for (std::int64_t c = first; c < last; ++c) {
        sketches[static_cast<std::size_t>(c)] = made[static_cast<std::size_t>(c - first)].finish();
      }
    }
  });
}

// The range of a magnitude's words without the zeros at both ends.
struct WordRange {
  std::size_t first = 0, count = 0;
};
WordRange trim(std::span<const std::uint64_t> words) {
  std::size_t first = 0, last = words.size();
  while (first < last && words[first] == 0) ++first;
  while (last > first && words[last - 1] == 0) --last;
  return {first == last ? 0 : first, last - first};
}

void write_channel(const ChannelTotal& total, const std::vector<std::uint64_t>& sketch, bool has_histogram,
                   std::vector<std::uint64_t>& words) {
  const auto sum = total.sum.magnitude();
  const auto squares = total.squares.magnitude();
  const WordRange a = trim(sum), b = trim(squares);
  const std::uint64_t others = total.nan + total.positive_infinity + total.negative_infinity;
  words.push_back(total.count);
  words.push_back(a.count | a.first << 8 | std::uint64_t{total.sum.is_negative()} << 16 |
                  std::uint64_t{others > 0} << 17 | std::uint64_t{has_histogram} << 18 | b.count << 24 | b.first << 32 |
                  std::uint64_t{sketch.size()} << 40);
  if (others > 0) words.insert(words.end(), {total.nan, total.positive_infinity, total.negative_infinity});
  if (total.count > 0) words.insert(words.end(), {total.least, total.greatest});
  words.insert(words.end(), sum.begin() + a.first, sum.begin() + a.first + a.count);
  words.insert(words.end(), squares.begin() + b.first, squares.begin() + b.first + b.count);
  words.insert(words.end(), sketch.begin(), sketch.end());
}

}  // namespace

void summarize(const Matrix& matrix, bool with_sketch, std::vector<std::uint64_t>& words) {
  std::vector<ChannelTotal> totals(static_cast<std::size_t>(matrix.channels));
  std::vector<std::vector<std::uint64_t>> sketches(totals.size());
  add_up(matrix, totals, sketches);
  const bool is_byte = size_of(matrix.dtype) == 1, is_long = matrix.rows > most_read;
  if (is_byte && !is_long) {
    for (auto& sketch : sketches) sketch.clear();
  } else if (!is_byte && is_long && with_sketch) {
    make_sketches(matrix, sketches);
  }
  words.push_back(static_cast<std::uint64_t>(matrix.channels));
  words.push_back(static_cast<std::uint64_t>(matrix.rows));
  for (std::size_t c = 0; c < totals.size(); ++c) write_channel(totals[c], sketches[c], is_byte, words);
}

void ByteCounts::add(const std::byte* values, std::int64_t rows) {
  const auto channels = static_cast<std::int64_t>(counts_.size());
  const std::int64_t grain = std::max<std::int64_t>(piece_bytes / std::max<std::int64_t>(channels, 1), 1);
  std::mutex adding;
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Counts> some(counts_.size());
    count_rows(reinterpret_cast<const std::uint8_t*>(values) + begin * channels, end - begin, some);
    const std::lock_guard lock(adding);
    for (std::size_t c = 0; c < some.size(); ++c) {
      std::ranges::transform(counts_[c], some[c], counts_[c].begin(), std::plus());
    }
  });
  rows_ += rows;
}

void ByteCounts::summarize(DType dtype, std::vector<std::uint64_t>& words) const {
  words.push_back(counts_.size());
  words.push_back(static_cast<std::uint64_t>(rows_));
  for (const Counts& counts : counts_) {
    ChannelTotal total;
    std::vector<std::uint64_t> histogram = finish_histogram(dtype, counts, total);
    if (rows_ <= most_read) histogram.clear();
    write_channel(total, histogram, true, words);
  }
}

// ---- Reading

namespace {

class WordReader {
 public:
  explicit WordReader(std::span<const std::uint64_t> words) : words_(words) {}
  std::span<const std::uint64_t> take(std::uint64_t count) {
    if (count > words_.size()) {
      is_short_ = true;
      return {};
    }
    const auto taken = words_.first(static_cast<std::size_t>(count));
    words_ = words_.subspan(static_cast<std::size_t>(count));
    return taken;
  }
  std::uint64_t take() {
    const auto taken = take(1);
    return taken.empty() ? 0 : taken[0];
  }
  bool is_short() const { return is_short_; }
  bool is_at_end() const { return !is_short_ && words_.empty(); }

 private:
  std::span<const std::uint64_t> words_;
  bool is_short_ = false;
};

bool parse_channel(WordReader& reader, std::uint64_t rows, int bits, ChannelPartial& channel) {
  channel.count = reader.take();
  const std::uint64_t packed = reader.take();
  const auto field = [&](int shift, int width) { return packed >> shift & ((std::uint64_t{1} << width) - 1); };
  channel.is_negative = field(16, 1) != 0;
  channel.has_histogram = field(18, 1) != 0;
  channel.first_of_sum = static_cast<std::size_t>(field(8, 8));
  channel.first_of_squares = static_cast<std::size_t>(field(32, 8));
  if (field(17, 1) != 0) {
    channel.nan = reader.take();
    channel.positive_infinity = reader.take();
    channel.negative_infinity = reader.take();
  }
  const Wide all = Wide{channel.count} + channel.nan + channel.positive_infinity + channel.negative_infinity;
  if (all != rows) return false;
  if (channel.count > 0) {
    channel.least = reader.take();
    channel.greatest = reader.take();
    if (channel.least > channel.greatest || (bits < 64 && channel.greatest >> bits != 0)) return false;
  }
  channel.sum = reader.take(field(0, 8));
  channel.squares = reader.take(field(24, 8));
  channel.sketch = reader.take(field(40, 16));
  if (reader.is_short() || channel.first_of_sum + channel.sum.size() > Sum::size - 1 ||
      channel.first_of_squares + channel.squares.size() > Squares::size - 1 ||
      channel.sketch.size() > std::min(channel.count, most_keys) || channel.has_histogram != (bits == 8)) {
    return false;
  }
  std::uint64_t last = 0, weight = 0;
  bool is_sorted = true;
  each_entry(channel, [&](std::uint64_t key, std::uint64_t number) {
    is_sorted = is_sorted && key >= last && key >= channel.least && key <= channel.greatest && number <= rows;
    last = key;
    weight += number;
  });
  return is_sorted && (channel.sketch.empty() || weight == channel.count);
}

}  // namespace

bool parse_partial(std::span<const std::uint64_t> words, DType dtype, Partial& partial) {
  constexpr std::uint64_t most_rows = std::uint64_t{1} << 55;
  WordReader reader(words);
  const std::uint64_t channels = reader.take(), rows = reader.take();
  if (channels > words.size() || rows > most_rows) return false;
  partial.rows = static_cast<std::int64_t>(rows);
  partial.channels.assign(static_cast<std::size_t>(channels), {});
  for (ChannelPartial& channel : partial.channels) {
    if (!parse_channel(reader, rows, key_bits(dtype), channel)) return false;
  }
  return reader.is_at_end();
}

void ChannelTotal::add(const ChannelPartial& channel) {
  if (channel.count > 0) {
    least = count == 0 ? channel.least : std::min(least, channel.least);
    greatest = count == 0 ? channel.greatest : std::max(greatest, channel.greatest);
  }
  count += channel.count;
  nan += channel.nan;
  positive_infinity += channel.positive_infinity;
  negative_infinity += channel.negative_infinity;
  sum.add(channel.sum, channel.first_of_sum, channel.is_negative);
  squares.add(channel.squares, channel.first_of_squares, false);
}

}  // namespace robocache::statistics
