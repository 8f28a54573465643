// Exact sums of numbers and of their squares. An exact sum does not depend on the order or the grouping of its terms, so
// partial sums can be stored and merged.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace robocache::statistics {

__extension__ using Wide = unsigned __int128;

// A fixed-point integer in two's complement: bit k stands for 2^(k - bias).
template <std::size_t words, int bias>
class Exact {
 public:
  static constexpr std::size_t size = words;

  // Adds or subtracts magnitude * 2^exponent; exponent is at least -bias.
  void add(Wide magnitude, int exponent, bool is_negative) {
    const int at = exponent + bias;
    const auto shift = static_cast<unsigned>(at % 64);
    const std::uint64_t low = static_cast<std::uint64_t>(magnitude), high = static_cast<std::uint64_t>(magnitude >> 64);
    const std::array<std::uint64_t, 3> parts{low << shift, shift == 0 ? high : high << shift | low >> (64 - shift),
                                             shift == 0 ? 0 : high >> (64 - shift)};
    add(parts, static_cast<std::size_t>(at / 64), is_negative);
  }

  // Adds or subtracts the words from word `first` on.
  void add(std::span<const std::uint64_t> parts, std::size_t first, bool is_negative) {
    std::uint64_t carry = 0;
    for (std::size_t k = first; k < words && (k < first + parts.size() || carry != 0); ++k) {
      const std::uint64_t part = k < first + parts.size() ? parts[k - first] : 0;
      const Wide next = is_negative ? Wide{words_[k]} - part - carry : Wide{words_[k]} + part + carry;
      words_[k] = static_cast<std::uint64_t>(next);
      carry = static_cast<std::uint64_t>(next >> 64) & 1;
    }
  }

  bool is_negative() const { return words_[words - 1] >> 63 != 0; }

  std::array<std::uint64_t, words> magnitude() const {
    std::array<std::uint64_t, words> result = words_;
    if (!is_negative()) return result;
    std::uint64_t carry = 1;
    for (std::uint64_t& word : result) {
      word = ~word + carry;
      carry = carry != 0 && word == 0 ? 1 : 0;
    }
    return result;
  }

 private:
  std::array<std::uint64_t, words> words_{};
};

// Large enough for 2^63 finite doubles or 64-bit integers.
using Sum = Exact<36, 1074>;
using Squares = Exact<70, 2148>;

// The mean of `count` numbers, correctly rounded; count is not 0.
double mean_of(const Sum& sum, std::uint64_t count);

// Their standard deviation, sqrt(squares / count - (sum / count)^2), within 1 ulp of its exact value.
double deviation_of(const Sum& sum, const Squares& squares, std::uint64_t count);

}  // namespace robocache::statistics
