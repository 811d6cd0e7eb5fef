// The kernels, compiled once per instruction set: the including file sets BLINKRUN_ISA (a
// namespace) and the target pragma, and includes the standard headers before the pragma.
//
// Shape of every kernel: blocks that stay in the first-level cache are accumulated in the
// accumulator type (float for 16-bit floats), finished, and written to each destination. Two
// plain sources, the case of two ranks, are fused into one pass.

namespace blinkrun {
namespace BLINKRUN_ISA {
namespace {

#if BLINKRUN_SIMD == 512
constexpr size_t kLanes = 16;
#elif BLINKRUN_SIMD == 256
constexpr size_t kLanes = 8;
#else
constexpr size_t kLanes = 4;
#endif
typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4), aligned(2), may_alias));
constexpr size_t kPair = 2 * kLanes;  // 16-bit floats are taken two vectors of floats at a time

// kPair elements in float. Which lane holds which element is the type's affair: loads and stores
// agree on it, and everything between them works lane by lane.
struct Pair {
  Vec a, b;
};

constexpr size_t kBlock = 2048;  // elements: 16 KiB at most, half of a first-level cache

// ---- element types: S is stored, A accumulated -------------------------------------------

template <class T> struct Plain {
  using S = T;
  using A = T;
};

inline float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000u) << 16, mag = h & 0x7fffu, bits;
  if (mag >= 0x7c00u) {
    bits = sign | 0x7f800000u | ((mag & 0x3ffu) << 13) | ((mag & 0x3ffu) ? 0x400000u : 0u);
  } else if (mag >= 0x400u) {
    bits = sign | ((mag << 13) + 0x38000000u);
  } else {
    float f = float(mag) * 5.9604644775390625e-8f;  // 2^-24: subnormal halves
    memcpy(&bits, &f, 4);
    bits |= sign;
  }
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t float_to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  uint32_t sign = (bits >> 16) & 0x8000u, mag = bits & 0x7fffffffu;
  if (mag > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
  if (mag >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (mag < 0x38800000u) {  // subnormal half: let the adder round at 2^-24
    float m, magic = 0.5f;
    memcpy(&m, &mag, 4);
    m += magic;
    uint32_t r;
    memcpy(&r, &m, 4);
    return uint16_t(sign | (r - 0x3f000000u));
  }
  uint32_t rounded = mag + 0xfffu + ((mag >> 13) & 1u) - 0x38000000u;
  return uint16_t(sign | (rounded >> 13));
}

struct Half {
  using S = uint16_t;
  using A = float;
  static Vec widen(const S* p) {
#if BLINKRUN_SIMD == 512
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif BLINKRUN_SIMD == 256
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    Vec v;
    for (size_t i = 0; i < kLanes; ++i) v[i] = half_to_float(p[i]);
    return v;
#endif
  }
  static Pair load(const S* p) { return {widen(p), widen(p + kLanes)}; }
  static VecU pack(Pair v) {
#if BLINKRUN_SIMD == 512
    const __m256i a = _mm512_cvtps_ph((__m512)v.a, _MM_FROUND_TO_NEAREST_INT);
    const __m256i b = _mm512_cvtps_ph((__m512)v.b, _MM_FROUND_TO_NEAREST_INT);
    return (VecU)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
#elif BLINKRUN_SIMD == 256
    const __m128i a = _mm256_cvtps_ph((__m256)v.a, _MM_FROUND_TO_NEAREST_INT);
    const __m128i b = _mm256_cvtps_ph((__m256)v.b, _MM_FROUND_TO_NEAREST_INT);
    return (VecU)_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
#else
    S packed[kPair];
    for (size_t i = 0; i < kLanes; ++i) {
      packed[i] = float_to_half(v.a[i]);
      packed[kLanes + i] = float_to_half(v.b[i]);
    }
    VecU out;
    memcpy(&out, packed, sizeof out);
    return out;
#endif
  }
};

// A 32-bit word holds two elements, and each is the upper half of a float: the even one after a
// shift, the odd one under a mask. So nothing has to be unpacked or packed.
struct BFloat {
  using S = uint16_t;
  using A = float;
  static Pair load(const S* p) {
    const VecU u = *(const VecU*)p;
    return {(Vec)(u << 16), (Vec)(u & 0xffff0000u)};
  }
  static bool any_nan(Pair v) {
#if BLINKRUN_SIMD == 512
    return _mm512_cmp_ps_mask((__m512)v.a, (__m512)v.b, _CMP_UNORD_Q) != 0;
#elif BLINKRUN_SIMD == 256
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v.a, (__m256)v.b, _CMP_UNORD_Q)) != 0;
#else
    bool any = false;
    for (size_t i = 0; i < kLanes; ++i) any |= (v.a[i] != v.a[i]) | (v.b[i] != v.b[i]);
    return any;
#endif
  }
  // To nearest even, in the upper half of each word.
  static VecU nearest(Vec v) {
    const VecU u = (VecU)v;
#if BLINKRUN_SIMD == 512
    const __m512i x = (__m512i)u, up = _mm512_add_epi32(x, _mm512_set1_epi32(0x7fff));
    const __mmask16 odd = _mm512_test_epi32_mask(x, _mm512_set1_epi32(0x10000));
    return (VecU)_mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
#else
    return u + 0x7fffu + ((u >> 16) & 1u);
#endif
  }
  static VecU quiet(Vec v, VecU rounded) {  // a NaN must not round into infinity
    return (v != v) ? ((VecU)v | 0x400000u) : rounded;
  }
  static VecU pack(Pair v) {
    VecU a = nearest(v.a), b = nearest(v.b);
    if (__builtin_expect(any_nan(v), 0)) {
      a = quiet(v.a, a);
      b = quiet(v.b, b);
    }
    return (a >> 16) | (b & 0xffff0000u);
  }
};

struct Bool {
  using S = uint8_t;
  using A = uint8_t;
};

// ---- operations -----------------------------------------------------------------------------

template <class A> struct Wrap { using U = A; };
template <> struct Wrap<int8_t> { using U = uint8_t; };
template <> struct Wrap<int32_t> { using U = uint32_t; };
template <> struct Wrap<int64_t> { using U = uint64_t; };

struct Sum {
  template <class A> static A apply(A a, A b) {
    using U = typename Wrap<A>::U;
    return A(U(a) + U(b));
  }
  static Vec apply(Vec a, Vec b) { return a + b; }
};
struct Product {
  template <class A> static A apply(A a, A b) {
    using U = typename Wrap<A>::U;
    return A(U(a) * U(b));
  }
  static Vec apply(Vec a, Vec b) { return a * b; }
};
// Minimum and maximum keep a NaN of either side.
struct Min {
  template <class A> static A apply(A a, A b) { return (a < b) | (a != a) ? a : b; }
  static Vec apply(Vec a, Vec b) { return ((a < b) | (a != a)) ? a : b; }
};
struct Max {
  template <class A> static A apply(A a, A b) { return (a > b) | (a != a) ? a : b; }
  static Vec apply(Vec a, Vec b) { return ((a > b) | (a != a)) ? a : b; }
};
struct Or {
  template <class A> static A apply(A a, A b) { return A(a | b); }
};
struct And {
  template <class A> static A apply(A a, A b) { return A(a & b); }
};

// ---- passes over a block ----------------------------------------------------------------------

template <class E> constexpr bool kSixteen = sizeof(typename E::S) != sizeof(typename E::A);

// Floats that `n` elements fill in the accumulator: whole pairs for 16-bit types.
template <class E> constexpr size_t filled(size_t n) {
  return kSixteen<E> ? (n + kPair - 1) / kPair * kPair : n;
}

// Elements beyond whole pairs go through a padded copy, so there is one arithmetic only.
template <class E> inline Pair load_tail(const typename E::S* p, size_t n) {
  typename E::S padded[kPair] = {};
  memcpy(padded, p, n * sizeof(typename E::S));
  return E::load(padded);
}

template <class E> inline void store_tail(typename E::S* p, Pair v, size_t n) {
  const VecU padded = E::pack(v);
  memcpy(p, &padded, n * sizeof(typename E::S));
}

template <class O> inline Pair combine(Pair x, Pair y) {
  return {O::apply(x.a, y.a), O::apply(x.b, y.b)};
}

template <class E> void load_block(float* acc, const uint16_t* s, size_t n) {
  size_t i = 0;
  for (; i + kPair <= n; i += kPair) *(Pair*)(acc + i) = E::load(s + i);
  if (i < n) *(Pair*)(acc + i) = load_tail<E>(s + i, n - i);
}

template <class E, class O>
void combine_block(typename E::A* acc, const typename E::S* s, size_t n) {
  size_t i = 0;
  if constexpr (kSixteen<E>) {
    for (; i + kPair <= n; i += kPair)
      *(Pair*)(acc + i) = combine<O>(*(Pair*)(acc + i), E::load(s + i));
    if (i < n) *(Pair*)(acc + i) = combine<O>(*(Pair*)(acc + i), load_tail<E>(s + i, n - i));
  } else {
#pragma GCC ivdep
    for (; i < n; ++i) acc[i] = O::apply(acc[i], s[i]);
  }
}

template <class E> void store_block(typename E::S* d, const typename E::A* acc, size_t n) {
  if constexpr (kSixteen<E>) {
    size_t i = 0;
    for (; i + kPair <= n; i += kPair) *(VecU*)(d + i) = E::pack(*(const Pair*)(acc + i));
    if (i < n) store_tail<E>(d + i, *(const Pair*)(acc + i), n - i);
  } else {
    memcpy(d, acc, n * sizeof(*acc));
  }
}

template <class A> A scale_value(A x, double scale) {
  if constexpr (std::is_floating_point_v<A>) {
    return x * A(scale);
  } else {  // integers: through double, truncated towards zero, held to the type's range
    double y = double(x) * scale;
    if (y != y) return A(0);
    constexpr double lo = double(std::numeric_limits<A>::min());
    constexpr double hi = double(std::numeric_limits<A>::max());
    if (y <= lo) return std::numeric_limits<A>::min();
    if (y >= hi) return std::numeric_limits<A>::max();
    return A(y);
  }
}

// The passes that no operation is part of are compiled once for a type: inlined, they are a third of it.
template <class A> __attribute__((noinline)) void scale_block(A* acc, size_t n, double scale) {
  if (scale == 1.0) return;
  if constexpr (std::is_floating_point_v<A>) {
    const A factor = A(scale);
    for (size_t i = 0; i < n; ++i) acc[i] *= factor;
  } else {
    for (size_t i = 0; i < n; ++i) acc[i] = scale_value(acc[i], scale);
  }
}

inline bool is_power_of_two(int64_t x) { return (x & (x - 1)) == 0; }

template <class A> __attribute__((noinline)) void divide_block(A* acc, size_t n, int64_t divisor) {
  if (divisor == 1) return;
  if constexpr (std::is_floating_point_v<A>) {
    if (is_power_of_two(divisor)) {  // the reciprocal is exact, and multiplying is faster
      const A factor = A(1) / A(divisor);
      for (size_t i = 0; i < n; ++i) acc[i] *= factor;
    } else {
      const A by = A(divisor);
      for (size_t i = 0; i < n; ++i) acc[i] /= by;
    }
  } else if (is_power_of_two(divisor)) {  // an arithmetic shift is the floor
    const int shift = __builtin_ctzll(uint64_t(divisor));
    for (size_t i = 0; i < n; ++i) acc[i] = A(acc[i] >> shift);
  } else {
    for (size_t i = 0; i < n; ++i) {
      const int64_t x = int64_t(acc[i]), q = x / divisor;
      acc[i] = A(q - (x % divisor < 0));
    }
  }
}

// ---- whole reductions -------------------------------------------------------------------------

template <class E, class O> void reduce_blocks(const ReduceArgs& a) {
  using S = typename E::S;
  using A = typename E::A;
  alignas(64) A acc[kBlock];
  alignas(64) A other[kBlock];
  for (size_t b = 0; b < a.count; b += kBlock) {
    const size_t n = std::min(kBlock, a.count - b);
    for (size_t p = 0; p < a.num_srcs; ++p) {
      const S* s = (const S*)a.srcs[p] + b;
      const bool scaled = a.scaled && a.scaled[p] && a.prescale != 1.0;
      A* into = p == 0 ? acc : other;
      if (p == 0 || scaled) {
        if constexpr (kSixteen<E>) load_block<E>(into, s, n);
        else memcpy(into, s, n * sizeof(A));
        if (scaled) scale_block(into, filled<E>(n), a.prescale);
        if (p > 0) combine_block<Plain<A>, O>(acc, other, filled<E>(n));
      } else {
        combine_block<E, O>(acc, s, n);
      }
    }
    divide_block(acc, filled<E>(n), a.divisor);
    scale_block(acc, filled<E>(n), a.postscale);
    store_block<E>((S*)a.dsts[0] + b, acc, n);
    for (size_t d = 1; d < a.num_dsts; ++d)
      memcpy((S*)a.dsts[d] + b, (S*)a.dsts[0] + b, n * sizeof(S));
  }
}

// Two sources, no prescale: one pass. kMul: the result is multiplied by a float factor.
template <class E, class O, bool kMul> void reduce_two(const ReduceArgs& a, double factor) {
  using S = typename E::S;
  using A = typename E::A;
  const A m = A(factor);
  for (size_t b = 0; b < a.count; b += kBlock) {
    const size_t n = std::min(kBlock, a.count - b);
    const S* x = (const S*)a.srcs[0] + b;
    const S* y = (const S*)a.srcs[1] + b;
    S* d = (S*)a.dsts[0] + b;
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) {
      A v = O::apply(x[i], y[i]);
      if constexpr (kMul) v = v * m;
      d[i] = v;
    }
    for (size_t e = 1; e < a.num_dsts; ++e) memcpy((S*)a.dsts[e] + b, d, n * sizeof(S));
  }
}

// The same for 16-bit floats; a second destination is stored while the result is in a register.
template <class E, class O, bool kMul> void reduce_two_sixteen(const ReduceArgs& a, double factor) {
  using S = typename E::S;
  const float m = float(factor);
  auto both = [m](Pair v, Pair w) {
    v = combine<O>(v, w);
    return kMul ? Pair{v.a * m, v.b * m} : v;
  };
  for (size_t b = 0; b < a.count; b += kBlock) {
    const size_t n = std::min(kBlock, a.count - b);
    const S* x = (const S*)a.srcs[0] + b;
    const S* y = (const S*)a.srcs[1] + b;
    S* d = (S*)a.dsts[0] + b;
    S* d2 = a.num_dsts > 1 ? (S*)a.dsts[1] + b : d;
    size_t i = 0;
    for (; i + kPair <= n; i += kPair) {
      const VecU packed = E::pack(both(E::load(x + i), E::load(y + i)));
      *(VecU*)(d + i) = packed;
      *(VecU*)(d2 + i) = packed;
    }
    if (const size_t rest = n - i) {
      const Pair v = both(load_tail<E>(x + i, rest), load_tail<E>(y + i, rest));
      store_tail<E>(d + i, v, rest);
      store_tail<E>(d2 + i, v, rest);
    }
    for (size_t e = 2; e < a.num_dsts; ++e) memcpy((S*)a.dsts[e] + b, d, n * sizeof(S));
  }
}

template <class E, class O, bool kMul> void reduce_pair(const ReduceArgs& a, double factor) {
  if constexpr (kSixteen<E>) reduce_two_sixteen<E, O, kMul>(a, factor);
  else reduce_two<E, O, kMul>(a, factor);
}

inline bool has_prescale(const ReduceArgs& a) {
  if (a.prescale == 1.0 || !a.scaled) return false;
  for (size_t p = 0; p < a.num_srcs; ++p)
    if (a.scaled[p]) return true;
  return false;
}

template <class E, class O> void reduce_with(const ReduceArgs& a) {
  using A = typename E::A;
  if (a.num_srcs == 2 && !has_prescale(a)) {
    if (a.divisor == 1 && a.postscale == 1.0) return reduce_pair<E, O, false>(a, 1.0);
    if constexpr (std::is_floating_point_v<A>) {  // one exact or one single rounding, as in blocks
      if (a.divisor == 1) return reduce_pair<E, O, true>(a, a.postscale);
      if (is_power_of_two(a.divisor) && a.postscale == 1.0)
        return reduce_pair<E, O, true>(a, 1.0 / double(a.divisor));
    }
  }
  reduce_blocks<E, O>(a);
}

template <class E> void reduce_number(const ReduceArgs& a) {
  switch (a.op) {
    case Op::kMin: return reduce_with<E, Min>(a);
    case Op::kMax: return reduce_with<E, Max>(a);
    case Op::kProduct: return reduce_with<E, Product>(a);
    default: return reduce_with<E, Sum>(a);
  }
}

void reduce_bool(const ReduceArgs& a) {
  ReduceArgs plain = a;  // scaling a truth value has no meaning
  plain.prescale = plain.postscale = 1.0;
  plain.divisor = 1;
  if (a.op == Op::kMin || a.op == Op::kProduct) return reduce_with<Bool, And>(plain);
  return reduce_with<Bool, Or>(plain);
}

bool is_copy(const ReduceArgs& a) {
  const bool plain = !has_prescale(a) && a.postscale == 1.0 && a.divisor == 1;
  return a.num_srcs == 1 && (plain || a.dtype == DType::kBool);
}

// One plain source: copies. Large ones are cut so that several destinations share a cached block.
void copy(const ReduceArgs& a) {
  const size_t bytes = a.count * itemsize(a.dtype);
  const size_t block = a.num_dsts == 1 ? bytes : kBlock * 8;
  for (size_t b = 0; b < bytes; b += block) {
    const size_t n = std::min(block, bytes - b);
    for (size_t d = 0; d < a.num_dsts; ++d)
      if (a.dsts[d] != a.srcs[0]) memcpy((char*)a.dsts[d] + b, (const char*)a.srcs[0] + b, n);
  }
}

}  // namespace

void reduce(const ReduceArgs& a) {
  if (a.count == 0) return;
  if (is_copy(a)) return copy(a);
  switch (a.dtype) {
    case DType::kUint8: return reduce_number<Plain<uint8_t>>(a);
    case DType::kInt8: return reduce_number<Plain<int8_t>>(a);
    case DType::kInt32: return reduce_number<Plain<int32_t>>(a);
    case DType::kInt64: return reduce_number<Plain<int64_t>>(a);
    case DType::kFloat16: return reduce_number<Half>(a);
    case DType::kBFloat16: return reduce_number<BFloat>(a);
    case DType::kFloat32: return reduce_number<Plain<float>>(a);
    case DType::kFloat64: return reduce_number<Plain<double>>(a);
    default: return reduce_bool(a);
  }
}

}  // namespace BLINKRUN_ISA
}  // namespace blinkrun
