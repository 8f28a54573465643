// The numbers that the CUDA kernels are tuned with. None has been swept: they are first guesses.
#pragma once

namespace robocache::image_op::tuning {

// Threads of a block that copies, and vectors of 16 output bytes that each of them loads before it stores the first.
inline constexpr int copy_threads = 128;
inline constexpr int copy_flight = 2;

// Threads of a block that has a pixel for each thread.
inline constexpr int pixel_threads = 256;

// Resize: most threads of a block, each of which has a column of the output; most and fewest rows of a tile, and the blocks
// for each multiprocessor below which tiles get fewer rows; bytes of shared memory above which tiles get fewer columns.
inline constexpr int tile_threads = 256;
inline constexpr int most_tile_rows = 32;
inline constexpr int least_tile_rows = 4;
inline constexpr int tile_blocks_per_processor = 2;
inline constexpr int tile_bytes = 48 * 1024;

// Scratch that a call without a tile may take for frames that are resized along their rows only.
inline constexpr long long wide_bytes = 256ll << 20;

}  // namespace robocache::image_op::tuning
