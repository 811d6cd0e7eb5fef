// The kernel on the host, for tests/support/fake_cuda.py: the blocks of a launch take turns in a random
// order on one thread, which gives its core away while nothing moves.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "device_block.hpp"
#include "device_reduce.hpp"
#include "host_machine.hpp"

namespace blinkrun {
namespace {

using Block = DeviceBlock<HostMachine>;

// Rounds without a move: so many with the core, then with naps, longer and longer.
constexpr uint32_t kYields = 100, kShortest = 20, kLongest = 500;  // naps in us

void relax(uint32_t idle) {
  if (idle < kYields)
    sched_yield();
  else
    usleep(std::min(kShortest + (idle - kYields), kLongest));
}

// Do the move that a block asks for, as the kernel does it: by several threads, here one after the other.
void move(const Block& block, const DeviceCall& call, uint32_t threads) {
  const DeviceMove& move = block.move();
  std::vector<char*> pointers;
  std::vector<uint8_t> scaled;
  for (uint32_t i = 0; i < move.num_dsts + move.num_srcs; ++i) pointers.push_back(block.pointer(i));
  for (uint32_t i = 0; i < move.num_srcs; ++i) scaled.push_back(block.scaled(move.num_dsts + i));
  const Reduction what{pointers.data(),
                       move.prescale == 1.0 ? nullptr : scaled.data(),
                       move.num_dsts,
                       move.num_srcs,
                       DType(call.dtype),
                       Op(call.op),
                       move.elements,
                       move.prescale,
                       move.postscale,
                       uint32_t(move.divisor)};
  for (uint32_t thread = 0; thread < threads; ++thread) reduce_any(what, thread, threads);
}

void run(const DeviceCall& call, uint32_t blocks, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Block>> running;
  for (uint32_t b = 0; b < blocks; ++b) {
    running.push_back(std::make_unique<Block>());
    running.back()->begin(call, HostMachine(b, blocks));
  }
  uint32_t idle = 0;
  while (!running.empty()) {
    std::shuffle(running.begin(), running.end(), random);
    bool moved = false;
    for (size_t i = 0; i < running.size();) {
      DeviceTurn turn = DeviceTurn::kBusy;
      for (uint64_t turns = 1 + random() % 8; turns && turn == DeviceTurn::kBusy; --turns) {
        turn = running[i]->turn();
        if (turn == DeviceTurn::kMove) {
          move(*running[i], call, 1 + random() % 4);
          turn = DeviceTurn::kBusy;
          moved = true;
        }
      }
      if (turn == DeviceTurn::kThrough) {
        running.erase(running.begin() + long(i));
        moved = true;
      } else {
        ++i;
      }
    }
    idle = moved ? 0 : idle + 1;
    if (idle) relax(idle);
  }
}

// ---- what a call may touch

enum Place : uint64_t {
  kGroup, kProgram, kInput, kOutput, kHost, kArena, kArea, kControl, kPlaces
};
const char* const kNames[] = {"the group", "a program", "the input", "the output", "DeviceHost",
                              "an arena",  "a host area", "a control block"};
static_assert(std::size(kNames) == kPlaces, "a name for each");

struct Places {
  uint64_t* words;
  uint32_t most, count = 0;
  void add(Place place, const void* at, uint64_t bytes) {
    if (!at || !bytes || count == most) return;
    words[3 * count] = place;
    words[3 * count + 1] = reinterpret_cast<uint64_t>(at);
    words[3 * count++ + 2] = bytes;
  }
};

// How many blocks of `count` elements a rank gives or takes.
uint64_t blocks_in(Collective c, uint32_t all) {
  return c == Collective::kReducescatter || c == Collective::kAlltoall ? all : 1;
}
uint64_t blocks_out(Collective c, uint32_t all) {
  return c == Collective::kAllgather || c == Collective::kAlltoall ? all : 1;
}

void heads(const DeviceCall& call, Places& places) {
  places.add(kGroup, call.group, sizeof(DeviceGroup));
  for (const FlatProgram* program : call.programs) places.add(kProgram, program, sizeof(FlatProgram));
}

void bodies(const DeviceCall& call, Places& places) {
  const DeviceGroup& group = *call.group;
  const Collective collective = Collective(call.collective);
  const uint64_t bytes = call.count * itemsize(DType(call.dtype));
  for (const FlatProgram* p : call.programs)
    if (p) places.add(kProgram, p, p->streams_at + p->num_streams * sizeof(FlatStream));
  if (takes_input(collective, call.root, group.index))
    places.add(kInput, call.input, bytes * blocks_in(collective, group.all));
  if (takes_output(collective, call.root, group.index))
    places.add(kOutput, call.output, bytes * blocks_out(collective, group.all));
  places.add(kHost, group.host, sizeof(DeviceHost));
  const uint64_t fixed = kDeviceControlBytes + 2 * kDeviceEagerBytes + group.scratch_bytes;
  for (uint32_t r = 0; r < group.size; ++r) {
    places.add(kArena, group.arenas[r], r == group.rank ? group.arena_bytes : fixed);
    places.add(kArea, group.areas[r], fixed);
    places.add(kControl, group.mine[r], kDeviceControlBytes);
    places.add(kControl, group.to[r], kDeviceControlBytes);
  }
  if (group.areas[group.rank])
    places.add(kArea, group.areas[group.rank] + group.rings_at, group.rings_bytes);
}

DeviceCall read(const void* call) {
  DeviceCall read;
  std::memcpy(&read, call, sizeof read);
  return read;
}

}  // namespace
}  // namespace blinkrun

extern "C" {

size_t fake_call_bytes() { return sizeof(blinkrun::DeviceCall); }

// Writes (name, address, bytes) for what the call may touch, first what tells of the rest; returns how
// many there are.
uint32_t fake_places(const void* call, uint32_t rest, uint64_t* words, uint32_t most) {
  blinkrun::Places places{words, most};
  if (rest)
    blinkrun::bodies(blinkrun::read(call), places);
  else
    blinkrun::heads(blinkrun::read(call), places);
  return places.count;
}

const char* fake_place_name(uint32_t place) { return blinkrun::kNames[place]; }

size_t fake_dtype_at() { return offsetof(blinkrun::DeviceCall, dtype); }

void fake_run(const void* call, uint32_t blocks, uint64_t seed) {
  blinkrun::run(blinkrun::read(call), blocks, seed);
}

}
