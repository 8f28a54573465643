// The DLPack 1.x ABI: how array libraries describe memory to each other. Layouts and numbers are those of
// https://dmlc.github.io/dlpack/latest/c_api.html; they may not change within major version 1.
#pragma once

#include <cstdint>

namespace robocache::dlpack {

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};
inline constexpr std::uint32_t major_version = 1;  // what this header describes
inline constexpr std::uint32_t minor_version = 3;

enum DeviceType : std::int32_t {
  device_cpu = 1,
  device_cuda = 2,
  device_cuda_host = 3,      // pinned host memory
  device_cuda_managed = 13,  // reachable from the GPU as any other
};

struct Device {
  std::int32_t type;
  std::int32_t index;
};

enum TypeCode : std::uint8_t {
  code_int = 0,
  code_uint = 1,
  code_float = 2,
  code_bfloat = 4,
  code_complex = 5,
  code_bool = 6,
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; before version 1.2 nullptr means dense, row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // capsule "dltensor"
  Tensor tensor;
  void* owner;
  void (*deleter)(ManagedTensor* self);
};

inline constexpr std::uint64_t flag_read_only = 1;

struct ManagedTensorVersioned {  // capsule "dltensor_versioned"
  Version version;
  void* owner;
  void (*deleter)(ManagedTensorVersioned* self);
  std::uint64_t flags;
  Tensor tensor;
};

// The attribute __dlpack_c_exchange_api__ of an array type: a capsule named "dlpack_exchange_api" that points to this.
// Functions return 0, or -1 with a Python exception set.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;  // for an older major version
  int (*allocate)(Tensor* prototype, ManagedTensorVersioned** out, void* state,
                  void (*set_error)(void* state, const char* kind, const char* message));
  int (*to_managed)(void* array, ManagedTensorVersioned** out);
  int (*to_array)(ManagedTensorVersioned* tensor, void** out);  // takes the tensor over
  int (*to_tensor)(void* array, Tensor* out);  // borrows, valid while nothing else runs; nullptr where not offered
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** out);
};

}  // namespace robocache::dlpack
