// The control block that all ranks of a host share: who has entered which call, flags, waits.
//
// One writer per field: a rank writes its own RankControl and its own flags; others read. The
// exceptions are the bells (rung by whoever wakes the rank), the abort record (first one wins), and the
// journal and the calendars of an emulated machine (written by who holds them).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "types.hpp"

namespace blinkrun {

constexpr uint32_t kMagic = 0x626c6e6b;  // "blnk"
constexpr uint32_t kLayout = 4;
constexpr size_t kFlagsPerRank = 2048;
constexpr size_t kAbortText = 1024;
constexpr size_t kVerdictText = 4096;
constexpr size_t kTimes = 256;
constexpr uint32_t kGaps = 126;

// What a rank calls. Everything but the addresses must agree on all ranks.
struct CallDesc {
  uint64_t count;       // elements of a block
  uint64_t input;       // offsets in the rank's arena; kPrivate: ordinary memory
  uint64_t output;
  uint64_t scales;      // hash of pre- and postscale
  int32_t root;
  uint8_t collective;
  uint8_t dtype;
  uint8_t op;
  uint8_t unused;
};

constexpr uint64_t kPrivate = ~uint64_t(0);

struct alignas(kCacheLine) PostLine {
  std::atomic<uint64_t> seq;  // number of the call that `desc` describes
  CallDesc desc;
  uint64_t chunk_bytes;  // what the rank wants; that of the first rank counts. 0: no wish
  uint64_t start_ns;     // paced: when the rank came
};
static_assert(sizeof(PostLine) == kCacheLine, "one transfer tells a peer everything");

// Where threads sleep on a futex: `bell` is rung to wake them.
struct alignas(kCacheLine) BellLine {
  std::atomic<uint32_t> bell;
  std::atomic<uint32_t> asleep;  // threads that are, or are about to be
};

enum class RankState : uint32_t { kJoining, kActive, kLeft };
enum class AbortKind : uint32_t { kNone, kAborted, kTimeout, kPeerLeft };

struct alignas(kCacheLine) RankControl {
  PostLine post[2];  // by parity of the call: a slow peer may still read the last one
  alignas(kCacheLine) std::atomic<uint32_t> bell;
  alignas(kCacheLine) std::atomic<uint64_t> waiting_for;  // bit p % 64: asleep, wake on p's signal
  alignas(kCacheLine) std::atomic<uint32_t> state;
  int32_t pid;
  uint64_t pid_namespace;
  alignas(kCacheLine) std::atomic<uint64_t> journal_read;  // bytes taken; kReadsNoMore: none ever
  BellLine journal;  // rung by every post while somebody sleeps here
  BellLine alarm;    // rung by urgent posts, and when this rank should make room
};

constexpr uint64_t kReadsNoMore = ~uint64_t(0);

// What flags hold: calls are so many that they never wrap, chunks are fewer than 2^24. With half of
// the bits for each, 2^32 small calls, a few hours of them, were enough to take an old flag for a new one.
constexpr uint32_t kChunkBits = 24;
constexpr uint64_t flag_count(uint64_t call, uint64_t chunks) { return (call << kChunkBits) + chunks; }

struct alignas(kCacheLine) Flag {
  std::atomic<uint64_t> value;  // the `flag_count` of the chunks that are done
};

// When a flag of the emulated machine had its last counts, by their number modulo kTimes. A waiter
// that is so far behind reads a later time, never an earlier one.
struct FlagTimes {
  std::atomic<uint64_t> ns[kTimes];
};

struct AbortRecord {
  std::atomic<uint32_t> claimed;
  std::atomic<uint32_t> kind;  // written last: the rest is valid when it is not kNone
  int32_t rank;                // who aborted
  int32_t about;               // rank that is missing or gone, else -1
  char text[kAbortText];
};

// When a resource of the emulated machine is busy: always before `free_from_ns`, except in gaps.
struct alignas(kCacheLine) Calendar {
  struct Gap {
    uint64_t from_ns, to_ns;
  };
  uint64_t free_from_ns;
  uint64_t left_over;  // of the last division of bytes by the rate
  uint32_t num_gaps;
  Gap gaps[kGaps];     // ascending; the oldest is forgotten when they are too many

  // Give `bytes` the first free time from `ready_ns` on; returns when it is over.
  uint64_t reserve(uint64_t ready_ns, uint64_t bytes, uint64_t bytes_per_s);

 private:
  void take(uint32_t index, uint64_t from_ns, uint64_t to_ns);
  void insert(uint32_t index, Gap gap);
  void erase(uint32_t index);
};

constexpr uint64_t kJournalBytes = 1 << 20;

// Messages of many ranks in one order. Positions count all bytes ever written.
struct alignas(kCacheLine) JournalControl {
  std::atomic<uint64_t> end;                          // what lies before it is there to be read
  alignas(kCacheLine) std::atomic<uint32_t> held;     // by rank + 1; 0: by none
  uint64_t slowest;                                   // the holder's: no rank has read less
  BellLine room;                                      // rung by readers while a writer waits
  alignas(kCacheLine) char ring[kJournalBytes];
};

// Of a job on several hosts: what the ranks of this one have posted and its relay has not taken yet.
struct alignas(kCacheLine) OutgoingControl {
  BellLine relay;              // rung by posts while the relay sleeps
  std::atomic<uint64_t> read;  // bytes taken, by the relay
  JournalControl journal;
};

// What the first rank of a host has learned about a call on other hosts; it writes, the others read.
struct alignas(kCacheLine) Verdict {
  std::atomic<uint64_t> call;  // written last
  uint32_t differs;            // between hosts or ranks; then the text tells how
  char text[kVerdictText];
};

struct ControlHeader {
  uint32_t magic;
  uint32_t layout;
  uint32_t size;
  uint32_t num_resources;
  alignas(kCacheLine) std::atomic<uint32_t> calendars_held;  // by rank + 1; 0: by none
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;
  alignas(kCacheLine) AbortRecord abort;
  Verdict verdict;
};

// Addresses within the mapped block.
struct Control {
  ControlHeader* header = nullptr;
  RankControl* ranks = nullptr;
  Flag* flags = nullptr;
  Calendar* calendars = nullptr;  // these two of an emulated machine
  FlagTimes* times = nullptr;
  JournalControl* journal = nullptr;
  OutgoingControl* outgoing = nullptr;

  static size_t bytes(size_t size, size_t num_resources = 0) {
    return sizeof(ControlHeader) + size * (sizeof(RankControl) + kFlagsPerRank * sizeof(Flag)) +
           num_resources * sizeof(Calendar) + num_times(size, num_resources) * sizeof(FlagTimes) +
           sizeof(JournalControl) + sizeof(OutgoingControl);
  }
  static Control at(void* base, size_t size, size_t num_resources = 0) {
    Control c;
    c.header = static_cast<ControlHeader*>(base);
    c.ranks = reinterpret_cast<RankControl*>(c.header + 1);
    c.flags = reinterpret_cast<Flag*>(c.ranks + size);
    c.calendars = reinterpret_cast<Calendar*>(c.flags + size * kFlagsPerRank);
    c.times = reinterpret_cast<FlagTimes*>(c.calendars + num_resources);
    c.journal = reinterpret_cast<JournalControl*>(c.times + num_times(size, num_resources));
    c.outgoing = reinterpret_cast<OutgoingControl*>(c.journal + 1);
    return c;
  }
  static size_t num_times(size_t size, size_t num_resources) {
    return num_resources ? size * kFlagsPerRank : 0;
  }
  Flag& flag(size_t rank, size_t index) const { return flags[rank * kFlagsPerRank + index]; }
  std::atomic<uint64_t>& time_ns(size_t rank, size_t index, uint64_t count) const {
    return times[rank * kFlagsPerRank + index].ns[count % kTimes];
  }
};

}  // namespace blinkrun
