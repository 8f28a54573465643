// Arrays of any library, seen as TensorViews for the length of one call.
//
// How the memory is reached, the first that the type has: DLPack's exchange API (torch from 2.10 on: about 50 ns an
// array), the buffer protocol (NumPy), the attributes of a plain tensor (older torch), __dlpack__ (JAX, CuPy).
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/tensor.h>

#include <utility>
#include <vector>

#include "errors.h"
#include "libraries.h"
#include "options.h"

namespace robocache::python {

enum class Role : std::uint8_t {
  values,  // a torch tensor that requires grad is the torch layer's
  stamps,
  integers,
  output,  // will be written
};

class Arrays {
 public:
  explicit Arrays(const BackendChoice& backend) : backend_(backend) {}
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays();

  // Fills `view`, valid as long as this object. False where the torch layer must serve the call: then the rest of the
  // call is looked at all the same, so that what is wrong with it gets the same sentence. The first array of a call
  // decides which library all of them must be from.
  [[nodiscard]] bool view(const Where& where, const char* argument, PyObject* array, Role role, TensorView& view);

  // The library, type and device of the first array.
  const ArrayType& type() const { return type_; }
  PyObject* first() const { return first_; }
  Device device() const { return device_; }

  // The stream that the library queues its work on now; nullptr for arrays in host memory.
  void* current_stream(const Where& where) const;

  // Keeps something alive as long as the views.
  void keep(nanobind::object object) { objects_.push_back(std::move(object)); }

 private:
  bool view_torch(const Where& where, const char* argument, PyObject* array, const ArrayType& type, bool writable,
                  TensorView& view);
  bool view_exchange(const Where& where, const char* argument, PyObject* array, const ArrayType& type,
                     TensorView& view);
  void view_buffer(const Where& where, const char* argument, PyObject* array, bool writable, TensorView& view);
  bool view_dlpack(const Where& where, const char* argument, PyObject* array, bool writable, TensorView& view);
  bool fill(const Where& where, const char* argument, PyObject* array, const dlpack::Tensor& tensor, TensorView& view);

  BackendChoice backend_;
  ArrayType type_;
  PyObject* first_ = nullptr;
  Where first_where_;
  const char* first_argument_ = "";
  Device device_;
  std::vector<nanobind::object> objects_;
  std::vector<Py_buffer> buffers_;
  std::vector<dlpack::ManagedTensorVersioned*> managed_;
};

// DLPack's words for a dtype and a device.
dlpack::DataType dlpack_type(DType dtype);
dlpack::Device dlpack_device(Device device);

}  // namespace robocache::python
