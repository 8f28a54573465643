// sensor_msgs/PointCloud2: a sample is a cloud, a row a point, a channel a field.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "formats/ros2/known.h"
#include "formats/ros2/numbers.h"

namespace robocache::ros2 {
namespace {

constexpr std::size_t max_fields = 256;
constexpr std::size_t max_point_channels = 4096;
constexpr std::size_t max_field_name = 128;

// By PointField's number of it, from 1 on.
constexpr std::array<DType, 8> dtypes{DType::i8,  DType::u8,  DType::i16, DType::u16,
                                      DType::i32, DType::u32, DType::f32, DType::f64};

bool is_exact_in_float(DType dtype) { return size_of(dtype) < 4 || dtype == DType::f32; }

struct PointField {
  DType dtype = DType::f32;
  std::uint32_t offset = 0;
  std::uint32_t count = 1;
  Convert convert = nullptr;
};

class PointCloud : public Known {
 public:
  PointCloud(std::string_view type, std::string_view topic) : type_(type), topic_(topic) {}

  void add(Cursor& cursor, const messages::Clock& clock) override {
    const Header header = read_header(cursor);
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
    stream_->note(0, "frame_id", header.frame);
    stream_->note(1, "height", height);
    stream_->note(2, "width", width);
    stream_->note(3, "is_dense", is_dense ? 1 : 0);
    added_ += stream_->commit(clock, header.stamp);
  }

  void discard() override {
    if (stream_) stream_->discard();
  }
  void take(std::vector<StreamBatch>& to) override {
    if (stream_) stream_->take(to);
    added_ = 0;
  }

 private:
  // Nearly always the fields are those of the message before, byte for byte.
  void read_fields(Cursor& cursor) {
    cursor.collection();
    const char* const begin = cursor.numbers(4, 1);
    const std::size_t left = cursor.left() + 4;
    if (!block_.empty() && block_.size() <= left && swapped_ == cursor.swapped() &&
        std::memcmp(block_.data(), begin, block_.size()) == 0) {
      cursor.seek_back(left - block_.size());
      return;
    }
    block_.clear();
    cursor.seek_back(left);
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
    block_.assign(begin, cursor.here());
    swapped_ = cursor.swapped();
  }

  // The first message says what the channels are.
  void start(const Cursor& cursor, std::vector<PointField>& fields, std::vector<std::string> names) {
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
    runs_ = to == DType::f32;
    std::uint32_t next = 0;
    for (PointField& field : fields) {
      field.convert = converter(field.dtype, to);
      runs_ &= field.dtype == DType::f32 && field.offset == next;
      next += 4 * field.count;
    }
    run_ = next;
  }

  static std::uint64_t check_size(const Cursor& cursor, std::uint64_t height, std::uint64_t width,
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
    if (runs_ && !swapped) {
      if (step == run_) {
        std::memcpy(to, from, count * step);
        return;
      }
      for (std::uint64_t k = 0; k < count; ++k) std::memcpy(to + k * row, from + k * step, run_);
      return;
    }
    const auto size = static_cast<std::size_t>(size_of(stream_->info().dtype));
    for (std::uint64_t k = 0; k < count; ++k) {
      std::byte* out = to + k * row;
      for (const PointField& field : fields_) {
        field.convert(from + k * step + field.offset, out, field.count, swapped);
        out += field.count * size;
      }
    }
  }

  std::string type_, topic_;
  std::optional<messages::Stream> stream_{};
  std::vector<PointField> fields_{};
  std::vector<char> block_{};  // the fields of the last message, as they lie in it
  std::size_t run_ = 0;        // bytes of a point's fields, where they are float32 without gaps
  bool swapped_ = false, runs_ = false;
};

}  // namespace

std::unique_ptr<Known> make_point_cloud(std::string_view type, std::string_view topic) {
  return std::make_unique<PointCloud>(type, topic);
}

}  // namespace robocache::ros2
