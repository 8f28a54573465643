#include "statistics/exact.h"

#include <algorithm>
#include <cmath>

namespace robocache::statistics {

namespace {

using Words = std::span<const std::uint64_t>;

// The highest bit that is set; -1 if all are 0.
int top_bit(Words words) {
  for (std::size_t k = words.size(); k-- > 0;) {
    if (words[k] != 0) return static_cast<int>(k * 64) + std::bit_width(words[k]) - 1;
  }
  return -1;
}

bool is_set(Words words, int bit) {
  return bit >= 0 && (words[static_cast<std::size_t>(bit / 64)] >> (bit % 64) & 1) != 0;
}

bool has_bits_below(Words words, int bit) {
  for (int k = 0; k < bit / 64; ++k) {
    if (words[static_cast<std::size_t>(k)] != 0) return true;
  }
  return bit > 0 && bit % 64 != 0 && words[static_cast<std::size_t>(bit / 64)] << (64 - bit % 64) != 0;
}

// The 128 bits from `bit` on; `bit` may be negative.
Wide bits_from(Words words, int bit) {
  Wide result = 0;
  for (int k = 0; k < 128; ++k) {
    const int from = bit + k;
    if (from >= 0 && from < static_cast<int>(words.size() * 64) && is_set(words, from)) result |= Wide{1} << k;
  }
  return result;
}

// words * 2^exponent, rounded to the nearest double, ties to even. `has_more`: the exact value is a little larger.
double round(Words words, int exponent, bool has_more) {
  constexpr int least = -1074;  // the exponent of the last bit of a double at least
  const int top = top_bit(words);
  if (top < 0) return 0;
  const int last = std::max(top - 52, least - exponent);
  if (last > top + 1) return 0;
  const auto kept = last > top ? std::uint64_t{0} : static_cast<std::uint64_t>(bits_from(words, last));
  const bool is_half = is_set(words, last - 1);
  const bool is_more = has_more || has_bits_below(words, last - 1);
  const bool is_up = is_half && (is_more || (kept & 1) != 0);
  return std::ldexp(static_cast<double>(kept + (is_up ? 1 : 0)), exponent + last);
}

// The largest r with r * r <= x; x is below 2^127.
std::uint64_t root_of(Wide x) {
  if (x == 0) return 0;
  auto r = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(x)));
  r = std::max<std::uint64_t>(r, 1);
  r = static_cast<std::uint64_t>((Wide{r} + x / r) / 2);
  while (Wide{r} * r > x) --r;
  while (Wide{r + 1} * (r + 1) <= x) ++r;
  return r;
}

}  // namespace

double mean_of(const Sum& sum, std::uint64_t count) {
  const auto magnitude = sum.magnitude();
  std::array<std::uint64_t, Sum::size + 1> quotient{};  // of magnitude * 2^64
  Wide rest = 0;
  for (std::size_t k = quotient.size(); k-- > 0;) {
    rest = rest << 64 | (k > 0 ? magnitude[k - 1] : 0);
    quotient[k] = static_cast<std::uint64_t>(rest / count);
    rest %= count;
  }
  const double mean = round(quotient, -1074 - 64, rest != 0);
  return sum.is_negative() ? -mean : mean;
}

double deviation_of(const Sum& sum, const Squares& squares, std::uint64_t count) {
  // count * squares - sum^2 is count^2 times the variance, and exact.
  constexpr std::size_t size = 2 * Sum::size;
  std::array<std::uint64_t, size> variance{};
  const auto all = squares.magnitude();
  std::uint64_t carry = 0;
  for (std::size_t k = 0; k < size; ++k) {
    const Wide next = Wide{k < all.size() ? all[k] : 0} * count + carry;
    variance[k] = static_cast<std::uint64_t>(next);
    carry = static_cast<std::uint64_t>(next >> 64);
  }
  const auto one = sum.magnitude();
  std::array<std::uint64_t, size> square{};
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (one[i] == 0) continue;
    carry = 0;
    for (std::size_t j = 0; j < one.size(); ++j) {
      const Wide next = Wide{one[i]} * one[j] + square[i + j] + carry;
      square[i + j] = static_cast<std::uint64_t>(next);
      carry = static_cast<std::uint64_t>(next >> 64);
    }
    if (i + one.size() < size) square[i + one.size()] += carry;
  }
  std::uint64_t borrow = 0;
  for (std::size_t k = 0; k < size; ++k) {
    const Wide next = Wide{variance[k]} - square[k] - borrow;
    variance[k] = static_cast<std::uint64_t>(next);
    borrow = static_cast<std::uint64_t>(next >> 64) & 1;
  }
  const int top = top_bit(variance);
  if (top < 0) return 0;
  int shift = top - 125;
  if (shift % 2 != 0) ++shift;
  // The root and the quotient have at least 62 bits, so only the rounding to double matters.
  const Wide quotient = (Wide{root_of(bits_from(variance, shift))} << 64) / count;
  return std::ldexp(static_cast<double>(quotient), shift / 2 - 1074 - 64);
}

}  // namespace robocache::statistics
