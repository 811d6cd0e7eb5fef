// Element types, operations and sizes shared by every file of the core. Values match
// blinkrun/types.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blinkrun {

enum class DType : int32_t {
  kUint8, kInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64, kBool, kCount
};

enum class Op : int32_t { kSum, kAverage, kMin, kMax, kProduct, kCount };

enum class Collective : int32_t {
  kAllreduce, kBroadcast, kReduce, kAllgather, kReducescatter, kBarrier, kAlltoall,
  kCount
};

inline size_t itemsize(DType dtype) {
  switch (dtype) {
    case DType::kInt64: case DType::kFloat64: return 8;
    case DType::kInt32: case DType::kFloat32: return 4;
    case DType::kFloat16: case DType::kBFloat16: return 2;
    default: return 1;
  }
}

constexpr size_t kCacheLine = 64;

}  // namespace blinkrun
