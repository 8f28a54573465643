// robocache._core: the C++ library as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <robocache/robocache.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "align.h"
#include "attention.h"
#include "cache.h"
#include "clock.h"
#include "clouds.h"
#include "core/components.h"
#include "core/names.h"
#include "core/parallel.h"
#include "core/text.h"
#include "dlpack.h"
#include "errors.h"
#include "exported.h"
#include "image.h"
#include "interrupt.h"
#include "loader.h"
#include "mcap.h"
#include "messages.h"
#include "options.h"
#include "robocache_commit.h"
#include "robocache_config.h"
#include "tsdf.h"
#include "voxelize.h"

#if __has_include(<tsl/robin_growth_policy.h>)  // the copy that nanobind has brought
#include <tsl/robin_growth_policy.h>
#endif

namespace nb = nanobind;

namespace robocache::python {

namespace {

std::vector<std::tuple<std::string, bool, std::string>> list_backends() {
  std::vector<std::tuple<std::string, bool, std::string>> list;
  for (const BackendInfo& backend : backends()) list.emplace_back(backend.name, backend.available, backend.description);
  return list;
}

std::vector<std::string> list_methods() {
  std::vector<std::string> list;
  for (const Word<Method>& word : words<Method>) list.emplace_back(word.text);
  return list;
}

// The components that the module adds to components().
Components module_components() {
  Components list{
      {"nanobind", concat(NB_VERSION_MAJOR, ".", NB_VERSION_MINOR, ".", NB_VERSION_PATCH)},
      {"DLPack", concat(dlpack::major_version, ".", dlpack::minor_version)},
  };
#ifdef TSL_RH_VERSION_MAJOR
  list.emplace_back("robin-map", concat(TSL_RH_VERSION_MAJOR, ".", TSL_RH_VERSION_MINOR, ".", TSL_RH_VERSION_PATCH));
#endif
  return list;
}

nb::dict build_info() {
#define ROBOCACHE_NAME(target) #target,
  const std::vector<std::string> simd{ROBOCACHE_SIMD_TARGETS(ROBOCACHE_NAME)};
#undef ROBOCACHE_NAME
  nb::dict info;
  info["version"] = ROBOCACHE_VERSION;
  info["commit"] = ROBOCACHE_COMMIT;
  info["cuda"] = ROBOCACHE_WITH_CUDA != 0 ? nb::object(nb::str(ROBOCACHE_CUDA_VERSION)) : nb::none();
  info["cuda_architectures"] = ROBOCACHE_CUDA_ARCHITECTURES;
  info["simd_targets"] = nb::cast(simd);
#ifdef __clang__
  info["compiler"] = __VERSION__;  // "Clang 14.0.6"
#else
  info["compiler"] = "gcc " __VERSION__;
#endif
  nb::dict versions;
  for (const Components& list : {components(), module_components()}) {
    for (const auto& [name, version] : list) versions[name.c_str()] = version;
  }
  info["components"] = versions;
  return info;
}

}  // namespace

NB_MODULE(_core, m) {
  bind_errors(m);
  bind_interrupt(m);
  bind_exported(m);
  bind_align(m);
  bind_voxelize(m);
  bind_tsdf(m);
  bind_attention(m);
  bind_image(m);
  bind_clouds(m);
  bind_mcap(m);
  bind_clock(m);
  bind_messages(m);
  bind_cache(m);
  bind_loader(m);
  bind_options(m);
  m.def("backends", &list_backends,
        "(name, available, description) of each backend; never fails where there is no GPU.");
  m.def("methods", &list_methods, "The names of align's methods.");
  m.def("simd_targets", &simd_targets, "The SIMD targets of this build that run on this CPU, the best first.");
  m.def("simd_target", &simd_target, "The SIMD target in use; \"none\" if the cpu backend runs the reference code.");
  m.def(
      "set_simd_target",
      [](nb::handle name) {
        if (PyUnicode_Check(name.ptr()) == 0) {
          fail(ErrorKind::type, {"set_simd_target", {}, -1}, "name is ", describe(name.ptr()), "; expected a str");
        }
        set_simd_target(text_of(nb::borrow(name)));
      },
      nb::arg("name").none(),
      "Selects a SIMD target, for tests. Every target gives the same bits.\n\nArgs:\n    name: One of "
      "`simd_targets()`, or \"none\".",
      nb::sig("def set_simd_target(name: str) -> None"));
  m.def("num_threads", &num_threads, "How many host threads the cpu backend uses.");
  m.def(
      "set_num_threads",
      [](nb::handle threads) {
        constexpr std::int64_t most = std::numeric_limits<int>::max();
        const std::int64_t wanted = parse_integer({"set_num_threads", {}, -1}, "threads", threads.ptr());
        set_num_threads(static_cast<int>(std::clamp(wanted, -most, most)));
      },
      nb::arg("threads").none(), "Sets how many host threads the cpu backend uses.\n\nArgs:\n    threads: 1 to 4096.",
      nb::sig("def set_num_threads(threads: int) -> None"));
  m.def("stay_in_this_thread", &stay_in_this_thread,
        "From now on, what this thread calls uses no other host threads: for pools that keep all cores busy.");
  m.def(
      "synchronize",
      [] {
        const nb::gil_scoped_release released;
        synchronize();
      },
      "Waits for all CUDA work, and raises what data checks on the GPU have found.");
  m.def("version", &version);
  m.def("build_info", &build_info,
        "What this build is: version, commit, CUDA toolkit (None: without) and architectures, SIMD targets, compiler, "
        "and the versions of the libraries that are compiled in.",
        nb::sig("def build_info() -> dict[str, typing.Any]"));
}

}  // namespace robocache::python
