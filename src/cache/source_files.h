// The files that a source is read from: how a cache notices that they changed.
#pragma once

#include <robocache/cache.h>

#include <span>
#include <string>
#include <vector>

#include "cache/file.h"

namespace robocache::cache {

std::vector<FileStamp> stamps_of(std::span<const Path> files);

// A hash of the sizes and contents of files; empty if there are none.
std::string hash_of(std::span<const Path> files);

}  // namespace robocache::cache
