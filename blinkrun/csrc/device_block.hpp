// One block's run of one call on a device: what `kernels.cu` and its host build share.
//
// A block is a machine of turns that never wait. One thread of it takes them:
//
//   block.begin(call, machine);
//   for (;;) {
//     const DeviceTurn turn = block.turn();
//     if (turn == DeviceTurn::kThrough) break;
//     if (turn == DeviceTurn::kIdle) relax;
//     if (turn == DeviceTurn::kMove) move;  // by all threads: block.move(), block.pointer(i)
//   }
//
// Between a kMove and the next turn all threads of the block may call `move`, `pointer` and `scaled`;
// before that turn the move is done, by a barrier. All that is called here, one thread calls.
//
// A Machine is what a block is made of:
//   uint32_t index(), blocks()                which one it is, of how many
//   uint64_t load(const uint64_t*)            acquire, from memory that other devices and the host write
//   uint32_t peek(const uint32_t*)            the same without order
//   void fence()                              what the block's threads did comes before its next stores
//   void store(uint64_t*, uint64_t)           after a fence: a release
//   void store(uint32_t*, uint32_t)
//   uint32_t add(uint32_t*)                   one more, of this device's memory, acquire and release; what was
//   bool claim(uint32_t*, uint32_t)           put a value where 0 is, of this device's memory; whether it was
//   uint64_t now_ns()
//
// Entry: the first block runs the prologue of an eager program and posts the call to every rank, and
// every block waits for everyone's post. All see the same posts, so all agree on the program, or that
// the calls differ. Where there are several hosts, every block then waits for the proxy's verdict:
// whether the other hosts call the same. Lanes: a channel has `pieces` lanes, each with a piece of the range and flags and
// slots of its own; lane l = channel * pieces + piece is block l % blocks', which runs its lanes in
// turns. The block that leaves last counts the call.
//
// Messages with other hosts go through rings in pinned host memory, for each stream and piece
// kRingDepth chunks of `slot_bytes()`, which the host's proxy sends and fills. Send waits until
// `through` leaves room, fills a slot and counts `started`. Recv counts `started`: chunk k may come into
// slot k % kRingDepth, from which chunk k - kRingDepth has been taken. The lane of the Recv takes what
// has come (`through`) in turns of its own and counts `taken`, at which Arrived looks. A lane is done
// when its messages are through and taken, so rings are empty between calls.
#pragma once

#include "device_entry.hpp"
#include "device_program.hpp"

namespace blinkrun {

enum class DeviceTurn : uint32_t { kBusy, kIdle, kMove, kThrough };

// Combine `num_srcs` operands left to right and store the result in each of `num_dsts`. One source that
// nothing scales or divides is copied bit by bit.
struct DeviceMove {
  uint64_t elements;
  uint32_t num_dsts, num_srcs;
  double prescale;   // of the sources that are `scaled`; 1: of none
  double postscale;  // of the result; 1: nothing
  int64_t divisor;   // of the result; 1: nothing
};

template <class Machine> class DeviceBlock {
 public:
  static constexpr bool kMessages = true;  // of the policy that `advance` takes

  // `call` must outlive the run.
  BLINKRUN_FN void begin(const DeviceCall& call, const Machine& machine) {
    call_ = &call;
    group_ = call.group;
    machine_ = machine;
    control_ = group_->mine[group_->rank];
    seq_ = control_->seq + 1;
    item_ = uint32_t(itemsize(DType(call.dtype)));
    wanted_ = moved_ = taking_ = went_ = entered_ = elsewhere_ = false;
    looks_ = 0;
    idle_since_ns_ = 0;
    open_ = at_ = next_ = 0;
    missing_ = 0;
    BLINKRUN_ROLLED
    for (uint32_t r = 0; r < group_->size; ++r) missing_ |= 1u << r;
    program_ = call.count ? eager_program(call) : nullptr;
    phase_ = machine_.index() == 0 ? Phase::kOpen : Phase::kEntry;
    if (machine_.peek(&control_->failed)) phase_ = Phase::kLeave;
  }

  BLINKRUN_FN DeviceTurn turn() {
    if (wanted_) {
      wanted_ = false;
      moved_ = true;
    }
    switch (phase_) {
      case Phase::kOpen: return open();
      case Phase::kEntry: return entry();
      case Phase::kRun: return run();
      case Phase::kFail: return report();
      case Phase::kLeave: return leave();
      default: return DeviceTurn::kThrough;
    }
  }

  BLINKRUN_FN const DeviceMove& move() const { return move_; }

  // Operand `i` of the move, destinations first.
  BLINKRUN_FN char* pointer(uint32_t i) const {
    if (ring_ && (i == 0) == ring_is_dst_) return ring_;
    return address(flat_operands(program_)[ring_ ? operand_ : operand_ + i]);
  }

  // Whether operand `i`, a source, is multiplied by `prescale`.
  BLINKRUN_FN bool scaled(uint32_t i) const {
    return move_.prescale != 1.0 && flat_operands(program_)[operand_ + i].buffer == Buffer::kInput;
  }

  // Of the ring slots of messages.
  BLINKRUN_FN uint64_t slot_bytes() const { return slot_bytes_; }

  // ---- the policy of `advance`

  BLINKRUN_FN bool pass(const Step& wait, const ChannelState& state) {
    const uint64_t need = state.chunk + 1;
    if (need <= uint64_t(wait.lag)) return true;
    const uint64_t* flags = device_flags(group_->mine[wait.rank], uint32_t(wait.rank));
    return machine_.load(flags + in_piece(wait.flag)) >= count(need - uint64_t(wait.lag));
  }

  BLINKRUN_FN Went reduce(const Step& step, const ChannelState& state) {
    if (moved_) {
      moved_ = false;
      return Went::kWhole;
    }
    const bool reducing = reduces(Collective(call_->collective));
    const bool finish = step.final && reducing;
    want(step.first, step.num_dsts, step.num_srcs, state.range, state.chunk);
    move_.prescale = reducing ? call_->prescale : 1.0;
    move_.postscale = finish ? call_->postscale : 1.0;
    move_.divisor = finish && Op(call_->op) == Op::kAverage ? int64_t(group_->all) : 1;
    return Went::kHeld;
  }

  BLINKRUN_FN void signal(const Step& step, const ChannelState& state) {
    machine_.fence();
    BLINKRUN_ROLLED
    for (uint32_t left = step.first, r = 0; left; left >>= 1, ++r)
      if (left & 1)
        machine_.store(device_flags(group_->to[r], group_->rank) + in_piece(step.flag),
                       count(state.chunk + 1));
  }

  BLINKRUN_FN bool message(const Step& step, const ChannelState& state) {
    const uint64_t need = state.chunk + 1;
    const uint32_t stream = in_piece(step.flag);
    DeviceCounts& counts = group_->host->counts[stream];
    if (step.kind == StepKind::kSent)
      return need <= uint64_t(step.lag) ||
             machine_.load(&counts.through) >= count(need - uint64_t(step.lag));
    if (step.kind == StepKind::kArrived)
      return need <= uint64_t(step.lag) ||
             machine_.load(device_taken(control_) + stream) >= count(need - uint64_t(step.lag));
    if (step.kind == StepKind::kRecv) {
      if (need > kRingDepth && taken(stream) < need - kRingDepth) return false;
    } else if (moved_) {
      moved_ = false;
    } else {
      if (need > kRingDepth && machine_.load(&counts.through) < count(need - kRingDepth)) return false;
      want(step.first, 1, 1, state.range, state.chunk);
      want_ring(stream, state.chunk, true);
      return false;
    }
    machine_.fence();
    machine_.store(&counts.started, count(need));
    return true;
  }

 private:
  // Each is one place in the kernel. Before entry, kOpen and kRun serve the prologue.
  enum class Phase : uint32_t { kOpen, kEntry, kRun, kFail, kLeave, kThrough };
  using Lane = DeviceLane;
  static constexpr uint32_t kLooks = 64;  // at nothing, between two at clock and host

  BLINKRUN_FN uint32_t in_piece(int32_t index) const {
    return uint32_t(index) * program_->pieces + piece_;
  }
  BLINKRUN_FN uint64_t count(uint64_t chunks) const { return device_count(seq_, chunks); }

  // ---- memory

  BLINKRUN_FN void layout() {
    const uint64_t areas = kDeviceControlBytes;
    if (program_->eager) {
      chunk_bytes_ = 0;
      slot_bytes_ = eager_slot_bytes(*program_);
      scratch_at_ = areas + (seq_ & 1) * kDeviceEagerBytes;
      return;
    }
    chunk_bytes_ = device_chunk_bytes(*group_, *program_, call_->count * item_);
    slot_bytes_ = chunk_bytes_;
    scratch_at_ = areas + 2 * kDeviceEagerBytes;
  }

  BLINKRUN_FN char* address(const Operand& operand) const {
    const uint32_t rank = uint32_t(operand.rank);
    if (operand.buffer == Buffer::kScratch) {
      const uint64_t slot = (uint64_t(operand.index) * program_->pieces + piece_) * program_->slot_depth +
                            chunk_ % program_->slot_depth;
      char* area = operand.link ? group_->areas[rank] : group_->arenas[rank];
      return area + scratch_at_ + slot * slot_bytes_;
    }
    const uint64_t at = (uint64_t(operand.index) * call_->count + lo_) * item_;
    if (rank == group_->rank) {
      return operand.buffer == Buffer::kInput
                 ? const_cast<char*>(static_cast<const char*>(call_->input)) + at
                 : static_cast<char*>(call_->output) + at;
    }
    const DeviceDesc& desc = post_of(rank).desc;
    return group_->arenas[rank] + (operand.buffer == Buffer::kInput ? desc.input : desc.output) + at;
  }

  BLINKRUN_FN const DevicePost& post_of(uint32_t rank) const {
    return blinkrun::post_of(*group_, seq_, rank);
  }

  // Ask for a move of a chunk of the lane, which is all that `turn` does then.
  BLINKRUN_FN void want(uint32_t first, uint32_t num_dsts, uint32_t num_srcs, const Range& range,
                        uint64_t chunk) {
    operand_ = first;
    chunk_ = chunk;
    lo_ = range.start(chunk);
    ring_ = nullptr;
    move_.elements = range.stop(chunk) - lo_;
    move_.num_dsts = num_dsts;
    move_.num_srcs = num_srcs;
    move_.prescale = move_.postscale = 1.0;
    move_.divisor = 1;
    wanted_ = true;
  }

  BLINKRUN_FN void want_ring(uint32_t stream, uint64_t chunk, bool is_dst) {
    const uint64_t slot = uint64_t(stream) * kRingDepth + chunk % kRingDepth;
    ring_ = group_->areas[group_->rank] + group_->rings_at + slot * slot_bytes_;
    ring_is_dst_ = is_dst;
  }

  // ---- entry

  BLINKRUN_FN void post() {
    const DeviceDesc desc = describe(*call_);
    const uint32_t me = group_->rank;
    BLINKRUN_ROLLED
    for (uint32_t r = 0; r < group_->size; ++r) group_->to[r]->posts[seq_ & 1][me].desc = desc;
    machine_.fence();
    BLINKRUN_ROLLED
    for (uint32_t r = 0; r < group_->size; ++r)
      machine_.store(&group_->to[r]->posts[seq_ & 1][me].seq, seq_);
  }

  BLINKRUN_FN DeviceTurn entry() {
    BLINKRUN_ROLLED
    for (uint32_t r = 0; r < group_->size; ++r)
      if (missing_ >> r & 1 && machine_.load(&post_of(r).seq) == seq_) missing_ &= ~(1u << r);
    if (missing_) return idle();
    BLINKRUN_ROLLED
    for (uint32_t r = 0; r < group_->size; ++r)
      if (!same_device_call(post_of(r).desc, post_of(group_->rank).desc))
        return fail(DeviceError::kMismatch);
    if (group_->all > group_->size) {
      elsewhere_ = true;
      const uint64_t verdict = machine_.load(&group_->host->verdicts[seq_ % kDeviceVerdicts]);
      if (verdict >> 1 != seq_) return idle();
      if (verdict & 1) return fail(DeviceError::kMismatch);
      elsewhere_ = false;
    }
    progressed();
    entered_ = true;
    phase_ = Phase::kLeave;
    if (!call_->count || Collective(call_->collective) == Collective::kBarrier) return DeviceTurn::kBusy;
    if (!program_) program_ = choose_program(*call_, seq_);
    if (!program_) return fail(DeviceError::kNoProgram);
    phase_ = Phase::kOpen;
    return DeviceTurn::kBusy;
  }

  // ---- lanes

  // Open the lanes of what comes next: one channel of the prologue, or all that are this block's.
  BLINKRUN_FN DeviceTurn open() {
    if (!entered_ && (!program_ || next_ == program_->num_prologue)) {
      post();
      phase_ = Phase::kEntry;
      return DeviceTurn::kBusy;
    }
    layout();
    if (entered_ && !fits(*program_)) return fail(DeviceError::kNoRoom);
    const FlatProgram& p = *program_;  // one with a prologue has one piece of each channel
    const uint32_t first = entered_ ? p.num_prologue + machine_.index() : next_;
    const uint32_t stop = entered_ ? p.num_prologue + p.num_channels * p.pieces : next_ + 1;
    const uint32_t blocks = entered_ ? machine_.blocks() : 1;
    BLINKRUN_ROLLED
    for (uint32_t l = first; l < stop; l += blocks)
      open_ += open_lane(lanes_[open_], p, l / p.pieces, l % p.pieces, call_->count, item_, chunk_bytes_);
    ++next_;
    at_ = 0;
    went_ = false;
    phase_ = Phase::kRun;
    return DeviceTurn::kBusy;
  }

  BLINKRUN_FN bool fits(const FlatProgram& program) const {
    return has_room(*group_, program, call_->count * item_, slot_bytes_) &&
           has_lanes(program, machine_.blocks());
  }

  // One look at one lane.
  BLINKRUN_FN DeviceTurn run() {
    if (!open_) {
      phase_ = entered_ ? Phase::kLeave : Phase::kOpen;
      return DeviceTurn::kBusy;
    }
    Lane& lane = lanes_[at_];
    piece_ = lane.piece;
    bool went = moved_;
    if (taking_) {
      took();
    } else if (!lane.state.done()) {
      went |= advance(flat_steps(program_), lane.state, *this);
    }
    if (!went && !wanted_ && lane.receives) take(lane);
    if (wanted_) {
      progressed();
      return DeviceTurn::kMove;
    }
    if (went) progressed();
    if (lane.state.done() && is_drained(lane)) {
      lane = lanes_[--open_];  // its turn is next
      progressed();
    } else {
      ++at_;
    }
    if (at_ < open_) return DeviceTurn::kBusy;
    at_ = 0;
    const bool idled = !went_ && open_;
    went_ = false;
    return idled ? idle() : DeviceTurn::kBusy;
  }

  BLINKRUN_FN void progressed() {
    went_ = true;
    looks_ = 0;
    idle_since_ns_ = 0;
  }

  // ---- messages

  // Chunks of a stream that have been taken from the ring in this call.
  BLINKRUN_FN uint64_t taken(uint32_t stream) const {
    const uint64_t value = device_taken(control_)[stream];
    return value > count(0) ? value - count(0) : 0;
  }

  // Ask for the move of the next chunk that has come for a lane, if there is one.
  BLINKRUN_FN void take(Lane& lane) {
    const Step* steps = flat_steps(program_) + lane.state.channel->first_step;
    BLINKRUN_ROLLED
    for (uint32_t s = 0; s < lane.state.channel->num_steps; ++s) {
      if (steps[s].kind != StepKind::kRecv) continue;
      const uint32_t stream = in_piece(steps[s].flag);
      const uint64_t next = taken(stream), started = lane.state.chunk + (lane.state.step > s ? 1 : 0);
      if (next >= started) continue;
      if (machine_.load(&group_->host->counts[stream].through) < count(next + 1)) continue;
      want(steps[s].first, 1, 1, lane.state.range, next);
      want_ring(stream, next, false);
      taking_ = true;
      taken_stream_ = stream;
      return;
    }
  }

  BLINKRUN_FN void took() {
    taking_ = moved_ = false;
    machine_.fence();
    machine_.store(device_taken(control_) + taken_stream_, count(chunk_ + 1));
  }

  BLINKRUN_FN bool is_drained(const Lane& lane) {
    if (!lane.receives && !lane.sends) return true;
    const Step* steps = flat_steps(program_) + lane.state.channel->first_step;
    BLINKRUN_ROLLED
    for (uint32_t s = 0; s < lane.state.channel->num_steps; ++s)
      if (!is_through(steps[s], lane.state.num_chunks)) return false;
    return true;
  }

  BLINKRUN_FN bool is_through(const Step& step, uint64_t chunks) {
    if (step.kind == StepKind::kRecv) return taken(in_piece(step.flag)) >= chunks;
    if (step.kind != StepKind::kSend) return true;
    return machine_.load(&group_->host->counts[in_piece(step.flag)].through) >= count(chunks);
  }

  // ---- the end

  // Nothing moved: look now and then whether it should end.
  BLINKRUN_FN DeviceTurn idle() {
    if (++looks_ % kLooks) return DeviceTurn::kIdle;
    if (machine_.peek(&control_->failed)) {
      phase_ = Phase::kLeave;
      return DeviceTurn::kBusy;
    }
    if (machine_.peek(&group_->host->abort)) return fail(DeviceError::kAborted);
    const uint64_t now = machine_.now_ns();
    if (!idle_since_ns_) idle_since_ns_ = now;
    // Signed: a device's clock may be set back a little, which is no timeout.
    if (int64_t(now - idle_since_ns_) > int64_t(call_->timeout_ns)) return fail(DeviceError::kTimeout);
    return DeviceTurn::kIdle;
  }

  BLINKRUN_FN DeviceTurn fail(DeviceError error) {
    error_ = error;
    phase_ = Phase::kFail;
    return DeviceTurn::kBusy;
  }

  BLINKRUN_FN DeviceTurn report() {
    phase_ = Phase::kLeave;
    if (!machine_.claim(&control_->failed, uint32_t(error_))) return DeviceTurn::kBusy;
    DeviceReport& report = group_->host->report;
    if (machine_.peek(&report.code)) return DeviceTurn::kBusy;
    report_call(report, *call_, seq_, error_);
    report.flag = elsewhere_;
    report.missing = missing_;
    if (open_) name_wait(report, lanes_[0]);
    machine_.fence();
    machine_.store(&report.code, uint32_t(error_));
    return DeviceTurn::kBusy;
  }

  // What a lane waits for; where its steps are through, for the first of its messages that is not.
  BLINKRUN_FN void name_wait(DeviceReport& report, const Lane& lane) {
    const ChannelState& state = lane.state;
    const Step* steps = flat_steps(program_) + state.channel->first_step;
    uint32_t s = state.step;
    piece_ = lane.piece;
    if (state.done())
      BLINKRUN_ROLLED
      while (s + 1 < state.channel->num_steps && is_through(steps[s], state.num_chunks)) ++s;
    report.channel = int32_t(state.channel - flat_channels(program_) - program_->num_prologue);
    report.piece = lane.piece;
    report.chunk = smaller(state.chunk, state.num_chunks - 1);
    report.step = s;
    report.kind = uint32_t(steps[s].kind);
    report.peer = steps[s].rank;
    report.flag = uint32_t(steps[s].flag);
  }

  BLINKRUN_FN DeviceTurn leave() {
    phase_ = Phase::kThrough;
    if (machine_.add(&control_->blocks_done) + 1 != machine_.blocks()) return DeviceTurn::kThrough;
    control_->blocks_done = 0;
    control_->seq = seq_;
    const DeviceError failed = DeviceError(control_->failed);
    // Nothing has moved, anywhere: the next call may do better.
    if (failed == DeviceError::kMismatch || failed == DeviceError::kNoProgram) control_->failed = 0;
    machine_.fence();
    machine_.store(&group_->host->through, seq_);
    return DeviceTurn::kThrough;
  }

  const DeviceCall* call_;
  const DeviceGroup* group_;
  const FlatProgram* program_;
  DeviceControl* control_;
  Machine machine_;
  Phase phase_;
  uint64_t seq_;
  uint32_t item_;
  uint32_t missing_;      // at entry
  uint32_t looks_;
  uint64_t idle_since_ns_;
  uint64_t chunk_bytes_, slot_bytes_, scratch_at_;
  bool wanted_, moved_;   // a move: by the caller, and done
  bool taking_;           // it takes a chunk from a ring
  bool went_;             // some lane, in this round
  bool entered_;          // all ranks have come and agree
  bool elsewhere_;        // what it waits for at entry, or fails of, is about other hosts
  DeviceError error_;
  uint32_t open_, at_;    // lanes
  uint32_t next_;         // channel of the prologue
  uint32_t piece_, operand_, taken_stream_;
  uint64_t chunk_, lo_;   // of the move
  char* ring_;
  bool ring_is_dst_;
  DeviceMove move_;
  Lane lanes_[kDeviceLanes];
};

}  // namespace blinkrun
