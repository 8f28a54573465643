// Attention (FlashCore): softmax(scale * q k^T) v in one pass, at the shapes and under the masks that robot policies have.
//
//   robocache::Attention call;
//   call.queries = q;                                    // [B, H, Q, D]
//   call.segments = {{prefix_k, prefix_v}, {k, v}};      // [B, G, K, D] each, read where they lie, as one sequence
//   call.mask.key_valid = valid;                         // [B, K]: padding anywhere
//   robocache::attention(context, call, out);
//
// What is computed is in docs/semantics.md. In short: query i sees key j where every mask that is given lets it; a query
// that sees nothing gives zeros and a logarithm of -inf. A key that no query may see may hold anything, NaN too, and
// reaches nothing.
//
// Every call here
//   - gives the same bits on every run on one device, whatever the number of threads. Backends are not equal bit for bit:
//     each stays within the error bound of docs/semantics.md;
//   - works in stream order on the caller's stream, never synchronises, and can be captured in a CUDA graph;
//   - asks for scratch on CUDA: none forward; backward four bytes for each query and head, and of half types, where few
//     keys would leave the GPU idle, up to 16 times the gradients of keys and values in float32;
//   - checks shapes, dtypes and devices first and throws robocache::Error before anything is written. What only the data
//     can tell (lengths, offsets) is checked on the CPU before anything is written too; on CUDA inside the launch, the
//     result is then unspecified but never out of bounds, and the sentence is thrown by the next call or by
//     robocache::synchronize(). `check = false` leaves those checks out.
// Cost: the bytes of queries, keys and values, and 4 * Q * K * D operations a head; keys that causality or a window hide
// from a whole tile of queries are not read.
#pragma once

#include <robocache/context.h>
#include <robocache/error.h>
#include <robocache/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// What a query may see. All that are given must allow it. Positions count from the diagonal that ends in the last query
// and the last key of a sequence: query i stands at i + keys - queries.
struct AttentionMask {
  bool causal = false;            // no key behind the query's position
  std::int64_t window_left = -1;  // at most so many keys before it, and after it; -1: any number
  std::int64_t window_right = -1;
  TensorView query_ranks{};  // int32 [Q] or [B, Q]; packed [N]. With key_ranks: key j is seen where
  TensorView key_ranks{};    // int32 [K] or [B, K]; packed [N].   key_ranks[j] <= query_ranks[i]
  TensorView key_valid{};    // bool [K] or [B, K]; packed [N]: keys that are real
  TensorView dense{};        // bool [Q, K] or [B or 1, H or 1, Q, K]: for everything else; not with packed sequences
};

struct KeyValues {
  TensorView keys{};    // [B, G, K, D]; packed [N, G, D]
  TensorView values{};  // as keys
};

inline constexpr int max_attention_segments = 4;

// bfloat16, float16 or float32, all of one dtype; accumulated in float32 (reference: in float64). D is 32 to 256, a multiple of
// 8, contiguous; other strides are free. H is a multiple of G: query head h reads head h / (H / G) of keys and values.
struct Attention {
  TensorView queries{};               // [B, H, Q, D]; packed [N, H, D] with offsets
  std::vector<KeyValues> segments{};  // at most max_attention_segments, one after the other; their K may differ
  TensorView query_offsets{};         // [B + 1] int32 or int64: packed sequences; then there is one segment
  TensorView key_offsets{};
  TensorView lengths{};  // [B] int32 or int64: how many keys of the only segment are real; a cache with room to grow
  // [B, G, N, D]: written into the segment behind `lengths`, and seen; `lengths` stays as it is. No other array may lie in the
  // segment's memory.
  KeyValues append{};
  AttentionMask mask{};  // K is that of all segments together; with `lengths` and `append`, the room of the cache
  double scale = 0;      // 0: 1 / sqrt(D)
  bool check = true;
};

// out: as queries are shaped and typed; any strides with a contiguous D.
// lse, where given: float32 [B, H, Q], packed [H, N], contiguous: the natural logarithm of each query's sum of exponentials.
void attention(const Context& context, const Attention& call, const TensorView& out, const TensorView& lse = {});

// Each may be absent. As what they are the gradient of; keys that no query may see get 0.
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
