#include "libraries.h"

#include <array>
#include <cstddef>
#include <initializer_list>

namespace nb = nanobind;

namespace robocache::python {

namespace {

// The attribute a.b of an object, or nothing.
nb::object attribute(nb::object object, std::initializer_list<const char*> path) {
  for (const char* name : path) {
    if (!object.is_valid()) break;
    object = nb::steal(PyObject_GetAttrString(object.ptr(), name));
    if (!object.is_valid()) PyErr_Clear();
  }
  return object;
}

// The same for a module that is already imported. If it is not imported, the given object cannot be one of its own.
nb::object loaded(const char* module, std::initializer_list<const char*> path) {
  const nb::object key = nb::steal(PyUnicode_FromString(module));
  return attribute(nb::steal(PyImport_GetModule(key.ptr())), path);
}

nb::object type_attribute(PyTypeObject* type, const char* name) {
  return attribute(nb::borrow(reinterpret_cast<PyObject*>(type)), {name});
}

bool is_subtype(PyTypeObject* type, const char* module, std::initializer_list<const char*> path) {
  const nb::object base = loaded(module, path);
  if (!base.is_valid()) return false;
  const int yes = PyObject_IsSubclass(reinterpret_cast<PyObject*>(type), base.ptr());
  if (yes < 0) PyErr_Clear();
  return yes == 1;
}

// jax.Array is abstract: only instances tell, a tracer is one too.
bool is_instance(PyObject* object, const char* module, std::initializer_list<const char*> path) {
  const nb::object base = loaded(module, path);
  if (!base.is_valid()) return false;
  const int yes = PyObject_IsInstance(object, base.ptr());
  if (yes < 0) PyErr_Clear();
  return yes == 1;
}

const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  const nb::object capsule = type_attribute(type, "__dlpack_c_exchange_api__");
  constexpr const char* name = "dlpack_exchange_api";
  if (!capsule.is_valid() || PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
  const auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), name));
  while (api != nullptr && api->version.major != dlpack::major_version) api = api->previous;
  return api;
}

// A torch subclass that handles dispatch itself usually wraps other tensors and has no memory to hand out.
bool overrides_dispatch(PyTypeObject* type) {
  const nb::object base = loaded("torch", {"Tensor", "__torch_dispatch__"});
  const nb::object own = type_attribute(type, "__torch_dispatch__");
  return own.ptr() != base.ptr();
}

// Throws ImportError where the library is older than the oldest that we serve.
void require_served(const char* library) { nb::module_::import_("robocache._versions").attr("require")(library); }

ArrayType classify(PyObject* object) {
  ArrayType found;
  PyTypeObject* const type = Py_TYPE(object);
  found.type = type;
  if (is_subtype(type, "numpy", {"ndarray"})) {
    found.library = Library::numpy;
    found.opaque = is_subtype(type, "numpy.ma", {"MaskedArray"});
    return found;
  }
  if (is_instance(object, "jax", {"Array"})) {
    require_served("jax");
    found.library = Library::jax;
    found.opaque = is_instance(object, "jax", {"core", "Tracer"});
    return found;
  }
  found.api = exchange_api(type);
  if (is_subtype(type, "torch", {"Tensor"})) {
    require_served("torch");
    found.library = Library::torch;
    found.opaque = overrides_dispatch(type);
  } else if (is_subtype(type, "cupy", {"ndarray"})) {
    found.library = Library::cupy;
  } else if (found.api != nullptr) {
    found.library = Library::other;
  }
  return found;
}

// Filled in order, then overwritten in order; each entry holds a reference to its type, so that the address stays its own.
struct TypeCache {
  std::array<ArrayType, 16> entries{};
  std::size_t next = 0;
};
TypeCache cache;  // guarded by the GIL

// nullptr: not in the cache.
const ArrayType* cached(PyTypeObject* type) {
  for (const ArrayType& entry : cache.entries) {
    if (entry.type == type) return &entry;
    if (entry.type == nullptr) break;
  }
  return nullptr;
}

}  // namespace

bool is_cached_array(PyObject* object) { return cached(Py_TYPE(object)) != nullptr; }

ArrayType array_type(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (const ArrayType* const entry = cached(type)) return *entry;
  const ArrayType found = classify(object);
  if (found.library == Library::none) return found;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  ArrayType& entry = cache.entries[cache.next];
  cache.next = (cache.next + 1) % cache.entries.size();
  PyTypeObject* const evicted = entry.type;
  entry = found;
  Py_XDECREF(reinterpret_cast<PyObject*>(evicted));
  return found;
}

const char* name_of(Library library) {
  switch (library) {
    case Library::numpy:
      return "a NumPy array";
    case Library::torch:
      return "a torch tensor";
    case Library::cupy:
      return "a CuPy array";
    case Library::jax:
      return "a JAX array";
    default:
      return "an array";
  }
}

}  // namespace robocache::python
