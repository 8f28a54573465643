// The pipeline of an sm80 block: stages of keys and values in shared memory, filled by cp.async or TMA.
#pragma once

#include "ops/attention/cuda/forward_call.h"
#include "ops/attention/cuda/load.h"

namespace robocache::attention_op {
namespace {

// The stages of keys and values in shared memory. TMA or cp.async fills them in turn.
template <class T, int D, int keys>
struct KeyStages {
  using Tile = SwizzledTile<D, keys>;
  const ForwardCall& call;
  const std::uint32_t shared, mbarriers;
  const int end;  // of the block's keys
  const int keys_of_stage = call.key_warps * keys;
  KeyLoader<T, D, Tile> loader;
  int loaded, write_stage = 0;
  unsigned by_tma = 0, phases = 0;  // a bit for each stage

  // All threads of the block call it, once, before the first load by TMA.
  __device__ static void init(std::uint32_t mbarriers) {
    if (threadIdx.x == 0) {
      for (int k = 0; k < tuning::stages(D); ++k) Mbarrier{mbarriers + k * 8}.init();
      fence_proxy_async();
    }
    __syncthreads();
  }
  __device__ KeyStages(const ForwardCall& of, const Rows& rows, std::uint32_t at, std::uint32_t mbarriers_at,
                       int first_key, int end_key)
      : call(of),
        shared(at),
        mbarriers(mbarriers_at),
        end(end_key),
        loader(of.plan, rows.s, rows.kv_head, of.aligned),
        loaded(first_key) {}

  __device__ Tile tile(int stage, bool values, int key_slice = 0) const {
    return Tile{shared + stage * call.key_warps * Tile::warp_bytes + (values ? Tile::warp_bytes / 2 : 0) +
                key_slice * Tile::warp_bytes};
  }
  __device__ Mbarrier full(int stage) const { return Mbarrier{mbarriers + stage * 8}; }
  // Starts to load the next stage, if there are keys left.
  __device__ void load_next() {
    if (loaded < end) {
      const bool by_tma_here = call.tma_keys && loader.load_by_tma(loaded, end, tile(write_stage, false).base,
                                                                   call.key_warps, call.maps, full(write_stage));
      by_tma = (by_tma & ~(1u << write_stage)) | (by_tma_here ? 1u << write_stage : 0u);
      if (!by_tma_here) loader.load(loaded, end, tile(write_stage, false), tile(write_stage, true), keys_of_stage);
      loaded += keys_of_stage;
      write_stage = write_stage + 1 == tuning::stages(D) ? 0 : write_stage + 1;
    }
    cp_async_commit_group();
  }
  // Waits for a stage that TMA fills, which begins at key `first`.
  __device__ void wait(int stage, int first) {
    if ((by_tma >> stage & 1u) == 0) return;
    full(stage).wait(phases >> stage & 1u);
    phases ^= 1u << stage;
    if (first + keys_of_stage > end) zero_rows(tile(stage, true), end - first, keys_of_stage);
  }
};

}  // namespace
}  // namespace robocache::attention_op
