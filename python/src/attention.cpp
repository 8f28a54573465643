// attention, its backward and its description: arrays in, one call of the library, arrays out.
#include "attention.h"

#include <nanobind/stl/string.h>
#include <robocache/attention.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "argument.h"
#include "call.h"
#include "core/argument_names.h"
#include "once.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// The arguments that the calls share, by their names in Python.
struct AttentionArguments {
  nb::handle q, k, v, causal, scale, window, mask, query_offsets, key_offsets, lengths, append, layout, check, backend;
};

struct MaskType {
  nb::object type = nb::module_::import_("robocache").attr("Mask");
  PyObject* query_rank = PyUnicode_InternFromString("query_rank");
  PyObject* key_rank = PyUnicode_InternFromString("key_rank");
  PyObject* key_valid = PyUnicode_InternFromString("key_valid");
  PyObject* dense = PyUnicode_InternFromString("dense");
};
Once<MaskType> mask_type;

// [B, Q, H, D] seen as [B, H, Q, D], or back.
TensorView transposed(TensorView view) {
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.strides[1], view.strides[2]);
  return view;
}

std::span<const std::int64_t> shape_of(const TensorView& view) {
  return {view.shape.data(), static_cast<std::size_t>(view.rank)};
}

bool is_list(PyObject* object) { return PyList_Check(object) != 0 || PyTuple_Check(object) != 0; }

// ROBOCACHE_DEBUG=attention: each call says on stderr which kernel it takes, and why.
bool is_debugged() {
  static const bool debugged = [] {
    const char* const words = std::getenv("ROBOCACHE_DEBUG");
    return words != nullptr && std::string_view(words).find("attention") != std::string_view::npos;
  }();
  return debugged;
}

struct AttentionCall : Call {
  AttentionCall(const char* operation, const AttentionArguments& given) : Call(operation, given.backend) {
    inputs.reserve(8);
    op.mask.causal = parse_flag(where, "causal", given.causal.ptr());
    op.check = parse_flag(where, "check", given.check.ptr());
    heads_last = parse_heads_last(where, given.layout.ptr());
    if (!given.scale.is_none()) {
      op.scale = parse_number(where, "scale", given.scale.ptr());
      if (op.scale == 0) fail(ErrorKind::value, where, "scale is 0; None is 1 / sqrt(D)");
    }
    if (!given.window.is_none()) parse_window(given.window.ptr());
    if (given.q.is_none()) fail(ErrorKind::type, where, "q is None; expected an array");
    served = view("q", given.q, Role::values, op.queries);
    view_segments(given);
    view_append(given);
    view("q_offsets", given.query_offsets, Role::integers, op.query_offsets);
    view("k_offsets", given.key_offsets, Role::integers, op.key_offsets);
    view("lengths", given.lengths, Role::integers, op.lengths);
    if (!given.mask.is_none()) view_mask(given.mask.ptr());
  }

  // A number for both sides, or (left, right); None and -1 are any number of keys.
  void parse_window(PyObject* window) {
    if (!is_list(window)) {
      op.mask.window_left = op.mask.window_right = parse_reach(window);
      return;
    }
    if (PySequence_Size(window) != 2) {
      fail(ErrorKind::type, where, "window is ", describe(window), "; expected an int, or (left, right)");
    }
    op.mask.window_left = parse_reach(nb::object(nb::steal(PySequence_GetItem(window, 0))).ptr());
    op.mask.window_right = parse_reach(nb::object(nb::steal(PySequence_GetItem(window, 1))).ptr());
  }
  std::int64_t parse_reach(PyObject* reach) const {
    if (reach == Py_None) return -1;
    const std::int64_t keys = parse_integer(where, "window", reach);
    if (keys < -1) fail(ErrorKind::value, where, "window is ", keys, "; it must not be negative, but for -1: any");
    return keys;
  }

  // Where the torch layer must serve the call, `served` becomes false.
  bool view(const char* argument, nb::handle array, Role role, TensorView& view) {
    if (array.is_none()) return true;
    const bool seen = arrays.view(where, argument, array.ptr(), role, view);
    served &= seen;
    if (seen) inputs.push_back({argument, &view});
    if (seen && heads_last && view.rank == 4 && role != Role::integers) view = transposed(view);
    return seen;
  }

  // Arrays, or as many of each in lists.
  void view_segments(const AttentionArguments& given) {
    static constexpr std::array<const char*, max_attention_segments> keys{"k[0]", "k[1]", "k[2]", "k[3]"};
    static constexpr std::array<const char*, max_attention_segments> values{"v[0]", "v[1]", "v[2]", "v[3]"};
    const Role role = given.append.is_none() ? Role::values : Role::output;
    PyObject *const k = given.k.ptr(), *const v = given.v.ptr();
    if (!is_list(k) && !is_list(v)) {
      op.segments.resize(1);
      view("k", given.k, role, op.segments[0].keys);
      view("v", given.v, role, op.segments[0].values);
      return;
    }
    const Py_ssize_t count = is_list(k) ? PySequence_Size(k) : -1;
    if (count < 0 || !is_list(v) || PySequence_Size(v) != count) {
      fail(ErrorKind::type, where, "k is ", list_text(k), " and v is ", list_text(v),
           "; expected two arrays, or two lists of equally many");
    }
    if (count == 0 || count > max_attention_segments) {
      fail(ErrorKind::value, where, "k and v are lists of ", count, " arrays; expected 1 to ", max_attention_segments);
    }
    op.segments.resize(static_cast<std::size_t>(count));
    for (Py_ssize_t s = 0; s < count; ++s) {
      const auto n = static_cast<std::size_t>(s);
      const nb::object key = nb::steal(PySequence_GetItem(k, s)), value = nb::steal(PySequence_GetItem(v, s));
      view(keys[n], key, role, op.segments[n].keys);
      view(values[n], value, role, op.segments[n].values);
      arrays.keep(key);  // another thread may change the list
      arrays.keep(value);
    }
  }
  static std::string list_text(PyObject* object) {
    if (is_list(object)) return "a list of " + std::to_string(PySequence_Size(object));
    return "of type " + type_name(object);
  }

  void view_append(const AttentionArguments& given) {
    PyObject* const append = given.append.ptr();
    if (append == Py_None) return;
    if (!is_list(append) || PySequence_Size(append) != 2) {
      fail(ErrorKind::type, where, "append is ", is_list(append) ? list_text(append) : "of type " + type_name(append),
           "; expected (k, v), the new keys and values");
    }
    if (is_list(given.k.ptr())) fail(ErrorKind::value, where, "append is for one cache, and k is a list");
    const nb::object key = nb::steal(PySequence_GetItem(append, 0)), value = nb::steal(PySequence_GetItem(append, 1));
    view("append[0]", key, Role::values, op.append.keys);
    view("append[1]", value, Role::values, op.append.values);
    arrays.keep(key);
    arrays.keep(value);
  }

  // append must not write what the call reads. k and v may lie in one array, side by side.
  void check_cache() const {
    if (!op.append.keys || !op.lengths) return;  // or the library says what is missing
    const auto& [keys, values] = op.segments[0];
    if (keys.data == values.data && keys.size() > 0) {
      fail(ErrorKind::value, where, "k and v are one array, and append writes to both");
    }
    for (const Input& input : inputs) {
      if (input.view == &keys || input.view == &values) continue;
      check_apart(where, keys, input.argument, *input.view, "k");
      check_apart(where, values, input.argument, *input.view, "v");
    }
  }

  // A Mask, or a dense array.
  void view_mask(PyObject* mask) {
    const MaskType& known = mask_type();
    if (reinterpret_cast<PyObject*>(Py_TYPE(mask)) != known.type.ptr()) {
      view("mask", mask, Role::integers, op.mask.dense);
      return;
    }
    view_field(mask, known.query_rank, "mask.query_rank", op.mask.query_ranks);
    view_field(mask, known.key_rank, "mask.key_rank", op.mask.key_ranks);
    view_field(mask, known.key_valid, "mask.key_valid", op.mask.key_valid);
    view_field(mask, known.dense, "mask.dense", op.mask.dense);
  }
  void view_field(PyObject* mask, PyObject* name, const char* argument, TensorView& field) {
    const nb::object array = nb::steal(PyObject_GetAttr(mask, name));  // the mask keeps it
    if (!array.is_valid()) throw nb::python_error();
    view(argument, array, Role::integers, field);
  }

  // The view with its dimensions in the caller's order.
  TensorView in_layout(const TensorView& view) const { return heads_last && view.rank == 4 ? transposed(view) : view; }

  // One more output, shaped as an input.
  void add_like(Outputs& outputs, const TensorView& view) const { outputs.add(view.dtype, shape_of(in_layout(view))); }

  void add_lse(Outputs& outputs) const {
    const TensorView& q = op.queries;
    if (q.rank == 4) {
      const std::array shape{q.shape[0], q.shape[1], q.shape[2]};
      outputs.add(DType::f32, shape);
    } else {  // packed; what has other dimensions the library refuses
      const std::array shape{q.rank > 1 ? q.shape[1] : 0, q.rank > 0 ? q.shape[0] : 0};
      outputs.add(DType::f32, shape);
    }
  }

  std::int64_t work() const {
    std::int64_t elements = op.queries.size();
    for (const KeyValues& segment : op.segments) elements += segment.keys.size();
    return elements;
  }

  Attention op;
  bool heads_last = false;
  bool served = true;
  struct Input {
    const char* argument;
    const TensorView* view;  // in `op`, or a local of the caller
  };
  std::vector<Input> inputs;
};

nb::object attention(Argument q, Argument k, Argument v, Argument causal, Argument scale, Argument window,
                     Argument mask, Argument query_offsets, Argument key_offsets, Argument lengths, Argument append,
                     Argument layout, Argument check, Argument backend, Argument return_lse, Argument out) {
  AttentionCall call("attention", {q, k, v, causal, scale, window, mask, query_offsets, key_offsets, lengths, append,
                                   layout, check, backend});
  const bool with_lse = parse_flag(call.where, "return_lse", return_lse.ptr());
  if (!call.served) return not_implemented();
  call.check_cache();
  Outputs outputs(call.where, call.arrays, 2);
  TensorView result;
  if (out.is_none()) {
    call.add_like(outputs, call.op.queries);
  } else {
    call.view_out(out, call.op.queries.dtype, result);
    for (const AttentionCall::Input& input : call.inputs) check_apart(call.where, result, input.argument, *input.view);
  }
  if (with_lse) call.add_lse(outputs);
  outputs.allocate();
  if (out.is_none()) result = outputs[0];
  const TensorView lse = with_lse ? outputs[out.is_none() ? 1 : 0] : TensorView{};
  call.run(call.work(), call.workspace(outputs), [&](const Context& context) {
    if (is_debugged()) std::fprintf(stderr, "robocache: %s\n", describe_attention(context, call.op).c_str());
    robocache::attention(context, call.op, call.in_layout(result), lse);
  });
  if (call.op.append.keys) {
    call.written(k);
    call.written(v);
  }
  nb::object made = out.is_none() ? outputs.take() : nb::borrow(out);
  if (!out.is_none()) call.written(out);
  if (!with_lse) return made;
  return nb::make_tuple(std::move(made), outputs.take());
}

// Gradients of q, then of k and v of each segment; bit n of `wanted` asks for the one of place n, the others are None.
nb::object attention_backward(Argument q, Argument k, Argument v, Argument causal, Argument scale, Argument window,
                              Argument mask, Argument query_offsets, Argument key_offsets, Argument lengths,
                              Argument append, Argument layout, Argument check, Argument backend, Argument given_out,
                              Argument given_lse, Argument given_d_out, Argument given_d_lse, std::int64_t wanted) {
  AttentionCall call("attention_backward", {q, k, v, causal, scale, window, mask, query_offsets, key_offsets, lengths,
                                            append, layout, check, backend});
  TensorView out, lse, d_out, d_lse;
  call.view("out", given_out, Role::values, out);
  call.view("lse", given_lse, Role::integers, lse);
  call.view("d_out", given_d_out, Role::values, d_out);
  call.view("d_lse", given_d_lse, Role::integers, d_lse);
  if (!call.served) return not_implemented();

  std::vector<const TensorView*> places{&call.op.queries};
  for (const KeyValues& segment : call.op.segments) {
    places.push_back(&segment.keys);
    places.push_back(&segment.values);
  }
  const auto is_wanted = [&](std::size_t n) { return (wanted >> n & 1) != 0; };
  Outputs outputs(call.where, call.arrays, places.size());
  for (std::size_t n = 0; n < places.size(); ++n) {
    if (is_wanted(n)) call.add_like(outputs, *places[n]);
  }
  outputs.allocate();
  std::vector<TensorView> views(places.size());
  for (std::size_t n = 0, next = 0; n < places.size(); ++n) {
    if (is_wanted(n)) views[n] = call.in_layout(outputs[next++]);
  }
  AttentionGradients gradients{views[0], std::vector<KeyValues>(call.op.segments.size())};
  for (std::size_t s = 0; s < gradients.segments.size(); ++s) {
    gradients.segments[s] = {views[2 * s + 1], views[2 * s + 2]};
  }
  call.run(call.work(), call.workspace(outputs), [&](const Context& context) {
    robocache::attention_backward(context, call.op, out, lse, d_out, d_lse, gradients);
  });
  nb::list made;
  for (std::size_t n = 0; n < places.size(); ++n) made.append(is_wanted(n) ? outputs.take() : nb::none());
  return made;
}

nb::object describe_call(Argument q, Argument k, Argument v, Argument causal, Argument scale, Argument window,
                         Argument mask, Argument query_offsets, Argument key_offsets, Argument lengths, Argument append,
                         Argument layout, Argument check, Argument backend) {
  const AttentionCall call("attention", {q, k, v, causal, scale, window, mask, query_offsets, key_offsets, lengths,
                                         append, layout, check, backend});
  if (!call.served) return not_implemented();
  return nb::cast(describe_attention({call.choice.backend, nullptr, {}}, call.op));
}

// Describes a call with these sizes and no mask. It has no arrays.
std::string describe_sizes(const std::string& device, std::int64_t heads, std::int64_t kv_heads, std::int64_t queries,
                           std::int64_t keys, std::int64_t head_dim) {
  const bool on_gpu = device == "cuda";
  const auto vectors = [&](std::int64_t count, std::int64_t places) {
    TensorView view = TensorView::contiguous(&device, DType::bf16, {1, count, places, head_dim});
    if (on_gpu) view.device = {DeviceKind::cuda, 0};
    return view;
  };
  Attention call;
  call.queries = vectors(heads, queries);
  call.segments = {{vectors(kv_heads, keys), vectors(kv_heads, keys)}};
  return describe_attention({on_gpu ? Backend::cuda : Backend::cpu, nullptr, {}}, call);
}

}  // namespace

void bind_attention(nb::module_& m) {
  attention_names() = {.queries = "q",
                       .keys = "k",
                       .values = "v",
                       .query_ranks = "mask.query_rank",
                       .key_ranks = "mask.key_rank",
                       .query_offsets = "q_offsets",
                       .key_offsets = "k_offsets",
                       .append_keys = "append[0]",
                       .append_values = "append[1]",
                       .lists = true};
#define ROBOCACHE_GIVEN                                                                                         \
  "q: typing.Any, k: typing.Any, v: typing.Any, causal: bool, scale: float | None, window: typing.Any, mask: "  \
  "typing.Any, q_offsets: typing.Any, k_offsets: typing.Any, lengths: typing.Any, append: typing.Any, layout: " \
  "str, check: bool, backend: str | None"
  m.def("attention", &attention,
        nb::sig("def attention(" ROBOCACHE_GIVEN ", return_lse: bool, out: typing.Any, /) -> typing.Any"),
        "robocache.attention; NotImplemented where it is no call for the engine.");
  m.def(
      "attention_backward", &attention_backward,
      nb::sig("def attention_backward(" ROBOCACHE_GIVEN ", out: typing.Any, lse: typing.Any, d_out: typing.Any, "
              "d_lse: typing.Any, wanted: int, /) -> typing.Any"),
      "Gradients of q, then of k and v of each segment; bit n of `wanted` asks for that of place n, others are None.");
  m.def("describe_attention", &describe_call, nb::sig("def describe_attention(" ROBOCACHE_GIVEN ", /) -> typing.Any"),
        "Which kernel a call takes, and why; or NotImplemented.");
  m.def("describe_attention_sizes", &describe_sizes, nb::arg("device"), nb::arg("heads"), nb::arg("kv_heads"),
        nb::arg("queries"), nb::arg("keys"), nb::arg("head_dim"),
        "Which kernel a bfloat16 call of these sizes takes on \"cpu\" or \"cuda\", and why.");
#undef ROBOCACHE_GIVEN
}

}  // namespace robocache::python
