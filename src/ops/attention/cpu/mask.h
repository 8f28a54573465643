// Which keys of a block each row of a tile sees, as bits.
#pragma once

#include "ops/attention/cpu/product.h"
#include "ops/attention/cpu/tile.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

// A block of keys, and the keys of it that each row of a tile sees: bit j is key first + j.
struct Block {
  std::int64_t first, count;
  std::uint64_t rows[most_rows];
  std::uint64_t seen;  // by any row
  bool whole;          // every row sees all of 64 keys

  std::int64_t columns() const { return divide_up(count, lanes) * lanes; }
};

HWY_INLINE std::uint64_t ones(std::int64_t count) {
  return count >= block_keys ? all_keys : (std::uint64_t{1} << count) - 1;
}

// Bit j: ranks[j] <= rank. For a whole block.
HWY_INLINE std::uint64_t bits_up_to(const std::int32_t* ranks, std::int32_t rank) {
  const hn::ScalableTag<std::int32_t> d;
  std::uint64_t bits = 0;
  for (std::int64_t j = 0; j < block_keys; j += lanes) {
    std::uint64_t part = 0;
    hn::StoreMaskBits(d, hn::Not(hn::Gt(hn::LoadU(d, ranks + j), hn::Set(d, rank))),
                      reinterpret_cast<std::uint8_t*>(&part));
    bits |= part << j;
  }
  return bits;
}

// Bit j: byte j is not 0.
HWY_INLINE std::uint64_t bits_of_bytes(const std::uint8_t* bytes, std::int64_t step, std::int64_t count) {
  std::uint8_t here[block_keys] = {};
  if (step == 1) {
    std::memcpy(here, bytes, static_cast<std::size_t>(count));
  } else {
    for (std::int64_t j = 0; j < count; ++j) here[j] = bytes[j * step];
  }
  const hn::CappedTag<std::uint8_t, block_keys> d;
  constexpr std::int64_t step_bytes = hn::MaxLanes(hn::CappedTag<std::uint8_t, block_keys>());
  std::uint64_t bits = 0;
  for (std::int64_t j = 0; j < block_keys; j += step_bytes) {
    std::uint64_t part = 0;
    hn::StoreMaskBits(d, hn::Ne(hn::LoadU(d, here + j), hn::Zero(d)), reinterpret_cast<std::uint8_t*>(&part));
    bits |= part << j;
  }
  return bits;
}

void find_visible_keys(const Tile& tile, std::int64_t first, std::int64_t count, Block& block) {
  const Plan& plan = tile.plan;
  const Sequence& sequence = tile.sequence;
  block.first = first;
  block.count = count;
  const bool ranked = plan.key_ranks.data != nullptr;
  const bool in_all_windows = first >= keys_in_window(plan, sequence, tile.query(tile.count - 1)).first &&
                              first + count <= keys_in_window(plan, sequence, tile.query(0)).end;
  if (in_all_windows && !ranked && plan.key_valid.data == nullptr && plan.dense == nullptr) {
    for (std::int64_t r = 0; r < tile.count; ++r) block.rows[r] = ones(count);
    block.seen = ones(count);
    block.whole = count == block_keys;
    return;
  }
  std::uint64_t valid = ones(count);
  if (plan.key_valid.data != nullptr) {
    const std::int64_t place =
        sequence.number * plan.key_valid.batch + (sequence.first_key + first) * plan.key_valid.row;
    valid = bits_of_bytes(static_cast<const std::uint8_t*>(plan.key_valid.data) + place, plan.key_valid.row, count);
  }
  std::int32_t ranks[block_keys] = {};
  for (std::int64_t j = 0; ranked && j < count; ++j) {
    ranks[j] = rank_at(plan.key_ranks, sequence.number, sequence.first_key + first + j);
  }
  block.seen = 0;
  std::uint64_t common = all_keys;
  std::int64_t before = -1;
  std::uint64_t of_query = 0;
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const std::int64_t i = tile.query(r);
    if (i != before) {
      const KeyRange range = keys_in_window(plan, sequence, i);
      of_query = valid & ones(clamp_to(range.end - first, 0, count)) & ~ones(clamp_to(range.first - first, 0, count));
      if (ranked) of_query &= bits_up_to(ranks, rank_at(plan.query_ranks, sequence.number, sequence.first_query + i));
      before = i;
    }
    std::uint64_t bits = of_query;
    if (plan.dense != nullptr) {
      bits &= bits_of_bytes(plan.dense + sequence.number * plan.dense_batch + tile.head(r) * plan.dense_head +
                                i * plan.dense_query + first * plan.dense_key,
                            plan.dense_key, count);
    }
    block.rows[r] = bits;
    block.seen |= bits;
    common &= bits;
  }
  block.whole = common == all_keys;
}

HWY_INLINE Vector where_seen(std::uint64_t bits, std::int64_t j, Vector x, Vector otherwise) {
  const Floats d;
  const std::uint64_t part = bits >> j;
  return hn::IfThenElse(hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&part)), x, otherwise);
}

}  // namespace
}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
