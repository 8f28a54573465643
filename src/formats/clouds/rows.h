// Parses rows of numbers that are written as text, one point on a line.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "formats/clouds/columns.h"

namespace robocache::clouds {

struct Rows {
  std::string_view text;   // part of the source's bytes; blank lines do not count
  std::int64_t skip = 0;   // lines before the first row
  std::int64_t count = 0;  // how many rows there must be
  bool last = true;        // nothing but blank lines may follow
};

// Parses every line into a record with the layout of the columns (lay_out_records()).
std::unique_ptr<char[]> parse_rows(const FileView& source, const Rows& rows, std::span<const Column> columns,
                                   std::int64_t record);

}  // namespace robocache::clouds
