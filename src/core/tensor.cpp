#include <robocache/error.h>
#include <robocache/tensor.h>

#include "core/names.h"
#include "core/text.h"

namespace robocache {

const char* name_of(DType dtype) noexcept { return word_of(dtype); }

TensorView TensorView::contiguous(const void* data, DType dtype, std::span<const std::int64_t> shape, Device device) {
  if (shape.size() > max_rank) {
    throw Error(ErrorKind::value, concat("a tensor has ", shape.size(), " dimensions; at most ", max_rank));
  }
  TensorView view;
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t k = shape.size(); k-- > 0;) {
    if (shape[k] < 0) throw Error(ErrorKind::value, concat("a tensor has shape ", shape_text(shape)));
    view.shape[k] = shape[k];
    view.strides[k] = stride;
    stride *= shape[k];
  }
  return view;
}

}  // namespace robocache
