// A flat program, and how calls of a size are cut, by what all ranks know: the kernel's block, its host
// build, and whoever moves its messages must come to the same.
#pragma once

#include "device_layout.hpp"
#include "types.hpp"

namespace blinkrun {

BLINKRUN_FN const Channel* flat_channels(const FlatProgram* p) {
  return reinterpret_cast<const Channel*>(reinterpret_cast<const char*>(p) + p->channels_at);
}
BLINKRUN_FN const Step* flat_steps(const FlatProgram* p) {
  return reinterpret_cast<const Step*>(reinterpret_cast<const char*>(p) + p->steps_at);
}
BLINKRUN_FN const Operand* flat_operands(const FlatProgram* p) {
  return reinterpret_cast<const Operand*>(reinterpret_cast<const char*>(p) + p->operands_at);
}
BLINKRUN_FN const FlatStream* flat_streams(const FlatProgram* p) {
  return reinterpret_cast<const FlatStream*>(reinterpret_cast<const char*>(p) + p->streams_at);
}

BLINKRUN_FN uint64_t whole_lines(uint64_t bytes) { return bytes / kCacheLine * kCacheLine; }

// Chunks that the slots of a rank hold.
BLINKRUN_FN uint64_t ring_chunks(const FlatProgram& p) {
  return uint64_t(p.slots) * p.slot_depth * p.pieces;
}

// Largest block that an eager program takes.
BLINKRUN_FN uint64_t eager_slot_bytes(const FlatProgram& p) {
  return whole_lines(kDeviceEagerBytes / larger(ring_chunks(p), uint64_t(1)));
}

// Chunk of a call, in bytes; 0: each part is one. Over several hosts it is the same for every call.
BLINKRUN_FN uint64_t device_chunk_bytes(const DeviceGroup& group, const FlatProgram& p,
                                        uint64_t block_bytes) {
  if (p.all > p.size) return whole_lines(p.chunk_bytes);
  if (p.eager || !p.pipelined) return 0;
  constexpr uint64_t least = 16 << 10;
  const uint64_t part = block_bytes / larger(p.size, 1u) / p.pieces;
  uint64_t chunk = p.chunk_bytes;
  if (!chunk) chunk = smaller(group.chunk_bytes, larger(part / 4, least));
  if (const uint64_t ring = ring_chunks(p)) chunk = smaller(chunk, group.scratch_bytes / ring);
  return larger(whole_lines(chunk), uint64_t(kCacheLine));
}

// Whether scratch and rings hold the slots, and counters the chunks, of a call's blocks.
BLINKRUN_FN bool has_room(const DeviceGroup& group, const FlatProgram& p, uint64_t block_bytes,
                          uint64_t slot_bytes) {
  const uint64_t rings = uint64_t(p.num_streams) * p.pieces * kRingDepth;
  if (p.eager || !slot_bytes) return true;  // one chunk
  return rings * slot_bytes <= group.rings_bytes && ring_chunks(p) * slot_bytes <= group.scratch_bytes &&
         !(block_bytes / slot_bytes >> (kDeviceChunkBits - 1));
}

BLINKRUN_FN bool has_lanes(const FlatProgram& p, uint32_t blocks) {
  return (p.num_channels * p.pieces + blocks - 1) / blocks <= kDeviceLanes;
}

// A piece of a channel in a call on blocks of `count`, in chunks of `chunk_bytes`.
BLINKRUN_FN Range device_range(const FlatProgram& p, const Channel& channel, uint32_t piece,
                               uint64_t count, uint64_t item_bytes, uint64_t chunk_bytes) {
  Range range;
  range.lo = boundary(channel.start, p.shares, count, item_bytes);
  range.hi = boundary(channel.stop, p.shares, count, item_bytes);
  range = piece_of(range, piece, p.pieces, item_bytes);
  const uint64_t elements = range.hi - range.lo, most = chunk_bytes / item_bytes;
  range.chunk_elements = chunk_bytes ? most : larger(elements, uint64_t(1));
  range.skip = chunk_bytes ? first_skip(channel, elements, most, item_bytes) : 0;
  return range;
}

// How far a piece of a channel is.
struct DeviceLane {
  ChannelState state;
  uint32_t piece;
  bool receives, sends;  // messages
};

// False: the piece has no elements.
BLINKRUN_FN bool open_lane(DeviceLane& lane, const FlatProgram& p, uint32_t number, uint32_t piece,
                           uint64_t count, uint64_t item_bytes, uint64_t chunk_bytes) {
  const Channel& channel = flat_channels(&p)[number];
  const Range range = device_range(p, channel, piece, count, item_bytes, chunk_bytes);
  lane.state.channel = &channel;
  lane.state.range = range;
  lane.state.chunk = 0;
  lane.state.num_chunks = range.num_chunks();
  lane.state.step = 0;
  lane.piece = piece;
  lane.receives = lane.sends = false;
  const Step* steps = flat_steps(&p) + channel.first_step;
  BLINKRUN_ROLLED
  for (uint32_t s = 0; p.num_streams && s < channel.num_steps; ++s) {
    lane.receives |= steps[s].kind == StepKind::kRecv;
    lane.sends |= steps[s].kind == StepKind::kSend;
  }
  return lane.state.num_chunks != 0;
}

}  // namespace blinkrun
