// The order in which a loader goes through its windows, and the random numbers of a window.
//
// ```cpp
// // Rank 1 of 2, batches of 128 windows: the window numbers of global batch 40.
// const std::int64_t windows = 12'000, batch = 128, world = 2, rank = 1;
// std::vector<std::int64_t> numbers(batch);
// robocache::window_order(windows, /*seed=*/7, /*first=*/40 * world * batch + rank * batch, /*shuffle=*/true, numbers);
//
// // A random number for each of these positions, for one decision: here the crop of a camera.
// std::vector<std::int64_t> positions(batch);
// for (std::size_t k = 0; k < positions.size(); ++k) {
//   positions[k] = 40 * world * batch + rank * batch + static_cast<std::int64_t>(k);
// }
// std::vector<std::uint64_t> crops(batch);
// robocache::draw(/*seed=*/7, positions, "wrist", "crop", crops);
//
// // Two data sets, three windows of the first to one of the second: the source and its own position, at each position.
// const std::vector<std::int64_t> shares = robocache::mixture_shares(std::array{3.0, 1.0});  // 3072, 1024
// std::vector<std::int64_t> sources(batch), own(batch);
// robocache::mixture_order(shares, /*seed=*/7, /*first=*/0, sources, own);
// ```
//
// Positions count 0, 1, 2, ... and never end. Any position is computed from its number alone, so a batch can be made again
// on any machine, and a loader's state is one integer. docs/semantics.md, "The loader's order", has the formulas.
//
// Errors. Every call throws robocache::Error(value) where a position is negative or above 2^63 - 1, where there is no window, and
// where arrays differ in length. Outputs are then unspecified.
// Limits. A loader has at most 2^63 - 1 windows, a mixture at most 4,096 sources.
// Threads. Any number of threads may call at the same time.
// Determinism. Integer arithmetic: every machine gives the same numbers. The two functions of float64 weights use one division and
// one rounding of each weight, which IEEE 754 defines.
// Cost. For 256 positions, from Python, on one core of an AMD EPYC: windows 1 to 4 us, and up to 17 us where the number of windows is
// just above a power of 4; draws 1 us; a mixture 3 us at the start of a block and 16 us at its end; 10^6 weighted windows 4 us.
#pragma once

#include <robocache/error.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

// The window numbers, 0 to windows - 1, of the positions first, first + 1, ...; as many as `numbers` has places. Position p lies in
// epoch p / windows. Each epoch has every window once: with `shuffle` in an order of its own, else in rising order.
void window_order(std::int64_t windows, std::uint64_t seed, std::int64_t first, bool shuffle,
                  std::span<std::int64_t> numbers);

// A random number of 64 bits for each position. `stream` and `name` say what it decides: other names give other numbers.
// `name` has no slash.
void draw(std::uint64_t seed, std::span<const std::int64_t> positions, std::string_view stream, std::string_view name,
          std::span<std::uint64_t> numbers);

// A mixture is cut into blocks of so many positions. Each block has a fixed number of positions of each source: its share.
inline constexpr std::int64_t mixture_block = 4096;

// The shares of sources with these weights: they add up to mixture_block, by the largest remainders. Weights are finite and not
// negative. Throws Error(value) also where a positive weight is too small for a share of 1.
std::vector<std::int64_t> mixture_shares(std::span<const double> weights);

// The source of each of the positions first, first + 1, ..., and which position of this source it is. Each source goes through
// its own positions 0, 1, 2, ... in order. Within a block the sources come in random order.
void mixture_order(std::span<const std::int64_t> shares, std::uint64_t seed, std::int64_t first,
                   std::span<std::int64_t> sources, std::span<std::int64_t> positions);

// Weights of windows as running sums of whole numbers, for weighted_order: 2^32 for the largest weight, at least 1 for any positive
// one. Weights are finite and not negative, at most 2^31 - 1 of them, and one is positive.
std::vector<std::int64_t> cumulate_weights(std::span<const double> weights);

// The window numbers of the positions first, first + 1, ..., drawn with replacement: window k has probability
// (cumulated[k] - cumulated[k - 1]) / cumulated.back(). `cumulated` never decreases, which is not checked; a wrong order gives
// wrong windows, never one that does not exist.
void weighted_order(std::span<const std::int64_t> cumulated, std::uint64_t seed, std::int64_t first,
                    std::span<std::int64_t> numbers);

}  // namespace robocache

#pragma GCC visibility pop
