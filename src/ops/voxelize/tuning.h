// The numbers that the CUDA kernels are tuned with, and why each is what it is. Figures are microseconds on one H200, cold,
// of 500,000 points into 128^3 cells; those that are compared are from one sweep.
#pragma once

namespace robocache::voxelize_op::tuning {

// Threads of a block, and points of a thread; of a count, 256 and 4 take 11.3, 256 and 8 15.2, 128 and 2 9.6. Of a point's neighbours
// only those of a warp share an atomic. Points dealt out to a bin of cells for each multiprocessor, without a fill and without an
// atomic in L2, take 9.8 for 9.9, but in the order of a camera 12.9 for 6.9; to ask first which of them it is takes 1.4.
inline constexpr int threads = 128;
inline constexpr int points_per_thread = 2;

// Rounds of those that a block makes, where there are enough tiles of points. A block that makes several puts together what
// falls into one cell, in this many slots of its shared memory, and each warp gives that up once less than a quarter of its
// runs meet another. 48 scans of a lidar, which is where many blocks meet: a count takes 42.1 for 162, occupancy 29.6 for
// 137; 8,000,000 points in the order of a camera, where few do: a count 55.8 for 54.1, occupancy 43.9 for 42.7. A kernel of
// its own for plain clouds, of 32 registers for 38, has since made the latter 39.8.
inline constexpr int most_rounds = 8;
inline constexpr int enough_tiles = 4224;
inline constexpr int recent_slots = 256;

// Images: rows that a thread reads at once and in all, blocks that there are to be before a tile has more rows, and blocks
// that a multiprocessor holds at least, which leaves 64 registers. Occupancy of 20 frames of 640 x 480 took 24.2 with 16 rows,
// 23.5 with 24, 23.2 with 32, 23.0 with 48, where all blocks are resident, and 26.5 with 60. With 54 instructions a pixel for 72,
// by FixedAxes, it takes 17.3 for 22.3, of real frames into 256^3 cells 21.0 for 25.6; where a column or depth in millimetres met
// faces and those warps were the last, it took 34. In a kernel without the plain ones, posed ones take 26.9 for 42.1: no register
// is spilled.
inline constexpr int image_flight = 4;
inline constexpr int most_image_rows = 48;
inline constexpr int image_blocks = 1056;
inline constexpr int image_residents = 8;

// With features, cells of which a thread finds those that have points (a mean of 8 channels takes 75.5 with 4, 78.0 with 8),
// blocks that a multiprocessor holds at least, and points of a run that a thread reads at once: 6 blocks, which leave 80
// registers, and 2 points take 74.4, a maximum 60.9; 5 and 4 take 78.2 and 65.5, and of points in the order of a sensor 87.5
// for 89.8; 8 blocks spill. In other sweeps, points that write the cells whose heads they are, after a fill, took 75.3, a
// maximum 68.6; cells listed by whether they have a chain 74.5 and 61.7.
inline constexpr int cells_per_thread = 4;
inline constexpr int cells_blocks = 6;
inline constexpr int chain_flight = 2;

// Steps along a cell's chain of points, of up to two points each, over which the cell is left to all warps (all points in one
// voxel: 105 with 32, 148 with 64), and the points of a cloud that a warp looks through then, which is not swept.
inline constexpr int longest_chain = 32;
inline constexpr int heavy_span = 256;

// Counts of points in no order: bins, how lines of cells are dealt out to them, threads of a block, points of a thread that
// sorts, lines of a bin at most (64 KiB of counts), and blocks that a multiprocessor holds, as their shared memory lets it;
// and blocks that put in points in an order and read some before they know whether they are. 8,000,000 points on surfaces take
// 81.8, by atomics 145.6, and 10,000,000 uniform ones 91.0. Without points that are read ahead while others are sorted, 83.2
// and 91.6; where all blocks read early, an eighth of the points in vain, 86.6 and 99.5; where half as many do, 81.4 and 90.5,
// but then points of a camera 55.1 for 54.5. 2,048 bins or 1,184, all shared memory asked for, the L2 told to fetch the next
// tile, and ranks kept so that a point takes one atomic for two (83.6 for 82.8) were no faster. To ask whether points come in
// an order takes time: those of a camera took 56.5 for 54.1, of depth images 47.1 for 45.5, of a lidar 45.1 for 42.5. So it is
// not asked for occupancy (of a camera 41.6 for 39.8). The fewest points for which it is asked are not swept; 1,000,000 take
// 15 by atomics.
inline constexpr int bins = 1024;
inline constexpr unsigned bin_mix = 397;
inline constexpr int bin_threads = 512;
inline constexpr int bin_points = 32;
inline constexpr int bin_most_rows = 512;
inline constexpr int sort_blocks = 2;
inline constexpr int bins_blocks = 3;
inline constexpr int bin_least_points = 2'000'000;
inline constexpr unsigned early_blocks = 2112;

// Features of plain clouds, by bins of their own, of which there are so many; threads that sort a tile and points of each (8 take
// 47.8, a maximum 44.1; 4 take 50.9 and 46.3), and blocks of those that a multiprocessor holds. Blocks that reduce a bin and that it
// holds at most: 8 hold all bins at once. It holds fewer where less than one in so many points had room for its features:
// 2,000,000 points take 182 with 4 blocks and room for half of the features, 209 with 8 and for few, 222 with 2 and for all; 500,000
// of 16 channels 85.9 with 8 and for half, 88.5 with 5 and for all; without room for any 8 channels take 65.7 for 57.3. Points of a cell
// that one thread adds at most and points of a bin that one block does, the fewest points for which all that is done, the most for
// each cell, and the most cells are not swept.
// Each alone, on top of those 47.8 and 44.1, and 62.8 for points in the order of a sensor: empty cells written between those of one
// point 46.5, 43.1, 61.4; after them 47.8, 43.3, 59.0; before them, as stores that stream, 47.3, 44.0, 60.4; no features prefetched
// for a maximum 42.2. Of the first and the last two the bench says 45.2, 41.6, 58.4. Blocks that fill the grid while others sort,
// and bins that write no empty cells, took 51.1, 45.8, 62.7: a sort waits for memory that is busy.
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

// Bytes that a thread fills and cells that it marks, the blocks that do either at most, and those for cells of many points:
// a few to each multiprocessor, which loop. 512 threads, or 16 bytes each, took longer.
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
