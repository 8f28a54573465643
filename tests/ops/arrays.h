// Arrays of drawn numbers, views of them with gaps, and poses: what tests of ops on clouds and images begin with.
#pragma once

#include <robocache/robocache.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "core/arithmetic.h"
#include "ops/compare.h"
#include "ops/device.h"

namespace robocache::test {

inline Array numbers(DType dtype, const std::vector<std::int64_t>& shape, const std::function<double()>& next) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(product(shape) * size_of(dtype)));
  const auto put = [&](std::int64_t k, auto value) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(k) * sizeof value, &value, sizeof value);
  };
  for (std::int64_t k = 0; k < product(shape); ++k) {
    const double x = next();
    switch (dtype) {
      case DType::u8:
        put(k, static_cast<std::uint8_t>(x));
        break;
      case DType::u16:
        put(k, static_cast<std::uint16_t>(x));
        break;
      case DType::i32:
        put(k, static_cast<std::int32_t>(x));
        break;
      case DType::i64:
        put(k, static_cast<std::int64_t>(x));
        break;
      case DType::f16:
        put(k, narrow<f16>(x).bits);
        break;
      case DType::bf16:
        put(k, narrow<bf16>(x).bits);
        break;
      case DType::f32:
        put(k, static_cast<float>(x));
        break;
      default:
        put(k, x);
    }
  }
  return {dtype, shape, std::move(bytes)};
}

template <class T>
Array listed(DType dtype, const std::vector<T>& list, std::vector<std::int64_t> shape) {
  auto at = list.begin();
  return numbers(dtype, shape, [&] { return static_cast<double>(*at++); });
}

inline Array absent() {
  Array none;
  none.drop();
  return none;
}

// An array that is seen through gaps, or backwards, in its last dimensions.
struct Seen {
  Array base = absent();
  std::vector<std::int64_t> shape, steps;
  bool backwards = false;

  TensorView view(DeviceKind where) {
    TensorView view = base.view(where);
    if (!view) return view;
    for (std::size_t k = 0; k < shape.size(); ++k) {
      view.shape[k] = shape[k];
      view.strides[k] *= steps[k];
    }
    const std::size_t last = shape.size() >= 2 ? shape.size() - 2 : 0;
    if (backwards && view.size() > 0) {
      view.data = static_cast<char*>(view.data) + (shape[last] - 1) * view.strides[last] * size_of(view.dtype);
      view.strides[last] = -view.strides[last];
    }
    return view;
  }
};

// A rotation about `centre`, as 16 numbers.
inline std::vector<double> rigid(Random& random, const std::array<double, 3>& centre) {
  double q[4];
  double norm = 0;
  for (double& x : q) {
    x = random.real(-1, 1);
    norm += x * x;
  }
  for (double& x : q) x /= std::sqrt(norm);
  const auto [w, x, y, z] = q;
  const double r[3][3] = {{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
                          {2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
                          {2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}};
  std::vector<double> pose(16);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) pose[4 * i + j] = r[i][j];
    pose[4 * i + 3] = centre[i] - r[i][0] * centre[0] - r[i][1] * centre[1] - r[i][2] * centre[2];
  }
  pose[15] = 1;
  return pose;
}

}  // namespace robocache::test
