// Shared memory: mappings of memfds, and the heap of buffers that users ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "types.hpp"

namespace blinkrun {

// A file descriptor's memory, mapped shared; unmapped when destroyed. The descriptor stays the
// caller's.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, size_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  // Memory that somebody else maps and unmaps: for ranks that are threads of one process.
  static Mapping borrowed(char* data, size_t bytes);

  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool contains(const void* p) const {
    return p >= data_ && p < data_ + bytes_;
  }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  bool owned_ = true;
};

// Layout of a rank's arena: [eager area, twice][scratch][pipes, see p2p.hpp][heap].
constexpr size_t kEagerBytes = 256 << 10;
constexpr size_t kScratchBytes = 32 << 20;
constexpr size_t kPipesBytes = 1 << 20;
constexpr size_t kPipesStart = 2 * kEagerBytes + kScratchBytes;
constexpr size_t kHeapStart = kPipesStart + kPipesBytes;

// Best-fit heap over [kHeapStart, bytes) of an arena. Offsets are multiples of 4096 for large
// blocks and of 64 for small ones.
class Heap {
 public:
  explicit Heap(size_t arena_bytes);
  // Offset in the arena, or SIZE_MAX when no room is left.
  size_t allocate(size_t bytes);
  void release(size_t offset);
  size_t in_use() const;

 private:
  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> bytes
  std::map<size_t, size_t> used_;
  size_t in_use_ = 0;
};

}  // namespace blinkrun
