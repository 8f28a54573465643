#include "tensor.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "once.h"
#include "torch_tensor.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

constexpr const char* accepted = "torch tensors, NumPy, CuPy and JAX arrays are accepted";
constexpr const char* supported = "floats of 16 to 64 bits, bfloat16, integers and bool are";

constexpr int key(std::uint8_t code, int bits) { return code << 8 | bits; }

std::optional<DType> dtype_of(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  switch (key(type.code, type.bits)) {
    case key(dlpack::code_bool, 8):
      return DType::boolean;
    case key(dlpack::code_uint, 8):
      return DType::u8;
    case key(dlpack::code_uint, 16):
      return DType::u16;
    case key(dlpack::code_uint, 32):
      return DType::u32;
    case key(dlpack::code_uint, 64):
      return DType::u64;
    case key(dlpack::code_int, 8):
      return DType::i8;
    case key(dlpack::code_int, 16):
      return DType::i16;
    case key(dlpack::code_int, 32):
      return DType::i32;
    case key(dlpack::code_int, 64):
      return DType::i64;
    case key(dlpack::code_float, 16):
      return DType::f16;
    case key(dlpack::code_bfloat, 16):
      return DType::bf16;
    case key(dlpack::code_float, 32):
      return DType::f32;
    case key(dlpack::code_float, 64):
      return DType::f64;
    default:
      return std::nullopt;
  }
}

// The buffer protocol's letters are those of the struct module.
std::optional<DType> dtype_of(const char* format, Py_ssize_t size) {
  if (format == nullptr) return DType::u8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;  // '>' and '!' are big-endian; falls through below
  if (*format == '\0' || format[1] != '\0') return std::nullopt;
  switch (*format) {
    case '?':
      return DType::boolean;
    case 'e':
      return DType::f16;
    case 'f':
      return DType::f32;
    case 'd':
      return DType::f64;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return size == 1 ? DType::i8 : size == 2 ? DType::i16 : size == 4 ? DType::i32 : DType::i64;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return size == 1 ? DType::u8 : size == 2 ? DType::u16 : size == 4 ? DType::u32 : DType::u64;
    default:
      return std::nullopt;
  }
}

[[noreturn]] void fail_rank(const Where& where, const char* argument, int rank) {
  fail(ErrorKind::value, where, argument, " has ", rank, " dimensions; at most ", max_rank, " are supported");
}

void check_alignment(const Where& where, const char* argument, const TensorView& view) {
  const auto size = static_cast<std::uintptr_t>(size_of(view.dtype));
  if ((reinterpret_cast<std::uintptr_t>(view.data) & (size - 1)) == 0 || view.size() == 0) return;
  fail(ErrorKind::value, where, argument, " starts at an address that is no multiple of its ", size_of(view.dtype),
       "-byte elements; make a copy of it");
}

// Whether two elements are one place in memory.
bool overlaps_itself(const TensorView& view) {
  struct Dimension {
    std::int64_t size, stride;
  };
  std::vector<Dimension> dimensions;
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    if (view.shape[d] > 1) dimensions.push_back({view.shape[d], std::abs(view.strides[d])});
  }
  std::ranges::sort(dimensions, {}, &Dimension::stride);
  std::int64_t reach = 0;  // of the dimensions so far, from their first element to their last
  bool nested = true;
  for (const Dimension& dimension : dimensions) {
    if (dimension.stride == 0) return true;
    nested = nested && dimension.stride > reach;
    reach += (dimension.size - 1) * dimension.stride;
  }
  constexpr std::int64_t most = std::int64_t{1} << 26;  // elements that are looked at one by one
  if (nested || reach >= most) return !nested;
  std::vector<bool> taken(static_cast<std::size_t>(reach + 1));
  std::vector<std::int64_t> places{0};
  for (const Dimension& dimension : dimensions) {
    const std::size_t before = places.size();
    for (std::int64_t k = 1; k < dimension.size; ++k) {
      for (std::size_t p = 0; p < before; ++p) places.push_back(places[p] + k * dimension.stride);
    }
  }
  for (const std::int64_t place : places) {
    if (taken[static_cast<std::size_t>(place)]) return true;
    taken[static_cast<std::size_t>(place)] = true;
  }
  return false;
}

void check_writable_layout(const Where& where, const char* argument, const TensorView& view) {
  if (view.size() == 0) return;
  for (int k = 0; k < view.rank; ++k) {
    const auto d = static_cast<std::size_t>(k);
    if (view.strides[d] == 0 && view.shape[d] > 1) {
      fail(ErrorKind::value, where, argument, " is expanded: several of its elements are one place in memory");
    }
  }
  if (overlaps_itself(view)) {
    fail(ErrorKind::value, where, argument, " overlaps itself: several of its elements are one place in memory");
  }
}

std::string dtype_text(PyObject* array) { return text_of(nb::handle(array).attr("dtype")); }

// NumPy exports no buffer for what the struct module has no letter for. bfloat16, which ml_dtypes adds, is read as uint16.
bool is_bfloat16(PyObject* array) { return text_of(nb::handle(array).attr("dtype").attr("name")) == "bfloat16"; }

[[noreturn]] void fail_numpy_dtype(const Where& where, const char* argument, PyObject* array) {
  const nb::object dtype = nb::handle(array).attr("dtype");
  const std::string text = dtype_text(array);
  const std::string kind = text_of(dtype.attr("kind"));
  if (kind == "M" || kind == "m") {
    fail(ErrorKind::type, where, argument, " is ", text, "; pass nanoseconds: .astype(\"",
         kind == "M" ? "datetime64" : "timedelta64", "[ns]\").astype(\"int64\")");
  }
  if (!dtype.attr("fields").is_none()) {
    fail(ErrorKind::type, where, argument, " is a structured array (", text, "); pass one field of it");
  }
  if (text_of(dtype.attr("byteorder")) == ">") {
    fail(ErrorKind::type, where, argument, " is big-endian (", text, "); pass .astype(dtype.newbyteorder(\"=\"))");
  }
  fail(ErrorKind::type, where, argument, " is ", text_of(dtype.attr("name")), ", which is not supported; ", supported);
}

// stream.cuda_stream of torch, stream.ptr of CuPy.
void* stream_pointer(const Where& where, const nb::object& stream, const char* attribute) {
  void* const pointer = PyLong_AsVoidPtr(nb::object(stream.attr(attribute)).ptr());
  if (pointer == nullptr && PyErr_Occurred() != nullptr) {
    fail_with_python_error(ErrorKind::type, where, "the current stream could not be read");
  }
  return pointer;
}

// The arguments of __dlpack__.
struct Dlpack {
  PyObject* method = PyUnicode_InternFromString("__dlpack__");
  PyObject* version =
      Py_BuildValue("(ii)", static_cast<int>(dlpack::major_version), static_cast<int>(dlpack::minor_version));
  PyObject* names = Py_BuildValue("(ss)", "max_version", "stream");
  PyObject* only_version = Py_BuildValue("(s)", "max_version");
  PyObject* only_stream = Py_BuildValue("(s)", "stream");
};
Once<Dlpack> words;

// array.__dlpack__(), in the newest version that the library knows.
nb::object dlpack_capsule(PyObject* array, PyObject* stream) {
  const auto& [method, version, names, only_version, only_stream] = words();
  PyObject* arguments[] = {array, version, stream};
  PyObject* capsule = PyObject_VectorcallMethod(method, arguments, 1, stream != nullptr ? names : only_version);
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {  // from before max_version
    PyErr_Clear();
    PyObject* older[] = {array, stream};
    capsule = PyObject_VectorcallMethod(method, older, 1, stream != nullptr ? only_stream : nullptr);
  }
  return nb::steal(capsule);
}

}  // namespace

Arrays::~Arrays() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
  for (dlpack::ManagedTensorVersioned* tensor : managed_) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  }
}

bool Arrays::view(const Where& where, const char* argument, PyObject* array, Role role, TensorView& view) {
  const ArrayType type = array_type(array);
  if (type.library == Library::none) {
    // A stream of several episodes has no array; its placeholder says which episode to take (robocache._cache.episodes.NoSamples).
    if (const nb::object reason = nb::steal(PyObject_GetAttrString(array, "why_no_samples")); reason.is_valid()) {
      fail(ErrorKind::value, where, text_of(reason));
    }
    PyErr_Clear();
    const bool is_list = PyList_Check(array) != 0 || PyTuple_Check(array) != 0;
    fail(ErrorKind::type, where, argument, " is of type ", type_name(array), "; ", accepted,
         is_list ? "; stack or concatenate makes one of a list" : "");
  }
  if (first_ == nullptr) {
    type_ = type;
    first_ = array;
    first_where_ = where;
    first_argument_ = argument;
    if (backend_.torch && type.library != Library::torch) {
      fail(ErrorKind::type, where, "backend torch takes torch tensors, and ", argument, " is ", name_of(type.library));
    }
  } else if (type.library != type_.library || (type.library == Library::other && type.api != type_.api)) {
    const std::string first = first_where_.stream_text();
    fail(ErrorKind::type, where, argument, " is ", name_of(type.library), ", but ", first_argument_,
         first == where.stream_text() ? "" : " of " + first, " is ", name_of(type_.library),
         "; all arrays of a call must be of one kind");
  }
  if (backend_.torch) return false;
  const bool writable = role == Role::output;
  switch (type.library) {
    case Library::numpy:
      if (type.opaque) {
        fail(ErrorKind::type, where, argument,
             " is a masked array; pass .filled(), and lengths or NaN for what is missing");
      }
      view_buffer(where, argument, array, writable, view);
      break;
    case Library::torch:
      if (writable && torch_tensor::requires_grad(array)) {
        fail(ErrorKind::value, where, argument, " requires grad, and nothing can be written into it; pass .detach()");
      }
      if (type.opaque) return false;
      if (role == Role::values && torch_tensor::requires_grad(array) && torch_tensor::grad_enabled()) return false;
      if (!view_torch(where, argument, array, type, writable, view)) return false;
      if (role == Role::values && torch_tensor::has_tangent(array)) {
        fail(ErrorKind::value, where, argument,
             " has a tangent; there are gradients backward (torch.func.grad, vjp), and none forward (jvp)");
      }
      // Only floats can carry the bit: torch refuses to view it as another dtype.
      if (is_float(view.dtype) && torch_tensor::is_negative(array)) torch_tensor::fail_negative(where, argument);
      break;
    case Library::jax:
      if (type.opaque) {
        fail(ErrorKind::type, where, argument,
             " is a JAX tracer; jit, grad and vmap are not supported: call it outside, or through jax.pure_callback");
      }
      if (writable) fail(ErrorKind::type, where, argument, " is a JAX array, which cannot be written; leave it out");
      if (!view_dlpack(where, argument, array, writable, view)) return false;
      if (role == Role::stamps && view.dtype == DType::i32) {
        fail(ErrorKind::type, where, argument,
             " are int32, which cannot count nanoseconds; turn on jax_enable_x64 for int64 (or pass float32 seconds)");
      }
      break;
    default:
      if (!(type.api != nullptr ? view_exchange(where, argument, array, type, view)
                                : view_dlpack(where, argument, array, writable, view))) {
        return false;
      }
  }
  check_alignment(where, argument, view);
  if (writable) check_writable_layout(where, argument, view);
  if (first_ == array) device_ = view.device;
  return true;
}

bool Arrays::view_torch(const Where& where, const char* argument, PyObject* array, const ArrayType& type, bool writable,
                        TensorView& view) {
  if (type.api != nullptr) return view_exchange(where, argument, array, type, view);
  if (!torch_tensor::view(array, view)) return view_dlpack(where, argument, array, writable, view);
  return view.device.kind == DeviceKind::cpu || !backend_.any() || cuda_is_available();
}

bool Arrays::view_exchange(const Where& where, const char* argument, PyObject* array, const ArrayType& type,
                           TensorView& view) {
  dlpack::Tensor tensor;
  if (type.api->to_tensor != nullptr) {
    if (type.api->to_tensor(array, &tensor) == 0) return fill(where, argument, array, tensor, view);
  } else {
    dlpack::ManagedTensorVersioned* managed = nullptr;
    if (type.api->to_managed(array, &managed) == 0) {
      managed_.push_back(managed);
      return fill(where, argument, array, managed->tensor, view);
    }
  }
  if (type.library == Library::torch) {
    torch_tensor::explain_refusal(where, argument, array);
    return false;
  }
  fail_with_python_error(ErrorKind::type, where, std::string(argument) + " gives no access to its memory");
}

void Arrays::view_buffer(const Where& where, const char* argument, PyObject* array, bool writable, TensorView& view) {
  Py_buffer buffer;
  const int flags = PyBUF_STRIDED_RO | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  nb::object integers;
  if (PyObject_GetBuffer(array, &buffer, flags) != 0) {
    const nb::python_error refusal;
    if (writable && !nb::cast<bool>(nb::handle(array).attr("flags").attr("writeable"))) {
      fail(ErrorKind::value, where, argument, " is read-only");
    }
    if (!is_bfloat16(array)) fail_numpy_dtype(where, argument, array);
    integers = nb::handle(array).attr("view")("uint16");
    if (PyObject_GetBuffer(integers.ptr(), &buffer, flags) != 0) throw nb::python_error();
  }
  buffers_.push_back(buffer);
  const std::optional<DType> dtype = integers.is_valid() ? DType::bf16 : dtype_of(buffer.format, buffer.itemsize);
  if (!dtype || size_of(*dtype) != buffer.itemsize) fail_numpy_dtype(where, argument, array);
  if (buffer.ndim > max_rank) fail_rank(where, argument, buffer.ndim);
  view.data = buffer.buf;
  view.dtype = *dtype;
  view.device = {};
  view.rank = buffer.ndim;
  for (int k = 0; k < buffer.ndim; ++k) {
    const auto d = static_cast<std::size_t>(k);
    view.shape[d] = buffer.shape[k];
    view.strides[d] = buffer.strides[k] / buffer.itemsize;
    if (view.strides[d] * buffer.itemsize != buffer.strides[k] && buffer.shape[k] > 1) {
      fail(ErrorKind::value, where, argument, " has a stride of ", buffer.strides[k],
           " bytes, which is no multiple of its ", buffer.itemsize, "-byte elements; make a copy of it");
    }
  }
}

bool Arrays::view_dlpack(const Where& where, const char* argument, PyObject* array, bool writable, TensorView& view) {
  nb::object exporter = nb::borrow(array);
  nb::object stream;
  if (type_.library == Library::jax) {
    // The computation of the array may still be running, on a stream that JAX does not name.
    const nb::object done = nb::steal(PyObject_CallMethod(array, "block_until_ready", nullptr));
    if (!done.is_valid()) throw nb::python_error();
  } else {
    if (type_.library == Library::torch) {
      if (nb::cast<bool>(nb::handle(array).attr("is_complex")())) torch_tensor::fail_complex(where, argument, array);
      if (torch_tensor::requires_grad(array)) exporter = nb::handle(array).attr("detach")();
    }
    const nb::object device = nb::steal(PyObject_CallMethod(array, "__dlpack_device__", nullptr));
    if (!device.is_valid()) {
      if (type_.library != Library::torch) throw nb::python_error();
      torch_tensor::explain_refusal(where, argument, array);  // torch before 2.6 has no number for meta
      return false;
    }
    if (PyLong_AsLong(nb::object(device[0]).ptr()) == dlpack::device_cuda) {
      // The stream that the call will run on, so that the library need not wait. 0 is not allowed here; 1 says the same.
      device_ = {DeviceKind::cuda, static_cast<int>(PyLong_AsLong(nb::object(device[1]).ptr()))};
      void* const pointer = current_stream(where);
      stream = nb::steal(PyLong_FromVoidPtr(pointer));
      if (pointer == nullptr) stream = nb::int_(1);
    }
  }
  nb::object capsule = dlpack_capsule(exporter.ptr(), stream.ptr());
  if (!capsule.is_valid()) {
    if (type_.library == Library::torch) {
      torch_tensor::explain_refusal(where, argument, array);
      return false;
    }
    fail_with_python_error(ErrorKind::type, where, std::string(argument) + " gives no access to its memory");
  }
  const dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* managed =
        static_cast<const dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != dlpack::major_version) {
      fail(ErrorKind::type, where, argument, " comes with DLPack version ", managed->version.major, "; expected 1");
    }
    if (writable && (managed->flags & dlpack::flag_read_only) != 0) {
      fail(ErrorKind::value, where, argument, " is read-only");
    }
    tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    tensor = &static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    fail(ErrorKind::type, where, argument, " of type ", type_name(array), " gave no DLPack capsule");
  }
  // The capsule is left unconsumed: its own destructor gives the memory back.
  const bool filled = fill(where, argument, array, *tensor, view);
  keep(std::move(capsule));
  return filled;
}

bool Arrays::fill(const Where& where, const char* argument, PyObject* array, const dlpack::Tensor& tensor,
                  TensorView& view) {
  switch (tensor.device.type) {
    case dlpack::device_cpu:
    case dlpack::device_cuda_host:
      view.device = {DeviceKind::cpu, 0};
      break;
    case dlpack::device_cuda:
    case dlpack::device_cuda_managed:
      view.device = {DeviceKind::cuda, tensor.device.index};
      if (backend_.any() && type_.library == Library::torch && !cuda_is_available()) return false;
      break;
    default:
      if (backend_.any() && type_.library == Library::torch) return false;
      fail(ErrorKind::type, where, argument, " is on a device that is neither the CPU nor CUDA (DLPack device type ",
           tensor.device.type, ")");
  }
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  if (!dtype) {
    if (type_.library == Library::torch && tensor.dtype.code == dlpack::code_complex) {
      torch_tensor::fail_complex(where, argument, array);
    }
    fail(ErrorKind::type, where, argument, " is ", dtype_text(array), ", which is not supported; ", supported);
  }
  if (tensor.rank > max_rank) fail_rank(where, argument, tensor.rank);
  view.dtype = *dtype;
  view.rank = tensor.rank;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  std::int64_t dense = 1;
  for (int k = tensor.rank - 1; k >= 0; --k) {
    const auto d = static_cast<std::size_t>(k);
    view.shape[d] = tensor.shape[k];
    view.strides[d] = tensor.strides != nullptr ? tensor.strides[k] : dense;
    dense *= tensor.shape[k];
  }
  // Lazily zero tensors of torch have a shape and no memory.
  if (tensor.data == nullptr && dense != 0) {
    if (type_.library == Library::torch) return false;
    fail(ErrorKind::type, where, argument, " gives no access to its memory");
  }
  return true;
}

void* Arrays::current_stream(const Where& where) const {
  if (device_.kind == DeviceKind::cpu) return nullptr;
  if (type_.api != nullptr) {
    void* stream = nullptr;
    if (type_.api->current_stream(dlpack::device_cuda, device_.index, &stream) != 0) throw nb::python_error();
    return stream;
  }
  if (type_.library == Library::torch) {
    if (const std::optional<void*> stream = torch_tensor::current_stream(device_.index)) return *stream;
    return stream_pointer(where, nb::module_::import_("torch.cuda").attr("current_stream")(device_.index),
                          "cuda_stream");
  }
  if (type_.library == Library::cupy) {
    const nb::object cuda = nb::module_::import_("cupy").attr("cuda");
    return stream_pointer(where, cuda.attr("get_current_stream")(device_.index), "ptr");
  }
  return nullptr;  // JAX does not give its stream: the call waits before and after
}

dlpack::DataType dlpack_type(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::boolean:
      return {dlpack::code_bool, bits, 1};
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return {dlpack::code_uint, bits, 1};
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
      return {dlpack::code_int, bits, 1};
    case DType::bf16:
      return {dlpack::code_bfloat, bits, 1};
    default:
      return {dlpack::code_float, bits, 1};
  }
}

dlpack::Device dlpack_device(Device device) {
  return {device.kind == DeviceKind::cpu ? dlpack::device_cpu : dlpack::device_cuda, device.index};
}

}  // namespace robocache::python
