// Reads PNG as depth cameras write it: 16 bits, grayscale. zlib decompresses it. The container is so simple that a library for
// all of PNG would be more code; and Debian's static libpng cannot be linked into a shared object.
#include <zlib.h>

#include <algorithm>
#include <cstdlib>

#include "formats/clouds/formats.h"

namespace robocache::clouds {
namespace {

constexpr std::string_view signature{"\x89PNG\r\n\x1a\n", 8};
constexpr std::int64_t most_expansion = 1032;  // zlib's, by its manual

struct Image {
  std::int64_t height = 0, width = 0;
  std::vector<std::string_view> data;  // the parts of one zlib stream
};

Image read_chunks(const FileView& source) {
  Image image;
  std::string_view left = source.bytes;
  if (!left.starts_with(signature)) source.fail("is no PNG image");
  left.remove_prefix(signature.size());
  for (bool first = true;; first = false) {
    if (left.size() < 12) source.fail("ends before its last chunk");
    const std::size_t length = load<std::uint32_t>(left.data(), true);
    const std::string_view type = left.substr(4, 4);
    if (length > left.size() - 12) source.fail("ends inside its chunk ", quote(type), " of ", length, " bytes");
    const std::string_view data = left.substr(8, length);
    const auto* const checked = reinterpret_cast<const Bytef*>(left.data() + 4);
    if (crc32_z(0, checked, length + 4) != load<std::uint32_t>(left.data() + 8 + length, true)) {
      source.fail("its chunk ", quote(type), " is damaged: the checksum differs");
    }
    left.remove_prefix(12 + length);

    if (first != (type == "IHDR") || (first && length != 13)) {
      source.fail("its header chunk IHDR must come first, once, and have 13 bytes");
    }
    if (first) {
      image.width = load<std::uint32_t>(data.data(), true);
      image.height = load<std::uint32_t>(data.data() + 4, true);
      const int bits = load<std::uint8_t>(&data[8]), colour = load<std::uint8_t>(&data[9]);
      constexpr std::int64_t most = 0x7fffffff;
      if (std::min(image.height, image.width) < 1 || std::max(image.height, image.width) > most) {
        source.fail("has ", image.height, " by ", image.width, " pixels; expected 1 to ", most, " each way");
      }
      if (bits != 16 || colour != 0) {
        source.fail("has ", bits, " bits a channel and PNG colour type ", colour,
                    "; expected 16 bits and 0, grayscale");
      }
      if (data[10] != 0 || data[11] != 0) source.fail("is compressed in a way that PNG does not define");
      if (data[12] != 0) source.fail("is interlaced; expected rows in order");
    } else if (type == "IDAT") {
      image.data.push_back(data);
    } else if (type == "IEND") {
      return image;
    } else if ((type[0] & 0x20) == 0) {
      source.fail("has the chunk ", quote(type), "; a grayscale image has IHDR, IDAT and IEND");
    }
  }
}

class Inflater {
 public:
  Inflater(const FileView& source, std::span<const std::string_view> parts) : source_(source), parts_(parts) {
    if (inflateInit(&stream_) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  // Reads the next bytes of the stream. Returns false if it has fewer.
  bool read(std::span<unsigned char> to) {
    stream_.next_out = to.data();
    stream_.avail_out = static_cast<uInt>(to.size());
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0) {
        if (parts_.empty()) return false;
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(parts_[0].data()));
        stream_.avail_in = static_cast<uInt>(parts_[0].size());  // below 2^32, because a chunk's size has 32 bits
        parts_ = parts_.subspan(1);
        continue;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) return stream_.avail_out == 0;
      if (result != Z_OK) source_.fail("its data is damaged: ", stream_.msg != nullptr ? stream_.msg : "zlib gave up");
    }
    return true;
  }

 private:
  const FileView& source_;
  std::span<const std::string_view> parts_;
  z_stream stream_{};
};

int paeth(int left, int above, int corner) {
  const int guess = left + above - corner;
  const int a = std::abs(guess - left), b = std::abs(guess - above), c = std::abs(guess - corner);
  if (a <= b && a <= c) return left;
  return b <= c ? above : corner;
}

// Undoes a row's filter, in place. Both rows have a pixel of zeros in front.
template <class Predict>
void add_prediction(std::span<unsigned char> row, std::span<const unsigned char> above, const Predict& predict) {
  for (std::size_t k = 2; k < row.size(); ++k) {
    row[k] = static_cast<unsigned char>(row[k] + predict(int{row[k - 2]}, int{above[k]}, int{above[k - 2]}));
  }
}
bool unfilter(int filter, std::span<unsigned char> row, std::span<const unsigned char> above) {
  switch (filter) {
    case 0:
      return true;
    case 1:
      add_prediction(row, above, [](int left, int, int) { return left; });
      return true;
    case 2:
      add_prediction(row, above, [](int, int up, int) { return up; });
      return true;
    case 3:
      add_prediction(row, above, [](int left, int up, int) { return (left + up) / 2; });
      return true;
    case 4:
      add_prediction(row, above, paeth);
      return true;
    default:
      return false;
  }
}

}  // namespace

Array read_png(const FileView& source) {
  const Image image = read_chunks(source);
  std::int64_t compressed = 0;
  for (const std::string_view part : image.data) compressed += size_of(part);
  const std::int64_t row_bytes = 2 * image.width;
  const std::int64_t bytes = product(image.height, row_bytes);
  if (bytes > most_expansion * compressed) {
    source.fail("its ", compressed, " bytes of data cannot hold ", image.height, " by ", image.width, " pixels");
  }

  Array depth{DType::u16, {image.height, image.width}, allocate<std::byte>(bytes)};
  Inflater inflater(source, image.data);
  std::vector<unsigned char> row(static_cast<std::size_t>(row_bytes) + 2), above(row.size());
  for (std::int64_t y = 0; y < image.height; ++y) {
    unsigned char filter = 0;
    if (!inflater.read({&filter, 1}) || !inflater.read(std::span(row).subspan(2))) {
      source.fail("its data ends in row ", y, " of ", image.height);
    }
    if (!unfilter(filter, row, above)) source.fail("row ", y, " has filter ", int{filter}, "; expected 0 to 4");
    auto* const to = reinterpret_cast<std::uint16_t*>(depth.data.get()) + y * image.width;
    for (std::int64_t x = 0; x < image.width; ++x) {
      const std::size_t k = 2 + 2 * static_cast<std::size_t>(x);
      to[x] = static_cast<std::uint16_t>(row[k] << 8 | row[k + 1]);
    }
    std::swap(row, above);
    row[0] = row[1] = 0;
  }
  return depth;
}

}  // namespace robocache::clouds
