// Element types, operations and sizes shared by every file of the core and by the kernel. Values
// match blinkrun/types.py.
#pragma once

#include "portable.hpp"

namespace blinkrun {

enum class DType : int32_t {
  kUint8, kInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64, kBool, kCount
};

enum class Op : int32_t { kSum, kAverage, kMin, kMax, kProduct, kCount };

enum class Collective : int32_t {
  kAllreduce, kBroadcast, kReduce, kAllgather, kReducescatter, kBarrier, kAlltoall,
  kCount
};

BLINKRUN_FN size_t itemsize(DType dtype) {
  switch (dtype) {
    case DType::kInt64: case DType::kFloat64: return 8;
    case DType::kInt32: case DType::kFloat32: return 4;
    case DType::kFloat16: case DType::kBFloat16: return 2;
    default: return 1;
  }
}

// Whether the operation plays a part in it.
BLINKRUN_FN bool reduces(Collective c) {
  return c == Collective::kAllreduce || c == Collective::kReduce || c == Collective::kReducescatter;
}

BLINKRUN_FN bool rooted(Collective c) {
  return c == Collective::kBroadcast || c == Collective::kReduce;
}

// Whether a rank gives or takes a buffer; rank and root count alike.
BLINKRUN_FN bool takes_input(Collective c, int32_t root, uint32_t rank) {
  return c != Collective::kBroadcast || uint32_t(root) == rank;
}

BLINKRUN_FN bool takes_output(Collective c, int32_t root, uint32_t rank) {
  return c != Collective::kReduce || uint32_t(root) == rank;
}

constexpr size_t kCacheLine = 64;

}  // namespace blinkrun
