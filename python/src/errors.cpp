#include "errors.h"

namespace nb = nanobind;

namespace robocache::python {

std::string Where::text() const {
  std::string text = operation;
  if (!text.empty()) text += ": ";
  if (!stream.empty()) {
    text += "stream \"";
    text += stream;
    text += "\": ";
  } else if (position >= 0) {
    text += "stream \"" + std::to_string(position) + "\": ";
  }
  return text;
}

void fail_with_python_error(ErrorKind kind, const Where& where, std::string_view what) {
  const nb::python_error error;  // takes the exception that is set
  const nb::object text = nb::steal(PyObject_Str(error.value().ptr()));
  PyErr_Clear();
  fail(kind, where, what, ": ", text.is_valid() ? nb::cast<const char*>(text) : "unknown error");
}

std::string describe(PyObject* object) {
  constexpr std::size_t longest = 80;
  const nb::object text = nb::steal(PyObject_Repr(object));
  if (!text.is_valid()) {
    PyErr_Clear();
    return type_name(object);
  }
  std::string result = nb::cast<const char*>(text);
  if (result.size() > longest) result = result.substr(0, longest) + "...";
  return result;
}

std::string type_name(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  const nb::object name = nb::steal(PyType_GetQualName(type));
  const nb::object module = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__module__"));
  if (!name.is_valid() || !module.is_valid() || !nb::isinstance<nb::str>(module)) {
    PyErr_Clear();
    return "object";
  }
  const std::string root = nb::cast<const char*>(module);
  const std::string leaf = nb::cast<const char*>(name);
  return root == "builtins" ? leaf : root + "." + leaf;
}

namespace {

PyObject* file_error = nullptr;
PyObject* cuda_error = nullptr;

PyObject* exception_for(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::value:
      return PyExc_ValueError;
    case ErrorKind::type:
      return PyExc_TypeError;
    case ErrorKind::file:
      return file_error;
    case ErrorKind::cuda:
      return cuda_error;
    default:
      return PyExc_RuntimeError;
  }
}

PyObject* new_exception(nb::module_& m, const char* name, const char* qualified, const char* doc, PyObject* base) {
  PyObject* const type = PyErr_NewExceptionWithDoc(qualified, doc, base, nullptr);
  if (type == nullptr) throw nb::python_error();
  m.attr(name) = nb::handle(type);
  return type;
}

}  // namespace

void bind_errors(nb::module_& m) {
  file_error = new_exception(m, "FileError", "robocache.FileError",
                             "A file is missing, damaged, or of another format.", PyExc_OSError);
  cuda_error = new_exception(m, "CudaError", "robocache.CudaError",
                             "The CUDA runtime or driver failed; a failure that no later call can get past says fatal.",
                             PyExc_RuntimeError);
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetString(exception_for(error.kind()), error.what());
    }
  });
}

}  // namespace robocache::python
