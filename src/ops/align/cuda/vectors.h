// How a block moves values: vectors of up to 16 bytes from one or two samples, blended where there are two, to the output.
#pragma once

#include "ops/align/cuda/tuning.h"
#include "ops/align/evaluate.h"

namespace robocache::align_op {
namespace {

__device__ inline int thread_of_block() { return static_cast<int>(threadIdx.x); }

// ---- vectors -------------------------------------------------------------------------------------------------------

// A vector in registers: 32-bit words, or one narrower word.
template <int Bytes>
struct alignas(Bytes) Vector {
  using Word =
      std::conditional_t<Bytes >= 4, std::uint32_t, std::conditional_t<Bytes == 2, std::uint16_t, std::uint8_t>>;
  static constexpr int count = Bytes >= 4 ? Bytes / 4 : 1;
  Word words[count];
};
template <int Bytes>
__device__ Vector<Bytes> load(const char* from) {
  using Word =
      std::conditional_t<Bytes == 16, uint4, std::conditional_t<Bytes == 8, uint2, typename Vector<Bytes>::Word>>;
  return bit_copy<Vector<Bytes>>(__ldg(reinterpret_cast<const Word*>(from)));
}
template <int Bytes>
__device__ void save(char* to, const Vector<Bytes>& vector) {
  using Word =
      std::conditional_t<Bytes == 16, uint4, std::conditional_t<Bytes == 8, uint2, typename Vector<Bytes>::Word>>;
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<Word*>(to) = bit_copy<Word>(vector);
}

template <class C>
__device__ C mix(C a, C b, C w) {
  return fused(w, b, fused(-w, a, a));
}

// Two 16-bit values to float and back. The way back is one instruction; it rounds to nearest even as narrow() does,
// but its NaN is not the canonical one.
template <class T>
__device__ float2 widen_pair(std::uint32_t word) {
  return {widen(T{static_cast<std::uint16_t>(word)}), widen(T{static_cast<std::uint16_t>(word >> 16)})};
}
template <class T>
__device__ std::uint32_t narrow_pair(float2 pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return bit_copy<std::uint32_t>(__floats2bfloat162_rn(pair.x, pair.y));
  } else {
    return bit_copy<std::uint32_t>(__floats2half2_rn(pair.x, pair.y));
  }
}

template <class T, int Bytes>
__device__ __noinline__ Vector<Bytes> with_canonical_nan(Vector<Bytes> vector) {
#pragma unroll
  for (std::uint32_t& word : vector.words) {
    if constexpr (std::is_same_v<T, float>) {
      word = __float_as_uint(canonical(__uint_as_float(word)));
    } else {
      const float2 z = widen_pair<T>(word);
      word = narrow<T>(z.x).bits | static_cast<std::uint32_t>(narrow<T>(z.y).bits) << 16;
    }
  }
  return vector;
}

// The sum of all results is NaN if one of them is. Only then, which is rare, each result is made canonical.
template <class T, int Bytes>
__device__ Vector<Bytes> blend(const Vector<Bytes>& a, const Vector<Bytes>& b, compute_t<T> w) {
  Vector<Bytes> out = a;
  constexpr int count = Vector<Bytes>::count;
  if constexpr (std::is_same_v<T, double>) {
#pragma unroll
    for (int k = 0; k + 1 < count; k += 2) {
      const double x = __hiloint2double(static_cast<int>(a.words[k + 1]), static_cast<int>(a.words[k]));
      const double y = __hiloint2double(static_cast<int>(b.words[k + 1]), static_cast<int>(b.words[k]));
      const double z = canonical(mix(x, y, w));
      out.words[k] = static_cast<std::uint32_t>(__double2loint(z));
      out.words[k + 1] = static_cast<std::uint32_t>(__double2hiint(z));
    }
  } else if constexpr (std::is_same_v<T, float> && Bytes >= 4) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const float z = mix(__uint_as_float(a.words[k]), __uint_as_float(b.words[k]), w);
      out.words[k] = __float_as_uint(z);
      sum += z;
    }
    if (is_nan(sum)) out = with_canonical_nan<T>(out);
  } else if constexpr (is_float_type<T> && Bytes >= 4) {
    using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
    Pair sum{};
#pragma unroll
    for (int k = 0; k < count; ++k) {
      const float2 x = widen_pair<T>(a.words[k]);
      const float2 y = widen_pair<T>(b.words[k]);
      const float2 z{mix(x.x, y.x, w), mix(x.y, y.y, w)};
      out.words[k] = narrow_pair<T>(z);
      const auto pair = bit_copy<Pair>(out.words[k]);
      sum = k == 0 ? pair : __hadd2(sum, pair);
    }
    if (!__hbeq2(sum, sum)) out = with_canonical_nan<T>(out);
  } else if constexpr (is_float_type<T> && Bytes == 2) {
    out.words[0] = narrow<T>(mix(widen(T{a.words[0]}), widen(T{b.words[0]}), w)).bits;
  }
  return out;
}

// Where the value of a target comes from and goes to, at the tile's first channel: out = lerp(a, b, w).
template <class T>
struct alignas(16) Tap {
  const char* a;
  const char* b;
  char* out;
  compute_t<T> w;  // weight of b; 0: copy a; < 0: no sample, one of the two below
};
inline constexpr int fill_zero = -1;
inline constexpr int fill_nan = -2;

// The value where there is no sample: 0 or NaN.
template <class T, int Bytes>
__device__ __noinline__ Vector<Bytes> filled(bool with_nan) {
  constexpr unsigned low = std::is_same_v<T, float> ? 0x7fc00000u
                           : std::is_same_v<T, f16> ? 0x7e007e00u
                                                    : (std::is_same_v<T, bf16> ? 0x7fc07fc0u : 0);
  constexpr unsigned high = std::is_same_v<T, double> ? 0x7ff80000u : low;
  Vector<Bytes> vector;
#pragma unroll
  for (int k = 0; k < Vector<Bytes>::count; ++k) {
    vector.words[k] = static_cast<typename Vector<Bytes>::Word>(with_nan ? (k % 2 == 0 ? low : high) : 0);
  }
  return vector;
}

// Block-stride loop over the (target, vector) pairs of a tile: a thread takes every tuning::threads-th pair, without
// a division for each step.
struct BlockStride {
  int target, vector;
  int target_step, vector_step;
  __device__ BlockStride(int vectors, std::uint32_t magic)
      : target(static_cast<int>(threadIdx.x * magic >> 16)),
        vector(thread_of_block() - target * vectors),
        target_step(static_cast<int>(tuning::threads * magic >> 16)),
        vector_step(tuning::threads - target_step * vectors) {}
  __device__ void step(int vectors) {
    target += target_step;
    vector += vector_step;
    if (vector >= vectors) {
      vector -= vectors;
      ++target;
    }
  }
};
constexpr std::uint32_t magic_of(int vectors) {
  return (65535u + static_cast<std::uint32_t>(vectors)) / static_cast<std::uint32_t>(vectors);
}

// Vectors that a thread loads before it blends and stores the first of them.
template <class T, int Bytes>
class VectorBatch {
 public:
  __device__ void begin(const Tap<T>* taps, int targets, int vectors, BlockStride& walk) {
#pragma unroll
    for (int k = 0; k < n; ++k, walk.step(vectors)) {
      const Tap<T> tap =
          taps[min(walk.target, targets - 1)];  // past the end: load the last one again, and store nothing
      const int here = walk.vector * Bytes;
      w_[k] = tap.w;
      out_[k] = walk.target < targets ? tap.out + here : nullptr;
      if (tap.w >= 0) a_[k] = load<Bytes>(tap.a + here);
      if (is_float_type<T> && tap.w > 0) b_[k] = load<Bytes>(tap.b + here);
    }
  }
  __device__ void end() {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      if (w_[k] > 0) {
        a_[k] = blend<T, Bytes>(a_[k], b_[k], w_[k]);
      } else if (w_[k] < 0) {
        a_[k] = filled<T, Bytes>(w_[k] == fill_nan);
      }
      if (out_[k] != nullptr) save(out_[k], a_[k]);
    }
  }

 private:
  static constexpr int n = tuning::vectors_in_flight;
  Vector<Bytes> a_[n];
  Vector<Bytes> b_[n];
  compute_t<T> w_[n];
  char* out_[n];
};

// Two batches in turn: one is being loaded while the other is blended and stored.
template <class T, int Bytes>
__device__ void move_values(const Tap<T>* taps, int targets, int vectors, std::uint32_t magic) {
  BlockStride walk(vectors, magic);
  VectorBatch<T, Bytes> even;
  VectorBatch<T, Bytes> odd;
  even.begin(taps, targets, vectors, walk);
  for (;;) {
    const bool another = walk.target < targets;
    if (another) odd.begin(taps, targets, vectors, walk);
    even.end();
    if (!another) return;
    const bool a_third = walk.target < targets;
    if (a_third) even.begin(taps, targets, vectors, walk);
    odd.end();
    if (!a_third) return;
  }
}

template <class T>
__device__ void move_values(const Tap<T>* taps, int vector_bytes, int targets, int vectors, std::uint32_t magic) {
  constexpr int size = sizeof(T);
  if (vector_bytes == 16) {
    move_values<T, 16>(taps, targets, vectors, magic);
  } else if (size < 8 && vector_bytes == 8) {
    move_values<T, (size < 8 ? 8 : size)>(taps, targets, vectors, magic);
  } else if (size < 4 && vector_bytes == 4) {
    move_values<T, (size < 4 ? 4 : size)>(taps, targets, vectors, magic);
  } else {
    move_values<T, size>(taps, targets, vectors, magic);
  }
}

}  // namespace
}  // namespace robocache::align_op
