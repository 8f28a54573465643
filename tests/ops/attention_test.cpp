// Every backend against float64, element by element, within the bound of docs/semantics.md: random shapes, layouts and
// masks, forward and backward. Then equal bits for any number of threads, and small calls by hand.
#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <cmath>
#include <limits>
#include <string>

#include "ops/arrays.h"
#include "ops/compare.h"
#include "ops/device.h"

namespace robocache::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Vectors in memory with gaps between them and margins around, all of which nobody may read (they are NaN) or write.
class Strided {
 public:
  Strided() = default;
  // [batch, heads, places, size]; packed: [places, heads, size].
  Strided(Random& random, DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t places, std::int64_t size,
          bool packed)
      : dtype_(dtype), shape_{batch, heads, places, size}, packed_(packed) {
    const std::int64_t pitch = size + random.pick({0, 0, 8, 64, random.chance(10) ? 3 : 0});
    std::vector<std::size_t> order{0, 1, 2};  // outermost first
    if (packed || random.chance(40)) order = {0, 2, 1};
    if (!packed && random.chance(10)) order = {2, 1, 0};
    std::int64_t step = pitch;
    for (std::size_t k = 3; k-- > 0;) {
      strides_[order[k]] = step;
      step = step * shape_[order[k]] + (random.chance(15) ? 8 : 0);
    }
    const std::int64_t total = step + 2 * margin;
    std::vector<unsigned char> bytes(static_cast<std::size_t>(total * size_of(dtype)), 0xff);
    array_ = Array(dtype, {total}, std::move(bytes));
  }

  bool present() const { return shape_[3] > 0; }
  std::int64_t places() const { return shape_[2]; }

  TensorView view(DeviceKind where) {
    TensorView view = array_.view(where);
    view.data = static_cast<char*>(view.data) + margin * size_of(dtype_);
    view.rank = packed_ ? 3 : 4;
    view.shape = packed_ ? std::array<std::int64_t, max_rank>{shape_[2], shape_[1], shape_[3]}
                         : std::array<std::int64_t, max_rank>{shape_[0], shape_[1], shape_[2], shape_[3]};
    view.strides = packed_ ? std::array<std::int64_t, max_rank>{strides_[2], strides_[1], 1}
                           : std::array<std::int64_t, max_rank>{strides_[0], strides_[1], strides_[2], 1};
    return view;
  }
  Strided fresh() const {
    Strided copy = *this;
    copy.array_ = array_.fresh();
    return copy;
  }
  void fetch() { array_.fetch(); }
  const std::vector<unsigned char>& bytes() const { return array_.bytes(); }

  double get(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t d) const {
    const unsigned char* const from = array_.bytes().data() + at(b, h, n, d);
    if (dtype_ == DType::f32) return read<float>(from);
    return dtype_ == DType::bf16 ? widen(read<bf16>(from)) : widen(read<f16>(from));
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t d, double x) {
    std::vector<unsigned char> bytes = numbers(dtype_, {1}, [&] { return x; }).bytes();
    std::memcpy(const_cast<unsigned char*>(array_.bytes().data()) + at(b, h, n, d), bytes.data(), bytes.size());
  }
  template <class F>
  void over(const F& f) const {
    for (std::int64_t b = 0; b < shape_[0]; ++b) {
      for (std::int64_t h = 0; h < shape_[1]; ++h) {
        for (std::int64_t n = 0; n < shape_[2]; ++n) {
          for (std::int64_t d = 0; d < shape_[3]; ++d) f(b, h, n, d);
        }
      }
    }
  }
  // Whether every byte that is in no vector is what it was.
  bool intact() const {
    std::vector<unsigned char> bytes = array_.bytes();
    over([&](auto... index) {
      std::memset(bytes.data() + at(index...), 0xff, static_cast<std::size_t>(size_of(dtype_)));
    });
    return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0xff; });
  }

 private:
  static constexpr std::int64_t margin = 64;

  template <class T>
  static T read(const unsigned char* from) {
    T x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  std::size_t at(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t d) const {
    const std::int64_t element = margin + b * strides_[0] + h * strides_[1] + n * strides_[2] + d;
    return static_cast<std::size_t>(element * size_of(dtype_));
  }

  DType dtype_ = DType::f32;
  std::array<std::int64_t, 4> shape_{};
  std::array<std::int64_t, 3> strides_{};
  bool packed_ = false;
  Array array_;
};

// What a call should give: a number, and how far from it a backend may be, per unit of each kind of error.
struct Truth {
  double value = 0;
  double terms = 0;    // the sum of the absolute values of what it is the sum of
  double weights = 0;  // the same times how far float32 may be off, in half units in the last place, in a weight
  double lost = 0;     // the same without the weights: those below the smallest normal number may be 0
};

class Case : private Random {
 public:
  struct Result {
    Strided out, d_q;
    std::vector<Strided> cache;  // keys and values where they are appended to
    std::vector<Strided> d_keys, d_values;
    Array lse;
    Bytes bytes;
  };

  // past: the heads' queries are a few more than a warpgroup has rows; forward only.
  explicit Case(unsigned seed, bool past = false) : Random(seed), past_(past) {
    draw_shape();
    draw_masks();
    draw_vectors();
    poison();
    compute_forward();
    if (!append_ && !past_) compute_backward();
  }

  Result run(Backend backend, DeviceKind where) {
    Result result;
    const Context context{.backend = backend};
    std::vector<std::array<Strided, 2>> segments;
    for (const auto& pair : segments_) segments.push_back({pair[0].fresh(), pair[1].fresh()});
    Attention call = call_of(where, segments);
    result.out = out_.fresh();
    result.lse = lse_.fresh();
    const TensorView lse = with_lse_ || !append_ ? result.lse.view(where) : TensorView{};
    attention(context, call, result.out.view(where), lse);
    synchronize();
    result.out.fetch();
    result.lse.fetch();
    result.bytes = {result.out.bytes(), result.lse.bytes()};
    if (append_) {
      for (Strided& one : segments[0]) {
        one.fetch();
        result.bytes.push_back(one.bytes());
        result.cache.push_back(one);
      }
      return result;
    }
    if (past_) return result;
    AttentionGradients gradients;
    const auto wanted = [&](const Strided& model, bool wants) { return wants ? model.fresh() : Strided(); };
    result.d_q = wanted(d_q_, wants_queries_);
    if (wants_queries_) gradients.queries = result.d_q.view(where);
    for (std::size_t k = 0; k < segments_.size() && wants_segments_; ++k) {
      result.d_keys.push_back(d_segments_[k][0].fresh());
      result.d_values.push_back(d_segments_[k][1].fresh());
      gradients.segments.push_back({result.d_keys[k].view(where), result.d_values[k].view(where)});
    }
    Strided given = given_out_.fresh(), d_out = d_out_.fresh();
    Array given_lse = given_lse_.fresh(), d_lse = d_lse_.present() ? d_lse_.fresh() : absent();
    attention_backward(context, call, given.view(where), given_lse.view(where), d_out.view(where), d_lse.view(where),
                       gradients);
    synchronize();
    const auto keep = [&](Strided& one) {
      if (!one.present()) return;
      one.fetch();
      result.bytes.push_back(one.bytes());
    };
    keep(result.d_q);
    for (Strided& one : result.d_keys) keep(one);
    for (Strided& one : result.d_values) keep(one);
    return result;
  }

  // What is wrong with a result; "" where nothing is. exact: a backend that computes in float64.
  std::string wrong(const Result& result, bool exact) const {
    std::string text = outside("out", result.out, exact, [&](auto b, auto h, auto n, auto d) {
      return &out_truth_[row_of(b, h, n) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(d)];
    });
    if (!text.empty()) return text;
    if (with_lse_ || !append_) text = wrong_lse(result.lse, exact);
    if (!text.empty()) return text;
    if (append_) {
      for (std::size_t k = 0; k < 2; ++k) {
        if (result.cache[k].bytes() != cache_after_[k].bytes()) return "the cache is not what it was with what is new";
      }
      return "";
    }
    const auto compare = [&](const char* what, const Strided& got, const std::vector<Truth>& truth, std::int64_t heads,
                             std::int64_t first, std::int64_t places) {
      if (!got.present() || !text.empty()) return;
      text = outside(what, got, exact, [&](auto b, auto h, auto n, auto d) {
        return &truth[static_cast<std::size_t>(((b * heads + h) * places + first + n) * size_ + d)];
      });
    };
    compare("d_q", result.d_q, d_q_truth_, heads_, 0, queries_);
    std::int64_t first = 0;
    for (std::size_t k = 0; k < result.d_keys.size(); ++k) {
      compare("d_keys", result.d_keys[k], d_k_truth_, kv_heads_, first, keys_);
      compare("d_values", result.d_values[k], d_v_truth_, kv_heads_, first, keys_);
      first += segments_[k][0].places();
    }
    return text;
  }

  std::string way(DeviceKind where) { return describe_attention({}, call_of(where, segments_)); }
  std::string description() const {
    return concat_of({"B ", n(batch_), " H ", n(heads_), " G ", n(kv_heads_), " Q ", n(queries_), " K ", n(keys_),
                      " D ", n(size_), " ", name_of(dtype_), packed_ ? " packed" : "", append_ ? " append" : "",
                      " segments ", n(static_cast<std::int64_t>(segments_.size()))});
  }

 private:
  struct Sequence {
    std::int64_t first_query, queries, first_key, keys, cached;
  };
  static std::string n(std::int64_t x) { return std::to_string(x); }
  static std::string text_of(double x) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", x);
    return text;
  }
  static std::string concat_of(std::initializer_list<std::string> parts) {
    std::string text;
    for (const std::string& part : parts) text += part;
    return text;
  }

  // ---- the draw ----

  void draw_shape() {
    dtype_ = pick_of({DType::f32, DType::bf16, DType::f16});
    size_ = pick({32, 40, 48, 64, 72, 80, 96, 128, chance(30) ? 256 : 64, chance(30) ? 8 * uniform(4, 32) : 32});
    batch_ = chance(4) ? 0 : pick({1, 1, 2, 3});
    kv_heads_ = pick({1, 1, 2, 3});
    heads_ = kv_heads_ * pick({1, 1, 2, 3, 8});
    queries_ = chance(5) ? 0 : pick({1, 2, 5, 17, 41, 64, 100});
    keys_ = chance(5) ? 0 : pick({1, 3, 16, 41, 64, 65, 130, chance(30) ? 600 : 200});
    while (batch_ * heads_ * queries_ * keys_ * size_ > 3'000'000) {
      queries_ = (queries_ + 1) / 2;
      heads_ = kv_heads_;
      if (queries_ == 1) keys_ = (keys_ + 1) / 2;
    }
    if (past_) {
      dtype_ = pick_of({DType::bf16, DType::f16});
      size_ = pick({32, 40, 48, 64});
      batch_ = 1;
      const std::int64_t rows = pick({65, 67, 72, 80, 136});  // of a key head
      const std::int64_t group = pick({1, 1, 2, 8});
      kv_heads_ = rows > 72 ? 20 : 36;
      heads_ = kv_heads_ * group;
      queries_ = (rows + group - 1) / group;
      keys_ = pick({300, 600, 1300});
    }
    packed_ = !past_ && chance(20);
    lengths_ = !past_ && !packed_ && chance(30);
    append_ = lengths_ && chance(60);
    with_lse_ = chance(70);
    wants_queries_ = chance(90);
    wants_segments_ = chance(90);
    appended_ = append_ ? std::min(keys_, pick({0, 1, queries_, 7})) : 0;
    if (packed_) {
      const auto cut = [&](std::int64_t total) {  // often all of it, but places may be left out at both ends
        std::vector<std::int64_t> offsets;
        for (std::int64_t b = 0; b <= batch_; ++b) offsets.push_back(uniform(0, total));
        std::sort(offsets.begin(), offsets.end());
        if (chance(60)) offsets.front() = 0;
        if (chance(60) && batch_ > 0) offsets.back() = total;
        return offsets;
      };
      const auto q = cut(queries_), k = cut(keys_);
      for (std::size_t b = 0; b < static_cast<std::size_t>(batch_); ++b) {
        sequences_.push_back({q[b], q[b + 1] - q[b], k[b], k[b + 1] - k[b], k[b + 1] - k[b]});
      }
      const auto wide = [&] { return pick_of({DType::i32, DType::i64}); };
      query_offsets_ = listed(wide(), q, {batch_ + 1});
      key_offsets_ = listed(wide(), k, {batch_ + 1});
    } else {
      std::vector<std::int64_t> lengths;
      for (std::int64_t b = 0; b < batch_; ++b) {
        const std::int64_t cached = lengths_ ? (chance(20) ? keys_ - appended_ : uniform(0, keys_ - appended_)) : keys_;
        lengths.push_back(cached);
        sequences_.push_back({0, queries_, 0, cached + appended_, cached});
      }
      if (lengths_) lengths_array_ = listed(pick_of({DType::i32, DType::i64}), lengths, {batch_});
    }
  }

  Seen flags(DType dtype, std::vector<std::int64_t> shape, const std::function<double()>& next) {
    Seen seen;
    seen.shape = shape;
    seen.steps.assign(shape.size(), 1);
    if (chance(30)) {
      seen.steps.back() = 2;
      shape.back() *= 2;
    }
    seen.base = numbers(dtype, shape, next);
    return seen;
  }

  void draw_masks() {
    const auto each = [&](std::int64_t places) {
      return !packed_ && chance(50) ? std::vector{batch_, places} : std::vector{places};
    };
    causal_ = chance(30);
    if (chance(25)) left_ = pick({0, 1, 5, 40, 1000});
    if (chance(25)) right_ = pick({0, 1, 5, 40, 1000});
    if (chance(30)) {
      constexpr std::numeric_limits<std::int32_t> ends;
      const auto rank = [&] {
        return static_cast<double>(chance(5) ? ends.max() : (chance(5) ? ends.min() : uniform(-2, 3)));
      };
      query_ranks_ = flags(DType::i32, each(queries_), rank);
      key_ranks_ = flags(DType::i32, each(keys_), rank);
    }
    const auto flag = [&](int percent) { return [this, percent] { return chance(percent) ? 1.0 : 0.0; }; };
    const int share = static_cast<int>(pick({0, 30, 70, 95}));
    if (chance(40)) key_valid_ = flags(DType::u8, each(keys_), flag(share));
    if (!packed_ && !past_ && chance(25)) {
      const bool four = chance(60);
      dense_ = flags(DType::u8,
                     four ? std::vector{chance(50) ? batch_ : 1, chance(50) ? heads_ : 1, queries_, keys_}
                          : std::vector{queries_, keys_},
                     flag(static_cast<int>(pick({5, 50, 95}))));
    }
  }

  Strided vectors(std::int64_t heads, std::int64_t places, double size) {
    Strided made = empty(heads, places);
    fill(made, size);
    return made;
  }
  Strided empty(std::int64_t heads, std::int64_t places) {
    return {*this, dtype_, packed_ ? 1 : batch_, heads, places, size_, packed_};
  }
  void fill(Strided& to, double size) {
    to.over([&](auto b, auto h, auto i, auto d) { to.set(b, h, i, d, size * real(-1, 1)); });
  }

  void draw_vectors() {
    // Large: scores near 1e4. Tiny: below the smallest normal number.
    const int kind = chance(75) ? 0 : (chance(50) ? 1 : 2);
    const double tiny = dtype_ == DType::f16 ? 3e-6 : 1e-39;
    const double q = kind == 1 ? 250 : 2, k = kind == 1 ? 250 : 2, v = kind == 2 ? tiny : 1;
    scale_ = chance(20) ? pick_of({-0.3, 1.0, 0.01}) : 0;
    q_ = vectors(heads_, queries_, q);
    std::int64_t left = keys_;
    const std::int64_t count = packed_ || lengths_ || past_ ? 1 : pick({1, 1, 2, 3, 4});
    for (std::int64_t s = 0; s < count; ++s) {
      const std::int64_t here = s + 1 < count ? uniform(0, left) : left;
      left -= here;
      segments_.push_back({vectors(kv_heads_, here, k), vectors(kv_heads_, here, v)});
      d_segments_.push_back({empty(kv_heads_, here), empty(kv_heads_, here)});
    }
    if (append_) new_ = {vectors(kv_heads_, appended_, k), vectors(kv_heads_, appended_, v)};
    out_ = empty(heads_, queries_);
    d_q_ = empty(heads_, queries_);
    given_out_ = empty(heads_, queries_);
    d_out_ = vectors(heads_, queries_, 1);
    const std::vector<std::int64_t> rows =
        packed_ ? std::vector{heads_, queries_} : std::vector{batch_, heads_, queries_};
    lse_ = numbers(DType::f32, rows, [] { return 42.0; });
    if (chance(50)) d_lse_ = numbers(DType::f32, rows, [&] { return real(-1, 1); });
  }

  // Keys that no query sees, and all that is nobody's.
  void poison() {
    if (chance(20)) return;
    std::vector<bool> seen(
        static_cast<std::size_t>(std::max<std::int64_t>(packed_ ? 1 : batch_, 1) * kv_heads_ * keys_));
    over_pairs(
        [&](std::int64_t b, std::int64_t h, std::int64_t, std::int64_t j) { seen[place(b, h / group(), j)] = true; });
    for (std::int64_t b = 0; b < (packed_ ? 1 : batch_); ++b) {
      for (std::int64_t g = 0; g < kv_heads_; ++g) {
        for (std::int64_t j = 0; j < keys_; ++j) {
          if (seen[static_cast<std::size_t>((b * kv_heads_ + g) * keys_ + j)] && !is_cached_room(b, j)) continue;
          std::int64_t place = j;
          std::size_t s = 0;
          while (place >= segments_[s][0].places()) place -= segments_[s++][0].places();
          const double poison = pick_of({not_a_number, infinity, -infinity});
          for (std::int64_t d = 0; d < size_; d += 5) {
            segments_[s][0].set(b, g, place, d, poison);
            segments_[s][1].set(b, g, place, d, poison);
          }
        }
      }
    }
  }
  // What is appended lies elsewhere before the call.
  bool is_cached_room(std::int64_t b, std::int64_t j) const {
    return lengths_ && j >= sequences_[static_cast<std::size_t>(b)].cached;
  }

  // ---- the truth ----

  std::int64_t group() const { return heads_ / kv_heads_; }
  std::size_t place(std::int64_t b, std::int64_t g, std::int64_t j) const {
    const std::int64_t row = packed_ ? 0 : b;
    return static_cast<std::size_t>((row * kv_heads_ + g) * keys_ + sequences_[static_cast<std::size_t>(b)].first_key +
                                    j);
  }
  static double entry(const Seen& seen, std::vector<std::int64_t> index) {
    std::int64_t offset = 0;
    std::int64_t step = 1;
    for (std::size_t k = seen.shape.size(); k-- > 0;) {
      offset += (seen.shape[k] == 1 ? 0 : index[k]) * step * seen.steps[k];
      step *= seen.shape[k] * seen.steps[k];
    }
    const auto at = static_cast<std::size_t>(offset);
    const auto& bytes = seen.base.bytes();
    if (seen.base.bytes().size() == static_cast<std::size_t>(step)) return bytes[at];
    std::int32_t rank = 0;
    std::memcpy(&rank, bytes.data() + 4 * at, 4);
    return rank;
  }
  double of(const Seen& seen, std::int64_t b, std::int64_t n) const {
    return seen.shape.size() == 2 ? entry(seen, {b, n}) : entry(seen, {n});
  }
  bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const Sequence& s = sequences_[static_cast<std::size_t>(b)];
    const std::int64_t ahead = j - (i + s.keys - s.queries);
    if (causal_ && ahead > 0) return false;
    if ((left_ >= 0 && -ahead > left_) || (right_ >= 0 && ahead > right_)) return false;
    const std::int64_t query = s.first_query + i, key = s.first_key + j;
    if (key_ranks_.base.present() && of(key_ranks_, b, key) > of(query_ranks_, b, query)) return false;
    if (key_valid_.base.present() && of(key_valid_, b, key) == 0) return false;
    if (!dense_.base.present()) return true;
    return (dense_.shape.size() == 4 ? entry(dense_, {b, h, i, j}) : entry(dense_, {i, j})) != 0;
  }
  template <class F>
  void over_rows(const F& f) const {
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t i = 0; i < sequences_[static_cast<std::size_t>(b)].queries; ++i) f(b, h, i);
      }
    }
  }
  template <class F>
  void over_pairs(const F& f) const {
    over_rows([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      for (std::int64_t j = 0; j < sequences_[static_cast<std::size_t>(b)].keys; ++j) {
        if (sees(b, h, i, j)) f(b, h, i, j);
      }
    });
  }
  // Of out and lse.
  std::size_t row_of(std::int64_t b, std::int64_t h, std::int64_t query) const {
    return static_cast<std::size_t>((b * heads_ + h) * queries_ + query);
  }
  double key_value(std::size_t part, std::int64_t b, std::int64_t g, std::int64_t j, std::int64_t d) const {
    const Sequence& s = sequences_[static_cast<std::size_t>(b)];
    const std::int64_t row = packed_ ? 0 : b;
    if (append_ && j >= s.cached) return new_[part].get(row, g, j - s.cached, d);
    std::int64_t place = s.first_key + j;
    std::size_t k = 0;
    while (place >= segments_[k][part].places()) place -= segments_[k++][part].places();
    return segments_[k][part].get(row, g, place, d);
  }
  double scale() const { return scale_ != 0 ? scale_ : 1 / std::sqrt(static_cast<double>(size_)); }

  // The score of a pair, and how far a weight may be off in float32: in half units in the last place, relative.
  struct Score {
    double value = 0, blur = 0;
  };
  Score score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    Score score;
    double size = 0;
    const Sequence& s = sequences_[static_cast<std::size_t>(b)];
    for (std::int64_t d = 0; d < size_; ++d) {
      const double term = q_.get(packed_ ? 0 : b, h, s.first_query + i, d) * key_value(0, b, h / group(), j, d);
      score.value += term;
      size += std::fabs(term);
    }
    score.value *= scale();
    score.blur = 16 + 4 * std::fabs(scale()) * size;
    return score;
  }

  void compute_forward() {
    const std::int64_t rows = (packed_ ? 1 : batch_) * heads_ * queries_;
    out_truth_.resize(static_cast<std::size_t>(rows * size_));
    lse_truth_.assign(static_cast<std::size_t>(rows), {-infinity});
    over_rows([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const Sequence& s = sequences_[static_cast<std::size_t>(b)];
      const std::size_t row = row_of(packed_ ? 0 : b, h, s.first_query + i);
      std::vector<std::pair<std::int64_t, Score>> scores;
      double largest = -infinity;
      for (std::int64_t j = 0; j < s.keys; ++j) {
        if (!sees(b, h, i, j)) continue;
        scores.emplace_back(j, score(b, h, i, j));
        largest = std::max(largest, scores.back().second.value);
      }
      if (scores.empty()) return;
      double sum = 0, blur = 0;
      for (auto& [j, score] : scores) {
        score.value = std::exp(score.value - largest);
        sum += score.value;
      }
      for (auto& [j, score] : scores) blur += score.value / sum * score.blur;
      lse_truth_[row] = {largest + std::log(sum), std::fabs(largest) + 8, blur, 0};
      for (std::int64_t d = 0; d < size_; ++d) {
        Truth& truth = out_truth_[row * static_cast<std::size_t>(size_) + static_cast<std::size_t>(d)];
        for (const auto& [j, score] : scores) {
          const double term = score.value / sum * key_value(1, b, h / group(), j, d);
          truth.value += term;
          truth.terms += std::fabs(term);
          truth.weights += std::fabs(term) * (score.blur + blur);
          truth.lost += std::fabs(key_value(1, b, h / group(), j, d));
        }
      }
    });
    cache_after_.clear();
    for (std::size_t part = 0; append_ && part < 2; ++part) {
      cache_after_.push_back(segments_[0][part].fresh());
      for (std::int64_t b = 0; b < batch_; ++b) {
        for (std::int64_t g = 0; g < kv_heads_; ++g) {
          for (std::int64_t j = 0; j < appended_; ++j) {
            const std::int64_t to = sequences_[static_cast<std::size_t>(b)].cached + j;
            for (std::int64_t d = 0; d < size_; ++d) {
              cache_after_[part].set(b, g, to, d, new_[part].get(b, g, j, d));
            }
          }
        }
      }
    }
  }

  // From out and lse as they are stored.
  void compute_backward() {
    const std::int64_t rows = packed_ ? 1 : batch_;
    std::size_t at = 0;
    given_lse_ = numbers(DType::f32, {rows, heads_, queries_}, [&] { return lse_truth_[at++].value; });
    given_lse_ = Array(DType::f32, packed_ ? std::vector{heads_, queries_} : std::vector{batch_, heads_, queries_},
                       given_lse_.bytes());
    given_out_.over([&](auto b, auto h, auto i, auto d) {
      given_out_.set(b, h, i, d,
                     out_truth_[static_cast<std::size_t>(((b * heads_ + h) * queries_ + i) * size_ + d)].value);
    });
    d_q_truth_.resize(static_cast<std::size_t>(rows * heads_ * queries_ * size_));
    d_k_truth_.resize(static_cast<std::size_t>(rows * kv_heads_ * keys_ * size_));
    d_v_truth_.resize(d_k_truth_.size());
    over_rows([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const Sequence& s = sequences_[static_cast<std::size_t>(b)];
      const std::int64_t source = packed_ ? 0 : b, query = s.first_query + i, g = h / group();
      const std::size_t row = row_of(source, h, query);
      float lse = 0, d_lse = 0;
      std::memcpy(&lse, given_lse_.bytes().data() + 4 * row, 4);
      if (d_lse_.present()) std::memcpy(&d_lse, d_lse_.bytes().data() + 4 * row, 4);
      std::vector<double> d_out(static_cast<std::size_t>(size_));
      double delta = -d_lse, delta_size = std::fabs(d_lse);
      for (std::int64_t d = 0; d < size_; ++d) {
        d_out[static_cast<std::size_t>(d)] = d_out_.get(source, h, query, d);
        const double term = d_out[static_cast<std::size_t>(d)] * given_out_.get(source, h, query, d);
        delta += term;
        delta_size += std::fabs(term);
      }
      for (std::int64_t j = 0; j < s.keys; ++j) {
        if (!sees(b, h, i, j)) continue;
        const Score score = this->score(b, h, i, j);
        const double weight = std::exp(score.value - lse), blur = score.blur + std::fabs(lse);
        double slope = -delta, slope_size = delta_size;
        for (std::int64_t d = 0; d < size_; ++d) {
          const double term = d_out[static_cast<std::size_t>(d)] * key_value(1, b, g, j, d);
          slope += term;
          slope_size += std::fabs(term);
        }
        const auto key = place(b, g, j) * static_cast<std::size_t>(size_);
        for (std::size_t d = 0; d < static_cast<std::size_t>(size_); ++d) {
          const auto add = [&](Truth& to, double factor, double factor_size, double x) {
            const double size = factor_size * std::fabs(x);
            to.value += weight * factor * x;
            to.terms += weight * size;
            to.weights += weight * size * blur;
            to.lost += size;
          };
          const auto k = static_cast<std::int64_t>(d);
          const double factor = scale() * slope, factor_size = std::fabs(scale()) * slope_size;
          add(d_q_truth_[row * static_cast<std::size_t>(size_) + d], factor, factor_size, key_value(0, b, g, j, k));
          add(d_k_truth_[key + d], factor, factor_size, q_.get(source, h, query, k));
          add(d_v_truth_[key + d], 1, 1, d_out[d]);
        }
      }
    });
  }

  // ---- the comparison ----

  double bound(const Truth& truth, bool exact) const {
    constexpr double half_unit = 0x1p-24;
    const double rounding = dtype_ == DType::f32 ? 0x1p-24 : (dtype_ == DType::bf16 ? 0x1p-8 : 0x1p-11);
    const double smallest = dtype_ == DType::f32 ? 0x1p-149 : (dtype_ == DType::bf16 ? 0x1p-133 : 0x1p-24);
    double allowed = rounding * std::fabs(truth.value) + smallest / 2;
    if (exact) return 1.001 * allowed + 0x1p-50 * truth.weights;
    allowed += half_unit * (truth.weights + 32 * truth.terms) + 0x1p-126 * truth.lost;
    // Tensor cores may take numbers that are no normal floats for 0.
    allowed += static_cast<double>(keys_ + queries_ * group()) * (dtype_ == DType::f32 ? 0x1p-149 : 0x1p-126);
    // Weights and gradients of scores may be rounded to the half type, too.
    if (dtype_ != DType::f32) allowed += 1.5 * rounding * truth.terms;
    if (dtype_ == DType::f16 && truth.terms > 0) allowed += static_cast<double>(keys_ + queries_ * group()) * 0x1p-24;
    return allowed;
  }

  template <class F>
  std::string outside(const char* what, const Strided& got, bool exact, const F& truth_at) const {
    if (!got.intact()) return concat_of({what, ": something was written outside"});
    std::string text;
    got.over([&](auto b, auto h, auto i, auto d) {
      if (!text.empty()) return;
      const Truth* const truth = truth_at(b, h, i, d);
      const double x = got.get(b, h, i, d);
      const double allowed = bound(*truth, exact);
      if (std::fabs(x - truth->value) <= allowed) return;
      text = concat_of({what, "[", n(b), "][", n(h), "][", n(i), "][", n(d), "] is ", text_of(x), " and should be ",
                        text_of(truth->value), " but for ", text_of(allowed)});
    });
    return text;
  }
  std::string wrong_lse(const Array& got, bool exact) const {
    for (std::size_t row = 0; row < lse_truth_.size(); ++row) {
      const Truth& truth = lse_truth_[row];
      float x = 0;
      std::memcpy(&x, got.bytes().data() + 4 * row, 4);
      if (static_cast<double>(x) == truth.value) continue;
      const double allowed = 0x1p-24 * (1.001 * std::fabs(truth.value) + (exact ? 0 : truth.terms + truth.weights));
      if (std::fabs(x - truth.value) <= allowed) continue;
      return concat_of(
          {"lse of row ", std::to_string(row), " is ", text_of(x), " and should be ", text_of(truth.value)});
    }
    return "";
  }

  Attention call_of(DeviceKind where, std::vector<std::array<Strided, 2>>& segments) {
    Attention call;
    call.queries = q_.view(where);
    for (auto& pair : segments) call.segments.push_back({pair[0].view(where), pair[1].view(where)});
    call.query_offsets = query_offsets_.view(where);
    call.key_offsets = key_offsets_.view(where);
    call.lengths = lengths_array_.view(where);
    if (append_) call.append = {new_[0].view(where), new_[1].view(where)};
    call.mask.causal = causal_;
    call.mask.window_left = left_;
    call.mask.window_right = right_;
    call.mask.query_ranks = query_ranks_.view(where);
    call.mask.key_ranks = key_ranks_.view(where);
    call.mask.key_valid = key_valid_.view(where);
    call.mask.dense = dense_.view(where);
    call.scale = scale_;
    return call;
  }

  DType dtype_ = DType::f32;
  std::int64_t batch_ = 0, heads_ = 0, kv_heads_ = 0, queries_ = 0, keys_ = 0, size_ = 0, appended_ = 0;
  bool past_ = false, packed_ = false, lengths_ = false, append_ = false, with_lse_ = true;
  bool wants_queries_ = true, wants_segments_ = true, causal_ = false;
  std::int64_t left_ = -1, right_ = -1;
  double scale_ = 0;
  std::vector<Sequence> sequences_;
  Array query_offsets_ = absent(), key_offsets_ = absent(), lengths_array_ = absent();
  Seen query_ranks_, key_ranks_, key_valid_, dense_;
  Strided q_, out_, d_q_, given_out_, d_out_;
  std::vector<std::array<Strided, 2>> segments_, d_segments_;
  std::array<Strided, 2> new_;
  std::vector<Strided> cache_after_;
  Array lse_ = absent(), given_lse_ = absent(), d_lse_ = absent();
  std::vector<Truth> out_truth_, lse_truth_, d_q_truth_, d_k_truth_, d_v_truth_;
};

constexpr unsigned cases = 600;

TEST(Attention, ReferenceIsFloat64RoundedOnceAndCpuWithinTheBound) {
  const std::string before = simd_target();
  for (unsigned seed = 0; seed < cases; ++seed) {
    Case one(seed);
    EXPECT_EQ(one.wrong(one.run(Backend::reference, DeviceKind::cpu), true), "")
        << "seed " << seed << ": " << one.description();
    for (const std::string& target : simd_targets()) {
      set_simd_target(target);
      EXPECT_EQ(one.wrong(one.run(Backend::cpu, DeviceKind::cpu), false), "")
          << "seed " << seed << ", " << target << ": " << one.description();
    }
    set_simd_target(before);
  }
}

TEST(Attention, CpuGivesTheSameBitsWithAnyNumberOfThreads) {
  const int before = num_threads();
  for (unsigned seed = 0; seed < cases / 4; ++seed) {
    Case one(seed);
    set_num_threads(1);
    const auto alone = one.run(Backend::cpu, DeviceKind::cpu);
    for (const int threads : {2, 5}) {
      set_num_threads(threads);
      EXPECT_EQ(difference(one.run(Backend::cpu, DeviceKind::cpu).bytes, alone.bytes), "") << "seed " << seed;
    }
  }
  set_num_threads(before);
}

TEST(Attention, CudaIsWithinTheBoundAndRepeats) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for (unsigned seed = 0; seed < 2 * cuda_cases(); ++seed) {
    Case one(seed);
    const auto result = one.run(Backend::cuda, DeviceKind::cuda);
    EXPECT_EQ(one.wrong(result, false), "") << "seed " << seed << ": " << one.description();
    EXPECT_EQ(difference(one.run(Backend::cuda, DeviceKind::cuda).bytes, result.bytes), "") << "seed " << seed;
  }
}

TEST(Attention, CudaTakesRowsThatDoNotFillAWarpgroup) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  int narrow = 0;
  bool warpgroups = false;
  for (unsigned seed = 0; seed < 12; ++seed) {
    Case one(seed, true);
    const std::string way = one.way(DeviceKind::cuda);
    warpgroups = warpgroups || way.find("warpgroups") != std::string::npos;
    if (way.find("for the last 8 rows") != std::string::npos) ++narrow;
    const auto result = one.run(Backend::cuda, DeviceKind::cuda);
    EXPECT_EQ(one.wrong(result, false), "") << "seed " << seed << ": " << one.description();
    EXPECT_EQ(difference(one.run(Backend::cuda, DeviceKind::cuda).bytes, result.bytes), "") << "seed " << seed;
  }
  EXPECT_TRUE(!warpgroups || narrow > 2) << narrow;
}

// ---- by hand -------------------------------------------------------------------------------------------------------

// Queries and keys of zeros: a query's weights are all the same, so that out is the mean of the values it sees.
struct Even {
  static constexpr std::int64_t size = 32;

  Even(std::int64_t queries, std::vector<float> worth)
      : q(static_cast<std::size_t>(queries * size)),
        k(worth.size() * static_cast<std::size_t>(size)),
        v(k.size()),
        out(q.size()),
        lse(static_cast<std::size_t>(queries)) {
    const auto keys = static_cast<std::int64_t>(worth.size());
    for (std::size_t n = 0; n < v.size(); ++n) v[n] = worth[n / static_cast<std::size_t>(size)];
    call.queries = view(q, queries);
    call.segments = {{view(k, keys), view(v, keys)}};
  }
  static TensorView view(std::vector<float>& data, std::int64_t places) {
    return TensorView::contiguous(data.data(), DType::f32, {1, 1, places, size});
  }
  std::vector<float> means(Backend backend) {
    const auto queries = static_cast<std::int64_t>(lse.size());
    attention({.backend = backend}, call, view(out, queries),
              TensorView::contiguous(lse.data(), DType::f32, {1, 1, queries}));
    std::vector<float> first;
    for (std::size_t i = 0; i < lse.size(); ++i) first.push_back(out[i * static_cast<std::size_t>(size)]);
    return first;
  }

  std::vector<float> q, k, v, out, lse;
  Attention call;
};

constexpr Backend on_the_host[] = {Backend::reference, Backend::cpu};

TEST(Attention, PositionsCountFromTheLastQueryAndTheLastKey) {
  for (const Backend backend : on_the_host) {
    Even even(2, {1, 2, 3, 6});
    even.call.mask.causal = true;
    EXPECT_EQ(even.means(backend), (std::vector<float>{2, 3}));
    even.call.mask.window_left = 1;
    EXPECT_EQ(even.means(backend), (std::vector<float>{2.5F, 4.5F}));
    even.call.mask = {.window_left = 0, .window_right = 1};
    EXPECT_EQ(even.means(backend), (std::vector<float>{4.5F, 6}));
    Even more(3, {4});  // the first two queries stand before the first key
    more.call.mask.causal = true;
    EXPECT_EQ(more.means(backend), (std::vector<float>{0, 0, 4}));
    EXPECT_EQ(more.lse, (std::vector<float>{static_cast<float>(-infinity), static_cast<float>(-infinity), 0}));
  }
}

TEST(Attention, WhatLiesInNoPackedSequenceSeesNothing) {
  constexpr std::int64_t places = 5, size = Even::size;
  const std::int32_t offsets[] = {1, 2, 2, 4};
  for (const Backend backend : on_the_host) {
    for (const std::int64_t sequences : {std::int64_t{3}, std::int64_t{0}}) {
      const auto nan = static_cast<float>(not_a_number);
      std::vector<float> q(places * size), v(q.size(), 1), out(q.size(), nan), lse(places, 7), ones(q.size(), 1);
      std::vector<float> d_q(q.size(), nan), d_k(q.size(), nan), d_v(q.size(), nan);
      const auto packed = [&](std::vector<float>& data) {
        return TensorView::contiguous(data.data(), DType::f32, {places, 1, size});
      };
      Attention call;
      call.queries = packed(q);
      call.segments = {{packed(q), packed(v)}};
      call.query_offsets = call.key_offsets = TensorView::contiguous(offsets, DType::i32, {sequences + 1});
      const TensorView logarithms = TensorView::contiguous(lse.data(), DType::f32, {1, places});
      attention({.backend = backend}, call, packed(out), logarithms);
      attention_backward({.backend = backend}, call, packed(out), logarithms, packed(ones), {},
                         {packed(d_q), {{packed(d_k), packed(d_v)}}});
      for (std::size_t n = 0; n < q.size(); ++n) {
        const std::int64_t place = static_cast<std::int64_t>(n) / size;
        const float inside = sequences > 0 && place >= 1 && place < 4 ? 1.0F : 0.0F;
        EXPECT_EQ(out[n], inside) << "place " << place;
        EXPECT_EQ(std::isfinite(lse[static_cast<std::size_t>(place)]), inside == 1);
        EXPECT_EQ(d_q[n], 0.0F) << "place " << place;
        EXPECT_EQ(d_k[n], 0.0F) << "place " << place;
        EXPECT_EQ(d_v[n], inside) << "place " << place;  // each query's weights sum to 1
      }
    }
  }
}

TEST(Attention, AKeyReachesOnlyTheQueriesThatSeeIt) {
  for (const float poison : {static_cast<float>(not_a_number), static_cast<float>(infinity)}) {
    for (const Backend backend : on_the_host) {
      Even even(3, {1, 3, poison});
      even.call.mask.causal = true;
      const auto means = even.means(backend);
      EXPECT_EQ(means[0], 1.0F);
      EXPECT_EQ(means[1], 2.0F);
      EXPECT_FALSE(std::isfinite(means[2]));
    }
  }
}

TEST(Attention, AQueryThatSeesNothingReachesNoGradient) {
  for (const Backend backend : on_the_host) {
    Even even(3, {4, 6});  // the first query stands before the first key
    even.call.mask.causal = true;
    std::vector<float> d_out(even.q.size(), 1), d_q(even.q.size()), d_k(even.k.size()), d_v(even.v.size());
    std::fill_n(even.q.begin(), Even::size, static_cast<float>(not_a_number));
    std::fill_n(d_out.begin(), Even::size, static_cast<float>(infinity));
    even.means(backend);
    attention_backward({.backend = backend}, even.call, Even::view(even.out, 3),
                       TensorView::contiguous(even.lse.data(), DType::f32, {1, 1, 3}), Even::view(d_out, 3), {},
                       {Even::view(d_q, 3), {{Even::view(d_k, 2), Even::view(d_v, 2)}}});
    for (std::size_t d = 0; d < Even::size; ++d) {
      EXPECT_EQ(d_q[d], 0.0F);
      EXPECT_EQ(d_k[d], 0.0F);  // the other queries are zeros
      EXPECT_EQ(d_v[d], 1.5F);
    }
  }
}

TEST(Attention, WithoutChecksNothingOutsideIsTouched) {
  for (const Backend backend : on_the_host) {
    Even even(2, {1, 3});
    even.call.check = false;
    for (const std::int64_t length : {std::int64_t{-7}, std::int64_t{9}}) {
      even.call.lengths = TensorView::contiguous(&length, DType::i64, {1});
      EXPECT_EQ(even.means(backend)[0], length < 0 ? 0.0F : 2.0F);
    }
  }
}

TEST(Attention, OneSentenceSaysWhichKernelRuns) {
  Even even(3, std::vector<float>(600, 1));
  EXPECT_EQ(describe_attention({.backend = Backend::reference}, even.call),
            "reference: scalar, float64; it was asked for");
  EXPECT_NE(describe_attention({}, even.call).find("cpu: "), std::string::npos);
}

}  // namespace
}  // namespace robocache::test
