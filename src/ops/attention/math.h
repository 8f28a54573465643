// Where a sequence's queries and keys lie, and which query sees which key: for host and device.
#pragma once

#include "core/arithmetic.h"
#include "ops/attention/plan.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {

struct Sequence {
  std::int64_t number = 0;
  std::int64_t first_query = 0, queries = 0;  // places in q; first_query is 0 unless packed
  std::int64_t first_key = 0, keys = 0;       // of all segments
  std::int64_t cached = 0;                    // keys of the first segment
};

// Lengths and offsets are clamped, so that bad ones lead to no access out of bounds. check.h reports them.
ROBOCACHE_HD Sequence sequence_of(const Plan& plan, std::int64_t b) {
  Sequence s;
  s.number = b;
  s.queries = plan.queries;
  s.keys = plan.keys;
  s.cached = plan.segments[0].count;
  if (plan.is_packed()) {
    s.first_query = clamp_to(integer(plan.query_offsets, b), 0, plan.queries);
    s.queries = clamp_to(integer(plan.query_offsets, b + 1), s.first_query, plan.queries) - s.first_query;
    s.first_key = clamp_to(integer(plan.key_offsets, b), 0, plan.keys);
    s.keys = clamp_to(integer(plan.key_offsets, b + 1), s.first_key, plan.keys) - s.first_key;
    s.cached = s.keys;
  } else if (plan.lengths.data != nullptr) {
    const std::int64_t fresh = plan.append ? plan.segments[1].count : 0;
    s.cached = clamp_to(integer(plan.lengths, b), 0, plan.segments[0].count - fresh);
    s.keys = s.cached + fresh;
  }
  return s;
}

// The offset of the vector of place n, in elements.
ROBOCACHE_HD std::int64_t offset_of(const Vectors& vectors, std::int64_t b, std::int64_t h, std::int64_t n) {
  return b * vectors.batch + h * vectors.head + n * vectors.row;
}

// The segment that key j of a sequence lies in, and its place there.
struct Place {
  int segment = 0;
  std::int64_t n = 0;
};
ROBOCACHE_HD Place place_of(const Plan& plan, const Sequence& s, std::int64_t j) {
  Place place{0, s.first_key + j};
  std::int64_t count = s.cached;
  while (place.segment + 1 < plan.segment_count && j >= count) {
    j -= count;
    place = {place.segment + 1, j};
    count = plan.segments[place.segment].count;
  }
  return place;
}

// Higher ranks count as most_rank: that leaves kernels one higher number, for keys that no query sees.
inline constexpr std::int32_t most_rank = std::numeric_limits<std::int32_t>::max() - 1;
inline constexpr std::int32_t least_rank = std::numeric_limits<std::int32_t>::min();
ROBOCACHE_HD std::int32_t rank_at(const PerPlace& ranks, std::int64_t b, std::int64_t place) {
  const std::int32_t rank = static_cast<const std::int32_t*>(ranks.data)[b * ranks.batch + place * ranks.row];
  return rank < most_rank ? rank : most_rank;
}
ROBOCACHE_HD bool is_valid_key(const Plan& plan, const Sequence& s, std::int64_t j) {
  if (plan.key_valid.data == nullptr) return true;
  return static_cast<const std::uint8_t*>(
             plan.key_valid.data)[s.number * plan.key_valid.batch + (s.first_key + j) * plan.key_valid.row] != 0;
}

// The keys that query i may see by its position: [first, end), which may be empty.
struct KeyRange {
  std::int64_t first = 0, end = 0;
};
ROBOCACHE_HD KeyRange keys_in_window(const Plan& plan, const Sequence& s, std::int64_t i) {
  const std::int64_t position = i + s.keys - s.queries;
  KeyRange range;
  range.first = clamp_to(position - plan.left, 0, s.keys);
  range.end = clamp_to(position + plan.right + 1, range.first, s.keys);
  return range;
}

// Whether query i of head h sees key j, given that j is in its window.
ROBOCACHE_HD bool is_seen(const Plan& plan, const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t j) {
  if (!is_valid_key(plan, s, j)) return false;
  if (plan.key_ranks.data != nullptr &&
      rank_at(plan.key_ranks, s.number, s.first_key + j) > rank_at(plan.query_ranks, s.number, s.first_query + i)) {
    return false;
  }
  return plan.dense == nullptr ||
         plan.dense[s.number * plan.dense_batch + h * plan.dense_head + i * plan.dense_query + j * plan.dense_key] != 0;
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
