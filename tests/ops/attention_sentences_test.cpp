// Bad input to attention gets a sentence, and nothing is written.
#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <algorithm>
#include <limits>
#include <string>

#include "ops/compare.h"
#include "sentence.h"

namespace robocache::test {
namespace {

class AttentionSentences : public testing::Test {
 protected:
  AttentionSentences() {
    call.queries = vectors(q, 4, 3);
    call.segments = {{vectors(k, 2, 5), vectors(v, 2, 5)}};
    out = vectors(written, 4, 3);
    lse = TensorView::contiguous(written + 2000, DType::f32, {2, 4, 3});
    std::fill(std::begin(written), std::end(written), 42.0F);
  }
  static TensorView vectors(const void* data, std::int64_t heads, std::int64_t places, DType dtype = DType::f32) {
    return TensorView::contiguous(data, dtype, {2, heads, places, 32});
  }
  std::string said() {
    const std::string text = sentence([&] { attention(context, call, out, lse); });
    for (const float x : written) EXPECT_EQ(x, 42.0F) << text;  // nothing was written
    return text;
  }
  std::string backward_said() {
    const std::string text = sentence([&] { attention_backward(context, call, out, lse, d_out, d_lse, gradients); });
    for (const float x : written) EXPECT_EQ(x, 42.0F) << text;
    return text;
  }
  void pack() {
    call.queries = TensorView::contiguous(q, DType::f32, {6, 4, 32});
    call.segments = {
        {TensorView::contiguous(k, DType::f32, {10, 2, 32}), TensorView::contiguous(v, DType::f32, {10, 2, 32})}};
    out = TensorView::contiguous(written, DType::f32, {6, 4, 32});
    lse = TensorView::contiguous(written + 2000, DType::f32, {4, 6});
    call.query_offsets = TensorView::contiguous(query_offsets, DType::i32, {3});
    call.key_offsets = TensorView::contiguous(key_offsets, DType::i64, {3});
  }

  float q[2 * 4 * 3 * 32] = {}, k[2 * 2 * 5 * 32] = {}, v[2 * 2 * 5 * 32] = {}, written[2100] = {};
  std::int32_t ranks[10] = {}, query_offsets[3] = {0, 3, 6};
  std::int64_t lengths[2] = {3, 5}, key_offsets[3] = {0, 5, 10};
  std::uint8_t flags[2 * 4 * 3 * 5] = {};
  Context context;
  Attention call;
  TensorView out, lse, d_out, d_lse;
  AttentionGradients gradients;
};

TEST_F(AttentionSentences, Vectors) {
  const Attention good = call;
  call.queries = {};
  EXPECT_EQ(said(), "attention: queries is missing");
  call.queries = vectors(q, 4, 3, DType::f64);
  EXPECT_EQ(said(), "attention: queries is float64; it must be bfloat16, float16 or float32");
  call.queries = TensorView::contiguous(q, DType::f32, {4, 3, 32});
  EXPECT_EQ(said(), "attention: queries has shape [4, 3, 32]; expected [batch, heads, places, head dim]");
  for (const std::int64_t wrong : {24, 36, 264}) {
    call.queries = TensorView::contiguous(q, DType::f32, {0, 4, 3, wrong});
    EXPECT_EQ(said(), "attention: the head dim is " + std::to_string(wrong) + "; it must be 32 to 256 in steps of 8");
  }
  call.queries = good.queries;
  call.queries.strides[3] = 2;
  EXPECT_EQ(said(), "attention: queries has a stride of 2 along the head dim, which is last; it must be contiguous");
  call = good;
  call.segments.clear();
  EXPECT_EQ(said(), "attention: there are 0 segments of keys and values; there must be 1 to 4");
  call.segments.assign(5, good.segments[0]);
  EXPECT_EQ(said(), "attention: there are 5 segments of keys and values; there must be 1 to 4");
  call.segments = {good.segments[0], {}};
  EXPECT_EQ(said(), "attention: segments[1].keys is missing");
  call.segments = {{good.segments[0].keys, {}}};
  EXPECT_EQ(said(), "attention: values is missing");
  call.segments = {{vectors(k, 2, 5, DType::bf16), good.segments[0].values}};
  EXPECT_EQ(said(), "attention: keys is bfloat16 and queries is float32; all must be of one dtype");
  call.segments = {{good.segments[0].keys, vectors(v, 2, 4)}};
  EXPECT_EQ(said(), "attention: values has shape [2, 2, 4, 32]; expected [2, 2, 5, 32], as keys has");
  call.segments = {{vectors(k, 3, 1), vectors(v, 3, 1)}};
  EXPECT_EQ(said(),
            "attention: queries has 4 heads and keys 3; the heads of queries must be a multiple of those of keys; "
            "if heads come after places, pass layout=\"bqhd\" in Python");
  call.segments = {good.segments[0], {vectors(k, 1, 5), vectors(v, 1, 5)}};
  EXPECT_EQ(said(), "attention: segments[1].keys has 1 heads and the keys before it 2; all segments must have as many");
  call.segments = {{TensorView::contiguous(k, DType::f32, {1, 2, 5, 32}), good.segments[0].values}};
  EXPECT_EQ(said(),
            "attention: keys has shape [1, 2, 5, 32] and queries has [2, 4, 3, 32]; the batch, which is first, must be "
            "the same");
  call.segments = {{TensorView::contiguous(k, DType::f32, {2, 2, 5, 40}), good.segments[0].values}};
  EXPECT_EQ(
      said(),
      "attention: keys has shape [2, 2, 5, 40] and queries has [2, 4, 3, 32]; the head dim, which is last, must be "
      "the same");
  call = good;
  call.scale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(said(), "attention: scale is nan; it must be finite");
}

TEST_F(AttentionSentences, Devices) {
  call.segments[0].values.device = {DeviceKind::cuda, 0};
  EXPECT_EQ(said(), "attention: values is on cuda:0 and queries on the CPU; all must be on one device");
  call.segments[0].values.device = {};
  context.backend = Backend::cuda;
  EXPECT_EQ(said(), "attention: backend cuda needs arrays on a GPU, and these are on the CPU");
}

TEST_F(AttentionSentences, SizesOnAGpu) {
  constexpr std::int64_t many = (std::int64_t{1} << 30) + 1;
  for (TensorView* view : {&call.queries, &call.segments[0].keys, &call.segments[0].values, &out, &lse}) {
    view->device = {DeviceKind::cuda, 0};
  }
  for (TensorView* view : {&call.segments[0].keys, &call.segments[0].values}) {  // one key, expanded
    view->shape[2] = many;
    view->strides[2] = 0;
  }
  context.backend = Backend::cuda;
  EXPECT_EQ(
      said(),
      "attention: there are 3 queries of 2 heads for a head of keys, and 1073741825 keys; on a GPU neither queries "
      "times heads nor keys may be more than 1073741824");
}

TEST_F(AttentionSentences, Masks) {
  const auto ints = [&](std::int64_t size) { return TensorView::contiguous(ranks, DType::i32, {size}); };
  const auto bools = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView::contiguous(flags, DType::boolean, shape);
  };
  call.mask.window_left = -2;
  EXPECT_EQ(said(), "attention: window_left is -2; it must be a number of keys, or -1 for any");
  call.mask = {.window_right = -3};
  EXPECT_EQ(said(), "attention: window_right is -3; it must be a number of keys, or -1 for any");
  call.mask = {.query_ranks = ints(3)};
  EXPECT_EQ(said(), "attention: query_ranks without key_ranks; a mask needs both");
  call.mask = {.key_ranks = ints(5)};
  EXPECT_EQ(said(), "attention: key_ranks without query_ranks; a mask needs both");
  call.mask = {.query_ranks = ints(4), .key_ranks = ints(5)};
  EXPECT_EQ(said(), "attention: query_ranks has shape [4]; expected [3] or [2, 3]");
  call.mask = {.query_ranks = ints(3), .key_ranks = TensorView::contiguous(lengths, DType::i64, {5})};
  EXPECT_EQ(said(), "attention: key_ranks is int64; it must be int32, as .astype or .to make it");
  call.mask = {.key_valid = bools({4})};
  EXPECT_EQ(said(), "attention: key_valid has shape [4]; expected [5] or [2, 5]");
  call.mask = {.key_valid = bools({1, 5})};
  EXPECT_EQ(said(), "attention: key_valid has shape [1, 5]; expected [5] or [2, 5]");
  call.mask = {.key_valid = ints(5)};
  EXPECT_EQ(said(), "attention: key_valid is int32; it must be bool or uint8, true where a key is seen");
  call.mask = {.dense = bools({5, 3})};
  EXPECT_EQ(said(), "attention: dense has shape [5, 3]; expected [3, 5] or [2 or 1, 4 or 1, 3, 5]");
  call.mask = {.dense = bools({2, 2, 3, 5})};
  EXPECT_EQ(said(), "attention: dense has shape [2, 2, 3, 5]; expected [3, 5] or [2 or 1, 4 or 1, 3, 5]");
  call.mask = {.dense = TensorView::contiguous(q, DType::f32, {3, 5})};
  EXPECT_EQ(said(), "attention: dense is float32; it must be bool or uint8, true where a key is seen");
}

TEST_F(AttentionSentences, PackedSequences) {
  call.query_offsets = TensorView::contiguous(query_offsets, DType::i32, {3});
  EXPECT_EQ(said(), "attention: query_offsets without key_offsets; packed sequences need both");
  call.query_offsets = {};
  call.key_offsets = TensorView::contiguous(key_offsets, DType::i64, {3});
  EXPECT_EQ(said(), "attention: key_offsets without query_offsets; packed sequences need both");
  call.query_offsets = TensorView::contiguous(query_offsets, DType::i32, {3});
  EXPECT_EQ(said(), "attention: queries has shape [2, 4, 3, 32]; expected [all places, heads, head dim] with offsets");
  pack();
  const Attention good = call;
  call.segments.push_back(call.segments[0]);
  EXPECT_EQ(said(), "attention: packed sequences have one segment, and these have 2");
  call = good;
  call.key_offsets.shape[0] = 2;
  EXPECT_EQ(
      said(),
      "attention: query_offsets has 3 elements and key_offsets 2; each must have one more than there are sequences");
  call = good;
  call.mask.dense = TensorView::contiguous(flags, DType::boolean, {6, 10});
  EXPECT_EQ(said(), "attention: a dense mask is for padded sequences; these are packed");
  call = good;
  call.lengths = TensorView::contiguous(lengths, DType::i64, {2});
  EXPECT_EQ(said(), "attention: lengths are for padded sequences; packed ones have offsets");
  call = good;
  query_offsets[1] = 7;
  EXPECT_EQ(said(), "attention: query_offsets[1] = 7 is outside 0..6, the number of packed queries");
  query_offsets[1] = 6;
  query_offsets[2] = 3;
  EXPECT_EQ(said(), "attention: query_offsets[2] = 3 is below query_offsets[1] = 6; offsets must not decrease");
  query_offsets[2] = 6;
  key_offsets[0] = -1;
  EXPECT_EQ(said(), "attention: key_offsets[0] = -1 is outside 0..10, the number of packed keys");
  key_offsets[0] = 9;
  EXPECT_EQ(said(), "attention: key_offsets[1] = 5 is below key_offsets[0] = 9; offsets must not decrease");
}

TEST_F(AttentionSentences, Caches) {
  call.append = call.segments[0];
  EXPECT_EQ(said(), "attention: append needs lengths: how many keys the cache has already");
  call.lengths = TensorView::contiguous(lengths, DType::i64, {1});
  EXPECT_EQ(said(), "attention: lengths has 1 elements for 2 sequences");
  call.lengths = TensorView::contiguous(lengths, DType::i64, {2});
  call.append = {vectors(written, 2, 6), vectors(written, 2, 6)};
  EXPECT_EQ(said(), "attention: append has 6 keys for a cache with room for 5");
  call.append = {vectors(written, 2, 1), vectors(written, 2, 1)};
  EXPECT_EQ(said(),
            "attention: lengths[1] = 5 is outside 0..4, the keys that the cache has room for, less those that are "
            "appended");
  call.append = {};
  lengths[0] = -1;
  EXPECT_EQ(said(),
            "attention: lengths[0] = -1 is outside 0..5, the keys that the cache has room for, less those that are "
            "appended");
  call.segments.push_back(call.segments[0]);
  EXPECT_EQ(said(),
            "attention: lengths are of one segment, and there are 2; a mask's key_valid tells which keys of several "
            "are real");
}

TEST_F(AttentionSentences, Outputs) {
  const TensorView good = out;
  out = {};
  EXPECT_EQ(said(), "attention: out is missing");
  out = vectors(written, 4, 2);
  EXPECT_EQ(said(), "attention: out has shape [2, 4, 2, 32]; expected [2, 4, 3, 32], as queries has");
  out = vectors(written, 4, 3, DType::f16);
  EXPECT_EQ(said(), "attention: out is float16 and queries is float32; all must be of one dtype");
  out = good;
  lse.dtype = DType::f64;
  EXPECT_EQ(said(), "attention: lse is float64; it must be float32");
  lse = TensorView::contiguous(written, DType::f32, {2, 4, 4});
  EXPECT_EQ(said(), "attention: lse has shape [2, 4, 4]; expected [2, 4, 3]");
  lse = TensorView::contiguous(written, DType::f32, {2, 4, 3});
  lse.strides[2] = 2;
  EXPECT_EQ(said(), "attention: lse must be contiguous");
}

TEST_F(AttentionSentences, Backward) {
  const TensorView good = lse;
  EXPECT_EQ(backward_said(), "attention_backward: d_out is missing");
  d_out = out;
  lse = {};
  EXPECT_EQ(backward_said(), "attention_backward: lse is missing; attention() gives it");
  lse = good;
  d_lse = TensorView::contiguous(written, DType::f32, {2, 4});
  EXPECT_EQ(backward_said(), "attention_backward: d_lse has shape [2, 4]; expected [2, 4, 3]");
  d_lse = {};
  gradients.queries = vectors(written, 4, 2);
  EXPECT_EQ(backward_said(),
            "attention_backward: gradients.queries has shape [2, 4, 2, 32]; expected [2, 4, 3, 32], as queries has");
  gradients.queries = {};
  gradients.segments = {call.segments[0], call.segments[0]};
  EXPECT_EQ(backward_said(), "attention_backward: gradients have 2 segments and the call 1");
  gradients.segments = {{{}, vectors(written, 2, 4)}};
  EXPECT_EQ(backward_said(),
            "attention_backward: gradients.values has shape [2, 2, 4, 32]; expected [2, 2, 5, 32], as values has");
  gradients.segments = {};
  call.lengths = TensorView::contiguous(lengths, DType::i64, {2});
  call.append = {vectors(written, 2, 1), vectors(written, 2, 1)};
  EXPECT_EQ(backward_said(), "attention_backward: a call with append has no gradient");
}

}  // namespace
}  // namespace robocache::test
