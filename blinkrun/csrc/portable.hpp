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
typedef long int64_t;  // as the host's headers have it where CUDA runs; size_t is built in
typedef unsigned long uint64_t;
#else
#include <cstddef>
#include <cstdint>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BLINKRUN_FN __device__ inline  // kernels.cu has no code for the host
#else
#define BLINKRUN_FN inline
#endif

// What loops are not known beforehand stays short, and is soon compiled.
#if defined(__CUDACC__)
#define BLINKRUN_UNROLL _Pragma("unroll")
#define BLINKRUN_ROLLED _Pragma("unroll 1")
#else
#define BLINKRUN_UNROLL
#define BLINKRUN_ROLLED
#endif

namespace blinkrun {

template <class T> BLINKRUN_FN T smaller(T a, T b) { return b < a ? b : a; }
template <class T> BLINKRUN_FN T larger(T a, T b) { return a < b ? b : a; }

}  // namespace blinkrun
