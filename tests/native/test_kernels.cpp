// Every kernel of every instruction set against plain loops, at odd sizes and offsets.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.hpp"
#include "kernels.hpp"

using namespace blinkrun;

namespace {

template <class T> T combine(Op op, T a, T b) {
  switch (op) {
    case Op::kMin: return (a < b || a != a) ? a : b;
    case Op::kMax: return (a > b || a != a) ? a : b;
    case Op::kProduct: return T(a * b);
    default: return T(a + b);
  }
}

// Sources hold small whole numbers, so results are exact in every type.
template <class T>
void check_numbers(ReduceFn reduce, DType dtype, Op op, size_t srcs, size_t dsts, size_t count,
                   size_t offset, bool in_place) {
  std::vector<std::vector<T>> in(srcs), out(dsts);
  std::vector<const void*> s;
  std::vector<void*> d;
  for (size_t p = 0; p < srcs; ++p) {
    in[p].resize(count + offset + 1);
    for (size_t i = 0; i < count; ++i) in[p][offset + i] = T(1 + (i * 7 + p * 3) % 3);
    in[p][offset + count] = T(77);
    s.push_back(in[p].data() + offset);
  }
  const auto before = in;
  for (size_t p = 0; p < dsts; ++p) {
    out[p].assign(count + offset + 1, T(55));
    d.push_back(in_place && p < srcs ? in[p].data() + offset : out[p].data() + offset);
  }
  ReduceArgs args{};
  args.dsts = d.data();
  args.srcs = s.data();
  args.num_dsts = dsts;
  args.num_srcs = srcs;
  args.count = count;
  args.dtype = dtype;
  args.op = op;
  args.prescale = args.postscale = 1.0;
  args.divisor = op == Op::kAverage ? 2 : 1;
  reduce(args);
  for (size_t i = 0; i < count; ++i) {
    T want = before[0][offset + i];
    for (size_t p = 1; p < srcs; ++p) want = combine(op, want, before[p][offset + i]);
    if (op == Op::kAverage)
      want = std::numeric_limits<T>::is_integer ? T(std::floor(double(want) / 2)) : T(want / 2);
    for (size_t p = 0; p < dsts; ++p) CHECK(static_cast<T*>(d[p])[i] == want);
  }
  for (size_t p = 0; p < dsts; ++p)  // nothing is written past the end
    CHECK(static_cast<T*>(d[p])[count] == (in_place && p < srcs ? T(77) : T(55)));
}

uint16_t to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return uint16_t(u >> 16);
}

// 16-bit floats: all bit patterns survive a sum with zero (NaN stays NaN), and rounding is to
// nearest even.
void check_sixteen(ReduceFn reduce, DType dtype) {
  std::vector<uint16_t> a(65536), zero(65536), out(65536 + 1, 0x1234);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = uint16_t(i);
    zero[i] = 0x8000;  // minus zero leaves every value, also minus zero, as it is
  }
  const void* srcs[] = {a.data(), zero.data()};
  void* dsts[] = {out.data()};
  for (size_t count : {size_t(65536), size_t(65535), size_t(13)}) {
    ReduceArgs args{dsts, srcs, nullptr, 1, 2, count, dtype, Op::kSum, 1.0, 1.0, 1};
    reduce(args);
    const uint16_t inf = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; i < count; ++i) {
      const bool nan = (a[i] & 0x7fff) > inf;
      if (nan) CHECK((out[i] & 0x7fff) > inf);
      else CHECK(out[i] == a[i]);
    }
  }
  if (dtype == DType::kBFloat16) {  // 1 + 2^-8 is half way: even wins; 1.0078125 + 2^-8 goes up
    a[0] = to_bf16(1.0f);
    a[1] = to_bf16(1.0078125f);
    zero[0] = zero[1] = to_bf16(0.00390625f);
    ReduceArgs args{dsts, srcs, nullptr, 1, 2, 2, dtype, Op::kSum, 1.0, 1.0, 1};
    reduce(args);
    CHECK(out[0] == to_bf16(1.0f));
    CHECK(out[1] == to_bf16(1.015625f));
  }
}

void check_scales(ReduceFn reduce) {
  std::vector<float> a(1000, 3.0f), b(1000, 5.0f), out(1000);
  const uint8_t scaled[] = {1, 0};
  const void* srcs[] = {a.data(), b.data()};
  void* dsts[] = {out.data()};
  ReduceArgs args{dsts, srcs, scaled, 1, 2, 1000, DType::kFloat32, Op::kAverage, 2.0, 10.0, 3};
  reduce(args);
  for (float x : out) CHECK(x == (3.0f * 2.0f + 5.0f) / 3.0f * 10.0f);
}

}  // namespace

void test_kernels() {
  std::vector<std::pair<const char*, ReduceFn>> versions = {{"base", base::reduce}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
    versions.push_back({"avx2", avx2::reduce});
  if (select_reduce(nullptr) == avx512::reduce) versions.push_back({"avx512", avx512::reduce});
#endif
  for (auto [name, reduce] : versions) {
    for (Op op : {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct})
      for (size_t srcs : {1, 2, 3, 5})
        for (size_t dsts : {1, 2, 4})
          for (size_t count : {0, 1, 15, 17, 2047, 2049, 5003})
            for (bool in_place : {false, true}) {
              context() = std::string(name) + " op " + std::to_string(int(op)) + " srcs " +
                          std::to_string(srcs) + " count " + std::to_string(count);
              const size_t at = count % 3;
              check_numbers<uint8_t>(reduce, DType::kUint8, op, srcs, dsts, count, at, in_place);
              check_numbers<int8_t>(reduce, DType::kInt8, op, srcs, dsts, count, at, in_place);
              check_numbers<int32_t>(reduce, DType::kInt32, op, srcs, dsts, count, at, in_place);
              check_numbers<int64_t>(reduce, DType::kInt64, op, srcs, dsts, count, at, in_place);
              check_numbers<float>(reduce, DType::kFloat32, op, srcs, dsts, count, at, in_place);
              check_numbers<double>(reduce, DType::kFloat64, op, srcs, dsts, count, at, in_place);
            }
    context() = name;
    check_sixteen(reduce, DType::kFloat16);
    check_sixteen(reduce, DType::kBFloat16);
    check_scales(reduce);
  }
}
