#include "torch_tensor.h"

#include "once.h"

namespace nb = nanobind;

namespace robocache::python::torch_tensor {

namespace {

struct Torch {
  PyObject* requires_grad = nullptr;  // the descriptor on torch.Tensor: skips the lookup through the type
  descrgetfunc get = nullptr;
  PyCFunction is_neg = nullptr;  // what torch.Tensor.is_neg calls; nullptr where that is no plain C function
  PyObject* is_grad_enabled = nullptr;
  PyObject* increment_version = nullptr;
  PyObject* forward_ad = nullptr;  // what torch.autograd.forward_ad defines
  PyObject* level_name = nullptr;

  Torch() {
    const nb::module_ torch = nb::module_::import_("torch");
    const nb::object tensor = torch.attr("Tensor");
    requires_grad = tensor.attr("requires_grad").inc_ref().ptr();
    get = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(requires_grad), Py_tp_descr_get));
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

bool flag(PyObject* tensor, const char* name) {
  const nb::object value = nb::steal(PyObject_GetAttrString(tensor, name));
  if (!value.is_valid()) PyErr_Clear();
  return value.ptr() == Py_True;
}

std::string device_type(PyObject* tensor) { return text_of(nb::handle(tensor).attr("device").attr("type")); }

}  // namespace

bool requires_grad(PyObject* tensor) {
  const Torch& t = torch();
  return truth(t.get(t.requires_grad, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor))));
}

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
