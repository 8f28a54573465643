// The TMA descriptors of a forward call.
#pragma once

#include <cuda.h>

#include "ops/attention/plan.h"

namespace robocache::attention_op {

struct TensorMaps {
  CUtensorMap maps[max_attention_segments][2];  // keys and values of each segment
  CUtensorMap query_map;
  bool tma_keys = false;     // TMA loads keys and values; otherwise cp.async does
  bool tma_queries = false;  // TMA loads queries, too
};

}  // namespace robocache::attention_op
