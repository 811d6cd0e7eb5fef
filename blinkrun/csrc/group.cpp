#include "group.hpp"

#include <unistd.h>

#include <cstring>

#include "interpreter.hpp"

namespace blinkrun {

namespace {

constexpr size_t kCachedSlots = 16 << 20;  // of all ranks together: half of a common last-level cache
constexpr size_t kSmallMove = 16 << 10;  // bytes below which the caller is not told of blocking

const char* const kCollectiveNames[] = {"allreduce", "broadcast", "reduce", "allgather",
                                        "reducescatter", "barrier", "alltoall"};
const char* const kDTypeNames[] = {"uint8", "int8", "int32", "int64", "float16", "bfloat16",
                                   "float32", "float64", "bool"};
const char* const kOpNames[] = {"sum", "average", "min", "max", "product"};

uint64_t hash_scales(double pre, double post) {
  uint64_t a, b;
  std::memcpy(&a, &pre, 8);
  std::memcpy(&b, &post, 8);
  return a ^ (b << 21 | b >> 43);
}

bool reduces(Collective c) {
  return c == Collective::kAllreduce || c == Collective::kReduce || c == Collective::kReducescatter;
}

bool rooted(Collective c) { return c == Collective::kBroadcast || c == Collective::kReduce; }

bool takes_input(Collective c, int32_t root, uint32_t rank) {
  return c != Collective::kBroadcast || uint32_t(root) == rank;
}

bool takes_output(Collective c, int32_t root, uint32_t rank) {
  return c != Collective::kReduce || uint32_t(root) == rank;
}

size_t eager_slot_bytes(const Program& program) {
  const size_t ring = std::max<size_t>(size_t(program.slots) * program.slot_depth, 1);
  return kEagerBytes / ring / kCacheLine * kCacheLine;
}

}  // namespace

// What the steps of a program mean in shared memory.
class CallPolicy {
 public:
  CallPolicy(Group& group, const Program& program, const Call& call)
      : group_(group), program_(program), call_(call), item_(itemsize(call.dtype)),
        base_(uint64_t(group.seq_) << 32), pointers_(program.max_operands),
        scaled_(program.max_operands) {
    const bool pre = reduces(call.collective) && call.prescale != 1.0;
    args_.scaled = nullptr;
    has_prescale_ = pre;
    args_.dtype = call.dtype;
    args_.op = call.op;
    args_.prescale = call.prescale;
    layout();
  }

  bool ready(const Step& wait, uint64_t chunk) const {
    const uint64_t need = chunk + 1;
    if (need <= uint64_t(wait.lag)) return true;
    const Flag& flag = group_.control_.flag(uint32_t(wait.rank), uint32_t(wait.flag));
    return flag.value.load(std::memory_order_acquire) >= base_ + need - uint64_t(wait.lag);
  }

  static void relax() { cpu_relax(); }

  void signal(const Step& step, uint64_t chunk) {
    Flag& flag = group_.control_.flag(group_.config_.rank, uint32_t(step.flag));
    flag.value.exchange(base_ + chunk + 1, std::memory_order_seq_cst);
    group_.waiter_.wake();
  }

  void reduce(const Step& step, const Range& range, uint64_t chunk) {
    const uint64_t lo = range.lo + chunk * range.chunk_elements;
    const uint64_t hi = std::min(range.hi, lo + range.chunk_elements);
    const Operand* operands = program_.operands.data() + step.first;
    const uint32_t total = step.num_dsts + step.num_srcs;
    for (uint32_t i = 0; i < total; ++i) pointers_[i] = address(operands[i], lo, chunk);
    args_.dsts = pointers_.data();
    args_.srcs = pointers_.data() + step.num_dsts;
    args_.num_dsts = step.num_dsts;
    args_.num_srcs = step.num_srcs;
    args_.count = hi - lo;
    const bool finish = step.final && reduces(call_.collective);
    args_.postscale = finish ? call_.postscale : 1.0;
    args_.divisor = finish && call_.op == Op::kAverage ? int64_t(group_.config_.size) : 1;
    if (has_prescale_) {
      for (uint32_t i = 0; i < step.num_srcs; ++i)
        scaled_[i] = operands[step.num_dsts + i].buffer == Buffer::kInput;
      args_.scaled = scaled_.data();
    }
    group_.reduce_(args_);
  }

  Range range(const Channel& channel) const {
    Range r{};
    r.lo = boundary(channel.start, program_.shares, call_.count, item_);
    r.hi = boundary(channel.stop, program_.shares, call_.count, item_);
    r.chunk_elements = chunk_bytes_ ? std::max<uint64_t>(chunk_bytes_ / item_, 1)
                                    : std::max<uint64_t>(r.hi - r.lo, 1);
    return r;
  }

 private:
  // Chunk size and scratch: the same on every rank, since they follow from the call alone.
  void layout() {
    const size_t ring = size_t(program_.slots) * program_.slot_depth;
    if (program_.eager) {
      slot_bytes_ = eager_slot_bytes(program_);
      scratch_at_ = (group_.seq_ & 1) * kEagerBytes;
      return;  // one chunk
    }
    scratch_at_ = 2 * kEagerBytes;
    if (program_.pipelined) {
      const size_t block = size_t(call_.count) * item_ / std::max<uint32_t>(program_.size, 1);
      size_t chunk = std::min(group_.config_.chunk_bytes, std::max<size_t>(block / 4, 16 << 10));
      // All ranks' slots together should stay in the last level of the cache.
      if (ring) chunk = std::min(chunk, kCachedSlots / (ring * program_.size));
      chunk_bytes_ = std::max(chunk / kCacheLine * kCacheLine, kCacheLine);
      slot_bytes_ = chunk_bytes_;
    }
  }

  void* address(const Operand& operand, uint64_t lo, uint64_t chunk) const {
    const uint32_t rank = uint32_t(operand.rank);
    if (operand.buffer == Buffer::kScratch) {
      const uint64_t slot = uint64_t(operand.index) * program_.slot_depth + chunk % program_.slot_depth;
      return group_.arenas_[rank].data() + scratch_at_ + slot * slot_bytes_;
    }
    const uint64_t element = uint64_t(operand.index) * call_.count + lo;
    return base_of(rank, operand.buffer) + element * item_;
  }

  char* base_of(uint32_t rank, Buffer buffer) const {
    if (rank == group_.config_.rank) {
      return buffer == Buffer::kInput ? const_cast<char*>(static_cast<const char*>(call_.input))
                                      : static_cast<char*>(call_.output);
    }
    const CallDesc& desc = group_.control_.ranks[rank].post[group_.seq_ & 1].desc;
    return group_.arenas_[rank].data() + (buffer == Buffer::kInput ? desc.input : desc.output);
  }

  Group& group_;
  const Program& program_;
  const Call& call_;
  size_t item_;
  uint64_t base_;
  bool has_prescale_ = false;
  size_t chunk_bytes_ = 0;  // 0: a part is one chunk
  size_t slot_bytes_ = 0;
  size_t scratch_at_ = 0;
  ReduceArgs args_{};
  std::vector<void*> pointers_;
  std::vector<uint8_t> scaled_;
};

Group::Group(GroupConfig config, Mapping control, std::vector<Mapping> arenas)
    : config_(std::move(config)), control_memory_(std::move(control)), arenas_(std::move(arenas)),
      control_(Control::at(control_memory_.data(), config_.size)),
      heap_(arenas_[config_.rank].bytes()),
      waiter_(control_, config_.rank, config_.names, config_.timeout_s),
      reduce_(select_reduce(std::getenv("BLINKRUN_ISA"))) {
  RankControl& me = control_.ranks[config_.rank];
  me.pid = getpid();
  me.pid_namespace = pid_namespace();
  me.state.store(uint32_t(RankState::kActive), std::memory_order_release);
}

void Group::load(Program program) {
  if (program.size != config_.size) throw std::invalid_argument("program is for another size");
  if (program.flags > kFlagsPerRank)
    throw std::invalid_argument("program needs " + std::to_string(program.flags) + " flags, " +
                                std::to_string(kFlagsPerRank) + " are there");
  const size_t ring = size_t(program.slots) * program.slot_depth;
  if (ring && !program.eager && !program.pipelined)
    throw std::invalid_argument("a program with slots must be pipelined: slots hold chunks");
  if (ring * kCacheLine > (program.eager ? kEagerBytes : kScratchBytes))
    throw std::invalid_argument("program needs more slots than scratch memory holds");
  programs_.push_back(std::move(program));
}

const Program* Group::find(Collective collective, int32_t root, Variant variant) const {
  for (const Program& p : programs_) {
    const Variant is = p.eager ? Variant::kEager : Variant(int(p.addressing));
    if (p.collective == collective && is == variant && (!rooted(collective) || p.root == root))
      return &p;
  }
  return nullptr;
}

bool Group::covers(Collective collective, int32_t root) const {
  if (collective == Collective::kBarrier) return true;  // entering is all there is to it
  return find(collective, root, Variant::kDirect) && find(collective, root, Variant::kStaged);
}

uint64_t Group::offset_of(const void* p) const {
  const Mapping& mine = arenas_[config_.rank];
  return mine.contains(p) ? uint64_t(static_cast<const char*>(p) - mine.data()) : kPrivate;
}

void Group::post(const Call& call) {
  PostLine& line = control_.ranks[config_.rank].post[seq_ & 1];
  line.desc = CallDesc{call.count,
                       offset_of(call.input),
                       offset_of(call.output),
                       hash_scales(call.prescale, call.postscale),
                       rooted(call.collective) ? call.root : 0,
                       uint8_t(call.collective),
                       uint8_t(call.dtype),
                       uint8_t(reduces(call.collective) ? call.op : Op::kSum),
                       0};
  line.seq.exchange(seq_, std::memory_order_seq_cst);
  waiter_.wake();
}

bool Group::all_posted() const {
  for (uint32_t r = 0; r < config_.size; ++r)
    if (control_.ranks[r].post[seq_ & 1].seq.load(std::memory_order_acquire) != seq_) return false;
  return true;
}

void Group::enter(const Call& call, const Caller& caller) {
  const uint32_t looks = caller.may_spin ? std::min(config_.wait.spins, 400u) : 0;
  for (uint32_t i = 0; i < looks; ++i) {
    if (all_posted()) return;
    cpu_relax();
  }
  if (all_posted()) return;
  caller.on_block();
  WaitConfig wait = config_.wait;
  if (!caller.may_spin) wait.spins = 0;
  auto ready = [&] { return all_posted(); };
  auto missing = [&] {
    std::vector<uint32_t> ranks;
    for (uint32_t r = 0; r < config_.size; ++r)
      if (control_.ranks[r].post[seq_ & 1].seq.load(std::memory_order_acquire) != seq_)
        ranks.push_back(r);
    return ranks;
  };
  waiter_.wait(wait, ready, missing, [&] { return call_text(call); }, caller.on_look);
}

std::string Group::describe(const CallDesc& desc) const {
  const auto c = Collective(desc.collective);
  std::string text = kCollectiveNames[desc.collective];
  if (c == Collective::kBarrier) return text;
  text += " of " + std::to_string(desc.count) + " " + kDTypeNames[desc.dtype];
  if (reduces(c)) text += std::string(" (") + kOpNames[desc.op] + ")";
  if (rooted(c)) text += " with root " + std::to_string(config_.names[uint32_t(desc.root)]);
  return text;
}

std::string Group::call_text(const Call& call) const {
  CallDesc desc{};
  desc.count = call.count;
  desc.root = call.root;
  desc.collective = uint8_t(call.collective);
  desc.dtype = uint8_t(call.dtype);
  desc.op = uint8_t(call.op);
  return describe(desc) + ", call " + std::to_string(seq_);
}

void Group::check_agreement(const Call& call) const {
  const CallDesc& mine = control_.ranks[config_.rank].post[seq_ & 1].desc;
  auto same = [](const CallDesc& a, const CallDesc& b) {
    return a.count == b.count && a.scales == b.scales && a.root == b.root &&
           a.collective == b.collective && a.dtype == b.dtype && a.op == b.op;
  };
  bool agree = true;
  for (uint32_t r = 0; r < config_.size; ++r)
    agree &= same(mine, control_.ranks[r].post[seq_ & 1].desc);
  if (agree) return;
  Failure failure{Failure::Kind::kMismatch, "", {}};
  failure.text = "call " + std::to_string(seq_) + " differs between ranks:";
  for (uint32_t r = 0; r < config_.size; ++r) {
    const CallDesc& desc = control_.ranks[r].post[seq_ & 1].desc;
    failure.text += (r ? "; rank " : " rank ") + std::to_string(config_.names[r]) + ": " + describe(desc);
    if (desc.scales != mine.scales) failure.text += " with other scales";
    failure.ranks.push_back(config_.names[r]);
  }
  failure.text += "; every rank must make the same call";
  (void)call;
  throw failure;
}

// By where everyone's buffers lie, which all ranks have posted.
Variant Group::choose(const Call& call) const {
  bool inputs = true;
  for (uint32_t r = 0; r < config_.size; ++r) {
    const CallDesc& desc = control_.ranks[r].post[seq_ & 1].desc;
    if (desc.output == kPrivate && takes_output(call.collective, call.root, r))
      return Variant::kStaged;
    inputs &= desc.input != kPrivate || !takes_input(call.collective, call.root, r);
  }
  if (inputs) return Variant::kDirect;
  const bool can = find(call.collective, call.root, Variant::kOutputOnly) != nullptr;
  return can ? Variant::kOutputOnly : Variant::kStaged;
}

void Group::run(const Call& call, const Caller& caller) {
  std::unique_lock<std::mutex> lock(run_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    caller.on_block();
    lock.lock();
  }
  if (waiter_.aborted()) waiter_.throw_aborted();
  const uint64_t block_bytes = call.count * itemsize(call.dtype);
  ++seq_;
  const Program* eager = block_bytes <= config_.eager_bytes
                             ? find(call.collective, call.root, Variant::kEager)
                             : nullptr;
  if (eager && block_bytes > eager_slot_bytes(*eager)) eager = nullptr;  // the same on all ranks
  if (eager) run_prologue(*eager, call);
  post(call);
  enter(call, caller);
  check_agreement(call);
  if (call.count == 0 || call.collective == Collective::kBarrier) return;
  const Program* program = eager;
  if (!program) program = find(call.collective, call.root, choose(call));
  if (!program) throw std::logic_error("no program is loaded for this call");
  if (block_bytes > kSmallMove) caller.on_block();
  run_channels(*program, call, caller);
}

void Group::run_prologue(const Program& program, const Call& call) {
  CallPolicy policy(*this, program, call);
  for (const Channel& channel : program.prologue) {
    const Range range = policy.range(channel);
    for (uint32_t s = 0; range.num_chunks() && s < channel.num_steps; ++s)
      policy.reduce(program.steps[channel.first_step + s], range, 0);
  }
}

void Group::run_channels(const Program& program, const Call& call, const Caller& caller) {
  CallPolicy policy(*this, program, call);
  const uint32_t patience = caller.may_spin ? std::min(config_.wait.spins, 200u) : 0;
  Interpreter<CallPolicy> interpreter(program, policy, patience);
  std::vector<ChannelState> states;
  states.reserve(program.channels.size());
  for (const Channel& channel : program.channels) {
    const Range range = policy.range(channel);
    if (range.num_chunks()) states.push_back({&channel, range, 0, range.num_chunks(), 0});
  }
  WaitConfig wait = config_.wait;
  if (!caller.may_spin) wait.spins = 0;
  bool told = false;
  auto ready = [&] {
    for (const ChannelState& s : states) {
      const Step& step = interpreter.held_by(s);
      if (policy.ready(step, s.chunk)) return true;
    }
    return states.empty();
  };
  auto missing = [&] {
    std::vector<uint32_t> ranks;
    for (const ChannelState& s : states) {
      const Step& step = interpreter.held_by(s);
      if (!policy.ready(step, s.chunk)) ranks.push_back(uint32_t(step.rank));
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  while (!states.empty()) {
    if (interpreter.turn(states)) continue;
    uint32_t looks = patience;
    while (looks && !ready()) {
      cpu_relax();
      --looks;
    }
    if (looks) continue;
    if (!told) caller.on_block();
    told = true;
    waiter_.wait(wait, ready, missing, [&] { return call_text(call); }, caller.on_look);
  }
}

void Group::leave() {
  control_.ranks[config_.rank].state.store(uint32_t(RankState::kLeft), std::memory_order_release);
  waiter_.wake_all();
}

void Group::abort(const std::string& text) {
  waiter_.abort(AbortKind::kAborted, config_.names[config_.rank], text);
}

int32_t Group::first_gone() const {
  for (uint32_t r = 0; r < config_.size; ++r)
    if (r != config_.rank && const_cast<Waiter&>(waiter_).is_gone(r)) return int32_t(r);
  return -1;
}

bool Group::all_left() const {
  for (uint32_t r = 0; r < config_.size; ++r)
    if (control_.ranks[r].state.load(std::memory_order_acquire) != uint32_t(RankState::kLeft) &&
        !const_cast<Waiter&>(waiter_).is_gone(r))
      return false;
  return true;
}

}  // namespace blinkrun
