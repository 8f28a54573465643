// Align: streams that were recorded each at its own rate, onto one timeline.
//
// ```cpp
// using robocache::Array, robocache::DType, robocache::Method;
// const Array joints = Array::zeros(DType::f32, {500, 7}), joint_stamps = Array::zeros(DType::i64, {500});
// const Array gripper = Array::zeros(DType::u8, {100}), gripper_stamps = Array::zeros(DType::i64, {100});
// const std::vector<robocache::Stream> streams = {
//     {.values = joints.view(), .times = joint_stamps.view()},
//     {.values = gripper.view(), .times = gripper_stamps.view(), .methods = {{Method::hold, 0, 1}}}};
//
// const Array positions = Array::zeros(DType::f32, {50, 7}), opening = Array::zeros(DType::u8, {50});
// const std::vector<robocache::Aligned> outputs = {{.values = positions.view()}, {.values = opening.view()}};
// robocache::align({}, streams, robocache::Timeline{.start = 0, .rate = 50, .count = 50}, {}, outputs);
// ```
//
// docs/semantics.md says what is computed, to the bit. In short: for a target tau, i is the last sample at or before it and j
// the next sample with a later time. A method makes the value from them. `valid` says whether the value is real, `age` how old
// sample i is, `index` which sample the value comes from. `causal` and `as_of` leave out samples that had not arrived.
//
// Errors. Shapes, dtypes and devices are checked first: robocache::Error is thrown before anything is written. Some mistakes
// can only be found by reading the data: times that decrease; lengths, offsets and rows out of range. The CPU backends read
// the data before they write. On CUDA the kernel finds the mistake: the result of that row is unspecified, no memory outside
// the arrays is touched, and the error is thrown by the same thread's next call on that device or by
// robocache::synchronize(). `check = false` turns these checks off; the data must then be valid.
//
// Determinism. Every backend and every run gives the same bits, whatever the number of threads.
// CUDA. Work goes to the caller's stream, in order. A call waits for nothing and can be captured in a CUDA graph. Two
// calls allocate device memory: `as_of` with arrivals needs 8 bytes for every 64 samples of a stream and 8 for each row, and
// align_backward needs about 100 bytes for each row, target and method range.
// Threads. Any number of threads may call at the same time, with outputs that do not overlap.
// Limits. 1 to 64 streams; 128 method ranges and 2^31 - 1 channels in a stream; trailing dimensions that fold into at most 4
// strides. Times, targets and timelines lie within 2^62 ns (146 years) of 0, latencies within 2^61 ns. A timeline spans less
// than 73 years. On CUDA, and for gradients, a row has at most 2^31 - 1 samples, and so have all packed rows together.
// Memory. The bytes of an array are aligned for its dtype; more is not needed. An output must not overlap an input or another
// output.
// Cost. The bytes of the samples that targets touch, of the times, and of the outputs. Each target takes O(log S) compares; on
// the host, and with `as_of` on CUDA, also where arrivals are in no order.
#pragma once

#include <robocache/context.h>
#include <robocache/error.h>
#include <robocache/tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

enum class Method : std::uint8_t {
  linear,
  hold,           // the last sample at or before the target; never a later one, except before the first
  nearest,        // the closer one; the earlier on a tie
  slerp,          // groups of 4 channels: unit quaternions, normalised also where they are held or clamped
  angle,          // radians, along the shorter arc
  angle_degrees,  // degrees, along the shorter arc
  cubic,          // Hermite, tangents exact on parabolas, limited where stamps nearly coincide
  mean,           // over the samples in (previous target, target]
  max,
  min,
  last,
};

// The time of a decision: a sample exists for a row only if it had arrived by then, whatever the target is. Every method works
// on the samples that exist. The last of them is held for later targets. AsOf{} sets no decision: every sample exists. With a
// timeline whose steps lie around its start, the start is the decision: AsOf{.time = line.start, .times = line.starts}.
inline constexpr std::int64_t no_as_of = std::numeric_limits<std::int64_t>::max();
struct AsOf {
  std::int64_t time = no_as_of;  // nanoseconds; used where `times` is absent
  TensorView times{};            // [B], dtypes as a stream's times: one for each row of the call
};

// What replaces an invalid value. clamp: the nearest sample, and 0 where there is no sample.
enum class Edge : std::uint8_t { clamp, nan, zero };
// skip: a value that is made from a sample that is not finite is not valid; bins (mean to last) leave such samples out. Each
// range of `methods` is judged by itself.
enum class OnNan : std::uint8_t { propagate, skip };
inline constexpr std::int64_t no_max_gap = std::numeric_limits<std::int64_t>::max();

struct MethodRange {
  Method method = Method::linear;
  std::int64_t begin = 0, end = 0;  // channels [begin, end) of the flattened trailing shape
};

struct Stream {
  TensorView values{};    // [S, ...]; batched [B, S, ...]; packed [N, ...] with offsets. Any strides.
  TensorView times{};     // [S]; [B, S]; [N]. int64 nanoseconds, or float64 or float32 seconds; must not decrease.
  TensorView arrivals{};  // like times: when each sample reached the robot. Default: the times, before latency.
  TensorView lengths{};   // [B] int32 or int64: how many of the S samples of a padded row are real
  TensorView offsets{};   // [B + 1] int32 or int64: packed segments
  TensorView rows{};      // [R] int32 or int64: output row r reads row (or segment) rows[r]; default: row r
  std::vector<MethodRange> methods{};  // cover all channels once. Empty: linear for floats, hold for integers and bool.
  std::int64_t latency = 0;            // nanoseconds, subtracted from times; may be negative (a clock offset)
  std::int64_t max_gap = no_max_gap;   // nanoseconds
  std::optional<Edge> edge{};          // default: the call's
  std::optional<bool> causal{};
  std::optional<AsOf> as_of{};  // not together with causal
  std::optional<OnNan> on_nan{};
  std::string_view name{};  // for error sentences; default: the position
};

// tau_k = start + rint((first + k) * 1e9 / rate), k = 0 .. count - 1. The times are never stored.
struct Timeline {
  std::int64_t start = 0;  // nanoseconds; used where `starts` is absent
  TensorView starts{};     // [B], dtypes as times: a start for each row
  double rate = 0;         // hertz
  std::int64_t count = 0;
  std::int64_t first = 0;  // negative: steps before `start`
};

struct Targets {
  TensorView times{};  // [T] for all rows, or [B, T]; dtypes as times. Any order, but for bins they must not decrease.
  std::optional<Timeline> timeline;

  Targets(const TensorView& list) : times(list) {}
  Targets(const Timeline& line) : timeline(line) {}
};

struct AlignOptions {
  Edge edge = Edge::clamp;
  bool causal = false;  // only what had arrived by the target: what a robot that looks at every target sees
  AsOf as_of{};         // only what had arrived by the decision: what a robot that looks back at the targets knows
  OnNan on_nan = OnNan::propagate;
  bool check = true;
};

// Where to write. What has no view is not computed. Shapes: batch() below says the first dimensions; then as stated.
struct Aligned {
  TensorView values{};  // [B, T, ...] (fuse: [B, T, sum of channels]); of any dtype that can hold the stream's values
  TensorView valid{};   // bool [B, T] (fuse: [B, T, streams])
  TensorView age{};     // int64 nanoseconds, same shape: tau - t_i
  // int64, same shape, counted from the row's first sample: i. For nearest, the sample that it chose; for a clamped value,
  // the sample that it was clamped to; -1 where the value comes from no sample.
  TensorView index{};
};

// The shape of a call's outputs. `rows` is absent where neither a stream nor the targets have a batch dimension; the outputs
// then have none either. `operation`, "align", "fuse" or "resample", begins the sentence that is thrown where shapes disagree.
struct Batch {
  std::optional<std::int64_t> rows;
  std::int64_t targets = 0;
};
Batch batch(std::string_view operation, std::span<const Stream> streams, const Targets& targets);

// One output per stream; 1 to 64 streams. One launch per value dtype.
void align(const Context& context, std::span<const Stream> streams, const Targets& targets, const AlignOptions& options,
           std::span<const Aligned> outputs);

// All streams side by side in one tensor: channels of stream k follow those of stream k - 1.
void fuse(const Context& context, std::span<const Stream> streams, const Targets& targets, const AlignOptions& options,
          const Aligned& output);

// One stream.
void resample(const Context& context, const Stream& stream, const Targets& targets, const AlignOptions& options,
              const Aligned& output);

// The gradient of align: from d loss / d output values (one view per stream, shaped and typed as that output's values)
// to d loss / d stream values (dense, shaped and typed as the stream's values; every element is written). Sums are made in
// double, in the order of the targets. On CUDA the data are not checked again. Throws Error(type) for integer streams.
void align_backward(const Context& context, std::span<const Stream> streams, const Targets& targets,
                    const AlignOptions& options, std::span<const TensorView> output_gradients,
                    std::span<const TensorView> value_gradients);

}  // namespace robocache

#pragma GCC visibility pop
