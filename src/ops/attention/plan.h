// What api.cpp hands to a backend: every default is filled in and every shape is checked. It is plain data, so that it can be a
// kernel's argument.
#pragma once

#include <robocache/attention.h>

#include <limits>
#include <string>

#include "core/fault.h"
#include "core/integers.h"

namespace robocache::attention_op {

inline constexpr std::int64_t unbounded = std::int64_t{1} << 60;  // of a window

// Vectors of head_dim elements. That of sequence b, head h, place n begins at data + b * batch + h * head + n * row; strides
// count elements. Packed sequences have no batch stride: n counts the places of all of them.
struct Vectors {
  void* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;
};

struct Segment {
  Vectors keys, values;
  std::int64_t count = 0;  // with lengths: the capacity of the cache
};

// Ranks (int32) or flags (bool) of each place; data is nullptr where the call has none.
struct PerPlace {
  const void* data = nullptr;
  std::int64_t batch = 0, row = 0;
};

struct Plan {
  Operation operation = Operation::attention;
  DType dtype = DType::f32;
  bool check = true;
  std::int64_t batch = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t queries = 0;  // of a sequence; packed: of all
  std::int64_t keys = 0;     // of all segments; with lengths the capacity of the cache; packed: of all sequences
  double scale = 1;

  Vectors q, out;
  float* lse = nullptr;                      // may be absent forward
  std::int64_t lse_batch = 0, lse_head = 0;  // strides; that along queries is 1
  // With append, segment 0 is the cache and segment 1 are the new keys and values: they are read there, so nothing waits for the
  // cache to be written.
  Segment segments[max_attention_segments];
  int segment_count = 0;
  bool append = false;  // also write segment 1 to the cache

  Integers query_offsets, key_offsets, lengths;

  // Query i of n sees key j of m where -left <= j - (i + m - n) <= right.
  std::int64_t left = unbounded, right = unbounded;
  PerPlace query_ranks, key_ranks, key_valid;
  const std::uint8_t* dense = nullptr;
  std::int64_t dense_batch = 0, dense_head = 0, dense_query = 0, dense_key = 0;  // strides

  constexpr bool is_packed() const { return query_offsets.data != nullptr; }
  constexpr std::int64_t arrays() const { return is_packed() ? 1 : batch; }              // along the batch strides
  constexpr std::int64_t group() const { return kv_heads == 0 ? 0 : heads / kv_heads; }  // query heads of a key head
};

struct BackwardPlan {
  Plan forward;  // its out and lse are the forward pass's results
  Vectors d_out;
  const float* d_lse = nullptr;  // strides of lse; may be absent
  Vectors d_q;                   // data is nullptr: not wanted
  Vectors d_keys[max_attention_segments], d_values[max_attention_segments];
};

// The backends. For reference and cpu, api.cpp has checked the data; cuda checks it inside its launch, where plan.check is set.
void run_reference(const Plan& plan);
void run_cpu(const Plan& plan);
void run_cuda(const Plan& plan, const Context& context, int device);
void run_reference_backward(const BackwardPlan& plan);
void run_cpu_backward(const BackwardPlan& plan);
void run_cuda_backward(const BackwardPlan& plan, const Context& context, int device);
std::string describe_cpu(const Plan& plan);
std::string describe_cuda(const Plan& plan, int device);

}  // namespace robocache::attention_op
