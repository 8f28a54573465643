// The checks of shapes and dtypes that a call would make, for one stream or one timeline alone. They read no data.
#pragma once

#include <robocache/align.h>

namespace robocache {

void check_stream(const Stream& stream);
void check_timeline(const Timeline& timeline);

}  // namespace robocache
