// Scratch of a call on a GPU, cut into parts.
#pragma once

#include "core/cuda.h"

namespace robocache::voxelize_op {

// Hands out parts of one block of scratch.
class Room {
 public:
  explicit Room(char* data) : data_(data) {}
  template <class T>
  void take(T*& place, std::int64_t count) {
    if (data_ != nullptr) place = reinterpret_cast<T*>(data_ + used_);
    used_ += divide_up(count * static_cast<std::int64_t>(sizeof(T)), 256) * 256;
  }
  std::int64_t used() const { return used_; }

 private:
  char* data_;
  std::int64_t used_ = 0;
};

}  // namespace robocache::voxelize_op
