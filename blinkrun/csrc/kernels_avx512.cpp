// The reduction kernels for avx512.
#if defined(__x86_64__)
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <immintrin.h>

#include "kernels.hpp"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,fma,prefer-vector-width=512")
#define BLINKRUN_ISA avx512
#include "kernels_impl.hpp"
#endif
