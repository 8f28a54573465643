// NPY, the format of numpy.save: a Python dict describes the array, then come its elements.
#include <algorithm>
#include <utility>

#include "formats/clouds/columns.h"
#include "formats/clouds/formats.h"

namespace robocache::clouds {
namespace {

// Reads the dict token by token: strings, whole numbers, True and False in dicts, lists and tuples.
class Literal {
 public:
  Literal(const FileView& source, std::string_view text) : source_(source), text_(text) {}

  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string(1, c).c_str());
  }
  bool at_string() {
    skip_spaces();
    return at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"');
  }
  std::string string() {
    if (!at_string()) fail("a string");
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) fail("the end of a string");
    std::string result(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return result;
  }
  std::int64_t count() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    const std::int64_t value = parse_count(text_.substr(begin, at_ - begin));
    if (value < 0) fail("a whole number below 2^63");
    return value;
  }
  bool boolean() {
    skip_spaces();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("True or False");
  }
  // (), (3,), (3, 4)
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      values.push_back(count());
      if (values.size() > max_rank) fail("at most 8 dimensions");
      if (accept(',')) continue;
      expect(')');
      break;
    }
    return values;
  }
  [[noreturn]] void fail(const char* expected) {
    source_.fail("its header has ", quote(text_.substr(std::min(at_, text_.size()))), " where ", expected,
                 " was expected");
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  const FileView& source_;
  std::string_view text_;
  std::size_t at_ = 0;
};

struct NpyHeader {
  bool structured = false;
  std::vector<Column>
      columns;  // a single one without a name if the array is not structured; offsets and row strides are set
  std::int64_t record = 0;  // bytes of an element
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
  std::string_view body;
};

// "<f4"
void read_type(const FileView& source, const std::string& type, Column& column) {
  static constexpr std::pair<const char*, DType> dtypes[] = {
      {"b1", DType::boolean}, {"u1", DType::u8},  {"u2", DType::u16}, {"u4", DType::u32},
      {"u8", DType::u64},     {"i1", DType::i8},  {"i2", DType::i16}, {"i4", DType::i32},
      {"i8", DType::i64},     {"f2", DType::f16}, {"f4", DType::f32}, {"f8", DType::f64}};
  const bool ordered = !type.empty() && std::string_view("<>|=").find(type[0]) != std::string_view::npos;
  const auto* const found =
      std::ranges::find(dtypes, type.substr(ordered ? 1 : 0), &std::pair<const char*, DType>::first);
  if (found == std::end(dtypes)) {
    source.fail(column.name.empty() ? "its elements are" : "field " + quote(column.name) + " is", " of type ",
                quote(type), "; expected bool, integers of up to 8 bytes, or float16, float32 or float64");
  }
  column.dtype = found->second;
  column.swapped = type[0] == '>';
  column.value_stride = robocache::size_of(column.dtype);
}

// '<f4', or [('x', '<f4'), ('rgb', '|u1', (3,)), ('', '|V3')]
void read_descr(const FileView& source, Literal& literal, NpyHeader& header) {
  if (literal.at_string()) {
    Column& column = header.columns.emplace_back();
    read_type(source, literal.string(), column);
    header.record = column.bytes();
    return;
  }
  header.structured = true;
  literal.expect('[');
  while (!literal.accept(']')) {
    literal.expect('(');
    Column column{.name = literal.string()};
    literal.expect(',');
    if (!literal.at_string()) source.fail("field ", quote(column.name), " has fields of its own; expected numbers");
    const std::string type = literal.string();
    column.offset = header.record;
    if (column.name.empty() && type.starts_with("|V")) {  // padding
      const std::int64_t bytes = parse_count(std::string_view(type).substr(2));
      if (bytes < 0) source.fail("a field is of type ", quote(type));
      header.record = sum(header.record, bytes);
      if (literal.accept(',')) source.fail("its padding has a shape");
    } else {
      read_type(source, type, column);
      if (literal.accept(',')) {
        for (const std::int64_t size : literal.tuple()) column.count = product(column.count, size);
      }
      header.record = sum(header.record, column.bytes());
      header.columns.push_back(std::move(column));
    }
    literal.expect(')');
    if (literal.accept(',')) continue;
    literal.expect(']');
    break;
  }
}

NpyHeader read_header(const FileView& source) {
  const std::string_view bytes = source.bytes;
  if (bytes.size() < 12) source.fail("ends inside its header");
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) source.fail("is NPY version ", version, "; expected 1, 2 or 3");
  const std::size_t start = version == 1 ? 10 : 12;
  const std::size_t length = version == 1 ? load<std::uint16_t>(&bytes[8]) : load<std::uint32_t>(&bytes[8]);
  if (length > bytes.size() - start) source.fail("ends inside its header of ", length, " bytes");

  NpyHeader header;
  header.body = bytes.substr(start + length);
  Literal literal(source, bytes.substr(start, length));
  bool descr = false, order = false, shape = false;
  literal.expect('{');
  while (!literal.accept('}')) {
    const std::string key = literal.string();
    literal.expect(':');
    if (key == "descr" && !std::exchange(descr, true)) {
      read_descr(source, literal, header);
    } else if (key == "fortran_order" && !std::exchange(order, true)) {
      header.fortran_order = literal.boolean();
    } else if (key == "shape" && !std::exchange(shape, true)) {
      header.shape = literal.tuple();
    } else {
      source.fail("its header has ", quote(key), "; expected descr, fortran_order and shape, once each");
    }
    if (literal.accept(',')) continue;
    literal.expect('}');
    break;
  }
  if (!descr || !order || !shape) source.fail("its header lacks descr, fortran_order or shape");
  return header;
}

// [N, C] and [H, W, C]: x, y, z, and the other columns as one field.
std::vector<Column> split_columns(const Column& element, std::int64_t count, std::int64_t row_stride,
                                  std::int64_t value_stride) {
  std::vector<Column> columns;
  for (const char* name : {"x", "y", "z", "extra"}) {
    Column& column = columns.emplace_back(element);
    column.name = name;
    column.row_stride = row_stride;
    column.value_stride = value_stride;
    column.offset = value_stride * static_cast<std::int64_t>(columns.size() - 1);
  }
  columns.back().count = count - 3;
  if (count == 3) columns.pop_back();
  return columns;
}

}  // namespace

Cloud read_npy(const FileView& source) {
  NpyHeader header = read_header(source);
  std::vector<std::int64_t> grid = header.shape;  // of points
  std::int64_t count = 1;                         // of numbers in each element, if they are not structures
  if (!header.structured) {
    if (grid.empty() || grid.back() < 3) {
      source.fail("has shape ", shape_text(header.shape), "; expected [N, C] or [H, W, C] with 3 or more columns");
    }
    count = grid.back();
    grid.pop_back();
  }
  if (grid.empty() || grid.size() > 2) {
    source.fail("has shape ", shape_text(header.shape), "; expected ",
                header.structured ? "[N] or [H, W]" : "[N, C] or [H, W, C]");
  }
  if (header.fortran_order && grid.size() == 2) {
    source.fail("has shape ", shape_text(header.shape), " in Fortran order; expected C order for organised clouds");
  }
  const std::int64_t rows = grid.size() == 1 ? grid[0] : product(grid[0], grid[1]);
  const std::int64_t row = product(header.record, count);
  if (product(rows, row) > size_of(header.body)) {
    source.fail("ends after ", header.body.size(), " bytes of data; shape ", shape_text(header.shape), " needs ",
                product(rows, row) == huge ? "over 2^63" : std::to_string(product(rows, row)));
  }
  if (header.structured) {
    for (Column& column : header.columns) column.row_stride = header.record;
  } else if (header.fortran_order) {
    header.columns = split_columns(header.columns[0], count, header.record, rows * header.record);
  } else {
    header.columns = split_columns(header.columns[0], count, row, header.record);
  }
  return make_cloud(source, header.columns, header.body.data(), grid.size() == 1 ? 1 : grid[0], grid.back());
}

}  // namespace robocache::clouds
