// The control flow of a program, for the CPU's cores and for CUDA's thread blocks: what a step is, how
// a part is cut in chunks, and how a channel advances. What the steps mean is the policy's:
//   bool pass(const Step& wait, ChannelState&)     may the channel go on?
//   Went reduce(const Step&, ChannelState&)        move one chunk, or a part of it, or nothing yet
//   void signal(const Step&, ChannelState&)        publish it
//   bool message(const Step&, ChannelState&)       where it has kMessages: start one, or whether it is through
#pragma once

#include "portable.hpp"

namespace blinkrun {

enum class Buffer : int32_t { kInput, kOutput, kScratch };
enum class Addressing : int32_t { kDirect, kStaged, kOutputOnly };
enum class StepKind : int32_t { kWait, kSignal, kReduce, kSend, kRecv, kSent, kArrived };

struct Operand {
  int32_t rank;
  Buffer buffer;
  int32_t index;
  uint32_t link;  // emulated machine: number + 1 of the link that carries it, 0: none;
                  // device: 1: in pinned host memory, 0: in the device's
};

struct Step {
  StepKind kind;
  int32_t rank = 0;   // wait: whose flag; messages: the other rank, among all
  int32_t flag = 0;   // wait, signal; messages: number of the stream in the program
  int32_t lag = 0;    // wait, sent, arrived
  bool final = false; // reduce
  bool linked = false; // reduce: some operand is carried by a link
  uint32_t first = 0; // reduce: operands [first, first + num_dsts + num_srcs) of the program;
                      // send, receive: the operand; signal on a device: mask of the ranks that wait
  uint32_t num_dsts = 0;
  uint32_t num_srcs = 0;
};

struct Channel {
  uint32_t start, stop;  // shares
  uint32_t first_step, num_steps;
};

// The elements that a channel covers, and how they are cut: in chunks of `chunk_elements`, but the
// first lacks `skip`, and the last is what remains.
struct Range {
  uint64_t lo, hi, chunk_elements, skip;
  BLINKRUN_FN uint64_t num_chunks() const {
    return hi == lo ? 0 : (hi - lo + skip + chunk_elements - 1) / chunk_elements;
  }
  BLINKRUN_FN uint64_t start(uint64_t chunk) const { return chunk ? lo + chunk * chunk_elements - skip : lo; }
  BLINKRUN_FN uint64_t stop(uint64_t chunk) const {
    return smaller(hi, lo + (chunk + 1) * chunk_elements - skip);
  }
};

struct ChannelState {
  const Channel* channel;
  Range range;
  uint64_t chunk;
  uint64_t num_chunks;
  uint32_t step;
  BLINKRUN_FN bool done() const { return chunk == num_chunks; }
};

enum class Went { kHeld, kPart, kWhole };

// Advance until a step holds the channel or one chunk is through; true if anything was done. `steps`
// are those of the program.
template <class Policy>
BLINKRUN_FN bool advance(const Step* steps, ChannelState& state, Policy& policy) {
  bool moved = false;
  steps += state.channel->first_step;
  while (state.step < state.channel->num_steps) {
    const Step& step = steps[state.step];
    if (step.kind == StepKind::kWait) {
      if (!policy.pass(step, state)) return moved;
    } else if (step.kind == StepKind::kReduce) {
      const Went went = policy.reduce(step, state);
      if (went != Went::kWhole) return moved || went == Went::kPart;
    } else if (step.kind == StepKind::kSignal) {
      policy.signal(step, state);
    } else if constexpr (Policy::kMessages) {
      if (!policy.message(step, state)) return moved;
    }
    ++state.step;
    moved = true;
  }
  state.step = 0;
  ++state.chunk;
  return true;
}

// Element where share `share` of a block begins: whole cache lines, except the end. `shares` is less
// than 2^31, so nothing here is beyond 64 bits.
BLINKRUN_FN uint64_t boundary(uint64_t share, uint64_t shares, uint64_t count, uint64_t item_bytes) {
  if (share == shares) return count;
  const uint64_t align = 64 / item_bytes;
  const uint64_t element = count / shares * share + count % shares * share / shares;
  return element / align * align;
}

// By how much the first chunk of a channel is shorter than the others, in elements: channels that
// share a link must not all wait at the same time (chunking.py).
BLINKRUN_FN uint64_t first_skip(const Channel& channel, uint64_t elements, uint64_t chunk_elements,
                                uint64_t item_bytes) {
  const uint64_t golden = 0x9E3779B97F4A7C15, many = 4;
  if (elements / many < chunk_elements) return 0;
  const uint64_t scattered = channel.start * golden >> 32, align = 64 / item_bytes;
  const uint64_t high = chunk_elements >> 32, low = chunk_elements & 0xffffffff;
  return (scattered * high + (scattered * low >> 32)) / align * align;
}

// Piece `piece` of `pieces` of a range: the same cut for every channel of the same part.
BLINKRUN_FN Range piece_of(Range range, uint32_t piece, uint32_t pieces, uint64_t item_bytes) {
  const uint64_t elements = range.hi - range.lo, lo = range.lo;
  range.lo = lo + boundary(piece, pieces, elements, item_bytes);
  range.hi = lo + boundary(piece + 1, pieces, elements, item_bytes);
  return range;
}

}  // namespace blinkrun
