#include "mpi.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "waiting.hpp"

namespace blinkrun {

namespace {

using Word = uint64_t;  // a handle
using Isend = int (*)(const void*, int, Word, int, int, Word, void*);
using Irecv = int (*)(void*, int, Word, int, int, Word, void*);
using Test = int (*)(void*, int*, void*);
using Testsome = int (*)(int, void*, int*, int*, void*);
using OfRequest = int (*)(void*);
using GetCount = int (*)(const void*, Word, int*);
using ErrorString = int (*)(int, char*, int*);
using Finalized = int (*)(int*);

constexpr int kErrorText = 4096;  // more than any MPI's MPI_MAX_ERROR_STRING

template <class Function> Function at(uintptr_t address) {
  return reinterpret_cast<Function>(address);
}

}  // namespace

void keep_to_the_end(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;  // outlives what is static
  std::lock_guard<std::mutex> lock(mutex);
  kept.push_back(std::move(memory));
}

Messages::Messages(const MpiConfig& config) : config_(config) {}

Messages::~Messages() { abandon(); }

void Messages::check(int code, const char* what) const {
  if (code == 0) return;
  char text[kErrorText] = "";
  int length = 0;
  at<ErrorString>(config_.error_string)(code, text, &length);
  throw Failure{Failure::Kind::kMpi, std::string(what) + ": " + text, {}};
}

Messages::Id Messages::start(bool is_send, void* data, size_t bytes, int rank, int tag) {
  if (free_.empty()) {
    const size_t before = slots_.size(), now = before ? 2 * before : 16;
    slots_.resize(now);
    requests_.resize((now * config_.request_bytes + 7) / 8);
    statuses_.resize((now * config_.status_bytes + 7) / 8);
    indices_.resize(now);
    for (size_t id = now; id-- > before;) {
      std::memcpy(request(Id(id)), &config_.request_null, config_.request_bytes);
      free_.push_back(Id(id));
    }
  }
  const Id id = free_.back();
  const int code =
      is_send ? at<Isend>(config_.isend)(data, int(bytes), config_.byte, rank, tag, config_.comm, request(id))
              : at<Irecv>(config_.irecv)(data, int(bytes), config_.byte, rank, tag, config_.comm, request(id));
  check(code, is_send ? "MPI_Isend" : "MPI_Irecv");
  free_.pop_back();
  slots_[id] = Slot{true, false, is_send, bytes};
  ++pending_;
  if (is_send && config_.test) look_at_once(id);
  return id;
}

// A send that is through at once never gets among those of MPI_Testsome: with pml/ucx it belongs to
// no communicator, and Open MPI 5 ends the job where others of the array belong to one
// (open-mpi/ompi#12942). MPI_Test takes it.
void Messages::look_at_once(Id id) {
  int through = 0;
  check(at<Test>(config_.test)(request(id), &through, statuses_.data()), "MPI_Test");
  if (!through) return;
  slots_[id].through = true;
  --pending_;
  went_at_once_ = true;
}

bool Messages::is_null(Id id) {
  return std::memcmp(request(id), &config_.request_null, config_.request_bytes) == 0;
}

Messages::Id Messages::send(const void* data, size_t bytes, uint32_t rank, int tag) {
  return start(true, const_cast<void*>(data), bytes, int(rank), tag);
}

Messages::Id Messages::recv(void* data, size_t bytes, uint32_t rank, int tag) {
  return start(false, data, bytes, int(rank), tag);
}

bool Messages::progress() {
  const bool any = std::exchange(went_at_once_, false);
  if (!pending_) return any;
  int count = 0;
  check(at<Testsome>(config_.testsome)(int(slots_.size()), requests_.data(), &count, indices_.data(),
                                       statuses_.data()),
        "MPI_Testsome");
  for (int i = 0; i < count; ++i) {
    Slot& slot = slots_[size_t(indices_[size_t(i)])];
    slot.through = true;
    --pending_;
    if (slot.is_send) continue;
    const char* status = reinterpret_cast<const char*>(statuses_.data()) + size_t(i) * config_.status_bytes;
    int bytes = 0;
    check(at<GetCount>(config_.get_count)(status, config_.byte, &bytes), "MPI_Get_count");
    slot.bytes = size_t(std::max(bytes, 0));  // undefined where it was cancelled
  }
  return any || count > 0;
}

bool Messages::finish(Id id, size_t* bytes) {
  Slot& slot = slots_[id];
  if (!slot.through) return false;
  if (bytes) *bytes = slot.bytes;
  slot = Slot{};
  free_.push_back(id);
  return true;
}

// What MPI has said to be null is through: a look that failed may have made it so unsaid.
void Messages::cancel(Id id) {
  const Slot& slot = slots_[id];
  if (slot.used && !slot.through && !slot.is_send && !is_null(id))
    at<OfRequest>(config_.cancel)(request(id));
}

void Messages::drop(Id id) {
  Slot& slot = slots_[id];
  if (!slot.through && !is_null(id)) at<OfRequest>(config_.request_free)(request(id));
  pending_ -= !slot.through;
  slot = Slot{};
  free_.push_back(id);
}

bool Messages::abandon(uint64_t grace_ns) {
  int over = 0;
  if (pending_ && config_.finalized) at<Finalized>(config_.finalized)(&over);
  for (Id id = 0; id < slots_.size() && !over; ++id) cancel(id);
  const timespec pause{0, 200'000};
  try {
    for (const uint64_t start = now_ns(); pending_ && !over;) {
      progress();  // once in any case: what was cancelled is through then
      if (!pending_ || now_ns() - start >= grace_ns) break;
      nanosleep(&pause, nullptr);
    }
  } catch (const Failure&) {  // why they are abandoned has been said
  }
  for (Id id = 0; id < slots_.size(); ++id) {
    if (!slots_[id].used) continue;
    if (!slots_[id].through && !over && !is_null(id)) {
      at<OfRequest>(config_.request_free)(request(id));
      left_behind_ = true;
    }
    slots_[id] = Slot{};
    free_.push_back(id);
  }
  pending_ = 0;
  went_at_once_ = false;
  return !left_behind_;
}

}  // namespace blinkrun
