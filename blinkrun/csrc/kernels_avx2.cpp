// The reduction kernels for avx2.
#if defined(__x86_64__)
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <immintrin.h>

#include "kernels.hpp"

#pragma GCC target("avx2,f16c,fma")
#define BLINKRUN_ISA avx2
#define BLINKRUN_SIMD 256  // bits of a vector; compilers do not all define their macros under a pragma
#include "kernels_impl.hpp"
#endif
