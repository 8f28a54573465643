// From points to keys, compiled once for each SIMD target. Keys are -1 where a point is dropped.
#include "ops/voxelize/cpu.h"

namespace robocache::voxelize_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

template <class T>
void locate_points(const Plan& plan, const Piece& piece, std::int64_t* keys, std::int64_t (&dropped)[drop_reasons]) {
  const auto cloud = cloud_of<compute_t<T>>(plan, piece.cloud);
  const std::int64_t base = cloud.grid * plan.cells;
  for (std::int64_t k = piece.begin; k < piece.end; ++k) {
    compute_t<T> p[3] = {};
    const Place place = locate<T>(plan, cloud, k, p);
    *keys++ = place.drop == Drop::none ? base + place.cell : -1;
    if (place.drop != Drop::none) ++dropped[static_cast<int>(place.drop)];
  }
}

}  // namespace

void locate_piece(const Plan& plan, const Piece& piece, std::int64_t* keys, std::int64_t (&dropped)[drop_reasons]) {
  with_point_type(plan, [&](auto type) { locate_points<typename decltype(type)::type>(plan, piece, keys, dropped); });
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
