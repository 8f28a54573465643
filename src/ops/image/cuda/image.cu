// image on a GPU: which kernels a call takes, and their launches.
//
// Frames that are not resized are copied by vectors where strides allow (copy.h), else pixel by pixel (pixels.h), as nearest and
// depth are. A resize is two launches: tables.h makes the weights, which costs a few microseconds, and resize.h has one
// pass over the pixels. Weights are made on the GPU so that a call has no copy from host memory and can be captured in a
// graph. Resizes with more taps than a tile takes have a launch for each axis (pixels.h).
#include <algorithm>
#include <cmath>

#include "gpu/device.h"
#include "gpu/scratch.h"
#include "ops/image/cuda/copy.h"
#include "ops/image/cuda/pixels.h"
#include "ops/image/cuda/resize.h"
#include "ops/image/cuda/tables.h"

namespace robocache::image_op {
namespace {

template <class Argument>
void launch(void (*kernel)(Argument), std::int64_t blocks, int threads, Argument& argument, int device,
            cudaStream_t stream, std::size_t shared_bytes = 0) {
  if (blocks >= std::int64_t{1} << 31) throw Error(ErrorKind::value, "image: the output is too large for one launch");
  cuda_launch(reinterpret_cast<const void*>(kernel), blocks, threads, shared_bytes, &argument, device, stream, "image");
}

bool keeps_size(const Axis& axis) { return axis.box == axis.resized; }

bool has_padding(const Axis& axis) {
  return axis.first < 0 || axis.first + axis.most_offset + axis.count > axis.resized;
}

// ---- copies --------------------------------------------------------------------------------------------------------

// Whether 16 bytes at a time can be written: `values` elements.
bool is_aligned(const Plan& plan, bool planes, int values) {
  if (reinterpret_cast<std::uintptr_t>(plan.out.data) % 16 != 0 || plan.out.row % values != 0) return false;
  for (int d = 0; d < plan.leading; ++d) {
    if (plan.out.frame[d] % values != 0) return false;
  }
  return !planes || plan.out.channel % values == 0;
}

using CopyKernel = void (*)(CopyCall);

template <class T>
CopyKernel copy_kernel(bool planes, int channels) {
  if (planes) return channels == 3 ? &image_copy_kernel<T, 3, 1> : &image_copy_kernel<T, 4, 1>;
  if constexpr (sizeof(T) > 1) {
    if (channels == 3) return &image_copy_kernel<T, 1, 3>;
    if (channels == 4) return &image_copy_kernel<T, 1, 4>;
  }
  return &image_copy_kernel<T, 1, 1>;
}

// False where strides do not allow it, or pixels are more than copied.
bool copied(const Call& call, int device, cudaStream_t stream) {
  const Plan& plan = call.plan;
  const int channels = plan.channels;
  if (plan.source != Source::colour || has_padding(plan.height) || has_padding(plan.width)) return false;
  if (plan.pixels.column != channels || (channels > 1 && plan.pixels.channel != 1)) return false;
  const bool interleaved = plan.out.column == channels && (channels == 1 || plan.out.channel == 1);
  const bool planes = !interleaved && plan.out.column == 1;
  const int size = static_cast<int>(size_of(plan.out_dtype));
  const int values = 16 / size;
  if (!interleaved && !planes) return false;

  CopyCall copy;
  copy.call = call;
  const int each = planes ? channels : 1;  // bytes of the source for a value of a plane
  std::int64_t rows = plan.height.count;
  copy.row_elements = std::int64_t{plan.width.count} * (planes ? 1 : channels);
  if (plan.pixels.row == copy.row_elements * each && plan.out.row == copy.row_elements) {
    copy.row_elements *= rows;
    rows = 1;
    copy.call.plan.out.row = 0;
  }
  if (!is_aligned(copy.call.plan, planes, values)) return false;
  copy.row_bytes = copy.row_elements * each;
  copy.row_units = static_cast<std::uint32_t>(divide_up(copy.row_elements, values));
  const std::int64_t frame_units = rows * copy.row_units;
  copy.frame_units = static_cast<std::uint32_t>(frame_units);
  copy.by_frame = Division(copy.frame_units);
  copy.by_row = Division(copy.row_units);

  CopyKernel kernel = nullptr;
  with_type(plan.out_dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, std::uint8_t> || std::is_same_v<T, f16> || std::is_same_v<T, bf16> ||
                  std::is_same_v<T, float>) {
      kernel = copy_kernel<T>(planes, channels);
    }
  });
  constexpr int block_units = tuning::copy_threads * tuning::copy_flight;
  const std::int64_t most = ((std::int64_t{1} << 31) - 2 * block_units) / frame_units;  // frames of a launch
  for (std::int64_t frame = 0; frame < plan.frames; frame += most) {
    copy.call.frame = frame;
    const std::int64_t units = std::min(most, plan.frames - frame) * frame_units;
    copy.units = static_cast<std::uint32_t>(units);
    launch(kernel, divide_up(units, block_units), tuning::copy_threads, copy, device, stream);
  }
  return true;
}

// ---- pixels --------------------------------------------------------------------------------------------------------

void launch_tables(const Call& call, int device, cudaStream_t stream) {
  Call argument = call;
  const std::int64_t warps = std::int64_t{call.plan.height.resized} + call.plan.width.resized;
  launch(&image_tables_kernel, divide_up(warps * warp_size, table_threads), table_threads, argument, device, stream);
}

// Blocks of a frame with `pixels` pixels.
std::int64_t blocks_of(std::int64_t pixels) { return divide_up(pixels, tuning::pixel_threads); }
std::int64_t output_pixels(const Plan& plan) { return std::int64_t{plan.height.count} * plan.width.count; }

// Nearest, depth, and frames that keep their size.
void run_pixels(Call& call, const Context& context, int device, cudaStream_t stream) {
  const Plan& plan = call.plan;
  const bool tables = !keeps_size(plan.height) || !keeps_size(plan.width);
  const PlacedScratch scratch(context.workspace, device, stream, [&](BumpAllocator& bump) {
    if (!tables) return;
    bump.allocate(call.rows.spans, plan.height.resized);
    bump.allocate(call.columns.spans, plan.width.resized);
  });
  if (tables) launch_tables(call, device, stream);
  call.pieces = blocks_of(output_pixels(plan));
  launch(&image_pixels_kernel, call.pieces * plan.frames, tuning::pixel_threads, call, device, stream);
}

// ---- resize --------------------------------------------------------------------------------------------------------

using ResizeKernel = void (*)(Call);

template <int channels>
ResizeKernel resize_kernel(int words) {
  return words == 2 ? &image_resize_kernel<channels, 2>
                    : (words == 4 ? &image_resize_kernel<channels, 4> : &image_resize_kernel<channels, 8>);
}

// Sets the tiles of a call, and returns the shared memory of a block; 0: a resized pixel has too many taps.
std::size_t set_tiles(Call& call, int device) {
  const Plan& plan = call.plan;
  const int taps = std::max(call.rows.taps, call.columns.taps);
  if (taps > 32) return 0;
  call.words = taps <= 8 ? 2 : (taps <= 16 ? 4 : 8);
  const double scale = static_cast<double>(plan.width.box) / plan.width.resized;
  const auto bytes = [&] {
    // From a multiple of 16 to the words of the last column's taps.
    const int span =
        unit_pixels + static_cast<int>(std::ceil((call.tile_columns - 1) * scale)) + 2 + 4 * call.words + 4;
    call.pitch = static_cast<int>(divide_up(span, 16) * 16);
    return 2 * chunk_rows * plan.channels * call.pitch + tuning::most_tile_rows * packed_words(call.words) * 4;
  };
  for (call.tiles = static_cast<int>(divide_up(plan.width.count, tuning::tile_threads));; call.tiles *= 2) {
    call.tile_columns = static_cast<int>(divide_up(divide_up(plan.width.count, call.tiles), warp_size) * warp_size);
    if (bytes() <= tuning::tile_bytes) break;
  }
  call.tiles = static_cast<int>(divide_up(plan.width.count, call.tile_columns));
  call.tile_rows = tuning::most_tile_rows;
  const std::int64_t wanted = std::int64_t{tuning::tile_blocks_per_processor} * cuda_machine(device).processors;
  while (call.tile_rows > tuning::least_tile_rows &&
         plan.frames * call.tiles * divide_up(plan.height.count, call.tile_rows) < wanted) {
    call.tile_rows /= 2;
  }
  call.pieces = call.tiles * divide_up(plan.height.count, call.tile_rows);
  return static_cast<std::size_t>(bytes());
}

void run_tiles(Call& call, std::size_t shared_bytes, const Context& context, int device, cudaStream_t stream) {
  const Plan& plan = call.plan;
  const PlacedScratch scratch(context.workspace, device, stream, [&](BumpAllocator& bump) {
    bump.allocate(call.rows.packed, std::int64_t{plan.height.resized} * packed_words(call.words));
    bump.allocate(call.columns.packed, std::int64_t{plan.width.resized} * packed_words(call.words));
  });
  launch_tables(call, device, stream);
  const ResizeKernel kernel = plan.channels == 1   ? resize_kernel<1>(call.words)
                              : plan.channels == 3 ? resize_kernel<3>(call.words)
                                                   : resize_kernel<4>(call.words);
  launch(kernel, call.pieces * plan.frames, call.tile_columns, call, device, stream, shared_bytes);
}

void run_wide(Call& call, const Context& context, int device, cudaStream_t stream) {
  const Plan& plan = call.plan;
  const std::int64_t middle = std::int64_t{plan.height.box} * plan.width.resized;
  const std::int64_t most =
      std::clamp(std::int64_t{tuning::wide_bytes} / (middle * plan.channels), std::int64_t{1}, plan.frames);
  const PlacedScratch scratch(context.workspace, device, stream, [&](BumpAllocator& bump) {
    bump.allocate(call.rows.spans, plan.height.resized);
    bump.allocate(call.columns.spans, plan.width.resized);
    bump.allocate(call.rows.weights, std::int64_t{plan.height.resized} * call.rows.taps);
    bump.allocate(call.columns.weights, std::int64_t{plan.width.resized} * call.columns.taps);
    bump.allocate(call.middle, most * middle * plan.channels);
  });
  launch_tables(call, device, stream);
  for (call.frame = 0; call.frame < plan.frames; call.frame += most) {
    const std::int64_t frames = std::min(most, plan.frames - call.frame);
    call.pieces = blocks_of(middle);
    launch(&image_wide_rows_kernel, call.pieces * frames, tuning::pixel_threads, call, device, stream);
    call.pieces = blocks_of(output_pixels(plan));
    launch(&image_wide_columns_kernel, call.pieces * frames, tuning::pixel_threads, call, device, stream);
  }
}

}  // namespace

void run_cuda(const Plan& plan, const Context& context, int device) {
  Call call;
  call.plan = plan;
  call.box = cuda_fault_box(device);  // throws the fault of an earlier call
  if (plan.frames == 0) return;
  const CudaDevice current(device);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const bool same = keeps_size(plan.height) && keeps_size(plan.width);
  if (same && copied(call, device, stream)) return;
  if (same || plan.source == Source::depth || plan.filter == Filter::nearest) {
    return run_pixels(call, context, device, stream);
  }
  call.rows.taps = most_taps(plan.filter, plan.height.box, plan.height.resized);
  call.columns.taps = most_taps(plan.filter, plan.width.box, plan.width.resized);
  const std::size_t shared_bytes = set_tiles(call, device);
  if (shared_bytes > 0) return run_tiles(call, shared_bytes, context, device, stream);
  run_wide(call, context, device, stream);
}

}  // namespace robocache::image_op
