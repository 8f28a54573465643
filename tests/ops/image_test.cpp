// Every backend against the reference, byte for byte, on random frames; then values that can be told by hand, and the
// sentences for bad input. tests/python/test_image.py has the judges: Pillow and FFmpeg.
#include <gtest/gtest.h>
#include <robocache/robocache.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "ops/arrays.h"
#include "ops/compare.h"
#include "ops/device.h"
#include "ops/golden.h"
#include "sentence.h"

namespace robocache::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t height = 0, width = 1;  // axes

// An array whose dimensions lie in memory in any order, with gaps between elements, and rows perhaps from the last to the
// first.
struct Laid {
  Array base = absent();
  std::vector<std::int64_t> shape, steps;
  std::vector<std::size_t> order;  // the dimension that lies outermost in memory, then the next
  std::size_t backwards = 99;      // this dimension

  void lay(DType dtype, const std::function<double()>& next) {
    std::vector<std::int64_t> memory;
    for (const std::size_t d : order) memory.push_back(shape[d] * steps[d]);
    base = numbers(dtype, memory, next);
  }

  TensorView view(DeviceKind where) {
    const TensorView whole = base.view(where);
    TensorView view = whole;
    for (std::size_t m = 0; m < order.size(); ++m) {
      const std::size_t d = order[m];
      view.shape[d] = shape[d];
      view.strides[d] = whole.strides[m] * steps[d];
    }
    if (backwards < order.size() && view.size() > 0) {
      view.data =
          static_cast<char*>(view.data) + (shape[backwards] - 1) * view.strides[backwards] * size_of(view.dtype);
      view.strides[backwards] = -view.strides[backwards];
    }
    return view;
  }
};

class Case : private Random {
 public:
  explicit Case(unsigned seed) : Random(seed) {
    make_frames();
    make_places();
    make_values();
    make_output();
  }

  Bytes run(Backend backend, DeviceKind where) {
    Laid out = out_;
    out.base = out_.base.fresh();
    ImageOptions options = options_;
    options.crop_offsets = crop_offsets_.view(where);
    image({.backend = backend}, frames(where), options, out.view(where));
    synchronize();
    out.base.fetch();
    return {out.base.bytes()};
  }

 private:
  Frames frames(DeviceKind where) {
    Frames frames = frames_;
    frames.pixels = pixels_.view(where);
    frames.rows = rows_.view(where);
    if (chroma_.size() == 1) frames.uv = chroma_[0].view(where);
    if (chroma_.size() == 2) {
      frames.u = chroma_[0].view(where);
      frames.v = chroma_[1].view(where);
    }
    return frames;
  }

  std::int64_t side() { return pick({1, 2, 3, 7, 8, 16, 31, 40, 65, chance(10) ? 300 : 24}); }

  // Leading dimensions, then those of one frame.
  Laid laid(std::vector<std::int64_t> tail, bool may_be_planar, int gaps) {
    Laid made;
    made.shape = lead_;
    made.shape.insert(made.shape.end(), tail.begin(), tail.end());
    made.steps.assign(made.shape.size(), 1);
    made.order.resize(made.shape.size());
    std::iota(made.order.begin(), made.order.end(), std::size_t{0});
    if (may_be_planar && chance(40)) std::rotate(made.order.end() - 3, made.order.end() - 1, made.order.end());
    if (chance(gaps)) {
      for (std::int64_t& step : made.steps) step = pick({1, 1, 2, 3});
    }
    if (lead_.size() == 2 && chance(30)) std::swap(made.order[0], made.order[1]);  // strides that do not merge
    if (chance(gaps)) made.backwards = lead_.size() + static_cast<std::size_t>(uniform(0, 1));
    return made;
  }

  void make_frames() {
    const std::int64_t h = side(), w = side();
    if (chance(80)) lead_ = {pick({0, 1, 2, 5})};
    if (chance(20)) lead_.push_back(pick({1, 3}));
    const int kind = static_cast<int>(uniform(0, 9));
    is_depth_ = kind < 2;
    const bool yuv = kind >= 2 && kind < 5;
    channels_ = is_depth_ ? 1 : (yuv ? 3 : pick({1, 3, 3, 4}));
    std::vector<std::int64_t> tail{h, w};
    if (!is_depth_ && !yuv) tail.push_back(channels_);
    box_ = {h, w};
    pixels_ = laid(tail, tail.size() == 3, 25);
    const auto byte = [&] { return static_cast<double>(chance(10) ? pick({0, 255}) : uniform(0, 255)); };
    if (is_depth_) {
      pixels_.lay(DType::u16,
                  [&] { return static_cast<double>(chance(30) ? 0 : (chance(5) ? 65535 : uniform(1, 9000))); });
    } else {
      pixels_.lay(DType::u8, byte);
    }
    if (yuv) {
      const std::vector<std::int64_t> half{chance(60) ? (h + 1) / 2 : h, (w + 1) / 2};
      if (chance(50)) {
        chroma_.push_back(laid({half[0], half[1], 2}, true, 15));
      } else {
        chroma_.assign(2, laid(half, false, 15));
      }
      for (Laid& plane : chroma_) plane.lay(DType::u8, byte);
      if (chance(70)) frames_.matrix = pick_of({YuvMatrix::bt601, YuvMatrix::bt709, YuvMatrix::bt2020});
      frames_.range = pick_of({YuvRange::limited, YuvRange::full});
      frames_.siting = pick_of({YuvSiting::left, YuvSiting::center});
    }
    if (lead_.size() == 1 && lead_[0] > 0 && chance(40)) {
      const std::int64_t stack = lead_[0];
      lead_[0] = pick({0, 1, 4, 7});
      rows_ = numbers(pick_of({DType::i32, DType::i64}), {lead_[0]},
                      [&] { return static_cast<double>(uniform(0, stack - 1)); });
    }
  }

  void make_places() {
    if (chance(25)) {
      const std::int64_t h = uniform(1, box_[height]), w = uniform(1, box_[width]);
      options_.box = ImageBox{uniform(0, box_[height] - h), uniform(0, box_[width] - w), h, w};
      box_ = {h, w};
    }
    std::vector<std::int64_t> canvas = box_;
    if (chance(80)) {
      canvas = {side(), side()};
      options_.size = ImageSize{canvas[height], canvas[width]};
      options_.fit = pick_of({Fit::stretch, Fit::cover, Fit::contain});
    }
    if (chance(70)) {
      options_.filter = is_depth_ ? pick_of({Filter::nearest, Filter::box})
                                  : pick_of({Filter::bilinear, Filter::box, Filter::bicubic, Filter::nearest});
    }
    size_ = canvas;
    if (!chance(40)) return;
    size_ = {uniform(1, canvas[height]), uniform(1, canvas[width])};
    options_.crop = ImageSize{size_[height], size_[width]};
    const std::int64_t top = canvas[height] - size_[height], left = canvas[width] - size_[width];
    if (chance(30)) {
      options_.crop_offset = ImageOptions::Offset{uniform(0, top), uniform(0, left)};
    } else if (chance(60)) {
      bool is_left = true;
      crop_offsets_ = numbers(pick_of({DType::i32, DType::i64}), {product(lead_), 2}, [&] {
        is_left = !is_left;
        return static_cast<double>(uniform(0, is_left ? left : top));
      });
    }
  }

  void make_values() {
    const auto each = [&](auto& list, auto next) {
      list.clear();
      const std::int64_t count = chance(50) ? 1 : channels_;
      for (std::int64_t c = 0; c < count; ++c) list.push_back(next());
    };
    each(options_.pad, [&] { return static_cast<int>(uniform(0, 255)); });
    options_.layout = pick_of({ImageLayout::nhwc, ImageLayout::nchw});
    if (chance(30)) return;
    options_.dtype = pick_of({DType::f16, DType::bf16, DType::f32});
    if (chance(30)) return;
    each(options_.mean, [&] { return chance(20) ? 0.0 : real(-1, 1); });
    each(options_.std, [&] { return chance(10) ? pick_of({1e-5, 3e4}) : real(0.1, 2); });
  }

  void make_output() {
    std::vector<std::int64_t> tail = size_;
    const bool nchw = options_.layout == ImageLayout::nchw;
    if (!is_depth_) tail.insert(nchw ? tail.begin() : tail.end(), channels_);
    out_ = laid(tail, false, 20);
    const DType dtype = options_.dtype.value_or(is_depth_ ? DType::u16 : DType::u8);
    std::vector<std::int64_t> memory;
    for (const std::size_t d : out_.order) memory.push_back(out_.shape[d] * out_.steps[d]);
    out_.base = {dtype, memory,
                 std::vector<unsigned char>(static_cast<std::size_t>(product(memory) * size_of(dtype)), 0xa5)};
  }

  bool is_depth_ = false;
  std::int64_t channels_ = 1;
  std::vector<std::int64_t> lead_, box_, size_;
  Laid pixels_, out_;
  std::vector<Laid> chroma_;
  Array rows_ = absent(), crop_offsets_ = absent();
  Frames frames_;
  ImageOptions options_;
};

constexpr unsigned cases = 2000;

TEST(Image, CpuEqualsReferenceAtEverySimdTarget) {
  for (unsigned seed = 0; seed < cases; ++seed) {
    Case one(seed);
    expect_cpu_equals_reference(seed_name(seed), [&](Backend backend) { return one.run(backend, DeviceKind::cpu); });
  }
}

TEST(Image, GivesTheGoldenHashes) {
  static constexpr std::string_view hashes[] = {
#include "golden/drawn_image.txt"
  };
  expect_golden("drawn_image.txt", hashes,
                [](unsigned seed, Backend backend, DeviceKind where) { return Case(seed).run(backend, where); });
}

TEST(Image, CudaEqualsReference) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  for (unsigned seed = 0; seed < 4 * cuda_cases(); ++seed) {
    Case one(seed);
    expect_cuda_equals_reference(seed_name(seed),
                                 [&](Backend backend, DeviceKind where) { return one.run(backend, where); });
  }
}

// ---- by hand -------------------------------------------------------------------------------------------------------

// One frame of one channel.
std::vector<std::uint8_t> made(const std::vector<std::uint8_t>& pixels, ImageSize size, const ImageOptions& options) {
  const TensorView view = TensorView::contiguous(pixels.data(), DType::u8, {size.height, size.width, 1});
  const TensorView wanted = image_output({.pixels = view}, options);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(wanted.size()));
  image({.backend = Backend::reference}, {.pixels = view}, options,
        TensorView::contiguous(out.data(), DType::u8, {wanted.shape.data(), static_cast<std::size_t>(wanted.rank)}));
  return out;
}
using List = std::vector<std::uint8_t>;

TEST(Image, BoxMeansNeighbours) {
  const ImageOptions options{.size = ImageSize{1, 2}, .filter = Filter::box};
  EXPECT_EQ(made({10, 20, 30, 41, 50, 60, 70, 80}, {2, 4}, options), (List{35, 56}));  // 35.5 by row: 15, 55 and 36, 75
}

TEST(Image, NearestTakesTheMiddleOfEachPart) {
  EXPECT_EQ(made({0, 1, 2, 3, 4}, {1, 5}, {.size = ImageSize{1, 2}, .filter = Filter::nearest}), (List{1, 3}));
  EXPECT_EQ(made({7, 9}, {1, 2}, {.size = ImageSize{1, 5}, .filter = Filter::nearest}), (List{7, 7, 9, 9, 9}));
}

TEST(Image, ContainPadsAroundTheMiddle) {
  const ImageOptions options{.size = ImageSize{4, 2}, .fit = Fit::contain, .filter = Filter::nearest, .pad = {9}};
  EXPECT_EQ(made({1, 2}, {1, 2}, options), (List{9, 9, 1, 2, 9, 9, 9, 9}));  // 3 rows are left: 1 above, 2 below
}

TEST(Image, CoverCutsTheMiddleOut) {
  const ImageOptions options{.size = ImageSize{1, 2}, .fit = Fit::cover};
  EXPECT_EQ(made({1, 2, 3, 4, 5}, {1, 5}, options), (List{2, 3}));
}

TEST(Image, AFreeSideIsRoundedHalfUpAndIsNeverZero) {
  // 5 x 2 into 1 x 3 by contain: one row, and (2 * 2 * 1 + 5) div 10 = 0 columns, so 1, placed at (3 - 1) div 2.
  const ImageOptions options{.size = ImageSize{1, 3}, .fit = Fit::contain, .pad = {9}};
  EXPECT_EQ(made({4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, {5, 2}, options), (List{9, 4, 9}));
}

TEST(Image, BoxThenResizeThenCrop) {
  const ImageOptions options{.box = ImageBox{0, 1, 1, 3},
                             .size = ImageSize{1, 6},
                             .filter = Filter::nearest,
                             .crop = ImageSize{1, 3},
                             .crop_offset = ImageOptions::Offset{0, 1}};
  EXPECT_EQ(made({1, 2, 3, 4, 5}, {1, 5}, options), (List{2, 3, 3}));
}

TEST(Image, DepthMeansReadingsThatAreNotZero) {
  const std::uint16_t depth[] = {0, 1001, 0, 0, 1000, 0, 0, 0};
  const TensorView view = TensorView::contiguous(depth, DType::u16, {2, 4});
  std::uint16_t out[2] = {7, 7};
  image({}, {.pixels = view}, {.size = ImageSize{1, 2}, .filter = Filter::box},
        TensorView::contiguous(out, DType::u16, {1, 2}));
  EXPECT_EQ(out[0], 1001);  // 1000.5, up
  EXPECT_EQ(out[1], 0);
}

TEST(Image, YuvOfGreyAndOfPureColours) {
  // Limited bt601: white, black, and the red, green and blue of the standard's own table.
  const std::uint8_t y[] = {235, 16, 81, 145, 41}, u[] = {128, 128, 90, 54, 240}, v[] = {128, 128, 240, 34, 110};
  const std::uint8_t expected[][3] = {{255, 255, 255}, {0, 0, 0}, {254, 0, 0}, {0, 255, 1}, {0, 0, 255}};
  for (int k = 0; k < 5; ++k) {
    std::uint8_t rgb[3] = {};
    image({},
          {.pixels = TensorView::contiguous(y + k, DType::u8, {1, 1}),
           .u = TensorView::contiguous(u + k, DType::u8, {1, 1}),
           .v = TensorView::contiguous(v + k, DType::u8, {1, 1}),
           .matrix = YuvMatrix::bt601},
          {}, TensorView::contiguous(rgb, DType::u8, {1, 1, 3}));
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(rgb[c], expected[k][c], 1) << k << ", " << c;
  }
}

TEST(Image, FloatsAreOneFusedMultiplyAndAdd) {
  const std::uint8_t pixel = 200;
  float out = 0;
  image({}, {.pixels = TensorView::contiguous(&pixel, DType::u8, {1, 1, 1})},
        {.dtype = DType::f32, .mean = {0.485}, .std = {0.229}}, TensorView::contiguous(&out, DType::f32, {1, 1, 1}));
  EXPECT_EQ(out, std::fma(200.0F, static_cast<float>(1 / (255 * 0.229)), static_cast<float>(-0.485 / 0.229)));
}

// ---- sentences -----------------------------------------------------------------------------------------------------

class ImageSentences : public testing::Test {
 protected:
  std::string said() {
    const std::string text = sentence([&] {
      const TensorView wanted = image_output(frames, options);
      image(context, frames, options,
            out ? out
                : TensorView::contiguous(memory.data(), wanted.dtype,
                                         {wanted.shape.data(), static_cast<std::size_t>(wanted.rank)}));
    });
    for (const std::uint8_t byte : memory) EXPECT_EQ(byte, 42) << text;  // nothing was written
    return text;
  }
  static TensorView bytes(std::initializer_list<std::int64_t> shape, DType dtype = DType::u8) {
    return TensorView::contiguous(pixels, dtype, shape);
  }

  static constexpr std::uint8_t pixels[64] = {};
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(64, 42);
  Context context;
  Frames frames{.pixels = bytes({2, 4, 2, 3})};
  ImageOptions options;
  TensorView out;
};

TEST_F(ImageSentences, Frames) {
  frames.pixels = {};
  EXPECT_EQ(said(), "image: frames are missing");
  frames.pixels = bytes({2, 2}, DType::f32);
  EXPECT_EQ(said(), "image: frames are float32; they must be uint8 pixels, or uint16 depth");
  frames.pixels = bytes({4, 4});
  EXPECT_EQ(said(), "image: frames have shape [4, 4]; expected [..., H, W, C]");
  frames.pixels = bytes({5, 4, 2});
  EXPECT_EQ(said(),
            "image: frames of shape [5, 4, 2] have 2 channels; expected [..., H, W, C] with 1, 3 or 4 channels");
  frames.pixels = bytes({3, 4, 5});
  EXPECT_EQ(
      said(),
      "image: frames of shape [3, 4, 5] have 5 channels; expected [..., H, W, C] with 1, 3 or 4 channels. Frames of "
      "shape [..., C, H, W] must be permuted: the channels come last");
  frames.pixels = bytes({0, 4, 3});
  EXPECT_EQ(said(), "image: frames are 0 pixels high; expected 1 to 32768");
  frames.pixels = bytes({4, 32769, 3});
  EXPECT_EQ(said(), "image: frames are 32769 pixels wide; expected 1 to 32768");
  frames.pixels = bytes({1, 1, 1, 1, 1, 1, 1, 1}, DType::u16);
  EXPECT_EQ(said(), "image: frames have 6 leading dimensions; at most 5");
}

TEST_F(ImageSentences, Planes) {
  frames.pixels = bytes({5, 4});
  frames.u = bytes({3, 2});
  EXPECT_EQ(said(), "image: chroma is u and v, or uv; give the two planes or the one");
  frames.v = bytes({5, 2});
  EXPECT_EQ(said(), "image: u has shape [3, 2] and v [5, 2]; they must be equal");
  frames.v = bytes({5, 4});
  EXPECT_EQ(
      said(),
      "image: v has shape [5, 4] beside luma of [5, 4]; expected [3, 2] (4:2:0) or [5, 2] (4:2:2). Other formats are "
      "not read; convert them first");
  frames.v = bytes({3, 2}, DType::u16);
  EXPECT_EQ(said(), "image: v is uint16; it must be uint8");
  frames.u = frames.v = {};
  frames.uv = bytes({3, 2});
  EXPECT_EQ(said(),
            "image: uv has shape [3, 2] beside luma of [5, 4]; expected [3, 2, 2] (4:2:0) or [5, 2, 2] (4:2:2). Other "
            "formats are not read; convert them first");
  frames.pixels = bytes({5, 4}, DType::u16);
  EXPECT_EQ(said(), "image: luma is uint16; it must be uint8");
}

TEST_F(ImageSentences, Places) {
  options.size = ImageSize{0, 5};
  EXPECT_EQ(said(), "image: size is (0, 5); expected 1 to 32768 pixels along each side");
  options.size = ImageSize{5, 40000};
  EXPECT_EQ(said(), "image: size is (5, 40000); expected 1 to 32768 pixels along each side");
  options.size = ImageSize{1, 32768};
  options.fit = Fit::cover;
  EXPECT_EQ(said(), "image: to cover (1, 32768) a frame of 4 x 2 would become 65536 pixels long; at most 32768");
  options = {.box = ImageBox{0, 0, 5, 2}};
  EXPECT_EQ(said(), "image: box has 5 rows, and there are 4");
  options = {.box = ImageBox{0, 1, 4, 2}};
  EXPECT_EQ(said(), "image: box has 2 columns from 1 on, and there are 2");
  options = {.crop = ImageSize{0, 1}};
  EXPECT_EQ(said(), "image: crop has 0 rows; expected at least 1");
  options = {.crop = ImageSize{4, 3}};
  EXPECT_EQ(said(), "image: crop has 3 columns, and there are 2");
  options = {.crop = ImageSize{2, 2}, .crop_offset = ImageOptions::Offset{-1, 0}};
  EXPECT_EQ(said(), "image: crop has 2 rows from -1 on, and there are 4");
  options = {.crop_offset = ImageOptions::Offset{1, 0}};
  EXPECT_EQ(said(), "image: a crop's place without its size; give crop = (height, width), too");
}

TEST_F(ImageSentences, Integers) {
  const std::int64_t rows[] = {1, 2};
  frames.rows = TensorView::contiguous(rows, DType::i64, {2});
  EXPECT_EQ(said(), "image: rows[1] = 2 is outside 0..1, the frames that there are");
  frames.rows = TensorView::contiguous(rows, DType::f32, {2});
  EXPECT_EQ(said(), "image: rows is float32; it must be int64 or int32");
  frames.rows = TensorView::contiguous(rows, DType::i64, {1, 2});
  EXPECT_EQ(said(), "image: rows has shape [1, 2]; it must have one dimension");
  frames.rows = TensorView::contiguous(rows, DType::i64, {2});
  frames.pixels = bytes({4, 4, 3});
  EXPECT_EQ(said(), "image: rows choose frames of a stack [N, ...], and frames have shape [4, 4, 3]");
  frames.pixels = bytes({0, 4, 4, 3});
  EXPECT_EQ(said(), "image: rows choose 2 frames of a stack that is empty");
  frames = {.pixels = bytes({2, 4, 2, 3})};
  const std::int32_t offsets[] = {0, 0, 3, -1};
  options.crop = ImageSize{2, 2};
  options.crop_offsets = TensorView::contiguous(offsets, DType::i32, {2, 2});
  EXPECT_EQ(said(), "image: crop_offsets[1][0] = 3 is outside 0..2, where the crop lies inside the frame");
  options.crop_offsets = TensorView::contiguous(offsets, DType::i32, {1, 2});
  EXPECT_EQ(said(), "image: crop_offsets has shape [1, 2]; expected [2, 2]");
  options.crop_offset = ImageOptions::Offset{};
  EXPECT_EQ(said(), "image: crop has a place of its own and crop_offsets; give one");
}

TEST_F(ImageSentences, Values) {
  options.dtype = DType::f64;
  EXPECT_EQ(said(), "image: dtype is float64; expected uint8, float16, bfloat16 or float32");
  options = {.mean = {0.5}};
  EXPECT_EQ(said(), "image: mean and std need a dtype of floats; give float32, bfloat16 or float16");
  options = {.dtype = DType::f32, .mean = {0.5, 0.5}};
  EXPECT_EQ(said(), "image: mean has 2 values; expected one, or one for each of 3 channels");
  options = {.dtype = DType::f32, .mean = {infinity}};
  EXPECT_EQ(said(), "image: mean is inf; it must be finite");
  for (const double wrong : {0.0, -1.0, infinity, not_a_number}) {
    options = {.dtype = DType::f32, .std = {wrong}};
    EXPECT_NE(said().find("; it must be positive and finite"), std::string::npos);
  }
  options = {.dtype = DType::f32, .mean = {1e30}, .std = {1e-30}};
  EXPECT_EQ(said(), "image: mean 1e+30 and std 1e-30 are beyond float32");
  options = {.pad = {0, 256, 0}};
  EXPECT_EQ(said(), "image: pad is 256; expected 0 to 255, a value of the frames");
  options = {.pad = {}};
  EXPECT_EQ(said(), "image: pad has 0 values; expected one, or one for each of 3 channels");
  frames.pixels = bytes({2, 2}, DType::u16);
  options = {.filter = Filter::bilinear};
  EXPECT_EQ(
      said(),
      "image: filter bilinear would mix near and far in depth; use nearest or box, which averages the readings that "
      "there are");
  options = {.dtype = DType::u8};
  EXPECT_EQ(said(), "image: dtype is uint8; expected uint16, float16, bfloat16 or float32");
}

TEST_F(ImageSentences, Outputs) {
  out = TensorView::contiguous(memory.data(), DType::u8, {2, 4, 2, 1});
  EXPECT_EQ(said(), "image: out has shape [2, 4, 2, 1]; expected [2, 4, 2, 3]");
  out = TensorView::contiguous(memory.data(), DType::f32, {2, 4, 2, 3});
  EXPECT_EQ(said(), "image: out is float32; expected uint8");
  out = TensorView::contiguous(memory.data(), DType::u8, {2, 4, 2, 3}, {DeviceKind::cuda, 0});
  EXPECT_EQ(said(), "image: out is on cuda:0 and frames on the CPU; all must be on one device");
  out = {};
  context.backend = Backend::cuda;
  EXPECT_EQ(said(), "image: backend cuda needs arrays on a GPU, and these are on the CPU");
}

TEST(Image, CudaRaisesWhatTheDataHidInTheNextCall) {
  if (!has_cuda()) GTEST_SKIP() << no_cuda();
  Array pixels(DType::u8, {2, 1, 1, 1}, {5, 6});
  Array rows = listed<double>(DType::i64, {1, 2}, {2});
  Array out(DType::u8, {2, 1, 1, 1}, std::vector<unsigned char>(2));
  image({}, {.pixels = pixels.view(DeviceKind::cuda), .rows = rows.view(DeviceKind::cuda)}, {},
        out.view(DeviceKind::cuda));
  EXPECT_EQ(sentence([] { synchronize(); }), "image: rows[1] = 2 is outside 0..1, the frames that there are");
  EXPECT_EQ(sentence([] { synchronize(); }), "no error");
  out.fetch();
  EXPECT_EQ(out.bytes()[0], 6);
}

}  // namespace
}  // namespace robocache::test
