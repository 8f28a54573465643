// Finds keys by their ranks in several passes over the values, so memory does not grow with the number of values.
//
// Each pass resolves 11 more bits of the keys: float32 takes 3 passes, float64 6, a byte 1.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace robocache::statistics {

class Selection {
 public:
  // `ranks`: ascending, each below the number of values.
  Selection(std::vector<std::uint64_t> ranks, int key_bits);

  bool is_done() const noexcept { return left_ == 0 || ranks_.empty(); }
  // Each pass adds all values, in any order, and ends with next().
  void add(std::uint64_t key, std::uint64_t weight) {
    const std::uint64_t prefix = left_ == 64 ? 0 : key >> left_;
    std::size_t k = starts_[key >> first_shift_];
    while (k < prefixes_.size() && prefixes_[k] < prefix) ++k;
    if (k < prefixes_.size() && prefixes_[k] == prefix) counts_[k * digits + (key >> shift_ & mask_)] += weight;
  }
  void next();
  // One key for each rank. Complete only when is_done().
  const std::vector<std::uint64_t>& keys() const noexcept { return found_; }

  // The most bytes of memory that a pass takes.
  static std::size_t memory_of(std::size_t ranks) noexcept { return ranks * digits * sizeof(std::uint64_t); }

 private:
  static constexpr int digit_bits = 11;
  static constexpr std::size_t digits = std::size_t{1} << digit_bits;

  void prepare();

  std::vector<std::uint64_t> ranks_;     // among the values that have the prefix
  std::vector<std::uint64_t> found_;     // by rank: the bits of its key that are known
  std::vector<std::uint64_t> prefixes_;  // the distinct ones of found_, ascending
  std::vector<std::uint64_t> counts_;    // by prefix and next digit
  std::array<std::uint32_t, digits>
      starts_{};            // by a key's first digit: the first prefix that begins with it, or a later one
  int left_ = 0;            // bits that are not known
  int shift_ = 0;           // bits below the next digit
  int first_shift_ = 0;     // bits below the first digit
  std::uint64_t mask_ = 0;  // of the next digit
};

}  // namespace robocache::statistics
