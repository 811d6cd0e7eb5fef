// Groups whose ranks are threads over one mapping.
#pragma once

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "group.hpp"

namespace blinkrun {

constexpr size_t kArena = kHeapStart + (8 << 20);

inline const Caller kCaller{[] {}, [] {}, true};

// Memory of the ranks of a host: what control block and arenas lie in.
struct Memory {
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  explicit Memory(uint32_t size, size_t num_resources = 0)
      : bytes(Control::bytes(size, num_resources)), control(bytes + 64) {
    Control::at(base(), size).header->size = size;
    Control::at(base(), size).header->num_resources = uint32_t(num_resources);
    for (uint32_t r = 0; r < size; ++r)
      arenas.emplace_back(static_cast<char*>(std::calloc(kArena + 4096, 1)));
  }

  char* base() const {
    char* data = const_cast<char*>(control.data());
    return data + (64 - uintptr_t(data) % 64) % 64;
  }
  Mapping control_block() const { return Mapping::borrowed(base(), bytes); }
  std::vector<Mapping> arena_blocks() const {
    std::vector<Mapping> mapped;
    for (auto& arena : arenas) {
      char* at = arena.get() + (4096 - uintptr_t(arena.get()) % 4096) % 4096;
      mapped.push_back(Mapping::borrowed(at, kArena));
    }
    return mapped;
  }

  size_t bytes;
  std::vector<char> control;
  std::vector<std::unique_ptr<char[], Free>> arenas;
};

// The groups of `size` ranks.
struct Host {
  explicit Host(uint32_t size, double timeout_s = 20.0, uint64_t eager_bytes = 256,
                const PaceConfig& pace = {})
      : memory(size, pace.rates.size()) {
    std::vector<int32_t> names;
    for (uint32_t r = 0; r < size; ++r) names.push_back(int32_t(r));
    for (uint32_t r = 0; r < size; ++r) {
      GroupConfig config{r, size, names, timeout_s, WaitConfig{20, 200'000}, 16 << 10, eager_bytes,
                         pace, {}, {}};
      groups.push_back(
          std::make_shared<Group>(config, memory.control_block(), memory.arena_blocks()));
    }
  }

  template <class Body> void run(Body body) {
    std::vector<std::thread> threads;
    for (auto& group : groups) threads.emplace_back([&body, group] { body(*group); });
    for (auto& thread : threads) thread.join();
  }

  Memory memory;
  std::vector<std::shared_ptr<Group>> groups;
};

}  // namespace blinkrun
