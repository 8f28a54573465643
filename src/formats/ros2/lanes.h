// Moves points into rows of float32 with one register of 8 lanes per point. It serves layouts of 32 bytes, such as Velodyne's or
// PCL's, whose gaps and integers otherwise need a loop for each field.
#pragma once

#include <robocache/tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace robocache::ros2 {

class Lanes {
 public:
  // Adds a channel: the number at this byte of the point. float32, and integers of 8 and 16 bits, which float32 holds exactly.
  void add(DType dtype, std::size_t offset);
  // Moves the first of `points` points of `step` bytes into rows of all channels, and returns how many it moved. It leaves the
  // last few, whose register would reach past the end, and all points if the layout or the CPU does not allow it.
  std::size_t move(const char* from, std::size_t step, std::size_t points, std::byte* to) const;

 private:
  void move_registers(const char* from, std::size_t step, std::size_t points, std::byte* to) const;

  static constexpr std::size_t lanes = 8;
  using Each = std::array<std::uint32_t, lanes>;

  std::size_t count_ = 0;
  bool fits_ = true, has_integers_ = false;
  Each from_{};  // the lane of the point
  // For an integer: the shifts that isolate it in the lane, its sign bit, and a mask of ones.
  Each left_{}, right_{}, sign_{}, is_integer_{};
};

}  // namespace robocache::ros2
