// The properties of torch tensors that are read by their Python attributes. DLPack ignores autograd and lazy bits, and before
// torch 2.10, which has no exchange API, it takes several times as long.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/tensor.h>

#include <optional>
#include <string_view>

#include "errors.h"

namespace robocache::python::torch_tensor {

// Reads where the memory of a plain tensor lies: torch.Tensor itself or a Parameter, on the CPU or CUDA, of a dtype that
// we have. False, with no exception set, where DLPack must say what the tensor is.
bool view(PyObject* tensor, TensorView& view);

// Sets an exception with torch's words. The first line says what happened, and the others where in its C++.
void set_error(PyObject* kind, std::string_view message);

// A new tensor on the device of another one. `shape` is a tuple. Where torch has no memory for it, it says RuntimeError;
// this is a MemoryError, as of the exchange API.
nanobind::object empty(PyObject* like, DType dtype, nanobind::handle shape);

// The current CUDA stream of a device; nothing where this torch does not offer it to C.
std::optional<void*> current_stream(int device);

bool requires_grad(PyObject* tensor);
bool grad_enabled();
bool has_tangent(PyObject* tensor);  // of torch.autograd.forward_ad
bool is_negative(PyObject* tensor);  // values that are read with their sign turned, such as z.conj().imag

// DLPack could not describe the tensor, and its Python exception is set. Throws the sentence for a sparse, quantised or
// otherwise impossible tensor; returns where the torch layer can serve the call (functorch wrappers, other devices).
void explain_refusal(const Where& where, const char* argument, PyObject* tensor);

[[noreturn]] void fail_negative(const Where& where, const char* argument);
[[noreturn]] void fail_complex(const Where& where, const char* argument, PyObject* tensor);

// Tells autograd that the tensor was written: a backward that saved it must notice.
void increment_version(PyObject* tensor);

}  // namespace robocache::python::torch_tensor
