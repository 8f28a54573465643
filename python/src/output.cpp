#include "output.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "exported.h"
#include "once.h"
#include "shared_block.h"
#include "torch_tensor.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

nb::object shape_tuple(std::span<const std::int64_t> shape) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t k = 0; k < shape.size(); ++k) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(k), PyLong_FromLongLong(shape[k]));
  }
  return tuple;
}

struct NumPy {
  PyObject* empty = nullptr;
  PyObject* dtypes[static_cast<int>(DType::f64) + 1] = {};

  NumPy() {
    const nb::module_ numpy = nb::module_::import_("numpy");
    empty = numpy.attr("empty").inc_ref().ptr();
    for (int k = 0; k <= static_cast<int>(DType::f64); ++k) {
      const auto dtype = static_cast<DType>(k);
      // Memory for bfloat16 is asked for as uint16: only ml_dtypes has the type, and only who has it can ask.
      dtypes[k] = numpy.attr("dtype")(name_of(dtype == DType::bf16 ? DType::u16 : dtype)).inc_ref().ptr();
    }
  }
};
Once<NumPy> numpy;

std::span<const std::int64_t> shape_of(const TensorView& view) {
  return {view.shape.data(), static_cast<std::size_t>(view.rank)};
}

nb::object numpy_empty(DType dtype, std::span<const std::int64_t> shape) {
  const nb::object size = shape_tuple(shape);
  PyObject* arguments[] = {size.ptr(), numpy().dtypes[static_cast<int>(dtype)]};
  nb::object array = nb::steal(PyObject_Vectorcall(numpy().empty, arguments, 2, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  return array;
}

nb::object cupy_empty(const Arrays& arrays, DType dtype, std::span<const std::int64_t> shape) {
  const nb::module_ cupy = nb::module_::import_("cupy");
  const nb::object device = cupy.attr("cuda").attr("Device")(arrays.device().index);
  const nb::object name = dtype == DType::bf16 ? nb::object(nb::module_::import_("ml_dtypes").attr("bfloat16"))
                                               : nb::object(nb::str(name_of(dtype)));
  device.attr("__enter__")();
  nb::object array = nb::steal(PyObject_CallMethod(cupy.ptr(), "empty", "OO", shape_tuple(shape).ptr(), name.ptr()));
  nb::object failure;
  if (!array.is_valid()) failure = nb::steal(nb::python_error().value().inc_ref().ptr());
  device.attr("__exit__")(nb::none(), nb::none(), nb::none());
  if (failure.is_valid()) {
    PyErr_SetObject(failure.type().ptr(), failure.ptr());
    throw nb::python_error();
  }
  return array;
}

// The exchange API names the exception's type. Called from the other library's code: nothing may be thrown here.
void set_error(void*, const char* kind, const char* message) {
  const bool memory = std::string_view(kind == nullptr ? "" : kind) == "MemoryError";
  torch_tensor::set_error(memory ? PyExc_MemoryError : PyExc_RuntimeError, message);
}

}  // namespace

Outputs::Outputs(const Where& where, const Arrays& arrays, std::size_t count) : where_(where), arrays_(arrays) {
  outputs_.reserve(count);
}

Outputs::~Outputs() {
  for (const Output& output : outputs_) {
    if (output.managed != nullptr && output.managed->deleter != nullptr) output.managed->deleter(output.managed);
  }
  if (shared_ != nullptr) shared_->release();
  for (dlpack::ManagedTensorVersioned* tensor : scratch_) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  }
}

void Outputs::add(DType dtype, std::span<const std::int64_t> shape) {
  outputs_.emplace_back().view = TensorView::contiguous(nullptr, dtype, shape, arrays_.device());
}

void Outputs::allocate() {
  if (arrays_.type().api != nullptr) {
    allocate_exchange();
    return;
  }
  for (Output& output : outputs_) {
    const DType dtype = output.view.dtype;
    const std::span<const std::int64_t> shape = shape_of(output.view);
    switch (arrays_.type().library) {
      case Library::numpy:
        output.view.data = view_array(output, numpy_empty(dtype, shape));
        break;
      case Library::jax: {
        Exported exported(dtype, arrays_.device(), shape);
        output.view.data = exported.data();
        output.array = nb::cast(std::move(exported));
        break;
      }
      case Library::torch:
        output.view.data = view_array(output, torch_tensor::empty(arrays_.first(), dtype, shape_tuple(shape)));
        break;
      default:
        output.view.data = view_array(output, cupy_empty(arrays_, dtype, shape));
    }
  }
}

void Outputs::allocate_exchange() {
  constexpr std::size_t alignment = 256, small = std::size_t{1} << 20;
  const auto bytes_of = [](const TensorView& view) {
    const std::size_t bytes = static_cast<std::size_t>(view.size()) * static_cast<std::size_t>(size_of(view.dtype));
    return (bytes + alignment - 1) / alignment * alignment;
  };
  std::size_t total = 0;
  int sharing = 0;
  for (Output& output : outputs_) {
    const std::size_t bytes = bytes_of(output.view);
    output.shared = bytes <= small;
    if (output.shared) {
      total += bytes;
      ++sharing;
    }
  }
  if (sharing > 1) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(std::max(total, alignment))};
    shared_ = new SharedBlock(allocate(DType::u8, shape));
  }
  std::size_t offset = 0;
  for (Output& output : outputs_) {
    if (output.shared && shared_ != nullptr) {
      output.view.data = shared_->data() + offset;
      offset += bytes_of(output.view);
    } else {
      output.shared = false;
      output.managed = allocate(output.view.dtype, shape_of(output.view));
      output.view.data = static_cast<char*>(output.managed->tensor.data) + output.managed->tensor.byte_offset;
    }
  }
}

dlpack::ManagedTensorVersioned* Outputs::allocate(DType dtype, std::span<const std::int64_t> shape) {
  dlpack::Tensor prototype{};
  prototype.device = dlpack_device(arrays_.device());
  prototype.rank = static_cast<std::int32_t>(shape.size());
  prototype.dtype = dlpack_type(dtype);
  prototype.shape = const_cast<std::int64_t*>(shape.data());
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (arrays_.type().api->allocate(&prototype, &managed, nullptr, set_error) != 0 || managed == nullptr) {
    if (PyErr_Occurred() == nullptr) PyErr_NoMemory();
    throw nb::python_error();
  }
  return managed;
}

void* Outputs::view_array(Output& output, nb::object array) {
  TensorView view;
  if (!views_.view(where_, "the output", array.ptr(), Role::output, view)) {
    fail(ErrorKind::type, where_, "no memory could be had from the arrays' library");
  }
  output.array = std::move(array);
  return view.data;
}

nb::object Outputs::take() {
  Output& output = outputs_[taken_++];
  if (output.shared || output.managed != nullptr) {
    dlpack::ManagedTensorVersioned* const managed =
        output.shared ? shared_->part(output.view) : std::exchange(output.managed, nullptr);
    void* array = nullptr;
    // Takes the tensor over, also where it fails.
    if (arrays_.type().api->to_array(managed, &array) != 0) throw nb::python_error();
    return nb::steal(static_cast<PyObject*>(array));
  }
  if (arrays_.type().library == Library::jax) {
    return nb::module_::import_("jax.dlpack").attr("from_dlpack")(output.array);
  }
  if (arrays_.type().library == Library::numpy && output.view.dtype == DType::bf16) {
    return output.array.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  }
  return std::move(output.array);
}

void* Outputs::allocate_scratch(void* self, std::size_t bytes) {
  const nb::gil_scoped_acquire held;
  auto& outputs = *static_cast<Outputs*>(self);
  const std::int64_t shape[] = {static_cast<std::int64_t>(bytes)};
  outputs.scratch_.push_back(outputs.allocate(DType::u8, shape));
  return outputs.scratch_.back()->tensor.data;
}

}  // namespace robocache::python
