// An MPI between threads of one process: enough of it for `Messages`, in either of its two manners.
// Where a message is used as MPI does not allow it ends the tests.
#pragma once

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "mpi.hpp"

namespace blinkrun {

class FakeMpi {
 public:
  // `buffers`: a send is through at once, wherever the receiver is. Else both ends must be there, and
  // the data goes straight from one's memory to the other's.
  FakeMpi(uint32_t size, bool buffers) : buffers_(buffers) {
    for (uint32_t rank = 0; rank < size; ++rank) comms_.push_back(Comm{this, int(rank)});
  }

  MpiConfig config(uint32_t rank) {
    MpiConfig mpi;
    mpi.isend = uintptr_t(&isend);
    mpi.irecv = uintptr_t(&irecv);
    mpi.test = uintptr_t(&test_one);
    mpi.testsome = uintptr_t(&testsome);
    mpi.cancel = uintptr_t(&cancel);
    mpi.request_free = uintptr_t(&request_free);
    mpi.get_count = uintptr_t(&get_count);
    mpi.error_string = uintptr_t(&error_string);
    mpi.comm = uint64_t(uintptr_t(&comms_[rank]));
    mpi.byte = 1;
    mpi.request_null = 0;
    mpi.request_bytes = sizeof(Request*);
    mpi.status_bytes = sizeof(size_t);
    mpi.piece_bytes = 3000;  // chunks go in several
    return mpi;
  }

  // From now on receives have begun: none can be cancelled.
  void hold() {
    std::lock_guard<std::mutex> lock(mutex_);
    holds_ = true;
  }

  // What is left behind goes on: MPI reads and writes where it was told to. How much there was.
  size_t go_on() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Pointer& request : under_way_) {
      if (!request->sends) std::memset(request->data, 0x5a, request->bytes);
      else if (!buffers_) request->kept.assign(request->data, request->data + request->bytes);
    }
    const size_t count = under_way_.size();
    under_way_.clear();
    return count;
  }

  // From now on every call says that the network is down.
  void cut() {
    std::lock_guard<std::mutex> lock(mutex_);
    cut_ = true;
  }

 private:
  struct Request;
  struct Comm {
    FakeMpi* mpi;
    int rank;
  };
  struct Request {
    FakeMpi* mpi;
    char* data;
    size_t bytes;
    int src, dst, tag;
    bool sends, through = false;
    bool at_once = false;  // a send, when it was begun
    std::vector<char> kept;
  };
  using Pointer = std::shared_ptr<Request>;

  static int error_string(int, char* text, int* length) {
    *length = std::snprintf(text, 64, "the network is down");
    return 0;
  }

  static int isend(const void* data, int count, uint64_t, int dst, int tag, uint64_t comm, void* request) {
    Comm& from = *reinterpret_cast<Comm*>(uintptr_t(comm));
    return from.mpi->start({from.mpi, static_cast<char*>(const_cast<void*>(data)), size_t(count),
                            from.rank, dst, tag, true, false, false, {}}, request);
  }

  static int irecv(void* data, int count, uint64_t, int src, int tag, uint64_t comm, void* request) {
    Comm& to = *reinterpret_cast<Comm*>(uintptr_t(comm));
    return to.mpi->start({to.mpi, static_cast<char*>(data), size_t(count), src, to.rank, tag, false,
                          false, false, {}}, request);
  }

  int start(Request made, void* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cut_) return 1;
    auto request = std::make_shared<Request>(std::move(made));
    if (request->sends && buffers_) {
      request->kept.assign(request->data, request->data + request->bytes);
      request->through = request->at_once = true;
    }
    under_way_.push_back(request);
    all_[request.get()] = request;
    Request* raw = request.get();
    std::memcpy(handle, &raw, sizeof raw);
    match();
    return 0;
  }

  // In order: the first receive that a message fits takes it.
  void match() {
    for (auto send = under_way_.begin(); send != under_way_.end();) {
      auto receive = under_way_.end();
      if ((*send)->sends) receive = taker(**send);
      if (receive == under_way_.end()) {
        ++send;
        continue;
      }
      Request &s = **send, &r = **receive;
      const size_t bytes = std::min(s.bytes, r.bytes);
      if (bytes) std::memcpy(r.data, buffers_ ? s.kept.data() : s.data, bytes);
      r.bytes = bytes;
      s.through = r.through = true;
      under_way_.erase(receive);
      for (send = under_way_.begin(); send != under_way_.end() && send->get() != &s;) ++send;
      under_way_.erase(send);
      send = under_way_.begin();
    }
  }

  std::deque<Pointer>::iterator taker(const Request& s) {
    for (auto r = under_way_.begin(); r != under_way_.end(); ++r)
      if (!(*r)->sends && (*r)->dst == s.dst && (*r)->tag == s.tag &&
          (*r)->src == s.src)
        return r;
    return under_way_.end();
  }

  static int testsome(int count, void* requests, int* done, int* indices, void* statuses) {
    *done = 0;
    FakeMpi* mpi = nullptr;
    Request** all = static_cast<Request**>(requests);
    for (int i = 0; i < count; ++i)
      if (all[i]) mpi = all[i]->mpi;
    return mpi ? mpi->test(count, all, done, indices, static_cast<size_t*>(statuses)) : 0;
  }

  static int test_one(void* handle, int* through, void* status) {
    Request*& request = *static_cast<Request**>(handle);
    std::lock_guard<std::mutex> lock(request->mpi->mutex_);
    if (request->mpi->cut_) return 1;
    *through = request->through;
    if (!*through) return 0;
    *static_cast<size_t*>(status) = request->bytes;
    request->mpi->all_.erase(request);
    request = nullptr;
    return 0;
  }

  // Open MPI 5 refuses to look at requests together of which some belong to no communicator.
  static bool are_alike(int count, Request** all) {
    bool with = false, without = false;
    for (int i = 0; i < count; ++i)
      if (all[i]) (all[i]->at_once ? without : with) = true;
    return !with || !without;
  }

  int test(int count, Request** all, int* done, int* indices, size_t* statuses) {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK(are_alike(count, all));
    for (int i = 0; i < count; ++i) {
      if (!all[i] || !all[i]->through) continue;
      if (cut_) {  // through all the same, but nobody is told
        all_.erase(all[i]);
        all[i] = nullptr;
        continue;
      }
      indices[*done] = i;
      statuses[(*done)++] = all[i]->bytes;
      all_.erase(all[i]);
      all[i] = nullptr;
    }
    return cut_;
  }

  static int get_count(const void* status, uint64_t, int* count) {
    *count = int(*static_cast<const size_t*>(status));
    return 0;
  }

  static int cancel(void* handle) {
    Request* request = *static_cast<Request**>(handle);
    CHECK(request);
    std::lock_guard<std::mutex> lock(request->mpi->mutex_);
    if (request->mpi->holds_) return 0;
    auto& under_way = request->mpi->under_way_;
    for (auto r = under_way.begin(); r != under_way.end(); ++r) {
      if (r->get() != request) continue;
      under_way.erase(r);
      request->bytes = 0;
      request->through = true;
      break;
    }
    return 0;
  }

  static int request_free(void* handle) {
    Request*& request = *static_cast<Request**>(handle);
    CHECK(request);
    FakeMpi* mpi = request->mpi;
    std::lock_guard<std::mutex> lock(mpi->mutex_);
    mpi->all_.erase(request);  // one under way stays so
    request = nullptr;
    return 0;
  }

  const bool buffers_;
  std::deque<Comm> comms_;
  std::mutex mutex_;
  std::deque<Pointer> under_way_;
  std::map<Request*, Pointer> all_;
  bool cut_ = false, holds_ = false;
};

}  // namespace blinkrun
