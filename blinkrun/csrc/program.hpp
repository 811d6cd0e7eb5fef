// A rank's program, decoded from the words that blinkrun/schedule/encode.py writes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "steps.hpp"
#include "types.hpp"

namespace blinkrun {

// Messages of this rank with one on another host, in order.
struct Stream {
  uint32_t rank;
  uint32_t number;
  bool sends;
};

struct Program {
  Collective collective;
  int32_t root;
  Addressing addressing;
  uint32_t shares, size, slots, slot_depth;
  bool eager, pipelined;
  uint32_t flags;
  std::vector<Channel> prologue, channels;
  std::vector<Step> steps;
  std::vector<Operand> operands;
  uint32_t all = 0;  // ranks on all hosts; `size` are those of this one
  uint32_t rank = 0;  // version 4: whose it is, on its host
  std::vector<Stream> streams;
  uint32_t max_operands = 0;  // of one reduce
  uint32_t version = 1;
  uint64_t most_bytes = UINT64_MAX;  // largest call that it is for
  uint64_t chunk_bytes = 0;  // of a pipelined program; 0: by the call's size
};

inline bool over_hosts(const Program& program) { return program.version == 3; }
inline bool for_devices(const Program& program) { return program.version == 4; }

class WordReader {
 public:
  WordReader(const int32_t* words, size_t size) : at_(words), end_(words + size) {}
  int32_t next() {
    if (at_ == end_) throw std::invalid_argument("program ends in the middle of a step");
    return *at_++;
  }
  uint32_t count() {
    const int32_t word = next();
    if (word < 0) throw std::invalid_argument("program has a negative count");
    return uint32_t(word);
  }
  bool done() const { return at_ == end_; }

 private:
  const int32_t* at_;
  const int32_t* end_;
};

inline Operand decode_operand(const Program& program, WordReader& in, int32_t rank) {
  Operand operand{};
  operand.rank = rank;
  operand.buffer = Buffer(in.next());
  operand.index = in.next();
  if (uint32_t(rank) >= program.size || uint32_t(operand.buffer) > 2 || operand.index < 0)
    throw std::invalid_argument("program addresses a rank or buffer that does not exist");
  if (program.version == 2 || for_devices(program)) operand.link = in.count();
  return operand;
}

inline int32_t find_stream(Program& program, const Stream& wanted) {
  for (size_t i = 0; i < program.streams.size(); ++i) {
    const Stream& stream = program.streams[i];
    if (stream.rank == wanted.rank && stream.number == wanted.number && stream.sends == wanted.sends)
      return int32_t(i);
  }
  program.streams.push_back(wanted);
  return int32_t(program.streams.size()) - 1;
}

// A message's memory is this rank's own; which of the host's it is, the group knows, or the program.
inline void decode_message(Program& program, WordReader& in, Step& step) {
  step.rank = in.next();
  const uint32_t number = in.count();
  if (program.version < 3 || uint32_t(step.rank) >= program.all)
    throw std::invalid_argument("program has a message with a rank that does not exist");
  const bool sends = step.kind == StepKind::kSend || step.kind == StepKind::kSent;
  step.flag = find_stream(program, {uint32_t(step.rank), number, sends});
  if (step.kind == StepKind::kSent || step.kind == StepKind::kArrived) {
    step.lag = int32_t(in.count());
    return;
  }
  step.first = uint32_t(program.operands.size());
  program.operands.push_back(decode_operand(program, in, int32_t(program.rank)));
}

inline void decode_reduce(Program& program, WordReader& in, Step& step) {
  step.final = in.next() != 0;
  step.num_dsts = in.count();
  step.num_srcs = in.count();
  step.first = uint32_t(program.operands.size());
  for (uint32_t i = 0; i < step.num_dsts + step.num_srcs; ++i) {
    const Operand operand = decode_operand(program, in, in.next());
    step.linked |= operand.link != 0;
    program.operands.push_back(operand);
  }
  program.max_operands = std::max(program.max_operands, step.num_dsts + step.num_srcs);
}

// Which ranks wait for a flag, in two halves.
inline uint32_t decode_mask(const Program& program, WordReader& in) {
  const uint32_t low = in.count(), high = in.count();
  const uint64_t mask = low | uint64_t(high) << 16;
  if (low >> 16 || high >> 16 || mask >> std::min(program.size, 32u))
    throw std::invalid_argument("program signals ranks that do not exist");
  return uint32_t(mask);
}

inline Step decode_step(Program& program, WordReader& in) {
  Step step{};
  const int32_t kind = in.next();
  if (kind < 0 || kind > 6) throw std::invalid_argument("program has an unknown step");
  step.kind = StepKind(kind);
  if (step.kind == StepKind::kReduce) {
    decode_reduce(program, in, step);
    return step;
  }
  if (step.kind >= StepKind::kSend) {
    decode_message(program, in, step);
    return step;
  }
  if (step.kind == StepKind::kWait) step.rank = in.next();
  step.flag = in.next();
  if (step.kind == StepKind::kWait) step.lag = in.next();
  if (step.kind == StepKind::kSignal && for_devices(program)) step.first = decode_mask(program, in);
  if (uint32_t(step.rank) >= program.size || uint32_t(step.flag) >= program.flags)
    throw std::invalid_argument("program waits for a flag that does not exist");
  return step;
}

inline Channel decode_channel(Program& program, WordReader& in) {
  Channel channel{};
  channel.start = in.count();
  channel.stop = in.count();
  channel.num_steps = in.count();
  channel.first_step = uint32_t(program.steps.size());
  for (uint32_t i = 0; i < channel.num_steps; ++i) program.steps.push_back(decode_step(program, in));
  return channel;
}

inline Program decode_program(const int32_t* words, size_t size) {
  WordReader in(words, size);
  Program program{};
  program.version = in.count();
  if (program.version < 1 || program.version > 4)
    throw std::invalid_argument("program is of another version of blinkrun");
  program.collective = Collective(in.next());
  program.root = in.next();
  program.addressing = Addressing(in.next());
  if (uint32_t(program.addressing) > 2) throw std::invalid_argument("program has an unknown addressing");
  program.shares = in.count();
  program.size = in.count();
  program.slots = in.count();
  program.slot_depth = in.count();
  program.eager = in.next() != 0;
  program.pipelined = in.next() != 0;
  program.flags = in.count();
  const uint32_t num_prologue = in.count(), num_channels = in.count();
  program.all = program.version >= 3 ? in.count() : program.size;
  program.rank = for_devices(program) ? in.count() : 0;
  if (for_devices(program) && program.rank >= program.size)
    throw std::invalid_argument("program is of a rank that does not exist");
  for (uint32_t i = 0; i < num_prologue; ++i) program.prologue.push_back(decode_channel(program, in));
  for (uint32_t i = 0; i < num_channels; ++i) program.channels.push_back(decode_channel(program, in));
  if (!in.done()) throw std::invalid_argument("program has words after its end");
  return program;
}

}  // namespace blinkrun
