#include "errors.h"

namespace nb = nanobind;

namespace robocache::python {

std::string Where::text() const {
  std::string text = operation;
  if (!text.empty()) text += ": ";
  const std::string named = stream_text();
  return named.empty() ? text : text + named + ": ";
}

std::string Where::stream_text() const {
  if (stream.empty() && position < 0) return {};
  return "stream \"" + (stream.empty() ? std::to_string(position) : std::string(stream)) + "\"";
}

void fail_with_python_error(ErrorKind kind, const Where& where, std::string_view what) {
  const nb::python_error error;  // takes the exception that is set
  fail(kind, where, what, ": ", text_of(nb::borrow(error.value())));
}

namespace {

// Never throws: sentences about an error must not fail.
std::string utf8(PyObject* text) {
  const nb::object owned = nb::steal(text);
  Py_ssize_t length = 0;
  const char* const bytes = owned.is_valid() ? PyUnicode_AsUTF8AndSize(owned.ptr(), &length) : nullptr;
  if (bytes != nullptr) return {bytes, static_cast<std::size_t>(length)};
  PyErr_Clear();
  return "?";
}

}  // namespace

nb::object text_from(std::string_view bytes) {
  nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

std::string text_of(const nb::object& object) { return utf8(PyObject_Str(object.ptr())); }

std::string describe(PyObject* object) {
  constexpr std::size_t longest = 80;
  std::string result = utf8(PyObject_Repr(object));
  if (result.find('\n') != std::string::npos) return "an object of type " + type_name(object);  // an array
  if (result.size() > longest) result = result.substr(0, longest) + "...";
  return result;
}

std::string type_name(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  const std::string leaf = utf8(PyType_GetQualName(type));
  const std::string root = utf8(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__module__"));
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

PyObject* new_exception(nb::module_& m, const char* name, const char* doc, PyObject* base) {
  const std::string qualified = text_of(m.attr("__name__")) + "." + name;
  PyObject* const type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, base, nullptr);
  if (type == nullptr) throw nb::python_error();
  m.attr(name) = nb::handle(type);
  return type;
}

}  // namespace

void bind_errors(nb::module_& m) {
  file_error = new_exception(m, "FileError", "A file is missing, damaged, or of another format.", PyExc_OSError);
  cuda_error = new_exception(
      m, "CudaError",
      "The CUDA runtime or driver failed. If the text says fatal, no later CUDA call of this process can succeed.",
      PyExc_RuntimeError);
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetObject(exception_for(error.kind()), text_from(error.what()).ptr());
    }
  });
}

}  // namespace robocache::python
