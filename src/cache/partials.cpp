#include "cache/partials.h"

#include "cache/safetensors.h"
#include "core/text.h"

namespace robocache::cache {

namespace {

constexpr std::uint64_t partials_version = 1;
constexpr std::size_t head_words = 2;
constexpr std::int64_t most_elements = 1024;  // of a sample that is no picture
constexpr std::int64_t most_colours = 4;      // of a picture
constexpr std::int64_t most_kept_channels = 256;

}  // namespace

StatisticsShape statistics_shape(const StreamInfo& info) {
  const std::int64_t elements = channels_of(info);
  const bool is_picture =
      info.shape.size() >= 2 && (info.dtype == DType::u8 || info.dtype == DType::u16 || elements > most_elements);
  if (!is_picture) return {info.shape, elements, 1};
  const std::int64_t last = info.shape.back();
  if (last < 1 || last > most_colours) return {{}, 1, elements};
  return {{last}, last, elements / last};
}

bool keeps_partials(const StreamInfo& info) {
  return !info.is_ragged && statistics_shape(info).channels <= most_kept_channels;
}

void PartialsWriter::go_back(const Mark& mark) {
  places_.resize(mark.places);
  words_.resize(mark.words);
}

std::vector<std::uint64_t> PartialsWriter::head() const {
  std::vector<std::uint64_t> words{partials_version, places_.size()};
  words.insert(words.end(), places_.begin(), places_.end());
  words.push_back(words_.size());
  return words;
}

std::optional<std::span<const std::uint64_t>> find_partial(std::span<const std::uint64_t> tensor, std::int64_t row) {
  if (tensor.size() < head_words || tensor[0] != partials_version || tensor[1] >= tensor.size() - head_words) {
    return std::nullopt;
  }
  const std::uint64_t rows = tensor[1];
  if (row < 0 || static_cast<std::uint64_t>(row) >= rows) return std::nullopt;
  const auto partials = tensor.subspan(head_words + static_cast<std::size_t>(rows) + 1);
  const std::uint64_t begin = tensor[head_words + static_cast<std::size_t>(row)];
  const std::uint64_t end = tensor[head_words + static_cast<std::size_t>(row) + 1];
  if (begin > end || end > partials.size()) return std::nullopt;
  return partials.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

std::string check_partials(std::span<const std::uint64_t> tensor, DType dtype, std::int64_t rows) {
  if (tensor.size() < head_words || tensor[0] != partials_version || tensor[1] != static_cast<std::uint64_t>(rows)) {
    return "does not begin as the statistics of its episodes do";
  }
  statistics::Partial partial;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto words = find_partial(tensor, row);
    if (!words || (!words->empty() && !statistics::parse_partial(*words, dtype, partial))) {
      return concat("has a damaged entry for row ", row);
    }
  }
  return {};
}

}  // namespace robocache::cache
