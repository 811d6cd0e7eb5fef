// A program as the kernel reads it: one piece of memory, without pointers.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "program.hpp"

namespace blinkrun {

// The bytes of `program`, which is for devices (version 4): a FlatProgram and what follows it. Each
// channel has `pieces` lanes. Throws std::invalid_argument where it is beyond device_layout.hpp.
std::string flatten(const Program& program, uint32_t pieces, uint64_t chunk_bytes);

// Sizes, offsets and limits of device_layout.hpp, by names as "DeviceCall", "DeviceCall.count" and
// "kDeviceRanks".
std::map<std::string, uint64_t> device_layout();

}  // namespace blinkrun
