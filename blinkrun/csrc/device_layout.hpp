// What a rank of a group of devices keeps where: the memory that the kernel (kernels.cu), the host
// build of it (device_block.hpp) and the host side (blinkrun/executors/device_layout.py) share.
// Plain data only; every size is the same for all compilers.
//
// A rank owns two areas of one layout: its arena in the memory of its device, and, where some pair of
// ranks cannot address each other's devices or there are several hosts, an area in pinned host memory
// that all ranks of the host have mapped. In both: [DeviceControl][eager, twice][scratch]; in the arena
// the heap follows, in the host's the rings of messages to and from other hosts.
//
// Nobody polls memory of another rank: who posts or signals writes to each rank that waits for it,
// into the control block of that rank which both can address (`to` and `mine`).
#pragma once

#include "portable.hpp"
#include "steps.hpp"

namespace blinkrun {

constexpr uint32_t kDeviceRanks = 32;        // of one host, at most: signals carry a mask of them
constexpr uint32_t kDeviceFlags = 4096;      // of a rank: flags times pieces
constexpr uint32_t kDeviceStreams = 1024;    // of a rank: streams times pieces
constexpr uint32_t kDeviceLanes = 32;        // that one block runs in turns
constexpr uint32_t kDeviceOperands = 72;     // of one reduce
constexpr uint32_t kDeviceVerdicts = 16;     // calls of which other hosts tell before kernels ask
constexpr uint32_t kRingDepth = 4;           // chunks of a message stream that host memory holds

// What a rank calls, as CallDesc is for ranks that share memory. Everything but the offsets must agree.
struct DeviceDesc {
  uint64_t count;       // elements of a block
  uint64_t input;       // offset in the rank's arena; kDevicePrivate: anywhere else; 0: gives none
  uint64_t output;
  uint64_t scales;      // hash of pre- and postscale, made by the host
  int32_t root;
  uint8_t collective, dtype, op, unused;
};
constexpr uint64_t kDevicePrivate = ~uint64_t(0);

struct alignas(64) DevicePost {
  uint64_t seq;  // number of the call that `desc` describes; written last
  DeviceDesc desc;
};
static_assert(sizeof(DevicePost) == 64, "one transfer tells a peer everything");

// What flags and counters hold: calls are so many that they never wrap, chunks are fewer than 2^24.
constexpr uint32_t kDeviceChunkBits = 24;
BLINKRUN_FN uint64_t device_count(uint64_t call, uint64_t chunks) {
  return (call << kDeviceChunkBits) + chunks;
}

// Behind it: uint64_t flags[kDeviceRanks][kDeviceFlags], by the rank that signals, and
// uint64_t taken[kDeviceStreams], of messages: all hold a device_count.
struct alignas(128) DeviceControl {
  uint64_t seq;           // the rank's own: calls begun and ended. The kernel's last block counts it up
  uint32_t blocks_done;   // the rank's own: of the call that runs
  uint32_t failed;        // the rank's own: DeviceError of the block that ended first; others follow
  alignas(64) DevicePost posts[2][kDeviceRanks];  // by parity of the call and the rank that posts
};

constexpr size_t kDeviceControlBytes =
    (sizeof(DeviceControl) + size_t(kDeviceRanks) * kDeviceFlags * 8 + kDeviceStreams * 8 + 4095) /
    4096 * 4096;
constexpr size_t kDeviceEagerBytes = 1 << 20;  // of one of the two

BLINKRUN_FN uint64_t* device_flags(DeviceControl* control, uint32_t from) {
  return reinterpret_cast<uint64_t*>(control + 1) + size_t(from) * kDeviceFlags;
}

BLINKRUN_FN uint64_t* device_taken(DeviceControl* control) { return device_flags(control, kDeviceRanks); }

// kNoRoom: more lanes than the blocks take, or more slots than the memory holds.
enum class DeviceError : uint32_t { kNone, kAborted, kTimeout, kMismatch, kNoProgram, kNoRoom };

// How a call ended badly, for the host. `code` is written last: the first error counts until the host
// has set it to 0 again.
struct DeviceReport {
  uint32_t code;          // DeviceError
  uint32_t unused;
  uint64_t seq;           // of the call
  int32_t channel;        // -1: at entry
  uint32_t piece;
  uint64_t chunk;
  uint32_t step;          // index in the channel
  uint32_t kind;          // StepKind of it
  int32_t peer;           // whom it waited for, on this host; of messages: among all ranks
  uint32_t flag;          // or stream; at entry: 1 if it was about other hosts
  uint32_t missing;       // at entry: mask of the ranks that have not come
  uint32_t size;          // of this host: as many of `descs` are set
  DeviceDesc desc;        // what this rank called
  DeviceDesc descs[kDeviceRanks];  // kMismatch: what each rank called
};

// Of one stream of messages and one piece; each holds a device_count.
struct DeviceCounts {
  uint64_t started;  // by the kernel: Send has filled the ring, or Recv let the chunk come
  uint64_t through;  // by the proxy: sent, or arrived in the ring
};

// In pinned host memory, for the host and this rank's kernel alone.
struct alignas(128) DeviceHost {
  uint32_t abort;         // by the host: not 0 ends all waits
  uint32_t unused;
  uint64_t through;       // by the kernel: the number of the last call that is through, well or badly
  alignas(128) DeviceReport report;
  // By the proxy, for calls on several hosts: call << 1 | whether it differs between hosts; by the
  // call's number modulo kDeviceVerdicts.
  alignas(128) uint64_t verdicts[kDeviceVerdicts];
  alignas(128) DeviceCounts counts[kDeviceStreams];
};

// One rank's group, in the memory of its device. All addresses are those of its own process and
// device.
struct DeviceGroup {
  uint32_t rank, size;            // on this host
  uint32_t index, all;            // among all hosts
  uint64_t arena_bytes;           // of this rank
  uint64_t scratch_bytes;         // in either area
  uint64_t chunk_bytes;           // largest, of programs that ask for none
  uint64_t rings_at;              // offset of the rings in the host area
  uint64_t rings_bytes;
  DeviceHost* host;
  char* arenas[kDeviceRanks];     // 0: out of reach
  char* areas[kDeviceRanks];      // in host memory; 0: there is none
  DeviceControl* mine[kDeviceRanks];  // of this rank, where rank r writes; [rank]: in the arena
  DeviceControl* to[kDeviceRanks];    // of rank r, where this one writes
};

// A rank's program on the device: this head, then channels (those of the prologue first), steps,
// operands and streams, at offsets from its start. `core.flatten` makes it of encoded words.
struct FlatProgram {
  uint32_t collective, addressing;
  int32_t root;
  uint32_t shares, size, slots, slot_depth, eager, pipelined, flags;
  uint32_t all, pieces;           // pieces: blocks per channel, each with its own flags and slots
  uint32_t num_prologue, num_channels, num_steps, num_operands, num_streams;
  uint32_t rank;                  // whose it is, on its host
  uint64_t chunk_bytes;           // 0: by the call's size; over several hosts never
  uint32_t channels_at, steps_at, operands_at, streams_at;  // in bytes
};

struct FlatStream {
  uint32_t rank;                  // among all
  uint32_t number;
  uint32_t sends;
  uint32_t operand;               // index: where Recv puts what came
};

enum class DeviceVariant : uint32_t { kDirect, kStaged, kOutputOnly, kEager, kCount };

// The argument of a launch, by value.
struct DeviceCall {
  DeviceGroup* group;
  const FlatProgram* programs[4];  // by DeviceVariant; null: there is none
  const void* input;
  void* output;
  uint64_t count;                 // of a block
  uint64_t eager_bytes;           // largest block that goes the eager way
  uint64_t scales;                // hash
  double prescale, postscale;
  uint64_t timeout_ns;
  int32_t root;
  uint32_t collective, dtype, op;
};

}  // namespace blinkrun
