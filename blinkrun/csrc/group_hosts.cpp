// What a group does in a job on several hosts.
#include <algorithm>
#include <cstdio>

#include "group_run.hpp"
#include "hosts_policy.hpp"

namespace blinkrun {

// Messages go to other hosts, and their memory is this rank's. Those of a small call go with its
// entry: one from the first rank of each host to that of each other.
void Group::check_messages(Program& program) const {
  const Hosts& hosts = network_->hosts();
  for (const Step& step : program.steps) {
    if (step.kind < StepKind::kSend) continue;
    const uint32_t rank = uint32_t(step.rank);
    if (hosts.is_here(rank))
      throw std::invalid_argument("program has a message between ranks of one host");
    if (step.kind == StepKind::kSend || step.kind == StepKind::kRecv)
      program.operands[step.first].rank = int32_t(config_.rank);
    if (program.eager && (!hosts.leads() || hosts.leader(hosts.host_of(rank)) != rank))
      throw std::invalid_argument("a one-shot program has a message that is not between first ranks");
  }
  for (const Stream& stream : program.streams)
    if (stream.number >= uint32_t(kMostStreams))
      throw std::invalid_argument("program has more than " + std::to_string(kMostStreams) +
                                  " streams between two ranks");
  const size_t ring = size_t(program.slots) * program.slot_depth;
  const size_t chunk = hosts_chunk_bytes(program, SIZE_MAX);
  if (ring && !program.eager && ring * chunk > kScratchBytes)
    throw std::invalid_argument("program: " + std::to_string(ring) + " slots of " +
                                std::to_string(chunk) + " bytes are more than scratch memory holds");
}

void Group::run_everywhere(const Program* eager, const Call& call, const Caller& caller) {
  if (network_->is_closed()) Network::fail_closed();
  if (eager) run_prologue(*eager, call);
  post(call);
  try {
    enter(call, caller);
    network_->entry().begin(seq_, control_.ranks[config_.rank].post[seq_ & 1].desc);
    enter_everywhere(eager, call, caller);
    if (call.count == 0 || call.collective == Collective::kBarrier) return;
    if (eager) return run_eager_everywhere(*eager, call, caller);
    run_entered(call, caller);
  } catch (const Failure& failure) {
    if (failure.kind == Failure::Kind::kMismatch || failure.kind == Failure::Kind::kInvalid) throw;
    if (failure.kind == Failure::Kind::kMpi)
      waiter_.abort(AbortKind::kAborted, name(),
                    "rank " + std::to_string(name()) + ": MPI between hosts: " + failure.text);
    network_->abandon();
    throw;
  } catch (const Entry::Disagreement&) {
    settle(call, caller);
  } catch (...) {  // a signal's handler: whoever called aborts the job
    network_->abandon();
    throw;
  }
}

// A small call's data brings what the other hosts call.
void Group::enter_everywhere(bool eager, const Call& call, const Caller& caller) {
  const bool agreed = agree();
  if (agreed && eager) return;
  if (!network_->hosts().leads()) {
    auto told = [this] {
      return control_.header->verdict.call.load(std::memory_order_acquire) >= seq_;
    };
    auto missing = [&] { return told() ? std::vector<uint32_t>() : std::vector<uint32_t>{0}; };
    waiter_.wait(wait_config_of(caller), told, missing,
                 [&] { return call_text(call); }, [&] { look_around(caller); },
                 [] { return Waiter::kLook; });
    return look_at_verdict();
  }
  if (!agreed || !network_->entry().meet(true, entry_wait(call, caller))) throw Entry::Disagreement{};
  give_verdict("");
}

void Group::run_eager_everywhere(const Program& program, const Call& call, const Caller& caller) {
  const bool leads = network_->hosts().leads();
  auto look = [&] {
    if (!leads) look_at_verdict();
    caller.on_look();
  };
  run_program<EagerPolicy>(program, call, Caller{caller.on_block, look, caller.may_spin});
}

// Of the call that runs: throws if it says that calls differ.
void Group::look_at_verdict() const {
  const Verdict& verdict = control_.header->verdict;
  if (verdict.call.load(std::memory_order_acquire) != seq_ || !verdict.differs) return;
  throw Failure{Failure::Kind::kMismatch, verdict.text, {}};
}

void Group::give_verdict(const std::string& text) {
  Verdict& verdict = control_.header->verdict;
  verdict.differs = !text.empty();
  std::snprintf(verdict.text, sizeof verdict.text, "%s", text.c_str());
  verdict.call.exchange(seq_, std::memory_order_seq_cst);
  waiter_.wake();
}

void Group::settle(const Call& call, const Caller& caller) {
  const std::string how = network_->entry().settle(calls_here(), entry_wait(call, caller));
  give_verdict("call " + std::to_string(seq_) + " differs between ranks:" + how +
               "; every rank must make the same call");
  look_at_verdict();
}

// "rank 0, 1 on host a: barrier; rank 2 on host a: allreduce of 5 float32 (sum)"
std::string Group::calls_here() const {
  const Hosts& hosts = network_->hosts();
  auto desc = [this](uint32_t r) -> const CallDesc& { return control_.ranks[r].post[seq_ & 1].desc; };
  std::vector<bool> said(config_.size);
  std::string text;
  for (uint32_t r = 0; r < config_.size; ++r) {
    if (said[r]) continue;
    std::string ranks;
    size_t count = 0;
    for (uint32_t other = r; other < config_.size; ++other) {
      if (!same_call(desc(other), desc(r))) continue;
      said[other] = true;
      ranks += (count++ ? ", " : "") + std::to_string(config_.names[other]);
    }
    text += (text.empty() ? "" : "; ") + std::string(count > 1 ? "ranks " : "rank ") + ranks +
            " on host " + hosts.host_name(hosts.host()) + ": " + describe(desc(r));
    if (desc(r).scales != desc(0).scales) text += " with other scales";
  }
  return text;
}

WaitConfig Group::wait_config_of(const Caller& caller) const {
  WaitConfig wait = config_.wait;
  if (!caller.may_spin) wait.spins = 0;
  return wait;
}

Entry::Wait Group::entry_wait(const Call& call, const Caller& caller) {
  return [&](const std::function<bool()>& ready, const std::function<std::vector<uint32_t>()>& who) {
    auto looked = [&] {
      network_->progress();
      return ready();
    };
    if (looked()) return;
    caller.on_block();
    auto missing = [&] {
      std::vector<uint32_t> places;
      for (uint32_t rank : who()) places.push_back(network_->place(rank));
      return places;
    };
    waiter_.wait(Network::wait_config(config_.wait, caller.may_spin), looked, missing,
                 [&] { return call_text(call); }, [&] { look_around(caller); },
                 [&] { return network_->nap_ns(); });
  };
}

std::vector<uint32_t> Group::gone_everywhere() {
  if (!network_) return gone();
  network_->look();
  const Hosts& hosts = network_->hosts();
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < total(); ++rank) {
    const bool gone = hosts.is_here(rank) ? waiter_.is_gone(hosts.index(rank))
                                          : network_->alarms().has_left(rank);
    if (rank != index() && gone) ranks.push_back(rank);
  }
  return ranks;
}

Group::~Group() {
  close_network();
  if (network_ && network_->left_behind()) keep_for_mpi(arenas_);
}

void Group::close_network() {
  if (!network_) return;
  pipes_.close();
  journal_.stop_relay();
  std::lock_guard<std::mutex> lock(run_mutex_);
  network_->close();
}

}  // namespace blinkrun
