// Align: streams that were recorded each at its own rate, onto one timeline.
//
//   std::vector<robocache::Stream> streams(2);
//   streams[0] = {.values = joints, .times = joint_stamps};                              // [S, D] and [S], int64 ns
//   streams[1] = {.values = gripper, .times = gripper_stamps, .methods = {{Method::hold, 0, 1}}};
//   robocache::align(context, streams, robocache::Timeline{.start = t0, .rate = 50, .count = 100}, {}, outputs);
//
// What is computed, to the bit, is in docs/semantics.md. In short: for a target tau, i is the last sample at or before
// it and j the next distinct one; a method makes the value from them; `valid` says whether it is real, `age` how old
// sample i is, `index` which sample stands behind the value.
//
// Every call here
//   - gives the same bits on every backend and every run;
//   - works in stream order on the caller's stream, never synchronises, and can be captured in a CUDA graph;
//   - allocates no device memory (align_backward: scratch, see there);
//   - checks shapes, dtypes and devices first and throws robocache::Error before anything is written. What only the data
//     can tell (the order of times, lengths, offsets, rows) is checked on the CPU before anything is written too; on
//     CUDA it is checked inside the launch, the row's result is then unspecified but never out of bounds, and the
//     sentence is thrown by the thread's next call or by robocache::synchronize(). `check = false` leaves those checks
//     out.
// Cost: the bytes of the samples that targets touch, of the times, and of the outputs; O(log S) compares per target, on
// the host also where arrivals are in no order.
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

// What an invalid value is replaced by. clamp: the nearest sample, and 0 where no sample exists.
enum class Edge : std::uint8_t { clamp, nan, zero };
// skip: a sample that is not finite makes no valid value. Each range of `methods` is judged by itself.
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
  std::optional<OnNan> on_nan{};
  std::string_view name{};  // for error sentences; default: the position
};

// tau_k = start + rint((first + k) * 1e9 / rate), k = 0 .. count - 1: never materialised.
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
  bool causal = false;  // only what had arrived by the target: what a robot would have seen
  OnNan on_nan = OnNan::propagate;
  bool check = true;
};

// What to write, in memory of its own: inputs are read meanwhile, and nobody looks. Views that are absent are not
// computed. Shapes: batch() below, then as stated.
struct Aligned {
  TensorView values{};  // [B, T, ...] (fuse: [B, T, sum of channels]); of any dtype that can hold the stream's values
  TensorView valid{};   // bool [B, T] (fuse: [B, T, streams])
  TensorView age{};     // int64 nanoseconds, same shape: tau - t_i
  // int64, same shape, from the row's first sample: i, but the sample chosen by nearest, the one that a value is clamped
  // to, -1 where none is behind the value.
  TensorView index{};
};

// The shape that a call will fill: rows is absent where neither a stream nor the targets have a batch dimension;
// the outputs then have none either. Throws where the shapes disagree.
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
// to d loss / d stream values (dense, shaped and typed as the stream's values; every element is written). Sums run in
// double in target order, so the bits repeat. On CUDA the data are not checked again, and scratch is asked for: about
// 100 bytes per row, target and method range.
// Throws Error(type) for integer streams.
void align_backward(const Context& context, std::span<const Stream> streams, const Targets& targets,
                    const AlignOptions& options, std::span<const TensorView> output_gradients,
                    std::span<const TensorView> value_gradients);

}  // namespace robocache

#pragma GCC visibility pop
