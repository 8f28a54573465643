// Features of a cell on a GPU: their sums and extremes, in a thread or from several.
#pragma once

#include <limits>

#include "ops/voxelize/cuda_points.h"

namespace robocache::voxelize_op {
namespace {

// What sums are scaled by: the largest magnitude of each grid and channel, and the points given to each grid.
struct Magnitudes {
  std::uint32_t* largest = nullptr;
  unsigned long long* given = nullptr;
};

struct Scale {
  double to, back;
};
template <class F>
__device__ Scale scale_of(const Plan& plan, const Magnitudes& magnitudes, std::int64_t grid, std::int64_t channel) {
  const int exponent = exponent_of<F>(magnitudes.largest[grid * plan.channels + channel],
                                      static_cast<std::int64_t>(magnitudes.given[grid]));
  return {power_of_two(exponent), power_of_two(-exponent)};
}

template <class F, int V>
struct alignas(sizeof(F) * V) Pack {
  F x[V];
};
template <class F, int V>
__device__ void load_features(const Plan& plan, std::int64_t number, std::int64_t channel, F (&x)[V]) {
  const F* const from =
      static_cast<const F*>(plan.features) + feature_offset(plan, number) + channel * plan.channel_stride;
  const auto pack = *reinterpret_cast<const Pack<F, V>*>(from);
#pragma unroll
  for (int v = 0; v < V; ++v) x[v] = pack.x[v];
}

// Whether load_features() can take V channels at once.
template <class F, int V>
bool is_wide(const Plan& plan) {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(plan.features);
  for (const std::int64_t stride :
       {plan.feature_cloud_stride, plan.feature_stride[0], plan.feature_stride[1], plan.flat_feature_stride}) {
    bits |= static_cast<std::uint64_t>(stride) * sizeof(F);
  }
  return bits % (V * sizeof(F)) == 0 && plan.channel_stride == 1 && plan.channels % V == 0;
}

// The value that has an order_of().
template <class F>
__device__ F value_of(bool greatest, long long order) {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  if constexpr (std::is_integral_v<F>) {
    return static_cast<F>(greatest ? order : ~order);
  } else {
    if (order == largest) return narrow<F>(quiet_nan<float>());
    const std::int64_t key = greatest ? order : ~order;
    return narrow<F>(bit_copy<double>(key < 0 ? key ^ largest : key));
  }
}

constexpr long long below_all = std::numeric_limits<long long>::min();  // every order_of()

// One channel of a cell that several warps add up, in memory.
struct Partial {
  long long fixed, most, least;  // order_of() of max and min
  int flags;                     // of a Sum

  __device__ static Partial none() { return {0, below_all, below_all, 0}; }

  __device__ void add_atomically(const Partial& part) {
    if (part.fixed != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&fixed), static_cast<unsigned long long>(part.fixed));
    }
    if (part.flags != 0) atomicOr(&flags, part.flags);
    if (part.most != below_all) atomicMax(&most, part.most);
    if (part.least != below_all) atomicMax(&least, part.least);
  }
};

// One channel of a cell.
template <class F>
struct Channel {
  Sum sum;
  Extreme<F> most, least;

  __device__ void add(const Plan& plan, F x, double scale) {
    if (plan.sums()) sum.add(feature_value(x), scale);
    if (plan.max != nullptr) most.add(true, x);
    if (plan.min != nullptr) least.add(false, x);
  }
  __device__ void write(const Plan& plan, std::int64_t out, double scale, std::int64_t points) {
    using R = feature_t<F>;
    if (plan.sum != nullptr) reinterpret_cast<R*>(plan.sum)[out] = sum.template value<R>(scale, 1);
    if (plan.mean != nullptr) reinterpret_cast<R*>(plan.mean)[out] = sum.template value<R>(scale, points);
    if (plan.max != nullptr) static_cast<F*>(plan.max)[out] = most.best;
    if (plan.min != nullptr) static_cast<F*>(plan.min)[out] = least.best;
  }

  __device__ static Channel of(const Plan& plan, const Partial& partial) {
    Channel channel;
    channel.sum.fixed = partial.fixed;
    channel.sum.set_flags(partial.flags);
    if (plan.max != nullptr) channel.most.add(true, value_of<F>(true, partial.most));
    if (plan.min != nullptr) channel.least.add(false, value_of<F>(false, partial.least));
    return channel;
  }
  __device__ Partial partial() const {
    return {sum.fixed, most.any ? most.order : below_all, least.any ? least.order : below_all, sum.flags()};
  }
};

// Adds up lanes that are `lanes`, 2 * lanes, ... apart.
__device__ inline Partial over_lanes(Partial partial, int lanes) {
  for (int step = lanes; step < warp_size; step *= 2) {
    partial.fixed += __shfl_xor_sync(whole_warp, partial.fixed, step);
    partial.most = max(partial.most, __shfl_xor_sync(whole_warp, partial.most, step));
    partial.least = max(partial.least, __shfl_xor_sync(whole_warp, partial.least, step));
    partial.flags |= __shfl_xor_sync(whole_warp, partial.flags, step);
  }
  return partial;
}
// Lanes that share a point: as many as it has channels, up to a warp, a power of two.
__device__ inline int lanes_of(std::int64_t channels) {
  int lanes = 1;
  while (lanes < warp_size && lanes < channels) lanes *= 2;
  return lanes;
}

}  // namespace
}  // namespace robocache::voxelize_op
