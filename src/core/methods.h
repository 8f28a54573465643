// The methods of channels: one for each channel, or ranges of channels with one method.
#pragma once

#include <robocache/align.h>

#include <cstdint>
#include <span>
#include <vector>

namespace robocache {

// The method of align for channels without one.
inline Method default_method(DType dtype) { return is_float(dtype) ? Method::linear : Method::hold; }

// Joins neighbouring channels with the same method into ranges.
inline std::vector<MethodRange> ranges_of(std::span<const Method> methods) {
  std::vector<MethodRange> ranges;
  for (std::size_t k = 0; k < methods.size(); ++k) {
    const auto at = static_cast<std::int64_t>(k);
    if (ranges.empty() || ranges.back().method != methods[k]) ranges.push_back({methods[k], at, at});
    ranges.back().end = at + 1;
  }
  return ranges;
}

}  // namespace robocache
