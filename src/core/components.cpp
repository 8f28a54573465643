#include "core/components.h"

#define HWY_COMPILE_ONLY_SCALAR  // only the version is read here, so no SIMD code needs to compile
#include <hwy/highway.h>
#include <lz4.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include <nlohmann/json.hpp>

#include "core/text.h"

namespace robocache {

Components components() {
  Components list{
      {"zstd", ZSTD_versionString()},
      {"lz4", LZ4_versionString()},
      {"zlib", zlibVersion()},
      {"xxHash", concat(XXH_VERSION_MAJOR, ".", XXH_VERSION_MINOR, ".", XXH_VERSION_RELEASE)},
      {"Highway", concat(HWY_MAJOR, ".", HWY_MINOR, ".", HWY_PATCH)},
      {"nlohmann-json",
       concat(NLOHMANN_JSON_VERSION_MAJOR, ".", NLOHMANN_JSON_VERSION_MINOR, ".", NLOHMANN_JSON_VERSION_PATCH)},
  };
  for (auto& component : cuda_components()) list.push_back(std::move(component));
  return list;
}

}  // namespace robocache
