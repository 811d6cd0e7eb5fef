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

// Memory of `size` ranks, and the ranks' groups.
struct Host {
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  explicit Host(uint32_t size, double timeout_s = 20.0, uint64_t eager_bytes = 256,
                const PaceConfig& pace = {})
      : control(Control::bytes(size, pace.rates.size()) + 64) {
    char* base = control.data() + (64 - uintptr_t(control.data()) % 64) % 64;
    Control::at(base, size).header->size = size;
    Control::at(base, size).header->num_resources = uint32_t(pace.rates.size());
    std::vector<int32_t> names;
    for (uint32_t r = 0; r < size; ++r) {
      names.push_back(int32_t(r));
      arenas.emplace_back(static_cast<char*>(std::calloc(kArena + 4096, 1)));
    }
    for (uint32_t r = 0; r < size; ++r) {
      std::vector<Mapping> mapped;
      for (auto& arena : arenas) {
        char* at = arena.get() + (4096 - uintptr_t(arena.get()) % 4096) % 4096;
        mapped.push_back(Mapping::borrowed(at, kArena));
      }
      GroupConfig config{r, size, names, timeout_s, WaitConfig{20, 200'000}, 16 << 10, eager_bytes, pace};
      const size_t bytes = Control::bytes(size, pace.rates.size());
      groups.push_back(
          std::make_shared<Group>(config, Mapping::borrowed(base, bytes), std::move(mapped)));
    }
  }

  template <class Body> void run(Body body) {
    std::vector<std::thread> threads;
    for (auto& group : groups) threads.emplace_back([&body, group] { body(*group); });
    for (auto& thread : threads) thread.join();
  }

  std::vector<char> control;
  std::vector<std::unique_ptr<char[], Free>> arenas;
  std::vector<std::shared_ptr<Group>> groups;
};

}  // namespace blinkrun
