// Carries the messages of calls on devices between hosts: from and to rings of chunks in pinned host
// memory, by MPI. Each rank has one, a thread of its own that sleeps while no call is under way.
//
// A call is submitted here before its kernel is launched. The proxies of all ranks tell each
// other what their ranks call, ahead of the kernels; a kernel moves nothing before its proxy's verdict.
// Messages of a call begin when all hosts agree and everything earlier has gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device_block.hpp"
#include "group.hpp"
#include "mpi.hpp"

namespace blinkrun {

// What the messages of a rank in one call are: cut as the kernel cuts them.
struct ProxyRoute {
  struct Flow {  // of one stream and one piece
    uint32_t rank;       // among all
    int tag;
    bool sends;
    size_t first_bytes, chunk_bytes, bytes;  // of the first chunk, of the others, of all
    uint64_t num_chunks;
    size_t bytes_of(uint64_t chunk) const {
      if (chunk + 1 == num_chunks)
        return num_chunks == 1 ? bytes : bytes - first_bytes - (num_chunks - 2) * chunk_bytes;
      return chunk ? chunk_bytes : first_bytes;
    }
  };
  std::vector<Flow> flows;  // [stream * pieces + piece]
  size_t slot_bytes = 0;    // of a ring
};

// `flat` is the head of a whole flat program with a chunk of its own, for scratch memory of
// `scratch_bytes`.
ProxyRoute route_of(const FlatProgram& flat, uint64_t scratch_bytes, uint64_t count, DType dtype);

class Proxy {
 public:
  // `group` is one over several hosts, in which `mpi` counts ranks alike; `rings` are `rings_bytes`
  // of host memory that outlive the proxy, as does `host`. `scratch_bytes` are those of the
  // DeviceGroup.
  Proxy(std::shared_ptr<Group> group, const MpiConfig& mpi, DeviceHost* host, char* rings,
        size_t rings_bytes, uint64_t scratch_bytes);
  ~Proxy() { close(); }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // A flat program that calls may name. Throws std::invalid_argument.
  uint32_t load(std::string flat);
  // The next call of this rank; before its kernel is launched. `program` is that of any variant that
  // the kernel may choose, or kNoProgram where nothing moves. Returns its number.
  uint64_t submit(uint32_t program, const DeviceDesc& desc);
  static constexpr uint32_t kNoProgram = ~uint32_t(0);

  // How a call differs between ranks, in the same words on all hosts; empty if it does not, or if it
  // is long ago.
  std::string words(uint64_t call);
  // Ranks that have not come to a call, by their number among all.
  std::vector<uint32_t> missing(uint64_t call);
  // Ends the thread, when what is on its way has gone or has had its time; MPI is called no more.
  void close();

 private:
  struct Head {  // what ranks tell each other of a call
    uint64_t call;
    DeviceDesc desc;
    uint32_t rank, unused;
  };
  static_assert(sizeof(Head) <= 64, "one line");
  struct Entered {
    uint64_t call;
    uint32_t program;
    DeviceDesc desc;
  };
  struct Telling {  // a head, and where it is still on its way
    Head head;
    std::vector<Messages::Id> ids;
  };
  struct Part {  // of a chunk, each a message
    Messages::Id id;
    bool is_last;
  };
  struct Moving {  // chunks of a stream and a piece, in the call that is open
    uint64_t started = 0, through = 0;
    std::deque<Part> under_way;
  };

  void serve();
  bool turn();
  bool is_idle() const { return agreeing_.empty() && agreed_.empty() && !open_ && telling_.empty(); }
  bool take_submitted();
  void tell(const Entered& entered);
  bool agree();
  bool open();
  bool move();
  void start(const ProxyRoute::Flow& flow, Moving& state, char* ring);
  void forget_told();
  std::string differ(const Entered& entered) const;
  const Head* head_of(uint32_t rank, uint64_t call) const;
  void fail(const std::string& text);

  std::shared_ptr<Group> group_;
  const Hosts& hosts_;
  DeviceHost* host_;
  char* rings_;
  size_t rings_bytes_;
  uint64_t scratch_bytes_;

  std::mutex mutex_;  // of what follows, up to the thread's own
  std::condition_variable changed_;
  std::vector<std::shared_ptr<const std::string>> programs_;
  std::deque<Entered> submitted_;
  uint64_t calls_ = 0;
  std::map<uint64_t, std::string> words_;
  bool closing_ = false;
  uint64_t agreed_upon_ = 0;  // the last call for which there is a verdict
  std::vector<std::vector<Head>> heads_;  // by rank: what has come and is not agreed upon

  Standing come_;  // outlives what MPI brings to it
  Messages messages_;
  std::deque<Entered> agreeing_, agreed_;
  std::deque<Telling> telling_;
  bool open_ = false;
  uint64_t call_ = 0;  // that is open
  ProxyRoute route_;
  std::vector<Moving> moving_;
  std::thread thread_;
};

}  // namespace blinkrun
