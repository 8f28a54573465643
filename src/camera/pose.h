// Poses of sensors: rigid transforms from a sensor's frame into the grid's, read from 4 x 4 matrices in memory.
#pragma once

#include "core/arithmetic.h"

namespace robocache::camera {

// Small matrices, one for each sensor or one for all: element (n, i, j) is data[n * sensor_stride + i * stride[0] +
// j * stride[1]].
struct Matrices {
  const void* data = nullptr;                      // nullptr: none
  std::int64_t sensor_stride = 0, stride[2] = {};  // in elements; sensor_stride 0: one for all
  bool wide = false;                               // float64, else float32
};

inline namespace ROBOCACHE_SIMD_TARGET {

ROBOCACHE_HD double entry(const Matrices& matrices, std::int64_t number, int i, int j) {
  const std::int64_t offset = number * matrices.sensor_stride + i * matrices.stride[0] + j * matrices.stride[1];
  return matrices.wide ? static_cast<const double*>(matrices.data)[offset]
                       : static_cast<double>(static_cast<const float*>(matrices.data)[offset]);
}

// A sensor holds its pose as C rotation[3][3] and C shift[3], C being the type that points are computed in: Cloud in voxelize,
// Camera in tsdf.
template <class C, class Sensor>
ROBOCACHE_HD void read_pose(const Matrices& poses, std::int64_t number, Sensor& sensor) {
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) sensor.rotation[i][j] = static_cast<C>(entry(poses, number, i, j));
    sensor.shift[i] = static_cast<C>(entry(poses, number, i, 3));
  }
}

// From the sensor's frame into the grid's.
template <class Sensor, class C>
ROBOCACHE_HD void transform(const Sensor& sensor, C (&p)[3]) {
  const C x = p[0], y = p[1], z = p[2];
  for (int axis = 0; axis < 3; ++axis) {
    const C(&r)[3] = sensor.rotation[axis];
    p[axis] = fused(r[0], x, fused(r[1], y, fused(r[2], z, sensor.shift[axis])));
  }
}

// Whether the matrix is a rigid transform: rows of unit length at right angles, a determinant of +1, the last row
// 0 0 0 1. A matrix with a NaN is not.
ROBOCACHE_HD bool is_rigid(const Matrices& poses, std::int64_t number) {
  constexpr double tolerance = 1e-3;
  double r[4][4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) r[i][j] = entry(poses, number, i, j);
  }
  bool fine = true;
  for (int i = 0; i < 3; ++i) {
    for (int j = i; j < 3; ++j) {
      const double dot = r[i][0] * r[j][0] + r[i][1] * r[j][1] + r[i][2] * r[j][2];
      fine = fine && ::fabs(dot - (i == j ? 1.0 : 0.0)) <= tolerance;
    }
    fine = fine && ::fabs(r[3][i]) <= tolerance && is_finite(r[i][3]);
  }
  const double determinant = r[0][0] * (r[1][1] * r[2][2] - r[1][2] * r[2][1]) -
                             r[0][1] * (r[1][0] * r[2][2] - r[1][2] * r[2][0]) +
                             r[0][2] * (r[1][0] * r[2][1] - r[1][1] * r[2][0]);
  return fine && determinant > 0 && ::fabs(r[3][3] - 1.0) <= tolerance;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::camera
