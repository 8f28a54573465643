// The last step of every format: columns anywhere in memory become a cloud.
#pragma once

#include <robocache/clouds.h>

#include <span>
#include <string>
#include <vector>

#include "formats/clouds/file_view.h"

namespace robocache::clouds {

// Where the values of one field are: value k of row r is at offset + r * row_stride + k * value_stride, in bytes.
struct Column {
  std::string name;
  DType dtype = DType::f32;
  std::int64_t count = 1;  // values in a row
  std::int64_t offset = 0;
  std::int64_t row_stride = 0;
  std::int64_t value_stride = 0;
  bool swapped = false;  // big endian

  std::int64_t bytes() const { return product(count, robocache::size_of(dtype)); }  // of a row
};

// Lays columns out as records, one after the other, dense. Returns the bytes of a record, or `huge` if they overflow.
std::int64_t lay_out_records(std::span<Column> columns);

// Makes points from x, y and z, and a field from each other column, in order. Every byte that a column refers to must exist.
Cloud make_cloud(const FileView& source, std::span<const Column> columns, const char* data, std::int64_t height,
                 std::int64_t width);

// Throws Error(file) for more than max_cloud_fields fields, for columns without x, y, z, and for a name that occurs twice. Call
// it before anything is allocated for the columns.
void check_count(const FileView& source, std::size_t fields);
void check_columns(const FileView& source, std::span<const Column> columns);

}  // namespace robocache::clouds
