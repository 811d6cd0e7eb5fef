// Calls with known data, and what must come out of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check.hpp"
#include "host.hpp"

namespace blinkrun {

inline int32_t value(uint64_t rank, uint64_t i) { return int32_t((i * 13 + rank * 101) % 1000); }

enum class Place { kUser, kArena, kOutputInArena };

struct Buffers {
  Place place;
  int32_t* input;
  int32_t* output;
  std::vector<int32_t> own_input, own_output;
};

inline Buffers make_buffers(Group& group, Place place, size_t in, size_t out) {
  Buffers b;
  b.place = place;
  if (place == Place::kArena) {
    b.input = reinterpret_cast<int32_t*>(group.arena().data() + group.heap().allocate(in * 4));
  } else {
    b.own_input.resize(in);
    b.input = b.own_input.data();
  }
  if (place != Place::kUser) {
    b.output = reinterpret_cast<int32_t*>(group.arena().data() + group.heap().allocate(out * 4));
  } else {
    b.own_output.resize(out);
    b.output = b.own_output.data();
  }
  return b;
}

inline void free_buffers(Group& group, Buffers& b) {
  char* base = group.arena().data();
  if (b.place == Place::kArena) group.heap().release(size_t((char*)b.input - base));
  if (b.place != Place::kUser) group.heap().release(size_t((char*)b.output - base));
}

inline int32_t sum_of(uint64_t size, uint64_t i) {
  int32_t sum = 0;
  for (uint64_t r = 0; r < size; ++r) sum += value(r, i);
  return sum;
}

inline void check_result(Group& group, Collective c, int32_t root, const int32_t* out, uint64_t count) {
  const uint64_t n = group.total(), me = group.index();
  for (uint64_t i = 0; i < count; ++i) {
    switch (c) {
      case Collective::kAllreduce: CHECK(out[i] == sum_of(n, i)); break;
      case Collective::kBroadcast: CHECK(out[i] == value(uint64_t(root), i)); break;
      case Collective::kReduce:
        CHECK(out[i] == (uint64_t(root) == me ? sum_of(n, i) : -1));
        break;
      case Collective::kReducescatter: CHECK(out[i] == sum_of(n, me * count + i)); break;
      case Collective::kAllgather:
        for (uint64_t b = 0; b < n; ++b) CHECK(out[b * count + i] == value(b, i));
        break;
      case Collective::kAlltoall:
        for (uint64_t b = 0; b < n; ++b) CHECK(out[b * count + i] == value(b, me * count + i));
        break;
      default: CHECK(false);
    }
  }
}

inline void call_once(Group& group, Collective c, int32_t root, Place place, uint64_t count) {
  const uint64_t n = group.total();
  const bool splits = c == Collective::kReducescatter || c == Collective::kAlltoall;
  const bool joins = c == Collective::kAllgather || c == Collective::kAlltoall;
  const uint64_t in = count * (splits ? n : 1), out = count * (joins ? n : 1);
  Buffers b = make_buffers(group, place, in, out);
  for (uint64_t i = 0; i < in; ++i) b.input[i] = value(group.index(), i);
  for (uint64_t i = 0; i < out; ++i) b.output[i] = -1;
  Call call{c, DType::kInt32, Op::kSum, root, b.input, b.output, count, 1.0, 1.0};
  group.run(call, kCaller);
  context() = "collective " + std::to_string(int(c)) + " root " + std::to_string(root) + " rank " +
              std::to_string(group.index()) + " of " + std::to_string(n) + " count " +
              std::to_string(count) + " place " + std::to_string(int(place));
  check_result(group, c, root, b.output, count);
  Call barrier{};  // the buffers go back only when no peer reads them: a call has ended by then
  barrier.collective = Collective::kBarrier;
  group.run(barrier, kCaller);
  free_buffers(group, b);
}

}  // namespace blinkrun
