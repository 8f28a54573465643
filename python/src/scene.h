// Arguments that several ops share: tuples of numbers, grids, the numbers of depth images, and how much memory is free.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/voxelize.h>

#include <array>
#include <cstdint>
#include <string>

#include "errors.h"

namespace robocache::python {

// The items of an iterable as a tuple. Throws Error(type) if it is not iterable, or has not `count` items (negative: any).
nanobind::object tuple_of(const Where& where, const char* argument, PyObject* object, Py_ssize_t count,
                          const char* expected);

// Whether it has a length, as lists and arrays have; a number, or an array without dimensions, has none.
bool has_length(PyObject* object);

std::array<double, 3> parse_three(const Where& where, const char* argument, PyObject* object,
                                  const char* expected = "three numbers");

// One number for all axes, or three.
std::array<double, 3> parse_voxel_size(const Where& where, PyObject* object);

std::array<std::int64_t, 3> parse_shape(const Where& where, PyObject* object);

// robocache.Grid, whose attributes are three tuples.
Grid parse_grid(const Where& where, PyObject* object);

// The numbers of depth images, as keyword arguments name them; the arrays are still to come.
DepthImages parse_images(const Where& where, nanobind::handle depth_scale, nanobind::handle depth_min,
                         nanobind::handle depth_max, nanobind::handle invalid);

// Bytes of host memory that the system says are free.
double free_memory();
std::string gibibytes(double bytes);

}  // namespace robocache::python
