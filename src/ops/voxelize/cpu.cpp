// From points to keys, compiled once for each SIMD target. Keys are -1 where a point is dropped.
#include "ops/voxelize/cpu.h"

namespace robocache::voxelize_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

template <class T>
void locate_points(const Plan& plan, const Piece& piece, std::int64_t* keys, compute_t<T>* located,
                   std::int64_t (&dropped)[drop_reasons]) {
  const auto cloud = cloud_of<compute_t<T>>(plan, piece.cloud);
  const std::int64_t base = cloud.grid * plan.cells;
  for (std::int64_t k = piece.begin; k < piece.end; ++k) {
    compute_t<T> p[3] = {};
    const Place place = locate<T>(plan, cloud, k, p);
    *keys++ = place.drop == Drop::none ? base + place.cell : -1;
    if (place.drop != Drop::none) ++dropped[static_cast<int>(place.drop)];
    if (located == nullptr) continue;
    for (const compute_t<T> x : p) *located++ = x;
  }
}

template <class T>
void bound_points(const Plan& plan, const Piece& piece, std::int64_t (&low)[3], std::int64_t (&high)[3]) {
  const auto cloud = cloud_of<compute_t<T>>(plan, piece.cloud);
  for (std::int64_t k = piece.begin; k < piece.end; ++k) {
    compute_t<T> p[3] = {};
    std::int64_t cell[3];
    if (bring<T>(plan, cloud, k, p) != Drop::none || !lattice_cell(cloud, p, cell)) continue;
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = cell[axis] < low[axis] ? cell[axis] : low[axis];
      high[axis] = cell[axis] > high[axis] ? cell[axis] : high[axis];
    }
  }
}

void locate_piece(const Plan& plan, const Piece& piece, std::int64_t* keys, void* located,
                  std::int64_t (&dropped)[drop_reasons]) {
  with_point_type(plan, [&](auto type) {
    using T = typename decltype(type)::type;
    locate_points<T>(plan, piece, keys, static_cast<compute_t<T>*>(located), dropped);
  });
}
void bound_piece(const Plan& plan, const Piece& piece, std::int64_t (&low)[3], std::int64_t (&high)[3]) {
  with_point_type(plan, [&](auto type) { bound_points<typename decltype(type)::type>(plan, piece, low, high); });
}

}  // namespace

extern const PieceFunctions piece_functions;
constexpr PieceFunctions piece_functions{locate_piece, bound_piece};

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::voxelize_op
