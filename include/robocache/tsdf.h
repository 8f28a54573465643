// TSDF: depth images fused into a volume of truncated signed distances, and the surface in it.
//
//   std::vector<float> values(cells, 1.0f), weights(cells, 0.0f);              // how every volume begins
//   robocache::tsdf_integrate(context, images, grid, 0.15, values_view, weights_view);
//
//   robocache::tsdf_surface_count(context, grid, values_view, weights_view, offsets_view);  // int64 [X * Y + 1]
//   std::vector<float> points(3 * offsets.back());
//   robocache::tsdf_surface_points(context, grid, values_view, weights_view, offsets_view, points_view);
//
// A volume is two float32 arrays [X, Y, Z] over a grid, contiguous: `values`, the mean distance to the surface in units of
// the truncation, positive in front of it and at most 1, and `weights`, how many readings that is the mean of. What is
// computed, to the bit, is in docs/semantics.md.
//
// Every call here
//   - gives the same bits on every backend and every run; images integrated in one call, and one after the other, do too;
//   - works in stream order on the caller's stream, never synchronises, and can be captured in a CUDA graph;
//   - checks shapes, dtypes and devices first and throws robocache::Error before anything is written. Whether a pose is
//     rigid is checked on the CPU before anything is written too; on CUDA inside the launch, the result is then unspecified
//     but never out of bounds, and the sentence is thrown by the next call or by robocache::synchronize(). `check = false`
//     leaves that out.
// Cost: a projection for every voxel and camera, and the bytes of the voxels that some camera sees, once each way.
#pragma once

#include <robocache/voxelize.h>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// Throws where the numbers make no volume, as every call does.
void check_tsdf(const Grid& grid, double truncation);

// Puts images into a volume, one after the other. `truncation` is in metres. `images` have intrinsics, and poses from
// camera to grid (none: the camera is at the grid's own origin); features, into, crop and rays are refused.
void tsdf_integrate(const Context& context, const DepthImages& images, const Grid& grid, double truncation,
                    const TensorView& values, const TensorView& weights, bool check = true);

// The surface: a point between each two neighbours along x, y or z that have weight and of which one value is below 0 and
// the other is not, where the line between the two values is 0. Points come in the order of the lower voxel (x, then y,
// then z), and those of one voxel along x, y, z. The count comes first, so that the caller can make room:
// offsets[x * Y + y] points lie before those of the voxels (x, y, ...), and offsets[X * Y] is how many there are. To read
// that number from a GPU is up to the caller, and waits. On CUDA the count asks for scratch, a few bytes for a hundred lines.
void tsdf_surface_count(const Context& context, const Grid& grid, const TensorView& values, const TensorView& weights,
                        const TensorView& offsets);
// `points`: float32 [offsets[X * Y], 3]. Of offsets that are not of this volume the points are unspecified; none is written
// out of bounds.
void tsdf_surface_points(const Context& context, const Grid& grid, const TensorView& values, const TensorView& weights,
                         const TensorView& offsets, const TensorView& points);

}  // namespace robocache

#pragma GCC visibility pop
