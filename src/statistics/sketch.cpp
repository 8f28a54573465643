#include "statistics/sketch.h"

#include <algorithm>
#include <array>
#include <utility>

namespace robocache::statistics {

namespace {

constexpr std::uint64_t keys_of_block = 512;
constexpr std::uint64_t keys_of_blocks = 2048;

// Ascending, by digits of 11 bits; a digit that all keys share costs no pass.
void sort_keys(std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& scratch, int key_bits) {
  constexpr int digit_bits = 11;
  constexpr std::size_t digits = std::size_t{1} << digit_bits;
  scratch.resize(keys.size());
  for (int shift = 0; shift < key_bits; shift += digit_bits) {
    std::array<std::uint32_t, digits> places{};
    const auto digit_of = [&](std::uint64_t key) { return static_cast<std::size_t>(key >> shift) & (digits - 1); };
    for (const std::uint64_t key : keys) ++places[digit_of(key)];
    if (places[digit_of(keys[0])] == keys.size()) continue;
    std::uint32_t sum = 0;
    for (std::uint32_t& place : places) sum += std::exchange(place, sum);
    for (const std::uint64_t key : keys) scratch[places[digit_of(key)]++] = key;
    std::swap(keys, scratch);
  }
}

}  // namespace

void Sketch::add_block(std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& scratch, int key_bits) {
  const std::uint64_t count = keys.size();
  if (count == 0) return;
  sort_keys(keys, scratch, key_bits);
  const std::uint64_t shares = count <= most_keys ? count : keys_of_block;
  for (std::uint64_t j = 0; j < shares; ++j) {
    const std::uint64_t begin = j * count / shares, end = (j + 1) * count / shares;
    entries_.push_back({keys[begin + (end - begin) / 2], end - begin});
  }
  count_ += count;
  ++blocks_;
}

std::vector<std::uint64_t> Sketch::finish() {
  std::vector<std::uint64_t> keys;
  if (blocks_ <= 1) {
    for (const Entry& entry : entries_) keys.push_back(entry.key);
    return keys;
  }
  std::ranges::sort(entries_, {}, &Entry::key);
  const std::uint64_t shares = std::min(count_, keys_of_blocks);
  std::uint64_t before = 0;  // the weight of the entries before `at`
  std::size_t at = 0;
  for (std::uint64_t j = 0; j < shares; ++j) {
    const std::uint64_t begin = j * count_ / shares, end = (j + 1) * count_ / shares;
    const std::uint64_t rank = begin + (end - begin) / 2;
    while (before + entries_[at].weight <= rank) before += entries_[at++].weight;
    keys.push_back(entries_[at].key);
  }
  return keys;
}

}  // namespace robocache::statistics
