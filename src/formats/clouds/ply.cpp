// PLY: a text header names elements and their properties; then the elements, as text or as records of either byte order.
#include <algorithm>
#include <map>

#include "formats/clouds/columns.h"
#include "formats/clouds/formats.h"
#include "formats/clouds/rows.h"

namespace robocache::clouds {
namespace {

struct Property {
  Column column;
  std::optional<DType> length;  // of a list: the type of its length
};

struct Element {
  std::string_view name;
  std::int64_t count = 0;
  std::vector<Property> properties;

  bool has_lists() const {
    return std::ranges::any_of(properties, [](const Property& property) { return property.length.has_value(); });
  }
};

struct PlyHeader {
  std::string_view format;
  std::vector<Element> skipped;  // before the vertices
  Element vertices;
  bool last = true;  // no element follows the vertices
  std::string_view body;
};

DType dtype_of(const Lines& lines, std::string_view type) {
  static const std::map<std::string_view, DType> dtypes{
      {"char", DType::i8},   {"int8", DType::i8},     {"uchar", DType::u8},   {"uint8", DType::u8},
      {"short", DType::i16}, {"int16", DType::i16},   {"ushort", DType::u16}, {"uint16", DType::u16},
      {"int", DType::i32},   {"int32", DType::i32},   {"uint", DType::u32},   {"uint32", DType::u32},
      {"float", DType::f32}, {"float32", DType::f32}, {"double", DType::f64}, {"float64", DType::f64}};
  const auto found = dtypes.find(type);
  if (found == dtypes.end()) lines.fail("a property is of type ", quote(type), "; expected char to double");
  return found->second;
}

Property read_property(const Lines& lines, std::span<const std::string_view> words) {
  const bool list = words.size() == 5 && words[1] == "list";
  if (!list && words.size() != 3) lines.fail("a property has ", words.size() - 1, " words; expected its type and name");
  Property property;
  property.column.name = std::string(words.back());
  property.column.dtype = dtype_of(lines, words[words.size() - 2]);
  if (list) {
    property.length = dtype_of(lines, words[2]);
    if (is_float(*property.length)) lines.fail("the length of a list is ", quote(words[2]), "; expected an integer");
  }
  return property;
}

PlyHeader read_header(const FileView& source) {
  Lines lines(source);
  PlyHeader header;
  if (lines.next() != "ply") lines.fail("a PLY file begins with \"ply\"");
  std::vector<Element> elements;
  for (;;) {
    const std::vector<std::string_view> words = words_of(lines.next());
    if (words.empty() || words[0] == "comment" || words[0] == "obj_info") continue;
    if (words[0] == "end_header") break;
    if (words[0] == "format") {
      if (words.size() != 3 || words[2] != "1.0") lines.fail("the format's version is not 1.0");
      header.format = words[1];
    } else if (words[0] == "element") {
      const std::int64_t count = words.size() == 3 ? parse_count(words[2]) : -1;
      if (count < 0) lines.fail("an element has a name and a count; the count is not a whole number");
      elements.push_back({words[1], count, {}});
    } else if (words[0] == "property") {
      if (elements.empty()) lines.fail("a property before any element");
      elements.back().properties.push_back(read_property(lines, words));
      if (elements.back().properties.size() > max_cloud_fields) {
        lines.fail("the element ", quote(elements.back().name), " has over ", max_cloud_fields, " properties");
      }
    } else {
      lines.fail(quote(words[0]), " is not an entry of a PLY header");
    }
  }
  const auto vertex = std::ranges::find(elements, "vertex", &Element::name);
  if (vertex == elements.end()) source.fail("has no element \"vertex\"");
  header.vertices = *vertex;
  header.last = std::next(vertex) == elements.end();
  header.skipped.assign(elements.begin(), vertex);
  header.body = lines.rest();
  return header;
}

// The length of a list; -1: it is negative.
std::int64_t load_length(const char* from, DType dtype, bool swapped) {
  switch (dtype) {
    case DType::u8:
      return load<std::uint8_t>(from);
    case DType::i8:
      return std::max<std::int64_t>(load<std::int8_t>(from), -1);
    case DType::u16:
      return load<std::uint16_t>(from, swapped);
    case DType::i16:
      return std::max<std::int64_t>(load<std::int16_t>(from, swapped), -1);
    case DType::u32:
      return load<std::uint32_t>(from, swapped);
    default:
      return std::max<std::int64_t>(load<std::int32_t>(from, swapped), -1);
  }
}

// The rest of the body after an element.
std::string_view skip_element(const FileView& source, const Element& element, std::string_view body, bool swapped) {
  const auto take = [&](std::int64_t bytes) {
    if (bytes > size_of(body)) source.fail("ends inside its element ", quote(element.name));
    body.remove_prefix(static_cast<std::size_t>(bytes));
  };
  if (!element.has_lists()) {
    std::int64_t record = 0;
    for (const Property& property : element.properties) record += property.column.bytes();
    take(product(element.count, record));
    return body;
  }
  // A list takes at least a byte, so a wrong count soon meets the end of the body.
  for (std::int64_t row = 0; row < element.count; ++row) {
    for (const Property& property : element.properties) {
      std::int64_t length = 1;
      if (property.length) {
        const char* const from = body.data();
        take(robocache::size_of(*property.length));
        length = load_length(from, *property.length, swapped);
        if (length < 0) source.fail("a list ", quote(property.column.name), " has a negative length");
      }
      take(length * property.column.bytes());
    }
  }
  return body;
}

}  // namespace

Cloud read_ply(const FileView& source) {
  const PlyHeader header = read_header(source);
  const std::int64_t count = header.vertices.count;
  std::vector<Column> columns;
  for (const Property& property : header.vertices.properties) {
    if (property.length) {
      source.fail("its vertices have the list ", quote(property.column.name), "; expected plain properties only");
    }
    columns.push_back(property.column);
  }
  const std::int64_t record = lay_out_records(columns);
  check_columns(source, columns);

  if (header.format == "ascii") {
    Rows rows{.text = header.body, .count = count, .last = header.last};
    for (const Element& element : header.skipped) {
      if (!element.properties.empty()) rows.skip = sum(rows.skip, element.count);
    }
    const auto records = parse_rows(source, rows, columns, record);
    return make_cloud(source, columns, records.get(), 1, count);
  }
  const bool swapped = header.format == "binary_big_endian";
  if (!swapped && header.format != "binary_little_endian") {
    source.fail("its format is ", quote(header.format), "; expected ascii, binary_little_endian or binary_big_endian");
  }
  std::string_view body = header.body;
  for (const Element& element : header.skipped) body = skip_element(source, element, body, swapped);
  if (product(count, record) > size_of(body)) {
    source.fail("ends after ", size_of(body) / record, " of ", count, " points of ", record, " bytes");
  }
  for (Column& column : columns) column.swapped = swapped;
  return make_cloud(source, columns, body.data(), 1, count);
}

}  // namespace robocache::clouds
