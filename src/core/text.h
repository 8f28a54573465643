// Sentences for errors.
#pragma once

#include <robocache/tensor.h>

#include <span>
#include <sstream>
#include <string>
#include <string_view>

namespace robocache {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

inline std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t k = 0; k < shape.size(); ++k) text += (k == 0 ? "" : ", ") + std::to_string(shape[k]);
  return text + "]";
}
inline std::string shape_text(const TensorView& view) {
  return shape_text({view.shape.data(), static_cast<std::size_t>(view.rank < 0 ? 0 : view.rank)});
}

// In quotes, short, and printable: a file's own words in a sentence.
std::string quote(std::string_view text);

}  // namespace robocache
