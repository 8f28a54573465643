// One reader per format.
#pragma once

#include <robocache/clouds.h>

#include "formats/clouds/source.h"

namespace robocache::clouds {

Cloud read_pcd(const Source& source);
Cloud read_ply(const Source& source);
Cloud read_npy(const Source& source);
Cloud read_kitti(const Source& source, std::span<const char* const> columns);  // float32 columns without a header
Array read_png(const Source& source);

}  // namespace robocache::clouds
