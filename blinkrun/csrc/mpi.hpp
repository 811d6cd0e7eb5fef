// Messages between hosts by the MPI that the process has loaded, whichever it is.
//
// The core links no MPI: `comm/mpi.py` gives the addresses of its functions and its handles, which
// are words of 4 or 8 bytes. A 4-byte handle is passed in a register, of which MPI reads one half.
// MPI must grant MPI_THREAD_MULTIPLE: several threads work with `Messages` of their own at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace blinkrun {

// Who uses which tags of a communicator of ours. MPI guarantees 32767 of them.
constexpr int kStreamTag = 0;        // + stream: chunks of a program's stream, in order
constexpr int kMostStreams = 8192;   // between two ranks
constexpr int kEntryTag = 8192;      // what the ranks of a host call
constexpr int kAlarmTag = 8193;      // a rank has left, or has aborted the job
constexpr int kJournalTag = 8194;    // messages of the engine
constexpr int kPairHeadTag = 8195;   // messages from rank to rank: tag and size
constexpr int kPairTag = 16384;      // + number modulo kPairTags: their bytes
constexpr int kPairTags = 8192;

// Functions and handles of an MPI, and a communicator in which ranks count as they do in the group.
struct MpiConfig {
  uintptr_t isend = 0, irecv = 0, testsome = 0, cancel = 0, request_free = 0, get_count = 0,
            error_string = 0,
            test = 0,       // to be missing where sends need no look of their own
            finalized = 0;  // may be missing
  uint64_t comm = 0, byte = 0, request_null = 0;
  uint32_t request_bytes = 0, status_bytes = 0;
  size_t piece_bytes = 0;  // most bytes of a message that this MPI is quick with; 0: any
};

// How long the end of messages waits for those that cannot be cancelled.
constexpr uint64_t kGrace = 200'000'000;

// Keep memory that MPI may still read or write, until the process ends.
void keep_to_the_end(std::shared_ptr<void> memory);
template <class T> void keep_for_mpi(T& memory) {
  keep_to_the_end(std::make_shared<T>(std::move(memory)));
}

// Messages that one thread at a time has on their way. Throws Failure (kMpi) if MPI says no.
class Messages {
 public:
  using Id = uint32_t;
  static constexpr size_t kLargest = size_t(1) << 30;  // bytes of a message

  explicit Messages(const MpiConfig& config);
  ~Messages();  // abandons what is on its way
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Start a message; the memory stays the caller's, untouched until `finish` has said true.
  Id send(const void* data, size_t bytes, uint32_t rank, int tag);
  Id recv(void* data, size_t bytes, uint32_t rank, int tag);  // of at most so many bytes

  bool progress();  // let MPI work; whether any message got through
  // Whether a message is through; then its number is free for another, and must not be used again.
  bool finish(Id id, size_t* bytes = nullptr);
  void cancel(Id id);  // a receive to which nothing has come: it is through then
  void drop(Id id);    // nobody will ask for it; MPI may still read or write its memory
  size_t piece_bytes() const { return config_.piece_bytes ? config_.piece_bytes : kLargest; }
  size_t on_their_way() const { return pending_; }
  // Cancel what can be cancelled, give the rest `grace_ns` to get through, and forget it. False if
  // MPI may still read or write the memory of a message, of this time or an earlier one.
  bool abandon(uint64_t grace_ns = kGrace);

 private:
  struct Slot {
    bool used, through, is_send;
    size_t bytes;
  };
  Id start(bool is_send, void* data, size_t bytes, int rank, int tag);
  void look_at_once(Id id);
  bool is_null(Id id);
  void check(int code, const char* what) const;
  char* request(Id id) { return reinterpret_cast<char*>(requests_.data()) + id * config_.request_bytes; }

  MpiConfig config_;
  std::vector<uint64_t> requests_;  // room for an array of MPI_Request
  std::vector<uint64_t> statuses_;
  std::vector<int> indices_;
  std::vector<Slot> slots_;
  std::vector<Id> free_;
  size_t pending_ = 0;
  bool went_at_once_ = false;  // since the last `progress`
  bool left_behind_ = false;   // a message that MPI was not through with
};

// Receives that are always there for short messages of one tag: one for each of some ranks. MPICH
// 5.0.2 loses what comes to a receive from any rank on hosts with several.
class Standing {
 public:
  Standing(size_t most_bytes, int tag) : most_bytes_(most_bytes), tag_(tag) {}

  void listen(Messages& messages, uint32_t rank) {
    receives_.push_back({rank, 0, std::unique_ptr<char[]>(new char[most_bytes_])});
    start(messages, receives_.back());
  }

  // Hand on what has come, as data and bytes; whether anything has.
  template <class Take> bool take(Messages& messages, Take take) {
    bool any = false;
    size_t bytes = 0;
    for (Receive& each : receives_) {
      if (!messages.finish(each.id, &bytes)) continue;
      take(each.data.get(), bytes);
      start(messages, each);
      any = true;
    }
    return any;
  }

 private:
  struct Receive {
    uint32_t rank;
    Messages::Id id;
    std::unique_ptr<char[]> data;
  };
  void start(Messages& messages, Receive& receive) {
    receive.id = messages.recv(receive.data.get(), most_bytes_, receive.rank, tag_);
  }

  size_t most_bytes_;
  int tag_;
  std::vector<Receive> receives_;
};

}  // namespace blinkrun
