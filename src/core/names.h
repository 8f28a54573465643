// One table of words for each enum that users name: Python's arguments, a cache's files and the sentences of errors use it.
#pragma once

#include <robocache/align.h>
#include <robocache/context.h>
#include <robocache/image.h>
#include <robocache/tensor.h>
#include <robocache/voxelize.h>

#include <array>
#include <optional>
#include <string_view>

namespace robocache {

template <class Enum>
struct Word {
  Enum value;
  const char* text;
};

template <class Enum>
inline constexpr std::array<Word<Enum>, 0> words{};

template <>
inline constexpr auto words<DType> = std::to_array<Word<DType>>({{DType::boolean, "bool"},
                                                                 {DType::u8, "uint8"},
                                                                 {DType::u16, "uint16"},
                                                                 {DType::u32, "uint32"},
                                                                 {DType::u64, "uint64"},
                                                                 {DType::i8, "int8"},
                                                                 {DType::i16, "int16"},
                                                                 {DType::i32, "int32"},
                                                                 {DType::i64, "int64"},
                                                                 {DType::f16, "float16"},
                                                                 {DType::bf16, "bfloat16"},
                                                                 {DType::f32, "float32"},
                                                                 {DType::f64, "float64"}});
template <>
inline constexpr auto words<Backend> =
    std::to_array<Word<Backend>>({{Backend::reference, "reference"}, {Backend::cpu, "cpu"}, {Backend::cuda, "cuda"}});
template <>
inline constexpr auto words<Edge> =
    std::to_array<Word<Edge>>({{Edge::clamp, "clamp"}, {Edge::nan, "nan"}, {Edge::zero, "zero"}});
template <>
inline constexpr auto words<OnNan> = std::to_array<Word<OnNan>>({{OnNan::propagate, "propagate"},
                                                                 {OnNan::skip, "skip"}});
template <>
inline constexpr auto words<Method> = std::to_array<Word<Method>>({{Method::linear, "linear"},
                                                                   {Method::hold, "hold"},
                                                                   {Method::nearest, "nearest"},
                                                                   {Method::slerp, "slerp"},
                                                                   {Method::angle, "angle"},
                                                                   {Method::angle_degrees, "angle_degrees"},
                                                                   {Method::cubic, "cubic"},
                                                                   {Method::mean, "mean"},
                                                                   {Method::max, "max"},
                                                                   {Method::min, "min"},
                                                                   {Method::last, "last"}});
template <>
inline constexpr auto words<Reduction> = std::to_array<Word<Reduction>>({{Reduction::count, "count"},
                                                                         {Reduction::occupancy, "occupancy"},
                                                                         {Reduction::occupancy_bits, "occupancy_bits"},
                                                                         {Reduction::sum, "sum"},
                                                                         {Reduction::mean, "mean"},
                                                                         {Reduction::max, "max"},
                                                                         {Reduction::min, "min"}});
template <>
inline constexpr auto words<Fit> =
    std::to_array<Word<Fit>>({{Fit::stretch, "stretch"}, {Fit::cover, "cover"}, {Fit::contain, "contain"}});
template <>
inline constexpr auto words<Filter> = std::to_array<Word<Filter>>(
    {{Filter::bilinear, "bilinear"}, {Filter::box, "box"}, {Filter::bicubic, "bicubic"}, {Filter::nearest, "nearest"}});
template <>
inline constexpr auto words<ImageLayout> = std::to_array<Word<ImageLayout>>({{ImageLayout::nhwc, "nhwc"},
                                                                             {ImageLayout::nchw, "nchw"}});
template <>
inline constexpr auto words<YuvMatrix> = std::to_array<Word<YuvMatrix>>({{YuvMatrix::bt601, "bt601"},
                                                                         {YuvMatrix::bt709, "bt709"},
                                                                         {YuvMatrix::bt2020, "bt2020"}});
template <>
inline constexpr auto words<YuvSiting> = std::to_array<Word<YuvSiting>>({{YuvSiting::left, "left"},
                                                                         {YuvSiting::center, "center"}});
template <>
inline constexpr auto words<YuvRange> = std::to_array<Word<YuvRange>>({{YuvRange::limited, "limited"},
                                                                       {YuvRange::full, "full"}});

template <class Enum>
constexpr const char* word_of(Enum value) {
  for (const Word<Enum>& word : words<Enum>) {
    if (word.value == value) return word.text;
  }
  return "";
}

// The value with this word; nothing if there is none.
template <class Enum>
constexpr std::optional<Enum> value_of(std::string_view text) {
  for (const Word<Enum>& word : words<Enum>) {
    if (word.text == text) return word.value;
  }
  return std::nullopt;
}

}  // namespace robocache
