// Attention (FlashCore): softmax(scale * q k^T) v in one pass, at the shapes and under the masks that robot policies have.
//
// ```cpp
// using robocache::Array, robocache::DType;
// const Array queries = Array::zeros(DType::f32, {1, 8, 50, 64}), out = Array::zeros(DType::f32, {1, 8, 50, 64});
// const Array prefix_k = Array::zeros(DType::f32, {1, 1, 816, 64}), prefix_v = Array::zeros(DType::f32, {1, 1, 816, 64});
// const Array k = Array::zeros(DType::f32, {1, 1, 50, 64}), v = Array::zeros(DType::f32, {1, 1, 50, 64});
// const Array valid = Array::zeros(DType::boolean, {1, 866});  // true where a key is real: padding may be anywhere
//
// robocache::Attention call{.queries = queries.view()};
// call.segments = {{prefix_k.view(), prefix_v.view()}, {k.view(), v.view()}};  // read as one sequence
// call.mask.key_valid = valid.view();
// robocache::attention({}, call, out.view());
// ```
//
// docs/semantics.md says what is computed. In short: query i sees key j where every mask that is given allows it. A query that
// sees no key gives zeros, and a logarithm of -inf. A key that no query may see may hold anything, also NaN: it changes
// nothing.
//
// Errors. Shapes, dtypes and devices are checked first: robocache::Error is thrown before anything is written. Lengths and
// offsets out of range can only be found by reading the data. The CPU backends read them before they write. On CUDA the kernel
// finds the mistake: the result is unspecified, no memory outside the arrays is touched, and the error is thrown by the same
// thread's next call on that device or by robocache::synchronize(). `check = false` turns these checks off; the data must then
// be valid.
//
// Determinism. A call gives the same bits on every run on one device, whatever the number of threads. Backends, and GPUs of
// different kinds, do not give each other's bits: all stay within the error bound of docs/semantics.md. On CUDA, which kernel
// runs also depends on strides, and on whether arrays begin at multiples of 16 bytes.
// CUDA. Work goes to the caller's stream, in order. A call waits for nothing and can be captured in a CUDA graph. Forward needs
// no scratch. Backward needs four bytes for each query and head; for half types where few keys would leave the GPU idle, also
// up to 16 times the gradients of keys and values in float32.
// Threads. Any number of threads may call at the same time, with outputs that do not overlap.
// Limits. Head dims of 32 to 256 in steps of 8; 1 to 4 segments. On CUDA a sequence has at most 2^30 keys, and at most 2^30
// queries times the heads that share a head of keys.
// Memory. The bytes of an array are aligned for its dtype. On CUDA half types are fastest where arrays, and their strides but
// that of the head dim, are multiples of 16 bytes.
// Cost. The bytes of queries, keys and values, and 4 * Q * K * D operations a head. Keys that causality or a window hides from
// a whole tile of queries are not read.
#pragma once

#include <robocache/context.h>
#include <robocache/error.h>
#include <robocache/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// What a query may see. Every mask that is given must allow it. The last query stands at the last key of its sequence, so
// query i stands at key i + keys - queries.
struct AttentionMask {
  bool causal = false;             // no key after the query's position
  std::int64_t window_left = -1;   // at most so many keys before its position; -1: any number
  std::int64_t window_right = -1;  // at most so many keys after it
  TensorView query_ranks{};        // int32 [Q] or [B, Q]; packed [N]. With key_ranks: key j is seen where
  TensorView key_ranks{};          // int32 [K] or [B, K]; packed [N].   key_ranks[j] <= query_ranks[i]
  TensorView key_valid{};          // bool [K] or [B, K]; packed [N]: keys that are real
  TensorView dense{};              // bool [Q, K] or [B or 1, H or 1, Q, K]: any other mask; not with packed sequences
};

struct KeyValues {
  TensorView keys{};    // [B, G, K, D]; packed [N, G, D]
  TensorView values{};  // as keys
};

inline constexpr int max_attention_segments = 4;

// bfloat16, float16 or float32, all of one dtype; sums are made in float32 (reference: in float64). D is contiguous; other
// strides are free. H is a multiple of G: query head h reads head h / (H / G) of keys and values.
struct Attention {
  TensorView queries{};               // [B, H, Q, D]; packed [N, H, D] with offsets
  std::vector<KeyValues> segments{};  // at most max_attention_segments, one after the other; their K may differ
  TensorView query_offsets{};         // [B + 1] int32 or int64: packed sequences; then there is one segment
  TensorView key_offsets{};
  TensorView lengths{};  // [B] int32 or int64: how many keys of the only segment are real; a cache with room to grow
  // [B, G, N, D]: written into the segment from `lengths` on, and seen by this call. `lengths` stays as it is. No other array
  // may lie in the segment's memory.
  KeyValues append{};
  AttentionMask mask{};  // its K is that of all segments together; with `lengths`, the room that the segment has
  double scale = 0;      // 0: 1 / sqrt(D)
  bool check = true;
};

// out: as queries are shaped and typed; any strides with a contiguous D.
// lse, where given: float32 [B, H, Q], packed [H, N], contiguous: the natural logarithm of each query's sum of exponentials.
void attention(const Context& context, const Attention& call, const TensorView& out, const TensorView& lse = {});

// Each has the shape and dtype of what it is the gradient of, and may be absent. Keys that no query may see get 0.
struct AttentionGradients {
  TensorView queries{};
  std::vector<KeyValues> segments{};  // empty, or one for each segment of the call
};

// out and lse are what attention() gave; d_lse, where given, is shaped as lse. Calls with `append` have no gradient.
void attention_backward(const Context& context, const Attention& call, const TensorView& out, const TensorView& lse,
                        const TensorView& d_out, const TensorView& d_lse, const AttentionGradients& gradients);

// Which kernel a call takes on this machine, and why: one line.
std::string describe_attention(const Context& context, const Attention& call);

}  // namespace robocache

#pragma GCC visibility pop
