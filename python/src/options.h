// The words and numbers of a call: methods, edges, reductions, durations, dtypes.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/align.h>
#include <robocache/image.h>
#include <robocache/voxelize.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "errors.h"

namespace robocache::python {

Edge parse_edge(const Where& where, PyObject* object);
OnNan parse_on_nan(const Where& where, PyObject* object);
Reduction parse_reduction(const Where& where, PyObject* object);   // "occupancy" is the one of bytes
bool parse_sparse(const Where& where, PyObject* object);           // "dense" or "sparse"
bool parse_in_sensor_frame(const Where& where, PyObject* object);  // "sensor", else "grid"
bool parse_heads_last(const Where& where, PyObject* object);       // "bqhd", else "bhqd"
Fit parse_fit(const Where& where, PyObject* object);
Filter parse_filter(const Where& where, PyObject* object);
ImageLayout parse_image_layout(const Where& where, PyObject* object);
YuvMatrix parse_yuv_matrix(const Where& where, PyObject* object);
YuvRange parse_yuv_range(const Where& where, PyObject* object);
YuvSiting parse_yuv_siting(const Where& where, PyObject* object);
bool parse_flag(const Where& where, const char* argument, PyObject* object);

// None is automatic. "torch" is no backend of the library: the torch layer serves it, and, where no backend is asked for
// by name, whatever the library's backends cannot run.
struct BackendChoice {
  Backend backend = Backend::automatic;
  bool torch = false;
  bool any() const { return backend == Backend::automatic && !torch; }
};
BackendChoice parse_backend(const Where& where, PyObject* object);  // throws where it does not run here
bool cuda_is_available();

// A float is seconds, an int is nanoseconds, a timedelta is itself. An int from -999 up to `least` is refused, but
// for 0, because such a number is surely meant in another unit.
std::int64_t parse_duration(const Where& where, const char* argument, PyObject* object, std::int64_t least = 1000);
std::int64_t parse_max_gap(const Where& where, PyObject* object);  // None: no_max_gap

// A number (int, float, or a NumPy scalar) as a time in nanoseconds; nothing where it is something else. `dtype`: of the
// array that the number was taken from.
std::optional<std::int64_t> parse_time(const Where& where, const char* argument, PyObject* object,
                                       DType dtype = DType::f64);

// A number of hertz; whether it is positive is for the library to say.
double parse_rate(const Where& where, const char* argument, PyObject* object);

// A whole number, such as a count or a channel.
std::int64_t parse_integer(const Where& where, const char* argument, PyObject* object);

// Any number.
double parse_number(const Where& where, const char* argument, PyObject* object);

// None, a name, a sequence of (name, begin, end), or a dict from the names in `channels`, or patterns of them.
struct Methods {
  std::optional<Method> whole;  // for all channels
  std::vector<MethodRange> ranges;
};
Methods parse_methods(const Where& where, PyObject* object, PyObject* channels = Py_None);

// "float32", numpy.float32, numpy.dtype, torch.float32; None is nothing.
std::optional<DType> parse_dtype(const Where& where, PyObject* object);

void bind_options(nanobind::module_& m);

}  // namespace robocache::python
