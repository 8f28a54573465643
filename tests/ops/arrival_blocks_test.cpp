// The search by arrival against a walk, for rows that lie anywhere among the samples that the blocks are made of: that is how
// a GPU searches.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/align/arrival_blocks.h"
#include "ops/compare.h"

namespace robocache::test {
namespace {

using Levels = std::vector<std::vector<std::int64_t>>;

// levels[0] are the arrivals of all samples; above them `most` levels, or as many as have more than one entry.
Levels levels_of(std::vector<std::int64_t> arrivals, std::size_t most) {
  Levels levels{std::move(arrivals)};
  while (levels.size() <= most && levels.back().size() > 1) {
    std::vector<std::int64_t> least;
    for (std::size_t k = 0; k < levels.back().size(); k += align_op::arrival_block) {
      const auto begin = levels.back().begin() + static_cast<std::ptrdiff_t>(k);
      const auto left = static_cast<std::int64_t>(levels.back().size() - k);
      least.push_back(*std::min_element(begin, begin + std::min(left, align_op::arrival_block)));
    }
    levels.push_back(std::move(least));
  }
  return levels;
}

TEST(ArrivalBlocks, FindWhatAWalkFinds) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const std::int64_t samples = random.pick({1, 63, 64, 65, 200, 4096, 4097, 9000, 300'000});
    const std::int64_t few = random.pick({1, 3, 50});  // samples that had arrived by 100
    std::vector<std::int64_t> arrivals(static_cast<std::size_t>(samples), 1000);
    for (std::int64_t k = 0; k < few; ++k) {
      arrivals[static_cast<std::size_t>(random.uniform(0, samples - 1))] = random.uniform(0, 150);
    }
    const Levels levels = levels_of(arrivals, static_cast<std::size_t>(random.pick({0, 1, 2, 5})));
    const auto top = static_cast<int>(levels.size()) - 1;
    const auto least = [&](int level, std::int64_t k) {
      return levels.at(static_cast<std::size_t>(level)).at(static_cast<std::size_t>(k));  // never outside
    };
    for (int asked = 0; asked < 20; ++asked) {
      const std::int64_t low = random.uniform(0, samples - 1);
      const std::int64_t high = random.uniform(low, samples);
      const std::int64_t i = random.uniform(low, high);
      const std::int64_t deadline = random.pick({-1, 50, 100, 1000});
      std::int64_t last = i - 1;
      while (last >= low && least(0, last) > deadline) --last;
      std::int64_t first = i;
      while (first < high && least(0, first) > deadline) ++first;
      const std::string where = "seed " + std::to_string(seed) + ", " + std::to_string(i);
      EXPECT_EQ(align_op::last_in_blocks(least, top, low, i - 1, deadline), last) << where;
      EXPECT_EQ(align_op::first_in_blocks(least, top, i, high, deadline), first) << where;
    }
  }
}

}  // namespace
}  // namespace robocache::test
