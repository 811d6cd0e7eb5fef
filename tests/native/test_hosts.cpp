// Jobs on several hosts, whose ranks are threads and whose MPI is between threads.
#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "calls.hpp"
#include "check.hpp"
#include "cluster.hpp"

using namespace blinkrun;

namespace {

std::vector<uint32_t> hosts_in(const std::string& name) {  // hosts-star-0011
  std::vector<uint32_t> host_of;
  for (char digit : name.substr(name.rfind('-') + 1)) host_of.push_back(uint32_t(digit - '0'));
  return host_of;
}

Call allreduce(int32_t* x, uint64_t count, Op op = Op::kSum) {
  return Call{Collective::kAllreduce, DType::kInt32, op, 0, x, x, count, 1.0, 1.0};
}

using Programs = std::vector<std::pair<uint32_t, Program>>;  // with their ranks

std::map<std::string, Programs> programs_over_hosts(const char* path) {
  std::map<std::string, Programs> suites;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string name;
    uint32_t size, rank;
    in >> name >> size >> rank;
    if (name.rfind("hosts", 0) != 0) continue;
    std::vector<int32_t> words;
    for (int32_t word; in >> word;) words.push_back(word);
    Program program = decode_program(words.data(), words.size());
    program.chunk_bytes = 4096;  // many, and each of them in two messages
    suites[name].emplace_back(rank, std::move(program));
  }
  return suites;
}

Programs some_programs(const char* path, const std::string& name) {
  Programs found;
  const auto suites = programs_over_hosts(path);
  for (auto& [rank, program] : suites.at(name))
    if (program.collective == Collective::kAllreduce) found.emplace_back(rank, program);
  CHECK(!found.empty());
  return found;
}

void load(Cluster& cluster, const Programs& programs) {
  for (auto& [rank, program] : programs) cluster.groups[rank]->load(program);
}

// What every rank gets that the call fails for.
std::vector<Failure> failures(Cluster& cluster, const std::function<void(Group&)>& body) {
  std::mutex mutex;
  std::vector<Failure> all;
  cluster.run([&](Group& group) {
    try {
      body(group);
    } catch (const Failure& failure) {
      std::lock_guard<std::mutex> lock(mutex);
      all.push_back(failure);
    }
  });
  return all;
}

// The calls of some ranks differ: all are told so in the same words, and go on.
void differ(Cluster& cluster, uint64_t count, const std::function<void(Call&, uint32_t)>& change,
            const std::vector<std::string>& said) {
  const auto told = failures(cluster, [&](Group& group) {
    std::vector<int32_t> x(count + 8);
    Call call = allreduce(x.data(), count);
    change(call, group.index());
    group.run(call, kCaller);
  });
  CHECK(told.size() == cluster.groups.size());
  for (const Failure& failure : told) {
    context() = failure.text;
    CHECK(failure.kind == Failure::Kind::kMismatch);
    CHECK(failure.text == told[0].text);
    for (const std::string& words : said) CHECK(failure.text.find(words) != std::string::npos);
  }
  cluster.run([&](Group& group) { call_once(group, Collective::kAllreduce, 0, Place::kUser, 9); });
}

void test_different_calls(const char* path, bool buffers) {
  Cluster cluster({0, 0, 1, 1}, buffers);
  load(cluster, some_programs(path, "hosts-star-0011"));
  for (uint64_t count : {4, 100'000}) {  // with the data, and before it
    const std::string others = ": allreduce of " + std::to_string(count) + " int32 (sum)";
    differ(cluster, count, [](Call& call, uint32_t rank) { call.count += rank / 2; },
           {"ranks 0, 1 on host a" + others, "ranks 2, 3 on host b: allreduce of "});
    differ(cluster, count, [](Call& call, uint32_t rank) { call.count += rank == 1; },
           {"rank 0 on host a" + others, "rank 1 on host a: allreduce of ", "ranks 2, 3 on host b" + others});
    differ(cluster, count, [](Call& call, uint32_t rank) { call.op = rank == 3 ? Op::kMax : Op::kSum; },
           {"rank 2 on host b" + others, "rank 3 on host b: allreduce of " + std::to_string(count) + " int32 (max)"});
    differ(cluster, count, [](Call& call, uint32_t rank) { call.prescale = rank / 2 ? 2.0 : 1.0; },
           {"ranks 2, 3 on host b" + others + " with other scales"});
    differ(cluster, count, [](Call& call, uint32_t rank) {
      if (rank == 2) call.collective = Collective::kBarrier;
    }, {"rank 2 on host b: barrier", "rank 3 on host b" + others});
    // One side with the data, the other before it.
    differ(cluster, count, [](Call& call, uint32_t rank) { call.count = rank / 2 ? 5 : 90'000; },
           {"ranks 0, 1 on host a: allreduce of 90000", "ranks 2, 3 on host b: allreduce of 5 "});
  }
}

void test_late(const char* path) {
  for (uint64_t count : {4, 100'000}) {
    Cluster cluster({0, 1, 0, 2, 1}, true, 1.0);
    load(cluster, some_programs(path, "hosts-star-01021"));
    std::vector<int32_t> x(count * 5);
    Call barrier{};
    barrier.collective = Collective::kBarrier;
    cluster.run([&](Group& group) { group.run(barrier, kCaller); });
    const auto told = failures(cluster, [&](Group& group) {
      if (group.index() == 4) return;  // of host b
      group.run(allreduce(x.data() + group.index() * count, count), kCaller);
    });
    CHECK(told.size() == 4);
    for (const Failure& failure : told) {
      context() = failure.text;
      CHECK(failure.kind == Failure::Kind::kTimeout);
      CHECK(failure.ranks == std::vector<int>{4});
      CHECK(failure.text.find("waited 1 s in allreduce of " + std::to_string(count)) != std::string::npos);
    }
  }
}

void test_host_late(const char* path) {
  Cluster cluster({0, 0, 1, 1}, false, 0.3);
  load(cluster, some_programs(path, "hosts-star-0011"));
  const auto told = failures(cluster, [&](Group& group) {
    int32_t x[4] = {};
    if (group.index() < 2) group.run(allreduce(x, 4), kCaller);
  });
  CHECK(told.size() == 2);
  for (const Failure& failure : told) {
    context() = failure.text;
    CHECK(failure.text.find("for ranks 2, 3 on host b;") != std::string::npos);
  }
}

void test_leaving_and_aborting(const char* path) {
  for (const bool aborts : {false, true}) {
    Cluster cluster({0, 1, 0, 2, 1}, true);
    load(cluster, some_programs(path, "hosts-chain-01021"));
    std::vector<int32_t> x(5 * 100'000);
    const auto told = failures(cluster, [&](Group& group) {
      if (group.index() == 3) return aborts ? group.abort("enough") : group.leave();
      group.run(allreduce(x.data() + group.index() * 100'000, 100'000), kCaller);
    });
    CHECK(told.size() == 4);
    for (const Failure& failure : told) {
      context() = failure.text;
      CHECK(failure.kind == (aborts ? Failure::Kind::kAborted : Failure::Kind::kPeerLeft));
      CHECK(failure.ranks == std::vector<int>{3});
      const char* said = aborts ? "enough" : "rank 3 on host c has left the job";
      CHECK(failure.text.find(said) != std::string::npos);
    }
    if (aborts) continue;
    CHECK(cluster.groups[0]->gone_everywhere() == std::vector<uint32_t>{3});
    cluster.run([](Group& group) { group.leave(); });
    for (auto& group : cluster.groups) {
      while (!group->all_left()) std::this_thread::yield();
      group->close_network();
    }
    for (auto& group : cluster.groups) CHECK(group->all_left());  // nobody else is heard of any more
  }
}

// MPI may be over before the ranks have left: who calls all the same is told, and nobody waits.
void test_ending_before_leaving() {
  Cluster cluster({0, 1, 2}, true);
  cluster.groups[0]->leave();
  for (auto& group : cluster.groups) group->close_network();
  const std::vector<std::function<void(Group&)>> calls{
      [](Group& group) {
        int32_t x = 0;
        group.run(allreduce(&x, 1), kCaller);
      },
      [](Group& group) {
        char x = 0;
        group.pipes().run({{true, group.index() ? 0u : 1u, 0, &x, 1}}, kCaller);
      }};
  for (const auto& call : calls) {
    const auto told = failures(cluster, call);
    CHECK(told.size() == cluster.groups.size());
    for (const Failure& failure : told)
      CHECK(failure.text.find("this rank sends nothing any more") != std::string::npos);
  }
  for (uint32_t rank : {1, 2}) {
    cluster.groups[rank]->leave();
    CHECK(cluster.groups[rank]->all_left());
  }
}

void test_network_down(const char* path) {
  Cluster cluster({0, 1}, false);
  load(cluster, some_programs(path, "hosts-star-01"));
  const auto told = failures(cluster, [&](Group& group) {
    int32_t x[4] = {};
    group.run(allreduce(x, 4), kCaller);
    Call barrier{};
    barrier.collective = Collective::kBarrier;
    group.run(barrier, kCaller);
    cluster.mpi.cut();
    group.run(allreduce(x, 4), kCaller);
  });
  CHECK(told.size() == 2);
  for (const Failure& failure : told)
    CHECK(failure.text.find("the network is down") != std::string::npos);
}

}  // namespace

void test_hosts(const char* path) {
  const auto suites = programs_over_hosts(path);
  CHECK(!suites.empty());
  bool buffers = false;
  for (auto& [name, programs] : suites) {
    Cluster cluster(hosts_in(name), buffers = !buffers);
    std::set<std::pair<Collective, int32_t>> calls;
    for (auto& [rank, program] : programs) calls.emplace(program.collective, program.root);
    load(cluster, programs);
    cluster.run([&calls](Group& group) {
      for (auto [collective, root] : calls)
        for (uint64_t count : {0, 1, 1009, 9001})
          for (Place place : {Place::kUser, Place::kArena, Place::kOutputInArena}) {
            // Ranks of different hosts may choose for themselves.
            const Place mine = group.network()->hosts().host() % 2 ? Place::kArena : place;
            call_once(group, collective, root, mine, count);
          }
    });
  }
}

void test_hosts_failures(const char* path) {
  for (const bool buffers : {false, true}) test_different_calls(path, buffers);
  test_late(path);
  test_host_late(path);
  test_leaving_and_aborting(path);
  test_ending_before_leaving();
  test_network_down(path);
}
