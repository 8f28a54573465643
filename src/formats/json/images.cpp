// Foxglove's images in JSON. Their base64 data becomes the bytes of a ragged stream, like sensor_msgs' images.
//   foxglove.CompressedImage  {timestamp: {sec, nsec}, frame_id, data, format}
//   foxglove.RawImage         {timestamp: {sec, nsec}, frame_id, data, width, height, encoding, step}
#include <robocache/error.h>

#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/text.h"
#include "formats/json/images.h"

namespace robocache::messages {
namespace {

constexpr auto digits = [] {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<std::uint8_t, 256> values{};
  values.fill(64);
  for (std::size_t k = 0; k < alphabet.size(); ++k) {
    values[static_cast<unsigned char>(alphabet[k])] = static_cast<std::uint8_t>(k);
  }
  return values;
}();

// How many bytes a base64 text without its padding holds; nothing if it is not base64.
std::optional<std::size_t> base64_size(std::string_view text) {
  if (text.size() % 4 == 1) return {};
  return text.size() / 4 * 3 + (text.size() % 4 == 0 ? 0 : text.size() % 4 - 1);
}

// Returns false if a letter is no digit of base64.
bool base64_decode(std::string_view text, std::byte* to) {
  std::uint32_t bits = 0;
  int have = 0;
  for (const char letter : text) {
    const std::uint32_t digit = digits[static_cast<unsigned char>(letter)];
    if (digit > 63) return false;
    bits = bits << 6 | digit;
    have += 6;
    if (have >= 8) {
      have -= 8;
      *to++ = static_cast<std::byte>(bits >> have & 0xff);
    }
  }
  return true;
}

class JsonImages : public MessageReader, private nlohmann::json_sax<nlohmann::json> {
 public:
  JsonImages(const Schema& schema, std::string_view topic, bool is_compressed)
      : is_compressed_(is_compressed),
        stream_({.name = std::string(topic),
                 .type = schema.name,
                 .dtype = DType::u8,
                 .methods = {{Method::hold, 0, 1}},
                 .is_ragged = true}) {}

  void add(std::span<const std::byte> message, const MessageTimes& times) override {
    try {
      read(message);
      if (!has_data_) throw Error(ErrorKind::file, "an image has no data");
      if (!frame_.empty()) stream_.note(0, "frame_id", frame_);
      stream_.note(1, is_compressed_ ? "format" : "encoding", format_);
      if (!is_compressed_) {
        stream_.note(2, "height", height_);
        stream_.note(3, "width", width_);
        stream_.note(4, "step", step_);
      }
      added_ += stream_.commit(times, stamp());
    } catch (...) {
      stream_.discard();
      throw;
    }
  }
  void survey(std::string_view topic, std::span<const std::byte> message, std::int64_t log_time,
              ClockSurvey& to) override {
    try {
      read(message);
    } catch (...) {
      stream_.discard();
      throw;
    }
    stream_.discard();
    to.add(topic, log_time, stamp());
  }
  std::vector<StreamInfo> streams() const override { return {stream_.info()}; }
  std::int64_t bytes() const override { return added_; }
  std::int64_t footprint() const override { return stream_.footprint(); }
  void take(std::vector<StreamBatch>& to) override {
    stream_.take(to);
    added_ = 0;
  }

 private:
  void read(std::span<const std::byte> message) {
    message_bytes_ = message.size();
    depth_ = 0;
    key_.clear();
    outer_.clear();
    frame_.clear();
    format_.clear();
    width_ = height_ = step_ = 0;
    seconds_.reset();
    nanoseconds_ = 0;
    has_data_ = false;
    const char* const begin = reinterpret_cast<const char*>(message.data());
    nlohmann::json_sax<nlohmann::json>* const sax = this;
    nlohmann::json::sax_parse(begin, begin + message.size(), sax);
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(std::uint64_t value) override { return number(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) override { return number(value); }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    outer_ = ++depth_ == 2 ? key_ : "";
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t) override { return ++depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(std::string& name) override { return key_ = name, true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    throw Error(ErrorKind::file, concat("a message is not JSON after byte ", position));
  }

  bool string(std::string& value) override {
    if (depth_ != 1) return true;
    if (key_ == "frame_id") frame_ = value;
    if (key_ == (is_compressed_ ? "format" : "encoding")) format_ = value;
    if (key_ != "data" || std::exchange(has_data_, true)) return true;
    std::string_view text = value;
    for (int k = 0; k < 2 && text.ends_with('='); ++k) text.remove_suffix(1);
    const std::optional<std::size_t> size = base64_size(text);
    if (!size || (*size > 0 && !base64_decode(text, stream_.rows(*size, message_bytes_)))) {
      throw Error(ErrorKind::file, "the data of an image is not base64");
    }
    return true;
  }

  bool number(double value) {
    constexpr double most = 4294967295.0;
    const auto whole = [&] { return value >= 0 && value <= most ? static_cast<std::uint32_t>(value) : 0; };
    if (depth_ == 1 && key_ == "width") width_ = whole();
    if (depth_ == 1 && key_ == "height") height_ = whole();
    if (depth_ == 1 && key_ == "step") step_ = whole();
    if (depth_ == 2 && outer_ == "timestamp" && std::abs(value) < 4e9) {
      if (key_ == "sec") seconds_ = static_cast<std::int64_t>(value);
      if (key_ == "nsec" || key_ == "nanosec") nanoseconds_ = static_cast<std::int64_t>(value);
    }
    return true;
  }

  std::optional<std::int64_t> stamp() const {
    return seconds_ ? std::optional(*seconds_ * 1'000'000'000 + nanoseconds_) : std::nullopt;
  }

  bool is_compressed_;
  StreamBuilder stream_;
  std::int64_t added_ = 0;

  // About the message that is being read
  std::size_t message_bytes_ = 0;
  int depth_ = 0;
  std::string key_{}, outer_{};  // the keys of the value and of the top-level object around it
  std::string frame_{}, format_{};
  std::uint32_t width_ = 0, height_ = 0, step_ = 0;
  std::optional<std::int64_t> seconds_{};
  std::int64_t nanoseconds_ = 0;
  bool has_data_ = false;
};

}  // namespace

std::unique_ptr<MessageReader> make_json_image(const Schema& schema, std::string_view topic) {
  const bool is_compressed = schema.name == "foxglove.CompressedImage";
  if (!is_compressed && schema.name != "foxglove.RawImage") return nullptr;
  return std::make_unique<JsonImages>(schema, topic, is_compressed);
}

}  // namespace robocache::messages
