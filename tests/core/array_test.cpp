// Arrays that users make: of zeros, and of memory of their own.
#include <gtest/gtest.h>
#include <robocache/array.h>
#include <robocache/error.h>

#include <limits>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sentence.h"

namespace robocache {
namespace {

using Shape = std::vector<std::int64_t>;

template <class F>
std::string sentence(const F& f) {
  return test::sentence(f, ErrorKind::value);
}

TEST(Array, ZerosOfEveryDType) {
  for (int k = 0; k <= static_cast<int>(DType::f64); ++k) {
    const auto dtype = static_cast<DType>(k);
    const Array array = Array::zeros(dtype, {3, 5});
    const TensorView view = array.view();
    EXPECT_EQ(view.data, array.data.get());
    EXPECT_EQ(view.dtype, dtype);
    EXPECT_EQ(view.size(), 15);
    EXPECT_EQ(view.strides[0], 5);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 16, 0);
    for (int byte = 0; byte < 15 * size_of(dtype); ++byte)
      EXPECT_EQ(array.data[static_cast<std::size_t>(byte)], std::byte{0});
  }
}

TEST(Array, ScalarsAndEmptyOnes) {
  EXPECT_EQ(Array::zeros(DType::f64, {}).view().size(), 1);
  EXPECT_EQ(Array::zeros(DType::f64, {0, 7}).view().size(), 0);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Array::zeros(DType::f64, {most, 0, most}).view().rank, 3);  // no byte, whatever the other sizes
}

TEST(Array, MemoryOfTheUsersIsReleasedOnce) {
  std::vector<float> memory{1, 2, 3, 4, 5, 6};
  int released = 0;
  {
    Array first = Array::adopt(memory.data(), DType::f32, {2, 3}, [&] { ++released; });
    EXPECT_EQ(first.view().data, memory.data());
    Array second = std::move(first);
    EXPECT_EQ(second.view().data, memory.data());
    Array third;
    third = std::move(second);
    EXPECT_EQ(released, 0);
    std::vector<Array> many;
    many.push_back(std::move(third));
    many.push_back(Array::zeros(DType::u8, {1}));
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(Array, ANewValueReleasesTheOldMemory) {
  std::vector<float> memory(6);
  int released = 0;
  Array array = Array::adopt(memory.data(), DType::f32, {6}, [&] { ++released; });
  array = Array::zeros(DType::f32, {6});
  EXPECT_EQ(released, 1);
  array = Array::adopt(memory.data(), DType::f32, {6}, [&] { ++released; });
  array.data = std::make_unique<std::byte[]>(24);
  EXPECT_EQ(released, 2);
}

TEST(Array, TheThreadThatDestroysItReleases) {
  std::vector<float> memory(6);
  std::thread::id released;
  Array array = Array::adopt(memory.data(), DType::f32, {6}, [&] { released = std::this_thread::get_id(); });
  std::thread other([moved = std::move(array)] {});
  const std::thread::id expected = other.get_id();
  other.join();
  EXPECT_EQ(released, expected);
}

TEST(Array, BorrowedMemoryNeedsNoRelease) {
  std::vector<std::int64_t> memory{7};
  { const Array array = Array::adopt(memory.data(), DType::i64, {1}); }
  EXPECT_EQ(memory[0], 7);
}

TEST(Array, ShapesThatCannotBeAreRefused) {
  int released = 0;
  const auto release = [&] { ++released; };
  std::byte memory[8];
  constexpr std::int64_t large = std::int64_t{1} << 40;
  const std::pair<Shape, std::string> wrong[] = {
      {Shape(9, 1), "an array has 9 dimensions; at most 8"},
      {{2, -1}, "an array has shape [2, -1]"},
      {{0, -1}, "an array has shape [0, -1]"},
      {{large, large}, "an array of float64 with shape [1099511627776, 1099511627776] has 2^63 bytes or more"}};
  for (const auto& each : wrong) {
    EXPECT_EQ(sentence([&] { Array::zeros(DType::f64, each.first); }), each.second);
    EXPECT_EQ(sentence([&] { Array::adopt(memory, DType::f64, each.first, release); }), each.second);
  }
  EXPECT_EQ(released, 0);
}

}  // namespace
}  // namespace robocache
