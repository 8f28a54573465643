// Every backend against the reference, byte for byte, on random calls that cover the whole surface of align; and the
// gradient likewise.
#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/golden.h"
#include "sentence.h"

namespace robocache::test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::u8,  DType::i8,     DType::u16,
                            DType::i16, DType::u32, DType::i32,  DType::u64, DType::i64, DType::boolean};
constexpr std::int64_t millisecond = 1'000'000;

struct TestStream {
  Array values, times, arrivals, lengths, offsets, rows;
  Stream options;
  bool own_decisions = false;  // as_of has a time for each row
  std::vector<std::int64_t> trailing;
};

class Case : private Random {
 public:
  explicit Case(unsigned seed, bool as_of = false) : Random(seed) {
    const bool batched = chance(70);
    rows_ = batched ? pick({1, 2, 3, 7, 40}) : 1;
    count_ = pick({0, 1, 2, 5, 33, 130, 300});
    const bool timeline = chance(40);
    bins_ = chance(35);
    const int streams = static_cast<int>(pick({1, 1, 2, 3, 6}));
    for (int k = 0; k < streams; ++k) add_stream(batched && (k == 0 || chance(70)));
    if (timeline) {
      line_.rate = chance(50) ? 50 : 333.3;
      line_.count = count_;
      line_.first = -pick({0, 2});
      line_.start = pick({-20, 3}) * millisecond;
      if (batched && chance(60)) {
        std::vector<std::int64_t> starts;
        for (std::int64_t b = 0; b < rows_; ++b) starts.push_back(uniform(-50, 50) * millisecond);
        starts_ = times_array(starts, {rows_});
      } else {
        starts_.drop();
      }
    } else {
      const bool own = batched && chance(60);
      std::vector<std::int64_t> list;
      for (std::int64_t b = 0; b < (own ? rows_ : 1); ++b) {
        std::vector<std::int64_t> row;
        for (std::int64_t t = 0; t < count_; ++t) {
          const std::int64_t at = uniform(-20, 400) * millisecond;
          row.push_back(at / (chance(50) ? 2 : 1));
        }
        if (bins_ || chance(60)) std::sort(row.begin(), row.end());
        list.insert(list.end(), row.begin(), row.end());
      }
      targets_ = times_array(list, own ? std::vector<std::int64_t>{rows_, count_} : std::vector<std::int64_t>{count_});
      timeline_ = false;
    }
    options_.edge = pick_of({Edge::clamp, Edge::nan, Edge::zero});
    for (const TestStream& s : streams_) {
      if (options_.edge == Edge::nan && !is_float(s.options.values.dtype)) options_.edge = Edge::clamp;
    }
    options_.causal = chance(30);
    options_.on_nan = chance(30) ? OnNan::skip : OnNan::propagate;
    decisions_.drop();
    if (as_of) draw_as_of();
  }

  // All output bytes of the call.
  Bytes run(Backend backend, DeviceKind where) {
    std::vector<Stream> streams = views(where);
    std::vector<Aligned> outputs(streams.size());
    std::vector<Array> arrays;
    for (const TestStream& s : streams_) {
      const DType dtype = s.options.values.dtype;
      arrays.push_back(output(dtype, s.trailing));
      arrays.push_back(output(DType::boolean, {}));
      arrays.push_back(output(DType::i64, {}));
      arrays.push_back(output(DType::i64, {}));
    }
    for (std::size_t k = 0; k < streams.size(); ++k) {
      outputs[k] = {arrays[4 * k].view(where), arrays[4 * k + 1].view(where), arrays[4 * k + 2].view(where),
                    arrays[4 * k + 3].view(where)};
    }
    align({.backend = backend}, streams, targets(where), options(where), outputs);
    return fetched(arrays);
  }

  // The streams fused as `dtype`, one tensor.
  std::vector<unsigned char> run_fused(Backend backend, DeviceKind where, DType dtype) {
    std::vector<Stream> streams = views(where);
    std::int64_t width = 0;
    for (const TestStream& s : streams_) width += channels(s);
    Array values = output(dtype, {width});
    Array valid = output(DType::boolean, {static_cast<std::int64_t>(streams.size())});
    fuse({.backend = backend}, streams, targets(where), options(where),
         {values.view(where), valid.view(where), {}, {}});
    synchronize();
    values.fetch();
    valid.fetch();
    std::vector<unsigned char> bytes = values.bytes();
    bytes.insert(bytes.end(), valid.bytes().begin(), valid.bytes().end());
    return bytes;
  }

  Bytes run_backward(Backend backend, DeviceKind where) {
    std::vector<Stream> streams = views(where);
    std::vector<Array> arrays;
    std::vector<TensorView> given;
    std::vector<TensorView> wanted;
    std::mt19937 same(1);
    for (const TestStream& s : streams_) {
      const DType dtype = s.options.values.dtype;
      arrays.push_back(numbers(dtype, shape_of(s.trailing), false, same));
      arrays.push_back(s.values.fresh());
    }
    for (std::size_t k = 0; k < streams.size(); ++k) {
      given.push_back(arrays[2 * k].view(where));
      wanted.push_back(arrays[2 * k + 1].view(where));
    }
    align_backward({.backend = backend}, streams, targets(where), options(where), given, wanted);
    synchronize();
    Bytes bytes;
    for (std::size_t k = 0; k < streams.size(); ++k) {
      arrays[2 * k + 1].fetch();
      bytes.push_back(arrays[2 * k + 1].bytes());
    }
    return bytes;
  }

  bool all_float() const {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& s) { return is_float(s.options.values.dtype); });
  }

 private:
  // Decisions before, among and after the arrivals, for the call and for some streams.
  void draw_as_of() {
    options_.causal = false;
    options_.as_of.time = uniform(-40, 400) * millisecond;
    const bool own = batch("align", views(DeviceKind::cpu), targets(DeviceKind::cpu)).rows && chance(65);
    if (own) {
      std::vector<std::int64_t> list;
      for (std::int64_t b = 0; b < rows_; ++b) list.push_back(uniform(-40, chance(80) ? 400 : 4000) * millisecond / 2);
      decisions_ = times_array(list, {rows_});
    }
    for (TestStream& s : streams_) {
      if (chance(70)) continue;
      s.own_decisions = own && chance(40);
      s.options.as_of = AsOf{.time = chance(40) ? no_as_of : uniform(0, 200) * millisecond};
      if (s.options.as_of->time == no_as_of) s.options.causal = chance(50);
    }
    for (TestStream& s : streams_) {
      if (s.own_decisions) s.options.causal = false;
    }
  }

  static std::int64_t channels(const TestStream& s) { return product(s.trailing); }

  // Random values; odd ones (NaN, infinities, -0, denormals) where asked for.
  static Array numbers(DType dtype, const std::vector<std::int64_t>& shape, bool odd, std::mt19937& random) {
    const std::int64_t n = product(shape);
    const int size = size_of(dtype);
    std::vector<unsigned char> bytes(static_cast<std::size_t>(n * size));
    for (std::int64_t k = 0; k < n; ++k) {
      const std::uint64_t high = random();  // one draw a statement: compilers differ in the order within one
      const std::uint64_t bits = high << 32 | random();
      std::uint64_t raw = bits;
      if (dtype == DType::boolean) raw = bits & 1;
      if (is_float(dtype) && !(odd && bits % 11 == 0)) {  // a plain number: exponent near 0
        if (dtype == DType::f64) raw = (bits & 0x800fffffffffffffull) | (0x3fdull + bits % 5) << 52;
        if (dtype == DType::f32) raw = (bits & 0x807fffffu) | (0x7du + bits % 5) << 23;
        if (dtype == DType::f16) raw = (bits & 0x83ffu) | (0xdu + bits % 5) << 10;
        if (dtype == DType::bf16) raw = (bits & 0x807fu) | (0x7du + bits % 5) << 7;
      }
      std::memcpy(bytes.data() + k * size, &raw, static_cast<std::size_t>(size));
    }
    return {dtype, shape, std::move(bytes)};
  }

  Array times_array(const std::vector<std::int64_t>& ns, const std::vector<std::int64_t>& shape) {
    const DType dtype = pick_of({DType::i64, DType::i64, DType::f64, DType::f32});
    std::vector<unsigned char> bytes(ns.size() * static_cast<std::size_t>(size_of(dtype)));
    for (std::size_t k = 0; k < ns.size(); ++k) {
      const double seconds = static_cast<double>(ns[k]) * 1e-9;
      const auto narrow = static_cast<float>(seconds);
      if (dtype == DType::i64) std::memcpy(bytes.data() + 8 * k, &ns[k], 8);
      if (dtype == DType::f64) std::memcpy(bytes.data() + 8 * k, &seconds, 8);
      if (dtype == DType::f32) std::memcpy(bytes.data() + 4 * k, &narrow, 4);
    }
    return {dtype, shape, std::move(bytes)};
  }
  Array integers(const std::vector<std::int64_t>& list) {
    std::vector<unsigned char> bytes(list.size() * 8);
    std::memcpy(bytes.data(), list.data(), bytes.size());
    return {DType::i64, {static_cast<std::int64_t>(list.size())}, std::move(bytes)};
  }

  std::vector<std::int64_t> stamps(std::int64_t n, bool late) {
    std::vector<std::int64_t> list;
    std::int64_t now = uniform(-30, 30) * millisecond;
    for (std::int64_t k = 0; k < n; ++k) {
      list.push_back(now + (late ? uniform(-5, 30) * millisecond : 0));
      if (!chance(15)) now += uniform(0, 8) * millisecond / 2;
      if (chance(4)) now += 60 * millisecond;
    }
    return list;
  }

  void add_stream(bool batched) {
    TestStream s;
    const DType dtype =
        chance(60) ? pick_of({DType::f32, DType::bf16, DType::f16, DType::f64}) : dtypes[random_() % std::size(dtypes)];
    s.trailing = pick_of<std::vector<std::int64_t>>({{}, {1}, {3}, {4}, {8}, {12}, {33}, {2, 3, 4}, {0}, {64}, {600}});
    std::int64_t samples = pick({0, 1, 2, 3, 17, 60, 200, 1500});
    const bool packed = batched && chance(35);
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> times;
    std::vector<std::int64_t> arrivals;
    s.lengths.drop();
    s.offsets.drop();
    s.rows.drop();
    std::int64_t segments = rows_;
    if (batched && chance(25)) {
      segments = pick({1, 3});
      std::vector<std::int64_t> rows;
      for (std::int64_t b = 0; b < rows_; ++b) rows.push_back(uniform(0, segments - 1));
      s.rows = integers(rows);
    }
    const auto fill_row = [&](std::int64_t n) {
      const auto row = stamps(n, false);
      const auto late = stamps(n, true);
      times.insert(times.end(), row.begin(), row.end());
      arrivals.insert(arrivals.end(), late.begin(), late.end());
    };
    if (packed) {
      std::vector<std::int64_t> offsets{0};
      for (std::int64_t g = 0; g < segments; ++g) {
        const std::int64_t n = chance(10) ? 0 : uniform(0, samples);
        fill_row(n);
        offsets.push_back(offsets.back() + n);
      }
      s.offsets = integers(offsets);
      shape = {offsets.back()};
    } else if (batched) {
      std::vector<std::int64_t> lengths;
      for (std::int64_t g = 0; g < segments; ++g) {
        fill_row(samples);
        lengths.push_back(uniform(0, samples));
      }
      if (chance(40)) s.lengths = integers(lengths);
      shape = {segments, samples};
    } else {
      fill_row(samples);
      shape = {samples};
    }
    s.times = times_array(times, shape);
    s.arrivals = times_array(arrivals, shape);
    if (!chance(40)) s.arrivals.drop();
    shape.insert(shape.end(), s.trailing.begin(), s.trailing.end());
    s.values = numbers(dtype, shape, chance(40), random_);
    s.options.values.dtype = dtype;
    const std::int64_t d = channels(s);
    if (is_float(dtype)) {
      const auto method =
          pick_of({Method::linear, Method::linear, Method::hold, Method::nearest, Method::cubic, Method::angle,
                   Method::angle_degrees, Method::slerp, Method::mean, Method::max, Method::min, Method::last});
      const bool fits = (method != Method::slerp || d % 4 == 0) && (bins_ || method < Method::mean);
      if (fits && !chance(15)) {
        s.options.methods = {{method, 0, d}};
      } else if (d >= 8 && chance(60)) {
        s.options.methods = {
            {Method::slerp, 4, 8}, {Method::linear, 0, 4}, {bins_ ? Method::mean : Method::cubic, 8, d}};
      }
    } else if (chance(70)) {
      s.options.methods = {{bins_ ? pick_of({Method::last, Method::max, Method::min}) : Method::nearest, 0, d}};
    }
    s.options.latency = pick({0, 0, 3, -4}) * millisecond;
    if (chance(40)) s.options.max_gap = 20 * millisecond;
    streams_.push_back(std::move(s));
  }

  std::vector<Stream> views(DeviceKind where) {
    std::vector<Stream> streams;
    for (TestStream& s : streams_) {
      Stream stream = s.options;
      stream.values = s.values.view(where);
      stream.times = s.times.view(where);
      stream.arrivals = s.arrivals.view(where);
      stream.lengths = s.lengths.view(where);
      stream.offsets = s.offsets.view(where);
      stream.rows = s.rows.view(where);
      if (s.own_decisions) stream.as_of->times = decisions_.view(where);
      streams.push_back(stream);
    }
    return streams;
  }
  AlignOptions options(DeviceKind where) {
    AlignOptions options = options_;
    options.as_of.times = decisions_.view(where);
    return options;
  }
  Targets targets(DeviceKind where) {
    if (!timeline_) return targets_.view(where);
    Timeline line = line_;
    line.starts = starts_.view(where);
    return line;
  }
  std::vector<std::int64_t> shape_of(const std::vector<std::int64_t>& trailing) {
    std::vector<std::int64_t> shape;
    if (batch("align", views(DeviceKind::cpu), targets(DeviceKind::cpu)).rows) shape.push_back(rows_);
    shape.push_back(count_);
    shape.insert(shape.end(), trailing.begin(), trailing.end());
    return shape;
  }
  // Poisoned, so that an element nobody writes shows.
  Array output(DType dtype, const std::vector<std::int64_t>& trailing) {
    const std::vector<std::int64_t> shape = shape_of(trailing);
    return {dtype, shape, std::vector<unsigned char>(static_cast<std::size_t>(product(shape) * size_of(dtype)), 0xa5)};
  }

  std::int64_t rows_ = 1, count_ = 0;
  bool timeline_ = true, bins_ = false;
  std::vector<TestStream> streams_;
  Array targets_, starts_, decisions_;
  Timeline line_;
  AlignOptions options_;
};

constexpr unsigned cases = 400;

// Calls f with each case, without and with as_of, and a name for it.
template <class F>
void for_cases(unsigned count, const F& f) {
  for (const bool as_of : {false, true}) {
    for (unsigned seed = 0; seed < count; ++seed) {
      Case one(seed, as_of);
      f(one, seed, "seed " + std::to_string(seed) + (as_of ? ", as_of" : ""));
    }
  }
}

TEST(Align, CpuEqualsReferenceAtEverySimdTarget) {
  const std::string before = simd_target();
  for_cases(cases, [&](Case& one, unsigned seed, const std::string& name) {
    const auto expected = one.run(Backend::reference, DeviceKind::cpu);
    const DType dtype = seed % 2 == 0 ? DType::f16 : DType::f64;
    const auto fused = one.run_fused(Backend::reference, DeviceKind::cpu, dtype);
    for (const std::string& target : simd_targets()) {
      set_simd_target(target);
      EXPECT_EQ(difference(one.run(Backend::cpu, DeviceKind::cpu), expected), "") << name << ", " << target;
      EXPECT_EQ(difference({one.run_fused(Backend::cpu, DeviceKind::cpu, dtype)}, {fused}), "")
          << name << ", " << target;
    }
    set_simd_target(before);
  });
}

TEST(Align, CpuGradientEqualsReference) {
  for_cases(60, [](Case& one, unsigned, const std::string& name) {
    if (!one.all_float()) return;
    EXPECT_EQ(difference(one.run_backward(Backend::cpu, DeviceKind::cpu),
                         one.run_backward(Backend::reference, DeviceKind::cpu)),
              "")
        << name;
  });
}

Bytes everything(Case& one, Backend backend, DeviceKind where) {
  Bytes all = one.run(backend, where);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f64}) all.push_back(one.run_fused(backend, where, dtype));
  if (!one.all_float()) return all;
  for (std::vector<unsigned char>& gradient : one.run_backward(backend, where)) all.push_back(std::move(gradient));
  return all;
}

TEST(Align, GivesTheGoldenHashes) {
  static constexpr std::string_view hashes[] = {
#include "golden/drawn_align.txt"
  };
  expect_golden("drawn_align.txt", hashes, [](unsigned seed, Backend backend, DeviceKind where) {
    Case one(seed);
    return everything(one, backend, where);
  });
}

TEST(Align, GivesTheGoldenHashesOfAsOf) {
  static constexpr std::string_view hashes[] = {
#include "golden/drawn_align_as_of.txt"
  };
  expect_golden("drawn_align_as_of.txt", hashes, [](unsigned seed, Backend backend, DeviceKind where) {
    Case one(seed, true);
    return everything(one, backend, where);
  });
}

TEST(Align, CudaEqualsReference) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for_cases(cuda_cases(), [](Case& one, unsigned seed, const std::string& name) {
    EXPECT_EQ(difference(one.run(Backend::cuda, DeviceKind::cuda), one.run(Backend::reference, DeviceKind::cpu)), "")
        << name;
    const DType dtype = seed % 2 == 0 ? DType::bf16 : DType::f64;
    EXPECT_EQ(difference({one.run_fused(Backend::cuda, DeviceKind::cuda, dtype)},
                         {one.run_fused(Backend::reference, DeviceKind::cpu, dtype)}),
              "")
        << name;
  });
}

TEST(Align, CudaGradientEqualsReference) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for_cases(cuda_cases(), [](Case& one, unsigned, const std::string& name) {
    if (!one.all_float()) return;
    EXPECT_EQ(difference(one.run_backward(Backend::cuda, DeviceKind::cuda),
                         one.run_backward(Backend::reference, DeviceKind::cpu)),
              "")
        << name;
  });
}

TEST(Align, TimesThatDecreaseAreNamed) {
  const float values[6] = {};
  const std::int64_t times[6] = {1, 2, 3, 7, 9, 5};
  const std::int64_t targets[1] = {2};
  float out[2] = {42, 42};
  const Stream stream{.values = TensorView::contiguous(values, DType::f32, {2, 3}),
                      .times = TensorView::contiguous(times, DType::i64, {2, 3}),
                      .name = "imu"};
  const Aligned output{.values = TensorView::contiguous(out, DType::f32, {2, 1})};
  const std::string text = sentence([&] {
    fuse({}, {&stream, 1}, TensorView::contiguous(targets, DType::i64, {1}), {},
         {.values = TensorView::contiguous(out, DType::f32, {2, 1, 1})});
  });
  EXPECT_EQ(text, "fuse: stream \"imu\": times[1][2] = 5 is before times[1][1] = 9; times must not decrease");
  EXPECT_EQ(out[0], 42);
  AlignOptions unchecked;
  unchecked.check = false;
  resample({}, stream, TensorView::contiguous(targets, DType::i64, {1}), unchecked, output);
}

TEST(Align, OutputsAreNamedByTheirStream) {
  const float values[3] = {};
  const std::int64_t times[3] = {1, 2, 3};
  float out[3] = {};
  std::vector<Stream> streams(2, {.values = TensorView::contiguous(values, DType::f32, {3}),
                                  .times = TensorView::contiguous(times, DType::i64, {3})});
  std::vector<Aligned> outputs(2, {.values = TensorView::contiguous(out, DType::f32, {3})});
  outputs[1].values = TensorView::contiguous(out, DType::f32, {2});
  const auto call = [&] { align({}, streams, streams[0].times, {}, outputs); };
  EXPECT_EQ(sentence(call), "align: stream \"1\": out has shape [2]; expected [3]");
  streams[1].name = "imu";
  EXPECT_EQ(sentence(call), "align: stream \"imu\": out has shape [2]; expected [3]");
}

TEST(Align, CudaRaisesWhatTheDataHidInTheNextCall) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  Array values(DType::f32, {3}, std::vector<unsigned char>(12));
  const std::int64_t stamps[3] = {1, 9, 5};
  std::vector<unsigned char> bytes(24);
  std::memcpy(bytes.data(), stamps, 24);
  Array times(DType::i64, {3}, bytes);
  Array out(DType::f32, {3}, std::vector<unsigned char>(12));
  const Stream stream{.values = values.view(DeviceKind::cuda), .times = times.view(DeviceKind::cuda), .name = "imu"};
  const auto call = [&] {
    resample({}, stream, times.view(DeviceKind::cuda), {}, {.values = out.view(DeviceKind::cuda)});
  };
  call();
  EXPECT_EQ(sentence([] { synchronize(); }),
            "resample: stream \"imu\": times[2] = 5 is before times[1] = 9; times must not decrease");
  EXPECT_EQ(sentence([] { synchronize(); }), "no error");
}

// A stream in one of the layouts that a GPU checks in its own way, with at most one thing wrong.
class Faulty : private Random {
 public:
  explicit Faulty(unsigned seed) : Random(seed) {
    const std::int64_t samples = pick({1, 7, 300, 5000, 70'000});
    const std::int64_t segments = samples > 5000 ? pick({1, 3}) : pick({1, 3, 40});
    layout_ = static_cast<Layout>(uniform(0, 3));
    dtype_ = pick_of({DType::i64, DType::i64, DType::f64, DType::f32});
    std::vector<std::int64_t> offsets{0};
    std::vector<std::int64_t> lengths;
    for (std::int64_t g = 0; g < segments; ++g) {
      const std::int64_t length = layout_ == Layout::whole ? samples : uniform(1, samples);
      const std::int64_t padding = layout_ == Layout::padded ? samples - length : 0;
      for (std::int64_t k = 0; k < length; ++k) times_.push_back((2 * k + uniform(0, 1)) * millisecond);
      for (std::int64_t k = 0; k < padding; ++k) times_.push_back(-k * millisecond);  // anything
      lengths.push_back(length);
      offsets.push_back(offsets.back() + length);
    }
    arrivals_ = times_;
    const std::int64_t stride = layout_ == Layout::padded || layout_ == Layout::whole ? samples : 0;
    const std::int64_t g = uniform(0, segments - 1);
    const std::int64_t first = stride > 0 ? g * stride : offsets[static_cast<std::size_t>(g)];
    const std::int64_t length = lengths[static_cast<std::size_t>(g)];
    const auto k = static_cast<std::size_t>(first + uniform(std::min<std::int64_t>(1, length - 1), length - 1));
    std::vector<std::int64_t> rows;
    for (std::int64_t b = 0; b < 3 * segments; ++b) rows.push_back(uniform(0, segments - 1));
    const int what = static_cast<int>(uniform(0, 4));
    if (what == 0 && length > 1) times_[k] = times_[k - 1] - millisecond;
    if (what == 1) times_[static_cast<std::size_t>(first + length - 1)] = no_time;
    if (what == 2) arrivals_[k] = no_time;
    if (what == 3 && layout_ == Layout::chosen) rows[rows.size() / 2] = segments;

    const std::int64_t all = stride > 0 ? segments * samples : offsets.back();
    shape_ = stride > 0 ? std::vector<std::int64_t>{segments, samples} : std::vector<std::int64_t>{all};
    lengths_ = layout_ == Layout::padded ? list(lengths) : absent();
    offsets_ = layout_ == Layout::packed || layout_ == Layout::chosen ? list(offsets) : absent();
    rows_ = layout_ == Layout::chosen ? list(rows) : absent();
    out_rows_ = layout_ == Layout::chosen ? 3 * segments : segments;
    method_ = pick_of({Method::linear, Method::cubic, Method::hold});
    has_arrivals_ = what == 2 || chance(20);
    if (what < 4 && chance(70)) return;
    for (std::int64_t b = 0; b < out_rows_; ++b) decisions_.push_back(uniform(0, 100) * millisecond);
    if (what == 4 && chance(70)) decisions_[static_cast<std::size_t>(uniform(0, out_rows_ - 1))] = no_time;
  }

  // What the call raises, sooner or later.
  std::string run(DeviceKind where) {
    Array values(DType::f32, shape_, std::vector<unsigned char>(times_.size() * 4));
    Array times = stamps(times_, shape_);
    Array arrivals = has_arrivals_ ? stamps(arrivals_, shape_) : absent();
    Array decisions = decisions_.empty() ? absent() : stamps(decisions_, {out_rows_});
    const std::vector<std::int64_t> wanted{3 * millisecond, 40 * millisecond, 70 * millisecond};
    Array targets = list(wanted);
    Array out(DType::f32, {out_rows_, 3}, std::vector<unsigned char>(static_cast<std::size_t>(out_rows_) * 12));
    const Stream stream{.values = values.view(where),
                        .times = times.view(where),
                        .arrivals = arrivals.view(where),
                        .lengths = lengths_.view(where),
                        .offsets = offsets_.view(where),
                        .rows = rows_.view(where),
                        .methods = {{method_, 0, 1}},
                        .name = "imu"};
    AlignOptions options;
    options.as_of.times = decisions.view(where);
    return sentence([&] {
      resample({}, stream, targets.view(where), options, {.values = out.view(where)});
      synchronize();
    });
  }

 private:
  enum class Layout { whole, padded, packed, chosen };
  static constexpr std::int64_t no_time = std::int64_t{1} << 62;

  static Array list(const std::vector<std::int64_t>& numbers) {
    std::vector<unsigned char> bytes(numbers.size() * 8);
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return {DType::i64, {static_cast<std::int64_t>(numbers.size())}, std::move(bytes)};
  }
  static Array absent() {
    Array none;
    none.drop();
    return none;
  }
  Array stamps(const std::vector<std::int64_t>& ns, const std::vector<std::int64_t>& shape) const {
    std::vector<unsigned char> bytes(ns.size() * static_cast<std::size_t>(size_of(dtype_)));
    for (std::size_t k = 0; k < ns.size(); ++k) {
      const double seconds = ns[k] == no_time ? 20'000.0 : static_cast<double>(ns[k]) * 1e-9;
      const double unusable = ns[k] == no_time ? std::nan("") : seconds;
      const auto narrow = static_cast<float>(seconds);
      if (dtype_ == DType::i64) std::memcpy(bytes.data() + 8 * k, &ns[k], 8);
      if (dtype_ == DType::f64) std::memcpy(bytes.data() + 8 * k, &unusable, 8);
      if (dtype_ == DType::f32) std::memcpy(bytes.data() + 4 * k, &narrow, 4);
    }
    return {dtype_, shape, std::move(bytes)};
  }

  Layout layout_ = Layout::whole;
  DType dtype_ = DType::i64;
  Method method_ = Method::linear;
  bool has_arrivals_ = false;
  std::int64_t out_rows_ = 1;
  std::vector<std::int64_t> shape_, times_, arrivals_, decisions_;
  Array lengths_, offsets_, rows_;
};

TEST(Align, CudaNamesTheFaultThatTheHostNames) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  unsigned found = 0;
  const unsigned tried = std::min(200u, cuda_cases());
  for (unsigned seed = 0; seed < tried; ++seed) {
    Faulty one(seed);
    const std::string expected = one.run(DeviceKind::cpu);
    EXPECT_EQ(one.run(DeviceKind::cuda), expected) << "seed " << seed;
    if (expected != "no error") ++found;
  }
  EXPECT_GT(found, tried / 4);
}

}  // namespace
}  // namespace robocache::test
