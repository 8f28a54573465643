// Counts and occupancy of dense images of pinhole cameras, on a GPU. A warp takes 32 columns, row by row; a thread
// has one column, so that it knows the cell of the pixel above.
#pragma once

#include "ops/voxelize/cuda/call.h"

namespace robocache::voxelize_op {
namespace {

// What all pixels of a block need, in shared memory: the compiler would reload kernel arguments for every pixel.
struct Camera {
  Cloud<float> cloud;
  Inverse fx, fy;
  float across = 0, down = 0;                // cells from one column, and from one row, to the next, at z = 1
  float scale = 1, lowest = 0, highest = 0;  // as of FloatReadings
  Axes axes;

  // All threads of the block must call it.
  __device__ void set(const Call& call, std::int64_t number) {
    const Plan& plan = call.plan;
    const auto thread = static_cast<int>(threadIdx.x);
    if (const int i = thread / 4, j = thread % 4; i < 3 && plan.poses.data != nullptr) {
      (j < 3 ? cloud.rotation[i][j] : cloud.shift[i]) = static_cast<float>(camera::entry(plan.poses, number, i, j));
    }
    if (const int n = thread - warp_size; n >= 0 && n < 4) {
      const auto x = static_cast<float>(camera::intrinsic(plan, number, n));
      if (n < 2) {
        (n == 0 ? fx : fy) = Inverse(x);
        (n == 0 ? across : down) = call.axes.axes[n].size.inverse / x;
      } else {
        (n == 2 ? cloud.cx : cloud.cy) = x;
      }
    }
    if (thread == 2 * warp_size) set_extent(plan, number, cloud);
    if (thread == 3 * warp_size) {
      scale = call.readings.scale;
      lowest = call.readings.lowest;
      highest = call.readings.highest;
      axes = call.axes;
    }
  }
  // If so, Inverse gives the right x and y for every ordinary z.
  __device__ bool is_ordinary() const {
    const auto focal = [](float x) { return fabsf(x) >= 0x1p-20f && fabsf(x) <= 0x1p20f; };
    const auto centre = [](float x) { return x == 0 || (fabsf(x) >= 0x1p-20f && fabsf(x) <= 0x1p40f); };
    return focal(fx.divisor) && focal(fy.divisor) && centre(cloud.cx) && centre(cloud.cy);
  }
};

// The pixels of a thread: some rows of one column.
template <class T>
struct ImageTile {
  std::uint32_t number;       // of the image
  std::uint32_t u;            // the column
  std::uint32_t top, bottom;  // rows; bottom < top: none
  const T* at;                // the pixel at the top

  __device__ explicit ImageTile(const Call& call) {
    const ImageTiling& tiling = call.image_tiling;
    number = tiling.by_blocks.divide(blockIdx.x);
    const std::uint32_t tile = (blockIdx.x - number * tiling.blocks) * warps + threadIdx.x / warp_size;
    const std::uint32_t above = tiling.by_columns.divide(tile);
    u = (tile - above * tiling.columns) * warp_size + threadIdx.x % warp_size;
    top = above * tiling.rows;
    bottom = u < tiling.width ? min(top + tiling.rows, tiling.height) : 0;
    at = static_cast<const T*>(call.plan.points) + std::int64_t{number} * call.plan.points_per_cloud + u +
         std::int64_t{top} * tiling.width;
  }
  // The numbers are out of tiling.rows readings, and no_reading includes rows without a pixel. All threads of the
  // block must call it.
  __device__ void add_dropped(const Call& call, int no_reading, int not_finite, int outside) const {
    __shared__ int dropped[drop_reasons];
    if (call.plan.dropped == nullptr) return;
    if (threadIdx.x < drop_reasons) dropped[threadIdx.x] = 0;
    __syncthreads();
    const auto pixels = static_cast<int>(max(bottom, top) - top);
    const auto count = [&](Drop reason, int number_of) {
      if (number_of > 0) atomicAdd(dropped + static_cast<int>(reason), number_of);
    };
    count(Drop::no_reading, no_reading - (static_cast<int>(call.image_tiling.rows) - pixels));
    count(Drop::not_finite, not_finite);
    count(Drop::outside, outside);
    __syncthreads();
    if (threadIdx.x < drop_reasons && dropped[threadIdx.x] > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(call.plan.dropped) + number * drop_reasons + threadIdx.x,
                static_cast<unsigned long long>(dropped[threadIdx.x]));
    }
  }
};

template <class T>
__device__ float reading_of(T raw) {
  if constexpr (std::is_integral_v<T>) {
    return __uint_as_float(0x4b000000u | static_cast<std::uint32_t>(raw)) - 0x1p23f;  // cheaper than a conversion
  } else {
    return widen(raw);
  }
}

// A reading times the scale, rounded once.
template <class T>
__device__ float scaled(T raw, float scale) {
  if constexpr (std::is_integral_v<T>) {
    const float above = __uint_as_float(0x4b000000u | static_cast<std::uint32_t>(raw));  // 2^23 + raw
    return fused(above, scale, -0x1p23f * scale);
  } else {
    return widen(raw) * scale;
  }
}

// Whether two arrays of marks are wanted: occupancy, and the bytes that bits are packed from.
__host__ __device__ bool marks_twice(const Call& call) {
  return call.plan.occupancy != nullptr && call.occupied != nullptr;
}

// Counts the pixels of a thread, and combines equal keys of a row across the warp. A negative key: no cell.
template <int n>
__device__ void count_pixels(std::int32_t* counts, const std::int32_t (&keys)[n]) {
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const Runs runs(keys[k]);
    if (runs.leads) atomicAdd(counts + keys[k], runs.length);
  }
}
// Marks the cells of a thread's pixels; skips the cell of the pixel above, which is marked already. The hardware
// combines a warp's stores to one cell. Some: a negative key means no cell; else a pixel without a cell has the key
// of the pixel above.
template <bool Some, int n>
__device__ void mark_pixels(std::uint8_t* cells, const std::int32_t (&keys)[n], std::int32_t above) {
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (keys[k] != (k == 0 ? above : keys[k - 1]) && (!Some || keys[k] >= 0)) cells[keys[k]] = 1;
  }
}

template <class T, bool Counts>
__global__ void __launch_bounds__(tuning::threads, tuning::image_residents)
    voxelize_images_kernel(const __grid_constant__ Call call) {
  constexpr int n = tuning::image_flight;
  const Plan& plan = call.plan;
  const ImageTiling& tiling = call.image_tiling;
  __shared__ Camera shared;
  const ImageTile<T> tile(call);
  shared.set(call, tile.number);
  const std::uint32_t top = tile.top, bottom = tile.bottom;
  __syncthreads();
  const Camera camera = shared;
  const float from_centre = static_cast<float>(tile.u) - camera.cloud.cx;
  const auto first_key = static_cast<std::int32_t>(camera.cloud.grid * plan.cells);
  std::uint8_t* const marks = plan.occupancy != nullptr ? plan.occupancy : call.occupied;
  std::uint8_t* const more_marks = marks_twice(call) ? call.occupied : nullptr;
  int no_reading = 0, not_finite = 0, kept = 0;
  const bool camera_is_ordinary = camera.is_ordinary();
  const auto run = [&](auto is_ordinary, auto is_posed) {
    std::int32_t last = -1;
    const T* at = tile.at;
    std::conditional_t<std::is_integral_v<T>, std::uint32_t, T> next[n];  // readings being loaded
    const auto read = [&](std::uint32_t v) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        next[k] = {};  // no reading
        if (v + k < bottom) next[k] = at[k * tiling.width];
      }
    };
    read(top);
    auto row = static_cast<float>(top);
#pragma unroll 1
    for (std::uint32_t v = top; v < top + tiling.rows; v += n, row += n) {
      float readings[n];
      std::int32_t keys[n];
#pragma unroll
      for (int k = 0; k < n; ++k) readings[k] = reading_of(next[k]);
      at += n * tiling.width;
      read(v + n);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const float reading = readings[k];
        float p[3];
        p[2] = reading * camera.scale;
        bool valid = p[2] >= camera.lowest && p[2] <= camera.highest;
        if constexpr (!is_ordinary) {
#pragma unroll 1
          for (int i = 0; i < call.readings.invalid_count; ++i) valid = valid && reading != call.readings.invalid[i];
        }
        const float x = from_centre * p[2];
        const float y = ((row + k) - camera.cloud.cy) * p[2];
        if (is_ordinary || (camera_is_ordinary && FloatReadings::is_ordinary(p[2]))) {
          p[0] = camera.fx.divide(x);
          p[1] = camera.fy.divide(y);
        } else {
          p[0] = x / camera.fx.divisor;
          p[1] = y / camera.fy.divisor;
        }
        // A point that is not finite stays so: a non-finite term makes the sum non-finite.
        if (is_posed) camera::transform(camera.cloud, p);
        bool inside = valid;
        const std::int32_t cell = camera.axes.cell(p, inside);
        if (!valid) ++no_reading;
        if (inside) ++kept;
        if (valid && !inside && !all_finite(p)) ++not_finite;
        keys[k] = inside ? first_key + cell : Counts ? -1 : k == 0 ? last : keys[k - 1];
      }
      wait_on_dependent_grids();  // the grids are filled
      if constexpr (Counts) count_pixels(plan.count, keys);
      if (marks != nullptr) mark_pixels<Counts>(marks, keys, last);
      if constexpr (!is_ordinary) {
        if (more_marks != nullptr) mark_pixels<Counts>(more_marks, keys, last);
      }
      last = keys[n - 1];
    }
  };
  const bool ordinary = camera_is_ordinary && call.readings.ordinary && more_marks == nullptr;
  if (plan.poses.data == nullptr) {
    run(std::false_type{}, std::false_type{});
  } else if (ordinary) {
    run(std::true_type{}, std::true_type{});
  } else {
    run(std::false_type{}, std::true_type{});
  }
  launch_dependent_grids();
  tile.add_dropped(call, no_reading, not_finite, static_cast<int>(tiling.rows) - no_reading - kept - not_finite);
}

// A reading's depth; NaN: no reading.
template <class T>
__device__ __forceinline__ float depth_or_nan(const Call& call, T raw) {
  const float z = scaled(raw, call.readings.scale);
  return z >= call.readings.lowest && z <= call.readings.highest ? z : std::numeric_limits<float>::quiet_NaN();
}

// The pixels of a camera that is not ordinary, with true divisions. Rare.
template <class T, bool Counts>
__device__ __forceinline__ void take_pixels_slowly(const Call& call, const Camera& camera, ImageTile<T>& tile,
                                                   float from_centre, float cy, std::int32_t first_key,
                                                   std::uint8_t* marks) {
  int no_reading = 0, not_finite = 0, without_cell = 0;
  wait_on_dependent_grids();
#pragma unroll 1
  for (std::uint32_t v = tile.top; v < tile.top + call.image_tiling.rows; ++v, tile.at += call.image_tiling.width) {
    const float z = v < tile.bottom ? depth_or_nan(call, *tile.at) : std::numeric_limits<float>::quiet_NaN();
    const float below_centre = static_cast<float>(v) - cy;
    const float p[3] = {(from_centre * z) / camera.fx.divisor, (below_centre * z) / camera.fy.divisor, z};
    bool inside = true;
    const std::int32_t key = first_key + call.axes.cell(p, inside);
    if (inside) {
      if (Counts) atomicAdd(call.plan.count + key, 1);
      if (marks != nullptr) marks[key] = 1;
      continue;
    }
    ++without_cell;
    if (z != z) {
      ++no_reading;
    } else if (!all_finite(p)) {
      ++not_finite;
    }
  }
  launch_dependent_grids();
  tile.add_dropped(call, no_reading, not_finite, without_cell - no_reading - not_finite);
}

// The same without a pose, for ordinary readings and at most one array of marks: all arguments fit uniform registers.
template <class T, bool Counts>
__global__ void __launch_bounds__(tuning::threads, tuning::image_residents)
    voxelize_plain_images_kernel(const __grid_constant__ Call call) {
  constexpr int n = tuning::image_flight;
  const Plan& plan = call.plan;
  const ImageTiling& tiling = call.image_tiling;
  const FixedAxes& fixed = call.fixed;
  __shared__ Camera camera;
  ImageTile<T> tile(call);
  camera.set(call, tile.number);
  __syncthreads();
  const float cy = camera.cloud.cy;
  const float from_centre = static_cast<float>(tile.u) - camera.cloud.cx;
  const float across = from_centre * camera.across;
  const float down = camera.down;
  // In the column of the centre x is 0, which often is a face: its cell is computed exactly, once.
  float offset = fixed.offset[0];
  if (from_centre == 0) {
    bool inside = true;
    const float cell = __uint_as_float(call.axes.along(0, 0.0f, inside)) - Axes::shift;
    offset = inside ? fixed.first + cell + 0.5f : std::numeric_limits<float>::quiet_NaN();
  }
  const auto first_key = static_cast<std::int32_t>(camera.cloud.grid * plan.cells);
  std::uint8_t* const marks = plan.occupancy != nullptr ? plan.occupancy : call.occupied;
  int no_reading = 0, without_cell = 0;
  std::int32_t last = -1;
  std::conditional_t<std::is_integral_v<T>, std::uint32_t, T> next[n];  // readings that are on their way
  const auto read = [&](std::uint32_t v) {
#pragma unroll
    for (int k = 0; k < n; ++k, tile.at += tiling.width) {
      next[k] = {};  // no reading
      if (v + k < tile.bottom) next[k] = *tile.at;
    }
  };
  if (!camera.is_ordinary()) {
    return take_pixels_slowly<T, Counts>(call, camera, tile, from_centre, cy, first_key, marks);
  }
  read(tile.top);
  auto row = static_cast<float>(tile.top);
#pragma unroll 1
  for (std::uint32_t v = tile.top; v < tile.top + tiling.rows; v += n, row += n) {
    float z[n];
    std::int32_t keys[n];
    bool sure = true;
#pragma unroll
    for (int k = 0; k < n; ++k) z[k] = depth_or_nan(call, next[k]);
    read(v + n);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float below_centre = (k == 0 ? row : row + static_cast<float>(k)) - cy;
      const float x = fused(z[k], across, offset);
      const float y = fused(z[k], below_centre * down, fixed.offset[1]);
      bool inside = fixed.is_inside(0, x) & fixed.is_inside(1, y);
      sure &= fixed.is_sure(x) & fixed.is_sure(y);
      const std::uint32_t line = fixed.along(x) * call.axes.axes[1].cells + fixed.along(y);
      const std::uint32_t cell = line * call.axes.axes[2].cells + call.axes.along(2, z[k], inside);
      keys[k] = inside ? first_key + static_cast<std::int32_t>(cell - fixed.base) : -1;
    }
    if (!__all_sync(whole_warp, sure)) {
      __syncwarp();  // makes the compiler reload from shared memory, so that this rare path holds no registers
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const float below_centre = (row + static_cast<float>(k)) - cy;
        const float p[3] = {camera.fx.divide(from_centre * z[k]), camera.fy.divide(below_centre * z[k]), z[k]};
        bool inside = true;
        const std::int32_t cell = call.axes.cell(p, inside);
        keys[k] = inside ? first_key + cell : -1;
      }
    }
    std::int32_t all_keys = 0;
#pragma unroll
    for (int k = 0; k < n; ++k) all_keys |= keys[k];
    if (all_keys < 0) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (keys[k] >= 0) continue;
        ++without_cell;
        if (z[k] != z[k]) ++no_reading;
        if (!Counts) keys[k] = k == 0 ? last : keys[k - 1];
      }
    }
    wait_on_dependent_grids();  // the grids are filled
    if constexpr (Counts) count_pixels(plan.count, keys);
    if (!Counts || marks != nullptr) mark_pixels<Counts>(marks, keys, last);
    last = keys[n - 1];
  }
  launch_dependent_grids();
  tile.add_dropped(call, no_reading, 0, without_cell - no_reading);
}

}  // namespace
}  // namespace robocache::voxelize_op
