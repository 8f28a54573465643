// What the host backends share: typed vectors, zeros, and appending to a cache.
#pragma once

#include "core/element.h"
#include "ops/attention/math.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {

// Calls f(Type<T>{}) with the C++ type of queries, keys and values.
template <class F>
inline void with_vector_type(DType dtype, const F& f) {
  if (dtype == DType::bf16) return f(Type<bf16>{});
  if (dtype == DType::f16) return f(Type<f16>{});
  f(Type<float>{});
}

template <class T>
ROBOCACHE_HD T* vector_at(const Vectors& vectors, std::int64_t b, std::int64_t h, std::int64_t n) {
  return static_cast<T*>(vectors.data) + offset_of(vectors, b, h, n);
}

// The offset of query i of a sequence in lse and d_lse.
ROBOCACHE_HD std::int64_t lse_offset(const Plan& plan, const Sequence& s, std::int64_t h, std::int64_t i) {
  return s.number * plan.lse_batch + h * plan.lse_head + s.first_query + i;
}

inline void clear_vector(const Plan& plan, const Vectors& vectors, std::int64_t b, std::int64_t h, std::int64_t n) {
  const std::int64_t bytes = size_of(plan.dtype);
  std::memset(static_cast<char*>(vectors.data) + offset_of(vectors, b, h, n) * bytes, 0,
              static_cast<std::size_t>(plan.head_dim * bytes));
}

// Copies the new keys and values to the cache, behind what it holds.
template <class T>
void append(const Plan& plan) {
  const std::size_t bytes = static_cast<std::size_t>(plan.head_dim) * sizeof(T);
  for (std::int64_t b = 0; b < plan.batch; ++b) {
    const std::int64_t cached = sequence_of(plan, b).cached;
    for (std::int64_t g = 0; g < plan.kv_heads; ++g) {
      for (std::int64_t n = 0; n < plan.segments[1].count; ++n) {
        const auto copy = [&](const Vectors& from, const Vectors& to) {
          std::memcpy(vector_at<T>(to, b, g, cached + n), vector_at<T>(from, b, g, n), bytes);
        };
        copy(plan.segments[1].keys, plan.segments[0].keys);
        copy(plan.segments[1].values, plan.segments[0].values);
      }
    }
  }
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
