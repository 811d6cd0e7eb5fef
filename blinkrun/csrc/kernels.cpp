// Choice of the instruction set at run time.
#include "kernels.hpp"

#include <cstring>

namespace blinkrun {
namespace {

struct Isa {
  const char* name;
  ReduceFn reduce;
};

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return {"avx512", avx512::reduce};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
    return {"avx2", avx2::reduce};
#endif
  return {"base", base::reduce};
}

Isa chosen{nullptr, nullptr};

}  // namespace

ReduceFn select_reduce(const char* isa) {
  const Isa best = best_isa();
  chosen = best;
#if defined(__x86_64__)
  const bool has_avx2 = std::strcmp(best.name, "base") != 0;
  if (isa && std::strcmp(isa, "avx2") == 0 && has_avx2) chosen = {"avx2", avx2::reduce};
#endif
  if (isa && std::strcmp(isa, "base") == 0) chosen = {"base", base::reduce};
  return chosen.reduce;
}

const char* isa_name() { return chosen.name ? chosen.name : best_isa().name; }

}  // namespace blinkrun
