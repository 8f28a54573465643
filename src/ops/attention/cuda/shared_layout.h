// The shared memory of a forward block, as the host asks for it and the kernels divide it.
#pragma once

#include <cstdint>

#include "gpu/warp.h"
#include "ops/attention/cuda/tuning.h"

namespace robocache::attention_op {

inline constexpr int warp_rows = 16;  // rows of one mma.sync

// Tail rows of an sm90 block: they follow those of its warpgroups, and warps beside the producer compute them.
inline constexpr int tail_rows = 8;
inline constexpr int tail_warps = 3;  // each has every third tile of keys

// Floats from one row of partial outputs to the next. The 8 puts the rows of a fragment in different banks.
constexpr int partial_pitch(int head_dim) { return head_dim + 8; }
// Bytes of a partial result that one warp hands to another: 16 of each lane for each of `fragments` fragments of the output,
// and 16 of row maxima and sums.
constexpr int partial_bytes(int fragments) { return (fragments + 1) * warp_size * 16; }

// mbarriers of the pipeline: full and empty for keys and for values of each stage, and one for the queries.
inline constexpr int pipeline_mbarriers = 4 * tuning::most_stages + 1;

// The reduction over a cluster that pushes partial results (forward_sm90/cluster_reduction.h) divides the output into strips
// of 8 columns. Each block reduces ceil(strips / split) of them, and gets them from the other blocks in chunks of
// strips_per_chunk, each with an mbarrier.
inline constexpr int strips_per_chunk = 4;
constexpr int strips_of_block(int head_dim, int split) { return (head_dim / 8 + split - 1) / split; }
constexpr int most_chunks_that_come(int head_dim) {
  int most = 0;
  for (int split = 2; split <= 16; ++split) {
    const int chunks = (strips_of_block(head_dim, split) + strips_per_chunk - 1) / strips_per_chunk * (split - 1);
    most = chunks > most ? chunks : most;
  }
  return most;
}

// In this order: the stages of keys and values, the queries, the statistics (maximum and sum) of each row, what tail rows need,
// mbarriers. Once the stages and the queries have been read, partial results that are merged take their place.
struct SharedLayout {
  int stages, queries, partials, statistics_rows;
  int tail_partial_bytes = 0, tail_bytes = 0;

  constexpr SharedLayout(int head_dim, bool sm90, int row_warps, int key_warps, int stage_count, int split)
      : SharedLayout(head_dim, sm90, row_warps, key_warps, stage_count, split, tuning::keys(head_dim, sm90)) {}
  constexpr SharedLayout(int head_dim, bool sm90, int row_warps, int key_warps, int stage_count, int split, int keys,
                         bool has_tail = false)
      : stages(2 * stage_count * (sm90 ? 1 : key_warps) * keys * column_blocks(head_dim) * 128),
        queries(row_warps * warp_rows * (sm90 ? column_blocks(head_dim) * 128 : padded_row_bytes(head_dim))),
        partials(key_warps * row_warps * warp_rows * partial_pitch(head_dim) * 4),
        statistics_rows(row_warps * warp_rows) {
    if (has_tail) {
      queries += tail_rows * column_blocks(head_dim) * 128;
      tail_partial_bytes = tail_rows * partial_pitch(head_dim) * 4 + (tail_warps - 1) * partial_bytes(head_dim / 16);
      tail_bytes = tail_partial_bytes + tail_rows * 8;
    }
    if (!pushes_partials(head_dim, sm90, split)) return;
    // A block puts its own partial results where the stages were, and gets those of others where its queries were.
    const int strip = row_warps * warp_rows * 8 * 4;
    const int strips = head_dim / 8;
    stages = stages > strips * strip ? stages : strips * strip;
    const int received = (split - 1) * strips_of_block(head_dim, split) * strip;
    queries = queries > received ? queries : received;
    partials = 0;
    statistics_rows *= split;
  }
  // Whether the blocks of a cluster push their partial results to each other. Otherwise each block reads those of the others
  // (reduce_over_cluster in epilogue.h).
  static constexpr bool pushes_partials(int head_dim, bool sm90, int split) {
    return sm90 && split > 1 && tuning::pushes_partials(head_dim);
  }

  constexpr int statistics() const { return stages + queries > partials ? stages + queries : partials; }
  constexpr int tail_partials() const { return statistics() + statistics_rows * 8; }
  constexpr int tail_statistics() const { return tail_partials() + tail_partial_bytes; }
  constexpr int mbarriers() const { return tail_partials() + tail_bytes; }
  constexpr int bytes() const { return mbarriers() + mbarrier_bytes; }

  // Behind the mbarriers of the pipeline. A block either pushes its partial results, and has reduction_mbarriers(), or it has
  // partial_ready(), one for each 16 rows, and stages_free() where there are tail rows.
  constexpr int reduction_mbarriers() const { return mbarriers() + pipeline_mbarriers * 8; }
  constexpr int partial_ready() const { return reduction_mbarriers(); }
  constexpr int stages_free() const { return reduction_mbarriers() + most_chunks * 8; }

  static constexpr int most_chunks = 15;
  static_assert(most_chunks_that_come(192) <= most_chunks && most_chunks_that_come(256) <= most_chunks);
  static_assert(4 * tuning::warpgroups(32) <= most_chunks,
                "partial_ready() of all row warps lies before stages_free()");
  static constexpr int mbarrier_bytes = (pipeline_mbarriers + 1 + most_chunks) * 8;

  // A row of a PaddedTile. The 16 bytes put eight rows of a matrix in different banks.
  static constexpr int padded_row_bytes(int head_dim) { return head_dim * 2 + 16; }
  // Blocks of 64 columns: the widest box of TMA with 128-byte swizzle.
  static constexpr int column_blocks(int head_dim) { return (head_dim + 63) / 64; }
  // TMA copies of a tile: one with all column blocks as a dimension where the last one is full, otherwise one for each block.
  static constexpr int tma_copies(std::int64_t head_dim) {
    return head_dim % 64 == 0 ? 1 : column_blocks(static_cast<int>(head_dim));
  }
};

}  // namespace robocache::attention_op
