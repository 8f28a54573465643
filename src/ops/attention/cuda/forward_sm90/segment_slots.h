// Segmented keys: the tiles of an sm90 block when keys lie in several segments. TMA reads each segment where it is, so each
// begins with a tile of its own, and the last tile of a segment may have padded slots behind its last key.
#pragma once

#include "ops/attention/math.h"

namespace robocache::attention_op {
namespace {

// The slots of one segment. Slots number the keys of all segments, padded ones included.
template <int keys>
struct SegmentSlots {
  int segment = 0;
  int begin = 0, count = 0;  // its first slot; its keys
  int first = 0;             // the number of its first key among all keys

  __device__ explicit SegmentSlots(const Sequence& s) : count(static_cast<int>(s.cached)) {}
  __device__ int end() const { return begin + count; }
  __device__ int next_begin() const { return begin + (count + keys - 1) / keys * keys; }
  __device__ void next_segment(const Plan& plan) {
    begin = next_begin();
    first += count;
    count = static_cast<int>(plan.segments[++segment].count);
  }
  __device__ void advance_to_slot(const Plan& plan, int slot) {
    while (segment + 1 < plan.segment_count && slot >= next_begin()) next_segment(plan);
  }
};
template <int keys>
__device__ SegmentSlots<keys> segment_at_slot(const Plan& plan, const Sequence& s, int slot) {
  SegmentSlots<keys> slots(s);
  slots.advance_to_slot(plan, slot);
  return slots;
}
template <int keys>
__device__ int slot_of_key(const Plan& plan, const Sequence& s, int key) {
  SegmentSlots<keys> slots(s);
  while (slots.segment + 1 < plan.segment_count && key >= slots.first + slots.count) slots.next_segment(plan);
  return slots.begin + key - slots.first;
}
// Turns a range of keys into the range of slots from the first to the last of them.
template <int keys>
__device__ void to_slots(const Plan& plan, const Sequence& s, int& first, int& end) {
  if (first >= end) return;
  first = slot_of_key<keys>(plan, s, first);
  end = slot_of_key<keys>(plan, s, end - 1) + 1;
}

}  // namespace
}  // namespace robocache::attention_op
