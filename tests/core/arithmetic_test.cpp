#include "core/arithmetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace robocache {
namespace {

// ---- half types, against the definition of a binary format ---------------------------------------------------------

struct Format {
  int exponent_bits, fraction_bits;
};
constexpr Format float16_format{5, 10};
constexpr Format bfloat16_format{8, 7};

// The value of a bit pattern that is no NaN. Exact: a double holds them all.
double value_of(Format format, unsigned bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const int fraction = static_cast<int>(bits) & ((1 << format.fraction_bits) - 1);
  const double sign = bits >> (format.exponent_bits + format.fraction_bits) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) return sign * std::numeric_limits<double>::infinity();
  const int hidden = exponent > 0 ? 1 << format.fraction_bits : 0;
  return sign * std::ldexp(hidden + fraction, (exponent > 0 ? exponent : 1) - bias - format.fraction_bits);
}
unsigned infinity_of(Format format) { return ((1u << format.exponent_bits) - 1) << format.fraction_bits; }

// The nearest pattern to a double that is no NaN, ties to the even one, by trying those around it.
unsigned nearest_of(Format format, double x) {
  const unsigned infinity = infinity_of(format);
  const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
  const double magnitude = std::fabs(x);
  unsigned low = 0;  // the last pattern whose value is <= magnitude, by bisection: patterns are in the order of values
  unsigned high = infinity;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (value_of(format, middle) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(magnitude)) return sign | infinity;
  // Past the largest finite value the next step stands for infinity.
  const double below = value_of(format, low);
  const double above = high < infinity ? value_of(format, high) : 2 * below - value_of(format, low - 1);
  const double down = magnitude - below;  // exact, by Sterbenz or because the spacing is far coarser than a double's
  const double up = above - magnitude;
  const bool round_up = up < down || (up == down && (low & 1u) != 0);
  return sign | (round_up ? high : low);
}

bool is_nan_pattern(Format format, unsigned bits) { return (bits & 0x7fffu) > infinity_of(format); }

template <class Half>
void widens_every_pattern(Format format) {
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const float x = widen(Half{static_cast<std::uint16_t>(bits)});
    if (is_nan_pattern(format, bits)) {
      ASSERT_TRUE(is_nan(x)) << bits;
    } else {
      ASSERT_EQ(bit_copy<std::uint64_t>(static_cast<double>(x)), bit_copy<std::uint64_t>(value_of(format, bits)))
          << bits;
      ASSERT_EQ(narrow<Half>(x).bits, bits);
      ASSERT_EQ(narrow<Half>(static_cast<double>(x)).bits, bits);
    }
  }
}
TEST(Half, Float16WidensEveryPattern) { widens_every_pattern<f16>(float16_format); }
TEST(Half, Bfloat16WidensEveryPattern) { widens_every_pattern<bf16>(bfloat16_format); }

template <class Half>
void rounds_to_nearest(Format format) {
  const auto check = [&](double x) {
    ASSERT_EQ(narrow<Half>(x).bits, nearest_of(format, x)) << std::hexfloat << x;
    const auto single = static_cast<float>(x);
    if (!is_nan(single)) {
      ASSERT_EQ(narrow<Half>(single).bits, nearest_of(format, static_cast<double>(single))) << std::hexfloat << single;
    }
  };
  // Around the middle between neighbours, where ties are and where rounding twice would show.
  for (unsigned bits = 0; bits < infinity_of(format); ++bits) {
    const double here = value_of(format, bits);
    const double step =
        bits + 1 < infinity_of(format) ? value_of(format, bits + 1) - here : here - value_of(format, bits - 1);
    const double middle = here + step / 2;
    const double more = std::numeric_limits<double>::infinity();
    for (const double x :
         {middle, std::nextafter(middle, more), std::nextafter(middle, -more), middle * (1 + 0x1p-30),
          middle * (1 - 0x1p-30), static_cast<double>(std::nextafter(static_cast<float>(middle), 1e38f)),
          static_cast<double>(std::nextafter(static_cast<float>(middle), -1e38f))}) {
      check(x);
      check(-x);
    }
  }
  std::mt19937_64 random(1);
  for (int k = 0; k < 200'000; ++k) {
    const auto any = bit_copy<double>(static_cast<std::uint64_t>(random()));
    if (!is_nan(any)) check(any);
    const auto any_single = bit_copy<float>(static_cast<std::uint32_t>(random()));
    if (!is_nan(any_single)) check(static_cast<double>(any_single));
    check(std::ldexp(static_cast<double>(random() >> 11), -53 - static_cast<int>(random() % 40) + 20));
  }
  for (const double x :
       {0.0, 1e-320, 1e-50, 1e300, std::numeric_limits<double>::infinity(), 65504.0, 65519.999, 65520.0}) {
    check(x);
    check(-x);
  }
}
TEST(Half, Float16RoundsOnceToNearestEven) { rounds_to_nearest<f16>(float16_format); }
TEST(Half, Bfloat16RoundsOnceToNearestEven) { rounds_to_nearest<bf16>(bfloat16_format); }

TEST(Half, NanIsCanonical) {
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffc12345u}) {
    const auto x = bit_copy<float>(bits);
    EXPECT_EQ(narrow<f16>(x).bits, 0x7e00);
    EXPECT_EQ(narrow<bf16>(x).bits, 0x7fc0);
    EXPECT_EQ(bit_copy<std::uint32_t>(narrow<float>(x)), 0x7fc00000u);
  }
  const auto x = bit_copy<double>(std::uint64_t{0xfff0000000000001});
  EXPECT_EQ(narrow<f16>(x).bits, 0x7e00);
  EXPECT_EQ(narrow<bf16>(x).bits, 0x7fc0);
  EXPECT_EQ(bit_copy<std::uint64_t>(narrow<double>(x)), 0x7ff8000000000000u);
}

TEST(Half, IntegersRoundAsThemselves) {
  std::mt19937_64 random(2);
  for (int k = 0; k < 200'000; ++k) {
    const auto n = static_cast<std::int64_t>(random() >> (random() % 64));
    for (const std::int64_t value : {n, -n}) {
      ASSERT_EQ(static_cast<float>(round_to_odd(value)), static_cast<float>(value)) << value;
    }
  }
}

// ---- trigonometry ------------------------------------------------------------------------------------------------

double ulps(double x, double exact) {
  const double step = std::nextafter(std::fabs(exact), std::numeric_limits<double>::infinity()) - std::fabs(exact);
  return std::fabs(x - exact) / step;
}

TEST(Trigonometry, SineIsWithinTwoUlps) {
  std::mt19937_64 random(3);
  double worst = 0;
  for (int k = 0; k < 500'000; ++k) {
    double x = std::ldexp(static_cast<double>(random() >> 11), -53) * 1.5707963267948966;
    if (k % 4 == 0) x = std::ldexp(x, -static_cast<int>(random() % 60));
    worst = std::max(worst, ulps(sine(x), static_cast<double>(std::sin(static_cast<long double>(x)))));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(sine(0.0), 0.0);
}

TEST(Trigonometry, ArcCosineIsWithinEightUlps) {
  std::mt19937_64 random(4);
  double worst = 0;
  for (int k = 0; k < 500'000; ++k) {
    double x = std::ldexp(static_cast<double>(random() >> 11), -53);
    if (k % 4 == 0) x = 1.0 - std::ldexp(x, -static_cast<int>(random() % 52));
    worst = std::max(worst, ulps(arc_cosine(x), static_cast<double>(std::acos(static_cast<long double>(x)))));
  }
  EXPECT_LE(worst, 8.0);
  EXPECT_EQ(arc_cosine(1.0), 0.0);
}

}  // namespace
}  // namespace robocache
