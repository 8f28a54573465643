// The step that all formats end in: columns somewhere in memory become a cloud.
#pragma once

#include <robocache/clouds.h>

#include <span>
#include <string>
#include <vector>

#include "formats/clouds/source.h"

namespace robocache::clouds {

// Where the values of one field lie: value k of row r is at offset + r * row_stride + k * value_stride, in bytes.
struct Column {
  std::string name;
  DType dtype = DType::f32;
  std::int64_t count = 1;  // values a row
  std::int64_t offset = 0;
  std::int64_t row_stride = 0;
  std::int64_t value_stride = 0;
  bool swapped = false;  // big endian

  std::int64_t bytes() const { return product(count, robocache::size_of(dtype)); }  // of a row
};

// Lays columns out as records, one after the other, dense. Returns the bytes of a record, `huge` where they overflow.
std::int64_t lay_out_records(std::span<Column> columns);

// Points from x, y, z and a field from each other column, in order. Every byte that a column names must be there.
Cloud make_cloud(const Source& source, std::span<const Column> columns, const char* data, std::int64_t height,
                 std::int64_t width);

// Refuse more than max_cloud_fields fields, and columns without x, y, z or with two of a name: before anything is
// allocated for them.
void check_count(const Source& source, std::size_t fields);
void check_columns(const Source& source, std::span<const Column> columns);

}  // namespace robocache::clouds
