#include "formats/clock/agreement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/interrupt.h"
#include "formats/clock/statistics.h"

namespace robocache::clock {

namespace {

constexpr std::size_t most_common = 4096;     // seconds that two streams are compared over
constexpr std::size_t most_neighbours = 64;   // streams that one is compared with in a second
constexpr std::uint32_t most_failures = 256;  // failed comparisons of a stream, before it is compared no more

// The median difference of (log - stamp) over the seconds that both streams have; nothing if there are none.
std::optional<double> apart(const StampSummary& a, const StampSummary& b) {
  std::vector<double> differences;
  auto x = a.bins.begin(), y = b.bins.begin();
  const auto second_of = [](const Bin& bin) { return bin.first_log / second; };
  while (x != a.bins.end() && y != b.bins.end() && differences.size() < most_common) {
    const std::int64_t here = second_of(*x), there = second_of(*y);
    if (here == there) differences.push_back(x->delay() - y->delay());
    while (x != a.bins.end() && second_of(*x) <= std::min(here, there)) ++x;
    while (y != b.bins.end() && second_of(*y) <= std::min(here, there)) ++y;
  }
  if (differences.empty()) return {};
  return median(std::move(differences));
}
}  // namespace

bool share_a_clock(const StampSummary& a, const StampSummary& b) {
  const std::optional<double> difference = apart(a, b);
  return difference && std::abs(*difference) < static_cast<double>(near);
}

// Groups of streams that share a clock with one of their group. Streams that share a clock have about the same delay in
// one of their common seconds, so in each second a stream is compared only with the few that follow it in the order of
// delays: the cost grows with the seconds of all streams, not with their pairs.
void group(std::vector<Candidate>& candidates) {
  struct Delay {
    std::int64_t second;
    double delay;
    std::uint32_t candidate;
  };
  std::vector<Delay> delays;
  for (std::size_t k = 0; k < candidates.size(); ++k) {
    for (const Bin& bin : candidates[k].seen->bins) {
      const std::int64_t here = bin.first_log / second;
      const bool is_same = !delays.empty() && delays.back().candidate == k && delays.back().second == here;
      if (!is_same) delays.push_back({here, bin.delay(), static_cast<std::uint32_t>(k)});
    }
  }
  std::ranges::sort(delays, {}, [](const Delay& delay) { return std::tuple(delay.second, delay.delay); });

  std::vector<std::uint32_t> parents(candidates.size());
  std::iota(parents.begin(), parents.end(), 0);
  const auto root_of = [&](std::uint32_t k) {
    while (parents[k] != k) k = parents[k] = parents[parents[k]];
    return k;
  };
  std::vector<std::uint32_t> failures(candidates.size());
  std::unordered_set<std::uint64_t> differing;  // pairs
  std::size_t groups = candidates.size();
  for (std::size_t k = 0; k < delays.size() && groups > 1; ++k) {
    check_interrupt();
    const std::size_t end = std::min(delays.size(), k + 1 + most_neighbours);
    for (std::size_t other = k + 1; other < end; ++other) {
      if (delays[other].second != delays[k].second) break;
      if (!(delays[other].delay - delays[k].delay < static_cast<double>(near))) break;
      const std::pair pair = std::minmax(delays[k].candidate, delays[other].candidate);
      const std::uint32_t a = pair.first, b = pair.second;
      if (root_of(a) == root_of(b) || std::max(failures[a], failures[b]) >= most_failures) continue;
      const std::uint64_t both = std::uint64_t{a} << 32U | b;
      if (differing.contains(both)) continue;
      if (share_a_clock(*candidates[b].seen, *candidates[a].seen)) {
        // The root is the last member, so that groups are numbered by it.
        const std::uint32_t x = root_of(a), y = root_of(b);
        parents[std::min(x, y)] = std::max(x, y);
        --groups;
      } else {
        differing.insert(both);
        ++failures[a];
        ++failures[b];
      }
    }
  }
  for (std::size_t k = 0; k < candidates.size(); ++k) candidates[k].group = root_of(static_cast<std::uint32_t>(k));
}

}  // namespace robocache::clock
