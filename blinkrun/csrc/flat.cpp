#include "flat.hpp"

#include <cstddef>
#include <cstring>

#include "device_layout.hpp"

namespace blinkrun {

namespace {

void need(uint64_t wanted, uint64_t most, const char* what) {
  if (wanted > most)
    throw std::invalid_argument("program needs " + std::to_string(wanted) + " " + what + ", a device has " +
                                std::to_string(most));
}

void check(const Program& program, uint32_t pieces, uint64_t chunk_bytes) {
  if (!for_devices(program)) throw std::invalid_argument("program is not encoded for devices");
  if (!pieces) throw std::invalid_argument("program needs at least one piece of a channel");
  if (program.eager && pieces != 1)
    throw std::invalid_argument("a one-shot program has one piece of a channel, not " +
                                std::to_string(pieces));
  if (program.eager && !program.streams.empty())
    throw std::invalid_argument("a one-shot program of devices has no messages");
  const uint64_t ring = uint64_t(program.slots) * program.slot_depth * pieces;
  if (ring && !program.eager && !program.pipelined)
    throw std::invalid_argument("a program with slots must be pipelined: slots hold chunks");
  if (program.eager) need(ring * kCacheLine, kDeviceEagerBytes, "bytes of eager slots");
  if (program.all > program.size && (!program.pipelined || program.eager || chunk_bytes < kCacheLine))
    throw std::invalid_argument("a program of devices over several hosts needs the size of its chunks");
  need(program.size, kDeviceRanks, "ranks on a host");
  need(uint64_t(program.flags) * pieces, kDeviceFlags, "flags");
  need(program.streams.size() * uint64_t(pieces), kDeviceStreams, "streams of messages");
  need(program.max_operands, kDeviceOperands, "operands of a step");
}

// Where a Recv puts what came.
uint32_t operand_of(const Program& program, size_t stream) {
  for (const Step& step : program.steps)
    if (step.kind == StepKind::kRecv && size_t(step.flag) == stream) return step.first;
  return 0;
}

template <class T> uint32_t append(std::string& bytes, const T* items, size_t count) {
  bytes.resize((bytes.size() + 15) / 16 * 16);
  const size_t at = bytes.size();
  bytes.append(reinterpret_cast<const char*>(items), count * sizeof(T));
  return uint32_t(at);
}

}  // namespace

std::string flatten(const Program& program, uint32_t pieces, uint64_t chunk_bytes) {
  check(program, pieces, chunk_bytes);
  FlatProgram head{};
  head.collective = uint32_t(program.collective);
  head.addressing = uint32_t(program.addressing);
  head.root = program.root;
  head.shares = program.shares;
  head.size = program.size;
  head.slots = program.slots;
  head.slot_depth = program.slot_depth;
  head.eager = program.eager;
  head.pipelined = program.pipelined;
  head.flags = program.flags;
  head.all = program.all;
  head.pieces = pieces;
  head.rank = program.rank;
  head.num_prologue = uint32_t(program.prologue.size());
  head.num_channels = uint32_t(program.channels.size());
  head.num_steps = uint32_t(program.steps.size());
  head.num_operands = uint32_t(program.operands.size());
  head.num_streams = uint32_t(program.streams.size());
  head.chunk_bytes = chunk_bytes;
  std::vector<Channel> channels = program.prologue;
  channels.insert(channels.end(), program.channels.begin(), program.channels.end());
  std::vector<FlatStream> streams;
  for (size_t s = 0; s < program.streams.size(); ++s) {
    const Stream& stream = program.streams[s];
    streams.push_back({stream.rank, stream.number, stream.sends, operand_of(program, s)});
  }
  std::string bytes(sizeof head, '\0');
  head.channels_at = append(bytes, channels.data(), channels.size());
  head.steps_at = append(bytes, program.steps.data(), program.steps.size());
  head.operands_at = append(bytes, program.operands.data(), program.operands.size());
  head.streams_at = append(bytes, streams.data(), streams.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes;
}

#define SIZE(type) {#type, sizeof(type)}
#define AT(type, field) {#type "." #field, offsetof(type, field)}
#define LIMIT(name) {#name, name}

std::map<std::string, uint64_t> device_layout() {
  return {
      LIMIT(kDeviceRanks), LIMIT(kDeviceFlags), LIMIT(kDeviceStreams), LIMIT(kDeviceLanes),
      LIMIT(kDeviceOperands), LIMIT(kRingDepth), LIMIT(kDeviceVerdicts), LIMIT(kDevicePrivate), LIMIT(kDeviceChunkBits),
      LIMIT(kDeviceControlBytes), LIMIT(kDeviceEagerBytes),
      SIZE(Step), SIZE(Operand), SIZE(Channel), SIZE(FlatStream),
      SIZE(DeviceDesc), AT(DeviceDesc, count), AT(DeviceDesc, input), AT(DeviceDesc, output),
      AT(DeviceDesc, scales), AT(DeviceDesc, root), AT(DeviceDesc, collective), AT(DeviceDesc, dtype),
      AT(DeviceDesc, op),
      SIZE(DevicePost), AT(DevicePost, seq), AT(DevicePost, desc),
      SIZE(DeviceControl), AT(DeviceControl, seq), AT(DeviceControl, blocks_done),
      AT(DeviceControl, failed), AT(DeviceControl, posts),
      SIZE(DeviceReport), AT(DeviceReport, code), AT(DeviceReport, seq), AT(DeviceReport, channel),
      AT(DeviceReport, piece), AT(DeviceReport, chunk), AT(DeviceReport, step), AT(DeviceReport, kind),
      AT(DeviceReport, peer), AT(DeviceReport, flag), AT(DeviceReport, missing), AT(DeviceReport, size),
      AT(DeviceReport, desc), AT(DeviceReport, descs),
      SIZE(DeviceCounts), AT(DeviceCounts, started), AT(DeviceCounts, through),
      SIZE(DeviceHost), AT(DeviceHost, abort), AT(DeviceHost, through), AT(DeviceHost, report),
      AT(DeviceHost, verdicts),       AT(DeviceHost, counts),
      SIZE(DeviceGroup), AT(DeviceGroup, rank), AT(DeviceGroup, size), AT(DeviceGroup, index),
      AT(DeviceGroup, all), AT(DeviceGroup, arena_bytes), AT(DeviceGroup, scratch_bytes),
      AT(DeviceGroup, chunk_bytes), AT(DeviceGroup, rings_at), AT(DeviceGroup, rings_bytes),
      AT(DeviceGroup, host), AT(DeviceGroup, arenas), AT(DeviceGroup, areas), AT(DeviceGroup, mine),
      AT(DeviceGroup, to),
      SIZE(FlatProgram), AT(FlatProgram, collective), AT(FlatProgram, addressing), AT(FlatProgram, root),
      AT(FlatProgram, shares), AT(FlatProgram, size), AT(FlatProgram, slots), AT(FlatProgram, slot_depth),
      AT(FlatProgram, eager), AT(FlatProgram, pipelined), AT(FlatProgram, flags), AT(FlatProgram, all),
      AT(FlatProgram, pieces), AT(FlatProgram, num_prologue), AT(FlatProgram, num_channels),
      AT(FlatProgram, num_steps), AT(FlatProgram, num_operands), AT(FlatProgram, num_streams),
      AT(FlatProgram, rank), AT(FlatProgram, chunk_bytes), AT(FlatProgram, channels_at),
      AT(FlatProgram, steps_at), AT(FlatProgram, operands_at), AT(FlatProgram, streams_at),
      SIZE(DeviceCall), AT(DeviceCall, group), AT(DeviceCall, programs), AT(DeviceCall, input),
      AT(DeviceCall, output), AT(DeviceCall, count), AT(DeviceCall, eager_bytes), AT(DeviceCall, scales),
      AT(DeviceCall, prescale), AT(DeviceCall, postscale), AT(DeviceCall, timeout_ns),
      AT(DeviceCall, root), AT(DeviceCall, collective), AT(DeviceCall, dtype), AT(DeviceCall, op),
  };
}

}  // namespace blinkrun
