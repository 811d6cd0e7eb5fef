// The ranks of one host, seen from one of them: enters calls together and runs their programs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arena.hpp"
#include "control.hpp"
#include "journal.hpp"
#include "kernels.hpp"
#include "network.hpp"
#include "p2p.hpp"
#include "pacing.hpp"
#include "program.hpp"
#include "waiting.hpp"

namespace blinkrun {

// One collective call of this rank.
struct Call {
  Collective collective;
  DType dtype;
  Op op;
  int32_t root;
  const void* input;   // null where the rank gives none
  void* output;        // null where the rank takes none
  uint64_t count;      // elements of a block: of the smaller of input and output
  double prescale = 1.0;
  double postscale = 1.0;
};

// When a channel of a call moved its first and last bytes, by CLOCK_MONOTONIC.
struct ChannelTimes {
  uint32_t start, stop;  // shares
  uint64_t first_ns, last_ns;
};

enum class Variant { kDirect, kStaged, kOutputOnly, kEager };

struct GroupConfig {
  uint32_t rank;
  uint32_t size;
  std::vector<int32_t> names;  // of the ranks, for messages
  double timeout_s;
  WaitConfig wait;
  size_t chunk_bytes;  // largest chunk of a pipelined program for which nobody asks for another
  uint64_t eager_bytes;  // largest block that an eager program takes
  PaceConfig pace = {};  // of an emulated machine; no links: the ranks are as fast as they can be
  Hosts hosts = {};      // where there are several; `rank` and `size` are of this one
  MpiConfig mpi = {};
};

class Group {
 public:
  Group(GroupConfig config, Mapping control, std::vector<Mapping> arenas);
  ~Group();

  // Add a program of this rank. Programs must be there on all ranks before the call that uses
  // them; `covers` says whether they are. Of several for the same calls, the first whose
  // `most_bytes` is enough is taken. Throws std::invalid_argument where the program cannot be run.
  void load(Program program);
  void unload(Collective collective, int32_t root);  // all its programs
  bool covers(Collective collective, int32_t root) const;

  // Run a call to its end. Throws Failure, or what `on_look` throws.
  void run(const Call& call, const Caller& caller);

  // Note the times of the channels of every call from now on.
  void set_traced(bool traced) { traced_ = traced; }
  std::vector<ChannelTimes> last_channels() const;  // of the last call that was traced

  void leave();                           // this rank takes no further part
  // End every rank's waits with an error; `about`: the rank that is late or gone, by its name.
  void abort(const std::string& text, AbortKind kind = AbortKind::kAborted, int32_t about = -1);
  bool aborted() const { return waiter_.aborted(); }
  void check() const {  // throws what the job was aborted for, if it was
    if (waiter_.aborted()) waiter_.throw_aborted();
  }
  std::vector<uint32_t> gone();           // the other ranks of the host that have left or died
  std::vector<uint32_t> gone_everywhere();  // of all, by their number among all
  bool all_left() const;
  void close_network();  // call MPI no more; this rank has left
  bool has_left(uint32_t rank) const {  // by itself, not by dying
    return control_.ranks[rank].state.load(std::memory_order_acquire) == uint32_t(RankState::kLeft);
  }
  void set_timeout(double seconds) { waiter_.set_timeout(seconds); }
  // What the first rank asks for here is the chunk of every rank's pipelined programs, from its next
  // call on. 0: what the program says.
  void set_chunk_bytes(size_t bytes) { wanted_chunk_bytes_ = bytes; }
  void set_eager_bytes(uint64_t bytes) { config_.eager_bytes = bytes; }

  Journal& journal() { return journal_; }
  Pipes& pipes() { return pipes_; }
  Mapping& arena() { return arenas_[config_.rank]; }
  const Mapping& arena_of(uint32_t rank) const { return arenas_.at(rank); }
  Heap& heap() { return heap_; }
  uint64_t calls() const { return seq_; }
  // Of the last call that was paced or moved more than a few KB: from the time when all ranks had
  // come to the end, and the same by the clock of the emulated machine. The first is longer by what
  // this machine was too slow.
  uint64_t last_ns() const { return last_ns_.load(std::memory_order_relaxed); }
  uint64_t last_paced_ns() const { return last_paced_ns_.load(std::memory_order_relaxed); }
  uint32_t rank() const { return config_.rank; }
  int32_t name() const { return config_.names[config_.rank]; }
  uint32_t size() const { return config_.size; }
  uint32_t total() const { return network_ ? network_->hosts().size() : config_.size; }
  uint32_t index() const { return network_ ? network_->hosts().rank() : config_.rank; }
  Network* network() { return network_.get(); }  // null on one host
  std::string describe(const CallDesc& desc) const;  // "allreduce of 5 float32 (sum)"
  const WaitConfig& wait_config() const { return config_.wait; }

 private:
  friend class CallPolicy;
  friend class StreamPolicy;
  friend class EagerPolicy;
  friend class PacedPolicy;
  template <class Policy> friend class Traced;
  // A program and what it is for, side by side: every call looks through them.
  struct Loaded {
    Collective collective;
    int32_t root;
    Variant variant;
    uint64_t most_bytes;
    std::shared_ptr<const Program> program;
  };
  using Programs = std::vector<Loaded>;

  static const Program* find(const Programs& programs, Collective collective, int32_t root,
                             Variant variant, uint64_t call_bytes);
  const Programs* programs() const { return current_.load(std::memory_order_acquire); }
  void replace_programs(std::unique_ptr<const Programs> table);
  void check_ways(const Program& program, const Step& step) const;
  uint64_t offset_of(const void* p) const;
  void check_messages(Program& program) const;
  void post(const Call& call);
  void enter(const Call& call, const Caller& caller);
  void look_around(const Caller& caller);
  void run_prologue(const Program& program, const Call& call);
  template <class Policy> void run_program(const Program& program, const Call& call, const Caller& caller);
  template <class Policy> void run_channels(const Program& program, const Call& call, const Caller& caller);
  bool all_posted() const;
  bool agree() const;
  void check_agreement() const;
  void run_entered(const Call& call, const Caller& caller);
  void run_everywhere(const Program* eager, const Call& call, const Caller& caller);
  void enter_everywhere(bool eager, const Call& call, const Caller& caller);
  void run_eager_everywhere(const Program& program, const Call& call, const Caller& caller);
  void look_at_verdict() const;
  void give_verdict(const std::string& text);
  WaitConfig wait_config_of(const Caller& caller) const;
  void settle(const Call& call, const Caller& caller);
  std::string calls_here() const;
  Entry::Wait entry_wait(const Call& call, const Caller& caller);
  Variant choose(const Programs& programs, const Call& call, uint64_t bytes) const;
  int32_t name_of(uint32_t rank) const {  // among all
    return network_ ? network_->hosts().name(rank) : config_.names[rank];
  }
  std::string call_text(const Call& call) const;
  std::string no_program(const Call& call, Variant variant, uint64_t bytes) const;

  GroupConfig config_;
  Mapping control_memory_;
  std::vector<Mapping> arenas_;
  Control control_;
  Heap heap_;
  Waiter waiter_;
  std::unique_ptr<Network> network_;  // before those who use it
  Journal journal_;
  Pipes pipes_;
  ReduceFn reduce_;
  std::unique_ptr<Pacer> pacer_;
  std::vector<std::unique_ptr<const Programs>> tables_;  // the last is current
  std::atomic<const Programs*> current_;
  std::atomic<uint64_t> wanted_chunk_bytes_{0}, last_ns_{0}, last_paced_ns_{0};
  uint64_t seq_ = 0;
  std::mutex run_mutex_;
  std::atomic<bool> traced_{false};
  mutable std::mutex trace_mutex_;
  std::vector<ChannelTimes> last_channels_;
};

}  // namespace blinkrun
