// Points into rows of float32, a register of 8 lanes per point: for layouts of 32 bytes such as a Velodyne's or PCL's,
// whose gaps and integers are otherwise a loop per field.
#pragma once

#include <robocache/tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace robocache::ros2 {

class Lanes {
 public:
  // The next channel: a number at this byte of the point. float32 and what it holds exactly: 8 and 16 bits.
  void add(DType dtype, std::size_t offset);
  // The first of `points` points, `step` bytes each, into rows of all channels, one after the other: how many. The last
  // few are left, whose register would reach past their end; all where the layout or the CPU does not allow it.
  std::size_t move(const char* from, std::size_t step, std::size_t points, std::byte* to) const;

 private:
  void move_registers(const char* from, std::size_t step, std::size_t points, std::byte* to) const;

  static constexpr std::size_t lanes = 8;
  using Each = std::array<std::uint32_t, lanes>;

  std::size_t count_ = 0;
  bool fits_ = true, has_integers_ = false;
  Each from_{};  // the lane of the point
  // Of an integer: shifts that leave it alone in the lane, its sign's bit, and ones all over.
  Each left_{}, right_{}, sign_{}, is_integer_{};
};

}  // namespace robocache::ros2
