#include "core/scratch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace robocache {
namespace {

// Blocks are powers of two, so that the next call's fit where its frame is a little larger; what is not touched costs
// nothing. Smaller ones malloc keeps itself. Large ones ask for huge pages: 64 MiB are first touched in 9 ms instead of 40
// on a virtual machine.
constexpr std::size_t least_block = std::size_t{1} << 16;
constexpr std::size_t huge_page = std::size_t{1} << 21;
constexpr std::size_t most_kept = std::size_t{64} << 20;  // bytes in all: voxel_downsample of a million points takes 48

std::size_t rounded(std::size_t bytes) { return bytes < least_block ? bytes + 1 : std::bit_ceil(bytes); }  // never none

struct Block {
  void* data = nullptr;
  std::size_t bytes = 0;
};
// Whoever has set `busy` owns the rest; others do without, and so does a child whose parent was here when it forked.
struct Kept {
  std::atomic<bool> busy{false};
  std::size_t bytes = 0;
  std::size_t next = 0;  // to be replaced
  std::array<Block, 16> blocks{};
};
constinit Kept kept;

}  // namespace

void* take_scratch(std::size_t bytes) {
  bytes = rounded(bytes);
  if (bytes >= least_block && !kept.busy.exchange(true, std::memory_order_acquire)) {
    void* data = nullptr;
    const auto block = std::ranges::find(kept.blocks, bytes, &Block::bytes);
    if (block != kept.blocks.end()) {
      data = std::exchange(*block, {}).data;
      kept.bytes -= bytes;
    }
    kept.busy.store(false, std::memory_order_release);
    if (data != nullptr) return data;
  }
  void* const data = bytes >= huge_page ? std::aligned_alloc(huge_page, bytes) : std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (bytes >= huge_page) madvise(data, bytes, MADV_HUGEPAGE);
#endif
  return data;
}

void give_scratch(void* data, std::size_t bytes) noexcept {
  Block block{data, rounded(bytes)};
  if (block.bytes >= least_block && block.bytes <= most_kept && !kept.busy.exchange(true, std::memory_order_acquire)) {
    // What was kept longest makes room.
    do {
      std::swap(block, kept.blocks[kept.next]);
      kept.bytes += kept.blocks[kept.next].bytes - block.bytes;
      kept.next = (kept.next + 1) % kept.blocks.size();
      std::free(std::exchange(block, {}).data);
    } while (kept.bytes > most_kept);
    kept.busy.store(false, std::memory_order_release);
  }
  std::free(block.data);
}

}  // namespace robocache
