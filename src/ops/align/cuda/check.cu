// The kernel that checks what the tiles of the kernel before it do not. Inside the plain kernel these checks would
// need registers (62 us instead of 56 on the fourth row of the bench). It runs beside the kernel before it and reads
// each stamp once.
#include <algorithm>

#include "ops/align/cuda/check.h"
#include "ops/align/cuda/tile.h"

namespace robocache::align_op {
namespace {

// A block checks pieces of so many stamps or integers.
inline constexpr std::int64_t stamps_of_piece = std::int64_t{tuning::check_threads} * tuning::checks_per_thread;
inline constexpr std::int64_t integers_of_piece = tuning::check_threads;

// Stamps [rows, count], numbered as StampCheck and TargetCheck number them. What lies past `lengths` is padding.
struct StampArray {
  Stamps stamps;
  std::int64_t rows = 0, count = 0;
  Integers lengths;
  bool rises = true;

  ROBOCACHE_HD std::int64_t pieces() const { return divide_up(rows * count, stamps_of_piece); }
};
ROBOCACHE_HD StampArray times_of(const StreamPlan& s) {
  const bool packed = s.offsets.data != nullptr;
  return {s.times, packed ? 1 : s.segments, s.samples, s.lengths, true};
}
ROBOCACHE_HD StampArray arrivals_of(const StreamPlan& s) {
  StampArray array = times_of(s);
  array.stamps = s.arrivals;
  array.rises = false;
  if (s.arrivals.data == nullptr) array.rows = 0;
  return array;
}
ROBOCACHE_HD StampArray stamps_of(const TargetPlan& targets, bool bins) {
  if (!targets.timeline) return {targets.times, targets.batched ? targets.rows : 1, targets.count, {}, bins};
  const Stamps& starts = targets.starts;
  return {{starts.data, 0, starts.row_stride, starts.dtype}, 1, starts.data != nullptr ? targets.rows : 0, {}, false};
}
template <class Check>  // IntegerCheck or DecisionCheck
ROBOCACHE_HD std::int64_t pieces_of(const Check& check) {
  return divide_up(check.count(), integers_of_piece);
}

// Hands the pieces of several arrays to the blocks in turn, as a grid-stride loop over all arrays together.
class Pieces {
 public:
  __device__ Pieces() : next_(blockIdx.x) {}
  template <class F>
  __device__ void for_each(std::int64_t pieces, const F& f) {
    for (; next_ < pieces; next_ += gridDim.x) f(next_);
    next_ -= pieces;
  }

 private:
  std::int64_t next_;
};

// A stamp in nanoseconds; time_limit where a float32 is NaN or too large.
template <class X>
__device__ std::int64_t usable_nanoseconds(X stamp) {
  if constexpr (std::is_same_v<X, float>) {
    if (!(fabsf(stamp) <= static_cast<float>(float32_seconds_limit))) return time_limit;
  }
  return as_nanoseconds(stamp);
}

// The row of element n.
__device__ inline std::int64_t row_of_element(const StampArray& array, std::int64_t n) {
  if (array.rows == 1) return 0;
  if (n >> 32 == 0 && array.count >> 32 == 0)
    return static_cast<std::uint32_t>(n) / static_cast<std::uint32_t>(array.count);
  return n / array.count;
}

// One piece. A warp loads neighbouring stamps; a lane has several, a warp apart, and loads them all before it uses
// the first. The stamps are treated as one row: calls look(element, whether it is a usable time) for each that then
// seems wrong. The number of instructions matters: a version that followed rows and lengths stamp by stamp added 42
// us to a call on 10^7 stamps, this one adds 19.
template <class X, class Look>
__device__ __forceinline__ void check_piece(const StampArray& array, std::int64_t piece, const Look& look) {
  constexpr int lanes = 32;
  constexpr int n = tuning::checks_per_thread;
  const int lane = thread_of_block() % lanes;
  const std::int64_t first = piece * stamps_of_piece + static_cast<std::int64_t>(thread_of_block() - lane) * n + lane;
  const auto rest = static_cast<int>(min(array.rows * array.count - first, stamps_of_piece));
  const X* const data = static_cast<const X*>(array.stamps.data);
  const std::int64_t stride = array.stamps.stride;
  const bool together = array.rows == 1 || array.stamps.row_stride == array.count * stride;
  const auto at = [&](std::int64_t element) {
    if (together) return __ldg(data + element * stride);
    const std::int64_t row = row_of_element(array, element);
    return __ldg(data + row * array.stamps.row_stride + (element - row * array.count) * stride);
  };
  X stamps[n];
#pragma unroll
  for (int j = 0; j < n; ++j) stamps[j] = X(0);
  X before_first = X(0);
  if (lane == 0 && first > 0 && rest > 0) before_first = at(first - 1);
  if (together) {
    const X* here = data + first * stride;
#pragma unroll
    for (int j = 0; j < n; ++j, here += lanes * stride) {
      if (j * lanes < rest) stamps[j] = __ldg(here);
    }
  } else {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      if (j * lanes < rest) stamps[j] = at(first + j * lanes);
    }
  }
  constexpr auto usable_span = static_cast<std::uint64_t>(2 * (time_limit - 1));
  unsigned falls = 0;
  unsigned unusable = 0;
  std::int64_t earlier = first == 0 ? 1 - time_limit : usable_nanoseconds(before_first);
#pragma unroll
  for (int j = 0; j < n; ++j) {
    const std::int64_t here = usable_nanoseconds(stamps[j]);
    // Lane 0 follows the last lane of the step before.
    const std::int64_t given = j > 0 && lane == lanes - 1 ? earlier : here;
    std::int64_t before = __shfl_sync(~0u, given, (lane + lanes - 1) % lanes);
    if (j == 0 && lane == 0) before = earlier;
    if (here < before) falls |= 1u << j;
    if (static_cast<std::uint64_t>(here) + static_cast<std::uint64_t>(time_limit - 1) > usable_span)
      unusable |= 1u << j;
    earlier = here;
  }
  const unsigned there = rest >= (n - 1) * lanes + 1 ? (1u << n) - 1 : (1u << (max(rest, 0) + lanes - 1) / lanes) - 1;
  for (unsigned suspects = (unusable | (array.rises ? falls : 0)) & there; suspects != 0; suspects &= suspects - 1) {
    const int j = __ffs(static_cast<int>(suspects)) - 1;
    look(first + j * lanes, (unusable >> j & 1u) == 0);
  }
}

// Whether a segment of a packed stream begins at sample k: there stamps may decrease.
__device__ __noinline__ bool begins_segment(const void* offsets, bool wide, std::int64_t stride, std::int64_t segments,
                                            std::int64_t samples, std::int64_t k) {
  const Integers list{offsets, stride, wide};
  const auto at = [&](std::int64_t segment) { return integer(list, segment); };
  const std::int64_t segment = segment_of(at, segments, samples, k);
  return segment >= 0 && segment < segments && at(segment) == k;
}
__device__ inline bool may_fall(const StreamPlan& s, std::int64_t k) {
  return s.offsets.data != nullptr &&
         begins_segment(s.offsets.data, s.offsets.wide, s.offsets.stride, s.segments, s.samples, k);
}

template <class Check>
__device__ __noinline__ void check_element(Check check, std::int64_t n, FaultBox* box) {
  const Fault fault = check(n);
  if (fault.code != FaultCode::none) report(box, fault);
}

// A block's pieces of an array. falls(n): whether the stamps may decrease at element n.
template <class Check, class Falls>
__device__ __forceinline__ void check_array(const StampArray array, Pieces& pieces, const Check check,
                                            const Falls& falls, FaultBox* box) {
  const auto look = [&](std::int64_t n, bool usable) {
    const std::int64_t row = row_of_element(array, n);
    const std::int64_t k = n - row * array.count;
    if (usable && (k == 0 || falls(n))) return;
    if (array.lengths.data != nullptr && k >= integer(array.lengths, row)) return;
    check_element(check, n, box);
  };
  pieces.for_each(array.pieces(), [&](std::int64_t piece) {
    if (array.stamps.dtype == DType::i64) {
      check_piece<std::int64_t>(array, piece, look);
    } else if (array.stamps.dtype == DType::f64) {
      check_piece<double>(array, piece, look);
    } else {
      check_piece<float>(array, piece, look);
    }
  });
}

// A block's pieces of a check that looks at each element by itself.
template <class Check>
__device__ void check_few(const Check& check, Pieces& pieces, FaultBox* box) {
  pieces.for_each(pieces_of(check), [&](std::int64_t piece) {
    const std::int64_t n = piece * integers_of_piece + thread_of_block();
    if (n < check.count()) check_element(check, n, box);
  });
}

__global__ void __launch_bounds__(tuning::check_threads)
    align_check_kernel(const __grid_constant__ CheckLaunch launch) {
  if (!launch.follows) wait_on_dependent_grids();
  launch_dependent_grids();  // the kernel after this one reads nothing before its own wait
  Pieces pieces;
#pragma unroll 1
  for (int k = 0; k < 2 * launch.streams; ++k) {
    const StreamPlan& s = launch.plans[k / 2];
    check_array(
        k % 2 == 0 ? times_of(s) : arrivals_of(s), pieces, StampCheck{launch.operation, &s},
        [&](std::int64_t n) { return may_fall(s, n); }, launch.box);
  }
  if (launch.check_targets) {
    check_array(
        stamps_of(launch.targets, launch.targets_must_rise), pieces,
        TargetCheck{launch.operation, &launch.targets, launch.targets_must_rise}, [](std::int64_t) { return false; },
        launch.box);
  }
#pragma unroll 1
  for (int k = 0; k < launch.streams; ++k) {
    check_few(IntegerCheck{launch.operation, &launch.plans[k], launch.targets.rows}, pieces, launch.box);
    check_few(DecisionCheck{launch.operation, &launch.plans[k], launch.targets.rows}, pieces, launch.box);
  }
  wait_on_dependent_grids();  // so that this kernel ends after the one before it
}

}  // namespace

bool launch_checks(const CheckLaunch& launch, int device, cudaStream_t stream) {
  std::int64_t pieces = launch.check_targets ? stamps_of(launch.targets, launch.targets_must_rise).pieces() : 0;
  for (int k = 0; k < launch.streams; ++k) {
    const StreamPlan& s = launch.plans[k];
    pieces += times_of(s).pieces() + arrivals_of(s).pieces() +
              pieces_of(IntegerCheck{launch.operation, &s, launch.targets.rows}) +
              pieces_of(DecisionCheck{launch.operation, &s, launch.targets.rows});
  }
  if (pieces == 0) return false;
  CheckLaunch argument = launch;
  cuda_launch(reinterpret_cast<const void*>(&align_check_kernel), std::min<std::int64_t>(pieces, tuning::most_checks),
              tuning::check_threads, 0, &argument, device, stream, name_of(launch.operation));
  return true;
}

}  // namespace robocache::align_op
