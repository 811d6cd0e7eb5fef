// A block of the device's kernel as one thread of the host has it: flags are atomics of this process
// and of others, moves go by the core's kernels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "device_block.hpp"
#include "kernels.hpp"

namespace blinkrun {

class HostMachine {
 public:
  HostMachine() = default;
  HostMachine(uint32_t index, uint32_t blocks) : index_(index), blocks_(blocks) {}

  uint32_t index() const { return index_; }
  uint32_t blocks() const { return blocks_; }
  uint64_t load(const uint64_t* at) const { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
  uint32_t peek(const uint32_t* at) const { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
  void fence() {}  // one thread: its stores below are releases
  void store(uint64_t* at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
  void store(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
  uint32_t add(uint32_t* at) { return __atomic_fetch_add(at, 1u, __ATOMIC_ACQ_REL); }
  bool claim(uint32_t* at, uint32_t value) {
    uint32_t none = 0;
    return __atomic_compare_exchange_n(at, &none, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  uint64_t now_ns() const {
    return uint64_t(std::chrono::steady_clock::now().time_since_epoch().count());
  }

 private:
  uint32_t index_ = 0, blocks_ = 1;
};

// Do the move that a block asks for.
inline void host_move(const DeviceBlock<HostMachine>& block, const DeviceCall& call) {
  const DeviceMove& move = block.move();
  std::vector<void*> pointers;
  std::vector<uint8_t> scaled;
  for (uint32_t i = 0; i < move.num_dsts + move.num_srcs; ++i) pointers.push_back(block.pointer(i));
  for (uint32_t i = 0; i < move.num_srcs; ++i) scaled.push_back(block.scaled(move.num_dsts + i));
  ReduceArgs args{};
  args.dsts = pointers.data();
  args.srcs = pointers.data() + move.num_dsts;
  args.scaled = move.prescale != 1.0 ? scaled.data() : nullptr;
  args.num_dsts = move.num_dsts;
  args.num_srcs = move.num_srcs;
  args.count = move.elements;
  args.dtype = DType(call.dtype);
  args.op = Op(call.op);
  args.prescale = move.prescale;
  args.postscale = move.postscale;
  args.divisor = move.divisor;
  base::reduce(args);
}

}  // namespace blinkrun
