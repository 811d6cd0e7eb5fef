// What the threads of a device's block do to numbers, against the CPU's kernels: the same bits, by any
// number of threads in any order, wherever the operands begin.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "device_reduce.hpp"
#include "kernels.hpp"

using namespace blinkrun;

namespace {

constexpr size_t kMost = 3000, kRoom = 64;  // elements; bytes before and behind

struct Case {
  DType dtype;
  Op op;
  size_t num_dsts, num_srcs, count, threads;
  size_t offset;    // in elements, of all operands
  size_t misfit;    // in elements, of the last source and the last destination
  bool in_place;    // the first destination is the first source
  bool scaled;
  double prescale, postscale;
  uint32_t divisor;
};

bool is_nan(DType dtype, const char* at) {
  uint16_t half;
  float single;
  double wide;
  switch (dtype) {
    case DType::kFloat16:
      std::memcpy(&half, at, 2);
      return (half & 0x7fff) > 0x7c00;
    case DType::kBFloat16:
      std::memcpy(&half, at, 2);
      return (half & 0x7fff) > 0x7f80;
    case DType::kFloat32:
      std::memcpy(&single, at, 4);
      return single != single;
    case DType::kFloat64:
      std::memcpy(&wide, at, 8);
      return wide != wide;
    default: return false;
  }
}

// Memory of one operand, between bytes that nobody may touch.
struct Memory {
  alignas(64) char bytes[kRoom + kMost * 8 + 2 * kRoom];
};

class Runner {
 public:
  void operator()(const Case& c) {
    const size_t item = itemsize(c.dtype);
    for (size_t p = 0; p < c.num_srcs; ++p) fill(sources_[p], c.dtype);
    for (size_t p = 0; p < c.num_dsts; ++p) std::memset(wanted_[p].bytes, 0x5a, sizeof(Memory));
    for (size_t p = 0; p < c.num_dsts; ++p) std::memset(found_[p].bytes, 0x5a, sizeof(Memory));
    if (c.in_place) wanted_[0] = found_[0] = sources_[0];
    cpu(c, item);
    device(c, item);
    for (size_t p = 0; p < c.num_dsts; ++p) compare(c, item, p);
  }

 private:
  std::mt19937_64 random_{7};
  std::vector<Memory> sources_{9}, wanted_{4}, found_{4};
  uint8_t scaled_[9];

  void fill(Memory& memory, DType dtype) {
    for (size_t i = 0; i < sizeof memory.bytes; i += 8) {
      const uint64_t word = random_();
      std::memcpy(memory.bytes + i, &word, 8);
    }
    if (dtype == DType::kBool)
      for (char& byte : memory.bytes) byte &= 1;
  }

  static size_t begin(const Case& c, size_t item, bool last) {
    return kRoom + (c.offset + (last ? c.misfit : 0)) * item;
  }

  // Where the operands lie, with `outputs` for destinations.
  std::vector<char*> pointers(const Case& c, size_t item, std::vector<Memory>& outputs) {
    std::vector<char*> all;
    for (size_t p = 0; p < c.num_dsts; ++p)
      all.push_back(outputs[p].bytes + begin(c, item, p > 0 && p + 1 == c.num_dsts));
    for (size_t p = 0; p < c.num_srcs; ++p) {
      Memory& memory = p == 0 && c.in_place ? outputs[0] : sources_[p];
      all.push_back(memory.bytes + begin(c, item, p > 0 && p + 1 == c.num_srcs));
    }
    for (size_t p = 0; p < c.num_srcs; ++p) scaled_[p] = p % 2 == 0;
    return all;
  }

  void cpu(const Case& c, size_t item) {
    const std::vector<char*> all = pointers(c, item, wanted_);
    const std::vector<void*> dsts(all.begin(), all.begin() + long(c.num_dsts));
    const std::vector<const void*> srcs(all.begin() + long(c.num_dsts), all.end());
    ReduceArgs args{dsts.data(), srcs.data(), c.scaled ? scaled_ : nullptr, c.num_dsts, c.num_srcs,
                    c.count, c.dtype, c.op, c.prescale, c.postscale, int64_t(c.divisor)};
    base::reduce(args);
  }

  void device(const Case& c, size_t item) {
    const std::vector<char*> all = pointers(c, item, found_);
    Reduction what{all.data(), c.scaled ? scaled_ : nullptr, uint32_t(c.num_dsts),
                   uint32_t(c.num_srcs), c.dtype, c.op, c.count, c.prescale, c.postscale, c.divisor};
    std::vector<uint32_t> order(c.threads);
    for (uint32_t t = 0; t < c.threads; ++t) order[t] = t;
    std::shuffle(order.begin(), order.end(), random_);
    for (uint32_t t : order) reduce_any(what, t, uint32_t(c.threads));
  }

  void compare(const Case& c, size_t item, size_t p) {
    const size_t at = begin(c, item, p > 0 && p + 1 == c.num_dsts), stop = at + c.count * item;
    const char *wanted = wanted_[p].bytes, *found = found_[p].bytes;
    CHECK(std::memcmp(wanted, found, at) == 0);
    CHECK(std::memcmp(wanted + stop, found + stop, sizeof(Memory) - stop) == 0);
    if (std::memcmp(wanted + at, found + at, c.count * item) == 0) return;
    for (size_t i = at; i < stop; i += item)  // a NaN is a NaN
      CHECK(std::memcmp(wanted + i, found + i, item) == 0 ||
            (is_nan(c.dtype, wanted + i) && is_nan(c.dtype, found + i)));
  }
};

// Every 16-bit float to float32 and back, and rounding at and beside every middle between two of them.
void check_conversions() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = uint16_t(bits);
    const bool nan = (bits & 0x7fff) > 0x7c00;
    CHECK(nan || device::float_to_half(device::half_to_float(half)) == half);
    const uint16_t back = device::float_to_bfloat(device::bfloat_to_float(half));
    CHECK(back == half || ((bits & 0x7fff) > 0x7f80 && back == (half | 0x40)));
  }
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 65535; ++bits)
    for (uint32_t low : {0x7fffu, 0x8000u, 0x8001u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u})
      values.push_back(device::float_of(bits << 16 | low));
  std::vector<uint16_t> wanted(values.size());
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    // The CPU's rounding is seen through what it stores: the product of a 16-bit float and a factor.
    const uint16_t one = dtype == DType::kFloat16 ? 0x3c00 : 0x3f80;
    for (size_t i = 0; i < values.size(); ++i) {
      const void* srcs[] = {&one};
      void* dsts[] = {&wanted[i]};
      ReduceArgs args{dsts, srcs, nullptr, 1, 1, 1, dtype, Op::kSum, 1.0, double(values[i]), 1};
      base::reduce(args);
      const uint16_t found = dtype == DType::kFloat16 ? device::float_to_half(values[i])
                                                      : device::float_to_bfloat(values[i]);
      CHECK(values[i] != values[i] || found == wanted[i]);
    }
  }
}

// A copy whose source is also a destination must not write there, not even what is there: others may
// read it. Here nobody can write.
void check_copy_in_place() {
  constexpr size_t bytes = 4096;
  void* page = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  for (int t = 0; t < int(DType::kCount); ++t) {
    std::vector<char> out(bytes, 0x5a);
    char* pointers[] = {static_cast<char*>(page), out.data(), static_cast<char*>(page)};
    const Reduction what{pointers, nullptr, 2, 1, DType(t), Op::kSum, bytes / itemsize(DType(t)),
                         1.0, 1.0, 1};
    for (uint32_t thread = 0; thread < 5; ++thread) reduce_any(what, thread, 5);
    CHECK(std::count(out.begin(), out.end(), 0) == long(bytes));
  }
  munmap(page, bytes);
}

}  // namespace

void test_device_reduce() {
  context() = "a copy in place";
  check_copy_in_place();
  context() = "conversions of 16-bit floats";
  check_conversions();
  Runner run;
  std::mt19937 random(3);
  const size_t counts[] = {0, 1, 3, 15, 16, 17, 100, 257, 2999};
  for (int t = 0; t < int(DType::kCount); ++t)
    for (Op op : {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct})
      for (size_t srcs : {1, 2, 3, 4, 5, 8, 9})
        for (int round = 0; round < 12; ++round) {
          Case c{};
          c.dtype = DType(t);
          c.op = op;
          c.num_srcs = srcs;
          c.num_dsts = 1 + random() % 4;
          c.count = counts[random() % (sizeof counts / sizeof *counts)];
          c.threads = round % 3 == 0 ? 1 : round % 3 == 1 ? 32 : 7;
          c.offset = random() % 5;
          c.misfit = random() % 2 ? 0 : random() % 4;
          c.in_place = random() % 2 && (c.misfit == 0 || srcs > 1);
          c.scaled = random() % 3 == 0;
          c.prescale = random() % 2 ? 1.0 : 0.3;
          c.postscale = random() % 2 ? 1.0 : 1.7;
          c.divisor = op == Op::kAverage ? (random() % 2 ? 4 : 3) : 1;
          context() = "type " + std::to_string(t) + " op " + std::to_string(int(op)) + " srcs " +
                      std::to_string(srcs) + " dsts " + std::to_string(c.num_dsts) + " count " +
                      std::to_string(c.count) + " offset " + std::to_string(c.offset) + " misfit " +
                      std::to_string(c.misfit) + " threads " + std::to_string(c.threads) + " round " +
                      std::to_string(round);
          run(c);
        }
}
