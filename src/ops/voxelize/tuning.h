// The numbers that the CUDA kernels are tuned with, and why each is what it is. Figures are microseconds on one H200, cold,
// of 500,000 points into 128^3 cells; those that are compared are from one sweep.
#pragma once

namespace robocache::voxelize_op::tuning {

// Threads of a block, and points of a thread; of a count, 256 and 4 take 11.3, 256 and 8 15.2, 128 and 2 9.6. Of a point's neighbours
// only those of a warp share an atomic.
inline constexpr int threads = 128;
inline constexpr int points_per_thread = 2;

// Rounds of those that a block makes, where there are enough tiles of points. A block that makes several puts together what
// falls into one cell, in this many slots of its shared memory, and each warp gives that up once less than a quarter of its
// runs meet another. 48 scans of a lidar, which is where many blocks meet: a count takes 42.1 for 162, occupancy 29.6 for
// 137; 8,000,000 points in the order of a camera, where few do: a count 55.8 for 54.1, occupancy 43.9 for 42.7.
inline constexpr int most_rounds = 8;
inline constexpr int enough_tiles = 4224;
inline constexpr int recent_slots = 256;

// Images: rows that a thread reads at once and in all, blocks that there are to be before a tile has more rows, and blocks
// that a multiprocessor holds at least, which leaves 64 registers. Occupancy of 20 frames of 640 x 480 takes 26.8 with 8
// rows, 23.2 with 16, 22.8 with 24, 22.4 with 32; two rows at once and 10 blocks make it 26.7. Before marks lost their
// shuffles, 6 blocks and 80 registers took 30.4, and 8 blocks 27.9.
inline constexpr int image_flight = 4;
inline constexpr int most_image_rows = 32;
inline constexpr int image_blocks = 2112;
inline constexpr int image_residents = 8;

// With features, cells of which a thread finds those that have points (a mean of 8 channels takes 75.5 with 4, 78.0 with 8),
// and blocks that a multiprocessor holds at least: 8 leave 64 registers, which makes it 115 for 80 without a bound; 6 leave 80.
inline constexpr int cells_per_thread = 4;
inline constexpr int cells_blocks = 6;

// Steps along a cell's chain of points, of up to two points each, over which the cell is left to all warps (all points in one
// voxel: 105 with 32, 148 with 64), and the points of a cloud that a warp looks through then, which is not swept.
inline constexpr int longest_chain = 32;
inline constexpr int heavy_span = 256;

// Bytes that a thread fills and cells that it marks, the blocks that do either at most, and those for cells of many points:
// a few to each multiprocessor, which loop. Not swept.
inline constexpr int fill_bytes = 64;
inline constexpr int marks_per_thread = 8;
inline constexpr int most_blocks = 4224;
inline constexpr int most_heavy_blocks = 1056;

// Sparse: points of a row over which warps add them instead of a thread, and values of which a thread finds the largest.
// Not swept.
inline constexpr int long_row = 128;
inline constexpr int magnitudes_per_thread = 16;
inline constexpr int magnitudes_blocks = 1056;

}  // namespace robocache::voxelize_op::tuning
