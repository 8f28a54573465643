// RoboCache from somebody else's project: a pose that turns and a gripper that switches, on one 50 Hz timeline.
#include <robocache/robocache.h>

#include "expect.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace rc = robocache;

int main() {
  constexpr std::int64_t start = 1'700'000'000'000'000'000;  // nanoseconds since the epoch
  constexpr std::int64_t millisecond = 1'000'000;

  // x y z and a quaternion x y z w, every 40 ms: 1 m/s along x, and a half turn about z from sample to sample.
  const std::array<float, 21> pose = {0.00F, 0, 0, 0, 0, 0, 1,  //
                                      0.04F, 0, 0, 0, 0, 1, 0,  //
                                      0.08F, 0, 0, 0, 0, 0, -1};
  const std::array<std::int64_t, 3> pose_stamps = {start, start + 40 * millisecond, start + 80 * millisecond};

  // One sample where the gripper changes. Nothing after the second one for 50 ms: more than max_gap.
  const std::array<std::uint8_t, 3> gripper = {0, 1, 0};
  const std::array<std::int64_t, 3> gripper_stamps = {start, start + 30 * millisecond, start + 80 * millisecond};

  const std::vector<rc::Stream> streams = {
      {.values = rc::TensorView::contiguous(pose.data(), rc::DType::f32, {3, 7}),
       .times = rc::TensorView::contiguous(pose_stamps.data(), rc::DType::i64, {3}),
       .methods = {{rc::Method::linear, 0, 3}, {rc::Method::slerp, 3, 7}},
       .name = "pose"},
      {.values = rc::TensorView::contiguous(gripper.data(), rc::DType::u8, {3}),
       .times = rc::TensorView::contiguous(gripper_stamps.data(), rc::DType::i64, {3}),
       .methods = {{rc::Method::hold, 0, 1}},
       .max_gap = 40 * millisecond,
       .name = "gripper"},
  };
  const rc::Timeline timeline{.start = start, .rate = 50, .count = 5};

  std::array<float, 35> poses{};
  std::array<std::uint8_t, 5> grips{};
  std::array<bool, 5> pose_valid{}, grip_valid{};
  std::array<std::int64_t, 5> pose_age{}, grip_index{};
  const std::vector<rc::Aligned> outputs = {
      {.values = rc::TensorView::contiguous(poses.data(), rc::DType::f32, {5, 7}),
       .valid = rc::TensorView::contiguous(pose_valid.data(), rc::DType::boolean, {5}),
       .age = rc::TensorView::contiguous(pose_age.data(), rc::DType::i64, {5})},
      {.values = rc::TensorView::contiguous(grips.data(), rc::DType::u8, {5}),
       .valid = rc::TensorView::contiguous(grip_valid.data(), rc::DType::boolean, {5}),
       .index = rc::TensorView::contiguous(grip_index.data(), rc::DType::i64, {5})},
  };

  try {
    rc::align({}, streams, timeline, {}, outputs);
  } catch (const rc::Error& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }

  std::printf("robocache %s\n    t      x     qz     qw  age  gripper  valid\n", rc::version());
  for (std::size_t k = 0; k < 5; ++k) {
    const float* row = &poses[7 * k];
    std::printf("%2zu ms  %5.2f  %5.2f  %5.2f  %3lld  %7d  %5s\n", 20 * k, row[0], row[5], row[6],
                static_cast<long long>(pose_age[k] / millisecond), grips[k], grip_valid[k] ? "yes" : "no");
  }

  const float half = std::sqrt(0.5F);
  const std::array<float, 5> turned = {0, half, 1, half, 0};
  for (std::size_t k = 0; k < 5; ++k) {
    expect(std::abs(poses[7 * k] - 0.02F * static_cast<float>(k)) < 1e-6F, "x must move at 1 m/s");
    expect(std::abs(poses[7 * k + 5] - turned[k]) < 1e-6F, "the quaternion must turn at a constant speed");
    expect(pose_valid[k], "the pose covers the whole timeline");
    expect(pose_age[k] == (k % 2 == 0 ? 0 : 20 * millisecond),
           "the age counts from the sample at or before the target");
  }
  expect(grips == std::array<std::uint8_t, 5>{0, 0, 1, 1, 0}, "held, also in a gap");
  expect(grip_valid == std::array<bool, 5>{true, true, false, false, true}, "a gap over max_gap is not valid");
  expect(grip_index == std::array<std::int64_t, 5>{0, 0, 1, 1, 2}, "the index is the sample behind the value");

  // Bad input gets a sentence, and the library works on.
  const std::array<std::int64_t, 3> backwards = {start, start - 1, start};
  rc::Stream broken = streams[0];
  broken.times = rc::TensorView::contiguous(backwards.data(), rc::DType::i64, {3});
  try {
    rc::resample({}, broken, timeline, {}, outputs[0]);
    expect(false, "times that decrease must be refused");
  } catch (const rc::Error& error) {
    std::printf("refused as it must: %s\n", error.what());
    expect(error.kind() == rc::ErrorKind::value, "times that decrease are an Error of the kind value");
  }
  return mismatches == 0 ? 0 : 1;
}
