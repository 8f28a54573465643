// The numbers that the CUDA kernels are tuned with, and why each is what it is. Figures are microseconds on one H200, cold,
// for 500,000 points into 128^3 cells unless the comment says otherwise. Figures that are compared are from one sweep; a
// number without a figure has not been swept, and its comment says so. bench/tune/voxelize.py runs the sweeps again.
#pragma once

namespace robocache::voxelize_op::tuning {

// Threads of a block, and points of a thread in a round. A count takes 11.3 with 256 and 4, 15.2 with 256 and 8, 9.6 with
// 128 and 2. A point shares an atomic only with neighbours in its warp. Sorting the points into one bin of cells for each
// multiprocessor, which needs no fill and no atomic in L2, takes 9.8 where the atomics take 9.9, but 12.9 where they take 6.9
// for points in the order of a camera; to ask first which of the two it is takes 1.4.
inline constexpr int threads = 128;
inline constexpr int points_per_thread = 2;

// Most rounds of points that a block makes; it makes several only where the launch has more than tiles_per_processor tiles
// for each multiprocessor. A block of several rounds adds up the points of a cell in its cell cache (cuda/cell_cache.h),
// which has cache_slots slots; a warp stops using the cache once less than a quarter of its runs hit. With and without the
// cache: 48 scans of a lidar, where many blocks have points in the same cells, take 42.1 and 162 for a count, 29.6 and 137
// for occupancy; 8,000,000 points in the order of a camera, where few do, take 55.8 and 54.1 for a count, 43.9 and 42.7 for
// occupancy. A kernel for plain clouds alone, of 32 registers instead of 38, has since made the last 39.8. The three numbers
// are not swept.
inline constexpr int most_rounds = 8;
inline constexpr int tiles_per_processor = 32;
inline constexpr int cache_slots = 256;

// Images: rows that a thread loads before it uses the first, most rows of a thread, blocks for each multiprocessor that a
// launch shall have before its tiles get more rows, and blocks that must fit on a multiprocessor, which bounds a thread to 64
// registers. Occupancy of 20 frames of 640 x 480 took 24.2 with 16 rows, 23.5 with 24, 23.2 with 32, 23.0 with 48, where all
// blocks are resident at once, and 26.5 with 60. FixedAxes, 54 instructions a pixel instead of 72, takes 17.3 instead of
// 22.3, and for real frames into 256^3 cells 21.0 instead of 25.6. It took 34 where whole columns, or depths in whole
// millimetres, lay on faces of cells, and those warps were the last to end. Images with poses take 26.9 in a kernel without
// the code of plain images, 42.1 in one with it, because no register is spilled. image_flight and image_residents are not
// swept.
inline constexpr int image_flight = 4;
inline constexpr int most_image_rows = 48;
inline constexpr int image_blocks_per_processor = 8;
inline constexpr int image_residents = 8;

// Chains of features: cells of a thread (a mean of 8 channels takes 75.5 with 4 cells, 78.0 with 8), blocks that must fit on a
// multiprocessor, and points of a run that a thread loads before it uses the first. 6 blocks, which bound a thread to 80
// registers, and 2 points take 74.4 for a mean, 60.9 for a maximum; 5 blocks and 4 points take 78.2 and 65.5, and for points in
// the order of a sensor 87.5 instead of 89.8; 8 blocks spill. In other sweeps: points that write the cells whose heads they
// are, after a fill, took 75.3, a maximum 68.6; cells listed by whether they have a chain took 74.5 and 61.7.
inline constexpr int cells_per_thread = 4;
inline constexpr int cells_blocks = 6;
inline constexpr int chain_flight = 2;

// The steps of a chain, of up to two points each, above which a cell is heavy and all warps add it up (all points in one
// voxel: 105 with 32, 148 with 64), and the points that a warp then looks through at a time, which is not swept.
inline constexpr int longest_chain = 32;
inline constexpr int heavy_span = 256;

// Counts of many scattered points: bins; the offset between the bins of neighbouring rows of cells; threads of a block;
// points of a thread that sorts; most rows of a bin, a row being a line of 32 cells (64 KiB of counts); blocks of the sort
// kernel and of the bins kernel on a multiprocessor, as their shared memory allows; the fewest points for which scatter is
// looked for; and the first blocks of the points kernel, which read points before they know whether those are scattered.
// 8,000,000 points on surfaces take 81.8, by atomics 145.6; 10,000,000 uniform points 91.0. Without loading the next points
// while others are sorted: 83.2 and 91.6. If all blocks read early, which wastes an eighth of the reads: 86.6 and 99.5; if
// half as many do: 81.4 and 90.5, but then points of a camera take 55.1 instead of 54.5. Not faster: 2,048 or 1,184 bins, all
// shared memory, an L2 prefetch of the next tile, and keeping ranks so that a point takes one atomic instead of two (83.6
// instead of 82.8). Looking for scatter costs time: points of a camera took 56.5 instead of 54.1, of depth images 47.1
// instead of 45.5, of a lidar 45.1 instead of 42.5. So occupancy does not look for it (of a camera 41.6 instead of 39.8).
// bin_least_points is not swept; 1,000,000 points take 15 by atomics.
inline constexpr int bins = 1024;
inline constexpr unsigned bin_mix = 397;
inline constexpr int bin_threads = 512;
inline constexpr int bin_points = 32;
inline constexpr int bin_most_rows = 512;
inline constexpr int sort_blocks = 2;
inline constexpr int bins_blocks = 3;
inline constexpr int bin_least_points = 2'000'000;
// Blocks of the points kernel, for each multiprocessor, that read points before the sort kernel has decided. Not swept.
inline constexpr int early_blocks_per_processor = 16;

// Features of plain clouds by bins: bins; threads that sort a tile, points of each of them (a mean takes 47.8 and a maximum
// 44.1 with 8; 50.9 and 46.3 with 4), and blocks of theirs on a multiprocessor; most blocks on a multiprocessor that reduce a
// bin, where 8 hold all bins at once; fewer, where less than 1 / feature_bin_staged of the points had shared memory for their
// features. 2,000,000 points take 182 with 4 blocks and memory for half of the features, 209 with 8 and for few, 222 with 2
// and for all; 500,000 points of 16 channels take 85.9 with 8 and for half, 88.5 with 5 and for all. Without memory for any
// features, 8 channels take 65.7 instead of 57.3.
// Not swept: the most points of a cell for one thread and of a bin for one block, the fewest points for which bins are used,
// the most points for each cell, and the most cells.
// Each of these alone, compared with 47.8 (mean), 44.1 (maximum) and 62.8 (mean, points in the order of a sensor): empty cells
// written between those of one point 46.5, 43.1, 61.4; after them 47.8, 43.3, 59.0; before them, with streaming stores, 47.3,
// 44.0, 60.4; no prefetch of features for a maximum 42.2. With the first and the last two together the bench measures 45.2,
// 41.6, 58.4. Blocks that fill the grid while others sort, and bins that write no empty cells, took 51.1, 45.8, 62.7: the sort
// waits for memory that is busy.
inline constexpr int feature_bins = 1024;
inline constexpr int feature_sort_threads = 512;
inline constexpr int feature_sort_points = 8;
inline constexpr int feature_sort_blocks = 2;
inline constexpr int feature_bin_blocks = 8;
inline constexpr int feature_bin_staged = 3;
inline constexpr int longest_cell = 63;
inline constexpr int longest_bin = 16384;
inline constexpr int feature_bin_least_points = 100'000;
inline constexpr int feature_bin_cell_points = 32;
inline constexpr int feature_bin_most_cells = 4'194'304;

// Bytes that a thread fills (512 threads in a block, or 16 bytes for each, took longer), cells that a thread of the marks
// kernel has, most blocks of either kernel for each multiprocessor, and most blocks for each of the kernels of heavy cells.
// Those kernels loop. Only the first is swept.
inline constexpr int fill_bytes = 64;
inline constexpr int marks_per_thread = 8;
inline constexpr int blocks_per_processor = 32;
inline constexpr int heavy_blocks_per_processor = 8;

// Sparse results: points of a row above which warps add them instead of one thread, values of which a thread finds the
// largest, and most blocks of that kernel for each multiprocessor. Not swept.
inline constexpr int long_row = 128;
inline constexpr int magnitudes_per_thread = 16;
inline constexpr int magnitudes_blocks_per_processor = 8;

}  // namespace robocache::voxelize_op::tuning
