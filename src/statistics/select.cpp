#include "statistics/select.h"

#include <utility>

namespace robocache::statistics {

Selection::Selection(std::vector<std::uint64_t> ranks, int key_bits)
    : ranks_(std::move(ranks)),
      found_(ranks_.size(), 0),
      left_(key_bits),
      first_shift_(std::max(key_bits - digit_bits, 0)) {
  prepare();
}

// For the pass that finds the next digit.
void Selection::prepare() {
  shift_ = std::max(left_ - digit_bits, 0);
  mask_ = (std::uint64_t{1} << (left_ - shift_)) - 1;
  prefixes_.clear();
  for (const std::uint64_t known : found_) {
    if (prefixes_.empty() || prefixes_.back() != known) prefixes_.push_back(known);
  }
  counts_.assign(prefixes_.size() * digits, 0);
  std::size_t k = 0;
  for (std::size_t digit = 0; digit < digits; ++digit) {
    // Before the first pass there is one prefix, of no bits.
    const auto first_digit_of = [&](std::uint64_t prefix) { return prefix >> (first_shift_ - left_); };
    while (first_shift_ >= left_ && k < prefixes_.size() && first_digit_of(prefixes_[k]) < digit) ++k;
    starts_[digit] = static_cast<std::uint32_t>(k);
  }
}

void Selection::next() {
  if (is_done()) return;
  std::size_t k = 0;
  for (std::size_t j = 0; j < ranks_.size(); ++j) {
    while (prefixes_[k] != found_[j]) ++k;
    std::uint64_t digit = 0;
    for (const std::uint64_t* counts = &counts_[k * digits]; digit < mask_ && ranks_[j] >= counts[digit]; ++digit) {
      ranks_[j] -= counts[digit];
    }
    found_[j] = found_[j] << (left_ - shift_) | digit;
  }
  left_ = shift_;
  if (!is_done()) prepare();
}

}  // namespace robocache::statistics
