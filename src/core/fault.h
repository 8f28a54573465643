// What a check of the data found: one record, small enough to be written by a GPU thread, and the sentence it becomes.
#pragma once

#include <robocache/tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace robocache {

enum class FaultCode : std::uint8_t {
  none,
  times_decrease,
  time_unusable,    // not a number, or |t| >= 2^62 ns
  float32_too_far,  // float32 seconds past 2^14
  arrival_unusable,
  arrival_float32_too_far,
  targets_decrease,
  target_unusable,
  target_float32_too_far,
  start_unusable,
  start_float32_too_far,
  length_outside,
  offset_outside,
  offsets_decrease,
  key_offset_outside,  // attention has two arrays of offsets
  key_offsets_decrease,
  row_outside,
  into_outside,
  pose_not_rigid,
  as_of_unusable,
  as_of_float32_too_far,
  crop_offset_outside,
};

enum class Operation : std::uint8_t {
  resample,
  align,
  fuse,
  align_backward,
  image,
  voxelize,
  voxelize_depth,
  voxel_downsample,
  tsdf,
  attention,
  attention_backward
};

struct Fault {
  FaultCode code = FaultCode::none;
  Operation operation = Operation::align;
  DType dtype = DType::i64;  // of the two values below
  std::uint32_t name = 0;    // intern(): the stream
  std::int64_t row = -1;     // -1: the array has no batch dimension
  std::int64_t index = 0;    // of `value` along the last dimension
  std::int64_t value = 0;    // the raw 8 bytes: an integer, or a double (float32 is widened)
  std::int64_t other = 0;    // the neighbour, or the bound that was broken
};

// Names of streams as small integers, so that a record written on a GPU can carry one. Thread safe; never freed.
std::uint32_t intern(std::string_view name);

const char* name_of(Operation operation) noexcept;

// "fuse: stream "imu": times[2][17] = 5 is before times[2][16] = 9; times must not decrease"
std::string describe(const Fault& fault);

}  // namespace robocache
