// The checks that every public call makes first, and their sentences.
#pragma once

#include <robocache/context.h>
#include <robocache/error.h>

#include <algorithm>

#include "core/fault.h"
#include "core/integers.h"
#include "core/names.h"
#include "core/text.h"

namespace robocache {

// "fuse: stream "imu": ", the start of every sentence.
struct Speaker {
  Operation operation;
  std::string_view stream = {};

  template <class... Parts>
  [[noreturn]] void fail(ErrorKind kind, const Parts&... parts) const {
    std::string text = name_of(operation);
    text += ": ";
    if (!stream.empty()) text += concat("stream \"", stream, "\": ");
    throw Error(kind, text + concat(parts...));
  }
};

inline std::string describe(Device device) {
  return device.kind == DeviceKind::cpu ? "the CPU" : concat("cuda:", device.index);
}

inline Integers integers_of(const Speaker& speaker, const char* what, const TensorView& view) {
  if (!view) return {};
  if (view.rank != 1)
    speaker.fail(ErrorKind::value, what, " has shape ", shape_text(view), "; it must have one dimension");
  if (view.dtype != DType::i64 && view.dtype != DType::i32) {
    speaker.fail(ErrorKind::type, what, " is ", name_of(view.dtype), "; it must be int64 or int32");
  }
  // An array without elements may have no memory. It still counts as given, so it needs an address.
  static const std::int64_t nothing = 0;
  return {view.data != nullptr ? view.data : &nothing, view.strides[0], view.dtype == DType::i64};
}

inline void check_device(const Speaker& speaker, const char* what, const TensorView& view, Device device,
                         const char* other) {
  if (!view || view.device == device) return;
  speaker.fail(ErrorKind::value, what, " is on ", describe(view.device), " and ", other, " on ", describe(device),
               "; all must be on one device");
}

inline void check_shape(const Speaker& speaker, const char* what, const TensorView& view,
                        std::span<const std::int64_t> expected) {
  if (view.rank == static_cast<int>(expected.size()) &&
      std::equal(expected.begin(), expected.end(), view.shape.begin())) {
    return;
  }
  speaker.fail(ErrorKind::value, what, " has shape ", shape_text(view), "; expected ", shape_text(expected));
}

// Checks an array that is written. `other`: the argument that decides the device.
inline void check_output(const Speaker& speaker, const char* what, const TensorView& view, DType dtype,
                         std::span<const std::int64_t> shape, Device device, const char* other) {
  check_device(speaker, what, view, device, other);
  if (view.dtype != dtype) {
    speaker.fail(ErrorKind::type, what, " is ", name_of(view.dtype), "; it must be ", name_of(dtype));
  }
  check_shape(speaker, what, view, shape);
  const auto dense = TensorView::contiguous(nullptr, dtype, shape).strides;
  for (std::size_t k = 0; k < shape.size() && view.size() > 0; ++k) {
    if (shape[k] > 1 && view.strides[k] != dense[k]) speaker.fail(ErrorKind::value, what, " must be contiguous");
  }
}

inline void check_backend(const Speaker& speaker, const Context& context, Device device) {
  const bool on_cpu = device.kind == DeviceKind::cpu;
  if (context.backend == Backend::cuda && on_cpu) {
    speaker.fail(ErrorKind::value, "backend cuda needs arrays on a GPU, and these are on the CPU");
  }
  if ((context.backend == Backend::cpu || context.backend == Backend::reference) && !on_cpu) {
    speaker.fail(ErrorKind::value, "backend ", word_of(context.backend), " needs arrays on the CPU, and these are on ",
                 describe(device));
  }
}

}  // namespace robocache
