// Resizes by tiles: a block makes some rows and columns of an output frame, a thread one column in all its channels.
//
// Source rows come four at a time. A block splits their channels into shared memory, while it computes with the four rows
// before. A thread resizes the four rows at its column and packs the four bytes of a channel into a word. It keeps the newest
// words + 1 words, from which the output rows are made. So nothing is stored between the two directions.
//
// A weight has 24 bits and a sign. Its three bytes are multiplied separately, four taps at a time (dp4a), and the sums are
// put together modulo 2^32: exact, because the whole sum fits into 32 bits.
#pragma once

#include "ops/image/cuda/bytes.h"
#include "ops/image/cuda/call.h"

namespace robocache::image_op {
namespace {

inline constexpr int chunk_rows = 4;    // source rows at a time: the bytes of a word
inline constexpr int unit_pixels = 16;  // that a thread copies to shared memory at a time

// Bytes times the signed highest bytes of weights.
__device__ __forceinline__ std::int32_t dp4a_signed(std::uint32_t bytes, std::uint32_t weights, std::int32_t sum) {
  std::int32_t result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(bytes), "r"(weights), "r"(sum));
  return result;
}

// The sum of 4 * words taps, rounded but not yet clamped. `taps` are words + 1 words, of which the first tap is byte shift / 8.
template <int words>
__device__ __forceinline__ std::int32_t weighted(const std::uint32_t (&taps)[words + 1],
                                                 const std::uint32_t (&weights)[3 * words], unsigned shift) {
  std::uint32_t low = weighted_half;
  std::uint32_t middle = 0;
  std::int32_t high = 0;
#pragma unroll
  for (int k = 0; k < words; ++k) {
    const std::uint32_t four = __funnelshift_r(taps[k], taps[k + 1], shift);
    low = __dp4a(four, weights[3 * k], low);
    middle = __dp4a(four, weights[3 * k + 1], middle);
    high = dp4a_signed(four, weights[3 * k + 2], high);
  }
  return static_cast<std::int32_t>(low + (middle << 8) + (static_cast<std::uint32_t>(high) << 16)) >> weight_bits;
}

// Four numbers as bytes, clamped to 0 .. 255.
__device__ __forceinline__ std::uint32_t clamped_bytes(const std::int32_t (&x)[4]) {
  std::uint32_t upper;
  std::uint32_t all;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(upper) : "r"(x[3]), "r"(x[2]), "r"(0));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(x[1]), "r"(x[0]), "r"(upper));
  return all;
}

// Pixels (y, x) .. (y, x + 3) of any source, interleaved. Those from `end` on are zero.
template <int channels>
__device__ __noinline__ uint4 four_pixels(const Plan& plan, const Source8& source, std::int32_t y, std::int32_t x,
                                          std::int32_t end) {
  std::uint32_t words[4] = {};
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    if (x + n >= end) break;
    const Colour colour = colour_at(plan, source.pixels, source.u, source.v, y, x + n);
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      const int at = n * channels + c;
      words[at / 4] |= static_cast<std::uint32_t>(colour.value[c]) << 8 * (at % 4);
    }
  }
  return uint4{words[0], words[1], words[2], words[3]};
}

// The tile of a block, in pixels. Source rows and columns are those of the frame.
struct Tile {
  std::int64_t frame;
  std::int32_t row, rows;        // of the output
  std::int32_t column, columns;  // of the output
  std::int32_t y, x;             // the resized pixel of output pixel (0, 0) of the tile
  std::int32_t top, bottom;      // rows of the tile inside the resized box
  std::int32_t left, right;      // columns of it

  __device__ explicit Tile(const Call& call) {
    const Plan& plan = call.plan;
    frame = call.frame + blockIdx.x / call.pieces;
    const auto tile = static_cast<std::int32_t>(blockIdx.x % call.pieces);
    row = tile / call.tiles * call.tile_rows;
    column = tile % call.tiles * call.tile_columns;
    rows = min(call.tile_rows, plan.height.count - row);
    columns = min(call.tile_columns, plan.width.count - column);
    y = first_pixel(plan.height, plan.tops, frame) + row;
    x = first_pixel(plan.width, plan.lefts, frame) + column;
    top = max(0, -y);
    bottom = min(rows, plan.height.resized - y);
    left = max(0, -x);
    right = min(columns, plan.width.resized - x);
  }
  __device__ bool is_padding() const { return top >= bottom || left >= right; }
};

// Brings source rows into shared memory: [2, chunk_rows, channels, pitch] bytes.
template <int channels>
class Rows {
 public:
  // `first` and `rows`: of the box. [left, right): columns of the frame; left is a multiple of 16.
  __device__ Rows(const Call& call, const Source8& source, std::int32_t first, std::int32_t rows, std::int32_t left,
                  std::int32_t right, std::uint8_t* shared)
      : call_(call), source_(source), first_(first), rows_(rows), left_(left), right_(right), shared_(shared) {
    row_units_ = (right - left + unit_pixels - 1) / unit_pixels;
    dense_ = call.plan.source == Source::colour && call.plan.pixels.column == channels &&
             (channels == 1 || call.plan.pixels.channel == 1);
  }

  // One unit is in flight, in registers, while the block computes.
  __device__ void load(int chunk) { load(chunk, static_cast<int>(threadIdx.x)); }
  __device__ void store(int chunk) {
    store(chunk, static_cast<int>(threadIdx.x));
    for (int unit = static_cast<int>(threadIdx.x + blockDim.x); unit < units(); unit += static_cast<int>(blockDim.x)) {
      load(chunk, unit);
      store(chunk, unit);
    }
  }

 private:
  __device__ int units() const { return chunk_rows * row_units_; }

  __device__ void load(int chunk, int unit) {
    if (unit >= units()) return;
    const Plan& plan = call_.plan;
    const int line = unit / row_units_;
    const std::int32_t y =
        plan.height.begin + min(first_ + min(chunk * chunk_rows + line, rows_ - 1), plan.height.box - 1);
    const std::int32_t x = left_ + (unit - line * row_units_) * unit_pixels;
    if (dense_) {
      const std::uint8_t* const row = source_.pixels + y * plan.pixels.row;
      return load_bytes<unit_pixels * channels>(raw_, row + x * channels, row, row + plan.width.frame * channels);
    }
#pragma unroll
    for (int k = 0; k < unit_pixels / 4; ++k) {
      const uint4 four = four_pixels<channels>(plan, source_, y, x + 4 * k, right_);
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int w = 0; w < channels; ++w) raw_[k * channels + w] = words[w];
    }
  }

  __device__ void store(int chunk, int unit) const {
    if (unit >= units()) return;
    const int line = unit / row_units_;
    std::uint32_t planes[channels][4];
#pragma unroll
    for (int k = 0; k < unit_pixels / 4; ++k) {
      std::uint32_t four[channels];
      take_apart<channels>(raw_ + k * channels, four);
#pragma unroll
      for (int c = 0; c < channels; ++c) planes[c][k] = four[c];
    }
    std::uint8_t* const to =
        shared_ + ((chunk & 1) * chunk_rows + line) * channels * call_.pitch + (unit - line * row_units_) * unit_pixels;
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      *reinterpret_cast<uint4*>(to + c * call_.pitch) = uint4{planes[c][0], planes[c][1], planes[c][2], planes[c][3]};
    }
  }

  const Call& call_;
  const Source8& source_;
  std::int32_t first_, rows_, left_, right_, row_units_;
  bool dense_;
  std::uint8_t* shared_;
  std::uint32_t raw_[unit_pixels * channels / 4];
};

// A thread's column of the output.
template <int channels, int words>
struct Column {
  std::uint32_t weights[3 * words] = {};
  std::uint32_t newest[channels][words + 1] = {};  // resized along rows: a byte of each source row
  unsigned shift = 0;                              // in bits, of the first tap in its word
  int word = 0;                                    // the word in shared memory that has the first tap

  // Resizes four rows of shared memory.
  __device__ __forceinline__ void take(const std::uint8_t* shared, int pitch) {
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      std::int32_t bytes[chunk_rows];
#pragma unroll
      for (int line = 0; line < chunk_rows; ++line) {
        const auto* const from = reinterpret_cast<const std::uint32_t*>(shared + (line * channels + c) * pitch) + word;
        std::uint32_t taps[words + 1];
#pragma unroll
        for (int k = 0; k <= words; ++k) taps[k] = from[k];
        bytes[line] = weighted<words>(taps, weights, shift);
      }
      push(c, clamped_bytes(bytes));
    }
  }
  __device__ __forceinline__ void push(int c, std::uint32_t four) {
#pragma unroll
    for (int k = 0; k < words; ++k) newest[c][k] = newest[c][k + 1];
    newest[c][words] = four;
  }
};

// Writes pixels of a thread's column.
struct ColumnOut {
  std::int64_t offset;

  template <class Value>
  __device__ __forceinline__ void store_row(const Plan& plan, int row, int c, const Value& value) const {
    store(plan, offset + row * plan.out.row + c * plan.out.channel, c, static_cast<std::uint16_t>(value));
  }
};

template <int channels>
__device__ __forceinline__ void write_padding(const Plan& plan, const Tile& tile, const ColumnOut& out) {
  const auto column = static_cast<int>(threadIdx.x);
  if (column >= tile.columns) return;
  const bool inside = column >= tile.left && column < tile.right;
  for (int row = 0; row < tile.rows; ++row) {
    if (inside && row >= tile.top && row < tile.bottom) continue;
#pragma unroll
    for (int c = 0; c < channels; ++c) out.store_row(plan, row, c, plan.pad[c]);
  }
}

template <int channels, int words>
__global__ void __launch_bounds__(tuning::tile_threads) image_resize_kernel(const __grid_constant__ Call call) {
  constexpr int entry = packed_words(words);
  extern __shared__ uint4 shared[];
  const Plan& plan = call.plan;
  begin(call);
  const Tile tile(call);
  const auto me = static_cast<int>(threadIdx.x);
  const ColumnOut out{frame_offset(plan, plan.out, tile.frame) + tile.row * plan.out.row +
                      (tile.column + me) * plan.out.column};
  write_padding<channels>(plan, tile, out);
  if (tile.is_padding()) return;

  // The entries of the tile's rows, in shared memory behind the source rows.
  auto* const source_rows = reinterpret_cast<std::uint8_t*>(shared);
  auto* const entries = reinterpret_cast<std::uint32_t*>(source_rows + 2 * chunk_rows * channels * call.pitch);
  const int count = tile.bottom - tile.top;
  const std::uint32_t* const row_table = call.rows.packed + static_cast<std::int64_t>(tile.y + tile.top) * entry;
  for (int k = me; k < count * entry; k += static_cast<int>(blockDim.x)) entries[k] = row_table[k];

  // The source rows and columns that the tile's pixels are made of.
  const auto first_row = static_cast<std::int32_t>(row_table[0]);
  const auto last_first = static_cast<std::int32_t>(row_table[static_cast<std::int64_t>(count - 1) * entry]);
  const std::int32_t source_count = min(last_first + call.rows.taps, plan.height.box) - first_row;
  const std::uint32_t* const column_table = call.columns.packed + static_cast<std::int64_t>(tile.x) * entry;
  const auto column_first = [&](int column) {
    return plan.width.begin + static_cast<std::int32_t>(column_table[static_cast<std::int64_t>(column) * entry]);
  };
  const std::int32_t left = column_first(tile.left) / unit_pixels * unit_pixels;
  const std::int32_t right = min(column_first(tile.right - 1) + call.columns.taps, plan.width.begin + plan.width.box);
  const Source8 source(plan, tile.frame);
  Rows<channels> rows(call, source, first_row, source_count, left, right, source_rows);

  const bool active = me >= tile.left && me < tile.right;
  Column<channels, words> column;
  if (active) {
    const std::uint32_t* const mine = column_table + static_cast<std::int64_t>(me) * entry;
#pragma unroll
    for (int k = 0; k < 3 * words; ++k) column.weights[k] = mine[1 + k];
    const auto past = static_cast<unsigned>(column_first(me) - left);
    column.shift = past % 4 * 8;
    column.word = static_cast<int>(past / 4);
  }

  const int chunks = (source_count + chunk_rows - 1) / chunk_rows;
  const int last_chunk = (last_first - first_row) / chunk_rows + words;  // the newest word of the last row
  rows.load(0);
  rows.store(0);
  __syncthreads();
  int next = 0;  // row of the output, counted from tile.top
  for (int chunk = 0; chunk <= last_chunk; ++chunk) {
    const bool more = chunk + 1 < chunks;
    if (more) rows.load(chunk + 1);
    if (chunk < chunks) {
      column.take(source_rows + (chunk & 1) * chunk_rows * channels * call.pitch, call.pitch);
    } else {
#pragma unroll
      for (int c = 0; c < channels; ++c) column.push(c, 0);
    }
    for (; next < count; ++next) {
      const std::uint32_t* const mine = entries + next * entry;
      const auto first = static_cast<int>(mine[0]) - first_row;
      if (first / chunk_rows + words != chunk) break;
      std::uint32_t weights[3 * words];
#pragma unroll
      for (int k = 0; k < 3 * words; ++k) weights[k] = mine[1 + k];
      if (!active) continue;
#pragma unroll
      for (int c = 0; c < channels; ++c) {
        const std::int32_t sum = weighted<words>(column.newest[c], weights, static_cast<unsigned>(first % 4 * 8));
        out.store_row(plan, tile.top + next, c, min(max(sum, 0), 255));
      }
    }
    if (more) rows.store(chunk + 1);
    __syncthreads();
  }
}

}  // namespace
}  // namespace robocache::image_op
