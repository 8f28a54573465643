// A cache of cells in a block's shared memory, in front of the atomics in L2.
#pragma once

#include "ops/voxelize/cuda/points.h"

namespace robocache::voxelize_op {
namespace {

// Direct-mapped: the cells that points of this block fell into, with their counts. Where many blocks have points in
// few cells, as near a lidar, their atomics on a cell are serialised; so a block adds up its own points first. Two
// cells may share a slot; the second then bypasses the cache.
struct CellCache {
  static constexpr int slots = tuning::cache_slots;
  std::int32_t keys[slots];  // -1: none
  int counts[slots];

  __device__ void clear() {
    for (auto slot = static_cast<int>(threadIdx.x); slot < slots; slot += tuning::threads) {
      keys[slot] = -1;
      counts[slot] = 0;
    }
  }
  __device__ static unsigned slot_of(std::int32_t key) {
    return __umulhi(static_cast<unsigned>(key) * 0x9e3779b1u, slots);  // the upper bits of a product that mixes them
  }
  // Puts a cell into its slot, whatever was there. true: it was not there before.
  __device__ bool enter(std::int32_t key) { return atomicExch(keys + slot_of(key), key) != key; }
  // Adds to a cell's count. 0: the slot belongs to another cell, nothing was added; 1: added, and the cell is new; 2:
  // added to a cell that was there.
  __device__ int add(std::int32_t key, int count) {
    const unsigned slot = slot_of(key);
    const std::int32_t before = atomicCAS(keys + slot, -1, key);
    if (before != -1 && before != key) return 0;
    atomicAdd(counts + slot, count);
    return before == key ? 2 : 1;
  }
  __device__ void flush(std::int32_t* to) {
    for (auto slot = static_cast<int>(threadIdx.x); slot < slots; slot += tuning::threads) {
      if (keys[slot] >= 0) atomicAdd(to + keys[slot], counts[slot]);
    }
  }
};

}  // namespace
}  // namespace robocache::voxelize_op
