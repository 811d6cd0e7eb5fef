// Reduce n sources into m destinations with the threads of one block: what kernels_impl.hpp does with
// one core, to the same bits. Only a NaN's payload may differ: CUDA's arithmetic keeps none.
//
// Sources are taken four at a time, and of each two vectors of 16 bytes, so that eight loads of a
// thread are under way before the first is needed (of bytes, four). Where the operands do not share
// their alignment, and for the rare scaling and averaging of integers, elements are taken one by one.
//
// A thread takes several units, `stride` bytes apart, at a time. Where fewer are left it takes its
// first one again in their place, and stores that once: one piece of code for the middle and for
// the end.
#pragma once

#include "device_numbers.hpp"

namespace blinkrun {

struct Reduction {
  char* const* pointers;   // destinations, then sources; each destination equals a source or overlaps none
  const uint8_t* scaled;   // of each source: multiply it by prescale; null: none
  uint32_t num_dsts, num_srcs;
  DType dtype;
  Op op;
  uint64_t count;          // elements
  double prescale, postscale;
  uint32_t divisor;        // of the result; 1: none
};

namespace device {

// ---- where vectors may be taken ---------------------------------------------------------------------

// Where vectors may begin and end, in bytes from the first element; `stop` is `begin` if there are none.
struct Middle {
  uint64_t begin, stop;
};

// By how much operands differ in their addresses, as far as it matters: the bits that are not the same.
BLINKRUN_FN uint32_t misfit(const Reduction& what) {
  const uint64_t first = reinterpret_cast<uint64_t>(what.pointers[0]);
  uint64_t bits = 0;
  for (uint32_t i = 1; i < what.num_dsts + what.num_srcs; ++i)
    bits |= reinterpret_cast<uint64_t>(what.pointers[i]) ^ first;
  return uint32_t(bits) & 15;
}

template <class Unit> BLINKRUN_FN Middle middle_of(const Reduction& what, uint64_t bytes) {
  const uint64_t first = reinterpret_cast<uint64_t>(what.pointers[0]);
  const uint64_t begin = smaller(bytes, (sizeof(Unit) - first % sizeof(Unit)) % sizeof(Unit));
  return {begin, begin + (bytes - begin) / sizeof(Unit) * sizeof(Unit)};
}

// ---- vectors ----------------------------------------------------------------------------------------

template <class E> struct Lanes {
  static constexpr uint32_t kNum = 16 / sizeof(typename E::Lane);
  typename E::A values[kNum];
};

template <class E> BLINKRUN_FN typename E::A lane_of(const Pack& pack, uint32_t lane) {
  using Lane = typename E::Lane;
  if constexpr (sizeof(Lane) == 8) {
    const uint64_t bits = uint64_t(pack.words[2 * lane + 1]) << 32 | pack.words[2 * lane];
    if constexpr (Kind<Lane>::kFloat) return double_of(bits);
    else return Lane(bits);
  } else if constexpr (Kind<Lane>::kFloat) {
    return float_of(pack.words[lane]);
  } else {
    constexpr uint32_t kEach = 4 / sizeof(Lane);
    return E::widen(Lane(pack.words[lane / kEach] >> lane % kEach * (8 * sizeof(Lane))));
  }
}

template <class E> BLINKRUN_FN Pack packed(const Lanes<E>& lanes) {
  using Lane = typename E::Lane;
  Pack pack;
  if constexpr (sizeof(Lane) == 8) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      uint64_t bits;
      if constexpr (Kind<Lane>::kFloat) bits = bits_of(lanes.values[i]);
      else bits = uint64_t(lanes.values[i]);
      pack.words[2 * i] = uint32_t(bits);
      pack.words[2 * i + 1] = uint32_t(bits >> 32);
    }
  } else if constexpr (Kind<Lane>::kFloat) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) pack.words[i] = bits_of(lanes.values[i]);
  } else {
    using Bits = typename Wrap<Lane>::U;
    constexpr uint32_t kEach = 4 / sizeof(Lane);
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      pack.words[i] = 0;
      BLINKRUN_UNROLL
      for (uint32_t j = 0; j < kEach; ++j)
        pack.words[i] |= uint32_t(Bits(E::narrow(lanes.values[i * kEach + j]))) << j * (8 * sizeof(Lane));
    }
  }
  return pack;
}

template <class E, Combine kHow>
BLINKRUN_FN void take(Lanes<E>& sum, const Pack& pack, bool first, bool scaled, const Reduction& what) {
  Lanes<E> lanes;
  BLINKRUN_UNROLL
  for (uint32_t i = 0; i < Lanes<E>::kNum; ++i) lanes.values[i] = lane_of<E>(pack, i);
  if constexpr (Kind<typename E::A>::kFloat)
    if (scaled) scale_all(lanes.values, what.prescale);
  if (first) sum = lanes;
  else combine_all<E, kHow>(what.op, sum.values, lanes.values);
}

constexpr uint32_t kGroup = 4;  // sources whose loads are under way at a time
constexpr uint32_t kEach = 4;   // elements, and units of copies

// Vectors of each source: one of bytes, which are sixteen numbers, fills as many registers as there are.
template <class E> constexpr uint32_t kAhead = sizeof(typename E::Lane) == 1 ? 1 : 2;

// Byte of the thread's unit `i`, which is `at` again behind the end.
BLINKRUN_FN uint64_t unit_at(uint64_t at, uint32_t i, uint64_t stride, uint64_t stop) {
  return at + i * stride < stop ? at + i * stride : at;
}

template <class E, Combine kHow>
BLINKRUN_FN void reduce_packs(const Reduction& what, uint64_t at, uint64_t stride, uint64_t stop) {
  Lanes<E> sums[kAhead<E>] = {};
  uint32_t begin = 0;
  BLINKRUN_ROLLED
  do {
    char* const* sources = what.pointers + what.num_dsts + begin;
    const uint32_t num = smaller(kGroup, what.num_srcs - begin);
    Pack packs[kGroup][kAhead<E>];
    BLINKRUN_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) {
      if (j > 0 && j >= num) continue;
      BLINKRUN_UNROLL
      for (uint32_t i = 0; i < kAhead<E>; ++i)
        packs[j][i] = load_pack(sources[j] + unit_at(at, i, stride, stop));
    }
    BLINKRUN_UNROLL
    for (uint32_t j = 0; j < kGroup; ++j) {
      if (j > 0 && j >= num) continue;
      const bool scaled = what.scaled && what.scaled[begin + j];
      BLINKRUN_UNROLL
      for (uint32_t i = 0; i < kAhead<E>; ++i)
        take<E, kHow>(sums[i], packs[j][i], j == 0 && begin == 0, scaled, what);
    }
    begin += kGroup;
  } while (begin < what.num_srcs);
  Pack results[kAhead<E>];
  BLINKRUN_UNROLL
  for (uint32_t i = 0; i < kAhead<E>; ++i) {
    if constexpr (Kind<typename E::A>::kFloat) {
      if constexpr (kHow == Combine::kSum) divide_all(sums[i].values, what.divisor);  // only of averages
      scale_all(sums[i].values, what.postscale);
    }
    results[i] = packed<E>(sums[i]);
  }
  BLINKRUN_ROLLED
  for (uint32_t d = 0; d < what.num_dsts; ++d) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kAhead<E>; ++i)
      if (at + i * stride < stop) store_pack(what.pointers[d] + at + i * stride, results[i]);
  }
}

template <class E, Combine kHow>
BLINKRUN_FN void reduce_vectors(const Reduction& what, const Middle& middle, uint32_t thread,
                                uint32_t threads) {
  const uint64_t stride = uint64_t(threads) * sizeof(Pack);
  BLINKRUN_ROLLED
  for (uint64_t at = middle.begin + uint64_t(thread) * sizeof(Pack); at < middle.stop;
       at += kAhead<E> * stride)
    reduce_packs<E, kHow>(what, at, stride, middle.stop);
}

// ---- elements ---------------------------------------------------------------------------------------

template <class E>
BLINKRUN_FN void reduce_few(const Reduction& what, uint64_t at, uint64_t stride, uint64_t stop) {
  using S = typename E::S;
  typename E::A sums[kEach] = {};
  uint32_t j = 0;
  BLINKRUN_ROLLED
  do {
    const char* source = what.pointers[what.num_dsts + j];
    typename E::A values[kEach];
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kEach; ++i)
      values[i] = E::widen(*reinterpret_cast<const S*>(source + unit_at(at, i, stride, stop)));
    if constexpr (!E::kTruth) scale_all(values, what.scaled && what.scaled[j] ? what.prescale : 1.0);
    if (j > 0) {
      combine_all<E, Combine::kByOp>(what.op, sums, values);
    } else {
      BLINKRUN_UNROLL
      for (uint32_t i = 0; i < kEach; ++i) sums[i] = values[i];
    }
  } while (++j < what.num_srcs);
  if constexpr (!E::kTruth) {
    divide_all(sums, what.divisor);
    scale_all(sums, what.postscale);
  }
  BLINKRUN_ROLLED
  for (uint32_t d = 0; d < what.num_dsts; ++d) {
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kEach; ++i)
      if (at + i * stride < stop)
        *reinterpret_cast<S*>(what.pointers[d] + at + i * stride) = S(E::narrow(sums[i]));
  }
}

// The bytes of every operand that are not in `middle`: whole elements.
template <class E>
BLINKRUN_FN void reduce_elements(const Reduction& what, const Middle& middle, uint64_t bytes,
                                 uint32_t thread, uint32_t threads) {
  const uint64_t item = sizeof(typename E::S), stride = threads * item;
  BLINKRUN_ROLLED
  for (uint32_t part = 0; part < 2; ++part) {
    const uint64_t stop = part ? bytes : middle.begin;
    BLINKRUN_ROLLED
    for (uint64_t at = (part ? middle.stop : 0) + thread * item; at < stop; at += kEach * stride)
      reduce_few<E>(what, at, stride, stop);
  }
}

// ---- copies -----------------------------------------------------------------------------------------

template <class Unit> BLINKRUN_FN Unit load_unit(const char* from) {
  if constexpr (sizeof(Unit) == sizeof(Pack)) return load_pack(from);
  else return *reinterpret_cast<const Unit*>(from);
}

template <class Unit> BLINKRUN_FN void store_unit(char* to, const Unit& unit) {
  if constexpr (sizeof(Unit) == sizeof(Pack)) store_pack(to, unit);
  else *reinterpret_cast<Unit*>(to) = unit;
}

template <class Unit>
BLINKRUN_FN void copy_units(const Reduction& what, uint64_t at, uint64_t stride, uint64_t stop) {
  const char* source = what.pointers[what.num_dsts];
  Unit units[kEach];
  BLINKRUN_UNROLL
  for (uint32_t i = 0; i < kEach; ++i) units[i] = load_unit<Unit>(source + unit_at(at, i, stride, stop));
  BLINKRUN_ROLLED
  for (uint32_t d = 0; d < what.num_dsts; ++d) {
    char* to = what.pointers[d];
    if (to == source) continue;
    BLINKRUN_UNROLL
    for (uint32_t i = 0; i < kEach; ++i)
      if (at + i * stride < stop) store_unit<Unit>(to + at + i * stride, units[i]);
  }
}

template <class Unit>
BLINKRUN_FN void copy_range(const Reduction& what, uint64_t begin, uint64_t stop, uint32_t thread,
                            uint32_t threads) {
  const uint64_t stride = uint64_t(threads) * sizeof(Unit);
  BLINKRUN_ROLLED
  for (uint64_t at = begin + uint64_t(thread) * sizeof(Unit); at < stop; at += kEach * stride)
    copy_units<Unit>(what, at, stride, stop);
}

template <class Unit>
BLINKRUN_FN void copy_by(const Reduction& what, uint64_t bytes, uint32_t thread, uint32_t threads) {
  const Middle middle = middle_of<Unit>(what, bytes);
  copy_range<Unit>(what, middle.begin, middle.stop, thread, threads);
  BLINKRUN_ROLLED
  for (uint32_t part = 0; part < 2; ++part)
    copy_range<uint8_t>(what, part ? middle.stop : 0, part ? bytes : middle.begin, thread, threads);
}

BLINKRUN_FN void copy(const Reduction& what, uint64_t bytes, uint32_t thread, uint32_t threads) {
  const uint32_t bits = misfit(what);
  if (bits == 0) copy_by<Pack>(what, bytes, thread, threads);
  else if ((bits & 3) == 0) copy_by<uint32_t>(what, bytes, thread, threads);
  else if ((bits & 1) == 0) copy_by<uint16_t>(what, bytes, thread, threads);
  else copy_by<uint8_t>(what, bytes, thread, threads);
}

BLINKRUN_FN bool has_prescale(const Reduction& what) {
  if (what.prescale == 1.0 || !what.scaled) return false;
  for (uint32_t i = 0; i < what.num_srcs; ++i)
    if (what.scaled[i]) return true;
  return false;
}

}  // namespace device

// The share of `thread` among `threads` in a reduction of elements E. Different threads touch different bytes.
template <class E> BLINKRUN_FN void reduce_share(const Reduction& what, uint32_t thread, uint32_t threads) {
  using namespace device;
  const uint64_t bytes = what.count * sizeof(typename E::S);
  const bool plain =
      E::kTruth || (what.postscale == 1.0 && what.divisor == 1 && !has_prescale(what));
  if (plain && what.num_srcs == 1) return copy(what, bytes, thread, threads);
  Middle middle{bytes, bytes};
  if ((plain || Kind<typename E::A>::kFloat) && misfit(what) == 0) middle = middle_of<Pack>(what, bytes);
  if (!E::kTruth && (what.op == Op::kSum || what.op == Op::kAverage))
    reduce_vectors<E, Combine::kSum>(what, middle, thread, threads);
  else
    reduce_vectors<E, Combine::kByOp>(what, middle, thread, threads);
  reduce_elements<E>(what, middle, bytes, thread, threads);
}

template <DType kType> struct ElementOf;
template <> struct ElementOf<DType::kUint8> { using E = device::Plain<uint8_t>; };
template <> struct ElementOf<DType::kInt8> { using E = device::Plain<int8_t>; };
template <> struct ElementOf<DType::kInt32> { using E = device::Plain<int32_t>; };
template <> struct ElementOf<DType::kInt64> { using E = device::Plain<int64_t>; };
template <> struct ElementOf<DType::kFloat16> { using E = device::Half; };
template <> struct ElementOf<DType::kBFloat16> { using E = device::BFloat; };
template <> struct ElementOf<DType::kFloat32> { using E = device::Plain<float>; };
template <> struct ElementOf<DType::kFloat64> { using E = device::Plain<double>; };
template <> struct ElementOf<DType::kBool> { using E = device::Bool; };

#if !defined(__CUDACC_RTC__)
// The same where the type is not known beforehand; a kernel is made for each.
inline void reduce_any(const Reduction& what, uint32_t thread, uint32_t threads) {
  switch (what.dtype) {
    case DType::kUint8: return reduce_share<device::Plain<uint8_t>>(what, thread, threads);
    case DType::kInt8: return reduce_share<device::Plain<int8_t>>(what, thread, threads);
    case DType::kInt32: return reduce_share<device::Plain<int32_t>>(what, thread, threads);
    case DType::kInt64: return reduce_share<device::Plain<int64_t>>(what, thread, threads);
    case DType::kFloat16: return reduce_share<device::Half>(what, thread, threads);
    case DType::kBFloat16: return reduce_share<device::BFloat>(what, thread, threads);
    case DType::kFloat32: return reduce_share<device::Plain<float>>(what, thread, threads);
    case DType::kFloat64: return reduce_share<device::Plain<double>>(what, thread, threads);
    default: return reduce_share<device::Bool>(what, thread, threads);
  }
}
#endif

}  // namespace blinkrun
