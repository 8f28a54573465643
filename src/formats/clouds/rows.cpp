#include "formats/clouds/rows.h"

#include <algorithm>
#include <atomic>
#include <charconv>

#include "core/element.h"
#include "core/parallel.h"

namespace robocache::clouds {
namespace {

constexpr std::int64_t bytes_per_piece = 1 << 17;

// Parses the number at the front. Only a float32 may be out of range; it is then infinite or zero. Returns nullptr if there is
// no number.
template <class T>
const char* parse_number(const char* begin, const char* end, T& value) {
  if (end - begin > 1 && begin[0] == '+' && begin[1] != '-') ++begin;  // from_chars takes no plus
  auto [stop, error] = std::from_chars(begin, end, value);
  if constexpr (std::is_same_v<T, float>) {
    if (error == std::errc::result_out_of_range) {
      double wide = 0;
      stop = parse_number(begin, end, wide);
      value = static_cast<float>(wide);
      return stop;
    }
  }
  return error == std::errc{} && (stop == end || is_space(*stop)) ? stop : nullptr;
}

const char* parse_value(const char* begin, const char* end, DType dtype, char* to) {
  const char* stop = nullptr;
  with_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, f16> && !std::is_same_v<T, bf16>) {  // no text format has them
      T value{};
      stop = parse_number(begin, end, value);
      std::memcpy(to, &value, sizeof(T));
    }
  });
  return stop;
}

const char* skip_spaces(const char* begin, const char* end) {
  while (begin < end && is_space(*begin)) ++begin;
  return begin;
}

bool parse_row(const char* at, const char* end, std::span<const Column> columns, char* record) {
  for (const Column& column : columns) {
    for (std::int64_t k = 0; k < column.count; ++k) {
      at = parse_value(skip_spaces(at, end), end, column.dtype, record + column.offset + k * column.value_stride);
      if (at == nullptr) return false;
    }
  }
  return skip_spaces(at, end) == end;
}

std::int64_t values_in(std::span<const Column> columns) {
  std::int64_t values = 0;
  for (const Column& column : columns) values = sum(values, column.count);
  return values;
}

// A sentence that says why parse_row() refused the line.
[[noreturn]] void explain(const FileView& source, const char* line, const char* end, std::span<const Column> columns) {
  const auto number = 1 + std::count(source.bytes.data(), line, '\n');
  const std::int64_t expected = values_in(columns);
  const std::vector<std::string_view> words = words_of({line, end});
  if (static_cast<std::int64_t>(words.size()) != expected) {
    source.fail("line ", number, ": ", words.size(), " values; expected ", expected);
  }
  std::size_t k = 0;
  for (const Column& column : columns) {
    for (std::int64_t value = 0; value < column.count; ++value, ++k) {
      char ignored[8];
      if (parse_value(words[k].data(), words[k].data() + words[k].size(), column.dtype, ignored) == nullptr) {
        source.fail("line ", number, ": field ", quote(column.name), " is ", quote(words[k]),
                    "; expected a number of type ", name_of(column.dtype));
      }
    }
  }
  source.fail("line ", number, ": ", quote({line, end}), "; expected ", expected, " numbers");
}

// Calls f(begin, end) for each line of [begin, end) that is not blank, until f returns false.
template <class F>
void for_each_line(const char* begin, const char* end, const F& f) {
  while (begin < end) {
    const char* stop = static_cast<const char*>(std::memchr(begin, '\n', static_cast<std::size_t>(end - begin)));
    if (stop == nullptr) stop = end;
    if (skip_spaces(begin, stop) != stop && !f(begin, stop)) return;
    begin = stop + 1;
  }
}

}  // namespace

std::unique_ptr<char[]> parse_rows(const FileView& source, const Rows& rows, std::span<const Column> columns,
                                   std::int64_t record) {
  // Pieces of whole lines: threads first count their lines, then parse each line to its place.
  const std::string_view text = rows.text;
  const std::int64_t pieces = std::max<std::int64_t>(1, size_of(text) / bytes_per_piece);
  std::vector<const char*> starts{text.data()};
  for (std::int64_t k = 1; k < pieces; ++k) {
    const std::size_t stop = text.find('\n', static_cast<std::size_t>(size_of(text) / pieces * k));
    starts.push_back(stop == std::string_view::npos ? text.data() + text.size() : text.data() + stop + 1);
  }
  starts.push_back(text.data() + text.size());
  std::vector<std::int64_t> first_line(static_cast<std::size_t>(pieces) + 1, 0);
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto k = static_cast<std::size_t>(begin); k < static_cast<std::size_t>(end); ++k) {
      for_each_line(starts[k], starts[k + 1], [&](const char*, const char*) {
        ++first_line[k + 1];
        return true;
      });
    }
  });
  for (std::size_t k = 1; k < first_line.size(); ++k) first_line[k] += first_line[k - 1];

  const std::int64_t lines = first_line.back();
  if (lines < rows.skip || lines - rows.skip < rows.count) {
    source.fail("ends after ", std::max<std::int64_t>(lines - rows.skip, 0), " of ", rows.count, " points");
  }
  if (rows.last && lines - rows.skip > rows.count) {
    source.fail("holds ", lines - rows.skip, " lines of numbers; its header says ", rows.count, " points");
  }
  // A number takes at least a byte and a space, so the records are at most 4 times the text, whatever the header says.
  const std::int64_t values = values_in(columns);
  if (product(rows.count, values) > size_of(text) / 2 + 1) {
    source.fail("has ", text.size(), " bytes of text, too few for ", rows.count, " points of ", values, " numbers");
  }

  auto records = allocate<char>(rows.count * record);
  std::atomic<const char*> wrong{nullptr};  // the first wrong line
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto k = static_cast<std::size_t>(begin); k < static_cast<std::size_t>(end); ++k) {
      std::int64_t row = first_line[k] - rows.skip;
      for_each_line(starts[k], starts[k + 1], [&](const char* line, const char* stop) {
        if (row >= rows.count) return false;
        if (row >= 0 && !parse_row(line, stop, columns, records.get() + row * record)) {
          const char* known = wrong.load();
          while ((known == nullptr || line < known) && !wrong.compare_exchange_weak(known, line)) {
          }
          return false;
        }
        ++row;
        return true;
      });
    }
  });
  if (const char* const line = wrong.load()) {
    explain(source, line, std::find(line, text.data() + text.size(), '\n'), columns);
  }
  return records;
}

}  // namespace robocache::clouds
