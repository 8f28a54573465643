// tsdf on a GPU.
//
// Integration: a thread has four neighbouring voxels of a line along z and loops over all cameras of the call, whose
// poses and intrinsics lie in shared memory. It reads its voxels when the first camera sees one of them, and writes
// them once. Surface: a warp counts the points of a line, a scan of the counts gives the first point of each line,
// and a warp writes them.
#include <cstddef>
#include <cub/device/device_scan.cuh>

#include "gpu/device.h"
#include "gpu/fault_box.h"
#include "gpu/launch.h"
#include "gpu/scratch.h"
#include "gpu/warp.h"
#include "ops/tsdf/cuda/tuning.h"
#include "ops/tsdf/math.h"
#include "ops/voxelize/cuda/check.h"

namespace robocache::tsdf_op {
namespace {

constexpr int warps = tuning::threads / warp_size;
constexpr int voxels = tuning::voxels_per_thread;

struct Call {
  Plan plan;
  FaultBox* box = nullptr;
  std::int64_t threads_per_line = 0;
  bool aligned = false;  // a thread's voxels can be read and written at once
};

// ---- integration ---------------------------------------------------------------------------------------------------

// The voxels of a thread: `count` of them are in the line.
struct Voxels {
  float value[voxels] = {}, weight[voxels] = {};
  bool read = false;

  __device__ void load(const Call& call, std::int64_t first, int count) {
    if (read) return;
    read = true;
    const float* const values = call.plan.values + first;
    const float* const weights = call.plan.weights + first;
    if (call.aligned) {
      const float4 v = *reinterpret_cast<const float4*>(values);
      const float4 w = *reinterpret_cast<const float4*>(weights);
      value[0] = v.x, value[1] = v.y, value[2] = v.z, value[3] = v.w;
      weight[0] = w.x, weight[1] = w.y, weight[2] = w.z, weight[3] = w.w;
      return;
    }
#pragma unroll
    for (int k = 0; k < voxels; ++k) {
      if (k < count) {
        value[k] = values[k];
        weight[k] = weights[k];
      }
    }
  }
  __device__ void store(const Call& call, std::int64_t first, int count) const {
    if (!read) return;
    float* const values = call.plan.values + first;
    float* const weights = call.plan.weights + first;
    if (call.aligned) {
      *reinterpret_cast<float4*>(values) = float4{value[0], value[1], value[2], value[3]};
      *reinterpret_cast<float4*>(weights) = float4{weight[0], weight[1], weight[2], weight[3]};
      return;
    }
#pragma unroll
    for (int k = 0; k < voxels; ++k) {
      if (k < count) {
        values[k] = value[k];
        weights[k] = weight[k];
      }
    }
  }
};
static_assert(voxels == 4, "Voxels reads and writes a float4");

// Index is int32 where all threads of the launch can be counted in it.
template <class T, class Index>
__global__ void __launch_bounds__(tuning::threads) tsdf_integrate_kernel(const __grid_constant__ Call call) {
  using C = compute_t<T>;
  const Plan& plan = call.plan;
  __shared__ Camera<C> cameras[tuning::cameras];
  const auto thread = static_cast<Index>(static_cast<std::int64_t>(blockIdx.x) * tuning::threads + threadIdx.x);
  const auto line_number = static_cast<Index>(thread / static_cast<Index>(call.threads_per_line));
  const Index z = (thread - line_number * static_cast<Index>(call.threads_per_line)) * voxels;
  const Index x = line_number / static_cast<Index>(plan.images.shape[1]);
  const Index y = line_number - x * static_cast<Index>(plan.images.shape[1]);
  const bool exists = x < plan.images.shape[0];
  const auto count = static_cast<int>(min(static_cast<std::int64_t>(voxels), plan.images.shape[2] - z));
  const std::int64_t first = static_cast<std::int64_t>(line_number) * plan.images.shape[2] + z;
  const auto volume = volume_of<C>(plan);
  wait_on_dependent_grids();
  launch_dependent_grids();
  voxelize_op::check_data<tuning::threads>(plan.images, call.box);

  Voxels mine;
  for (std::int64_t base = 0; base < plan.images.clouds; base += tuning::cameras) {
    const auto number = static_cast<int>(min(static_cast<std::int64_t>(tuning::cameras), plan.images.clouds - base));
    __syncthreads();  // all threads are done with the cameras before
    if (static_cast<int>(threadIdx.x) < number) cameras[threadIdx.x] = camera_of<C>(plan, base + threadIdx.x);
    __syncthreads();
    for (int c = 0; exists && c < number; ++c) {
      const Camera<C>& camera = cameras[c];
      const Line<C> line = line_of(volume, camera, x, y);
      // Load the pixels of all four voxels before the first is used.
      Projection<C> projections[voxels];
      T raw[voxels] = {};
      unsigned seen = 0;
#pragma unroll
      for (int k = 0; k < voxels; ++k) {
        projections[k] = projection_of(camera, line, centre_of(volume, 2, z + k));
        if (k < count && is_seen(volume, projections[k])) {
          raw[k] = camera::pixel_at<T>(plan.images, base + c, static_cast<int>(projections[k].v),
                                       static_cast<int>(projections[k].u));
          seen |= 1u << k;
        }
      }
      if (seen == 0) continue;
#pragma unroll
      for (int k = 0; k < voxels; ++k) {
        C depth = 0;
        C distance = 0;
        if ((seen >> k & 1u) == 0 || !camera::depth_of(plan.images, raw[k], depth)) continue;
        if (!is_told(volume, depth, projections[k].z, distance)) continue;
        mine.load(call, first, count);
        add(distance, mine.value[k], mine.weight[k]);
      }
    }
  }
  mine.store(call, first, count);
}

// ---- surface -------------------------------------------------------------------------------------------------------

// The line of a warp. false: it has none.
__device__ bool set_line(const SurfacePlan& plan, std::int64_t& number, std::int64_t (&index)[3]) {
  number = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_size;
  index[0] = number / plan.shape[1];
  index[1] = number - index[0] * plan.shape[1];
  return number < plan.lines();
}

__global__ void __launch_bounds__(tuning::threads) tsdf_count_kernel(const __grid_constant__ SurfacePlan plan) {
  wait_on_dependent_grids();
  launch_dependent_grids();
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  std::int64_t number = 0;
  std::int64_t index[3] = {};
  if (!set_line(plan, number, index)) return;
  long long count = 0;
  for (index[2] = lane; index[2] < plan.shape[2]; index[2] += warp_size) count += __popc(crossings(plan, index));
#pragma unroll
  for (int step = warp_size / 2; step > 0; step /= 2) count += __shfl_xor_sync(whole_warp, count, step);
  if (lane != 0) return;
  if (number == 0) plan.offsets[0] = 0;
  plan.offsets[number + 1] = count;
}

__global__ void __launch_bounds__(tuning::threads) tsdf_points_kernel(const __grid_constant__ SurfacePlan plan) {
  wait_on_dependent_grids();
  launch_dependent_grids();
  const auto lane = static_cast<int>(threadIdx.x % warp_size);
  const unsigned before = (1u << lane) - 1;
  std::int64_t number = 0;
  std::int64_t index[3] = {};
  if (!set_line(plan, number, index)) return;
  std::int64_t place = plan.offsets[number];
  if (plan.offsets[number + 1] == place) return;
  for (std::int64_t z = 0; z < plan.shape[2]; z += warp_size) {
    index[2] = z + lane;
    const unsigned found = index[2] < plan.shape[2] ? crossings(plan, index) : 0u;
    int mine = 0;  // points of lower lanes
    int all = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const unsigned lanes = __ballot_sync(whole_warp, (found >> axis & 1u) != 0);
      mine += __popc(lanes & before);
      all += __popc(lanes);
    }
    if (found != 0) write_points(plan, index, found, place + mine);
    place += all;
  }
}

// ---- planning ------------------------------------------------------------------------------------------------------

template <class Kernel, class Argument>
void launch(Kernel kernel, std::int64_t blocks, Argument& argument, int device, cudaStream_t stream) {
  if (blocks >= std::int64_t{1} << 31) throw Error(ErrorKind::value, "tsdf: the grid is too large for one launch");
  cuda_launch(reinterpret_cast<const void*>(kernel), blocks, tuning::threads, 0, &argument, device, stream, "tsdf");
}

bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % sizeof(float4) == 0; }

}  // namespace

void run_cuda(const Plan& plan, const Context& context, int device) {
  Call call;
  call.plan = plan;
  call.box = cuda_fault_box(device);
  call.threads_per_line = divide_up(plan.images.shape[2], voxels);
  call.aligned = plan.images.shape[2] % voxels == 0 && is_aligned(plan.values) && is_aligned(plan.weights);
  const CudaDevice current(device);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const std::int64_t blocks = divide_up(plan.lines() * call.threads_per_line, tuning::threads);
  // z and the idle threads of the last block must fit an int32, too.
  const bool small = blocks * tuning::threads * voxels < std::int64_t{1} << 31;
  camera::with_depth_type(plan.images.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, bf16>) {
      if (small) {
        launch(&tsdf_integrate_kernel<T, std::int32_t>, blocks, call, device, stream);
      } else {
        launch(&tsdf_integrate_kernel<T, std::int64_t>, blocks, call, device, stream);
      }
    }
  });
}

void find_surface_cuda(const SurfacePlan& plan, const Context& context, int device) {
  cuda_fault_box(device);  // throws the fault of an earlier call
  const CudaDevice current(device);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const std::int64_t blocks = divide_up(plan.lines(), warps);
  SurfacePlan argument = plan;
  if (plan.points != nullptr) return launch(&tsdf_points_kernel, blocks, argument, device, stream);
  std::int64_t* const counts = plan.offsets + 1;
  std::size_t bytes = 0;
  cuda_check(cub::DeviceScan::InclusiveSum(nullptr, bytes, counts, counts, plan.lines(), stream), "tsdf");
  const CudaScratch scratch(context.workspace, device, bytes, stream);
  launch(&tsdf_count_kernel, blocks, argument, device, stream);
  cuda_check(cub::DeviceScan::InclusiveSum(scratch.data(), bytes, counts, counts, plan.lines(), stream), "tsdf");
}

}  // namespace robocache::tsdf_op
