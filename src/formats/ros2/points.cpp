// sensor_msgs/PointCloud2: a sample is a cloud, a row a point, a channel a field.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "core/text.h"
#include "formats/ros2/known_types.h"
#include "formats/ros2/lanes.h"

namespace robocache::ros2 {
namespace {

constexpr std::size_t max_fields = 256;
constexpr std::size_t max_point_channels = 4096;
constexpr std::size_t max_field_name = 128;

// Indexed by PointField's number for the dtype, from 1 on.
constexpr std::array<DType, 8> dtypes{DType::i8,  DType::u8,  DType::i16, DType::u16,
                                      DType::i32, DType::u32, DType::f32, DType::f64};

bool is_exact_in_float(DType dtype) { return size_of(dtype) < 4 || dtype == DType::f32; }

struct PointField {
  DType dtype = DType::f32;
  std::uint32_t offset = 0;
  std::uint32_t count = 1;
};

// Copies `count` consecutive numbers of each of `points` points.
using Move = void (*)(const char* from, std::size_t step, std::byte* to, std::size_t row, std::size_t points,
                      std::size_t count, bool swapped);

template <std::size_t bytes>
void move_bytes(const char* from, std::size_t step, std::byte* to, std::size_t row, std::size_t points) {
  for (std::size_t k = 0; k < points; ++k) std::memcpy(to + k * row, from + k * step, bytes);
}

template <class From, class To>
void move(const char* from, std::size_t step, std::byte* to, std::size_t row, std::size_t points, std::size_t count,
          bool swapped) {
  if (std::is_same_v<From, To> && !swapped) {
    if (count == 1) return move_bytes<sizeof(To)>(from, step, to, row, points);
    if (count == 2) return move_bytes<2 * sizeof(To)>(from, step, to, row, points);
    if (count == 3) return move_bytes<3 * sizeof(To)>(from, step, to, row, points);
    if (count == 4) return move_bytes<4 * sizeof(To)>(from, step, to, row, points);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const char* const first = from + i * sizeof(From);
    std::byte* const out = to + i * sizeof(To);
    if (swapped && sizeof(From) > 1) {
      for (std::size_t k = 0; k < points; ++k) {
        const To value = static_cast<To>(io::load<From>(first + k * step, true));
        std::memcpy(out + k * row, &value, sizeof(To));
      }
    } else {
      for (std::size_t k = 0; k < points; ++k) {
        const To value = static_cast<To>(io::load<From>(first + k * step));
        std::memcpy(out + k * row, &value, sizeof(To));
      }
    }
  }
}

// Indexed by PointField's number: into float32 and into float64. A number that float32 cannot hold never goes into float32.
constexpr std::array<Move, 8> moves_to_float{move<std::int8_t, float>,
                                             move<std::uint8_t, float>,
                                             move<std::int16_t, float>,
                                             move<std::uint16_t, float>,
                                             nullptr,
                                             nullptr,
                                             move<float, float>,
                                             nullptr};
constexpr std::array<Move, 8> moves_to_double{
    move<std::int8_t, double>,  move<std::uint8_t, double>,  move<std::int16_t, double>, move<std::uint16_t, double>,
    move<std::int32_t, double>, move<std::uint32_t, double>, move<float, double>,        move<double, double>};

// Consecutive fields of one dtype without a gap.
struct Run {
  Move move = nullptr;
  std::uint32_t offset = 0;
  std::uint32_t out = 0;  // its first byte in the row
  std::uint32_t count = 0;
};

class PointCloud : public KnownType {
 public:
  PointCloud(std::string_view type, std::string_view topic) : type_(type), topic_(topic) {}

  void add(CdrReader& cursor, const messages::MessageTimes& times) override {
    const StdHeader header = read_header(cursor);
    const std::uint32_t height = cursor.count(), width = cursor.count();
    read_fields(cursor);
    const bool is_bigendian = *cursor.numbers(1, 1) != 0;
    const std::uint32_t point_step = cursor.count(), row_step = cursor.count();
    const std::uint32_t size = cursor.count(0, 1);
    const char* const data = cursor.numbers(1, size);
    const bool is_dense = *cursor.numbers(1, 1) != 0;
    for (const PointField& field : fields_) {
      const std::uint64_t end =
          field.offset + std::uint64_t{field.count} * static_cast<std::uint64_t>(size_of(field.dtype));
      if (end > point_step) cursor.fail("has points of ", point_step, " bytes and a field that ends at byte ", end);
    }
    const std::uint64_t points = check_size(cursor, height, width, point_step, row_step, size);
    if (stream_->row_bytes() > 0 && points > 0) {
      std::byte* const rows = stream_->rows(points, cursor.size());
      const std::uint32_t lines = height == 0 ? 0 : height;
      const bool is_one_run = lines == 1 || row_step == std::uint64_t{width} * point_step;
      for (std::uint32_t line = 0; line < (is_one_run ? 1 : lines); ++line) {
        const std::uint64_t count = is_one_run ? points : width;
        copy(data + std::uint64_t{line} * row_step, count, point_step, is_bigendian,
             rows + std::uint64_t{line} * width * stream_->row_bytes());
      }
    }
    if (!header.frame.empty()) stream_->note(0, "frame_id", header.frame);
    stream_->note(1, "height", height);
    stream_->note(2, "width", width);
    stream_->note(3, "is_dense", is_dense ? 1 : 0);
    added_ += stream_->commit(times, header.stamp);
  }

  void discard() override {
    if (stream_) stream_->discard();
  }
  std::int64_t footprint() const override {
    return std::ssize(block_.bytes) + (stream_ ? stream_->footprint() : std::int64_t{sizeof(*this)});
  }
  void take(std::vector<StreamBatch>& to) override {
    if (stream_) stream_->take(to);
    added_ = 0;
  }

 private:
  void read_fields(CdrReader& cursor) {
    if (block_.skip(cursor)) return;
    const char* const begin = cursor.here();
    const std::uint32_t number = cursor.count(0, 13);
    if (number > max_fields) cursor.fail("has points of ", number, " fields; at most ", max_fields, " are read");
    std::vector<PointField> fields;
    std::vector<std::string> names;
    std::uint64_t bytes = 0;
    for (std::uint32_t k = 0; k < number; ++k) {
      const std::string_view name = cursor.string();
      PointField field{.offset = cursor.count()};
      const auto datatype = static_cast<unsigned char>(*cursor.numbers(1, 1));
      field.count = std::max<std::uint32_t>(cursor.count(), 1);  // old drivers leave it 0
      if (datatype < 1 || datatype > dtypes.size()) {
        cursor.fail("has a field ", quote(name), " of datatype ", int{datatype}, "; 1 to 8 are known");
      }
      field.dtype = dtypes[datatype - 1];
      if (name.size() > max_field_name) cursor.fail("has a field whose name has ", name.size(), " bytes");
      bytes += field.count;
      if (bytes > max_point_channels) cursor.fail("has points of more than ", max_point_channels, " numbers");
      for (std::uint32_t i = 0; i < field.count; ++i) {
        names.push_back(field.count == 1 ? std::string(name) : concat(name, "[", i, "]"));
      }
      fields.push_back(field);
    }
    std::vector<std::string> sorted = names;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) cursor.fail("has two fields of one name");
    start(cursor, fields, std::move(names));
    fields_ = std::move(fields);
    block_.keep(begin, cursor);
  }

  // The first message decides which channels there are.
  void start(const CdrReader& cursor, const std::vector<PointField>& fields, std::vector<std::string> names) {
    const bool exact = std::ranges::all_of(fields, is_exact_in_float, &PointField::dtype);
    if (!stream_) {
      const auto count = static_cast<std::int64_t>(names.size());
      StreamInfo info{.name = topic_,
                      .type = type_,
                      .dtype = exact ? DType::f32 : DType::f64,
                      .shape = {count},
                      .channels = std::move(names),
                      .is_ragged = true};
      if (count > 0) info.methods = {{Method::hold, 0, count}};
      stream_.emplace(std::move(info));
    } else if (stream_->info().channels != names) {
      cursor.fail("has points of other fields than those before it");
    }
    const DType to = stream_->info().dtype;
    if (to == DType::f32 && !exact) cursor.fail("has fields that float32 does not hold; those before it had none");
    runs_.clear();
    lanes_ = {};
    std::uint32_t out = 0;
    const PointField* last = nullptr;
    for (const PointField& field : fields) {
      const auto number = static_cast<std::size_t>(std::ranges::find(dtypes, field.dtype) - dtypes.begin());
      if (last != nullptr && last->dtype == field.dtype &&
          field.offset == last->offset + last->count * static_cast<std::uint32_t>(size_of(last->dtype))) {
        runs_.back().count += field.count;
      } else {
        runs_.push_back(
            {(to == DType::f32 ? moves_to_float : moves_to_double)[number], field.offset, out, field.count});
      }
      for (std::uint32_t k = 0; k < field.count; ++k) {
        lanes_.add(field.dtype, field.offset + k * static_cast<std::size_t>(size_of(field.dtype)));
      }
      out += field.count * static_cast<std::uint32_t>(size_of(to));
      last = &field;
    }
    is_plain_ = runs_.size() == 1 && runs_[0].offset == 0 && last->dtype == to;
  }

  static std::uint64_t check_size(const CdrReader& cursor, std::uint64_t height, std::uint64_t width,
                                  std::uint64_t point_step, std::uint64_t row_step, std::uint64_t size) {
    const std::uint64_t points = height * width;  // of 32 bits each
    if (points == 0) return 0;
    if (point_step == 0) cursor.fail("has ", points, " points of 0 bytes");
    if (height > 1 && row_step < width * point_step) {
      cursor.fail("has rows of ", row_step, " bytes for ", width, " points of ", point_step);
    }
    // No product is past 2^64: what is compared with has 32 bits.
    const bool fits =
        width <= size / point_step && (height == 1 || (height - 1) <= (size - width * point_step) / row_step);
    if (!fits) cursor.fail("has ", size, " bytes for ", height, " x ", width, " points of ", point_step);
    return points;
  }

  void copy(const char* from, std::uint64_t count, std::size_t step, bool swapped, std::byte* to) const {
    const std::size_t row = stream_->row_bytes();
    if (is_plain_ && !swapped && step == row) {
      std::memcpy(to, from, count * step);
      return;
    }
    const bool may_use_lanes = !swapped && stream_->info().dtype == DType::f32;
    const std::uint64_t moved = may_use_lanes ? lanes_.move(from, step, count, to) : 0;
    constexpr std::uint64_t block = 256;  // so that a point's fields are read from the nearest cache
    for (std::uint64_t k = moved; k < count; k += block) {
      const std::size_t points = std::min(block, count - k);
      for (const Run& run : runs_) {
        run.move(from + k * step + run.offset, step, to + k * row + run.out, row, points, run.count, swapped);
      }
    }
  }

  std::string type_, topic_;
  std::optional<messages::StreamBuilder> stream_{};
  std::vector<PointField> fields_{};
  Repeated block_{};  // the fields
  std::vector<Run> runs_{};
  Lanes lanes_{};
  bool is_plain_ = false;  // the fields are in the order of the channels, without gaps
};

}  // namespace

std::unique_ptr<KnownType> make_point_cloud(std::string_view type, std::string_view topic) {
  return std::make_unique<PointCloud>(type, topic);
}

}  // namespace robocache::ros2
