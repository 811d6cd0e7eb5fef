// Groups whose ranks are threads over one mapping, so that ThreadSanitizer sees every access.
#include <atomic>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "calls.hpp"
#include "check.hpp"
#include "host.hpp"
#include "queue.hpp"

using namespace blinkrun;

namespace {

// A link from every rank to every other: a wire of its own, and the port of who receives.
PaceConfig switched(uint32_t size, uint64_t rate) {
  PaceConfig pace;
  for (uint32_t src = 0; src < size; ++src)
    for (uint32_t dst = 0; dst < size; ++dst)
      if (src != dst) pace.links.push_back({uint32_t(pace.links.size()), size * (size - 1) + dst});
  pace.rates.assign(size * size, rate);
  return pace;
}

}  // namespace

void test_programs(const char* path) {
  std::map<std::pair<std::string, uint32_t>, std::vector<std::pair<uint32_t, Program>>> suites;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("hosts", 0) == 0 || line.rfind("device", 0) == 0) continue;
    std::istringstream in(line);
    std::string shape;
    uint32_t size, rank;
    in >> shape >> size >> rank;
    std::vector<int32_t> words;
    for (int32_t word; in >> word;) words.push_back(word);
    suites[{shape, size}].emplace_back(rank, decode_program(words.data(), words.size()));
  }
  CHECK(!suites.empty());
  for (auto& [name, programs] : suites) {
    // The larger limit is beyond what slots hold: the one-shot way must stop at its slots.
    const bool paced = name.first.rfind("paced", 0) == 0;
    Host host(name.second, 20.0, name.first == "star" ? 1 << 20 : 256,
              paced ? switched(name.second, 1'000'000'000) : PaceConfig{});
    std::vector<std::pair<Collective, int32_t>> calls;
    for (auto& [rank, program] : programs) {
      const bool direct = !program.eager && program.addressing == Addressing::kDirect;
      if (rank == 0 && direct) calls.emplace_back(program.collective, program.root);
      host.groups[rank]->load(program);
    }
    host.run([&](Group& group) {
      for (auto [collective, root] : calls)
        for (Place place : {Place::kUser, Place::kArena, Place::kOutputInArena})
          for (uint64_t count : {0, 1, 7, 63, 65, 1009, 40'009})
            call_once(group, collective, root, place, count);
    });
  }
}

void test_failures() {
  Host late(3, 0.3);
  std::atomic<int> timeouts{0};
  late.run([&](Group& group) {
    Call barrier{};
    barrier.collective = Collective::kBarrier;
    group.run(barrier, kCaller);
    if (group.rank() == 1) return;
    try {
      group.run(barrier, kCaller);
    } catch (const Failure& f) {
      CHECK(f.kind == Failure::Kind::kTimeout);
      CHECK(f.ranks == std::vector<int>{1});
      ++timeouts;
    }
  });
  CHECK(timeouts == 2);

  Host gone(3);
  std::atomic<int> told{0};
  gone.run([&](Group& group) {
    Call barrier{};
    barrier.collective = Collective::kBarrier;
    if (group.rank() == 2) return group.leave();
    try {
      group.run(barrier, kCaller);
    } catch (const Failure& f) {
      CHECK(f.kind == Failure::Kind::kPeerLeft);
      CHECK(f.ranks == std::vector<int>{2});
      ++told;
    }
  });
  CHECK(told == 2);

  Host apart(3);
  std::atomic<int> mismatches{0};
  apart.run([&](Group& group) {
    int32_t x[4] = {};
    const uint64_t count = group.rank() == 1 ? 3 : 4;
    Call call{Collective::kAllreduce, DType::kInt32, Op::kSum, 0, x, x, count, 1.0, 1.0};
    try {
      group.run(call, kCaller);
    } catch (const Failure& f) {
      CHECK(f.kind == Failure::Kind::kMismatch);
      CHECK(f.text.find("rank 1: allreduce of 3 int32") != std::string::npos);
      ++mismatches;
    }
    Call barrier{};  // the group goes on working
    barrier.collective = Collective::kBarrier;
    group.run(barrier, kCaller);
  });
  CHECK(mismatches == 3);

  // A flag of the last of many calls never counts for the next one.
  constexpr uint64_t many = uint64_t(1) << 32;
  CHECK(flag_count(many, 0) > flag_count(many - 1, (1 << kChunkBits) - 1));

  Host queued(2);
  queued.run([&](Group& group) {
    Queue queue(queued.groups[group.rank()]);
    Call barrier{};
    barrier.collective = Collective::kBarrier;
    std::vector<std::shared_ptr<Job>> jobs;
    for (int i = 0; i < 50; ++i) jobs.push_back(queue.submit(barrier));
    for (auto& job : jobs) job->wait();
    CHECK(queue.idle() || jobs.back()->done());
  });
}

// Two threads of every rank exchange messages of many sizes with all other ranks, each with a tag of
// its own: the one that reads sets aside what is for the other.
void test_messages() {
  const std::vector<size_t> sizes{0, 1, 16, 4099, kPipeRing + 1, 700'001};
  Host host(3);
  host.run([&](Group& group) {
    auto talk = [&](int64_t tag) {
      for (size_t round = 0; round < sizes.size(); ++round) {
        const size_t bytes = sizes[(round + size_t(tag)) % sizes.size()];
        std::vector<std::vector<char>> memory;
        std::vector<Transfer> transfers;
        for (uint32_t peer = 0; peer < group.size(); ++peer) {
          if (peer == group.rank()) continue;
          memory.emplace_back(bytes, char(group.rank() + round));
          transfers.push_back({true, peer, tag, memory.back().data(), bytes});
          memory.emplace_back(bytes, char(-1));
          transfers.push_back({false, peer, tag, memory.back().data(), bytes});
        }
        group.pipes().run(transfers, kCaller);
        for (const Transfer& t : transfers)
          for (size_t i = 0; !t.sends && i < bytes; ++i) CHECK(t.data[i] == char(t.peer + round));
      }
    };
    std::thread other(talk, 1);
    talk(2);
    other.join();
  });

  Host late(2, 0.2);
  std::atomic<int> told{0};
  late.run([&](Group& group) {
    if (group.rank() == 1) return;
    char x[8];
    try {
      group.pipes().run({{false, 1, 5, x, sizeof x}}, kCaller);
    } catch (const Failure& f) {
      CHECK(f.kind == Failure::Kind::kTimeout);
      CHECK(f.ranks == std::vector<int>{1});
      ++told;
    }
  });
  CHECK(told == 1);
}

void test_heap() {
  Heap heap(kHeapStart + (1 << 20));
  const size_t a = heap.allocate(100), b = heap.allocate(5000), c = heap.allocate(0);
  CHECK(a % 64 == 0 && b % 4096 == 0 && c != a && c != b);
  CHECK(heap.allocate(2 << 20) == SIZE_MAX);
  heap.release(a);
  heap.release(c);
  heap.release(b);
  heap.release(b);  // twice is harmless
  CHECK(heap.in_use() == 0);
  CHECK(heap.allocate(1 << 20) == kHeapStart);  // all pieces have grown together again
}
