// What the first ranks of all hosts tell each other in every call: what is called, and in small
// calls the data as well. Nothing else moves before they know that all call the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control.hpp"
#include "hosts.hpp"
#include "mpi.hpp"

namespace blinkrun {

inline bool same_call(const CallDesc& a, const CallDesc& b) {
  return a.count == b.count && a.scales == b.scales && a.root == b.root &&
         a.collective == b.collective && a.dtype == b.dtype && a.op == b.op;
}

class Entry {
 public:
  enum class Kind : uint32_t { kCall, kEager, kDiffers };  // differs: between the ranks of a host
  // Before the data of a small call.
  struct Head {
    uint64_t call;
    CallDesc desc;
    Kind kind;
    uint32_t bytes;  // of data
    uint64_t unused;
  };
  static_assert(sizeof(Head) == kCacheLine);
  // Thrown by `take`: a host calls something else. `settle` must follow.
  struct Disagreement {};
  // Waits until the first is true; the second lists the ranks that are missing.
  using Wait = std::function<void(const std::function<bool()>&,
                                  const std::function<std::vector<uint32_t>()>&)>;

  Entry(Messages& messages, const Hosts& hosts);

  void begin(uint64_t call, const CallDesc& desc);
  // Whether the ranks of all hosts call the same, where those of this one do if they `agree`.
  bool meet(bool agree, const Wait& wait);
  // After a disagreement: how the calls differ, in the same words on all hosts.
  std::string settle(const std::string& here, const Wait& wait);

  // The small way. `message` has room for a head before the data.
  void send(uint32_t host, char* message, size_t data_bytes);
  bool sent(uint32_t host);
  bool come(uint32_t host);
  const char* take(uint32_t host);  // the data of a host that has come, until `done`
  void done(uint32_t host);

  void keep() { keep_for_mpi(peers_); }  // the memory of messages; nothing is called from now on

 private:
  struct Peer {
    uint32_t host, leader;
    std::unique_ptr<char[]> in;  // memory that only large messages touch
    Head out;
    Messages::Id receive, send;
    size_t bytes;
    bool come, done;  // its message is there; has been read
    bool begun, sent;
  };
  Peer& peer(uint32_t host) { return peers_[host < hosts_.host() ? host : host - 1]; }
  const Head& head(const Peer& peer) const {
    return *reinterpret_cast<const Head*>(peer.in.get());
  }
  bool same(const Peer& peer, Kind kind) const;
  void expect(Peer& peer);
  void start(Peer& peer, const void* message, size_t bytes);
  void tell(Peer& peer, Kind kind);
  bool come(Peer& peer);
  bool sent(Peer& peer);
  bool all_come();
  bool all_sent();
  std::vector<uint32_t> missing();

  Messages& messages_;
  const Hosts& hosts_;
  uint64_t call_ = 0;
  CallDesc desc_{};
  std::vector<Peer> peers_;
  std::vector<const char*> headed_;  // messages that have their head
};

}  // namespace blinkrun
