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

// The size of a block is a power of two, so that it also fits a slightly larger frame; pages that are not touched cost nothing.
// malloc keeps smaller blocks itself. Large blocks ask for huge pages: the first touch of 64 MiB takes 9 ms instead of 40 on a
// virtual machine.
constexpr std::size_t least_block = std::size_t{1} << 16;
constexpr std::size_t huge_page = std::size_t{1} << 21;
constexpr std::size_t most_kept = std::size_t{64} << 20;  // bytes in all: voxel_downsample of a million points takes 48

std::size_t rounded(std::size_t bytes) { return bytes < least_block ? bytes + 1 : std::bit_ceil(bytes); }  // never none

struct Block {
  void* data = nullptr;
  std::size_t bytes = 0;
};
// Blocks for the next calls. The thread that set `busy` owns the other members. Meanwhile other threads use malloc alone,
// and so does a child that was forked then.
struct SpareBlocks {
  std::atomic<bool> busy{false};
  std::size_t bytes = 0;
  std::size_t next = 0;  // to be replaced
  std::array<Block, 16> blocks{};
};
constinit SpareBlocks spare;

}  // namespace

void* take_scratch(std::size_t bytes) {
  bytes = rounded(bytes);
  if (bytes >= least_block && !spare.busy.exchange(true, std::memory_order_acquire)) {
    void* data = nullptr;
    const auto block = std::ranges::find(spare.blocks, bytes, &Block::bytes);
    if (block != spare.blocks.end()) {
      data = std::exchange(*block, {}).data;
      spare.bytes -= bytes;
    }
    spare.busy.store(false, std::memory_order_release);
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
  if (block.bytes >= least_block && block.bytes <= most_kept && !spare.busy.exchange(true, std::memory_order_acquire)) {
    // The block that was kept longest makes room.
    do {
      std::swap(block, spare.blocks[spare.next]);
      spare.bytes += spare.blocks[spare.next].bytes - block.bytes;
      spare.next = (spare.next + 1) % spare.blocks.size();
      std::free(std::exchange(block, {}).data);
    } while (spare.bytes > most_kept);
    spare.busy.store(false, std::memory_order_release);
  }
  std::free(block.data);
}

}  // namespace robocache
