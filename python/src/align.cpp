// resample, align, fuse and align_backward: arrays in, one call of the library, arrays out.
#include "align.h"

#include <nanobind/ndarray.h>
#include <robocache/align.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "argument.h"
#include "cache/episode_table.h"
#include "call.h"
#include "once.h"
#include "ops/align/segments.h"
#include "stream.h"

namespace nb = nanobind;

namespace robocache::python {

namespace {

// What the four calls share.
struct StreamsCall : Call {
  using Call::Call;

  void parse_options(nb::handle edge, nb::handle causal, nb::handle on_nan, nb::handle check) {
    options.edge = parse_edge(where, edge.ptr());
    options.causal = parse_flag(where, "causal", causal.ptr());
    options.on_nan = parse_on_nan(where, on_nan.ptr());
    options.check = parse_flag(where, "check", check.ptr());
  }

  // The call's as_of, and the anchors of its streams; after all other arrays. False where the torch layer must serve the call.
  bool view_as_of(nb::handle as_of, nb::handle wanted) {
    bool anchor = false;
    if (!python::view_as_of(where, as_of.ptr(), arrays, options.as_of, anchor)) return false;
    if (anchor) set_anchor(where, wanted, options.as_of);
    for (std::size_t k = 0; k < members.size(); ++k) {
      PyObject* const stream = members[k].stream.ptr();
      if (takes_anchor(where, stream)) set_anchor(stream_at(k), wanted, streams[k].as_of.emplace());
    }
    return true;
  }
  void set_anchor(const Where& here, nb::handle wanted, AsOf& as_of) const {
    check_anchor(here, wanted.ptr());
    if (targets) as_of = {.time = targets->timeline->start, .times = targets->timeline->starts};
  }

  // Streams as a dict by name or a sequence, or as a sequence with a name or None for each beside it.
  bool view_streams(nb::handle given, nb::handle names) {
    collect(given, names);
    streams.resize(members.size());
    bool served = true;
    for (std::size_t k = 0; k < members.size(); ++k) {
      served &= view_stream(stream_at(k), members[k].stream.ptr(), arrays, streams[k]);
    }
    return served;
  }

  // All arrays of the call; false where the torch layer must serve it.
  bool view(nb::handle given, nb::handle names, nb::handle wanted, nb::handle as_of) {
    bool served = view_streams(given, names);
    served &= view_targets(where, wanted.ptr(), arrays, targets);
    return view_as_of(as_of, wanted) && served;
  }

  void collect(nb::handle given, nb::handle names) {
    if (PyDict_Check(given.ptr()) != 0) {
      members.reserve(static_cast<std::size_t>(PyDict_Size(given.ptr())));
      by_name = true;
      PyObject *name = nullptr, *stream = nullptr;
      for (Py_ssize_t k = 0; PyDict_Next(given.ptr(), &k, &name, &stream) != 0;)
        add(nb::borrow(name), nb::borrow(stream));
    } else if (PyTuple_Check(given.ptr()) != 0 || PyList_Check(given.ptr()) != 0) {
      const nb::object items = nb::steal(PySequence_Tuple(given.ptr()));
      const Py_ssize_t count = PyTuple_Size(items.ptr());
      members.reserve(static_cast<std::size_t>(count));
      for (Py_ssize_t k = 0; k < count; ++k) {
        nb::object stream = nb::borrow(PyTuple_GetItem(items.ptr(), k));
        nb::object name = names.is_none() ? stream_name(stream.ptr()) : nb::object(names[k]);
        add(std::move(name), std::move(stream));
      }
    } else if (PyObject_HasAttrString(given.ptr(), "items") != 0) {  // another mapping
      by_name = true;
      for (const nb::handle item : given.attr("items")()) add(item[0], item[1]);
    } else {
      fail(ErrorKind::type, where, "streams is of type ", type_name(given.ptr()),
           "; expected a dict or a list of Stream");
    }
  }

  void add(nb::object name, nb::object stream) {
    if (!name.is_none() && PyUnicode_Check(name.ptr()) == 0) {
      fail(ErrorKind::type, where, "a stream is named ", describe(name.ptr()), "; expected a str");
    }
    if (!by_name && !name.is_none()) {
      for (const Member& other : members) {
        if (!other.name.is_none() && PyUnicode_Compare(other.name.ptr(), name.ptr()) == 0) {
          fail(ErrorKind::value, where, "two streams are named ", describe(name.ptr()));
        }
      }
    }
    members.push_back({std::move(name), std::move(stream)});
  }

  Where stream_at(std::size_t k) const {
    Where here = where;
    PyObject* const name = members[k].name.ptr();
    if (name != Py_None) {
      Py_ssize_t length = 0;
      const char* const text = PyUnicode_AsUTF8AndSize(name, &length);
      if (text == nullptr) throw nb::python_error();
      here.stream = {text, static_cast<std::size_t>(length)};
    }
    if (members.size() > 1) here.position = static_cast<Py_ssize_t>(k);
    return here;
  }

  std::int64_t stamps() const {
    std::int64_t count = 0;
    for (const Stream& stream : streams) count += stream.times.size();
    return count;
  }

  // Leading dimensions of every output: rows, where there are any, and targets.
  std::size_t leading(const Batch& batch, std::int64_t* shape) const {
    std::size_t rank = 0;
    if (batch.rows) shape[rank++] = *batch.rows;
    shape[rank++] = batch.targets;
    return rank;
  }

  AlignOptions options;
  struct Member {
    nb::object name;  // None: named by its position
    nb::object stream;
  };
  std::vector<Member> members;
  bool by_name = false;  // the streams came with a name each
  std::vector<Stream> streams;
  std::optional<Targets> targets;
};

// out= must be what would have been returned; its shape and device are checked by the library. The call reads its inputs
// while it writes.
void view_out(StreamsCall& call, nb::handle out, std::optional<DType> dtype, TensorView& view) {
  call.view_out(out, dtype, view);
  for (std::size_t k = 0; k < call.streams.size(); ++k) {
    const Where where = call.members.empty() ? call.where : call.stream_at(k);
    const Stream& stream = call.streams[k];
    check_apart(where, view, "values", stream.values);
    check_apart(where, view, "times", stream.times);
    check_apart(where, view, "arrivals", stream.arrivals);
    check_apart(where, view, "lengths", stream.lengths);
    check_apart(where, view, "offsets", stream.offsets);
    check_apart(where, view, "rows", stream.rows);
    if (stream.as_of) check_apart(where, view, "as_of", stream.as_of->times);
  }
  check_apart(call.where, view, "as_of", call.options.as_of.times);
  check_apart(call.where, view, "targets", call.targets->times);
  if (call.targets->timeline) check_apart(call.where, view, "the timeline's start", call.targets->timeline->starts);
}

// [B, T, ...]: the leading dimensions, then the stream's trailing ones.
std::size_t values_shape(const StreamsCall& call, const Batch& batch, const Stream& stream, std::int64_t* shape) {
  std::size_t rank = call.leading(batch, shape);
  for (int k = leading_rank(stream); k < stream.values.rank; ++k) {
    if (rank == max_rank)
      fail(ErrorKind::value, call.where, "the output would have more than ", max_rank, " dimensions");
    shape[rank++] = stream.values.shape[static_cast<std::size_t>(k)];
  }
  return rank;
}

// The dtype that all streams must have where no other is asked for.
DType common_dtype(const StreamsCall& call) {
  const DType first = call.streams[0].values.dtype;
  for (std::size_t k = 1; k < call.streams.size(); ++k) {
    const DType here = call.streams[k].values.dtype;
    if (here != first) {
      fail(ErrorKind::type, call.stream_at(k), "values are ", name_of(here), ", and the first stream's ",
           name_of(first), "; say dtype= for the fused tensor");
    }
  }
  return first;
}

// robocache.Aligned and robocache.Fused, which are named tuples.
struct Records {
  nb::object aligned = nb::module_::import_("robocache").attr("Aligned");
  nb::object fused = nb::module_::import_("robocache").attr("Fused");
  newfunc make = reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new));
};
Once<Records> records;

// The tuple as one of them.
nb::object record(const nb::object& type, const nb::object& parts) {
  const nb::object arguments = nb::steal(PyTuple_Pack(1, parts.ptr()));
  nb::object made = nb::steal(records().make(reinterpret_cast<PyTypeObject*>(type.ptr()), arguments.ptr(), nullptr));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

// Name, or position, to the slice of the fused channels.
nb::object columns_of(const StreamsCall& call) {
  nb::object columns = nb::steal(PyDict_New());
  std::int64_t first = 0;
  for (std::size_t k = 0; k < call.streams.size(); ++k) {
    const std::int64_t end = first + channel_count(call.streams[k]);
    const nb::object from = nb::steal(PyLong_FromLongLong(first));
    const nb::object to = nb::steal(PyLong_FromLongLong(end));
    const nb::object slice = nb::steal(PySlice_New(from.ptr(), to.ptr(), nullptr));
    const nb::object& name = call.members[k].name;
    const nb::object key = name.is_none() ? nb::steal(PyLong_FromSize_t(k)) : name;
    if (PyDict_SetItem(columns.ptr(), key.ptr(), slice.ptr()) != 0) throw nb::python_error();
    first = end;
  }
  return columns;
}

nb::object resample(Argument values, Argument times, Argument targets, Argument method, Argument edge, Argument max_gap,
                    Argument latency, Argument causal, Argument as_of, Argument lengths, Argument offsets,
                    Argument rows, Argument on_nan, Argument check, Argument out, Argument backend) {
  StreamsCall call("resample", backend);
  const Where& where = call.where;
  call.parse_options(edge, causal, on_nan, check);
  const Methods methods = parse_methods(where, method.ptr());
  Stream& stream = call.streams.emplace_back();
  stream.max_gap = parse_max_gap(where, max_gap.ptr());
  stream.latency = parse_duration(where, "latency", latency.ptr());
  Arrays& arrays = call.arrays;
  bool served = arrays.view(where, "values", values.ptr(), Role::values, stream.values);
  served &= arrays.view(where, "times", times.ptr(), Role::stamps, stream.times);
  const auto view_integers = [&](const char* argument, Argument array, TensorView& into) {
    if (!array.is_none()) served &= arrays.view(where, argument, array.ptr(), Role::integers, into);
  };
  view_integers("lengths", lengths, stream.lengths);
  view_integers("offsets", offsets, stream.offsets);
  view_integers("rows", rows, stream.rows);
  served &= view_targets(where, targets.ptr(), arrays, call.targets);
  served &= call.view_as_of(as_of, targets);
  if (!served) return not_implemented();
  set_methods(methods, stream);
  const Batch shape_of_call = batch(where.operation, call.streams, *call.targets);
  Aligned output;
  Outputs outputs(where, arrays, 1);
  if (out.is_none()) {
    std::int64_t shape[max_rank];
    const std::size_t rank = values_shape(call, shape_of_call, stream, shape);
    outputs.add(stream.values.dtype, {shape, rank});
    outputs.allocate();
    output.values = outputs[0];
  } else {
    view_out(call, out, stream.values.dtype, output.values);
  }
  call.run(call.stamps() + output.values.size(), call.workspace(outputs),
           [&](const Context& context) { robocache::resample(context, stream, *call.targets, call.options, output); });
  if (out.is_none()) return outputs.take();
  call.written(out);
  return nb::borrow(out);
}

// Makes the four results of each stream in `outputs`, which has room for them, and returns views of them.
std::vector<Aligned> make_results(const StreamsCall& call, const Batch& shape_of_call, Outputs& outputs) {
  for (const Stream& stream : call.streams) {
    std::int64_t shape[max_rank];
    const std::size_t rank = values_shape(call, shape_of_call, stream, shape);
    const std::size_t lead = call.leading(shape_of_call, shape);
    outputs.add(stream.values.dtype, {shape, rank});
    outputs.add(DType::boolean, {shape, lead});
    outputs.add(DType::i64, {shape, lead});
    outputs.add(DType::i64, {shape, lead});
  }
  outputs.allocate();
  std::vector<Aligned> aligned(call.streams.size());
  for (std::size_t k = 0; k < aligned.size(); ++k) {
    aligned[k] = {outputs[4 * k], outputs[4 * k + 1], outputs[4 * k + 2], outputs[4 * k + 3]};
  }
  return aligned;
}

// An Aligned of each stream: a dict where they came with names, else a list.
nb::object aligned_records(const StreamsCall& call, Outputs& outputs) {
  nb::object result = nb::steal(call.by_name ? PyDict_New() : PyList_New(0));
  for (const auto& member : call.members) {
    nb::object parts[4];
    for (nb::object& part : parts) part = outputs.take();
    const nb::object made = record(
        records().aligned, nb::steal(PyTuple_Pack(4, parts[0].ptr(), parts[1].ptr(), parts[2].ptr(), parts[3].ptr())));
    const int failed = call.by_name ? PyDict_SetItem(result.ptr(), member.name.ptr(), made.ptr())
                                    : PyList_Append(result.ptr(), made.ptr());
    if (failed != 0) throw nb::python_error();
  }
  return result;
}

nb::object align(Argument streams, Argument names, Argument targets, Argument edge, Argument causal, Argument as_of,
                 Argument on_nan, Argument check, Argument backend) {
  StreamsCall call("align", backend);
  call.parse_options(edge, causal, on_nan, check);
  if (!call.view(streams, names, targets, as_of)) return not_implemented();
  const Batch shape_of_call = batch(call.where.operation, call.streams, *call.targets);
  call.check_wide_integers("ages and indices", ", or use resample");
  Outputs outputs(call.where, call.arrays, 4 * call.streams.size());
  const std::vector<Aligned> aligned = make_results(call, shape_of_call, outputs);
  std::int64_t work = call.stamps();
  for (const Aligned& made : aligned) work += made.values.size();
  call.run(work, call.workspace(outputs), [&](const Context& context) {
    robocache::align(context, call.streams, *call.targets, call.options, aligned);
  });
  return aligned_records(call, outputs);
}

using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A stream of the cache without samples: its options, and what a sample is. One without channels is any stream of the cache,
// whose values are not wanted.
void empty_stream(const Where& where, const StreamInfo& info, Stream& stream) {
  const std::int64_t channels = channel_count(stream);
  std::vector<std::int64_t> shape{0};
  for (int k = leading_rank(stream); k < stream.values.rank; ++k) {
    shape.push_back(stream.values.shape[static_cast<std::size_t>(k)]);
  }
  const bool is_same = stream.values.dtype == info.dtype &&
                       std::equal(shape.begin() + 1, shape.end(), info.shape.begin(), info.shape.end());
  if (stream.offsets || stream.lengths || stream.rows || (channels > 0 && (info.is_ragged || !is_same))) {
    fail(ErrorKind::value, where, "the stream is not one of the cache without its samples");
  }
  stream.values = TensorView::contiguous(nullptr, stream.values.dtype, shape);
  stream.times = stream.arrivals = TensorView::contiguous(nullptr, DType::i64, {0});
  stream.latency = 0;
}

// Row b is episode episodes[b] of a cache, whichever shard it lies in: read in place. NotImplemented where a shard has
// fewer channels than the stream has now.
nb::object align_episodes(cache::EpisodeTable& table, const Numbers& episodes, Argument streams, Argument targets,
                          Argument edge, Argument causal, Argument as_of, Argument on_nan, Argument check,
                          Argument backend) {
  StreamsCall call("align", backend);
  call.parse_options(edge, causal, on_nan, check);
  if (!call.view(streams, nb::none(), targets, as_of)) return not_implemented();
  const std::size_t count = call.streams.size();
  if (table.size() != count) {
    fail(ErrorKind::value, call.where, count, " streams, and the table has ", table.size());
  }
  std::uint64_t wanted = 0;  // bit k: the values of stream k
  for (std::size_t k = 0; k < count; ++k) {
    empty_stream(call.stream_at(k), table.stream(k), call.streams[k]);
    if (channel_count(call.streams[k]) > 0) wanted |= std::uint64_t{1} << k;
  }
  const Batch shape_of_call = batch(call.where.operation, call.streams, *call.targets);
  const std::span<const std::int64_t> numbers(episodes.data(), episodes.size());
  if (shape_of_call.rows != static_cast<std::int64_t>(numbers.size())) {
    fail(ErrorKind::value, call.where, "as many rows of targets as episodes are needed");
  }
  cache::EpisodeTable::Rows rows;
  if (!table.find(numbers, rows)) {
    const nb::gil_scoped_release released;
    table.load(numbers, rows);
  }
  if ((rows.narrow() & wanted) != 0) return not_implemented();
  Outputs outputs(call.where, call.arrays, 4 * count);
  const std::vector<Aligned> aligned = make_results(call, shape_of_call, outputs);
  std::int64_t work = 0;
  for (const Aligned& made : aligned) work += made.values.size() + made.valid.size();
  call.run(work, {}, [&](const Context& context) {
    align_op::align_segments(context, call.streams, *call.targets, call.options, rows.segments(), aligned);
  });
  return aligned_records(call, outputs);
}

nb::object fuse(Argument streams, Argument names, Argument targets, Argument edge, Argument causal, Argument as_of,
                Argument on_nan, Argument check, Argument backend, Argument dtype, Argument out) {
  StreamsCall call("fuse", backend);
  call.parse_options(edge, causal, on_nan, check);
  std::optional<DType> wanted = parse_dtype(call.where, dtype.ptr());
  if (!call.view(streams, names, targets, as_of)) return not_implemented();
  const Batch shape_of_call = batch(call.where.operation, call.streams, *call.targets);
  call.check_wide_integers("ages and indices", ", or use resample");
  const std::size_t count = call.streams.size();
  if (!wanted && out.is_none()) wanted = common_dtype(call);
  std::int64_t shape[3];
  const std::size_t lead = call.leading(shape_of_call, shape);
  std::int64_t& last = shape[lead];
  last = 0;
  for (const Stream& stream : call.streams) last += channel_count(stream);
  Aligned fused;
  Outputs outputs(call.where, call.arrays, 3);
  if (out.is_none()) {
    outputs.add(*wanted, {shape, lead + 1});
  } else {
    view_out(call, out, wanted, fused.values);
  }
  last = static_cast<std::int64_t>(count);
  outputs.add(DType::boolean, {shape, lead + 1});
  outputs.add(DType::i64, {shape, lead + 1});
  outputs.allocate();
  const std::size_t marks = out.is_none() ? 1 : 0;
  if (out.is_none()) fused.values = outputs[0];
  fused.valid = outputs[marks];
  fused.age = outputs[marks + 1];
  call.run(call.stamps() + fused.values.size(), call.workspace(outputs),
           [&](const Context& context) { robocache::fuse(context, call.streams, *call.targets, call.options, fused); });
  nb::object values;
  if (out.is_none()) {
    values = outputs.take();
  } else {
    call.written(out);
    values = nb::borrow(out);
  }
  const nb::object valid = outputs.take();
  const nb::object age = outputs.take();
  const nb::object columns = columns_of(call);
  return record(records().fused, nb::steal(PyTuple_Pack(4, values.ptr(), valid.ptr(), age.ptr(), columns.ptr())));
}

nb::object align_backward(Argument streams, Argument names, Argument targets, Argument edge, Argument causal,
                          Argument as_of, Argument on_nan, Argument backend, Argument output_gradients) {
  StreamsCall call("align_backward", backend);
  call.parse_options(edge, causal, on_nan, nb::handle(Py_False));  // the forward has checked the data
  if (!call.view(streams, names, targets, as_of)) return not_implemented();
  const nb::object given = nb::steal(PySequence_Tuple(output_gradients.ptr()));
  if (!given.is_valid()) throw nb::python_error();
  const std::size_t count = call.streams.size();
  if (PyTuple_Size(given.ptr()) != static_cast<Py_ssize_t>(count)) {
    fail(ErrorKind::value, call.where, "as many output gradients as streams are needed");
  }
  Outputs outputs(call.where, call.arrays, count);
  std::vector<TensorView> from(count), into(count);
  std::int64_t work = call.stamps();
  for (std::size_t k = 0; k < count; ++k) {
    PyObject* const gradient = PyTuple_GetItem(given.ptr(), static_cast<Py_ssize_t>(k));
    if (!call.arrays.view(call.where, "an output gradient", gradient, Role::integers, from[k]))
      return not_implemented();
    const TensorView& values = call.streams[k].values;
    outputs.add(values.dtype, {values.shape.data(), static_cast<std::size_t>(values.rank)});
    work += from[k].size();
  }
  outputs.allocate();
  for (std::size_t k = 0; k < count; ++k) into[k] = outputs[k];
  call.run(work, call.workspace(outputs), [&](const Context& context) {
    robocache::align_backward(context, call.streams, *call.targets, call.options, from, into);
  });
  nb::list result;
  for (std::size_t k = 0; k < count; ++k) result.append(outputs.take());
  return result;
}

}  // namespace

void bind_align(nb::module_& m) {
  m.def(
      "resample", &resample,
      nb::sig("def resample(values: typing.Any, times: typing.Any, targets: typing.Any, method: typing.Any, edge: str, "
              "max_gap: typing.Any, latency: typing.Any, causal: bool, as_of: typing.Any, lengths: typing.Any, "
              "offsets: typing.Any, rows: typing.Any, on_nan: str, check: bool, out: typing.Any, backend: str | None, "
              "/) -> typing.Any"),
      "robocache.resample, or NotImplemented where robocache._torch must serve the call.");
  m.def("align", &align,
        nb::sig("def align(streams: typing.Any, names: tuple[str | None, ...] | None, targets: typing.Any, edge: str, "
                "causal: bool, as_of: typing.Any, on_nan: str, check: bool, backend: str | None, /) -> typing.Any"),
        "robocache.align, or NotImplemented where robocache._torch must serve the call.");
  m.def(
      "align_episodes", &align_episodes,
      nb::sig("def align_episodes(table: EpisodeTable, episodes: typing.Any, streams: dict[str, typing.Any], targets: "
              "typing.Any, edge: str, causal: bool, as_of: typing.Any, on_nan: str, check: bool, backend: str | None, "
              "/) -> typing.Any"),
      "align of a cache's episodes, row b of episodes[b], read in place in whichever shards they lie. The streams, one "
      "for each of the table, are without samples; of one without channels as well, only valid, age and index are "
      "found. NotImplemented where a shard has fewer channels than a stream has now.");
  m.def("fuse", &fuse,
        nb::sig("def fuse(streams: typing.Any, names: tuple[str | None, ...] | None, targets: typing.Any, edge: str, "
                "causal: bool, as_of: typing.Any, on_nan: str, check: bool, backend: str | None, dtype: typing.Any, "
                "out: typing.Any, /) -> typing.Any"),
        "robocache.fuse, or NotImplemented where robocache._torch must serve the call.");
  m.def("check_stream", &check_stream, nb::sig("def check_stream(stream: typing.Any, /) -> None"),
        "Raises where an array or an option of a Stream is wrong.");
  m.def("check_stream_options", &check_stream_options,
        nb::sig("def check_stream_options(stream: typing.Any, /) -> None"),
        "Raises where an option of a Stream is wrong, whatever its arrays are.");
  m.def("check_timeline", &check_timeline, nb::sig("def check_timeline(timeline: typing.Any, /) -> None"),
        "Raises where the rate, count or start of a Timeline is wrong.");
  m.def("align_backward", &align_backward,
        nb::sig("def align_backward(streams: typing.Any, names: tuple[str | None, ...] | None, targets: typing.Any, "
                "edge: str, causal: bool, as_of: typing.Any, on_nan: str, backend: str | None, output_gradients: "
                "typing.Any, /) -> typing.Any"),
        "d loss / d values of each stream, as a list, from d loss / d aligned values.");
}

}  // namespace robocache::python
