// One launch is one collective call of a rank: each thread block takes turns of device_block.hpp. The
// first thread of a block waits, posts and signals; all of them move bytes (device_reduce.hpp).
//
// Compiled by NVRTC, which has no headers but those given to it, when a type is first used, and by nvcc.
// BLINKRUN_NAME and BLINKRUN_TYPE name one entry point; without them all are made. No fused multiply-add: sums are those of
// the CPU's kernels, bit by bit.
#include "device_block.hpp"
#include "device_reduce.hpp"

namespace blinkrun {
namespace {

constexpr uint32_t kThreads = 512;

// Flags, posts, counts and the abort word are written by other devices and the host: system scope.
// Only what the blocks of one launch share has the device's.
struct CudaMachine {
  __device__ static uint32_t index() { return blockIdx.x; }
  __device__ static uint32_t blocks() { return gridDim.x; }

  __device__ static uint64_t load(const uint64_t* from) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  __device__ static uint32_t peek(const uint32_t* from) {
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
  }
  // It is cumulative: what the block's other threads did before a barrier comes before it too.
  __device__ static void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
  __device__ static void store(uint64_t* to, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(to), "l"(value) : "memory");
  }
  __device__ static void store(uint32_t* to, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(to), "r"(value) : "memory");
  }

  __device__ static uint32_t add(uint32_t* to) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(to) : "memory");
    return before;
  }
  __device__ static bool claim(uint32_t* to, uint32_t value) {
    uint32_t before;
    asm volatile("atom.cas.acq_rel.gpu.global.b32 %0, [%1], 0, %2;"
                 : "=r"(before) : "l"(to), "r"(value) : "memory");
    return before == 0;
  }

  __device__ static uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  __device__ static void relax() { __nanosleep(32); }
};

// Until there is something for all threads, or nothing more.
__device__ DeviceTurn next_turn(DeviceBlock<CudaMachine>& block) {
  for (;;) {
    const DeviceTurn turn = block.turn();
    if (turn == DeviceTurn::kMove || turn == DeviceTurn::kThrough) return turn;
    if (turn == DeviceTurn::kIdle) CudaMachine::relax();
  }
}

template <DType kType> __device__ void run(const DeviceCall& call) {
  __shared__ DeviceBlock<CudaMachine> block;
  __shared__ DeviceTurn turn;
  __shared__ char* pointers[kDeviceOperands];
  __shared__ uint8_t scaled[kDeviceOperands];
  const uint32_t thread = threadIdx.x;
  if (thread == 0) block.begin(call, CudaMachine{});
  for (;;) {
    if (thread == 0) turn = next_turn(block);
    __syncthreads();
    if (turn == DeviceTurn::kThrough) return;
    const DeviceMove& move = block.move();
    if (thread < move.num_dsts + move.num_srcs) {
      pointers[thread] = block.pointer(thread);
      if (thread >= move.num_dsts) scaled[thread - move.num_dsts] = block.scaled(thread);
    }
    __syncthreads();
    Reduction what;
    what.pointers = pointers;
    what.scaled = move.prescale == 1.0 ? nullptr : scaled;
    what.num_dsts = move.num_dsts;
    what.num_srcs = move.num_srcs;
    what.dtype = kType;
    what.op = Op(call.op);
    what.count = move.elements;
    what.prescale = move.prescale;
    what.postscale = move.postscale;
    what.divisor = uint32_t(move.divisor);
    reduce_share<typename ElementOf<kType>::E>(what, thread, kThreads);
    __syncthreads();
  }
}

}  // namespace
}  // namespace blinkrun

#define BLINKRUN_ENTRY(name, type)                                                  \
  extern "C" __global__ void __launch_bounds__(blinkrun::kThreads, 1)               \
      blinkrun_run_##name(const __grid_constant__ blinkrun::DeviceCall call) {      \
    blinkrun::run<blinkrun::DType::type>(call);                                     \
  }
#define BLINKRUN_ENTRY_OF(name, type) BLINKRUN_ENTRY(name, type)

#if defined(BLINKRUN_NAME)
BLINKRUN_ENTRY_OF(BLINKRUN_NAME, BLINKRUN_TYPE)
#else
BLINKRUN_ENTRY(uint8, kUint8)
BLINKRUN_ENTRY(int8, kInt8)
BLINKRUN_ENTRY(int32, kInt32)
BLINKRUN_ENTRY(int64, kInt64)
BLINKRUN_ENTRY(float16, kFloat16)
BLINKRUN_ENTRY(bfloat16, kBFloat16)
BLINKRUN_ENTRY(float32, kFloat32)
BLINKRUN_ENTRY(float64, kFloat64)
BLINKRUN_ENTRY(bool, kBool)
#endif
