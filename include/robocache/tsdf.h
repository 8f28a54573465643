// TSDF: depth images fused into a volume of truncated signed distances, and the surface in it.
//
// ```cpp
// using robocache::Array, robocache::DType;
// const robocache::Grid grid{.origin = {-1, -1, 0}, .voxel_size = {0.02, 0.02, 0.02}, .shape = {100, 100, 50}};
// const Array depth = Array::zeros(DType::u16, {48, 64}), intrinsics = Array::zeros(DType::f64, {4});
// std::fill_n(static_cast<double*>(intrinsics.view().data), 4, 50.0);  // fx, fy, cx, cy
// const Array values = Array::zeros(DType::f32, {100, 100, 50}), weights = Array::zeros(DType::f32, {100, 100, 50});
// std::fill_n(static_cast<float*>(values.view().data), values.view().size(), 1.0F);  // how every volume begins
// robocache::tsdf_integrate({}, {.depth = depth.view(), .intrinsics = intrinsics.view()}, grid, 0.15, values.view(),
//                           weights.view());
//
// const Array offsets = Array::zeros(DType::i64, {100 * 100 + 1});
// robocache::tsdf_surface_count({}, grid, values.view(), weights.view(), offsets.view());
// const std::int64_t count = static_cast<std::int64_t*>(offsets.view().data)[100 * 100];
// const Array points = Array::zeros(DType::f32, {count, 3});
// robocache::tsdf_surface_points({}, grid, values.view(), weights.view(), offsets.view(), points.view());
// ```
//
// A volume is two float32 arrays [X, Y, Z] over a grid, contiguous. `values` is the mean distance to the surface in units of
// the truncation, positive in front of it and at most 1. `weights` is how many readings that is the mean of. docs/semantics.md
// says what is computed, to the bit.
//
// Errors. Shapes, dtypes and devices are checked first: robocache::Error is thrown before anything is written. A pose that is
// not rigid can only be found by reading the data. The CPU backends read the poses before they write. On CUDA the kernel finds
// the mistake: the result is unspecified, no memory outside the arrays is touched, and the error is thrown by the same
// thread's next call on that device or by robocache::synchronize(). `check = false` turns this check off; the poses must then
// be rigid.
//
// Determinism. Every backend and every run gives the same bits, whatever the number of threads. Images that are integrated in
// one call give the same bits as one after the other.
// CUDA. Work goes to the caller's stream, in order. A call waits for nothing and can be captured in a CUDA graph.
// tsdf_surface_count needs scratch: a few bytes for a hundred lines of voxels along z.
// Threads. Any number of threads may call at the same time, with outputs that do not overlap; one volume takes one call at a
// time.
// Limits. 2^62 voxels; images of at most 2^24 pixels along a side.
// Memory. The bytes of an array are aligned for its dtype; more is not needed.
// Cost. Every voxel is projected into every camera. Each voxel that a camera sees is read once and written once.
#pragma once

#include <robocache/voxelize.h>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// Throws Error(value) where the numbers make no volume, as every call does.
void check_tsdf(const Grid& grid, double truncation);

// Puts images into a volume, one after the other. `truncation` is in metres. `images` have intrinsics, and poses from
// camera to grid (none: the camera is at the grid's own origin); features, into, crop and rays are refused.
void tsdf_integrate(const Context& context, const DepthImages& images, const Grid& grid, double truncation,
                    const TensorView& values, const TensorView& weights, bool check = true);

// The surface: a point between each two neighbours along x, y or z that have weight and of which one value is below 0 and
// the other is not, where the line between the two values is 0. Points come in the order of the lower voxel (x, then y,
// then z), and those of one voxel along x, y, z. The count comes first, so that the caller can make room:
// offsets[x * Y + y] points lie before those of the voxels (x, y, ...), and offsets[X * Y] is how many there are. On a GPU
// the caller copies that number to the host, and waits for it.
void tsdf_surface_count(const Context& context, const Grid& grid, const TensorView& values, const TensorView& weights,
                        const TensorView& offsets);
// `points`: float32 [offsets[X * Y], 3]. With offsets of another volume the points are unspecified; none is written out of
// bounds.
void tsdf_surface_points(const Context& context, const Grid& grid, const TensorView& values, const TensorView& weights,
                         const TensorView& offsets, const TensorView& points);

}  // namespace robocache

#pragma GCC visibility pop
