// The names of attention's arguments in sentences. C++ fields and Python arguments have different names, and callers must
// read their own: the Python module sets its names once, when it is loaded.
#pragma once

namespace robocache {

struct AttentionNames {
  const char *queries = "queries", *keys = "keys", *values = "values";
  const char *query_ranks = "query_ranks", *key_ranks = "key_ranks";
  const char *query_offsets = "query_offsets", *key_offsets = "key_offsets";
  const char *append_keys = "append.keys", *append_values = "append.values";
  bool lists = false;  // several segments are k[0], k[1]; else segments[0].keys, segments[1].keys
};
AttentionNames& attention_names() noexcept;

}  // namespace robocache
