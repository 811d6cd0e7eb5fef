#include "proxy.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace blinkrun {

namespace {

constexpr uint64_t kYield = 50'000;  // of looking again before the first nap
// Between two looks at what is on its way: a part of the time since anything moved.
constexpr uint64_t kShortestNap = 20'000, kLongestNap = 1'000'000, kNapPart = 16;
constexpr unsigned long kSlack = 1'000;         // by which the kernel may prolong a nap
constexpr uint64_t kPatience = 1'000'000'000;   // at the end, for what others have not received yet
constexpr size_t kKeptWords = 64;

uint64_t look_at(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
void store(uint64_t& word, uint64_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

}  // namespace

// ---- what is sent and received -------------------------------------------------------------------

ProxyRoute route_of(const FlatProgram& flat, uint64_t scratch_bytes, uint64_t count, DType dtype) {
  const Channel* channels = flat_channels(&flat);
  const uint64_t item = itemsize(dtype);
  DeviceGroup group{};
  group.scratch_bytes = scratch_bytes;
  ProxyRoute route;
  route.slot_bytes = device_chunk_bytes(group, flat, count * item);
  route.flows.resize(size_t(flat.num_streams) * flat.pieces);
  for (uint32_t c = flat.num_prologue; c < flat.num_prologue + flat.num_channels; ++c) {
    for (uint32_t s = 0; s < channels[c].num_steps; ++s) {
      const Step& step = flat_steps(&flat)[channels[c].first_step + s];
      if (step.kind != StepKind::kSend && step.kind != StepKind::kRecv) continue;
      const FlatStream& stream = flat_streams(&flat)[step.flag];
      for (uint32_t piece = 0; piece < flat.pieces; ++piece) {
        const Range range = device_range(flat, channels[c], piece, count, item, route.slot_bytes);
        ProxyRoute::Flow& flow = route.flows[size_t(step.flag) * flat.pieces + piece];
        flow.rank = stream.rank;
        flow.tag = kStreamTag + int(stream.number * flat.pieces + piece);
        flow.sends = stream.sends != 0;
        flow.num_chunks = range.num_chunks();
        flow.bytes = (range.hi - range.lo) * item;
        flow.chunk_bytes = range.chunk_elements * item;
        flow.first_bytes = flow.num_chunks ? (range.stop(0) - range.lo) * item : 0;
      }
    }
  }
  return route;
}

// ---- the calls -----------------------------------------------------------------------------------

Proxy::Proxy(std::shared_ptr<Group> group, const MpiConfig& mpi, DeviceHost* host, char* rings,
             size_t rings_bytes, uint64_t scratch_bytes)
    : group_(std::move(group)), hosts_(group_->network()->hosts()), host_(host), rings_(rings),
      rings_bytes_(rings_bytes), scratch_bytes_(scratch_bytes), heads_(hosts_.size()), come_(sizeof(Head), kEntryTag),
      messages_(mpi) {
  for (uint32_t rank = 0; rank < hosts_.size(); ++rank)
    if (rank != hosts_.rank()) come_.listen(messages_, rank);
  thread_ = std::thread([this] { serve(); });
}

uint32_t Proxy::load(std::string flat) {
  if (flat.size() < sizeof(FlatProgram)) throw std::invalid_argument("no flat program");
  const auto copy = std::make_shared<const std::string>(std::move(flat));
  const auto& head = *reinterpret_cast<const FlatProgram*>(copy->data());
  if (head.all != hosts_.size() || !head.chunk_bytes || head.eager || head.num_prologue)
    throw std::invalid_argument("this program cannot go over hosts: its messages have no size of their own");
  const uint64_t most = std::min(head.chunk_bytes, scratch_bytes_ / std::max<uint64_t>(ring_chunks(head), 1));
  const uint64_t needed = uint64_t(head.num_streams) * head.pieces * kRingDepth * most;
  if (needed > rings_bytes_)
    throw std::invalid_argument("messages of the program need " + std::to_string(needed) +
                                " bytes of pinned memory, " + std::to_string(rings_bytes_) + " are there");
  for (uint32_t s = 0; s < head.num_streams; ++s)
    if ((flat_streams(&head)[s].number + 1) * head.pieces > uint32_t(kMostStreams))
      throw std::invalid_argument("program has too many streams between two ranks");
  std::lock_guard<std::mutex> lock(mutex_);
  programs_.push_back(copy);
  return uint32_t(programs_.size()) - 1;
}

uint64_t Proxy::submit(uint32_t program, const DeviceDesc& desc) {
  uint64_t call;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (program != kNoProgram && program >= programs_.size())
      throw std::invalid_argument("there is no such program");
    call = ++calls_;
    submitted_.push_back({call, program, desc});
  }
  changed_.notify_one();
  return call;
}

std::string Proxy::words(uint64_t call) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = words_.find(call);
  return found == words_.end() ? "" : found->second;
}

const Proxy::Head* Proxy::head_of(uint32_t rank, uint64_t call) const {
  for (const Head& head : heads_[rank])
    if (head.call == call) return &head;
  return nullptr;
}

std::vector<uint32_t> Proxy::missing(uint64_t call) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint32_t> ranks;
  if (agreed_upon_ >= call) return ranks;
  for (uint32_t rank = 0; rank < hosts_.size(); ++rank)
    if (rank != hosts_.rank() && !head_of(rank, call)) ranks.push_back(rank);
  return ranks;
}

void Proxy::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (messages_.abandon()) return;
  keep_for_mpi(come_);
  keep_for_mpi(telling_);
}

// ---- the thread ----------------------------------------------------------------------------------

void Proxy::serve() {
  prctl(PR_SET_TIMERSLACK, kSlack);
  try {
    uint64_t moved = now_ns(), closed = 0;
    while (!group_->aborted()) {
      if (turn()) moved = now_ns();
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (submitted_.empty() && is_idle()) {
          if (closing_) break;
          changed_.wait(lock);
          moved = now_ns();
          continue;
        }
        if (closing_ && !closed) closed = now_ns();
      }
      const uint64_t now = now_ns(), quiet = now - moved;
      if (closed && now - closed > kPatience) break;
      if (quiet < kYield) {
        sched_yield();
        continue;
      }
      const timespec nap{0, long(std::clamp(quiet / kNapPart, kShortestNap, kLongestNap))};
      nanosleep(&nap, nullptr);
    }
    if (group_->aborted()) __atomic_store_n(&host_->abort, 1u, __ATOMIC_RELEASE);
    messages_.abandon();
  } catch (const Failure& failure) {
    fail(failure.text);
  }
}

void Proxy::fail(const std::string& text) {
  group_->abort("rank " + std::to_string(group_->name()) + ": MPI between hosts: " + text);
  __atomic_store_n(&host_->abort, 1u, __ATOMIC_RELEASE);
}

// One look at everything; whether anything moved.
bool Proxy::turn() {
  bool moved = take_submitted();
  if (messages_.progress()) {
    moved = true;
    std::lock_guard<std::mutex> lock(mutex_);
    auto take = [this](const char* data, size_t bytes) {
      Head head{};
      std::memcpy(&head, data, std::min(bytes, sizeof head));
      if (head.rank < heads_.size()) heads_[head.rank].push_back(head);
    };
    while (come_.take(messages_, take)) messages_.progress();
  }
  forget_told();
  moved |= agree();
  moved |= open();
  moved |= move();
  return moved;
}

bool Proxy::take_submitted() {
  std::deque<Entered> taken;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(submitted_);
  }
  for (const Entered& entered : taken) {
    tell(entered);
    agreeing_.push_back(entered);
  }
  return !taken.empty();
}

void Proxy::tell(const Entered& entered) {
  telling_.push_back({Head{entered.call, entered.desc, hosts_.rank(), 0}, {}});
  Telling& telling = telling_.back();
  telling.head.desc.input = telling.head.desc.output = 0;
  for (uint32_t rank = 0; rank < hosts_.size(); ++rank)
    if (rank != hosts_.rank())
      telling.ids.push_back(messages_.send(&telling.head, sizeof(Head), rank, kEntryTag));
}

void Proxy::forget_told() {
  for (Telling& telling : telling_) {
    auto through = [&](Messages::Id id) { return messages_.finish(id); };
    telling.ids.erase(std::remove_if(telling.ids.begin(), telling.ids.end(), through),
                      telling.ids.end());
  }
  while (!telling_.empty() && telling_.front().ids.empty()) telling_.pop_front();
}

// Give the verdict on calls that all ranks have come to, in their order.
bool Proxy::agree() {
  bool moved = false;
  while (!agreeing_.empty()) {
    const Entered& entered = agreeing_.front();
    const uint64_t call = entered.call;
    // A kernel that is behind still reads the place of the verdict before.
    if (call > kDeviceVerdicts && look_at(host_->through) + kDeviceVerdicts < call) break;
    std::lock_guard<std::mutex> lock(mutex_);
    bool here = true, same = true;
    for (uint32_t rank = 0; rank < hosts_.size() && here; ++rank) {
      if (rank == hosts_.rank()) continue;
      const Head* head = head_of(rank, call);
      here = head != nullptr;
      same &= here && same_device_call(head->desc, entered.desc);
    }
    if (!here) break;
    if (!same) {
      words_[call] = differ(entered);
      if (words_.size() > kKeptWords) words_.erase(words_.begin());
    }
    for (auto& heads : heads_)
      heads.erase(std::remove_if(heads.begin(), heads.end(), [&](const Head& h) { return h.call <= call; }),
                  heads.end());
    agreed_upon_ = call;
    if (same && entered.program != kNoProgram && entered.desc.count) agreed_.push_back(entered);
    store(host_->verdicts[call % kDeviceVerdicts], call << 1 | uint64_t(!same));
    agreeing_.pop_front();
    moved = true;
  }
  return moved;
}

// "call 3 differs between ranks: ranks 0, 1 on host a: barrier; rank 2 on host b: ..."
std::string Proxy::differ(const Entered& entered) const {
  auto desc = [&](uint32_t rank) -> const DeviceDesc& {
    return rank == hosts_.rank() ? entered.desc : head_of(rank, entered.call)->desc;
  };
  std::string text;
  for (uint32_t host = 0; host < hosts_.num_hosts(); ++host) {
    const std::vector<uint32_t>& ranks = hosts_.ranks(host);
    std::vector<bool> said(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (said[i]) continue;
      std::string names;
      size_t count = 0;
      for (size_t j = i; j < ranks.size(); ++j) {
        if (!same_device_call(desc(ranks[i]), desc(ranks[j]))) continue;
        said[j] = true;
        names += (count++ ? ", " : "") + std::to_string(hosts_.name(ranks[j]));
      }
      const DeviceDesc& d = desc(ranks[i]);
      CallDesc call{};
      call.count = d.count;
      call.root = d.root;
      call.collective = d.collective;
      call.dtype = d.dtype;
      call.op = d.op;
      text += (text.empty() ? " " : "; ") + std::string(count > 1 ? "ranks " : "rank ") + names +
              " on host " + hosts_.host_name(host) + ": " + group_->describe(call);
      if (d.scales != desc(0).scales) text += " with other scales";
    }
  }
  return "call " + std::to_string(entered.call) + " differs between ranks:" + text +
         "; every rank must make the same call";
}

// Let the next call's messages begin. Its kernel has been told, and those before it are through: they
// end when their messages have.
bool Proxy::open() {
  if (open_ || agreed_.empty()) return false;
  const Entered entered = agreed_.front();
  agreed_.pop_front();
  std::shared_ptr<const std::string> flat;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    flat = programs_[entered.program];
  }
  route_ = route_of(*reinterpret_cast<const FlatProgram*>(flat->data()), scratch_bytes_,
                    entered.desc.count, DType(entered.desc.dtype));
  call_ = entered.call;
  moving_.assign(route_.flows.size(), {});
  open_ = true;
  return true;
}

// Start what the kernel has begun, and tell it what has got through.
bool Proxy::move() {
  if (!open_) return false;
  bool moved = false, all = true;
  for (size_t i = 0; i < moving_.size(); ++i) {
    const ProxyRoute::Flow& flow = route_.flows[i];
    Moving& state = moving_[i];
    while (!state.under_way.empty() && messages_.finish(state.under_way.front().id)) {
      if (state.under_way.front().is_last) store(host_->counts[i].through, device_count(call_, ++state.through));
      state.under_way.pop_front();
      moved = true;
    }
    while (state.started < flow.num_chunks && state.started - state.through < kRingDepth &&
           look_at(host_->counts[i].started) > device_count(call_, state.started)) {
      start(flow, state, rings_ + i * kRingDepth * route_.slot_bytes);
      moved = true;
    }
    all &= state.through == flow.num_chunks;
  }
  if (all) open_ = false;
  return moved || all;
}

// In pieces that this MPI is quick with.
void Proxy::start(const ProxyRoute::Flow& flow, Moving& state, char* ring) {
  char* at = ring + state.started % kRingDepth * route_.slot_bytes;
  for (size_t left = flow.bytes_of(state.started++); left;) {
    const size_t bytes = std::min(left, messages_.piece_bytes());
    left -= bytes;
    state.under_way.push_back({flow.sends ? messages_.send(at, bytes, flow.rank, flow.tag)
                                          : messages_.recv(at, bytes, flow.rank, flow.tag),
                               left == 0});
    at += bytes;
  }
}

}  // namespace blinkrun
