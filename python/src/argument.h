// Any Python object as an argument, None included: a plain handle would not take None.
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>

namespace robocache::python {

struct Argument : nanobind::handle {};

}  // namespace robocache::python

namespace nanobind::detail {

template <>
struct type_caster<robocache::python::Argument> {
  NB_TYPE_CASTER(robocache::python::Argument, const_name("typing.Any"))

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    static_cast<handle&>(value) = source;
    return true;
  }
};
template <>
struct has_arg_defaults<robocache::python::Argument> : std::true_type {};

}  // namespace nanobind::detail
