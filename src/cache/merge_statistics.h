// Merges the partial statistics of episodes, and makes those that shards do not keep.
#pragma once

#include <robocache/cache.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace robocache::cache {

// The tensor "statistics" of a shard.
struct KeptPartials {
  bool is_kept = false;
  std::string file{};  // for sentences
  std::span<const std::uint64_t> words{};
  std::shared_ptr<const void> memory{};
};
using PartialsOfGroup = std::function<KeptPartials(std::int64_t group)>;

// Cache::statistics(). `partials_of` reads the tensor of the stream's shard of a group.
StreamStatistics merge_statistics(const Cache& cache, std::int64_t stream, std::span<const std::int64_t> episodes,
                                  std::span<const double> quantiles, const PartialsOfGroup& partials_of);

}  // namespace robocache::cache
