#include "torch_tensor.h"

#include <algorithm>
#include <array>

#include "once.h"

namespace nb = nanobind;

namespace robocache::python::torch_tensor {

namespace {

// An attribute of torch.Tensor, read through its descriptor: this skips the lookup through the type.
struct Attribute {
  PyObject* descriptor = nullptr;
  descrgetfunc get = nullptr;

  Attribute() = default;
  Attribute(const nb::object& type, const char* name) : descriptor(type.attr(name).inc_ref().ptr()) {
    get = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get));
  }
  nb::object operator()(PyObject* tensor) const {
    return nb::steal(get(descriptor, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor))));
  }
};

constexpr std::size_t dtype_count = static_cast<std::size_t>(DType::f64) + 1;

struct Torch {
  PyObject *plain = nullptr, *parameter = nullptr;  // torch.Tensor and torch.nn.Parameter
  std::array<PyObject*, dtype_count> dtypes{};      // torch.float32 and so on, by DType
  Attribute requires_grad, dtype, device, is_cpu, is_cuda, shape;
  PyObject *stride = nullptr, *data_ptr = nullptr, *get_device = nullptr;  // methods of torch.Tensor
  bool has_cuda = false;                                                   // ROCm's tensors say that they are CUDA's
  PyObject* empty = nullptr;
  PyObject* empty_names = nullptr;
  PyObject* raw_stream = nullptr;  // nullptr where torch has no CUDA
  PyCFunction is_neg = nullptr;    // what torch.Tensor.is_neg calls; nullptr where that is no plain C function
  PyObject* is_grad_enabled = nullptr;
  PyObject* increment_version = nullptr;
  PyObject* forward_ad = nullptr;  // what torch.autograd.forward_ad defines
  PyObject* level_name = nullptr;

  Torch() {
    const nb::module_ torch = nb::module_::import_("torch");
    const nb::object tensor = torch.attr("Tensor");
    plain = nb::object(tensor).release().ptr();
    parameter = torch.attr("nn").attr("Parameter").inc_ref().ptr();
    for (std::size_t k = 0; k < dtype_count; ++k) {
      dtypes[k] = torch.attr(name_of(static_cast<DType>(k))).inc_ref().ptr();
    }
    requires_grad = {tensor, "requires_grad"};
    dtype = {tensor, "dtype"};
    device = {tensor, "device"};
    is_cpu = {tensor, "is_cpu"};
    is_cuda = {tensor, "is_cuda"};
    shape = {tensor, "shape"};
    stride = tensor.attr("stride").inc_ref().ptr();
    data_ptr = tensor.attr("data_ptr").inc_ref().ptr();
    get_device = tensor.attr("get_device").inc_ref().ptr();
    has_cuda = nb::getattr(torch.attr("version"), "hip", nb::none()).is_none();
    empty = torch.attr("empty").inc_ref().ptr();
    empty_names = Py_BuildValue("(ss)", "dtype", "device");
    const nb::object stream = nb::getattr(torch.attr("_C"), "_cuda_getCurrentRawStream", nb::none());
    if (!stream.is_none()) raw_stream = nb::object(stream).release().ptr();
    const nb::object bound = torch.attr("zeros")(0).attr("is_neg");
    if (PyCFunction_CheckExact(bound.ptr()) != 0 && PyCFunction_GetFlags(bound.ptr()) == METH_NOARGS) {
      is_neg = PyCFunction_GetFunction(bound.ptr());
    }
    is_grad_enabled = torch.attr("is_grad_enabled").inc_ref().ptr();
    increment_version = torch.attr("autograd").attr("graph").attr("increment_version").inc_ref().ptr();
    forward_ad = torch.attr("autograd").attr("forward_ad").attr("__dict__").inc_ref().ptr();
    level_name = PyUnicode_InternFromString("_current_level");
  }
};
Once<Torch> torch;

bool truth(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  const bool yes = result == Py_True;
  Py_DECREF(result);
  return yes;
}

bool truth(nb::object result) { return truth(result.release().ptr()); }

// A method without arguments.
nb::object call(PyObject* method, PyObject* tensor) {
  PyObject* arguments[] = {tensor};
  return nb::steal(PyObject_Vectorcall(method, arguments, 1, nullptr));
}

bool flag(PyObject* tensor, const char* name) {
  const nb::object value = nb::steal(PyObject_GetAttrString(tensor, name));
  if (!value.is_valid()) PyErr_Clear();
  return value.ptr() == Py_True;
}

std::string device_type(PyObject* tensor) { return text_of(nb::handle(tensor).attr("device").attr("type")); }

}  // namespace

bool view(PyObject* tensor, TensorView& view) {
  const Torch& t = torch();
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  if (type != t.plain && type != t.parameter) return false;
  const auto dtype = std::ranges::find(t.dtypes, t.dtype(tensor).ptr());
  if (dtype == t.dtypes.end()) return false;
  TensorView found;
  found.dtype = static_cast<DType>(dtype - t.dtypes.begin());
  if (truth(t.is_cpu(tensor))) {
    found.device = {DeviceKind::cpu, 0};
  } else if (t.has_cuda && truth(t.is_cuda(tensor))) {
    const nb::object index = call(t.get_device, tensor);
    if (!index.is_valid()) throw nb::python_error();
    found.device = {DeviceKind::cuda, static_cast<int>(PyLong_AsLong(index.ptr()))};
  } else {
    return false;
  }
  const nb::object data = call(t.data_ptr, tensor), shape = t.shape(tensor), strides = call(t.stride, tensor);
  if (!data.is_valid() || !shape.is_valid() || !strides.is_valid()) {  // sparse, or a wrapper of torch.func
    PyErr_Clear();
    return false;
  }
  const Py_ssize_t rank = PyTuple_Size(shape.ptr());
  if (rank < 0 || rank > max_rank || PyTuple_Size(strides.ptr()) != rank) {
    PyErr_Clear();
    return false;
  }
  found.rank = static_cast<int>(rank);
  for (Py_ssize_t k = 0; k < rank; ++k) {
    const auto d = static_cast<std::size_t>(k);
    found.shape[d] = PyLong_AsLongLong(PyTuple_GetItem(shape.ptr(), k));
    found.strides[d] = PyLong_AsLongLong(PyTuple_GetItem(strides.ptr(), k));
  }
  found.data = PyLong_AsVoidPtr(data.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  if (found.data == nullptr && found.size() != 0) return false;  // a lazily zero tensor
  view = found;
  return true;
}

void set_error(PyObject* kind, std::string_view message) {
  const std::string_view line = message.substr(0, message.find('\n'));
  const nb::object text = nb::steal(PyUnicode_FromStringAndSize(line.data(), static_cast<Py_ssize_t>(line.size())));
  if (text.is_valid()) PyErr_SetObject(kind, text.ptr());
}

nb::object empty(PyObject* like, DType dtype, nb::handle shape) {
  const Torch& t = torch();
  const nb::object device = t.device(like);
  if (!device.is_valid()) throw nb::python_error();
  PyObject* arguments[] = {shape.ptr(), t.dtypes[static_cast<std::size_t>(dtype)], device.ptr()};
  nb::object made = nb::steal(PyObject_Vectorcall(t.empty, arguments, 1, t.empty_names));
  if (!made.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_RuntimeError) != 0) {
      const nb::python_error refusal;  // takes the exception
      set_error(PyExc_MemoryError, text_of(nb::borrow(refusal.value())));
    }
    throw nb::python_error();
  }
  return made;
}

std::optional<void*> current_stream(int device) {
  PyObject* const raw_stream = torch().raw_stream;
  if (raw_stream == nullptr) return std::nullopt;
  const nb::object stream = nb::steal(PyObject_CallFunction(raw_stream, "i", device));
  if (!stream.is_valid()) throw nb::python_error();
  void* const pointer = PyLong_AsVoidPtr(stream.ptr());
  if (pointer == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return pointer;
}

bool requires_grad(PyObject* tensor) { return truth(torch().requires_grad(tensor)); }

bool grad_enabled() { return truth(PyObject_CallNoArgs(torch().is_grad_enabled)); }

bool has_tangent(PyObject* tensor) {
  const Torch& t = torch();
  PyObject* const level = PyDict_GetItemWithError(t.forward_ad, t.level_name);
  if (level == nullptr || PyLong_AsLong(level) < 0) return false;  // nobody differentiates forward
  const nb::object unpack = nb::borrow(t.forward_ad)["unpack_dual"];
  return !unpack(nb::handle(tensor)).attr("tangent").is_none();
}

bool is_negative(PyObject* tensor) {
  const PyCFunction is_neg = torch().is_neg;
  return truth(is_neg != nullptr ? is_neg(tensor, nullptr) : PyObject_CallMethod(tensor, "is_neg", nullptr));
}

void explain_refusal(const Where& where, const char* argument, PyObject* tensor) {
  const nb::python_error refusal;  // takes the exception, so that the questions below can be asked
  const nb::module_ functorch = nb::module_::import_("torch._C._functorch");
  const nb::object wrapped = functorch.attr("is_functorch_wrapped_tensor")(nb::handle(tensor));
  if (wrapped.is(nb::handle(Py_True))) return;
  const nb::object layout = nb::handle(tensor).attr("layout");
  if (!layout.is(nb::module_::import_("torch").attr("strided"))) {
    fail(ErrorKind::type, where, argument, " is a sparse tensor (", text_of(layout), "); call .to_dense() first");
  }
  if (flag(tensor, "is_quantized")) {
    fail(ErrorKind::type, where, argument, " is a quantized tensor; call .dequantize() first");
  }
  const std::string device = device_type(tensor);
  if (device != "cpu" && device != "cuda") return;
  fail(ErrorKind::type, where, argument, " is a ", text_of(nb::handle(tensor).attr("dtype")),
       " tensor that gives no access to its memory: ", text_of(nb::borrow(refusal.value())));
}

void fail_negative(const Where& where, const char* argument) {
  fail(ErrorKind::value, where, argument,
       " has the negative bit set (a view such as .conj().imag); call .resolve_neg() first");
}

void fail_complex(const Where& where, const char* argument, PyObject* tensor) {
  const nb::object conjugate = nb::handle(tensor).attr("is_conj")();
  if (conjugate.is(nb::handle(Py_True))) {
    fail(ErrorKind::value, where, argument,
         " has the conjugate bit set, and complex values are not supported; call .resolve_conj() and pass "
         "torch.view_as_real() of it");
  }
  fail(ErrorKind::type, where, argument, " is complex, which is not supported; pass torch.view_as_real() of it");
}

void increment_version(PyObject* tensor) {
  const nb::object done = nb::steal(PyObject_CallFunctionObjArgs(torch().increment_version, tensor, nullptr));
  if (!done.is_valid()) throw nb::python_error();
}

}  // namespace robocache::python::torch_tensor
