// The loader's order. Golden values are those of docs/semantics.md, made by the oracle in Python.
#include "loader/order.h"

#include <gtest/gtest.h>
#include <robocache/error.h>
#include <robocache/loader.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace robocache {
namespace {

using Numbers = std::vector<std::int64_t>;
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

Numbers windows_of(std::int64_t windows, std::uint64_t seed, std::int64_t first, std::size_t count,
                   bool shuffle = true) {
  Numbers numbers(count);
  window_order(windows, seed, first, shuffle, numbers);
  return numbers;
}

std::uint64_t drawn(std::uint64_t seed, std::int64_t position, std::string_view stream, std::string_view name) {
  std::uint64_t number = 0;
  draw(seed, {&position, 1}, stream, name, {&number, 1});
  return number;
}

template <class F>
std::string sentence_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::value);
    return error.what();
  }
  return "no error";
}

TEST(LoaderOrder, HashesAreTheGoldenOnes) {
  EXPECT_EQ(loader::mix(0), 0U);
  EXPECT_EQ(loader::mix(1), 0x5692161D100B05E5U);
  EXPECT_EQ(loader::mix(2), 0xDBD238973A2B148AU);
  EXPECT_EQ(loader::hash_of("", ""), 0xAF63A24C860189FEU);
  EXPECT_EQ(loader::hash_of("wrist", "crop"), 0x18780EE1A649CBEFU);
}

TEST(LoaderOrder, WindowsAreTheGoldenOnes) {
  EXPECT_EQ(windows_of(10, 0, 0, 20), (Numbers{8, 1, 3, 6, 4, 7, 9, 0, 2, 5, 5, 1, 6, 2, 3, 4, 7, 9, 0, 8}));
  EXPECT_EQ(windows_of(3, 0, 0, 9), (Numbers{2, 0, 1, 0, 2, 1, 2, 1, 0}));
  EXPECT_EQ(windows_of(4, 0, 0, 8), (Numbers{2, 3, 1, 0, 0, 2, 1, 3}));
  EXPECT_EQ(windows_of(1'000'000, 7, 0, 4), (Numbers{399239, 507937, 966199, 175797}));
  EXPECT_EQ(windows_of(1'000'000, 7, 999'999, 2), (Numbers{581847, 842596}));
  const std::int64_t large = (std::int64_t{1} << 40) + 1;
  EXPECT_EQ(windows_of(large, ~std::uint64_t{0}, 0, 2), (Numbers{197938445790, 768018994323}));
  EXPECT_EQ(windows_of(large, ~std::uint64_t{0}, large - 1, 2), (Numbers{575891768616, 932751470919}));
  EXPECT_EQ(windows_of(most, 5, 0, 1), (Numbers{8199811010710042040}));
  EXPECT_EQ(windows_of(most, 5, most - 1, 1), (Numbers{2146635203938912483}));
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const std::int64_t number : windows_of(3000, 7, 0, 20'000)) {
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x100000001B3;
  }
  EXPECT_EQ(hash, 0xE6EB6B07F2741812U);
}

TEST(LoaderOrder, EachEpochIsAPermutationOfItsOwn) {
  for (const std::int64_t windows : {1, 2, 3, 4, 5, 63, 64, 65, 255, 1000, 4095, 4096, 4097, 65'537}) {
    std::set<Numbers> seen;
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
      Numbers numbers = windows_of(windows, 11, epoch * windows, static_cast<std::size_t>(windows));
      seen.insert(numbers);
      std::ranges::sort(numbers);
      Numbers all(numbers.size());
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(numbers, all) << windows;
    }
    EXPECT_TRUE(windows < 60 || seen.size() == 5) << windows;
  }
}

// Long runs of few windows go through tables, and very long ones through several threads.
TEST(LoaderOrder, ARunIsItsPositionsOneByOne) {
  for (const std::int64_t windows : {3, 1000, 4096, 4097, 100'000}) {
    const Numbers run = windows_of(windows, 3, 77, 40'000);
    for (std::size_t k = 0; k < run.size(); k += 7) {
      ASSERT_EQ(windows_of(windows, 3, 77 + static_cast<std::int64_t>(k), 1)[0], run[k]) << windows << " " << k;
    }
  }
}

TEST(LoaderOrder, WithoutShufflingWindowsRise) {
  EXPECT_EQ(windows_of(3, 9, 4, 6, false), (Numbers{1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(windows_of(most, 9, most - 1, 2, false), (Numbers{most - 1, 0}));
}

TEST(LoaderOrder, DrawsAreTheGoldenOnes) {
  EXPECT_EQ(drawn(7, 0, "wrist", "crop"), 0x9E14A7947ACF5FD1U);
  EXPECT_EQ(drawn(7, 1, "wrist", "crop"), 0xCBCF19B2168C007DU);
  EXPECT_EQ(drawn(7, std::int64_t{1} << 40, "wrist", "crop"), 0xF5486B73767C4747U);
  EXPECT_EQ(drawn(7, 0, "wrist", "hue"), 0x5ED6A0DB24661B95U);
  EXPECT_EQ(drawn(8, 0, "wrist", "crop"), 0xBB44E47B89A8F4A3U);
}

TEST(LoaderOrder, SharesAddUpByTheLargestRemainders) {
  EXPECT_EQ(mixture_shares(std::array{3.0, 1.0}), (Numbers{3072, 1024}));
  EXPECT_EQ(mixture_shares(std::array{1.0, 2.0, 3.0}), (Numbers{683, 1365, 2048}));
  EXPECT_EQ(mixture_shares(std::array{1.0, 1.0, 1.0}), (Numbers{1366, 1365, 1365}));
  EXPECT_EQ(mixture_shares(std::array{0.0, 1e300}), (Numbers{0, 4096}));
  EXPECT_EQ(mixture_shares(std::vector<double>(4096, 0.1)), Numbers(4096, 1));
}

TEST(LoaderOrder, MixturesAreTheGoldenOnesAndSourcesGoInOrder) {
  const Numbers shares{3072, 1024};
  Numbers sources(6), own(6);
  mixture_order(shares, 7, 4094, sources, own);
  EXPECT_EQ(sources, (Numbers{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(own, (Numbers{3070, 3071, 3072, 3073, 1024, 1025}));

  sources.resize(3 * mixture_block), own.resize(sources.size());
  mixture_order(shares, 7, 0, sources, own);
  Numbers next(2);
  for (std::size_t k = 0; k < sources.size(); ++k) {
    ASSERT_EQ(own[k], next[static_cast<std::size_t>(sources[k])]++);
    const double exact = static_cast<double>(k + 1) * 0.75;
    ASSERT_LE(std::abs(static_cast<double>(next[0]) - exact), 768) << k;
  }
  EXPECT_EQ(next, (Numbers{3 * 3072, 3 * 1024}));
  Numbers part_sources(5000), part_own(5000);  // from the middle of a block
  mixture_order(shares, 7, 1234, part_sources, part_own);
  EXPECT_TRUE(std::equal(part_sources.begin(), part_sources.end(), sources.begin() + 1234));
  EXPECT_TRUE(std::equal(part_own.begin(), part_own.end(), own.begin() + 1234));
}

TEST(LoaderOrder, WeightedWindowsAreTheGoldenOnes) {
  const Numbers cumulated = cumulate_weights(std::array{1.0, 0.0, 3.0, 0.5});
  EXPECT_EQ(cumulated, (Numbers{1431655765, 1431655765, 5726623061, 6442450944}));
  Numbers numbers(12);
  weighted_order(cumulated, 7, 0, numbers);
  EXPECT_EQ(numbers, (Numbers{2, 0, 2, 2, 2, 3, 0, 2, 2, 0, 2, 2}));
  weighted_order(Numbers{0, 1, 3}, 7, 0, numbers);
  EXPECT_EQ(numbers, (Numbers{2, 1, 2, 2, 2, 2, 1, 2, 2, 1, 1, 2}));
  EXPECT_EQ(cumulate_weights(std::array{1e-300, 1.0, 5e-324}), (Numbers{1, 4294967297, 4294967298}));
}

TEST(LoaderOrder, WrongNumbersGetSentences) {
  Numbers two(2), three(3);
  std::array<std::uint64_t, 2> random{};
  const std::array<std::int64_t, 2> negative{0, -4};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double huge = std::numeric_limits<double>::max();
  const std::vector<std::pair<std::string, std::string>> sentences{
      {sentence_of([&] { window_order(0, 0, 0, true, two); }), "Loader: there are 0 windows; expected at least 1"},
      {sentence_of([&] { window_order(5, 0, -1, true, two); }),
       "Loader: position -1 is negative; positions count from 0"},
      {sentence_of([&] { window_order(5, 0, most, true, two); }),
       "Loader: 2 positions from 9223372036854775807 on go past the last position, 2^63 - 1"},
      {sentence_of([&] { draw(0, negative, "a", "b", random); }),
       "Loader: position -4 is negative; positions count from 0"},
      {sentence_of([&] { draw(0, three, "a", "b", random); }),
       "Loader: positions has 3 places and numbers has 2; they must be equal"},
      {sentence_of([&] { draw(0, two, "a", "b/c", random); }), "Loader: the draw \"b/c\" has a slash in its name"},
      {sentence_of([&] { mixture_shares({}); }), "Mixture: a mixture has no source"},
      {sentence_of([&] {
         mixture_shares(std::array{1.0, nan});
       }),
       "Mixture: weight 1 is nan; expected a finite number that is not negative"},
      {sentence_of([&] { mixture_shares(std::array{0.0}); }), "Mixture: no weight is positive"},
      {sentence_of([&] {
         mixture_shares(std::array{huge, huge});
       }),
       "Mixture: the sum of the weights is infinite; scale them down"},
      {sentence_of([&] {
         mixture_shares(std::array{1.0, 1e-9});
       }),
       "Mixture: weight 1 is 1e-09 of 1, too little for one position in 4096; give it more, or leave its source out"},
      {sentence_of([&] {
         mixture_order(Numbers{4096, -1, 1}, 0, 0, two, two);
       }),
       "Mixture: a share is -1; expected 0 to 4096"},
      {sentence_of([&] {
         mixture_order(Numbers{1, 2}, 0, 0, two, two);
       }),
       "Mixture: the shares of a mixture add up to 3; expected 4096"},
      {sentence_of([&] { mixture_order(Numbers{4096}, 0, 0, two, three); }),
       "Mixture: sources has 2 places and positions has 3; they must be equal"},
      {sentence_of([&] { cumulate_weights({}); }), "Loader: there are no weights; expected one for each window"},
      {sentence_of([&] { weighted_order(Numbers{0}, 0, 0, two); }), "Loader: no weight is positive"},
  };
  for (const auto& [found, expected] : sentences) EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace robocache
