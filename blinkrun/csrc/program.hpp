// A rank's program, decoded from the words that blinkrun/schedule/encode.py writes, and the
// arithmetic from shares to elements of blinkrun/schedule/chunking.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "types.hpp"

namespace blinkrun {

enum class Buffer : int32_t { kInput, kOutput, kScratch };
enum class Addressing : int32_t { kDirect, kStaged, kOutputOnly };
enum class StepKind : int32_t { kWait, kSignal, kReduce, kSend, kRecv, kSent, kArrived };

struct Operand {
  int32_t rank;
  Buffer buffer;
  int32_t index;
  uint32_t link;  // number + 1 of the emulated machine's link that carries it; 0: none
};

struct Step {
  StepKind kind;
  int32_t rank = 0;   // wait: whose flag; messages: the other rank, among all
  int32_t flag = 0;   // wait, signal; messages: number of the stream in the program
  int32_t lag = 0;    // wait, sent, arrived
  bool final = false; // reduce
  bool linked = false; // reduce: some operand is carried by a link
  uint32_t first = 0; // reduce: operands [first, first + num_dsts + num_srcs) of the program;
                      // send, receive: the operand
  uint32_t num_dsts = 0;
  uint32_t num_srcs = 0;
};

// Messages of this rank with one on another host, in order.
struct Stream {
  uint32_t rank;
  uint32_t number;
  bool sends;
};

struct Channel {
  uint32_t start, stop;  // shares
  uint32_t first_step, num_steps;
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
  std::vector<Stream> streams;
  uint32_t max_operands = 0;  // of one reduce
  uint32_t version = 1;
  uint64_t most_bytes = UINT64_MAX;  // largest call that it is for
  uint64_t chunk_bytes = 0;  // of a pipelined program; 0: by the call's size
};

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

// A message's memory is this rank's own; which of the host's it is, the group knows.
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
  program.operands.push_back(decode_operand(program, in, 0));
}

inline void decode_reduce(Program& program, WordReader& in, Step& step) {
  step.final = in.next() != 0;
  step.num_dsts = in.count();
  step.num_srcs = in.count();
  step.first = uint32_t(program.operands.size());
  for (uint32_t i = 0; i < step.num_dsts + step.num_srcs; ++i) {
    Operand operand = decode_operand(program, in, in.next());
    operand.link = program.version == 2 ? in.count() : 0;
    step.linked |= operand.link != 0;
    program.operands.push_back(operand);
  }
  program.max_operands = std::max(program.max_operands, step.num_dsts + step.num_srcs);
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
  if (program.version < 1 || program.version > 3)
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
  program.all = program.version == 3 ? in.count() : program.size;
  for (uint32_t i = 0; i < num_prologue; ++i) program.prologue.push_back(decode_channel(program, in));
  for (uint32_t i = 0; i < num_channels; ++i) program.channels.push_back(decode_channel(program, in));
  if (!in.done()) throw std::invalid_argument("program has words after its end");
  return program;
}

// Element where share `share` of a block begins: whole cache lines, except the end.
inline uint64_t boundary(uint64_t share, uint64_t shares, uint64_t count, uint64_t item_bytes) {
  if (share == shares) return count;
  const uint64_t align = kCacheLine / item_bytes;
  const uint64_t element = uint64_t((unsigned __int128)count * share / shares);
  return element / align * align;
}

// By how much the first chunk of a channel is shorter than the others, in elements: channels that
// share a link must not all wait at the same time (chunking.py).
inline uint64_t first_skip(const Channel& channel, uint64_t elements, uint64_t chunk_elements,
                           uint64_t item_bytes) {
  constexpr uint64_t golden = 0x9E3779B97F4A7C15, many = 4;
  if (elements / many < chunk_elements) return 0;
  const uint64_t scattered = channel.start * golden >> 32, align = kCacheLine / item_bytes;
  return uint64_t((unsigned __int128)scattered * chunk_elements >> 32) / align * align;
}

}  // namespace blinkrun
