// The reduction kernels for base.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels.hpp"

// no target pragma: what every processor of this architecture has
#define BLINKRUN_ISA base
#define BLINKRUN_SIMD 128  // bits of a vector; compilers do not all define their macros under a pragma
#include "kernels_impl.hpp"
