// What code needs that both the CPU's and the CUDA compilers take, NVRTC among them, which has no
// headers of the standard library.
#pragma once

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long size_t;
#else
#include <cstddef>
#include <cstdint>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BLINKRUN_FN __host__ __device__ inline
#else
#define BLINKRUN_FN inline
#endif

namespace blinkrun {

template <class T> BLINKRUN_FN T smaller(T a, T b) { return b < a ? b : a; }
template <class T> BLINKRUN_FN T larger(T a, T b) { return a < b ? b : a; }

}  // namespace blinkrun
