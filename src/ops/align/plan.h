// The plan that planner.h makes and a backend runs: every default filled in, every shape checked. Plain data, so that
// it can be a kernel argument.
#pragma once

#include <robocache/align.h>

#include "core/fault.h"
#include "core/integers.h"
#include "core/limits.h"

namespace robocache::align_op {

inline constexpr int max_streams = 64;
inline constexpr int max_ranges = 128;      // of one stream
inline constexpr int max_channel_rank = 4;  // trailing dimensions that cannot be merged into one stride

// Stamps in memory: row r, sample k is data[r * row_stride + k * stride].
struct Stamps {
  const void* data = nullptr;
  std::int64_t row_stride = 0, stride = 0;
  DType dtype = DType::i64;  // i64, f64 or f32
};

// From the flattened channel to an offset in elements: the trailing shape, neighbouring dimensions merged where the
// strides allow. rank <= 1 with stride 1 is the fast case.
struct Channels {
  std::int32_t rank = 0;
  std::int32_t size[max_channel_rank] = {};
  std::int64_t stride[max_channel_rank] = {};
};

struct Range {
  std::int32_t begin = 0, end = 0;
  Method method = Method::linear;
};

struct StreamPlan {
  const void* values = nullptr;
  std::int64_t row_stride = 0, sample_stride = 0;  // of values, in elements; packed rows have row_stride 0
  Channels channels;
  std::int64_t channel_count = 0;

  Stamps times, arrivals;  // arrivals.data is nullptr where they are the times
  Integers lengths, offsets, rows;
  std::int64_t samples = 0;   // S, or N where packed
  std::int64_t segments = 0;  // rows in memory: 1 where unbatched (all output rows then read row 0)
  bool batched = false;       // the stream itself has rows (for error sentences and for row 0 above)

  std::int64_t latency = 0, max_gap = no_max_gap;
  DType dtype = DType::f32, out_dtype = DType::f32;
  Edge edge = Edge::clamp;
  OnNan on_nan = OnNan::propagate;
  bool causal = false;
  bool as_of = false;  // only samples that had arrived by the row's decision exist
  bool bins = false;   // some range is mean, max, min or last
  std::int32_t first_range = 0, range_count = 0;
  std::uint32_t name = 0;        // intern()
  std::uint32_t as_of_name = 0;  // `name` where as_of is the stream's own, 0 where it is the call's
  Stamps decisions;  // of as_of, a time for each row, stride over rows in row_stride; data nullptr: `decision`
  std::int64_t decision = 0;

  // Outputs; nullptr where not wanted. Element (b, t, d) of values is out[b * out_row_stride + t * out_target_stride +
  // channel offset of d]; element (b, t) of the three marks is p[b * mark_row_stride + t * mark_target_stride].
  void* out = nullptr;
  std::int64_t out_row_stride = 0, out_target_stride = 0;
  Channels out_channels;
  struct Mark {
    void* data = nullptr;
    std::int64_t row_stride = 0, target_stride = 0;
  } valid, age, index;
};

struct TargetPlan {
  Stamps times;  // used where timeline is false; row_stride 0: one list for all rows
  bool timeline = false;
  Stamps starts;  // of the timeline, stride over rows in row_stride; data nullptr: `start` for all
  std::int64_t start = 0, first = 0;
  double rate = 1;
  std::int64_t rows = 0, count = 0;  // B (1 where nothing has a batch dimension) and T
  bool batched = false;              // the target list itself is [B, T]
};

class ArrivalIndex;  // arrival_index.h

struct Plan {
  Operation operation = Operation::align;
  bool check = true;
  TargetPlan targets;
  std::span<const StreamPlan> streams;
  std::span<const Range> ranges;
  ArrivalIndex* arrivals = nullptr;  // on the host
};

// The backends. Each computes the whole plan. For reference and cpu the planner has checked the data before; cuda
// checks it on the GPU, where plan.check is set.
void run_reference(const Plan& plan);
void run_cpu(const Plan& plan);
void run_cuda(const Plan& plan, const Context& context, int device);

// The gradient: stream k's `out` is d loss / d output (read), gradients[k] the d loss / d values to write, dense.
void run_host_backward(const Plan& plan, std::span<void* const> gradients, bool threads);
void run_cuda_backward(const Plan& plan, std::span<void* const> gradients, const Context& context, int device);

// The first fault in (stream, row, sample) order, or code none.
Fault check_data(const Plan& plan);

}  // namespace robocache::align_op
