// What a rank calls, and which program it is: the same on all ranks, since all see what each has posted.
#pragma once

#include "device_program.hpp"

namespace blinkrun {

BLINKRUN_FN bool same_device_call(const DeviceDesc& a, const DeviceDesc& b) {
  return a.count == b.count && a.scales == b.scales && a.root == b.root &&
         a.collective == b.collective && a.dtype == b.dtype && a.op == b.op;
}

// Offset in the rank's arena.
BLINKRUN_FN uint64_t offset_of(const DeviceGroup& group, const void* pointer, bool given) {
  if (!given) return 0;
  const uint64_t at = uint64_t(static_cast<const char*>(pointer) - group.arenas[group.rank]);
  return at < group.arena_bytes ? at : kDevicePrivate;
}

BLINKRUN_FN DeviceDesc describe(const DeviceCall& call) {
  const DeviceGroup& group = *call.group;
  const Collective collective = Collective(call.collective);
  DeviceDesc desc;
  desc.count = call.count;
  desc.input = offset_of(group, call.input, takes_input(collective, call.root, group.index));
  desc.output = offset_of(group, call.output, takes_output(collective, call.root, group.index));
  desc.scales = call.scales;
  desc.root = rooted(collective) ? call.root : 0;
  desc.collective = uint8_t(call.collective);
  desc.dtype = uint8_t(call.dtype);
  desc.op = reduces(collective) ? uint8_t(call.op) : uint8_t(Op::kSum);
  desc.unused = 0;
  return desc;
}

BLINKRUN_FN const DevicePost& post_of(const DeviceGroup& group, uint64_t seq, uint32_t rank) {
  return group.mine[rank]->posts[seq & 1][rank];
}

BLINKRUN_FN const FlatProgram* program_of(const DeviceCall& call, DeviceVariant variant) {
  return call.programs[uint32_t(variant)];
}

// The eager program, if the call is small enough for it: known before anyone has posted.
BLINKRUN_FN const FlatProgram* eager_program(const DeviceCall& call) {
  const FlatProgram* eager = program_of(call, DeviceVariant::kEager);
  const uint64_t bytes = call.count * itemsize(DType(call.dtype));
  return eager && bytes <= smaller(call.eager_bytes, eager_slot_bytes(*eager)) ? eager : nullptr;
}

// By where everyone's buffers lie.
BLINKRUN_FN const FlatProgram* choose_program(const DeviceCall& call, uint64_t seq) {
  bool inputs = true, outputs = true;
  BLINKRUN_ROLLED
  for (uint32_t r = 0; r < call.group->size; ++r) {
    inputs &= post_of(*call.group, seq, r).desc.input != kDevicePrivate;
    outputs &= post_of(*call.group, seq, r).desc.output != kDevicePrivate;
  }
  const FlatProgram* direct = program_of(call, DeviceVariant::kDirect);
  const FlatProgram* output_only = program_of(call, DeviceVariant::kOutputOnly);
  if (inputs && outputs && direct) return direct;
  return outputs && output_only ? output_only : program_of(call, DeviceVariant::kStaged);
}

// All of a report but `code`, `missing`, and what names a wait.
BLINKRUN_FN void report_call(DeviceReport& report, const DeviceCall& call, uint64_t seq,
                             DeviceError error) {
  report.seq = seq;
  report.channel = report.peer = -1;
  report.piece = report.step = report.kind = report.flag = 0;
  report.chunk = 0;
  report.size = call.group->size;
  report.desc = describe(call);
  BLINKRUN_ROLLED
  for (uint32_t r = 0; error == DeviceError::kMismatch && r < call.group->size; ++r)
    report.descs[r] = post_of(*call.group, seq, r).desc;
}

}  // namespace blinkrun
