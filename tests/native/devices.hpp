// Ranks with devices that are host memory, the blocks of their kernels threads or turns of one thread.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "flat.hpp"
#include "host_machine.hpp"

namespace blinkrun {

using Block = DeviceBlock<HostMachine>;
using Reaches = std::function<bool(uint32_t, uint32_t)>;

constexpr uint64_t kDeviceScratch = 1 << 20, kDeviceHeap = 1 << 20, kDeviceRings = 2 << 20;
constexpr uint64_t kDeviceHeapAt = kDeviceControlBytes + 2 * kDeviceEagerBytes + kDeviceScratch;
constexpr uint64_t kFirstCall = (uint64_t(1) << 32) - 3;  // counters pass 32 bits while a test runs

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using RawMemory = std::unique_ptr<char, FreeMemory>;

inline RawMemory make_memory(size_t bytes) {
  const size_t whole = (bytes + 4095) / 4096 * 4096;
  RawMemory memory(static_cast<char*>(std::aligned_alloc(4096, whole)));
  std::memset(memory.get(), 0, whole);
  return memory;
}

// One rank: its two areas, what it shares with the host, and its programs by collective, root, pieces.
struct DeviceRank {
  RawMemory arena, area;
  std::unique_ptr<DeviceHost> host = std::make_unique<DeviceHost>();
  DeviceGroup group{};
  std::map<std::tuple<Collective, int32_t, uint32_t>, std::vector<std::string>> programs;
  char* heap() const { return arena.get() + kDeviceHeapAt; }
};

class Devices {
 public:
  Devices(std::vector<uint32_t> host_of, const Reaches& reaches) : host_of_(std::move(host_of)) {
    const uint32_t all = uint32_t(host_of_.size());
    for (uint32_t i = 0; i < all; ++i) {
      ranks_.emplace_back();
      ranks_[i].arena = make_memory(kDeviceHeapAt + kDeviceHeap);
      ranks_[i].area = make_memory(kDeviceHeapAt + kDeviceRings);
      std::memset(static_cast<void*>(ranks_[i].host.get()), 0, sizeof(DeviceHost));
    }
    for (uint32_t i = 0; i < all; ++i) join(i, reaches);
  }

  bool hosts_differ = false;  // what proxies say of calls from now on

  uint32_t size() const { return uint32_t(ranks_.size()); }
  DeviceRank& rank(uint32_t i) { return ranks_[i]; }
  uint64_t calls(uint32_t i) { return control(i).seq - kFirstCall; }
  DeviceControl& control(uint32_t i) {
    return *ranks_[i].group.mine[ranks_[i].group.rank];
  }

  void load(uint32_t i, const Program& program) {
    for (uint32_t pieces = 1; pieces <= (program.eager ? 1 : 3); ++pieces) {
      const uint64_t chunk = program.all > program.size ? 1024 : 0;
      auto& variants = ranks_[i].programs[{program.collective, program.root, pieces}];
      variants.resize(size_t(DeviceVariant::kCount));
      const auto variant = program.eager ? size_t(DeviceVariant::kEager) : size_t(program.addressing);
      variants[variant] = flatten(program, pieces, chunk);
    }
  }

  // A call of a rank, with the programs for it.
  DeviceCall call(uint32_t i, Collective collective, int32_t root, uint32_t pieces) {
    DeviceCall call{};
    call.group = &ranks_[i].group;
    call.collective = uint32_t(collective);
    call.root = root;
    call.dtype = uint32_t(DType::kInt32);
    call.op = uint32_t(Op::kSum);
    call.prescale = call.postscale = 1.0;
    call.timeout_ns = 20'000'000'000;
    for (uint32_t p : {pieces, 1u}) {  // eager ones have one piece
      const auto& variants = ranks_[i].programs[{collective, rooted(collective) ? root : 0, p}];
      for (size_t v = 0; v < variants.size(); ++v)
        if (!call.programs[v] && !variants[v].empty() && (p == pieces || v == 3))
          call.programs[v] = reinterpret_cast<const FlatProgram*>(variants[v].data());
    }
    return call;
  }

  // Run calls, one of each rank, with `blocks` of each (0: the rank does not come), in turns of this
  // thread, in an order that follows from the seed; `look` is called between them.
  void run_turns(const std::vector<DeviceCall>& calls, const std::vector<uint32_t>& blocks, uint64_t seed,
                 const std::function<void()>& look = [] {}) {
    std::vector<std::deque<DeviceCall>> queues;
    for (const DeviceCall& call : calls) queues.push_back({call});
    run_queues(queues, blocks, seed, look);
  }

  // The same with several calls of each rank, one after the other, as in a stream.
  void run_queues(std::vector<std::deque<DeviceCall>> queues, const std::vector<uint32_t>& blocks,
                  uint64_t seed, const std::function<void()>& look = [] {}) {
    struct Running {
      uint32_t rank;
      std::unique_ptr<Block> block;
    };
    std::mt19937_64 random(seed);
    std::vector<Running> running;
    std::vector<uint32_t> left(size());
    auto start = [&](uint32_t i) {
      if (queues[i].empty() || !blocks[i]) return;
      begin(i, queues[i].front());
      left[i] = blocks[i];
      for (uint32_t b = 0; b < blocks[i]; ++b) {
        running.push_back({i, std::make_unique<Block>()});
        running.back().block->begin(queues[i].front(), HostMachine(b, blocks[i]));
      }
    };
    reset();
    for (uint32_t i = 0; i < size(); ++i) start(i);
    while (!running.empty()) {
      const size_t at = random() % running.size();
      const uint32_t rank = running[at].rank;
      DeviceTurn turn = DeviceTurn::kBusy;
      for (uint64_t turns = 1 + random() % 16; turns && turn < DeviceTurn::kThrough; --turns) {
        turn = running[at].block->turn();
        if (turn == DeviceTurn::kMove) host_move(*running[at].block, queues[rank].front());
        if (turn == DeviceTurn::kIdle) break;
      }
      if (turn == DeviceTurn::kThrough) {
        std::swap(running[at], running.back());
        running.pop_back();
        if (!--left[rank]) {
          queues[rank].pop_front();
          start(rank);
        }
      }
      if (random() % 8 == 0) pump(uint32_t(random() % size()));
      look();
    }
  }

  // The same with a thread for each block, and one for messages.
  void run_threads(const std::vector<DeviceCall>& calls, const std::vector<uint32_t>& blocks, uint64_t seed) {
    reset();
    for (uint32_t i = 0; i < calls.size(); ++i)
      if (blocks[i]) begin(i, calls[i]);
    std::vector<std::thread> threads;
    std::atomic<uint32_t> left{0};
    for (uint32_t count : blocks) left += count;
    for (uint32_t i = 0; i < calls.size(); ++i)
      for (uint32_t b = 0; b < blocks[i]; ++b)
        threads.emplace_back([&, i, b] {
          std::mt19937_64 random(seed + i * 64 + b);
          Block block;
          block.begin(calls[i], HostMachine(b, blocks[i]));
          for (DeviceTurn turn = DeviceTurn::kBusy; turn != DeviceTurn::kThrough;) {
            turn = block.turn();
            if (turn == DeviceTurn::kMove) host_move(block, calls[i]);
            if (turn == DeviceTurn::kIdle || random() % 8 == 0) std::this_thread::yield();
          }
          --left;
        });
    while (left && group_is_spread()) {
      for (uint32_t i = 0; i < size(); ++i) pump(i);
      std::this_thread::yield();
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  // Of one stream and piece: how far the wire is, and what is on it.
  struct Stream {
    bool sends;
    std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> wire;  // from, to, number, piece
    uint64_t through = 0;
  };

  void join(uint32_t i, const Reaches& reaches) {
    DeviceGroup& group = ranks_[i].group;
    std::vector<uint32_t> near;
    for (uint32_t other = 0; other < size(); ++other) {
      if (host_of_[other] != host_of_[i]) continue;
      if (other == i) group.rank = uint32_t(near.size());
      near.push_back(other);
    }
    group.size = uint32_t(near.size());
    group.index = i;
    group.all = size();
    group.arena_bytes = kDeviceHeapAt + kDeviceHeap;
    group.scratch_bytes = kDeviceScratch;
    group.chunk_bytes = 1024;
    group.rings_at = kDeviceHeapAt;
    group.rings_bytes = kDeviceRings;
    group.host = ranks_[i].host.get();
    for (uint32_t r = 0; r < group.size; ++r) {
      DeviceRank& peer = ranks_[near[r]];
      const bool there = reaches(i, near[r]), back = reaches(near[r], i);
      group.arenas[r] = there ? peer.arena.get() : nullptr;
      group.areas[r] = peer.area.get();
      group.to[r] = reinterpret_cast<DeviceControl*>((there ? peer.arena : peer.area).get());
      group.mine[r] = reinterpret_cast<DeviceControl*>((back ? ranks_[i].arena : ranks_[i].area).get());
    }
    control(i).seq = kFirstCall;
  }

  bool group_is_spread() const { return ranks_[0].group.all > ranks_[0].group.size; }

  void reset() {
    streams_.assign(size(), {});
    running_.assign(size(), 0);
    wires_.clear();
  }

  void begin(uint32_t i, const DeviceCall& call) {
    const uint64_t seq = running_[i] = control(i).seq + 1;
    ranks_[i].host->verdicts[seq % kDeviceVerdicts] = seq << 1 | hosts_differ;
    streams_[i].clear();
    const FlatProgram* program = call.programs[size_t(DeviceVariant::kStaged)];
    if (!program) return;
    for (uint32_t s = 0; s < program->num_streams * program->pieces; ++s) {
      const FlatStream& stream = flat_streams(program)[s / program->pieces];
      const uint32_t from = stream.sends ? i : stream.rank, to = stream.sends ? stream.rank : i;
      streams_[i].push_back({stream.sends != 0, {from, to, stream.number, s % program->pieces}});
    }
  }

  // What the proxy of a rank does: move chunks that may go.
  void pump(uint32_t i) {
    constexpr uint64_t slot = 1024;
    const HostMachine machine;
    for (size_t s = 0; s < streams_[i].size(); ++s) {
      Stream& stream = streams_[i][s];
      DeviceCounts& counts = ranks_[i].host->counts[s];
      if (machine.load(&counts.started) <= device_count(running_[i], stream.through)) continue;
      char* ring = ranks_[i].area.get() + kDeviceHeapAt + (s * kRingDepth + stream.through % kRingDepth) * slot;
      auto& wire = wires_[stream.wire];
      if (stream.sends) {
        wire.emplace_back(ring, slot);
      } else {
        if (wire.empty()) continue;
        std::memcpy(ring, wire.front().data(), slot);
        wire.pop_front();
      }
      ++stream.through;
      HostMachine().store(&counts.through, device_count(running_[i], stream.through));
    }
  }

  std::vector<uint32_t> host_of_;
  std::vector<uint64_t> running_;  // numbers of the calls
  std::deque<DeviceRank> ranks_;
  std::vector<std::vector<Stream>> streams_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>, std::deque<std::string>> wires_;
};

}  // namespace blinkrun
