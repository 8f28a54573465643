// The kernel that makes the tables of taps: one warp for each resized pixel of each axis.
#pragma once

#include "gpu/warp.h"
#include "ops/image/cuda/call.h"

namespace robocache::image_op {
namespace {

inline constexpr int table_threads = 128;

__device__ inline void write_entry(const Call& call, const Axis& axis, const AxisTable& table, std::int32_t at,
                                   int lane) {
  if (table.spans == nullptr && table.packed == nullptr) return;
  if (call.plan.filter == Filter::nearest) {
    if (lane == 0) table.spans[at] = {nearest_of(axis.box, axis.resized, at), 1};
    return;
  }
  Taps taps = taps_of(call.plan.filter, axis.box, axis.resized, at);
  if (call.plan.source == Source::depth) taps = with_weight(taps);
  if (lane == 0 && table.spans != nullptr) table.spans[at] = {taps.first, taps.count};
  for (int k = lane; table.weights != nullptr && k < taps.count; k += warp_size) {
    table.weights[static_cast<std::int64_t>(at) * table.taps + k] = weight_of(taps, k);
  }
  if (table.packed == nullptr || lane >= call.words) return;
  std::uint32_t* const entry = table.packed + static_cast<std::int64_t>(at) * packed_words(call.words);
  if (lane == 0) entry[0] = static_cast<std::uint32_t>(taps.first);
  std::uint32_t bytes[3] = {};
  for (int b = 0; b < 4; ++b) {
    const int k = 4 * lane + b;
    const auto weight = static_cast<std::uint32_t>(k < taps.count ? weight_of(taps, k) : 0);
    for (int part = 0; part < 3; ++part) bytes[part] |= (weight >> 8 * part & 0xffu) << 8 * b;
  }
  for (int part = 0; part < 3; ++part) entry[1 + 3 * lane + part] = bytes[part];
  // Tiles copy whole entries.
  for (int k = 1 + 3 * call.words + lane; k < packed_words(call.words); k += call.words) entry[k] = 0;
}

__global__ void __launch_bounds__(table_threads) image_tables_kernel(const __grid_constant__ Call call) {
  wait_on_dependent_grids();
  launch_dependent_grids();
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * table_threads + threadIdx.x) / warp_size;
  const auto at = static_cast<std::int32_t>(warp);
  if (at < call.plan.height.resized) {
    write_entry(call, call.plan.height, call.rows, at, lane);
  } else if (at - call.plan.height.resized < call.plan.width.resized) {
    write_entry(call, call.plan.width, call.columns, at - call.plan.height.resized, lane);
  }
}

}  // namespace
}  // namespace robocache::image_op
