// Messages from rank to rank between hosts, with the promises of those inside one (p2p.hpp).
//
// A message is a head, with its bytes in it if they are few; else they come in messages of their own,
// which the receiver lets MPI put where they belong when it knows what they are. Heads are in order.
// What finds room in the sender's buffer is on its own: a thread lets MPI work until it is through.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lane.hpp"
#include "mpi.hpp"
#include "network.hpp"

namespace blinkrun {

constexpr size_t kMailBuffer = 256 << 10;  // bytes to a rank that it has not received yet

class Mail {
 public:
  Mail(Network& network, Waiter& waiter);
  ~Mail() { close(); }

  std::unique_ptr<Lane> send_lane(uint32_t peer);  // a rank on another host
  std::unique_ptr<Lane> recv_lane(uint32_t peer, std::optional<Failure>& mismatch);
  bool has(uint32_t peer, int64_t tag);  // a message of that tag, complete
  // Whether its bytes, which are not here, are on their way now.
  bool fetch(uint32_t peer, int64_t tag);
  void close();  // MPI is called no more

 private:
  class SendLane;
  class RecvLane;
  struct Head {
    int64_t tag;
    uint64_t bytes;
    uint32_t number;  // of the sender's messages to this rank
    uint32_t sender;
  };
  static constexpr size_t kLetter = 4096;  // a head and the few bytes in it
  static constexpr size_t kInline = kLetter - sizeof(Head);
  static constexpr size_t kAtATime = 1024;  // messages to a rank whose bytes are on their way
  // Bytes go in parts, each a message, and from or to a caller's memory few at a time: who ends in
  // the middle takes that memory with it, and MPI finishes what it has begun.
  static constexpr size_t kPart = 256 << 10, kParts = 4;

  using Ids = std::vector<Messages::Id>;
  struct Direct {  // whose bytes MPI moves from or to where the caller has them
    Transfer transfer;
    uint32_t number;
    size_t begun = 0;  // bytes
    Ids ids;
  };
  using Directs = std::list<Direct>;
  struct Went {
    size_t through = 0;  // messages
    bool moved = false;  // or parts of them
  };
  struct Arrived {
    Head head;
    std::unique_ptr<char[]> data;  // null where it still is with the sender
    Ids fetching;                  // it comes
  };
  struct Sent {
    uint32_t peer;
    std::unique_ptr<char[]> data;
    size_t buffered;  // of the peer's room
    bool follows;     // bytes behind the head
    Ids ids;
  };
  struct Peer {
    uint32_t next = 0;       // number of the next message to it
    size_t buffered = 0;
    size_t following = 0;    // messages whose bytes are on their way to it
    std::map<int, Direct*> sending, receiving;  // the latest of each tag in MPI
    std::map<int64_t, std::deque<Arrived>> arrived;  // by tag
    // Those of `arrived` whose bytes are with the sender and not asked for, by their tag in MPI.
    std::map<int, Arrived*> unasked;
  };

  // With the mutex held:
  bool progress();
  bool through(Ids& ids);
  Went finish(Directs& list);  // what is through is no longer in it
  void drop(Directs& list);
  void begin(Directs& list, const Transfer& transfer, uint32_t number);
  void go_on(Direct& direct, size_t most = kParts);
  void begin_rest(bool sends, uint32_t peer, uint32_t number);
  std::map<int, Direct*>& latest(const Transfer& transfer) {
    return transfer.sends ? peers_[transfer.peer].sending : peers_[transfer.peer].receiving;
  }
  void forget(Direct& direct);
  void take_letter(const char* data, size_t bytes);
  bool fits(uint32_t peer, size_t bytes) const;
  void send_buffered(uint32_t peer, const Transfer& transfer);
  void send_direct(Directs& list, const Transfer& transfer);
  void start_bytes(Ids& ids, bool sends, char* data, size_t bytes, uint32_t peer, uint32_t number);
  void ask(uint32_t peer, Arrived& arrived);
  Arrived* find(uint32_t peer, int64_t tag);
  void serve();

  Network& network_;
  Waiter& waiter_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Standing letters_;  // outlives what MPI brings to it
  Messages messages_;
  std::vector<Peer> peers_;
  std::list<Sent> sent_;      // whose memory is ours
  std::thread thread_;
  bool closed_ = false;
};

}  // namespace blinkrun
