// The reference backend, which tests compare the others with: one query after the other, in float64.
#include <limits>
#include <vector>

#include "core/interrupt.h"
#include "ops/attention/host.h"

namespace robocache::attention_op {
namespace {

constexpr double nothing_seen = -std::numeric_limits<double>::infinity();

template <class T>
double dot(const T* a, const T* b, std::int64_t size) {
  double sum = 0;
  for (std::int64_t d = 0; d < size; ++d) sum += static_cast<double>(widen(a[d])) * static_cast<double>(widen(b[d]));
  return sum;
}

// sum += factor * x
template <class T>
void add_scaled(double factor, const T* x, double* sum, std::int64_t size) {
  for (std::int64_t d = 0; d < size; ++d) sum[d] += factor * static_cast<double>(widen(x[d]));
}

template <class T>
void store(const double* x, T* to, std::int64_t size) {
  for (std::int64_t d = 0; d < size; ++d) to[d] = narrow<T>(x[d]);
}

// One query of one head.
struct Query {
  const Plan& plan;
  Sequence sequence;
  std::int64_t g, h, i;  // key head, query head, query

  std::int64_t place() const { return sequence.first_query + i; }
  std::int64_t in_lse() const { return lse_offset(plan, sequence, h, i); }

  // Calls f(j, its place) for each key j that the query sees.
  template <class F>
  void over_keys(const F& f) const {
    const KeyRange range = keys_in_window(plan, sequence, i);
    for (std::int64_t j = range.first; j < range.end; ++j) {
      if (is_seen(plan, sequence, h, i, j)) f(j, place_of(plan, sequence, j));
    }
  }
};

template <class F>
void over_queries(const Plan& plan, const F& f) {
  for (std::int64_t b = 0; b < plan.batch; ++b) {
    const Sequence sequence = sequence_of(plan, b);
    for (std::int64_t g = 0; g < plan.kv_heads; ++g) {
      for (std::int64_t h = g * plan.group(); h < (g + 1) * plan.group(); ++h) {
        for (std::int64_t i = 0; i < sequence.queries; ++i) {
          check_interrupt();
          f(Query{plan, sequence, g, h, i});
        }
      }
    }
  }
}

template <class T>
void attend(const Plan& plan) {
  const auto size = static_cast<std::size_t>(plan.head_dim);
  std::vector<double> scores(static_cast<std::size_t>(plan.keys));
  std::vector<double> sum(size);
  over_queries(plan, [&](const Query& query) {
    const std::int64_t b = query.sequence.number;
    const T* const q = vector_at<T>(plan.q, b, query.h, query.place());
    double largest = nothing_seen;
    query.over_keys([&](std::int64_t j, Place place) {
      const T* const k = vector_at<T>(plan.segments[place.segment].keys, b, query.g, place.n);
      const double score = plan.scale * dot(q, k, plan.head_dim);
      scores[static_cast<std::size_t>(j)] = score;
      if (!(score <= largest)) largest = score;
    });
    sum.assign(size, 0);
    double weights = 0;
    query.over_keys([&](std::int64_t j, Place place) {
      if (largest == nothing_seen) return;
      const double weight = std::exp(scores[static_cast<std::size_t>(j)] - largest);
      weights += weight;
      add_scaled(weight, vector_at<T>(plan.segments[place.segment].values, b, query.g, place.n), sum.data(),
                 plan.head_dim);
    });
    for (double& x : sum) x = largest == nothing_seen ? 0 : x / weights;
    store(sum.data(), vector_at<T>(plan.out, b, query.h, query.place()), plan.head_dim);
    if (plan.lse != nullptr) plan.lse[query.in_lse()] = static_cast<float>(largest + std::log(weights));
  });
}

// Gradients of one array, summed in float64 until write() stores them.
template <class T>
class Sums {
 public:
  Sums(const Vectors& to, const Plan& plan, std::int64_t heads, std::int64_t places)
      : to_(to),
        batch_(plan.arrays()),
        heads_(heads),
        places_(places),
        size_(plan.head_dim),
        data_(to.data == nullptr ? 0 : static_cast<std::size_t>(batch_ * heads * places * size_)) {}

  void add(double factor, const T* x, std::int64_t b, std::int64_t h, std::int64_t n) {
    if (to_.data != nullptr) add_scaled(factor, x, at(b, h, n), size_);
  }
  void write() {
    for (std::int64_t b = 0; b < batch_ && to_.data != nullptr; ++b) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t n = 0; n < places_; ++n) store(at(b, h, n), vector_at<T>(to_, b, h, n), size_);
      }
    }
  }

 private:
  double* at(std::int64_t b, std::int64_t h, std::int64_t n) {
    return data_.data() + (((batch_ == 1 ? 0 : b) * heads_ + h) * places_ + n) * size_;
  }

  Vectors to_;
  std::int64_t batch_, heads_, places_, size_;
  std::vector<double> data_;
};

template <class T>
void differentiate(const BackwardPlan& backward) {
  const Plan& plan = backward.forward;
  Sums<T> d_q(backward.d_q, plan, plan.heads, plan.queries);
  std::vector<Sums<T>> d_keys;
  std::vector<Sums<T>> d_values;
  for (int k = 0; k < plan.segment_count; ++k) {
    d_keys.emplace_back(backward.d_keys[k], plan, plan.kv_heads, plan.segments[k].count);
    d_values.emplace_back(backward.d_values[k], plan, plan.kv_heads, plan.segments[k].count);
  }
  over_queries(plan, [&](const Query& query) {
    const std::int64_t b = query.sequence.number;
    const T* const q = vector_at<T>(plan.q, b, query.h, query.place());
    const T* const d_out = vector_at<T>(backward.d_out, b, query.h, query.place());
    const double lse = plan.lse[query.in_lse()];
    if (lse == nothing_seen) return;
    double delta = dot(d_out, vector_at<const T>(plan.out, b, query.h, query.place()), plan.head_dim);
    if (backward.d_lse != nullptr) delta -= backward.d_lse[query.in_lse()];
    query.over_keys([&](std::int64_t, Place place) {
      const auto segment = static_cast<std::size_t>(place.segment);
      const T* const k = vector_at<T>(plan.segments[segment].keys, b, query.g, place.n);
      const T* const v = vector_at<T>(plan.segments[segment].values, b, query.g, place.n);
      const double weight = std::exp(plan.scale * dot(q, k, plan.head_dim) - lse);
      const double d_score = plan.scale * weight * (dot(d_out, v, plan.head_dim) - delta);
      d_q.add(d_score, k, b, query.h, query.place());
      d_keys[segment].add(d_score, q, b, query.g, place.n);
      d_values[segment].add(weight, d_out, b, query.g, place.n);
    });
  });
  d_q.write();
  for (Sums<T>& sums : d_keys) sums.write();
  for (Sums<T>& sums : d_values) sums.write();
}

}  // namespace

void run_reference(const Plan& plan) {
  with_vector_type(plan.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (plan.append) append<T>(plan);
    attend<T>(plan);
  });
}

void run_reference_backward(const BackwardPlan& plan) {
  with_vector_type(plan.forward.dtype, [&](auto type) { differentiate<typename decltype(type)::type>(plan); });
}

}  // namespace robocache::attention_op
