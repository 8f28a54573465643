// What DLPack does not say about a torch tensor: it hands out tensors whatever autograd and lazy bits they carry.
#pragma once

#include <nanobind/nanobind.h>

#include "errors.h"

namespace robocache::python::torch_tensor {

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
