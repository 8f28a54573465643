// One reader per format.
#pragma once

#include <robocache/clouds.h>

#include "formats/clouds/file_view.h"

namespace robocache::clouds {

Cloud read_pcd(const FileView& source);
Cloud read_ply(const FileView& source);
Cloud read_npy(const FileView& source);
Cloud read_kitti(const FileView& source, std::span<const char* const> columns);  // float32 columns without a header
Array read_png(const FileView& source);

}  // namespace robocache::clouds
