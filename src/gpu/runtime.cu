#include <robocache/context.h>
#include <robocache/error.h>

#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "core/text.h"
#include "gpu/device.h"
#include "gpu/fault_box.h"
#include "gpu/launch.h"
#include "gpu/memory.h"
#include "gpu/status.h"

namespace robocache {
namespace {

// The boxes of a device. Each thread has one of its own, so that what one thread did wrong is not raised in another's
// call. A box is never freed, because a kernel that is still running, or a graph that is launched again, may write it.
struct Boxes {
  std::vector<FaultBox*> all;
  std::vector<FaultBox*> unused;
  std::vector<FaultBox*> left;  // by threads that have ended
};
struct Registry {
  std::mutex mutex;
  std::array<Boxes, max_devices> devices;
};
Registry& registry() {
  static Registry& made = *new Registry;  // never destroyed: threads may end after the statics have gone
  return made;
}

// The boxes of this thread.
struct ThreadBoxes {
  FaultBox* of[max_devices] = {};
  ~ThreadBoxes() {
    for (int device = 0; device < max_devices; ++device) {
      if (of[device] == nullptr) continue;
      try {
        const std::scoped_lock lock(registry().mutex);
        registry().devices[static_cast<std::size_t>(device)].left.push_back(of[device]);
      } catch (const std::bad_alloc&) {  // then nobody uses it again
      }
    }
  }
};
thread_local ThreadBoxes mine;

CudaMachine machines[max_devices];  // set before a box is handed out

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

CudaStatus find_status() {
  int driver = 0;
  int devices = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) return {false, "no NVIDIA driver was found"};
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaErrorInsufficientDriver || driver / 1000 < CUDART_VERSION / 1000) {
    return {false, concat("the NVIDIA driver supports CUDA ", version_text(driver), " and this build needs ",
                          version_text(CUDART_VERSION / 1000 * 1000), "; update the driver")};
  }
  if (code != cudaSuccess) return {false, cudaGetErrorString(code)};
  if (devices == 0) return {false, "no NVIDIA GPU was found"};
  CudaStatus status{true, ""};
  for (int k = 0; k < devices; ++k) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, k) != cudaSuccess) continue;
    if (k > 0) status.description += "; ";
    status.description += concat(properties.name, " (sm_", properties.major, properties.minor, ")");
  }
  status.description += concat(", driver for CUDA ", version_text(driver));
  return status;
}

bool is_sticky(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

// Calls that a capture in another stream forbids by default are fine here: they touch no stream that is captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

bool is_ready(const FaultBox* box) { return *static_cast<const volatile int*>(&box->ready) != 0; }

// A box for this thread.
FaultBox* make_box(int device) {
  const std::scoped_lock lock(registry().mutex);
  const CudaStatus& status = cuda_status();
  if (!status.available) throw Error(ErrorKind::unavailable, "the cuda backend cannot run: " + status.description);
  const RelaxedCapture relaxed;
  const CudaDevice current(device);
  Boxes& boxes = registry().devices[static_cast<std::size_t>(device)];
  if (boxes.all.empty()) {
    const auto ask = [&](int& answer, cudaDeviceAttr attribute) {
      cuda_check(cudaDeviceGetAttribute(&answer, attribute, device), "asking for the architecture");
    };
    ask(machines[device].major, cudaDevAttrComputeCapabilityMajor);
    ask(machines[device].processors, cudaDevAttrMultiProcessorCount);
    ask(machines[device].shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  }
  if (boxes.unused.empty() && !boxes.left.empty()) {
    // What the ended threads launched may still write: wait, and keep the boxes that synchronize() has to raise.
    cuda_check(cudaDeviceSynchronize(), "waiting for the device");
    std::vector<FaultBox*> filled;
    for (FaultBox* const box : boxes.left) (is_ready(box) ? filled : boxes.unused).push_back(box);
    boxes.left = std::move(filled);
  }
  if (boxes.unused.empty()) {
    constexpr std::size_t count = 64;  // page-locked memory comes in pages
    void* memory = nullptr;
    cuda_check(cudaHostAlloc(&memory, count * sizeof(FaultBox), cudaHostAllocMapped | cudaHostAllocPortable),
               "allocating host memory");
    for (std::size_t k = 0; k < count; ++k) {
      auto* const box = new (static_cast<FaultBox*>(memory) + k) FaultBox{};
      boxes.all.push_back(box);
      boxes.unused.push_back(box);
    }
  }
  FaultBox* const box = boxes.unused.back();
  boxes.unused.pop_back();
  mine.of[device] = box;
  return box;
}

// Lets the launch that filled the box end, so that its other threads cannot fill it again, and empties it.
Fault empty(FaultBox* box) {
  const RelaxedCapture relaxed;
  cudaDeviceSynchronize();
  const Fault fault = box->fault;
  *static_cast<volatile int*>(&box->ready) = 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  *static_cast<volatile int*>(&box->taken) = 0;
  return fault;
}

}  // namespace

const CudaStatus& cuda_status() {
  static const CudaStatus status = find_status();
  return status;
}

void cuda_check(cudaError_t code, const char* doing) {
  if (code == cudaSuccess) return;
  static std::atomic<bool> said{false};
  if (is_sticky(code)) {
    if (said.exchange(true)) {
      throw Error(ErrorKind::cuda,
                  concat(doing, ": CUDA cannot be used any more in this process, see the first error"));
    }
    throw Error(ErrorKind::cuda,
                concat("fatal: ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ") while ", doing,
                       ". A kernel, maybe of another library, broke the CUDA context; restart the process"));
  }
  throw Error(ErrorKind::cuda, concat(cudaGetErrorString(code), " (", cudaGetErrorName(code), ") while ", doing));
}

CudaDevice::CudaDevice(int device) {
  cudaGetDevice(&before_);
  changed_ = before_ != device;
  if (changed_) cuda_check(cudaSetDevice(device), "choosing the device");
}
CudaDevice::~CudaDevice() {
  if (changed_) cudaSetDevice(before_);
}

FaultBox* cuda_fault_box(int device) {
  if (device < 0 || device >= max_devices) throw Error(ErrorKind::value, concat("there is no device cuda:", device));
  FaultBox* box = mine.of[device];
  if (box == nullptr) box = make_box(device);
  if (is_ready(box)) {
    const CudaDevice current(device);
    throw Error(ErrorKind::value, describe(empty(box)) + " (found on the GPU, in an earlier call)");
  }
  return box;
}

const CudaMachine& cuda_machine(int device) { return machines[device]; }

void cuda_launch(const void* kernel, std::int64_t blocks, int threads, std::size_t shared_bytes, void* argument,
                 int device, cudaStream_t stream, const char* doing, int cluster) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = machines[device].major < 9 ? 0 : (cluster > 1 ? 2 : 1);
  void* arguments[] = {argument};
  cuda_check(cudaLaunchKernelExC(&config, kernel, arguments), doing);
}

void cuda_synchronize_all() {
  for (int device = 0; device < max_devices; ++device) {
    std::vector<FaultBox*> boxes;
    {
      const std::scoped_lock lock(registry().mutex);
      boxes = registry().devices[static_cast<std::size_t>(device)].all;
    }
    if (boxes.empty()) continue;
    const CudaDevice current(device);
    cuda_check(cudaDeviceSynchronize(), "waiting for the device");
    for (FaultBox* const box : boxes) {
      if (is_ready(box)) throw Error(ErrorKind::value, describe(empty(box)));
    }
  }
}

void* cuda_allocate(int device, std::size_t bytes, void* stream) {
  const CudaDevice current(device);
  void* data = nullptr;
  cuda_check(cudaMallocAsync(&data, bytes == 0 ? 1 : bytes, static_cast<cudaStream_t>(stream)), "allocating memory");
  return data;
}
void cuda_free(int device, void* data, void* stream) noexcept {
  try {
    const CudaDevice current(device);
    cudaFreeAsync(data, static_cast<cudaStream_t>(stream));
  } catch (const Error&) {  // a device that is gone has freed it
  }
}
void cuda_wait(int device) noexcept {
  try {
    const CudaDevice current(device);
    cudaDeviceSynchronize();
  } catch (const Error&) {  // a device that is gone has nothing to wait for
  }
}
void cuda_synchronize(int device, void* stream) {
  const CudaDevice current(device);
  cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for the stream");
}

}  // namespace robocache
