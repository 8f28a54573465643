// Tiles of queries that meet blocks of keys, compiled once for each SIMD target. Everything is float32 once it is laid out;
// five products of matrices, forward and backward, are one function.
#include "ops/attention/cpu.h"

#include "core/vectors.h"
#include "ops/attention/host.h"

namespace robocache::attention_op {
inline namespace ROBOCACHE_SIMD_TARGET {
namespace {

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr std::int64_t lanes = HWY_LANES(float);
constexpr int most_vectors = HWY_ARCH_X86 && lanes == 8 ? 2 : 4;  // of a product's columns: 16 registers, or 32
constexpr float nothing_seen = -std::numeric_limits<float>::infinity();
constexpr std::uint64_t all_keys = ~std::uint64_t{0};

// ---- products ------------------------------------------------------------------------------------------------------

// Seen by rows and columns; data[r * row + k * column].
struct Matrix {
  const float* data;
  std::int64_t row, column;
};

// c = a b for `rows` rows and `vectors` vectors of columns, or c = rescale c + a b where keeps. What is kept comes in the end:
// a chain of sums is as long as the product is deep, and so are its roundings.
template <int rows, int vectors, bool keeps>
HWY_INLINE void multiply_part(const Matrix& a, const float* b, std::int64_t b_row, std::int64_t depth, float* c,
                              std::int64_t c_row, const float* rescale) {
  const Floats d;
  Vector sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector row[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) row[v] = hn::LoadU(d, b + k * b_row + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Vector factor = hn::Set(d, a.data[r * a.row + k * a.column]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::MulAdd(factor, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      float* const to = c + r * c_row + v * lanes;
      if constexpr (keeps) {
        const Vector kept = hn::LoadU(d, to);
        sums[r][v] =
            rescale == nullptr ? hn::Add(kept, sums[r][v]) : hn::MulAdd(kept, hn::Set(d, rescale[r]), sums[r][v]);
      }
      hn::StoreU(sums[r][v], d, to);
    }
  }
}

// How many of those that are left come next, so that the last ones are not few.
HWY_INLINE std::int64_t next_part(std::int64_t left, std::int64_t most) {
  const std::int64_t parts = divide_up(left, most);
  return parts > 1 ? divide_up(left, parts) : left;
}

// A product with whole vectors of columns, in parts that fit the registers.
template <bool keeps>
struct Product {
  Matrix a;
  std::int64_t rows, depth;
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  const float* rescale;

  template <int vectors, int high = row_step>
  void multiply_rows(std::int64_t r, std::int64_t count, std::int64_t column) const {
    if (count < high) {
      if constexpr (high > 1) multiply_rows<vectors, high - 1>(r, count, column);
      return;
    }
    multiply_part<high, vectors, keeps>({a.data + r * a.row, a.row, a.column}, b + column, b_row, depth,
                                        c + r * c_row + column, c_row, rescale == nullptr ? nullptr : rescale + r);
  }
  template <int vectors = most_vectors>
  void multiply_columns(std::int64_t column, std::int64_t count) const {
    if (count < vectors) {
      if constexpr (vectors > 1) multiply_columns<vectors - 1>(column, count);
      return;
    }
    for (std::int64_t r = 0, next = 0; r < rows; r += next) {
      next = next_part(rows - r, row_step);
      multiply_rows<vectors>(r, next, column);
    }
  }
  void multiply(std::int64_t columns) const {
    for (std::int64_t column = 0, next = 0; column < columns; column += next * lanes) {
      next = next_part((columns - column) / lanes, most_vectors);
      multiply_columns(column, next);
    }
  }
};

// ---- exponentials --------------------------------------------------------------------------------------------------

// Within 2 units in the last place; 0 below the smallest normal number; exactly 1 of 0; NaN of NaN.
HWY_INLINE Vector exponential(Vector x) {
  const Floats d;
  const hn::Rebind<std::int32_t, Floats> whole;
  constexpr float lowest = -87.33654F;
  constexpr float highest = 88.37626F;
  const auto vanishes = hn::Lt(x, hn::Set(d, lowest));
  x = hn::Max(hn::Set(d, lowest), hn::Min(hn::Set(d, highest), x));  // in this order a NaN stays
  const auto power = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504F)));
  const Vector n = hn::ConvertTo(d, power);
  // ln 2 in two parts, of which the first has zeros at its end.
  const Vector r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x));
  Vector sum = hn::Set(d, 1.9875691500e-4F);  // Cephes, expf
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.3981999507e-3F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 8.3334519073e-3F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 4.1665795894e-2F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.6666665459e-1F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 5.0000001201e-1F));
  sum = hn::Add(hn::MulAdd(sum, hn::Mul(r, r), r), hn::Set(d, 1.0F));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(power, hn::Set(whole, 127))));
  return hn::IfThenZeroElse(vanishes, hn::Mul(sum, scale));
}
HWY_INLINE float exponential(float x) { return hn::GetLane(exponential(hn::Set(Floats(), x))); }

// ---- tiles and blocks ----------------------------------------------------------------------------------------------

// Memory of a task.
struct Room {
  float *queries, *sums, *d_out, *keys, *values, *keys_across, *values_across, *scores, *d_scores, *d_keys, *d_values;
  std::int64_t width;  // from vector to vector

  Room(const Plan& plan, float* scratch) : width(stride_of(plan)) {
    scratch += (64 - reinterpret_cast<std::uintptr_t>(scratch) % 64) / sizeof(float) % pad;  // of a line of the cache
    const auto take = [&](std::int64_t floats) {
      float* const taken = scratch;
      scratch += floats;
      return taken;
    };
    queries = take(most_rows * width);
    sums = take(most_rows * width);
    d_out = take(most_rows * width);
    scores = take(most_rows * block_keys);
    d_scores = take(most_rows * block_keys);
    keys = take(block_keys * width);
    values = take(block_keys * width);
    keys_across = take(block_keys * width);
    values_across = take(block_keys * width);
    d_keys = take(block_keys * width);
    d_values = take(block_keys * width);
  }
};

struct Tile {
  const Plan& plan;
  Sequence sequence;
  std::int64_t g, group, first, count;  // the key head, how many heads read it, rows

  std::int64_t query(std::int64_t r) const { return (first + r) / group; }
  std::int64_t head(std::int64_t r) const { return g * group + (first + r) % group; }
  template <class T>
  T* vector(const Vectors& vectors, std::int64_t r) const {
    return vector_at<T>(vectors, sequence.number, head(r), sequence.first_query + query(r));
  }
  std::int64_t in_lse(std::int64_t r) const { return lse_offset(plan, sequence, head(r), query(r)); }

  // That any row may see by its position; both ends move on with the query.
  KeyRange keys() const {
    const std::int64_t begin = keys_in_window(plan, sequence, query(0)).first;
    const std::int64_t end = keys_in_window(plan, sequence, query(count - 1)).end;
    return {begin, end < begin ? begin : end};
  }
};

Tile tile_of(const Plan& plan, const Tiling& tiling, std::int64_t b, std::int64_t g, std::int64_t t) {
  const Sequence sequence = sequence_of(plan, b);
  const std::int64_t rows = sequence.queries * plan.group();
  const std::int64_t first = clamp_to(t * tiling.rows, 0, rows);
  return {plan, sequence, g, rows > 0 ? plan.group() : 1, first, clamp_to(rows - first, 0, tiling.rows)};
}
// Of all tiles, number t.
Tile tile_of(const Plan& plan, const Tiling& tiling, std::int64_t t) {
  const std::int64_t head = t / tiling.tiles;
  return tile_of(plan, tiling, head / plan.kv_heads, head % plan.kv_heads, t % tiling.tiles);
}

// Keys of a sequence, and which of them each row of a tile sees: bit j is key first + j.
struct Block {
  std::int64_t first, count;
  std::uint64_t rows[most_rows];
  std::uint64_t seen;  // by any row
  bool whole;          // every row sees all of 64 keys

  std::int64_t columns() const { return divide_up(count, lanes) * lanes; }
};

HWY_INLINE std::uint64_t ones(std::int64_t count) {
  return count >= block_keys ? all_keys : (std::uint64_t{1} << count) - 1;
}

// ranks[j] <= rank, for a whole block.
HWY_INLINE std::uint64_t bits_up_to(const std::int32_t* ranks, std::int32_t rank) {
  const hn::ScalableTag<std::int32_t> d;
  std::uint64_t bits = 0;
  for (std::int64_t j = 0; j < block_keys; j += lanes) {
    std::uint64_t part = 0;
    hn::StoreMaskBits(d, hn::Not(hn::Gt(hn::LoadU(d, ranks + j), hn::Set(d, rank))),
                      reinterpret_cast<std::uint8_t*>(&part));
    bits |= part << j;
  }
  return bits;
}

// One byte for each key: not zero.
HWY_INLINE std::uint64_t bits_of_bytes(const std::uint8_t* bytes, std::int64_t step, std::int64_t count) {
  std::uint8_t here[block_keys] = {};
  if (step == 1) {
    std::memcpy(here, bytes, static_cast<std::size_t>(count));
  } else {
    for (std::int64_t j = 0; j < count; ++j) here[j] = bytes[j * step];
  }
  const hn::CappedTag<std::uint8_t, block_keys> d;
  constexpr std::int64_t step_bytes = hn::MaxLanes(hn::CappedTag<std::uint8_t, block_keys>());
  std::uint64_t bits = 0;
  for (std::int64_t j = 0; j < block_keys; j += step_bytes) {
    std::uint64_t part = 0;
    hn::StoreMaskBits(d, hn::Ne(hn::LoadU(d, here + j), hn::Zero(d)), reinterpret_cast<std::uint8_t*>(&part));
    bits |= part << j;
  }
  return bits;
}

void look(const Tile& tile, std::int64_t first, std::int64_t count, Block& block) {
  const Plan& plan = tile.plan;
  const Sequence& sequence = tile.sequence;
  block.first = first;
  block.count = count;
  const bool ranked = plan.key_ranks.data != nullptr;
  const bool in_all_windows = first >= keys_in_window(plan, sequence, tile.query(tile.count - 1)).first &&
                              first + count <= keys_in_window(plan, sequence, tile.query(0)).end;
  if (in_all_windows && !ranked && plan.key_valid.data == nullptr && plan.dense == nullptr) {
    for (std::int64_t r = 0; r < tile.count; ++r) block.rows[r] = ones(count);
    block.seen = ones(count);
    block.whole = count == block_keys;
    return;
  }
  std::uint64_t valid = ones(count);
  if (plan.key_valid.data != nullptr) {
    const std::int64_t place =
        sequence.number * plan.key_valid.batch + (sequence.first_key + first) * plan.key_valid.row;
    valid = bits_of_bytes(static_cast<const std::uint8_t*>(plan.key_valid.data) + place, plan.key_valid.row, count);
  }
  std::int32_t ranks[block_keys] = {};
  for (std::int64_t j = 0; ranked && j < count; ++j) {
    ranks[j] = rank_at(plan.key_ranks, sequence.number, sequence.first_key + first + j);
  }
  block.seen = 0;
  std::uint64_t common = all_keys;
  std::int64_t before = -1;
  std::uint64_t of_query = 0;
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const std::int64_t i = tile.query(r);
    if (i != before) {
      const KeyRange range = keys_in_window(plan, sequence, i);
      of_query = valid & ones(clamp_to(range.end - first, 0, count)) & ~ones(clamp_to(range.first - first, 0, count));
      if (ranked) of_query &= bits_up_to(ranks, rank_at(plan.query_ranks, sequence.number, sequence.first_query + i));
      before = i;
    }
    std::uint64_t bits = of_query;
    if (plan.dense != nullptr) {
      bits &= bits_of_bytes(plan.dense + sequence.number * plan.dense_batch + tile.head(r) * plan.dense_head +
                                i * plan.dense_query + first * plan.dense_key,
                            plan.dense_key, count);
    }
    block.rows[r] = bits;
    block.seen |= bits;
    common &= bits;
  }
  block.whole = common == all_keys;
}

// ---- layout --------------------------------------------------------------------------------------------------------

template <class T>
HWY_INLINE void lay_out(const T* from, float* to, std::int64_t size, std::int64_t width) {
  over_channels<float>(size, [=](auto d, std::int64_t k) HWY_ATTR { hn::StoreU(load(d, from + k), d, to + k); });
  for (std::int64_t k = size; k < width; ++k) to[k] = 0;
}

template <class T>
void lay_out_rows(const Tile& tile, const Vectors& vectors, float* to, std::int64_t width) {
  for (std::int64_t r = 0; r < tile.count; ++r) {
    lay_out(tile.vector<const T>(vectors, r), to + r * width, tile.plan.head_dim, width);
  }
}

// The keys or values of a block as rows of floats. What nobody sees becomes zeros, unread.
template <class T>
void lay_out_block(const Tile& tile, const Block& block, Vectors Segment::*part, float* to, std::int64_t width) {
  const Plan& plan = tile.plan;
  for (std::int64_t j = 0; j < block.columns(); ++j) {
    if ((block.seen >> j & 1) == 0) {
      for (std::int64_t k = 0; k < width; ++k) to[j * width + k] = 0;
      continue;
    }
    const Place place = place_of(plan, tile.sequence, block.first + j);
    lay_out(vector_at<const T>(plan.segments[place.segment].*part, tile.sequence.number, tile.g, place.n),
            to + j * width, plan.head_dim, width);
  }
}

// Vectors of a block become columns. The inner loop writes lines of the cache from end to end.
void turn(const float* from, std::int64_t count, std::int64_t size, std::int64_t width, float* to) {
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const auto lower = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  const auto upper = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  for (std::int64_t k = 0; k < size; k += 4) {
    for (std::int64_t j = 0; j < count; j += 4) {
      const float* const corner = from + j * width + k;
      const auto a = hn::LoadU(d, corner);
      const auto b = hn::LoadU(d, corner + width);
      const auto e = hn::LoadU(d, corner + 2 * width);
      const auto f = hn::LoadU(d, corner + 3 * width);
      const auto ab_low = hn::InterleaveLower(d, a, b);
      const auto ab_high = hn::InterleaveUpper(d, a, b);
      const auto ef_low = hn::InterleaveLower(d, e, f);
      const auto ef_high = hn::InterleaveUpper(d, e, f);
      float* const turned = to + k * block_keys + j;
      hn::StoreU(lower(ab_low, ef_low), d, turned);
      hn::StoreU(upper(ab_low, ef_low), d, turned + block_keys);
      hn::StoreU(lower(ab_high, ef_high), d, turned + 2 * block_keys);
      hn::StoreU(upper(ab_high, ef_high), d, turned + 3 * block_keys);
    }
  }
}

bool is_finite(const float* data, std::int64_t size) {
  const Floats d;
  Vector any = hn::Zero(d);
  for (std::int64_t k = 0; k < size; k += lanes) any = hn::MulAdd(hn::LoadU(d, data + k), hn::Zero(d), any);
  return hn::AllTrue(d, hn::Eq(any, hn::Zero(d)));
}

// scores = rows . columns, of a tile and a block; in parts, so that chains of sums stay short.
void score(const Tile& tile, const Block& block, const float* rows, const float* columns, std::int64_t width,
           float* scores) {
  constexpr std::int64_t most_depth = 32;
  for (std::int64_t k = 0; k < tile.plan.head_dim; k += most_depth) {
    const std::int64_t depth = clamp_to(tile.plan.head_dim - k, 0, most_depth);
    const Matrix part{rows + k, width, 1};
    const float* const across = columns + k * block_keys;
    if (k == 0) {
      Product<false>{part, tile.count, depth, across, block_keys, scores, block_keys, nullptr}.multiply(
          block.columns());
    } else {
      Product<true>{part, tile.count, depth, across, block_keys, scores, block_keys, nullptr}.multiply(block.columns());
    }
  }
}

// sums = rescale * sums + weights . vectors. A weight of 0 times a number that is not finite would reach rows that do not
// see it: then each row adds what it sees.
void add_seen(const Tile& tile, const Block& block, const float* weights, const float* vectors, std::int64_t width,
              const float* rescale, float* sums) {
  if (block.whole || is_finite(vectors, block.count * width)) {
    return Product<true>{{weights, block_keys, 1}, tile.count, block.count, vectors, width, sums, width, rescale}
        .multiply(padded(tile.plan.head_dim));
  }
  const Floats d;
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const Vector factor = hn::Set(d, rescale == nullptr ? 1.0F : rescale[r]);
    for (std::int64_t k = 0; k < width; k += lanes) {
      Vector sum = hn::Mul(hn::LoadU(d, sums + r * width + k), factor);
      for (std::uint64_t left = block.rows[r]; left != 0; left &= left - 1) {
        const std::int64_t j = __builtin_ctzll(left);
        sum = hn::MulAdd(hn::Set(d, weights[r * block_keys + j]), hn::LoadU(d, vectors + j * width + k), sum);
      }
      hn::StoreU(sum, d, sums + r * width + k);
    }
  }
}

HWY_INLINE Vector where_seen(std::uint64_t bits, std::int64_t j, Vector x, Vector otherwise) {
  const Floats d;
  const std::uint64_t part = bits >> j;
  return hn::IfThenElse(hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&part)), x, otherwise);
}

// ---- forward -------------------------------------------------------------------------------------------------------

// Of each row: the largest score, the sum of exponentials, and what sums so far are multiplied with.
struct Softmax {
  float largest[most_rows], sum[most_rows], rescale[most_rows];
};

// Scores become weights.
void weigh(const Tile& tile, const Block& block, float* scores, Softmax& softmax) {
  const Floats d;
  const Vector scale = hn::Set(d, static_cast<float>(tile.plan.scale));
  const Vector hidden = hn::Set(d, nothing_seen);
  float here[most_rows] = {};
  for (std::int64_t r = 0; r < tile.count; ++r) {
    Vector most = hidden;
    for (std::int64_t j = 0; j < block.columns(); j += lanes) {
      const Vector score = hn::Mul(hn::LoadU(d, scores + r * block_keys + j), scale);
      most = hn::Max(most, block.whole ? score : where_seen(block.rows[r], j, score, hidden));
    }
    here[r] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  float shifts[most_rows];
  for (std::int64_t r = 0; r < tile.count; r += lanes) {
    const Vector before = hn::LoadU(d, softmax.largest + r);
    const Vector largest = hn::Max(before, hn::LoadU(d, here + r));
    // Where a row has seen nothing, exponentials of -inf are to be 0, not NaN.
    const Vector shift = hn::IfThenZeroElse(hn::Eq(largest, hidden), largest);
    hn::StoreU(largest, d, softmax.largest + r);
    hn::StoreU(shift, d, shifts + r);
    hn::StoreU(exponential(hn::Sub(before, shift)), d, softmax.rescale + r);
  }
  for (std::int64_t r = 0; r < tile.count; ++r) {
    float* const row = scores + r * block_keys;
    const Vector shift = hn::Set(d, shifts[r]);
    Vector sum = hn::Zero(d);
    for (std::int64_t j = 0; j < block.columns(); j += lanes) {
      Vector weight = exponential(hn::MulSub(hn::LoadU(d, row + j), scale, shift));
      if (!block.whole) weight = where_seen(block.rows[r], j, weight, hn::Zero(d));
      hn::StoreU(weight, d, row + j);
      sum = hn::Add(sum, weight);
    }
    softmax.sum[r] = softmax.sum[r] * softmax.rescale[r] + hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <class T>
void finish_row(const Tile& tile, std::int64_t r, const float* sums, float largest, float sum) {
  const Plan& plan = tile.plan;
  T* const out = tile.vector<T>(plan.out, r);
  const float divisor = largest == nothing_seen ? 1.0F : sum;
  over_channels<float>(plan.head_dim, [=](auto d, std::int64_t k) HWY_ATTR {
    store(d, hn::Div(hn::LoadU(d, sums + k), hn::Set(d, divisor)), out + k);
  });
  if (plan.lse != nullptr) plan.lse[tile.in_lse(r)] = largest == nothing_seen ? largest : largest + ::logf(sum);
}

// A part of the keys of a tile.
template <class T>
void attend_tile(const Tile& tile, const KeyRange& keys, const Room& room, float* partial) {
  const Plan& plan = tile.plan;
  Softmax softmax;
  for (std::int64_t r = 0; r < most_rows; ++r) {
    softmax.largest[r] = nothing_seen;
    softmax.sum[r] = 0;
  }
  for (std::int64_t k = 0; k < tile.count * room.width; ++k) room.sums[k] = 0;
  if (keys.first < keys.end) lay_out_rows<T>(tile, plan.q, room.queries, room.width);
  Block block;
  for (std::int64_t j = keys.first; j < keys.end; j += block_keys) {
    look(tile, j, clamp_to(keys.end - j, 0, block_keys), block);
    if (block.seen == 0) continue;
    lay_out_block<T>(tile, block, &Segment::keys, room.keys, room.width);
    turn(room.keys, block.columns(), tile.plan.head_dim, room.width, room.keys_across);
    score(tile, block, room.queries, room.keys_across, room.width, room.scores);
    weigh(tile, block, room.scores, softmax);
    lay_out_block<T>(tile, block, &Segment::values, room.values, room.width);
    add_seen(tile, block, room.scores, room.values, room.width, softmax.rescale, room.sums);
  }
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const float* const sums = room.sums + r * room.width;
    if (partial == nullptr) {
      finish_row<T>(tile, r, sums, softmax.largest[r], softmax.sum[r]);
      continue;
    }
    float* const row = partial + r * partial_row(plan);
    for (std::int64_t k = 0; k < padded(plan.head_dim); ++k) row[k] = sums[k];
    row[padded(plan.head_dim)] = softmax.largest[r];
    row[padded(plan.head_dim) + 1] = softmax.sum[r];
  }
}

// The splits of a row, in their order.
template <class T>
void merge_row(const Tile& tile, std::int64_t r, const float* partial, std::int64_t splits, std::int64_t step,
               float* sums) {
  const Floats d;
  const std::int64_t width = padded(tile.plan.head_dim);
  float largest = nothing_seen;
  for (std::int64_t s = 0; s < splits; ++s) {
    const float here = partial[s * step + width];
    largest = here > largest ? here : largest;
  }
  for (std::int64_t k = 0; k < width; ++k) sums[k] = 0;
  float sum = 0;
  for (std::int64_t s = 0; s < splits; ++s) {
    const float* const row = partial + s * step;
    const float weight = exponential(row[width] - (largest == nothing_seen ? 0.0F : largest));
    sum += weight * row[width + 1];
    for (std::int64_t k = 0; k < width; k += lanes) {
      hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, row + k), hn::LoadU(d, sums + k)), d, sums + k);
    }
  }
  finish_row<T>(tile, r, sums, largest, sum);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Rows of a tile as the backward pass needs them.
struct Slopes {
  float lse[most_rows], delta[most_rows];
};

template <class T>
void lay_out_slopes(const BackwardPlan& backward, const Tile& tile, const Room& room, Slopes& slopes) {
  const Plan& plan = tile.plan;
  lay_out_rows<T>(tile, plan.q, room.queries, room.width);
  lay_out_rows<T>(tile, backward.d_out, room.d_out, room.width);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const T* const out = tile.vector<const T>(plan.out, r);
    float* const d_out = room.d_out + r * room.width;
    slopes.lse[r] = plan.lse[tile.in_lse(r)];
    if (slopes.lse[r] == nothing_seen) {  // it may hold NaN, and 0 times that would reach keys
      for (std::int64_t k = 0; k < room.width; ++k) room.queries[r * room.width + k] = d_out[k] = 0;
    }
    float delta = 0;
    over_channels<float>(plan.head_dim, [&](auto d, std::int64_t k) HWY_ATTR {
      delta += hn::GetLane(hn::SumOfLanes(d, hn::Mul(load(d, out + k), hn::LoadU(d, d_out + k))));
    });
    slopes.delta[r] = backward.d_lse == nullptr ? delta : delta - backward.d_lse[tile.in_lse(r)];
  }
}

// Weights and the gradients of scores of a tile and a block whose keys and values are laid out across.
void differentiate_scores(const Tile& tile, const Block& block, const Room& room, const Slopes& slopes) {
  const Floats d;
  const auto scale = static_cast<float>(tile.plan.scale);
  score(tile, block, room.queries, room.keys_across, room.width, room.scores);
  score(tile, block, room.d_out, room.values_across, room.width, room.d_scores);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    float* const weights = room.scores + r * block_keys;
    float* const d_scores = room.d_scores + r * block_keys;
    const std::uint64_t bits = slopes.lse[r] == nothing_seen ? 0 : block.rows[r];
    for (std::int64_t j = 0; j < block.columns(); j += lanes) {
      const Vector score = hn::Mul(hn::LoadU(d, weights + j), hn::Set(d, scale));
      const Vector weight = where_seen(bits, j, exponential(hn::Sub(score, hn::Set(d, slopes.lse[r]))), hn::Zero(d));
      const Vector slope = hn::Sub(hn::LoadU(d, d_scores + j), hn::Set(d, slopes.delta[r]));
      hn::StoreU(weight, d, weights + j);
      hn::StoreU(where_seen(bits, j, hn::Mul(hn::Set(d, scale), hn::Mul(weight, slope)), hn::Zero(d)), d, d_scores + j);
    }
  }
}

template <class T>
void lay_out_both(const Tile& tile, const Block& block, const Room& room) {
  lay_out_block<T>(tile, block, &Segment::keys, room.keys, room.width);
  turn(room.keys, block.columns(), tile.plan.head_dim, room.width, room.keys_across);
  lay_out_block<T>(tile, block, &Segment::values, room.values, room.width);
  turn(room.values, block.columns(), tile.plan.head_dim, room.width, room.values_across);
}

template <class T>
void write_row(const float* from, T* to, std::int64_t size) {
  over_channels<float>(size, [=](auto d, std::int64_t k) HWY_ATTR { store(d, hn::LoadU(d, from + k), to + k); });
}

template <class T>
void differentiate_tile(const BackwardPlan& backward, const Tile& tile, const Room& room) {
  Slopes slopes;
  lay_out_slopes<T>(backward, tile, room, slopes);
  for (std::int64_t k = 0; k < tile.count * room.width; ++k) room.sums[k] = 0;
  Block block;
  const KeyRange keys = tile.keys();
  for (std::int64_t j = keys.first; j < keys.end; j += block_keys) {
    look(tile, j, clamp_to(keys.end - j, 0, block_keys), block);
    if (block.seen == 0) continue;
    lay_out_both<T>(tile, block, room);
    differentiate_scores(tile, block, room, slopes);
    add_seen(tile, block, room.d_scores, room.keys, room.width, nullptr, room.sums);
  }
  for (std::int64_t r = 0; r < tile.count; ++r) {
    write_row(room.sums + r * room.width, tile.vector<T>(backward.d_q, r), tile.plan.head_dim);
  }
}

// Of the keys of a block, over all tiles of queries.
template <class T>
void differentiate_block(const BackwardPlan& backward, const Tiling& tiling, const Sequence& sequence, std::int64_t g,
                         std::int64_t first, const Room& room) {
  const Plan& plan = backward.forward;
  const std::int64_t count = clamp_to(sequence.keys - first, 0, block_keys);
  for (std::int64_t k = 0; k < block_keys * room.width; ++k) room.d_keys[k] = room.d_values[k] = 0;
  Block block;
  Slopes slopes;
  for (std::int64_t t = 0; t < tiling.tiles; ++t) {
    const Tile tile = tile_of(plan, tiling, sequence.number, g, t);
    if (tile.count == 0) break;
    look(tile, first, count, block);
    if (block.seen == 0) continue;
    lay_out_both<T>(tile, block, room);
    lay_out_slopes<T>(backward, tile, room, slopes);
    differentiate_scores(tile, block, room, slopes);
    const auto add = [&](const float* weights, const float* vectors, float* sums) {
      Product<true>{{weights, 1, block_keys}, count, tile.count, vectors, room.width, sums, room.width, nullptr}
          .multiply(padded(plan.head_dim));
    };
    add(room.d_scores, room.queries, room.d_keys);
    add(room.scores, room.d_out, room.d_values);
  }
  for (std::int64_t j = 0; j < count; ++j) {
    const Place place = place_of(plan, sequence, first + j);
    const auto write = [&](const Vectors& to, const float* from) {
      if (to.data == nullptr) return;
      write_row(from + j * room.width, vector_at<T>(to, sequence.number, g, place.n), plan.head_dim);
    };
    write(backward.d_keys[place.segment], room.d_keys);
    write(backward.d_values[place.segment], room.d_values);
  }
}

}  // namespace

// ---- what threads.cpp calls ----------------------------------------------------------------------------------------

// Tasks [begin, end). `partials` has tiling.rows rows for each task where keys are split.
void attend(const Plan& plan, const Tiling& tiling, std::int64_t begin, std::int64_t end, float* scratch,
            float* partials) {
  const Room room(plan, scratch);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t task = begin; task < end; ++task) {
      const Tile tile = tile_of(plan, tiling, task / tiling.splits);
      if (tile.count == 0) continue;
      KeyRange keys = tile.keys();
      if (tiling.splits > 1) {
        const std::int64_t split = task % tiling.splits * tiling.split_keys;
        keys = {clamp_to(split, keys.first, keys.end), clamp_to(split + tiling.split_keys, keys.first, keys.end)};
      }
      attend_tile<typename decltype(type)::type>(
          tile, keys, room, partials == nullptr ? nullptr : partials + task * tiling.rows * partial_row(plan));
    }
  });
}

// Of tiles [begin, end), once all of their splits are done.
void merge(const Plan& plan, const Tiling& tiling, std::int64_t begin, std::int64_t end, float* scratch,
           const float* partials) {
  const Room room(plan, scratch);
  const std::int64_t step = tiling.rows * partial_row(plan);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Tile tile = tile_of(plan, tiling, t);
      for (std::int64_t r = 0; r < tile.count; ++r) {
        merge_row<typename decltype(type)::type>(tile, r, partials + t * tiling.splits * step + r * partial_row(plan),
                                                 tiling.splits, step, room.sums);
      }
    }
  });
}

// Of tiles [begin, end).
void differentiate_queries(const BackwardPlan& backward, const Tiling& tiling, std::int64_t begin, std::int64_t end,
                           float* scratch) {
  const Plan& plan = backward.forward;
  const Room room(plan, scratch);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Tile tile = tile_of(plan, tiling, t);
      if (tile.count > 0) differentiate_tile<typename decltype(type)::type>(backward, tile, room);
    }
  });
}

// Of blocks [begin, end) of keys.
void differentiate_keys(const BackwardPlan& backward, const Tiling& tiling, std::int64_t begin, std::int64_t end,
                        float* scratch) {
  const Plan& plan = backward.forward;
  const Room room(plan, scratch);
  with_vector_type(plan.dtype, [&](auto type) {
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t head = k / tiling.key_blocks;
      const Sequence sequence = sequence_of(plan, head / plan.kv_heads);
      const std::int64_t first = k % tiling.key_blocks * block_keys;
      if (first >= sequence.keys) continue;
      differentiate_block<typename decltype(type)::type>(backward, tiling, sequence, head % plan.kv_heads, first, room);
    }
  });
}

}  // namespace ROBOCACHE_SIMD_TARGET
}  // namespace robocache::attention_op
