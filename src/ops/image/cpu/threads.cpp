// The cpu backend: makes the tables of taps, and gives each thread some rows of a frame.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "ops/image/cpu/cpu.h"
#include "ops/image/math.h"

namespace robocache::image_op {

ROBOCACHE_SIMD_DISPATCH(cpu_functions_in_use)

namespace {

using Spans = Scratch<Span>;

AxisTable make_spans(const Plan& plan, const Axis& axis, Spans& spans) {
  spans = make_scratch<Span>(static_cast<std::size_t>(axis.resized));
  for (std::int32_t at = 0; at < axis.resized; ++at) {
    if (plan.filter == Filter::nearest) {
      spans[static_cast<std::size_t>(at)] = {nearest_of(axis.box, axis.resized, at), 1};
    } else {
      const Taps taps = with_weight(taps_of(plan.filter, axis.box, axis.resized, at));
      spans[static_cast<std::size_t>(at)] = {taps.first, taps.count};
    }
  }
  return {.spans = spans.get()};
}

// Weights of an axis. A thread keeps those of its last call: the frames of a camera have one size, and for a frame of
// 640 x 360 pixels the weights cost a tenth of the resize.
struct Weights {
  Filter filter = Filter::nearest;
  std::int32_t box = 0, resized = 0;
  std::vector<PairSpan> pairs;
  std::vector<PairWeights> weights;

  AxisTable of(const Plan& plan, const Axis& axis) {
    if (filter != plan.filter || box != axis.box || resized != axis.resized) {
      resized = 0;  // if memory runs out below
      make(plan.filter, axis);
      filter = plan.filter;
      box = axis.box;
      resized = axis.resized;
    }
    return {.pairs = pairs.data(), .weights = weights.data()};
  }

 private:
  void make(Filter with, const Axis& axis) {
    pairs.clear();
    weights.clear();
    for (std::int32_t at = 0; at < axis.resized; ++at) {
      const Taps taps = taps_of(with, axis.box, axis.resized, at);
      const std::int32_t before = taps.first % 2;  // a pixel without weight
      const PairSpan span = {taps.first / 2, (before + taps.count + 1) / 2, static_cast<std::int32_t>(weights.size())};
      pairs.push_back(span);
      for (std::int32_t k = 0; k < 2 * span.count; k += 2) {
        PairWeights pair{};
        for (std::int32_t n = 0; n < 2; ++n) {
          const std::int32_t tap = k + n - before;
          const std::int32_t weight = tap >= 0 && tap < taps.count ? weight_of(taps, tap) : 0;
          pair.low[n] = static_cast<std::int16_t>(weight & 0xfff);
          pair.high[n] = static_cast<std::int16_t>(weight >> 12);
        }
        weights.push_back(pair);
      }
    }
  }
};
thread_local Weights row_weights, column_weights;

// Rows of the output that a thread resizes at a time: so many that few source rows are resized twice, and so few that the data
// between the two passes stays in the L2 cache and every thread has work.
std::int32_t tile_rows(const Plan& plan) {
  constexpr std::int64_t middle_bytes = 256 << 10;
  constexpr std::int64_t least = 16;
  const std::int64_t row_bytes = std::int64_t{plan.width.count} * plan.channels;
  const std::int64_t taps = most_taps(plan.filter, plan.height.box, plan.height.resized);
  const std::int64_t source_rows = std::max(middle_bytes / row_bytes, 4 * taps);
  std::int64_t rows = std::max(least, source_rows * plan.height.resized / plan.height.box);
  const std::int64_t tiles = 4 * std::int64_t{num_threads()};
  if (num_threads() > 1) rows = std::min(rows, std::max(least, plan.frames * plan.height.count / tiles));
  const std::int64_t parts = divide_up(plan.height.count, std::min<std::int64_t>(rows, plan.height.count));
  return static_cast<std::int32_t>(divide_up(plan.height.count, parts));
}

}  // namespace

void run_cpu(const Plan& plan) {
  const CpuFunctions* const functions = cpu_functions_in_use();
  if (functions == nullptr) return run_reference(plan);
  Call call{plan};
  Spans rows;
  Spans columns;
  const bool same = plan.height.box == plan.height.resized && plan.width.box == plan.width.resized;
  const bool resizes = !same && plan.source != Source::depth && plan.filter != Filter::nearest;
  if (resizes) {
    call.rows = row_weights.of(plan, plan.height);
    call.columns = column_weights.of(plan, plan.width);
  } else if (!same) {
    call.rows = make_spans(plan, plan.height, rows);
    call.columns = make_spans(plan, plan.width, columns);
  }
  constexpr std::int32_t copied_bytes = 1 << 16;
  const std::int32_t tile =
      resizes ? tile_rows(plan) : std::clamp(copied_bytes / (plan.width.count * plan.channels), 1, plan.height.count);
  const std::int64_t tiles = divide_up(plan.height.count, tile);
  parallel_for(plan.frames * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      const auto first = static_cast<std::int32_t>(k % tiles) * tile;
      const std::int32_t last = std::min(first + tile, plan.height.count);
      (resizes ? functions->resize_rows : functions->copy_rows)(call, k / tiles, first, last);
    }
  });
}

}  // namespace robocache::image_op
