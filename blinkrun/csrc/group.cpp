#include "group.hpp"

#include <unistd.h>

#include <cstring>

#include "group_run.hpp"
#include "hosts_policy.hpp"
#include "paced_policy.hpp"
#include "policy.hpp"

namespace blinkrun {

namespace {

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

// Blocks in a call's size, as nccl-tests counts it: the larger of input and output.
uint64_t blocks(Collective c, uint32_t size) {
  const bool many = c == Collective::kAllgather || c == Collective::kReducescatter ||
                    c == Collective::kAlltoall;
  return many ? size : 1;
}

// What comes over a network takes longer than a look, and on the way it needs a core.
GroupConfig patient(GroupConfig config) {
  constexpr uint32_t kFewSpins = 20;
  if (config.hosts.several()) config.wait.spins = std::min(config.wait.spins, kFewSpins);
  return config;
}

}  // namespace

Group::Group(GroupConfig config, Mapping control, std::vector<Mapping> arenas)
    : config_(patient(std::move(config))), control_memory_(std::move(control)), arenas_(std::move(arenas)),
      control_(Control::at(control_memory_.data(), config_.size, config_.pace.rates.size())),
      heap_(arenas_[config_.rank].bytes()),
      waiter_(control_, config_.rank, config_.names, config_.timeout_s),
      network_(config_.hosts.several()
                   ? std::make_unique<Network>(config_.mpi, std::move(config_.hosts), waiter_)
                   : nullptr),
      journal_(control_, config_.rank, config_.wait, waiter_, network_.get()),
      pipes_(config_.rank, arenas_, heap_, config_.wait, waiter_, journal_, network_.get()),
      reduce_(select_reduce(std::getenv("BLINKRUN_ISA"))) {
  tables_.push_back(std::make_unique<const Programs>());
  current_.store(tables_.back().get());
  RankControl& me = control_.ranks[config_.rank];
  me.pid = getpid();
  me.pid_namespace = pid_namespace();
  me.state.store(uint32_t(RankState::kActive), std::memory_order_release);
  if (!config_.pace.links.empty())
    pacer_ = std::make_unique<Pacer>(control_, config_.rank, std::move(config_.pace), waiter_);
}

void Group::load(Program program) {
  if (for_devices(program)) throw std::invalid_argument("program is for devices");
  if (program.size != config_.size || program.all != total())
    throw std::invalid_argument("program is for another size");
  if (program.flags > kFlagsPerRank)
    throw std::invalid_argument("program needs " + std::to_string(program.flags) + " flags, " +
                                std::to_string(kFlagsPerRank) + " are there");
  const size_t ring = size_t(program.slots) * program.slot_depth;
  if (ring && !program.eager && !program.pipelined)
    throw std::invalid_argument("a program with slots must be pipelined: slots hold chunks");
  if (ring * kCacheLine > (program.eager ? kEagerBytes : kScratchBytes))
    throw std::invalid_argument("program needs more slots than scratch memory holds");
  if (pacer_ && program.eager)
    throw std::invalid_argument("one-shot programs move data before ranks meet; they are not paced");
  for (const Step& step : program.steps) check_ways(program, step);
  if (network_) check_messages(program);
  auto more = std::make_unique<Programs>(*programs());
  const Variant variant = program.eager ? Variant::kEager : Variant(int(program.addressing));
  more->push_back({program.collective, rooted(program.collective) ? program.root : 0, variant,
                   program.most_bytes, nullptr});
  more->back().program = std::make_shared<const Program>(std::move(program));
  replace_programs(std::move(more));
}

void Group::unload(Collective collective, int32_t root) {
  auto fewer = std::make_unique<Programs>();
  for (const auto& p : *programs())
    if (p.collective != collective || (rooted(collective) && p.root != root))
      fewer->push_back(p);
  replace_programs(std::move(fewer));
}

// Every rank that a reduce addresses must be within reach.
void Group::check_ways(const Program& program, const Step& step) const {
  const uint32_t total = step.kind == StepKind::kReduce ? step.num_dsts + step.num_srcs : 0;
  for (uint32_t i = 0; i < total; ++i) {
    const Operand& operand = program.operands[step.first + i];
    const uint32_t rank = uint32_t(operand.rank);
    if (rank == config_.rank) continue;
    const std::string pair = "rank " + std::to_string(config_.names[config_.rank]) +
                             " addresses memory of rank " + std::to_string(config_.names[rank]);
    if (!arenas_[rank].data())
      throw std::invalid_argument("program: " + pair + ", but no link joins them");
    if (pacer_ && (!operand.link || operand.link > pacer_->num_links()))
      throw std::invalid_argument("program: " + pair + " over no link of the emulated machine; " +
                                  "encode it with the machine's routes");
  }
}

// The old table goes when nobody reads it. A call of another thread may, as long as it runs; all
// others come from Python, one at a time.
void Group::replace_programs(std::unique_ptr<const Programs> table) {
  tables_.push_back(std::move(table));
  current_.store(tables_.back().get(), std::memory_order_release);
  std::unique_lock<std::mutex> lock(run_mutex_, std::try_to_lock);
  if (lock.owns_lock()) tables_.erase(tables_.begin(), tables_.end() - 1);
}

const Program* Group::find(const Programs& programs, Collective collective, int32_t root,
                           Variant variant, uint64_t call_bytes) {
  if (!rooted(collective)) root = 0;
  for (const Loaded& p : programs)
    if (p.collective == collective && p.variant == variant && p.root == root &&
        p.most_bytes >= call_bytes)
      return p.program.get();
  return nullptr;
}

bool Group::covers(Collective collective, int32_t root) const {
  if (collective == Collective::kBarrier) return true;  // entering is all there is to it
  auto there = [&](Variant v) { return find(*programs(), collective, root, v, 0) != nullptr; };
  return there(Variant::kDirect) && (pacer_ || there(Variant::kStaged));
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
  line.chunk_bytes = wanted_chunk_bytes_.load(std::memory_order_relaxed);
  line.start_ns = pacer_ ? now_ns() : 0;
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
  auto look = [&] { look_around(caller); };
  waiter_.wait(wait, ready, missing, [&] { return call_text(call); }, look,
               [] { return Waiter::kLook; });
}

std::string Group::describe(const CallDesc& desc) const {
  const auto c = Collective(desc.collective);
  if (c == Collective::kAllgather && desc.scales == hash_scales(1.0, 2.0))
    return "a first call on a device";  // blinkrun/devices.py: nothing else has scales there
  std::string text = kCollectiveNames[desc.collective];
  if (c == Collective::kBarrier) return text;
  text += " of " + std::to_string(desc.count) + " " + kDTypeNames[desc.dtype];
  if (reduces(c)) text += std::string(" (") + kOpNames[desc.op] + ")";
  if (rooted(c)) text += " with root " + std::to_string(name_of(uint32_t(desc.root)));
  return text;
}

std::string Group::call_text(const Call& call) const {
  CallDesc desc{};
  desc.count = call.count;
  desc.root = call.root;
  desc.collective = uint8_t(call.collective);
  desc.dtype = uint8_t(call.dtype);
  desc.op = uint8_t(call.op);
  desc.scales = hash_scales(call.prescale, call.postscale);
  return describe(desc) + ", call " + std::to_string(seq_);
}

bool Group::agree() const {
  const CallDesc& mine = control_.ranks[config_.rank].post[seq_ & 1].desc;
  bool agree = true;
  for (uint32_t r = 0; r < config_.size; ++r)
    agree &= same_call(mine, control_.ranks[r].post[seq_ & 1].desc);
  return agree;
}

void Group::check_agreement() const {
  if (agree()) return;
  const CallDesc& mine = control_.ranks[config_.rank].post[seq_ & 1].desc;
  Failure failure{Failure::Kind::kMismatch, "", {}};
  failure.text = "call " + std::to_string(seq_) + " differs between ranks:";
  for (uint32_t r = 0; r < config_.size; ++r) {
    const CallDesc& desc = control_.ranks[r].post[seq_ & 1].desc;
    failure.text += (r ? "; rank " : " rank ") + std::to_string(config_.names[r]) + ": " + describe(desc);
    if (desc.scales != mine.scales) failure.text += " with other scales";
    failure.ranks.push_back(config_.names[r]);
  }
  failure.text += "; every rank must make the same call";
  throw failure;
}

// By where everyone's buffers lie, which all ranks have posted.
Variant Group::choose(const Programs& programs, const Call& call, uint64_t bytes) const {
  bool inputs = true;
  for (uint32_t r = 0; r < config_.size; ++r) {
    const CallDesc& desc = control_.ranks[r].post[seq_ & 1].desc;
    const uint32_t rank = network_ ? network_->hosts().here()[r] : r;  // as roots count
    if (desc.output == kPrivate && takes_output(call.collective, call.root, rank))
      return Variant::kStaged;
    inputs &= desc.input != kPrivate || !takes_input(call.collective, call.root, rank);
  }
  if (inputs) return Variant::kDirect;
  const bool can = find(programs, call.collective, call.root, Variant::kOutputOnly, bytes);
  return can ? Variant::kOutputOnly : Variant::kStaged;
}

void Group::run(const Call& call, const Caller& caller) {
  std::unique_lock<std::mutex> lock(run_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    caller.on_block();
    lock.lock();
  }
  if (waiter_.aborted()) waiter_.throw_aborted();
  const Programs& loaded = *programs();
  const uint64_t block_bytes = call.count * itemsize(call.dtype);
  const uint64_t call_bytes = block_bytes * blocks(call.collective, total());
  ++seq_;
  const Program* eager = block_bytes <= config_.eager_bytes
                             ? find(loaded, call.collective, call.root, Variant::kEager, call_bytes)
                             : nullptr;
  if (eager && block_bytes > eager_slot_bytes(*eager)) eager = nullptr;  // the same on all ranks
  if (network_) return run_everywhere(call.count ? eager : nullptr, call, caller);
  if (eager) run_prologue(*eager, call);
  post(call);
  enter(call, caller);
  check_agreement();
  if (call.count == 0 || call.collective == Collective::kBarrier) return;
  if (eager) return run_program<CallPolicy>(*eager, call, caller);
  run_entered(call, caller);
}

// All ranks have come, and call the same, for which there is no small way.
void Group::run_entered(const Call& call, const Caller& caller) {
  const Programs& loaded = *programs();
  const uint64_t block_bytes = call.count * itemsize(call.dtype);
  const uint64_t call_bytes = block_bytes * blocks(call.collective, total());
  const bool timed = block_bytes > kSmallMove;
  const uint64_t entered = timed ? now_ns() : 0;
  const Variant variant = choose(loaded, call, call_bytes);
  const Program* program = find(loaded, call.collective, call.root, variant, call_bytes);
  if (!program) throw Failure{Failure::Kind::kInvalid, no_program(call, variant, call_bytes), {}};
  if (block_bytes > kSmallMove) caller.on_block();
  if (network_) return run_program<StreamPolicy>(*program, call, caller);
  if (pacer_) {
    ExactTimers exact;
    return run_program<PacedPolicy>(*program, call, caller);
  }
  run_program<CallPolicy>(*program, call, caller);
  if (timed) last_ns_.store(now_ns() - entered, std::memory_order_relaxed);
}

std::string Group::no_program(const Call& call, Variant variant, uint64_t bytes) const {
  const char* const where[] = {"that lie in the arena", "outside the arena",
                               "of which only the results lie in the arena", ""};
  return call_text(call) + ": no program is loaded for " + std::to_string(bytes) +
         " bytes in buffers " + where[int(variant)];
}

void Group::run_prologue(const Program& program, const Call& call) {
  CallPolicy policy(*this, program, call);
  for (const Channel& channel : program.prologue) {
    const Range range = policy.range(channel);
    for (uint32_t s = 0; range.num_chunks() && s < channel.num_steps; ++s)
      policy.move(program.steps[channel.first_step + s], 0, range.lo, range.hi);
  }
}

std::vector<ChannelTimes> Group::last_channels() const {
  std::lock_guard<std::mutex> lock(trace_mutex_);
  return last_channels_;
}

// While a rank waits in a call, others may wait for it to read.
void Group::look_around(const Caller& caller) {
  journal_.relieve();
  caller.on_look();
}

void Group::leave() {
  journal_.close();
  control_.ranks[config_.rank].state.store(uint32_t(RankState::kLeft), std::memory_order_release);
  waiter_.wake_all();
  if (network_) network_->alarms().leave();
}

void Group::abort(const std::string& text, AbortKind kind, int32_t about) {
  waiter_.abort(kind, kind == AbortKind::kAborted ? config_.names[config_.rank] : about, text);
}

std::vector<uint32_t> Group::gone() {
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < config_.size; ++r)
    if (r != config_.rank && waiter_.is_gone(r)) ranks.push_back(r);
  return ranks;
}

bool Group::all_left() const {
  for (uint32_t r = 0; r < config_.size; ++r)
    if (control_.ranks[r].state.load(std::memory_order_acquire) != uint32_t(RankState::kLeft) &&
        !const_cast<Waiter&>(waiter_).is_gone(r))
      return false;
  return !network_ || network_->alarms().all_left();
}

}  // namespace blinkrun
