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
#include "kernels_impl.hpp"
#endif
