#include "loader/order.h"

#include <robocache/error.h>
#include <robocache/loader.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/float_environment.h"
#include "core/parallel.h"
#include "core/text.h"

namespace robocache {

namespace loader {

Bijection::Bijection(std::int64_t count, std::uint64_t key) : count_(static_cast<std::uint64_t>(count)) {
  half_ = std::max(1U, (static_cast<unsigned>(std::bit_width(count_ - 1)) + 1) / 2);
  for (std::size_t r = 0; r < rounds; ++r) keys_[r] = mix(key + r);
}

void Bijection::values(std::int64_t first, std::span<std::int64_t> out) const {
  if (half_ <= most_tabulated && out.size() >= 256) return tabulated_values(first, out);
  // Several positions at a time: a round of one position is a chain of multiplications, and several chains overlap.
  constexpr std::size_t lanes = 32;
  const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
  std::array<std::uint64_t, lanes> left{}, right{};
  std::array<std::size_t, lanes> place{};
  for (std::size_t begin = 0; begin < out.size(); begin += lanes) {
    std::size_t pending = std::min(lanes, out.size() - begin);
    for (std::size_t k = 0; k < pending; ++k) {
      const std::uint64_t value = static_cast<std::uint64_t>(first) + begin + k;
      left[k] = value >> half_;
      right[k] = value & mask;
      place[k] = begin + k;
    }
    while (pending > 0) {
      for (const std::uint64_t key : keys_) {
        for (std::size_t k = 0; k < pending; ++k) {
          const std::uint64_t next = left[k] ^ (mix(right[k] ^ key) & mask);
          left[k] = right[k];
          right[k] = next;
        }
      }
      // Values out of range go through the rounds again.
      std::size_t again = 0;
      for (std::size_t k = 0; k < pending; ++k) {
        const std::uint64_t value = left[k] << half_ | right[k];
        if (value < count_) {
          out[place[k]] = static_cast<std::int64_t>(value);
        } else {
          left[again] = left[k];
          right[again] = right[k];
          place[again++] = place[k];
        }
      }
      pending = again;
    }
  }
}

// A block of a mixture needs thousands of values with halves of 6 bits: a table for each round is faster.
void Bijection::tabulated_values(std::int64_t first, std::span<std::int64_t> out) const {
  const std::size_t size = std::size_t{1} << half_;
  std::array<std::array<std::uint8_t, 1 << most_tabulated>, rounds> tables{};
  for (std::size_t r = 0; r < rounds; ++r) {
    for (std::size_t k = 0; k < size; ++k) tables[r][k] = static_cast<std::uint8_t>(mix(k ^ keys_[r]) & (size - 1));
  }
  for (std::size_t k = 0; k < out.size(); ++k) {
    std::uint64_t value = static_cast<std::uint64_t>(first) + k;
    do {
      std::uint64_t left = value >> half_, right = value & (size - 1);
      for (const auto& table : tables) left = std::exchange(right, left ^ table[right]);
      value = left << half_ | right;
    } while (value >= count_);
    out[k] = static_cast<std::int64_t>(value);
  }
}

}  // namespace loader

namespace {

using namespace loader;

constexpr std::int64_t grain = 1 << 14;  // positions of a task: a batch stays in the calling thread

// The prefixes of error sentences: the Python classes that users see.
constexpr const char* loader_name = "Loader: ";
constexpr const char* mixture_name = "Mixture: ";

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(ErrorKind::value, concat(parts...));
}

void check_positions(std::int64_t first, std::size_t count) {
  if (first < 0) fail(loader_name, "position ", first, " is negative; positions count from 0");
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (count > 0 && count - 1 > most - static_cast<std::uint64_t>(first)) {
    fail(loader_name, count, " positions from ", first, " on go past the last position, 2^63 - 1");
  }
}

void check_same_length(const char* name, const char* a, std::size_t length, const char* b, std::size_t other) {
  if (length != other) fail(name, a, " has ", length, " places and ", b, " has ", other, "; they must be equal");
}

// The sum of the weights. Each addition rounds.
double sum_of(const char* name, std::span<const double> weights) {
  double sum = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    if (!(weights[k] >= 0) || !std::isfinite(weights[k])) {
      fail(name, "weight ", k, " is ", weights[k], "; expected a finite number that is not negative");
    }
    sum += weights[k];
  }
  if (sum == 0) fail(name, "no weight is positive");
  if (!std::isfinite(sum)) fail(name, "the sum of the weights is infinite; scale them down");
  return sum;
}

void check_shares(std::span<const std::int64_t> shares) {
  std::int64_t sum = 0;
  for (const std::int64_t share : shares) {
    if (share < 0 || share > mixture_block) fail(mixture_name, "a share is ", share, "; expected 0 to ", mixture_block);
    sum += share;
  }
  if (sum != mixture_block) fail(mixture_name, "the shares of a mixture add up to ", sum, "; expected ", mixture_block);
}

}  // namespace

void window_order(std::int64_t windows, std::uint64_t seed, std::int64_t first, bool shuffle,
                  std::span<std::int64_t> numbers) {
  if (windows < 1) fail(loader_name, "there are ", windows, " windows; expected at least 1");
  check_positions(first, numbers.size());
  parallel_for(static_cast<std::int64_t>(numbers.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t epoch = (first + begin) / windows, start = (first + begin) % windows;
      const std::int64_t count = std::min(end - begin, windows - start);
      const auto out = numbers.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
      if (shuffle) {
        Bijection(windows, key_of(seed, static_cast<std::uint64_t>(epoch))).values(start, out);
      } else {
        std::iota(out.begin(), out.end(), start);
      }
      begin += count;
    }
  });
}

void draw(std::uint64_t seed, std::span<const std::int64_t> positions, std::string_view stream, std::string_view name,
          std::span<std::uint64_t> numbers) {
  check_same_length(loader_name, "positions", positions.size(), "numbers", numbers.size());
  if (name.find('/') != std::string_view::npos) fail(loader_name, "the draw ", quote(name), " has a slash in its name");
  const std::uint64_t hash = hash_of(stream, name);
  parallel_for(static_cast<std::int64_t>(positions.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto k = static_cast<std::size_t>(begin); k < static_cast<std::size_t>(end); ++k) {
      check_positions(positions[k], 1);
      numbers[k] = mix(key_of(seed, static_cast<std::uint64_t>(positions[k])) ^ hash);
    }
  });
}

std::vector<std::int64_t> mixture_shares(std::span<const double> weights) {
  if (weights.empty()) fail(mixture_name, "a mixture has no source");
  const FloatEnvironment exact_arithmetic;
  const double sum = sum_of(mixture_name, weights);
  std::vector<std::int64_t> shares;
  std::vector<double> remainders;
  for (const double weight : weights) {
    const double exact = weight / sum * static_cast<double>(mixture_block);
    shares.push_back(static_cast<std::int64_t>(exact));
    remainders.push_back(exact - std::floor(exact));
  }
  std::vector<std::size_t> by_remainder(weights.size());
  std::iota(by_remainder.begin(), by_remainder.end(), std::size_t{0});
  std::ranges::stable_sort(by_remainder, std::greater{}, [&](std::size_t k) { return remainders[k]; });
  const std::int64_t missing = mixture_block - std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  for (std::size_t k = 0; k < static_cast<std::size_t>(missing); ++k) ++shares[by_remainder[k]];
  for (std::size_t k = 0; k < shares.size(); ++k) {
    if (weights[k] > 0 && shares[k] == 0) {
      fail(mixture_name, "weight ", k, " is ", weights[k], " of ", sum, ", too little for one position in ",
           mixture_block, "; give it more, or leave its source out");
    }
  }
  return shares;
}

void mixture_order(std::span<const std::int64_t> shares, std::uint64_t seed, std::int64_t first,
                   std::span<std::int64_t> sources, std::span<std::int64_t> positions) {
  check_shares(shares);
  check_same_length(mixture_name, "sources", sources.size(), "positions", positions.size());
  check_positions(first, sources.size());
  constexpr auto block_size = static_cast<std::size_t>(mixture_block);
  std::vector<std::int64_t> source_of;  // by value of the bijection
  source_of.reserve(block_size);
  for (std::size_t j = 0; j < shares.size(); ++j) {
    source_of.insert(source_of.end(), static_cast<std::size_t>(shares[j]), static_cast<std::int64_t>(j));
  }
  std::vector<std::int64_t> values(block_size), next(shares.size());
  for (std::size_t done = 0; done < sources.size();) {
    const std::int64_t position = first + static_cast<std::int64_t>(done);
    const std::int64_t block = position / mixture_block;
    const auto begin = static_cast<std::size_t>(position % mixture_block);
    const std::size_t end = std::min(block_size, begin + sources.size() - done);
    Bijection(mixture_block, key_of(seed, static_cast<std::uint64_t>(block))).values(0, {values.data(), end});
    for (std::size_t j = 0; j < shares.size(); ++j) next[j] = block * shares[j];
    for (std::size_t k = 0; k < end; ++k) {
      const std::int64_t source = source_of[static_cast<std::size_t>(values[k])];
      const std::int64_t own = next[static_cast<std::size_t>(source)]++;
      if (k < begin) continue;
      sources[done] = source;
      positions[done++] = own;
    }
  }
}

std::vector<std::int64_t> cumulate_weights(std::span<const double> weights) {
  if (weights.empty()) fail(loader_name, "there are no weights; expected one for each window");
  if (weights.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail(loader_name, "there are ", weights.size(), " weights; at most 2^31 - 1 are taken");
  }
  const FloatEnvironment exact_arithmetic;
  sum_of(loader_name, weights);
  const double largest = std::ranges::max(weights);
  std::vector<std::int64_t> cumulated;
  cumulated.reserve(weights.size());
  std::int64_t sum = 0;
  for (const double weight : weights) {
    if (weight > 0) sum += std::max(1LL, std::llrint(weight / largest * 0x1p32));
    cumulated.push_back(sum);
  }
  return cumulated;
}

void weighted_order(std::span<const std::int64_t> cumulated, std::uint64_t seed, std::int64_t first,
                    std::span<std::int64_t> numbers) {
  if (cumulated.empty() || cumulated.back() < 1) fail(loader_name, "no weight is positive");
  check_positions(first, numbers.size());
  const auto total = static_cast<std::uint64_t>(cumulated.back());
  parallel_for(static_cast<std::int64_t>(numbers.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      const std::uint64_t random = key_of(seed, static_cast<std::uint64_t>(first + k));
      const auto found = std::ranges::upper_bound(cumulated, static_cast<std::int64_t>(scaled(random, total)));
      numbers[static_cast<std::size_t>(k)] = found - cumulated.begin();
    }
  });
}

}  // namespace robocache
