#include "arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace blinkrun {

Mapping::Mapping(int fd, size_t bytes) : bytes_(bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) {
    throw std::runtime_error("cannot map " + std::to_string(bytes) + " bytes of shared memory: " +
                             std::strerror(errno) + "; set BLINKRUN_ARENA_BYTES to a smaller size");
  }
  data_ = static_cast<char*>(p);
  madvise(p, bytes, MADV_HUGEPAGE);  // only a hint; refused where the system has none
}

Mapping::~Mapping() {
  if (data_ && owned_) munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)),
      owned_(other.owned_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(owned_, other.owned_);
  return *this;
}

Mapping Mapping::borrowed(char* data, size_t bytes) {
  Mapping mapping;
  mapping.data_ = data;
  mapping.bytes_ = bytes;
  mapping.owned_ = false;
  return mapping;
}

Heap::Heap(size_t arena_bytes) {
  if (arena_bytes > kHeapStart) free_[kHeapStart] = arena_bytes - kHeapStart;
}

size_t Heap::allocate(size_t bytes) {
  const size_t unit = bytes >= 4096 ? 4096 : kCacheLine;
  const size_t need = std::max<size_t>((bytes + unit - 1) / unit * unit, unit);
  std::lock_guard<std::mutex> lock(mutex_);
  auto best = free_.end();
  size_t best_pad = 0;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const size_t pad = (unit - it->first % unit) % unit;
    if (it->second < need + pad) continue;
    if (best == free_.end() || it->second < best->second) {
      best = it;
      best_pad = pad;
    }
  }
  if (best == free_.end()) return SIZE_MAX;
  const size_t start = best->first, room = best->second, offset = start + best_pad;
  free_.erase(best);
  if (best_pad) free_[start] = best_pad;
  if (room > need + best_pad) free_[offset + need] = room - need - best_pad;
  used_[offset] = need;
  in_use_ += need;
  return offset;
}

void Heap::release(size_t offset) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto used = used_.find(offset);
  if (used == used_.end()) return;
  size_t bytes = used->second;
  in_use_ -= bytes;
  used_.erase(used);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && offset + bytes == after->first) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

size_t Heap::in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

}  // namespace blinkrun
