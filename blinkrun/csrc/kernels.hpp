// Reduce n sources into m destinations: the only place where bytes are read and written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.hpp"

namespace blinkrun {

struct ReduceArgs {
  void* const* dsts;        // num_dsts pointers; each equals a source exactly or overlaps none
  const void* const* srcs;  // num_srcs pointers, combined left to right
  const uint8_t* scaled;    // num_srcs flags: multiply this source by prescale; null for none
  size_t num_dsts;
  size_t num_srcs;
  size_t count;             // elements
  DType dtype;
  Op op;
  double prescale;
  double postscale;
  int64_t divisor;          // of the final result (AVERAGE); 1 for none
};

using ReduceFn = void (*)(const ReduceArgs&);

// The best version for this processor; BLINKRUN_ISA=base|avx2|avx512 overrides.
ReduceFn select_reduce(const char* isa);
const char* isa_name();

namespace base { void reduce(const ReduceArgs&); }
#if defined(__x86_64__)
namespace avx2 { void reduce(const ReduceArgs&); }
namespace avx512 { void reduce(const ReduceArgs&); }
#endif

}  // namespace blinkrun
