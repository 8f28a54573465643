// The partial statistics of a shard's episodes: its tensor "statistics".
//
// The tensor is a list of 64-bit words: a version, the number of rows of the group, the place where the partial of each
// row begins, the place where the last one ends; then the partials (statistics/partial.h). Places count words from the
// first partial on. A row without a partial has no words. Readers do not depend on partials: without one, statistics are
// computed from the samples, with the same result. So readers ignore a tensor without a checksum in the manifest, and a
// repair removes the checksum of a damaged tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/manifest.h"
#include "cache/shard_header.h"
#include "statistics/partial.h"

namespace robocache::cache {

inline constexpr const char* statistics_name = "statistics";

// Which values of a sample share statistics. A sample has statistics for each channel, unless it is a picture: at least two
// dimensions, and uint8 or uint16 or over 1024 elements. A picture has statistics for each entry of its last dimension if
// that has at most 4 entries, otherwise for all elements together.
struct StatisticsShape {
  std::vector<std::int64_t> shape{};  // of the statistics
  std::int64_t channels = 1;          // its product
  std::int64_t values = 1;            // of a channel in a row of the stream
};
StatisticsShape statistics_shape(const StreamInfo& info);

// Whether shards keep partials of a stream: it is not ragged and has at most 256 channels. Ragged samples are points or
// encoded bytes; computing their partials would take a build longer than reading them.
bool keeps_partials(const StreamInfo& info);

// The partials of a shard while it is written.
class PartialsWriter {
 public:
  struct Mark {
    std::size_t places = 0, words = 0;
  };
  Mark mark() const { return {places_.size(), words_.size()}; }
  void go_back(const Mark& mark);

  void skip_to(std::size_t row) { places_.resize(row, words_.size()); }  // rows without a partial
  std::vector<std::uint64_t>& words() { return words_; }                 // append the partial of the next row here,
  void end_row(std::size_t begin) { places_.push_back(begin); }          // then say where it begins
  std::int64_t bytes() const {
    return static_cast<std::int64_t>((places_.size() + words_.size()) * sizeof(std::uint64_t));
  }
  bool is_empty() const { return words_.empty(); }

  // The words before the partials, and the partials.
  std::vector<std::uint64_t> head() const;
  const std::vector<std::uint64_t>& partials() const { return words_; }

 private:
  std::vector<std::uint64_t> places_;  // in words_, of each row
  std::vector<std::uint64_t> words_;
};

// The words of row `row`; empty: it has no partial. Returns nullopt if the tensor is malformed.
std::optional<std::span<const std::uint64_t>> find_partial(std::span<const std::uint64_t> tensor, std::int64_t row);

// What is wrong with the tensor of a shard of `rows` rows, as a sentence without a subject; empty if it is good.
std::string check_partials(std::span<const std::uint64_t> tensor, DType dtype, std::int64_t rows);

}  // namespace robocache::cache
