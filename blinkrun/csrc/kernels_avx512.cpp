// The reduction kernels for avx512.
#if defined(__x86_64__)
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <immintrin.h>

#include "kernels.hpp"

// GCC 12 takes the undefined lanes inside its own AVX-512 intrinsics for a mistake of the caller.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,fma,prefer-vector-width=512")
#define BLINKRUN_ISA avx512
#define BLINKRUN_SIMD 512  // bits of a vector; compilers do not all define their macros under a pragma
#include "kernels_impl.hpp"
#endif
