// Features of a cell on a GPU: their sums and extremes, in a thread or from several.
#pragma once

#include <limits>

#include "ops/voxelize/cuda/points.h"

namespace robocache::voxelize_op {
namespace {

// Sums are scaled by these: the largest magnitude of each grid and channel, and the number of points given to each
// grid.
struct Magnitudes {
  std::uint32_t* largest = nullptr;
  unsigned long long* given = nullptr;
};

template <class F>
__device__ int exponent_in(const Plan& plan, const Magnitudes& magnitudes, std::int64_t grid, std::int64_t channel) {
  return exponent_of<F>(magnitudes.largest[grid * plan.channels + channel],
                        static_cast<std::int64_t>(magnitudes.given[grid]));
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

// Whether V channels can be read and written at once.
template <class F, int V>
bool is_wide(const Plan& plan) {
  const auto bits = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
  std::uint64_t features = bits(plan.features) | bits(plan.max) | bits(plan.min);
  for (const std::int64_t stride :
       {plan.feature_cloud_stride, plan.feature_stride[0], plan.feature_stride[1], plan.flat_feature_stride}) {
    features |= static_cast<std::uint64_t>(stride) * sizeof(F);
  }
  return features % (V * sizeof(F)) == 0 && (bits(plan.sum) | bits(plan.mean)) % (V * sizeof(float)) == 0 &&
         plan.channel_stride == 1 && plan.channels % V == 0;
}

// One channel of a cell, in memory, where several warps add to it.
struct Partial {
  long long fixed;           // as in Sum, and so are the flags
  std::int32_t most, least;  // of Extremes
  int flags;

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

// V channels of one cell in registers: Sums for sum and mean, Extremes for max and min. Exponents are those of
// exponent_in(). Small: all integer sums are below 2^51.
template <class F, int V, bool Sums, bool Extremes, bool Small = false>
struct Cell {
  Sum sums[Sums ? V : 1];
  Extreme most[Extremes ? V : 1], least[Extremes ? V : 1];

  __device__ void add(const Plan& plan, const F (&x)[V], const int (&exponents)[V]) {
    if constexpr (Sums) add_sums(x, exponents);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if constexpr (Extremes) {
        if (plan.max != nullptr) most[v].add(true, x[v]);
        if (plan.min != nullptr) least[v].add(false, x[v]);
      }
    }
  }
  // One branch for all channels, because they are nearly always finite.
  __device__ void add_sums(const F (&x)[V], const int (&exponents)[V]) {
    bool finite = true;
#pragma unroll
    for (int v = 0; v < V; ++v) finite &= is_finite(feature_value(x[v]));
    const auto add = [&](int v, auto value) {
      const double scaled = static_cast<double>(value) * power_of_two(exponents[v]);
      sums[v].fixed += Small ? nearest_small_integer(scaled) : nearest_integer(scaled);
    };
    if (finite) {
#pragma unroll
      for (int v = 0; v < V; ++v) add(v, feature_value(x[v]));
      return;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const auto value = feature_value(x[v]);
      if (is_finite(value)) add(v, value);
      sums[v].flags |= Sum::flag_of(value);
    }
  }
  __device__ void write(const Plan& plan, std::int64_t out, const int (&exponents)[V], std::int64_t points) {
    using R = feature_t<F>;
    const auto write_sums = [&](float* values, const auto& divisor) {
      Pack<R, V> pack;
      int flags = Sum::none;
#pragma unroll
      for (int v = 0; v < V; ++v) flags |= sums[v].flags;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        pack.x[v] = Sum{sums[v].fixed}.template value<R, Small>(power_of_two(-exponents[v]), divisor);
      }
      if (flags != Sum::none) {  // rare
#pragma unroll
        for (int v = 0; v < V; ++v) pack.x[v] = sums[v].template value<R, Small>(power_of_two(-exponents[v]), divisor);
      }
      *reinterpret_cast<Pack<R, V>*>(reinterpret_cast<R*>(values) + out) = pack;
    };
    const auto write_extremes = [&](void* values, bool greatest, auto& extremes) {
      auto* const to = reinterpret_cast<Pack<F, V>*>(static_cast<F*>(values) + out);
      Pack<F, V> pack;
      if (plan.accumulate) {
        pack = *to;
#pragma unroll
        for (int v = 0; v < V; ++v) extremes[v].add(greatest, pack.x[v]);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) pack.x[v] = feature_at<F>(greatest, extremes[v].order);
      *to = pack;
    };
    if constexpr (Sums) {
      if (plan.sum != nullptr) write_sums(plan.sum, NoDivisor());
      if (plan.mean != nullptr) write_sums(plan.mean, Divisor(points));
    }
    if constexpr (Extremes) {
      if (plan.max != nullptr) write_extremes(plan.max, true, most);
      if (plan.min != nullptr) write_extremes(plan.min, false, least);
    }
  }

  // One channel, to and from memory.
  __device__ Partial partial() const { return {sums[0].fixed, most[0].order, least[0].order, sums[0].flags}; }
  __device__ void set(const Partial& partial) {
    sums[0] = {partial.fixed, partial.flags};
    most[0].order = partial.most;
    least[0].order = partial.least;
  }
};

// Adds up lanes that are a multiple of `lanes` apart.
__device__ inline Partial over_lanes(Partial partial, int lanes) {
  for (int step = lanes; step < warp_size; step *= 2) {
    partial.fixed += __shfl_xor_sync(whole_warp, partial.fixed, step);
    partial.most = max(partial.most, __shfl_xor_sync(whole_warp, partial.most, step));
    partial.least = max(partial.least, __shfl_xor_sync(whole_warp, partial.least, step));
    partial.flags |= __shfl_xor_sync(whole_warp, partial.flags, step);
  }
  return partial;
}
// Lanes for the channels of one point: the next power of two, at most a warp.
__device__ inline int lanes_of(std::int64_t channels) {
  int lanes = 1;
  while (lanes < warp_size && lanes < channels) lanes *= 2;
  return lanes;
}

}  // namespace
}  // namespace robocache::voxelize_op
