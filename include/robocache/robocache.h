// RoboCache: what robots record, turned into what policies train on and run on. This header includes all others.
//
// ```cpp
// std::puts(robocache::version());
// ```
#pragma once

#include <robocache/align.h>
#include <robocache/array.h>
#include <robocache/attention.h>
#include <robocache/bytes.h>
#include <robocache/cache.h>
#include <robocache/clock.h>
#include <robocache/clouds.h>
#include <robocache/context.h>
#include <robocache/error.h>
#include <robocache/formats.h>
#include <robocache/image.h>
#include <robocache/interrupt.h>
#include <robocache/loader.h>
#include <robocache/mcap.h>
#include <robocache/recorded.h>
#include <robocache/tensor.h>
#include <robocache/tsdf.h>
#include <robocache/voxelize.h>

#pragma GCC visibility push(default)  // the shared library exports what follows

namespace robocache {

const char* version() noexcept;  // "0.1.0"

}  // namespace robocache

#pragma GCC visibility pop
