// The reduction kernels for base.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels.hpp"

// no target pragma: what every processor of this architecture has
#define BLINKRUN_ISA base
#include "kernels_impl.hpp"
