// The cpu backend: cuts a call into tasks and runs them on the threads.
#include <algorithm>
#include <atomic>

#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "core/text.h"
#include "ops/attention/cpu/cpu.h"
#include "ops/attention/host.h"

namespace robocache::attention_op {

ROBOCACHE_SIMD_DISPATCH(cpu_functions_in_use)

namespace {

constexpr std::int64_t enough_tasks = 32;         // enough for many threads
constexpr std::int64_t least_split = 4;           // blocks of keys of a split: fewer do not pay for the merge
constexpr std::int64_t worth_a_thread = 1 << 18;  // multiplications that pay for a thread

Tiling tiling_of(const Plan& plan) {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < plan.batch; ++b) {
    const Sequence sequence = sequence_of(plan, b);
    queries = std::max(queries, sequence.queries);
    keys = std::max(keys, sequence.keys);
  }
  Tiling tiling;
  const std::int64_t rows = queries * plan.group();
  tiling.tiles = divide_up(rows, most_rows);
  if (rows > 0) tiling.rows = divide_up(divide_up(rows, tiling.tiles), row_step) * row_step;
  tiling.key_blocks = divide_up(keys, block_keys);
  const std::int64_t tasks = tiling.tasks(plan);
  if (tasks > 0 && tasks < enough_tasks) {
    const std::int64_t splits = std::min(divide_up(enough_tasks, tasks), divide_up(tiling.key_blocks, least_split));
    if (splits > 1) {
      tiling.split_keys = divide_up(tiling.key_blocks, splits) * block_keys;
      tiling.splits = divide_up(keys, tiling.split_keys);
    }
  }
  return tiling;
}

// Calls f(begin, end, scratch) for all tasks. work: multiplications of a task. Threads take a few tasks at a time, because there may
// be hardly more tasks than threads, and with a causal mask they differ in length.
template <class F>
void over_tasks(const Plan& plan, std::int64_t count, std::int64_t work, const F& f) {
  const std::int64_t step = divide_up(worth_a_thread, std::max<std::int64_t>(work, 1));
  std::atomic<std::int64_t> next{0};
  parallel_for(std::min<std::int64_t>(num_threads(), divide_up(count, step)), 1, [&](std::int64_t, std::int64_t) {
    const auto scratch = make_scratch<float>(static_cast<std::size_t>(scratch_floats(plan)));
    try {
      for (std::int64_t begin = next.fetch_add(step); begin < count; begin = next.fetch_add(step)) {
        check_interrupt();
        f(begin, std::min(begin + step, count), scratch.get());
      }
    } catch (...) {
      next = count;  // stops the other threads, too
      throw;
    }
  });
}

// Zeroes a gradient: places that no sequence has, and keys behind a cache's length, keep these zeros.
void clear(const Plan& plan, const Vectors& vectors, std::int64_t heads, std::int64_t places) {
  if (vectors.data == nullptr) return;
  for (std::int64_t b = 0; b < plan.arrays(); ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t n = 0; n < places; ++n) clear_vector(plan, vectors, b, h, n);
    }
  }
}

}  // namespace

void run_cpu(const Plan& plan) {
  const CpuFunctions* const code = cpu_functions_in_use();
  if (code == nullptr) return run_reference(plan);
  if (plan.append) with_vector_type(plan.dtype, [&](auto type) { append<typename decltype(type)::type>(plan); });
  const Tiling tiling = tiling_of(plan);
  const std::int64_t tasks = tiling.tasks(plan);
  const bool splits = tiling.splits > 1;
  const auto partials =
      make_scratch<float>(splits ? static_cast<std::size_t>(tasks * tiling.rows * partial_row(plan)) : 0);
  const std::int64_t keys = splits ? tiling.split_keys : tiling.key_blocks * block_keys;
  over_tasks(plan, tasks, 2 * tiling.rows * keys * plan.head_dim,
             [&](std::int64_t begin, std::int64_t end, float* scratch) {
               code->attend(plan, tiling, begin, end, scratch, splits ? partials.get() : nullptr);
             });
  if (!splits) return;
  over_tasks(plan, tasks / tiling.splits, tiling.splits * tiling.rows * plan.head_dim,
             [&](std::int64_t begin, std::int64_t end, float* scratch) {
               code->merge(plan, tiling, begin, end, scratch, partials.get());
             });
}

void run_cpu_backward(const BackwardPlan& plan) {
  const CpuFunctions* const code = cpu_functions_in_use();
  if (code == nullptr) return run_reference_backward(plan);
  const Plan& forward = plan.forward;
  Tiling tiling = tiling_of(forward);
  tiling.splits = 1;
  const std::int64_t product = tiling.rows * block_keys * forward.head_dim;
  if (plan.d_q.data != nullptr) {
    if (forward.is_packed()) clear(forward, plan.d_q, forward.heads, forward.queries);
    over_tasks(forward, tiling.tasks(forward), 3 * tiling.key_blocks * product,
               [&](std::int64_t begin, std::int64_t end, float* scratch) {
                 code->differentiate_queries(plan, tiling, begin, end, scratch);
               });
  }
  bool wanted = false;
  for (int k = 0; k < forward.segment_count; ++k) {
    wanted = wanted || plan.d_keys[k].data != nullptr || plan.d_values[k].data != nullptr;
    if (!forward.is_packed() && forward.lengths.data == nullptr) continue;
    clear(forward, plan.d_keys[k], forward.kv_heads, forward.segments[k].count);
    clear(forward, plan.d_values[k], forward.kv_heads, forward.segments[k].count);
  }
  if (!wanted) return;
  over_tasks(forward, forward.batch * forward.kv_heads * tiling.key_blocks, 4 * tiling.tiles * product,
             [&](std::int64_t begin, std::int64_t end, float* scratch) {
               code->differentiate_keys(plan, tiling, begin, end, scratch);
             });
}

std::string describe_cpu(const Plan& plan) {
  if (cpu_functions_in_use() == nullptr) return "cpu: the reference code, because no SIMD target is in use";
  const Tiling tiling = tiling_of(plan);
  std::string text = concat("cpu: ", simd_target(), ", ", plan.batch * plan.kv_heads, " key heads x ", tiling.tiles,
                            " tiles of ", tiling.rows, " rows");
  if (tiling.splits > 1) {
    text += concat(" x ", tiling.splits, " splits of ", tiling.split_keys,
                   " keys: so few tiles would leave many threads idle, however many there are here");
  }
  return text;
}

}  // namespace robocache::attention_op
