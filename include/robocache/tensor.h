// Tensors, seen but not owned: a pointer, a dtype, a device, a shape, and strides counted in elements.
//
// ```cpp
// std::vector<float> joints(500 * 7);
// const auto view = robocache::TensorView::contiguous(joints.data(), robocache::DType::f32, {500, 7});
//
// robocache::TensorView first_column = view;  // [500, 1]
// first_column.shape[1] = 1;
// ```
//
// A view does not keep its memory alive. `data` points at the element whose indices are all 0. It is aligned for the dtype, as
// C++ asks of a pointer of that type; no call needs more. A view without elements may have no memory.
// Limits. max_rank dimensions; fewer than 2^63 elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

enum class DType : std::uint8_t { boolean, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64 };

// Bytes of one element.
constexpr int size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::boolean:
    case DType::u8:
    case DType::i8:
      return 1;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u32:
    case DType::i32:
    case DType::f32:
      return 4;
    default:
      return 8;
  }
}

constexpr bool is_float(DType dtype) noexcept { return dtype >= DType::f16; }

// The name that NumPy and torch use: "float32", "bfloat16", "bool".
const char* name_of(DType dtype) noexcept;

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr int max_rank = 8;

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int rank = -1;  // -1: there is no tensor, which is how optional arguments begin
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> strides{};  // in elements; those of inputs may be zero or negative

  explicit operator bool() const noexcept { return rank >= 0; }

  std::int64_t size() const noexcept {
    std::int64_t n = 1;
    for (int k = 0; k < rank; ++k) n *= shape[static_cast<std::size_t>(k)];
    return n;
  }

  // A dense row-major view. Throws Error(value) where the rank is over max_rank or a size is negative.
  static TensorView contiguous(const void* data, DType dtype, std::span<const std::int64_t> shape, Device device = {});
  static TensorView contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                               Device device = {}) {
    return contiguous(data, dtype, std::span<const std::int64_t>(shape.begin(), shape.size()), device);
  }
};

}  // namespace robocache

#pragma GCC visibility pop
