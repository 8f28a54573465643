// The gradient of align on the host. Each sum goes over the targets in their order, so that the bits do not depend on
// the number of threads.
#include <algorithm>
#include <vector>

#include "core/interrupt.h"
#include "core/parallel.h"
#include "ops/align/arrival_index.h"
#include "ops/align/gradient.h"

namespace robocache::align_op {
namespace {

// Adds the gradients of channels [begin, end) of output row b to the samples of its row. Sample k, channel d is
// sums[k * (end - begin) + d - begin].
template <class T>
void add_row(const Plan& plan, const StreamPlan& s, std::int64_t b, std::int64_t begin, std::int64_t end,
             double* sums) {
  const Row row = row_of(s, b);
  const StampsAt at{&s.times, row.times_offset};
  const HostArrivals arrival_at(plan, s, row);
  const Samples<T> samples(s, row);
  const Range* const ranges = plan.ranges.data() + s.first_range;
  const std::int64_t width = end - begin;
  for (std::int64_t t = 0; t < plan.targets.count; ++t) {
    const Target here = target_at(s, plan.targets, at, arrival_at, row.count, b, t);
    for (std::int32_t r = 0; r < s.range_count; ++r) {
      const Range& range = ranges[r];
      const std::int64_t from = std::max<std::int64_t>(range.begin, begin);
      const std::int64_t to = std::min<std::int64_t>(range.end, end);
      if (from >= to) continue;
      const Verdict verdict = judge(s, samples, range, at, arrival_at, row.count, here);
      Resolved<T> resolved;
      resolve(resolved, s, range, row, here, verdict, b, t);
      const Weights weights = weights_of(resolved, range.method);
      for (int k = 0; weights.known && k < Weights::most; ++k) {
        if (weights.samples[k] < 0) continue;
        double* const sum = sums + weights.samples[k] * width;
        for (std::int64_t d = from; d < to; ++d) {
          sum[d - begin] +=
              weights.factors[k] * output_gradient<T>(s, resolved.out + channel_offset(s.out_channels, d));
        }
      }
      for (std::int64_t d = from; !weights.known && d < to; ++d) {
        spread(s, range, resolved, d, [&](std::int64_t k, double g) { sums[k * width + d - begin] += g; });
      }
    }
  }
}

// Runs piece(k) for k < count.
template <class Piece>
void run_pieces(bool threads, std::int64_t count, const Piece& piece) {
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) piece(k);
  };
  if (threads) {
    parallel_for(count, 1, run);
  } else {
    run(0, count);
  }
}

template <class T>
void run_stream(const Plan& plan, const StreamPlan& s, T* gradient, bool threads) {
  const std::int64_t samples = s.offsets.data != nullptr ? s.samples : s.segments * s.samples;
  const std::int64_t channels = s.channel_count;
  const auto narrow_to = [&](T* to, const std::vector<double>& sums) {
    for (std::size_t k = 0; k < sums.size(); ++k) to[k] = narrow<T>(sums[k]);
  };
  if (s.batched && s.rows.data == nullptr) {  // each output row has samples of its own
    std::fill_n(gradient, samples * channels, narrow<T>(0.0));
    run_pieces(threads, plan.targets.rows, [&](std::int64_t b) {
      const Row row = row_of(s, b);
      std::vector<double> sums(static_cast<std::size_t>(row.count * channels));
      add_row<T>(plan, s, b, 0, channels, sums.data());
      narrow_to(gradient + first_sample(s, row) * channels, sums);
    });
    return;
  }
  constexpr std::int64_t width = 16;  // channels of a piece
  run_pieces(threads, (channels + width - 1) / width, [&](std::int64_t piece) {
    const std::int64_t begin = piece * width;
    const std::int64_t end = std::min(channels, begin + width);
    std::vector<double> sums(static_cast<std::size_t>(samples * (end - begin)));
    for (std::int64_t b = 0; b < plan.targets.rows; ++b) {
      check_interrupt();
      add_row<T>(plan, s, b, begin, end, sums.data() + first_sample(s, row_of(s, b)) * (end - begin));
    }
    for (std::int64_t n = 0; n < samples; ++n) {
      for (std::int64_t d = begin; d < end; ++d) {
        gradient[n * channels + d] = narrow<T>(sums[static_cast<std::size_t>(n * (end - begin) + d - begin)]);
      }
    }
  });
}

}  // namespace

void run_host_backward(const Plan& plan, std::span<void* const> gradients, bool threads) {
  for (std::size_t k = 0; k < plan.streams.size(); ++k) {
    with_type(plan.streams[k].dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (is_float_type<T>) run_stream<T>(plan, plan.streams[k], static_cast<T*>(gradients[k]), threads);
    });
  }
}

}  // namespace robocache::align_op
