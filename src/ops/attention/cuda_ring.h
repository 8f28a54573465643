// A ring of stages in shared memory, which one warp fills and others use.
#pragma once

#include "ops/attention/cuda_tiles.h"

namespace robocache::attention_op {
namespace {

// Tiles of keys and of values in shared memory, and who waits for which of them.
template <int D, int keys>
struct Ring {
  using Stage = StageTile<D, keys>;
  static constexpr int tile_bytes = Stage::warp_bytes / 2;
  std::uint32_t tiles, arrivals;
  int stages;

  __device__ Stage tile(int stage, bool values) const { return {tiles + (2 * stage + values) * tile_bytes}; }
  __device__ Arrivals full(int stage, bool values) const { return {arrivals + (2 * stage + values) * 8}; }
  __device__ Arrivals empty(int stage, bool values) const {
    return {arrivals + (2 * (tuning::most_stages + stage) + values) * 8};
  }
  __device__ Arrivals queries() const { return {arrivals + 4 * tuning::most_stages * 8}; }
  __device__ void set_up(int readers) const {
    queries().set_up();
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (const bool values : {false, true}) {
        full(stage, values).set_up();
        empty(stage, values).set_up(readers);
      }
    }
    before_engine();
  }
};
// A place in it, and how often it has been used.
struct Turn {
  int stage = 0;
  unsigned parity = 0;

  __device__ void forward(int steps, int stages) {
    stage += steps;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1u;
    }
  }
};

}  // namespace
}  // namespace robocache::attention_op
