// What the steps of a program mean in shared memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "group.hpp"
#include "interpreter.hpp"

namespace blinkrun {

constexpr size_t kHostsChunk = 128 << 10;  // of all, unless the program says another
constexpr size_t kCachedSlots = 16 << 20;  // of all ranks together: half of a common last-level cache

// Room for a block; where there are several hosts, a head lies before it.
inline size_t eager_slot_bytes(const Program& program) {
  const size_t ring = std::max<size_t>(size_t(program.slots) * program.slot_depth, 1);
  return kEagerBytes / ring / kCacheLine * kCacheLine - (over_hosts(program) ? kCacheLine : 0);
}

// Chunk over several hosts: it must follow from what all of them know.
inline size_t hosts_chunk_bytes(const Program& program, size_t block_bytes) {
  if (program.chunk_bytes) return program.chunk_bytes;
  return std::min(kHostsChunk, std::max<size_t>(block_bytes / 8, 16 << 10));
}

class CallPolicy {
 public:
  static constexpr bool kMessages = false;

  CallPolicy(Group& group, const Program& program, const Call& call)
      : group_(group), program_(program), call_(call), item_(itemsize(call.dtype)),
        base_(flag_count(group.seq_, 0)), pointers_(program.max_operands),
        scaled_(program.max_operands) {
    const bool pre = reduces(call.collective) && call.prescale != 1.0;
    args_.scaled = nullptr;
    has_prescale_ = pre;
    args_.dtype = call.dtype;
    args_.op = call.op;
    args_.prescale = call.prescale;
    layout();
  }

  bool ready(const Step& wait, const ChannelState& state) const {
    const uint64_t need = state.chunk + 1;
    if (need <= uint64_t(wait.lag)) return true;
    const Flag& flag = group_.control_.flag(uint32_t(wait.rank), uint32_t(wait.flag));
    return flag.value.load(std::memory_order_acquire) >= base_ + need - uint64_t(wait.lag);
  }

  bool pass(const Step& wait, ChannelState& state) const { return ready(wait, state); }

  static void relax() { cpu_relax(); }

  void signal(const Step& step, const ChannelState& state) {
    Flag& flag = group_.control_.flag(group_.config_.rank, uint32_t(step.flag));
    flag.value.exchange(base_ + state.chunk + 1, std::memory_order_seq_cst);
    group_.waiter_.wake();
  }

  Went reduce(const Step& step, const ChannelState& state) {
    move(step, state.chunk, state.range.start(state.chunk), state.range.stop(state.chunk));
    return Went::kWhole;
  }

  // Carry out a reduce for a chunk that begins at element `lo`, up to `hi`.
  void move(const Step& step, uint64_t chunk, uint64_t lo, uint64_t hi, uint64_t skipped = 0) {
    const Operand* operands = program_.operands.data() + step.first;
    const uint32_t total = step.num_dsts + step.num_srcs;
    for (uint32_t i = 0; i < total; ++i)
      pointers_[i] = address(operands[i], lo, chunk) + skipped * item_;
    args_.dsts = pointers_.data();
    args_.srcs = pointers_.data() + step.num_dsts;
    args_.num_dsts = step.num_dsts;
    args_.num_srcs = step.num_srcs;
    args_.count = hi - lo - skipped;
    const bool finish = step.final && reduces(call_.collective);
    args_.postscale = finish ? call_.postscale : 1.0;
    args_.divisor = finish && call_.op == Op::kAverage ? int64_t(group_.total()) : 1;
    if (has_prescale_) {
      for (uint32_t i = 0; i < step.num_srcs; ++i)
        scaled_[i] = operands[step.num_dsts + i].buffer == Buffer::kInput;
      args_.scaled = scaled_.data();
    }
    group_.reduce_(args_);
  }

  Range range(const Channel& channel) const {
    Range r{};
    r.lo = boundary(channel.start, program_.shares, call_.count, item_);
    r.hi = boundary(channel.stop, program_.shares, call_.count, item_);
    r.chunk_elements = std::max<uint64_t>(chunk_bytes_ ? chunk_bytes_ / item_ : r.hi - r.lo, 1);
    if (chunk_bytes_) r.skip = first_skip(channel, r.hi - r.lo, r.chunk_elements, item_);
    return r;
  }

  WaitConfig wait_config(bool may_spin) const {
    WaitConfig wait = group_.config_.wait;
    if (!may_spin) wait.spins = 0;
    return wait;
  }
  static uint64_t nap_ns(const std::vector<ChannelState>&) { return Waiter::kLook; }
  static void progress() {}
  static bool busy() { return false; }  // with messages of this rank
  static void missing(std::vector<uint32_t>&) {}  // ranks of other hosts, for those
  static void finish() {}

 protected:
  Group& group_;
  const Program& program_;
  const Call& call_;
  size_t item_;
  uint64_t base_;

  // Chunk size and scratch: the same on every rank, since they follow from the call and from what
  // the first rank has posted.
  void layout() {
    const size_t ring = size_t(program_.slots) * program_.slot_depth;
    if (program_.eager) {
      const size_t head = over_hosts(program_) ? kCacheLine : 0;
      slot_bytes_ = eager_slot_bytes(program_) + head;
      scratch_at_ = (group_.seq_ & 1) * kEagerBytes + head;
      return;  // one chunk
    }
    scratch_at_ = 2 * kEagerBytes;
    if (program_.pipelined) {
      chunk_bytes_ = std::max(chunk(ring) / kCacheLine * kCacheLine, kCacheLine);
      slot_bytes_ = chunk_bytes_;
      if (call_.count * item_ / chunk_bytes_ >> kChunkBits)
        throw Failure{Failure::Kind::kInvalid,
                      group_.call_text(call_) + ": chunks of " + std::to_string(chunk_bytes_) +
                          " bytes are more than a call may have; make them larger",
                      {}};
    }
  }

  size_t chunk(size_t ring) const {
    if (over_hosts(program_)) return hosts_chunk_bytes(program_, size_t(call_.count) * item_);
    size_t wanted = group_.control_.ranks[0].post[group_.seq_ & 1].chunk_bytes;
    if (!wanted) wanted = program_.chunk_bytes;
    if (wanted) return std::min(wanted, ring ? kScratchBytes / ring : kLargestChunk);
    const size_t block = size_t(call_.count) * item_ / std::max<uint32_t>(program_.size, 1);
    size_t chunk = std::min(group_.config_.chunk_bytes, std::max<size_t>(block / 4, 16 << 10));
    // All ranks' slots together should stay in the last level of the cache.
    if (ring) chunk = std::min(chunk, kCachedSlots / (ring * program_.size));
    return chunk;
  }

  char* address(const Operand& operand, uint64_t lo, uint64_t chunk) const {
    const uint32_t rank = uint32_t(operand.rank);
    if (operand.buffer == Buffer::kScratch) {
      const uint64_t slot = uint64_t(operand.index) * program_.slot_depth + chunk % program_.slot_depth;
      return group_.arenas_[rank].data() + scratch_at_ + slot * slot_bytes_;
    }
    const uint64_t element = uint64_t(operand.index) * call_.count + lo;
    return base_of(rank, operand.buffer) + element * item_;
  }

  char* base_of(uint32_t rank, Buffer buffer) const {
    if (rank == group_.config_.rank) {
      return buffer == Buffer::kInput ? const_cast<char*>(static_cast<const char*>(call_.input))
                                      : static_cast<char*>(call_.output);
    }
    const CallDesc& desc = group_.control_.ranks[rank].post[group_.seq_ & 1].desc;
    return group_.arenas_[rank].data() + (buffer == Buffer::kInput ? desc.input : desc.output);
  }

 private:
  static constexpr size_t kLargestChunk = size_t(1) << 40;  // beyond every block, far from overflow

  bool has_prescale_ = false;
  size_t chunk_bytes_ = 0;  // 0: a part is one chunk
  size_t slot_bytes_ = 0;
  size_t scratch_at_ = 0;
  ReduceArgs args_{};
  std::vector<void*> pointers_;
  std::vector<uint8_t> scaled_;
};

}  // namespace blinkrun
