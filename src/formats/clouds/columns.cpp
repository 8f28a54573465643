#include "formats/clouds/columns.h"

#include <algorithm>
#include <unordered_set>

#include "core/element.h"
#include "core/parallel.h"

namespace robocache::clouds {
namespace {

constexpr std::int64_t rows_per_piece = 1 << 14;
constexpr std::int64_t rows_per_block = 1 << 10;  // all columns of a block are read while it is in the cache

const Column* find(std::span<const Column> columns, std::string_view name) {
  const auto found = std::ranges::find(columns, name, &Column::name);
  return found == columns.end() ? nullptr : &*found;
}

bool is_coordinate(std::string_view name) { return name == "x" || name == "y" || name == "z"; }

bool fits_float32(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 ||
         robocache::size_of(dtype) <= 2;  // 24 bits hold every integer of 16
}

Array allocate_array(DType dtype, std::vector<std::int64_t> shape) {
  std::int64_t bytes = robocache::size_of(dtype);
  for (const std::int64_t size : shape) bytes *= size;
  return {dtype, std::move(shape), allocate<std::byte>(bytes)};
}

template <bool swapped, class T>
void copy_values(const Column& column, const char* data, std::int64_t begin, std::int64_t end, T* to) {
  for (std::int64_t row = begin; row < end; ++row) {
    const char* from = data + column.offset + row * column.row_stride;
    for (std::int64_t k = 0; k < column.count; ++k, from += column.value_stride) {
      to[row * column.count + k] = load<T>(from, swapped);
    }
  }
}

template <class T>
void copy_words(const Column& column, const char* data, std::int64_t begin, std::int64_t end, std::byte* to) {
  auto* const words = reinterpret_cast<T*>(to);
  column.swapped ? copy_values<true>(column, data, begin, end, words)
                 : copy_values<false>(column, data, begin, end, words);
}

void copy_rows(const Column& column, const char* data, std::int64_t begin, std::int64_t end, std::byte* to) {
  switch (robocache::size_of(column.dtype)) {
    case 1:
      copy_words<std::uint8_t>(column, data, begin, end, to);
      break;
    case 2:
      copy_words<std::uint16_t>(column, data, begin, end, to);
      break;
    case 4:
      copy_words<std::uint32_t>(column, data, begin, end, to);
      break;
    default:
      copy_words<std::uint64_t>(column, data, begin, end, to);
  }
  if (column.dtype == DType::boolean) {  // a file may have any byte, but a bool is 0 or 1
    for (std::int64_t k = begin * column.count; k < end * column.count; ++k) to[k] = std::byte{to[k] != std::byte{0}};
  }
}

template <class To>
void copy_coordinate(const Column& column, const char* data, std::int64_t begin, std::int64_t end, To* to) {
  with_type(column.dtype, [&](auto type) {
    using From = typename decltype(type)::type;
    const char* const from = data + column.offset;
    for (std::int64_t row = begin; row < end; ++row) {
      const From value = load<From>(from + row * column.row_stride, column.swapped);
      if constexpr (is_float_type<From>) {
        to[row * 3] = static_cast<To>(widen(value));
      } else {
        to[row * 3] = static_cast<To>(column.dtype == DType::boolean ? From{value != 0} : value);
      }
    }
  });
}

}  // namespace

std::int64_t lay_out_records(std::span<Column> columns) {
  std::int64_t record = 0;
  for (Column& column : columns) {
    column.offset = record;
    column.value_stride = robocache::size_of(column.dtype);
    record = sum(record, column.bytes());
  }
  for (Column& column : columns) column.row_stride = record;
  return record;
}

void check_count(const FileView& source, std::size_t fields) {
  if (fields > max_cloud_fields) source.fail("has ", fields, " fields; at most ", max_cloud_fields, " are read");
}

void check_columns(const FileView& source, std::span<const Column> columns) {
  check_count(source, columns.size());
  std::unordered_set<std::string_view> names;
  for (const Column& column : columns) {
    if (!names.insert(column.name).second) source.fail("names the field ", quote(column.name), " twice");
    const bool coordinate = is_coordinate(column.name);
    if (coordinate ? column.count != 1 : column.count > max_cloud_count) {
      source.fail("field ", quote(column.name), " has ", column.count, " values a point; expected ",
                  coordinate ? "1" : concat("at most ", max_cloud_count));
    }
  }
  for (const char* name : {"x", "y", "z"}) {
    if (names.contains(name)) continue;
    std::string list;
    for (const Column& column : columns.first(std::min<std::size_t>(columns.size(), 8))) {
      list += (list.empty() ? "" : ", ") + quote(column.name);
    }
    source.fail("has no field \"", name, "\"; expected x, y and z among ", list.empty() ? "its fields" : list,
                columns.size() > 8 ? ", ..." : "");
  }
}

Cloud make_cloud(const FileView& source, std::span<const Column> columns, const char* data, std::int64_t height,
                 std::int64_t width) {
  check_columns(source, columns);
  const std::int64_t rows = height * width;
  const Column* const coordinates[] = {find(columns, "x"), find(columns, "y"), find(columns, "z")};
  const bool single = std::ranges::all_of(coordinates, fits_float32, [](const Column* c) { return c->dtype; });

  Cloud cloud;
  cloud.height = height;
  cloud.width = width;
  cloud.points = allocate_array(single ? DType::f32 : DType::f64, {rows, 3});
  std::vector<const Column*> others;
  for (const Column& column : columns) {
    if (is_coordinate(column.name)) continue;
    others.push_back(&column);
    std::vector<std::int64_t> shape{rows};
    if (column.count != 1) shape.push_back(column.count);
    cloud.fields.push_back({column.name, allocate_array(column.dtype, std::move(shape))});
  }

  std::byte* const points = cloud.points.data.get();
  parallel_for(rows, rows_per_piece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t begin = first; begin < last; begin += rows_per_block) {
      const std::int64_t end = std::min(begin + rows_per_block, last);
      for (int k = 0; k < 3; ++k) {
        if (single) {
          copy_coordinate(*coordinates[k], data, begin, end, reinterpret_cast<float*>(points) + k);
        } else {
          copy_coordinate(*coordinates[k], data, begin, end, reinterpret_cast<double*>(points) + k);
        }
      }
      for (std::size_t k = 0; k < others.size(); ++k) {
        copy_rows(*others[k], data, begin, end, cloud.fields[k].values.data.get());
      }
    }
  });
  return cloud;
}

}  // namespace robocache::clouds
