// PCD, the format of PCL: a text header, then the points as text, as records, or as compressed columns.
#include <algorithm>
#include <charconv>
#include <map>

#include "formats/clouds/columns.h"
#include "formats/clouds/formats.h"
#include "formats/clouds/rows.h"

namespace robocache::clouds {
namespace {

struct PcdHeader {
  std::vector<Column> columns;
  std::int64_t height = 1, width = 0;
  std::optional<std::array<double, 7>> viewpoint;
  std::string_view data;  // "ascii", "binary" or "binary_compressed"
  std::string_view body;

  std::int64_t points() const { return height * width; }
};

std::optional<DType> dtype_of(std::string_view type, std::string_view size) {
  static const std::map<std::string_view, DType> dtypes{
      {"F4", DType::f32}, {"F8", DType::f64}, {"I1", DType::i8},  {"I2", DType::i16}, {"I4", DType::i32},
      {"I8", DType::i64}, {"U1", DType::u8},  {"U2", DType::u16}, {"U4", DType::u32}, {"U8", DType::u64}};
  const auto found = dtypes.find(concat(type, size));
  return found == dtypes.end() ? std::nullopt : std::optional(found->second);
}

using Entries = std::map<std::string_view, std::vector<std::string_view>>;

// An entry of the header that must have one word for each field.
const std::vector<std::string_view>& one_per_field(const FileView& source, const Entries& entries, const char* key,
                                                   std::size_t fields) {
  const auto entry = entries.find(key);
  if (entry == entries.end()) source.fail("its header has no ", key);
  if (entry->second.size() != fields) {
    source.fail(key, " has ", entry->second.size(), " entries; FIELDS has ", fields);
  }
  return entry->second;
}

std::int64_t count_of(const FileView& source, const Entries& entries, const char* key, std::int64_t absent) {
  const auto entry = entries.find(key);
  if (entry == entries.end()) return absent;
  const std::int64_t count = entry->second.size() == 1 ? parse_count(entry->second[0]) : -1;
  if (count < 0) {
    source.fail(key, " is ", quote(entry->second.empty() ? "" : entry->second[0]), "; expected a whole number");
  }
  return count;
}

void read_viewpoint(const FileView& source, const Entries& entries, PcdHeader& header) {
  const auto entry = entries.find("VIEWPOINT");
  if (entry == entries.end()) return;
  const std::vector<std::string_view>& words = entry->second;
  header.viewpoint.emplace();
  if (words.size() != header.viewpoint->size()) {
    source.fail("VIEWPOINT has ", words.size(), " numbers; expected 7: x y z and a quaternion w x y z");
  }
  for (std::size_t k = 0; k < words.size(); ++k) {
    const char* const end = words[k].data() + words[k].size();
    const auto [stop, error] = std::from_chars(words[k].data(), end, (*header.viewpoint)[k]);
    if (error != std::errc{} || stop != end) {
      source.fail("VIEWPOINT holds ", quote(words[k]), "; expected a number");
    }
  }
}

PcdHeader read_header(const FileView& source) {
  Lines lines(source);
  Entries entries;
  while (!entries.contains("DATA")) {
    std::vector<std::string_view> words = words_of(lines.next());
    if (words.empty() || words[0].starts_with('#')) continue;
    std::string_view key = words[0] == "COLUMNS" ? "FIELDS" : words[0];  // before 0.5
    static constexpr std::string_view keys[] = {"VERSION", "FIELDS", "SIZE",      "TYPE",   "COUNT",
                                                "WIDTH",   "HEIGHT", "VIEWPOINT", "POINTS", "DATA"};
    if (std::ranges::find(keys, key) == std::end(keys)) {
      lines.fail(quote(key), " is not an entry of a PCD header");
    }
    words.erase(words.begin());
    if (!entries.emplace(key, std::move(words)).second) lines.fail("a second ", key);
  }

  PcdHeader header;
  if (!entries.contains("FIELDS")) source.fail("its header has no FIELDS");
  const std::vector<std::string_view>& names = entries["FIELDS"];
  check_count(source, names.size());
  const auto& sizes = one_per_field(source, entries, "SIZE", names.size());
  const auto& types = one_per_field(source, entries, "TYPE", names.size());
  const bool counted = entries.contains("COUNT");
  if (counted) one_per_field(source, entries, "COUNT", names.size());
  for (std::size_t k = 0; k < names.size(); ++k) {
    Column column{.name = std::string(names[k])};
    const std::optional<DType> dtype = dtype_of(types[k], sizes[k]);
    if (!dtype) {
      source.fail("field ", quote(names[k]), " has TYPE ", quote(types[k]), " and SIZE ", quote(sizes[k]),
                  "; expected F of 4 or 8 bytes, or I or U of 1, 2, 4 or 8");
    }
    column.dtype = *dtype;
    if (counted) column.count = parse_count(entries["COUNT"][k]);
    if (column.count < 1) {
      source.fail("field ", quote(names[k]), " has COUNT ", quote(entries["COUNT"][k]), "; expected 1 or more");
    }
    header.columns.push_back(std::move(column));
  }

  if (!entries.contains("WIDTH") && !entries.contains("POINTS")) source.fail("its header has neither WIDTH nor POINTS");
  const std::int64_t points = count_of(source, entries, "POINTS", -1);
  header.width = count_of(source, entries, "WIDTH", points);
  header.height = count_of(source, entries, "HEIGHT", 1);
  const std::int64_t area = product(header.width, header.height);
  if (points >= 0 && area != points) {
    source.fail("POINTS is ", points, "; WIDTH ", header.width, " times HEIGHT ", header.height, " is ",
                area == huge ? "past 2^63" : std::to_string(area));
  }
  if (area == huge) source.fail("WIDTH ", header.width, " times HEIGHT ", header.height, " is past 2^63");
  read_viewpoint(source, entries, header);
  header.data = entries["DATA"].size() == 1 ? entries["DATA"][0] : "";
  header.body = lines.rest();
  return header;
}

// Splits packed colours, 0xAARRGGBB, into named bytes, and drops padding.
std::vector<Column> unpack(std::span<const Column> columns) {
  std::vector<Column> result;
  for (const Column& column : columns) {
    const bool packed = robocache::size_of(column.dtype) == 4 && column.count == 1;
    if (packed && (column.name == "rgb" || column.name == "rgba")) {
      result.push_back({"rgb", DType::u8, 3, column.offset + 2, column.row_stride, -1});
      if (column.name == "rgba") result.push_back({"alpha", DType::u8, 1, column.offset + 3, column.row_stride, 1});
    } else if (column.name != "_") {
      result.push_back(column);
    }
  }
  return result;
}

// Decompresses LZF, as liblzf defines it. After a control byte below 32 come that many bytes and one more. Any other control
// byte copies bytes from up to 8192 bytes back: it has 3 bits of length, or 7 and one more byte, and 13 bits of distance.
// Returns whether `to` was filled and `from` used up exactly.
bool expand(std::string_view from, std::span<char> to) {
  std::size_t in = 0, out = 0;
  const auto next = [&] { return static_cast<std::size_t>(static_cast<unsigned char>(from[in++])); };
  while (in < from.size()) {
    const std::size_t control = next();
    if (control < 32) {
      const std::size_t length = control + 1;
      if (length > from.size() - in || length > to.size() - out) return false;
      std::memcpy(to.data() + out, from.data() + in, length);
      in += length;
      out += length;
      continue;
    }
    std::size_t length = control >> 5;
    if (from.size() - in < (length == 7 ? 2u : 1u)) return false;
    if (length == 7) length += next();
    length += 2;
    const std::size_t distance = ((control & 31) << 8 | next()) + 1;
    if (distance > out || length > to.size() - out) return false;
    for (const std::size_t end = out + length; out < end; ++out) to[out] = to[out - distance];  // may overlap
  }
  return out == to.size();
}
constexpr std::int64_t most_expansion = 88;  // 264 bytes out of 3

Cloud read_compressed(const FileView& source, PcdHeader& header, std::int64_t expected) {
  const std::string_view body = header.body;
  if (header.points() == 0) return make_cloud(source, unpack(header.columns), nullptr, header.height, header.width);
  if (body.size() < 8) source.fail("ends before the sizes of its compressed data");
  const std::int64_t compressed = load<std::uint32_t>(body.data());
  const std::int64_t expanded = load<std::uint32_t>(body.data() + 4);
  if (compressed > size_of(body) - 8) {
    source.fail("ends after ", body.size() - 8, " of ", compressed, " compressed bytes");
  }
  if (expanded != expected) {
    source.fail("its data claims to expand to ", expanded, " bytes, but ", header.points(),
                " points of its fields are ", expected == huge ? "past 2^63" : std::to_string(expected));
  }
  if (expanded > most_expansion * compressed) {
    source.fail(compressed, " compressed bytes cannot hold ", expanded);
  }
  const auto data = allocate<char>(expanded);
  if (!expand(body.substr(8, static_cast<std::size_t>(compressed)), {data.get(), static_cast<std::size_t>(expanded)})) {
    source.fail("its compressed data is damaged: it does not expand to the ", expanded, " bytes that it says");
  }
  std::int64_t offset = 0;
  for (Column& column : header.columns) {
    column.offset = offset;
    column.row_stride = column.bytes();
    offset += column.row_stride * header.points();
  }
  return make_cloud(source, unpack(header.columns), data.get(), header.height, header.width);
}

Cloud read_body(const FileView& source, PcdHeader& header) {
  const std::int64_t record = lay_out_records(header.columns);
  const std::int64_t expected = product(header.points(), record);
  check_columns(source, unpack(header.columns));
  if (header.data == "binary_compressed") return read_compressed(source, header, expected);
  if (header.data == "binary") {
    if (expected > size_of(header.body)) {
      source.fail("ends after ", size_of(header.body) / record, " of ", header.points(), " points of ", record,
                  " bytes");
    }
    return make_cloud(source, unpack(header.columns), header.body.data(), header.height, header.width);
  }
  if (header.data != "ascii") {
    source.fail("DATA is ", quote(header.data), "; expected ascii, binary or binary_compressed");
  }
  const auto records = parse_rows(source, {.text = header.body, .count = header.points()}, header.columns, record);
  return make_cloud(source, unpack(header.columns), records.get(), header.height, header.width);
}

}  // namespace

Cloud read_pcd(const FileView& source) {
  PcdHeader header = read_header(source);
  Cloud cloud = read_body(source, header);
  cloud.viewpoint = header.viewpoint;
  return cloud;
}

}  // namespace robocache::clouds
