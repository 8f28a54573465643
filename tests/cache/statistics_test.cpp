// Statistics from C++, under the sanitizers too: what a damaged shard may hand to the reader. What they are is in
// tests/python/test_statistics.py.
#include <gtest/gtest.h>
#include <robocache/cache.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <vector>

#include "statistics/exact.h"
#include "statistics/partial.h"
#include "statistics/select.h"

namespace robocache {
namespace {

using statistics::Partial;
using Words = std::vector<std::uint64_t>;

Words partial_of(const std::vector<double>& values) {
  const auto read = [&](std::int64_t first, std::int64_t) {
    return reinterpret_cast<const std::byte*>(values.data() + first);
  };
  Words words;
  statistics::summarize({DType::f64, 1, static_cast<std::int64_t>(values.size()), read}, true, words);
  return words;
}

std::vector<double> normal(std::size_t count) {
  std::mt19937_64 random(1);
  std::vector<double> values(count);
  for (double& value : values) value = std::normal_distribution<double>()(random);
  return values;
}

TEST(Statistics, DamagedWordsAreRefusedOrHarmless) {
  std::vector<double> values = normal(20'000);
  values[7] = std::numeric_limits<double>::quiet_NaN();
  const Words whole = partial_of(values);
  Partial partial;
  ASSERT_TRUE(statistics::parse_partial(whole, DType::f64, partial));
  EXPECT_EQ(partial.channels[0].count, 19'999);
  EXPECT_EQ(partial.channels[0].sketch.size(), 512);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(statistics::parse_partial(std::span(whole).first(length), DType::f64, partial));
  }
  for (std::size_t place = 0; place < whole.size(); ++place) {
    for (int bit = 0; bit < 64; ++bit) {
      Words damaged = whole;
      damaged[place] ^= std::uint64_t{1} << bit;
      if (!statistics::parse_partial(damaged, DType::f64, partial)) continue;
      statistics::ChannelTotal total;
      for (const statistics::ChannelPartial& channel : partial.channels) {
        total.add(channel);
        std::uint64_t weight = 0;
        statistics::each_entry(channel, [&](std::uint64_t, std::uint64_t number) { weight += number; });
        EXPECT_EQ(weight, channel.sketch.empty() ? 0 : channel.count);
      }
      if (total.count == 0) continue;
      static_cast<void>(statistics::mean_of(total.sum, total.count));
      static_cast<void>(statistics::deviation_of(total.sum, total.squares, total.count));
    }
  }
}

TEST(Statistics, SelectionFindsEveryRank) {
  for (const int bits : {8, 16, 32, 64}) {
    std::mt19937_64 random(2);
    std::vector<std::uint64_t> keys(3000);
    for (std::uint64_t& key : keys) key = random() >> (64 - bits) >> (random() % static_cast<std::uint64_t>(bits));
    std::vector<std::uint64_t> ranks;
    for (std::uint64_t k = 0; k < keys.size(); k += 7) ranks.push_back(k);
    statistics::Selection selection(ranks, bits);
    while (!selection.is_done()) {
      for (const std::uint64_t key : keys) selection.add(key, 1);
      selection.next();
    }
    std::vector<std::uint64_t> sorted = keys;
    std::ranges::sort(sorted);
    for (std::size_t k = 0; k < ranks.size(); ++k) EXPECT_EQ(selection.keys()[k], sorted[ranks[k]]);
  }
}

TEST(Statistics, OfACache) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("robocache-statistics-" + std::to_string(getpid()));
  std::filesystem::remove_all(path);
  {
    CacheWriter writer(path);
    for (int k = 0; k < 3; ++k) {
      writer.begin_episode({.name = std::to_string(k)});
      const std::vector<float> values{1.0F * static_cast<float>(k), 10, 3, -10};
      const std::vector<std::int64_t> times{0, 1};
      writer.append({.name = "joints", .dtype = DType::f32, .shape = {2}},
                    TensorView::contiguous(values.data(), DType::f32, {2, 2}), times, times, {});
      writer.end_episode();
      if (k == 0) writer.commit();
    }
    writer.close();
  }
  const Cache cache(path);
  const std::vector<std::int64_t> episodes{2, 0};
  const std::vector<double> quantiles{0.5};
  const StreamStatistics found = cache.statistics(0, episodes, quantiles);
  const auto at = [](const Array& array, std::size_t k) {
    return reinterpret_cast<const double*>(array.data.get())[k];
  };
  EXPECT_EQ(found.shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(found.episodes, 2);
  EXPECT_EQ(found.computed, 0);
  EXPECT_EQ(at(found.mean, 0), 2.0);  // of 0, 3, 2, 3
  EXPECT_EQ(at(found.deviation, 1), 10.0);
  EXPECT_EQ(at(found.deviation, 0), std::sqrt(1.5));
  EXPECT_EQ(at(found.quantiles, 0), 2.5);
  EXPECT_EQ(found.quantiles.shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_THROW(static_cast<void>(cache.statistics(1, episodes)), Error);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace robocache
