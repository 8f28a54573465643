// The base of every call that takes arrays: its name in sentences, its backend, its arrays, and how it runs.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/context.h>

#include <optional>

#include "errors.h"
#include "gpu/memory.h"
#include "options.h"
#include "output.h"
#include "tensor.h"
#include "torch_tensor.h"

namespace robocache::python {

// Throws where what is written, out= or another argument, and an input lie in the same memory, from the first to the last
// byte of each. That they take turns in it is not seen: whether strided arrays really meet is a hard question.
void check_apart(const Where& where, const TensorView& out, const char* argument, const TensorView& input,
                 const char* written = "out");

inline nanobind::object not_implemented() { return nanobind::borrow(Py_NotImplemented); }

struct Call {
  Call(const char* operation, nanobind::handle backend)
      : where{operation, {}, -1}, choice(parse_backend(where, backend.ptr())), arrays(choice) {}

  // The library's call, on the stream that the arrays' library uses now. `work` is about how many elements it touches;
  // `waits`: for a GPU. What is called back from it must take the GIL.
  template <class F>
  void run(std::int64_t work, Workspace workspace, const F& call, bool waits = false) {
    // Host work of more elements than this is worth letting other Python threads run; fewer take less than the switch.
    constexpr std::int64_t large_work = 1 << 14;
    const Context context{choice.backend, arrays.current_stream(where), workspace};
    if (waits || (arrays.device().kind == DeviceKind::cpu && work > large_work)) {
      const nanobind::gil_scoped_release released;
      call(context);
    } else {
      call(context);
    }
    // JAX may free or reuse its inputs in the order of a stream that it does not tell, so nothing may be pending.
    if (arrays.type().library == Library::jax && arrays.device().kind == DeviceKind::cuda) {
      cuda_synchronize(arrays.device().index, nullptr);
    }
  }

  // Scratch from the library's own allocator, where a call on CUDA can ask for it.
  Workspace workspace(Outputs& outputs) const {
    if (arrays.type().api == nullptr || arrays.device().kind != DeviceKind::cuda) return {};
    return {Outputs::allocate_scratch, &outputs};
  }

  // JAX without x64 would cut int64 outputs to 32 bits. `instead`: what else the caller may do.
  void check_wide_integers(const char* what, const char* instead = "") const {
    if (arrays.type().library != Library::jax) return;
    if (nanobind::cast<bool>(nanobind::module_::import_("jax").attr("config").attr("jax_enable_x64"))) return;
    fail(ErrorKind::type, where, what, " are int64, which JAX has only with jax_enable_x64; turn it on", instead);
  }

  // out= must have the dtype that would have been returned; its shape and device are checked by the library.
  void view_out(nanobind::handle out, std::optional<DType> dtype, TensorView& view) {
    if (!arrays.view(where, "out", out.ptr(), Role::output, view)) {
      fail(ErrorKind::type, where, "out gives no access to its memory");
    }
    if (dtype && view.dtype != *dtype) {
      fail(ErrorKind::type, where, "out is ", name_of(view.dtype), "; expected ", name_of(*dtype));
    }
  }

  // After the call: out= has new values.
  void written(nanobind::handle out) const {
    if (arrays.type().library == Library::torch) torch_tensor::increment_version(out.ptr());
  }

  Where where;
  BackendChoice choice;
  Arrays arrays;
};

}  // namespace robocache::python
