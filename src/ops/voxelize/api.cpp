// The public calls.
#include <robocache/voxelize.h>

#include <cmath>

#include "core/speaker.h"
#include "gpu/status.h"
#include "ops/voxelize/check.h"
#include "ops/voxelize/planner.h"
#include "robocache_config.h"

namespace robocache {

#if !ROBOCACHE_WITH_CUDA
void voxelize_op::run_cuda(const Plan&, const Context&, int) { refuse_cuda(); }
void voxelize_op::run_sparse_cuda(const Plan&, const SetRows&, const Context&, int) { refuse_cuda(); }
#endif

using namespace voxelize_op;

Plan voxelize_op::plan_images(Operation operation, const DepthImages& images, const Grid& grid) {
  Planner planner(operation, images.depth, "depth", grid);
  planner.set_images(images);
  return planner.plan();
}

std::int64_t cells_of(const Grid& grid) { return checked_cells("Grid", grid); }

Grid grid_from_bounds(const std::array<double, 3>& low, const std::array<double, 3>& high,
                      const std::array<double, 3>& voxel_size) {
  Grid grid{low, voxel_size, {1, 1, 1}};
  cells_of(grid);  // the voxel size and the origin
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const double extent = high[axis] - low[axis];
    // A bound that is a multiple of the size but for rounding gets no cell for the rounding.
    const double size = std::ceil(extent / voxel_size[axis] * (1 - 0x1p-50));
    if (!(size >= 1 && size < static_cast<double>(most_cells))) {
      const std::string what = size >= 1 ? concat(" there are more than ", limit_in_words(most_cells), " cells")
                                         : " there are no cells to make";
      throw Error(ErrorKind::value, concat("Grid: from ", low[axis], " to ", high[axis], " along ", axes[axis],
                                           " in voxels of ", voxel_size[axis], what));
    }
    grid.shape[axis] = static_cast<std::int64_t>(size);
  }
  cells_of(grid);
  return grid;
}

namespace {

Planner plan_of(const Clouds& clouds, const Grid& grid, Operation operation = Operation::voxelize) {
  if (!clouds.points) throw Error(ErrorKind::value, concat(name_of(operation), ": points are missing"));
  Planner planner(operation, clouds.points, "points", grid);
  planner.set_clouds(clouds);
  return planner;
}
Planner plan_of(const DepthImages& images, const Grid& grid) {
  if (!images.depth) throw Error(ErrorKind::value, "voxelize_depth: depth is missing");
  Planner planner(Operation::voxelize_depth, images.depth, "depth", grid);
  planner.set_images(images);
  return planner;
}

void run_dense(Planner planner, const Context& context, const VoxelizeOptions& options,
               std::span<const VoxelOutput> outputs, const TensorView& dropped) {
  planner.set_options(options);
  planner.set_outputs(outputs);
  planner.set_dropped(dropped);
  planner.run(context);
}
template <class Rows>
void run_sparse(Planner planner, const Context& context, const SparseOptions& options, const Rows& rows,
                const TensorView& dropped) {
  planner.set_sparse(options);
  planner.set_dropped(dropped);
  planner.run(context, rows);
}

}  // namespace

void voxelize_op::check_data(const Plan& plan) {
  const DataCheck check{&plan};
  for (std::int64_t k = 0; plan.check && k < check.count(); ++k) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) throw Error(ErrorKind::value, describe(fault));
  }
}

void voxelize_op::set_lattice(Plan& plan, const std::int64_t (&low)[3], const std::int64_t (&high)[3]) {
  plan.cells = 1;
  for (int axis = 0; axis < 3; ++axis) {
    const bool any = low[axis] <= high[axis];
    plan.lowest[axis] = any ? low[axis] : 0;
    plan.shape[axis] = any ? high[axis] - low[axis] + 1 : 1;
  }
  for (const std::int64_t size : plan.shape) {
    if (size > most_cells / std::max<std::int64_t>(plan.grids, 1) / plan.cells) {
      Speaker{plan.operation}.fail(ErrorKind::value, "the points span ", shape_text(plan.shape), " voxels",
                                   plan.grids > 1 ? " in each cloud" : "", ", more than ", limit_in_words(most_cells),
                                   " in all; take larger voxels, or crop far points away");
    }
    plan.cells *= size;
  }
}

void voxelize(const Context& context, const Clouds& clouds, const Grid& grid, const VoxelizeOptions& options,
              std::span<const VoxelOutput> outputs, const TensorView& dropped) {
  run_dense(plan_of(clouds, grid), context, options, outputs, dropped);
}
void voxelize_depth(const Context& context, const DepthImages& images, const Grid& grid, const VoxelizeOptions& options,
                    std::span<const VoxelOutput> outputs, const TensorView& dropped) {
  run_dense(plan_of(images, grid), context, options, outputs, dropped);
}

void voxelize_sparse(const Context& context, const Clouds& clouds, const Grid& grid, const SparseOptions& options,
                     const SparseRows& rows, const TensorView& dropped) {
  run_sparse(plan_of(clouds, grid), context, options, rows, dropped);
}
void voxelize_depth_sparse(const Context& context, const DepthImages& images, const Grid& grid,
                           const SparseOptions& options, const SparseRows& rows, const TensorView& dropped) {
  run_sparse(plan_of(images, grid), context, options, rows, dropped);
}

void voxel_downsample(const Context& context, const Clouds& clouds, const Lattice& lattice,
                      const SparseOptions& options, const DownsampleRows& rows, const TensorView& dropped) {
  Planner planner = plan_of(clouds, {lattice.origin, lattice.voxel_size, {1, 1, 1}}, Operation::voxel_downsample);
  planner.set_lattice();
  run_sparse(planner, context, {.check = options.check}, rows, dropped);
}

}  // namespace robocache
