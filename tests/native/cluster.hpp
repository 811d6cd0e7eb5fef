// Groups of a job on several hosts: every rank is a thread, every host has memory of its own.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fake_mpi.hpp"
#include "host.hpp"

namespace blinkrun {

struct Cluster {
  explicit Cluster(std::vector<uint32_t> host_of, bool buffers, double timeout_s = 20.0,
                   uint64_t eager_bytes = 1 << 20)
      : mpi(uint32_t(host_of.size()), buffers) {
    std::vector<int32_t> names;
    std::vector<std::string> host_names;
    for (uint32_t rank = 0; rank < host_of.size(); ++rank) {
      names.push_back(int32_t(rank));
      while (host_of[rank] >= host_names.size())
        host_names.push_back(std::string(1, char('a' + host_names.size())));
    }
    const Hosts hosts(0, names, host_of, host_names);
    groups.resize(host_of.size());
    for (uint32_t h = 0; h < hosts.num_hosts(); ++h) memory.emplace_back(uint32_t(hosts.ranks(h).size()));
    for (uint32_t rank = 0; rank < host_of.size(); ++rank) {
      const Memory& mine = memory[host_of[rank]];
      std::vector<int32_t> near;
      for (uint32_t other : hosts.ranks(host_of[rank])) near.push_back(names[other]);
      GroupConfig config{hosts.index(rank), uint32_t(near.size()), near, timeout_s,
                         WaitConfig{20, 200'000}, 16 << 10, eager_bytes, {}, {}, {}};
      config.hosts = Hosts(rank, names, host_of, host_names);
      config.mpi = mpi.config(rank);
      groups[rank] = std::make_shared<Group>(config, mine.control_block(), mine.arena_blocks());
    }
  }

  template <class Body> void run(Body body) {
    std::vector<std::thread> threads;
    for (auto& group : groups) threads.emplace_back([&body, group] { body(*group); });
    for (auto& thread : threads) thread.join();
  }

  FakeMpi mpi;
  std::vector<Memory> memory;
  std::vector<std::shared_ptr<Group>> groups;
};

}  // namespace blinkrun
