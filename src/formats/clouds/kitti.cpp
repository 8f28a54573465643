// Lidar scans without a header, as KITTI and nuScenes store them: float32 columns, point after point.
#include "formats/clouds/columns.h"
#include "formats/clouds/formats.h"

namespace robocache::clouds {

Cloud read_kitti(const FileView& source, std::span<const char* const> columns) {
  std::vector<Column> layout;
  for (const char* name : columns) layout.push_back({.name = name});
  const std::int64_t record = lay_out_records(layout);
  const std::int64_t bytes = size_of(source.bytes);
  if (bytes % record != 0) {
    source.fail("has ", bytes, " bytes; expected points of ", columns.size(), " float32, ", record, " bytes each");
  }
  return make_cloud(source, layout, source.bytes.data(), 1, bytes / record);
}

}  // namespace robocache::clouds
