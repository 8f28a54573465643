// The public calls: they check shapes and dtypes, fill in defaults, and hand a Plan to a backend.
#include <robocache/attention.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/argument_names.h"
#include "core/float_environment.h"
#include "core/speaker.h"
#include "gpu/status.h"
#include "ops/attention/check.h"
#include "ops/attention/host.h"
#include "robocache_config.h"

namespace robocache {

#if !ROBOCACHE_WITH_CUDA
void attention_op::run_cuda(const Plan&, const Context&, int) { refuse_cuda(); }
void attention_op::run_cuda_backward(const BackwardPlan&, const Context&, int) { refuse_cuda(); }
std::string attention_op::describe_cuda(const Plan&, int) { refuse_cuda(); }
#endif

using namespace attention_op;

namespace {

constexpr std::int64_t least_head_dim = 32, most_head_dim = 256, head_dim_step = 8;
// Limit of a sequence on a GPU: kernels count keys, and queries times the heads of a key head, in 32 bits, up to a tile past the end.
constexpr std::int64_t most_on_cuda = std::int64_t{1} << 30;

class Planner {
 public:
  Planner(Operation operation, const Context& context, const Attention& call) : speaker_{operation}, call_(call) {
    plan_.operation = operation;
    plan_.check = call.check;
    set_queries();
    set_keys();
    set_lengths();
    set_append();
    set_mask();
    if (!std::isfinite(call.scale)) fail(ErrorKind::value, "scale is ", call.scale, "; it must be finite");
    plan_.scale = call.scale != 0 ? call.scale : 1 / std::sqrt(static_cast<double>(plan_.head_dim));
    check_sizes();
    check_backend(speaker_, context, device());
  }

  const Plan& plan() const { return plan_; }
  Device device() const { return call_.queries.device; }

  template <class... Parts>
  [[noreturn]] void fail(ErrorKind kind, const Parts&... parts) const {
    speaker_.fail(kind, parts...);
  }

  void set_outputs(const TensorView& out, const TensorView& lse) {
    plan_.out = vectors("out", out, names_.queries, call_.queries);
    if (!lse) return;
    plan_.lse = logarithms("lse", lse);
    plan_.lse_batch = packed_ ? 0 : plan_.heads * plan_.queries;
    plan_.lse_head = plan_.queries;
  }

  // Checks an array that must have the shape and dtype of another one.
  Vectors vectors(const std::string& what, const TensorView& view, const std::string& other,
                  const TensorView& model) const {
    if (!view) fail(ErrorKind::value, what, " is missing");
    check_vectors(what, view);
    if (!std::equal(view.shape.begin(), view.shape.begin() + view.rank, model.shape.begin())) {
      fail(ErrorKind::value, what, " has shape ", shape_text(view), "; expected ", shape_text(model), ", as ", other,
           " has");
    }
    return vectors_of(view);
  }

  float* logarithms(const char* what, const TensorView& view) const {
    const std::int64_t padded[] = {plan_.batch, plan_.heads, plan_.queries};
    const std::int64_t packed[] = {plan_.heads, plan_.queries};
    const auto shape = packed_ ? std::span<const std::int64_t>(packed) : std::span<const std::int64_t>(padded);
    check_output(speaker_, what, view, DType::f32, shape, device(), names_.queries);
    return static_cast<float*>(view.data);
  }

  std::string segment_name(std::size_t k, const char* part) const {
    if (call_.segments.size() == 1) return part;
    return names_.lists ? concat(part, "[", k, "]") : concat("segments[", k, "].", part);
  }

 private:
  Vectors vectors_of(const TensorView& view) const {
    if (packed_) return {view.data, 0, view.strides[1], view.strides[0]};
    return {view.data, view.strides[0], view.strides[1], view.strides[2]};
  }

  // The checks that every array of vectors must pass.
  void check_vectors(const std::string& what, const TensorView& view) const {
    check_device(speaker_, what.c_str(), view, device(), names_.queries);
    if (view.dtype != plan_.dtype) {
      fail(ErrorKind::type, what, " is ", name_of(view.dtype), " and ", names_.queries, " is ", name_of(plan_.dtype),
           "; all must be of one dtype");
    }
    const auto last = static_cast<std::size_t>(view.rank - 1);
    if (view.rank != (packed_ ? 3 : 4)) {
      fail(ErrorKind::value, what, " has shape ", shape_text(view), "; expected ",
           packed_ ? "[all places, heads, head dim]" : "[batch, heads, places, head dim]",
           packed_ ? " with offsets" : "");
    }
    if (view.shape[last] != plan_.head_dim) {
      fail(ErrorKind::value, what, " has shape ", shape_text(view), " and ", names_.queries, " has ",
           shape_text(call_.queries), "; the head dim, which is last, must be the same");
    }
    if (view.size() > 0 && view.strides[last] != 1) {
      fail(ErrorKind::value, what, " has a stride of ", view.strides[last],
           " along the head dim, which is last; it must be contiguous");
    }
  }

  void set_queries() {
    const TensorView& q = call_.queries;
    if (!q) fail(ErrorKind::value, names_.queries, " is missing");
    if (q.dtype != DType::bf16 && q.dtype != DType::f16 && q.dtype != DType::f32) {
      fail(ErrorKind::type, names_.queries, " is ", name_of(q.dtype), "; it must be bfloat16, float16 or float32");
    }
    packed_ = static_cast<bool>(call_.query_offsets);
    if (packed_ != static_cast<bool>(call_.key_offsets)) {
      fail(ErrorKind::value, packed_ ? names_.query_offsets : names_.key_offsets, " without ",
           packed_ ? names_.key_offsets : names_.query_offsets, "; packed sequences need both");
    }
    plan_.dtype = q.dtype;
    plan_.head_dim = q.rank > 0 ? q.shape[static_cast<std::size_t>(q.rank - 1)] : 0;
    check_vectors(names_.queries, q);
    if (plan_.head_dim < least_head_dim || plan_.head_dim > most_head_dim || plan_.head_dim % head_dim_step != 0) {
      fail(ErrorKind::value, "the head dim is ", plan_.head_dim, "; it must be ", least_head_dim, " to ", most_head_dim,
           " in steps of ", head_dim_step);
    }
    plan_.query_offsets = integers(names_.query_offsets, call_.query_offsets);
    plan_.key_offsets = integers(names_.key_offsets, call_.key_offsets);
    if (packed_) {
      plan_.batch = call_.query_offsets.shape[0] - 1;
      if (plan_.batch < 0 || call_.key_offsets.shape[0] != plan_.batch + 1) {
        fail(ErrorKind::value, names_.query_offsets, " has ", call_.query_offsets.shape[0], " elements and ",
             names_.key_offsets, " ", call_.key_offsets.shape[0], "; each must have one more than there are sequences");
      }
    } else {
      plan_.batch = q.shape[0];
    }
    plan_.heads = q.shape[1];
    plan_.queries = q.shape[packed_ ? 0 : 2];
    plan_.q = vectors_of(q);
  }

  Integers integers(const char* what, const TensorView& view) const {
    check_device(speaker_, what, view, device(), names_.queries);
    return integers_of(speaker_, what, view);
  }

  void check_segment(const std::string& what, const TensorView& view, std::int64_t kv_heads) const {
    if (!view) fail(ErrorKind::value, what, " is missing");
    check_vectors(what, view);
    if (!packed_ && view.shape[0] != plan_.batch) {
      fail(ErrorKind::value, what, " has shape ", shape_text(view), " and ", names_.queries, " has ",
           shape_text(call_.queries), "; the batch, which is first, must be the same");
    }
    if (view.shape[1] != kv_heads) {
      fail(ErrorKind::value, what, " has ", view.shape[1], " heads and the keys before it ", kv_heads,
           "; all segments must have as many");
    }
  }
  Segment segment(const KeyValues& pair, const std::string& keys, const std::string& values) const {
    check_segment(keys, pair.keys, plan_.kv_heads);
    Segment segment;
    segment.keys = vectors_of(pair.keys);
    segment.values = vectors(values, pair.values, keys, pair.keys);
    segment.count = pair.keys.shape[packed_ ? 0 : 2];
    return segment;
  }

  void set_keys() {
    const std::size_t count = call_.segments.size();
    if (count < 1 || count > static_cast<std::size_t>(max_attention_segments)) {
      fail(ErrorKind::value, "there are ", count, " segments of keys and values; there must be 1 to ",
           max_attention_segments);
    }
    if (count > 1 && packed_) fail(ErrorKind::value, "packed sequences have one segment, and these have ", count);
    const TensorView& first = call_.segments[0].keys;
    if (first && first.rank > 1) plan_.kv_heads = first.shape[1];
    for (std::size_t k = 0; k < count; ++k) {
      plan_.segments[k] = segment(call_.segments[k], segment_name(k, names_.keys), segment_name(k, names_.values));
      plan_.keys += plan_.segments[k].count;
    }
    plan_.segment_count = static_cast<int>(count);
    if (plan_.kv_heads == 0 ? plan_.heads != 0 : plan_.heads % plan_.kv_heads != 0) {
      const bool heads_fit = !packed_ && first.shape[2] > 0 && call_.queries.shape[2] % first.shape[2] == 0;
      fail(ErrorKind::value, names_.queries, " has ", plan_.heads, " heads and ", names_.keys, " ", plan_.kv_heads,
           "; the heads of ", names_.queries, " must be a multiple of those of ", names_.keys,
           heads_fit ? R"(; if heads come after places, pass layout="bqhd" in Python)" : "");
    }
  }

  void set_lengths() {
    if (!call_.lengths) return;
    if (packed_) fail(ErrorKind::value, "lengths are for padded sequences; packed ones have offsets");
    if (plan_.segment_count != 1) {
      fail(ErrorKind::value, "lengths are of one segment, and there are ", plan_.segment_count,
           "; a mask's key_valid tells which keys of several are real");
    }
    plan_.lengths = integers("lengths", call_.lengths);
    if (call_.lengths.shape[0] != plan_.batch) {
      fail(ErrorKind::value, "lengths has ", call_.lengths.shape[0], " elements for ", plan_.batch, " sequences");
    }
  }

  void set_append() {
    if (!call_.append.keys && !call_.append.values) return;
    if (!call_.lengths) fail(ErrorKind::value, "append needs lengths: how many keys the cache has already");
    if (plan_.operation == Operation::attention_backward) fail(ErrorKind::value, "a call with append has no gradient");
    plan_.append = true;
    plan_.segments[1] = segment(call_.append, names_.append_keys, names_.append_values);
    plan_.segment_count = 2;
    if (plan_.segments[1].count > plan_.keys) {
      fail(ErrorKind::value, "append has ", plan_.segments[1].count, " keys for a cache with room for ", plan_.keys);
    }
  }

  // An array with shape [places] or [batch, places]; packed [all places].
  PerPlace per_place(const char* what, const TensorView& view, std::int64_t places) const {
    check_device(speaker_, what, view, device(), names_.queries);
    const bool each = !packed_ && view.rank == 2;
    if ((view.rank != 1 && !each) || view.shape[each ? 1 : 0] != places || (each && view.shape[0] != plan_.batch)) {
      const bool of_all = places != plan_.keys && view.shape[each ? 1 : 0] == plan_.keys;
      fail(ErrorKind::value, what, " has shape ", shape_text(view), "; expected [", places, "]",
           packed_ ? "" : concat(" or [", plan_.batch, ", ", places, "]"),
           of_all ? concat("; in Python mask.last_queries(", places, ") keeps only those of the queries") : "");
    }
    return {view.data, each ? view.strides[0] : 0, view.strides[each ? 1 : 0]};
  }
  PerPlace ranks(const char* what, const TensorView& view, std::int64_t places) const {
    if (view.dtype != DType::i32) {
      fail(ErrorKind::type, what, " is ", name_of(view.dtype), "; it must be int32, as .astype or .to make it");
    }
    return per_place(what, view, places);
  }
  void check_flags(const char* what, const TensorView& view) const {
    if (view.dtype == DType::boolean || view.dtype == DType::u8) return;
    fail(ErrorKind::type, what, " is ", name_of(view.dtype), "; it must be bool or uint8, true where a key is seen");
  }

  std::int64_t side(const char* what, std::int64_t keys) const {
    if (keys < -1) fail(ErrorKind::value, what, " is ", keys, "; it must be a number of keys, or -1 for any");
    return keys < 0 ? unbounded : std::min(keys, unbounded);
  }

  void set_mask() {
    const AttentionMask& mask = call_.mask;
    plan_.left = side("window_left", mask.window_left);
    plan_.right = side("window_right", mask.window_right);
    if (mask.causal) plan_.right = 0;
    if (static_cast<bool>(mask.query_ranks) != static_cast<bool>(mask.key_ranks)) {
      fail(ErrorKind::value, mask.query_ranks ? names_.query_ranks : names_.key_ranks, " without ",
           mask.query_ranks ? names_.key_ranks : names_.query_ranks, "; a mask needs both");
    }
    if (mask.query_ranks) {
      plan_.query_ranks = ranks(names_.query_ranks, mask.query_ranks, plan_.queries);
      plan_.key_ranks = ranks(names_.key_ranks, mask.key_ranks, plan_.keys);
    }
    if (mask.key_valid) {
      check_flags("key_valid", mask.key_valid);
      plan_.key_valid = per_place("key_valid", mask.key_valid, plan_.keys);
    }
    if (mask.dense) set_dense(mask.dense);
  }

  void set_dense(const TensorView& view) {
    if (packed_) fail(ErrorKind::value, "a dense mask is for padded sequences; these are packed");
    check_device(speaker_, "dense", view, device(), names_.queries);
    check_flags("dense", view);
    const auto fits = [&](std::size_t k, std::int64_t size) { return view.shape[k] == 1 || view.shape[k] == size; };
    const std::size_t query = view.rank == 4 ? 2 : 0;
    if ((view.rank != 2 && view.rank != 4) || view.shape[query] != plan_.queries ||
        view.shape[query + 1] != plan_.keys || (query > 0 && !(fits(0, plan_.batch) && fits(1, plan_.heads)))) {
      const auto or_one = [](std::int64_t size) { return size == 1 ? std::string("1") : concat(size, " or 1"); };
      const bool no_heads = view.rank == 3 && view.shape[1] == plan_.queries && view.shape[2] == plan_.keys;
      const bool of_keys = view.rank == 2 && view.shape[0] == plan_.batch && view.shape[1] == plan_.keys;
      fail(ErrorKind::value, "dense has shape ", shape_text(view), "; expected [", plan_.queries, ", ", plan_.keys,
           "] or [", or_one(plan_.batch), ", ", or_one(plan_.heads), ", ", plan_.queries, ", ", plan_.keys, "]",
           no_heads  ? "; mask[:, None] has a dimension for heads"
           : of_keys ? "; to say which keys are real, pass Mask(key_valid=mask)"
                     : "");
    }
    plan_.dense = static_cast<const std::uint8_t*>(view.data);
    if (query > 0) {
      plan_.dense_batch = view.shape[0] > 1 ? view.strides[0] : 0;
      plan_.dense_head = view.shape[1] > 1 ? view.strides[1] : 0;
    }
    plan_.dense_query = view.strides[query];
    plan_.dense_key = view.strides[query + 1];
  }

  void check_sizes() const {
    if (device().kind != DeviceKind::cuda) return;
    const std::int64_t rows = plan_.queries * plan_.group();
    if (rows <= most_on_cuda && plan_.keys <= most_on_cuda) return;
    fail(ErrorKind::value, "there are ", plan_.queries, " queries of ", plan_.group(),
         " heads for a head of keys, and ", plan_.keys,
         " keys; on a GPU neither queries times heads nor keys may be more than ", most_on_cuda);
  }

  Speaker speaker_;
  const Attention& call_;
  const AttentionNames& names_ = attention_names();
  bool packed_ = false;
  Plan plan_;
};

void check_data(const Plan& plan) {
  const DataCheck check{&plan};
  for (std::int64_t k = 0; plan.check && k < check.count(); ++k) {
    const Fault fault = check(k);
    if (fault.code != FaultCode::none) throw Error(ErrorKind::value, describe(fault));
  }
}

// Zeroes the output of queries that lie in no packed sequence.
void clear_uncovered(const Plan& plan) {
  if (!plan.is_packed()) return;
  const std::int64_t begin = clamp_to(integer(plan.query_offsets, 0), 0, plan.queries);
  const std::int64_t end = clamp_to(integer(plan.query_offsets, plan.batch), begin, plan.queries);
  for (std::int64_t h = 0; h < plan.heads; ++h) {
    for (std::int64_t k = 0; k < begin + plan.queries - end; ++k) {
      const std::int64_t n = k < begin ? k : k - begin + end;
      clear_vector(plan, plan.out, 0, h, n);
      if (plan.lse != nullptr) plan.lse[h * plan.lse_head + n] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

void attention(const Context& context, const Attention& call, const TensorView& out, const TensorView& lse) {
  Planner planner(Operation::attention, context, call);
  planner.set_outputs(out, lse);
  const Plan& plan = planner.plan();
  if (planner.device().kind == DeviceKind::cuda) return run_cuda(plan, context, planner.device().index);
  const FloatEnvironment exact;
  check_data(plan);
  clear_uncovered(plan);
  context.backend == Backend::reference ? run_reference(plan) : run_cpu(plan);
}

void attention_backward(const Context& context, const Attention& call, const TensorView& out, const TensorView& lse,
                        const TensorView& d_out, const TensorView& d_lse, const AttentionGradients& gradients) {
  Planner planner(Operation::attention_backward, context, call);
  if (!lse) planner.fail(ErrorKind::value, "lse is missing; attention() gives it");
  planner.set_outputs(out, lse);
  BackwardPlan plan;
  plan.forward = planner.plan();
  plan.d_out = planner.vectors("d_out", d_out, attention_names().queries, call.queries);
  if (d_lse) plan.d_lse = planner.logarithms("d_lse", d_lse);
  if (gradients.queries)
    plan.d_q = planner.vectors("gradients.queries", gradients.queries, attention_names().queries, call.queries);
  if (!gradients.segments.empty() && gradients.segments.size() != call.segments.size()) {
    planner.fail(ErrorKind::value, "gradients have ", gradients.segments.size(), " segments and the call ",
                 call.segments.size());
  }
  for (std::size_t k = 0; k < gradients.segments.size(); ++k) {
    const auto [keys, values] = gradients.segments[k];
    const auto vectors = [&](const char* part, const TensorView& view, const TensorView& model) {
      const std::string name = planner.segment_name(k, part);
      return view ? planner.vectors("gradients." + name, view, name, model) : Vectors{};
    };
    plan.d_keys[k] = vectors(attention_names().keys, keys, call.segments[k].keys);
    plan.d_values[k] = vectors(attention_names().values, values, call.segments[k].values);
  }
  if (planner.device().kind == DeviceKind::cuda) return run_cuda_backward(plan, context, planner.device().index);
  const FloatEnvironment exact;
  check_data(plan.forward);
  context.backend == Backend::reference ? run_reference_backward(plan) : run_cpu_backward(plan);
}

std::string describe_attention(const Context& context, const Attention& call) {
  const Planner planner(Operation::attention, context, call);
  if (planner.device().kind == DeviceKind::cuda) return describe_cuda(planner.plan(), planner.device().index);
  check_data(planner.plan());
  if (context.backend == Backend::reference) return "reference: scalar, float64; it was asked for";
  return describe_cpu(planner.plan());
}

}  // namespace robocache
