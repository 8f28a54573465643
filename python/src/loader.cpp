// The loader's order, for robocache/_loader. All arrays are NumPy's, of one dimension. Positions are those from `first` on.
//
//   _core.window_order(windows: int, seed: int, first: int, count: int, shuffle: bool) -> int64 [count]
//   _core.draws(seed: int, positions, stream: str, name: str) -> uint64 [B]             positions: int64 [B]
//   _core.mixture_shares(weights: Sequence[float]) -> list[int]                         they add up to 4,096
//   _core.mixture_order(shares: Sequence[int], seed: int, first: int, count: int)
//       -> tuple[int64 [count], int64 [count]]                                          sources, their own positions
//   _core.cumulate_weights(weights) -> int64 [W]                                        weights: float64 [W]
//   _core.weighted_order(cumulated, seed: int, first: int, count: int) -> int64 [count]
#include "loader.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <robocache/array.h>
#include <robocache/loader.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "argument.h"
#include "errors.h"
#include "numpy.h"
#include "options.h"
#include "tensor.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

constexpr Where where{"Loader", {}, -1};

std::int64_t integer_of(const char* argument, nb::handle object) {
  return parse_integer(where, argument, object.ptr());
}

std::uint64_t seed_of(nb::handle object) {
  const nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    fail(ErrorKind::type, where, "seed is ", describe(object.ptr()), "; expected an int");
  }
  const std::uint64_t seed = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail(ErrorKind::value, where, "seed is ", describe(object.ptr()), "; expected 0 to 2^64 - 1");
  }
  return seed;
}

std::int64_t count_of(nb::handle object) {
  const std::int64_t count = integer_of("count", object);
  if (count < 0) fail(ErrorKind::value, where, "count is ", count, "; it must not be negative");
  return count;
}

template <class T>
std::span<T> span_of(const Array& array) {
  return {reinterpret_cast<T*>(array.data.get()), static_cast<std::size_t>(array.shape[0])};
}

// An array of one dimension, for the length of a call.
template <class T>
class ArrayArgument {
 public:
  ArrayArgument(const char* argument, nb::handle object, DType dtype) : arrays_(BackendChoice{}) {
    TensorView view;
    const bool is_ours = arrays_.view(where, argument, object.ptr(), Role::integers, view);
    if (!is_ours || view.device.kind != DeviceKind::cpu || view.dtype != dtype || view.rank != 1 ||
        (view.shape[0] > 1 && view.strides[0] != 1)) {
      fail(ErrorKind::type, where, argument, " is ", type_name(object.ptr()), "; expected a contiguous array of ",
           name_of(dtype), " with one dimension, on the CPU");
    }
    values = {static_cast<const T*>(view.data), static_cast<std::size_t>(view.shape[0])};
  }

  std::span<const T> values{};

 private:
  Arrays arrays_;
};

// Lets other Python threads run where the work is longer than the switch.
template <class F>
void run(std::int64_t count, const F& work) {
  constexpr std::int64_t large = 1 << 14;
  if (count > large) {
    const nb::gil_scoped_release released;
    work();
  } else {
    work();
  }
}

nb::object window_order_of(Argument windows, Argument seed, Argument first, Argument count, bool shuffle) {
  const std::int64_t number = integer_of("windows", windows), start = integer_of("position", first);
  const std::uint64_t key = seed_of(seed);
  Array numbers = Array::zeros(DType::i64, {count_of(count)});
  run(numbers.shape[0], [&] { window_order(number, key, start, shuffle, span_of<std::int64_t>(numbers)); });
  return numpy_of(std::move(numbers));
}

nb::object draws_of(Argument seed, Argument positions, const std::string& stream, const std::string& name) {
  const std::uint64_t key = seed_of(seed);
  const ArrayArgument<std::int64_t> given("positions", positions, DType::i64);
  Array numbers = Array::zeros(DType::u64, {static_cast<std::int64_t>(given.values.size())});
  run(numbers.shape[0], [&] { draw(key, given.values, stream, name, span_of<std::uint64_t>(numbers)); });
  return numpy_of(std::move(numbers));
}

nb::tuple mixture_order_of(const std::vector<std::int64_t>& shares, Argument seed, Argument first, Argument count) {
  const std::uint64_t key = seed_of(seed);
  const std::int64_t start = integer_of("position", first), size = count_of(count);
  Array sources = Array::zeros(DType::i64, {size}), positions = Array::zeros(DType::i64, {size});
  run(size,
      [&] { mixture_order(shares, key, start, span_of<std::int64_t>(sources), span_of<std::int64_t>(positions)); });
  return nb::make_tuple(numpy_of(std::move(sources)), numpy_of(std::move(positions)));
}

nb::object cumulate(Argument weights) {
  const ArrayArgument<double> given("weights", weights, DType::f64);
  const std::vector<std::int64_t> cumulated = cumulate_weights(given.values);
  Array array = Array::zeros(DType::i64, {static_cast<std::int64_t>(cumulated.size())});
  std::ranges::copy(cumulated, span_of<std::int64_t>(array).begin());
  return numpy_of(std::move(array));
}

nb::object weighted_order_of(Argument cumulated, Argument seed, Argument first, Argument count) {
  const ArrayArgument<std::int64_t> given("cumulated", cumulated, DType::i64);
  const std::uint64_t key = seed_of(seed);
  const std::int64_t start = integer_of("position", first);
  Array numbers = Array::zeros(DType::i64, {count_of(count)});
  run(numbers.shape[0], [&] { weighted_order(given.values, key, start, span_of<std::int64_t>(numbers)); });
  return numpy_of(std::move(numbers));
}

}  // namespace

void bind_loader(nb::module_& m) {
  m.def("window_order", &window_order_of, nb::arg("windows"), nb::arg("seed"), nb::arg("first"), nb::arg("count"),
        nb::arg("shuffle"), "The window numbers of positions.",
        nb::sig("def window_order(windows: int, seed: int, first: int, count: int, shuffle: bool) -> typing.Any"));
  m.def("draws", &draws_of, nb::arg("seed"), nb::arg("positions"), nb::arg("stream"), nb::arg("name"),
        "A random number of 64 bits for each position.",
        nb::sig("def draws(seed: int, positions: typing.Any, stream: str, name: str) -> typing.Any"));
  m.def(
      "mixture_shares", [](const std::vector<double>& weights) { return mixture_shares(weights); }, nb::arg("weights"),
      "How many of 4,096 positions each source has.");
  m.def("mixture_order", &mixture_order_of, nb::arg("shares"), nb::arg("seed"), nb::arg("first"), nb::arg("count"),
        "(sources, their own positions) of positions.",
        nb::sig("def mixture_order(shares: collections.abc.Sequence[int], seed: int, first: int, count: int) -> "
                "tuple[typing.Any, typing.Any]"));
  m.def("cumulate_weights", &cumulate, nb::arg("weights"), "The weights of windows as running sums of whole numbers.",
        nb::sig("def cumulate_weights(weights: typing.Any) -> typing.Any"));
  m.def("weighted_order", &weighted_order_of, nb::arg("cumulated"), nb::arg("seed"), nb::arg("first"), nb::arg("count"),
        "The window numbers of positions, drawn by weights.",
        nb::sig("def weighted_order(cumulated: typing.Any, seed: int, first: int, count: int) -> typing.Any"));
}

}  // namespace robocache::python
