// Numbers as a device's threads take them: element types, 16-bit floats without the headers of CUDA, the
// operations. As kernels_impl.hpp does it, to the same bits; only a NaN's payload may differ, since
// CUDA's arithmetic keeps none.
#pragma once

#include "portable.hpp"
#include "types.hpp"

#if !defined(__CUDACC_RTC__)
#include <cstring>
#endif

namespace blinkrun {
namespace device {

// ---- bits ---------------------------------------------------------------------------------------

struct alignas(16) Pack {
  uint32_t words[4];
};

BLINKRUN_FN uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
#endif
}

BLINKRUN_FN float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, 4);
  return value;
#endif
}

BLINKRUN_FN uint64_t bits_of(double value) {
#if defined(__CUDA_ARCH__)
  return uint64_t(__double_as_longlong(value));
#else
  uint64_t bits;
  memcpy(&bits, &value, 8);
  return bits;
#endif
}

BLINKRUN_FN double double_of(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double((long long)(bits));
#else
  double value;
  memcpy(&value, &bits, 8);
  return value;
#endif
}

// Plain accesses: a flag's acquire and release order them. As inline PTX they are sure to be one
// transfer of 16 bytes in global memory. Never the read-only path: peers write what is read here.
BLINKRUN_FN Pack load_pack(const char* from) {
  Pack pack;
#if defined(__CUDA_ARCH__)
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.words[0]), "=r"(pack.words[1]), "=r"(pack.words[2]), "=r"(pack.words[3])
               : "l"(from) : "memory");
#else
  memcpy(&pack, from, sizeof pack);
#endif
  return pack;
}

BLINKRUN_FN void store_pack(char* to, const Pack& pack) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(to), "r"(pack.words[0]), "r"(pack.words[1]), "r"(pack.words[2]), "r"(pack.words[3])
               : "memory");
#else
  memcpy(to, &pack, sizeof pack);
#endif
}

// ---- 16-bit floats --------------------------------------------------------------------------------

BLINKRUN_FN float half_to_float(uint16_t half) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) |
                    ((magnitude & 0x3ffu) ? 0x400000u : 0u));
  if (magnitude >= 0x400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  return float_of(sign | bits_of(float(magnitude) * 5.9604644775390625e-8f));  // 2^-24: subnormals
#endif
}

BLINKRUN_FN uint16_t float_to_half(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (magnitude < 0x38800000u)  // subnormal half: let the adder round at 2^-24
    return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
  return uint16_t(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13));
#endif
}

BLINKRUN_FN float bfloat_to_float(uint16_t bfloat) { return float_of(uint32_t(bfloat) << 16); }

BLINKRUN_FN uint16_t float_to_bfloat(float value) {
  const uint32_t bits = bits_of(value);
  // a NaN must not round into infinity
  return uint16_t((value != value ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// ---- element types: S is stored, A accumulated, Lane what a vector is taken apart into --------------

template <class T> struct Plain {
  static constexpr bool kTruth = false;
  using S = T;
  using A = T;
  using Lane = T;
  BLINKRUN_FN static A widen(S value) { return value; }
  BLINKRUN_FN static S narrow(A value) { return value; }
};

struct Half {
  static constexpr bool kTruth = false;
  using S = uint16_t;
  using A = float;
  using Lane = uint16_t;
  BLINKRUN_FN static A widen(S value) { return half_to_float(value); }
  BLINKRUN_FN static S narrow(A value) { return float_to_half(value); }
};

struct BFloat {
  static constexpr bool kTruth = false;
  using S = uint16_t;
  using A = float;
  using Lane = uint16_t;
  BLINKRUN_FN static A widen(S value) { return bfloat_to_float(value); }
  BLINKRUN_FN static S narrow(A value) { return float_to_bfloat(value); }
};

// Truth values are combined bit by bit: four of them in a word.
struct Bool {
  static constexpr bool kTruth = true;
  using S = uint8_t;
  using A = uint32_t;
  using Lane = uint32_t;
  BLINKRUN_FN static A widen(Lane value) { return value; }
  BLINKRUN_FN static uint32_t narrow(A value) { return value; }
};

template <class A> struct Kind {
  static constexpr bool kFloat = false;
};
template <> struct Kind<float> {
  static constexpr bool kFloat = true;
};
template <> struct Kind<double> {
  static constexpr bool kFloat = true;
};

template <class A> struct Wrap {
  using U = A;
};
template <> struct Wrap<int8_t> {
  using U = uint8_t;
  static constexpr int8_t kLow = -128, kHigh = 127;
};
template <> struct Wrap<uint8_t> {
  using U = uint8_t;
  static constexpr uint8_t kLow = 0, kHigh = 255;
};
template <> struct Wrap<int32_t> {
  using U = uint32_t;
  static constexpr int32_t kLow = -2147483647 - 1, kHigh = 2147483647;
};
template <> struct Wrap<int64_t> {
  using U = uint64_t;
  static constexpr int64_t kLow = -9223372036854775807 - 1, kHigh = 9223372036854775807;
};

// ---- operations -------------------------------------------------------------------------------------

// Sums have code of their own; the other operations share one, and ask for each vector which it is.
enum class Combine { kSum, kByOp };

template <class A> BLINKRUN_FN A sum_of(A a, A b) {
  return A(typename Wrap<A>::U(a) + typename Wrap<A>::U(b));
}

// values[i] = values[i] op others[i]. Minimum and maximum keep a NaN of either side.
template <class E, Combine kHow, uint32_t kNum>
BLINKRUN_FN void combine_all(Op op, typename E::A (&values)[kNum], const typename E::A (&others)[kNum]) {
  using A = typename E::A;
  using U = typename Wrap<A>::U;
  if constexpr (kHow == Combine::kSum) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kNum; ++i) values[i] = sum_of(values[i], others[i]);
  } else if constexpr (E::kTruth) {
    const bool both = op == Op::kMin || op == Op::kProduct;
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kNum; ++i)
      values[i] = both ? values[i] & others[i] : values[i] | others[i];
  } else if (op == Op::kMin) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kNum; ++i)
      values[i] = ((values[i] < others[i]) | (values[i] != values[i])) ? values[i] : others[i];
  } else if (op == Op::kMax) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kNum; ++i)
      values[i] = ((values[i] > others[i]) | (values[i] != values[i])) ? values[i] : others[i];
  } else if (op == Op::kProduct) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kNum; ++i) values[i] = A(U(values[i]) * U(others[i]));
  } else {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kNum; ++i) values[i] = sum_of(values[i], others[i]);
  }
}

template <class A> BLINKRUN_FN A scale(A value, double factor) {
  if constexpr (Kind<A>::kFloat) {
    return value * A(factor);
  } else {  // integers: through double, truncated towards zero, held to the type's range
    const double wide = double(value) * factor;
    if (wide != wide) return A(0);
    if (wide <= double(Wrap<A>::kLow)) return Wrap<A>::kLow;
    if (wide >= double(Wrap<A>::kHigh)) return Wrap<A>::kHigh;
    return A(wide);
  }
}

template <class A> BLINKRUN_FN A divide(A value, uint32_t divisor) {
  if constexpr (Kind<A>::kFloat) {
    // a power of two has an exact reciprocal, and multiplying is faster
    if ((divisor & (divisor - 1)) == 0) return value * (A(1) / A(divisor));
    return value / A(divisor);
  } else {  // the floor
    const int64_t wide = int64_t(value), by = int64_t(divisor);
    return A(wide / by - (wide % by < 0));
  }
}

template <uint32_t kNum, class A> BLINKRUN_FN void scale_all(A (&values)[kNum], double factor) {
  if (factor == 1.0) return;
  BLINKRUN_UNROLL
  for (uint32_t i = 0; i < kNum; ++i) values[i] = scale(values[i], factor);
}

template <uint32_t kNum, class A> BLINKRUN_FN void divide_all(A (&values)[kNum], uint32_t divisor) {
  if (divisor == 1) return;
  BLINKRUN_UNROLL
  for (uint32_t i = 0; i < kNum; ++i) values[i] = divide(values[i], divisor);
}

}  // namespace device
}  // namespace blinkrun
