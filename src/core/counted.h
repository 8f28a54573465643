// Counts in sentences.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/text.h"

namespace robocache {

// "1 shard", "2 shards"
inline std::string counted(std::size_t count, std::string_view noun) {
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace robocache
