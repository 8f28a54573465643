// The producer of an sm90 backward block: TMA loads of the kept tiles, then of the streamed ones as stages become empty.
#pragma once

#include "gpu/tma.h"
#include "ops/attention/cuda/backward_sm90/layout.h"

namespace robocache::attention_op {
namespace {

// Used by one thread.
template <class L>
class Producer {
 public:
  __device__ Producer(const Sm90BackwardCall& all, const Sm90WorkTile& work, const L& layout)
      : all_(all),
        unit_(work),
        layout_(layout),
        copies_(SharedLayout::tma_copies(all.call.plan.forward.head_dim)),
        left_(work.end - work.begin),
        head_(work.of_keys ? work.head + work.begin / work.tiles : work.kv_head),
        row_(work.begin % work.tiles + work.first_tile) {}

  // Loads the kept tiles and the first streamed ones.
  __device__ void begin() {
    if (left_ <= 0) return;
    prefetch_tensor_map(map(false, true));
    prefetch_tensor_map(map(true, true));
    prefetch_tensor_map(map(false, false));
    prefetch_tensor_map(map(true, false));
    wait_on_dependent_grids();
    copy_kept(false);
    copy_streamed(false);
    copy_kept(true);
    copy_streamed(true);
    advance();
  }
  // Loads the next streamed tiles when their stage is empty. False: there are no more.
  __device__ bool copy_next() {
    if (left_ <= 0) return false;
    layout_.empty(stage_).wait(phase_ ^ 1u);
    copy_streamed(false);
    copy_streamed(true);
    advance();
    return true;
  }

 private:
  __device__ const CUtensorMap& map(bool kept, bool second) const {
    if (kept == unit_.of_keys) return second ? all_.maps.values : all_.maps.keys;
    return second ? all_.maps.d_out : all_.maps.q;
  }
  __device__ void copy(const Mbarrier& to, typename L::Tile tile, const CUtensorMap& from, int row, int head) const {
#pragma unroll 1
    for (int block = 0; block < copies_; ++block) {
      tma_load_5d(tile.base + block * L::Tile::block_bytes, from, block * 64, row, 0, head, unit_.sequence, to);
    }
  }
  __device__ void copy_kept(bool second) const {
    layout_.kept_full(second).arrive_expect_tx(unit_.active_groups() * L::tile);
    for (int group = 0; group < unit_.active_groups(); ++group) {
      copy(layout_.kept_full(second), layout_.kept(group, second), map(true, second), unit_.first + group * sm90_rows,
           unit_.of_keys ? unit_.kv_head : unit_.head);
    }
  }
  __device__ void copy_streamed(bool second) const {
    const Mbarrier full = layout_.full(stage_, second);
    const bool statistics = unit_.of_keys && !second;
    full.arrive_expect_tx(L::tile + (statistics ? 2 * sm90_rows * 4 : 0));
    copy(full, layout_.stream(stage_, second), map(false, second), row_ * sm90_rows, head_);
    if (!statistics) return;
    const std::int64_t place =
        ((static_cast<std::int64_t>(unit_.sequence) * all_.call.plan.forward.heads + head_) * all_.query_tiles + row_) *
        sm90_rows;
    bulk_load(layout_.lse(stage_), all_.lse + place, sm90_rows * 4, full);
    bulk_load(layout_.delta(stage_), all_.call.scratch.delta + place, sm90_rows * 4, full);
  }
  __device__ void advance() {
    --left_;
    if (++stage_ == L::stages) {
      stage_ = 0;
      phase_ ^= 1u;
    }
    if (++row_ == unit_.first_tile + unit_.tiles) {
      row_ = unit_.first_tile;
      ++head_;
    }
  }

  const Sm90BackwardCall& all_;
  const Sm90WorkTile& unit_;
  const L& layout_;
  int copies_, left_;
  int head_, row_;  // of the next tile: row_ counts tiles
  int stage_ = 0;
  unsigned phase_ = 0;
};

}  // namespace
}  // namespace robocache::attention_op
