#include "pacing.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace blinkrun {

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kPieceNs = 1'000'000;
constexpr uint64_t kSmallestPiece = 4 << 10, kLargestPiece = 1 << 20;

uint64_t rate_of(const PaceConfig& config, size_t link) {
  uint64_t rate = UINT64_MAX;
  for (uint32_t resource : config.links[link]) rate = std::min(rate, config.rates[resource]);
  return rate;
}

uint64_t piece_of(const PaceConfig& config) {
  uint64_t fastest = 0;
  for (size_t link = 0; link < config.links.size(); ++link)
    fastest = std::max(fastest, rate_of(config, link));
  const uint64_t bytes = uint64_t((unsigned __int128)fastest * kPieceNs / kSecond);
  return std::clamp(bytes, kSmallestPiece, kLargestPiece) / kCacheLine * kCacheLine;
}

}  // namespace

uint64_t Calendar::reserve(uint64_t ready_ns, uint64_t bytes, uint64_t bytes_per_s) {
  const auto work = (unsigned __int128)bytes * kSecond + left_over;
  uint64_t need = uint64_t(work / bytes_per_s), end = ready_ns;
  left_over = uint64_t(work % bytes_per_s);
  for (uint32_t i = 0; need && i < num_gaps;) {
    const uint64_t from = std::max(gaps[i].from_ns, ready_ns);
    if (from >= gaps[i].to_ns) {
      ++i;
      continue;
    }
    end = std::min(gaps[i].to_ns, from + need);
    need -= end - from;
    take(i, from, end);
  }
  if (!need) return end;
  if (free_from_ns < ready_ns) insert(num_gaps, {free_from_ns, ready_ns});
  free_from_ns = std::max(free_from_ns, ready_ns) + need;
  return free_from_ns;
}

void Calendar::take(uint32_t index, uint64_t from_ns, uint64_t to_ns) {
  const Gap before{gaps[index].from_ns, from_ns}, after{to_ns, gaps[index].to_ns};
  const bool keep = before.from_ns < before.to_ns, more = after.from_ns < after.to_ns;
  if (!keep && !more) return erase(index);
  gaps[index] = keep ? before : after;
  if (keep && more) insert(index + 1, after);
}

void Calendar::insert(uint32_t index, Gap gap) {
  if (num_gaps == kGaps) {
    if (!index) return;  // it would be the oldest itself
    erase(0);
    --index;
  }
  std::memmove(gaps + index + 1, gaps + index, (num_gaps - index) * sizeof(Gap));
  gaps[index] = gap;
  ++num_gaps;
}

void Calendar::erase(uint32_t index) {
  std::memmove(gaps + index, gaps + index + 1, (num_gaps - index - 1) * sizeof(Gap));
  --num_gaps;
}

// The calendars are this rank's while it lives: a microsecond. Nobody spins for them; if their
// holder has died meanwhile, the others are told.
class Pacer::Hold {
 public:
  explicit Hold(Pacer& pacer) : held_(pacer.control_.header->calendars_held) {
    uint32_t holder = 0;
    while (!held_.compare_exchange_strong(holder, pacer.rank_ + 1, std::memory_order_acquire)) {
      auto changed = [&] { return held_.load(std::memory_order_relaxed) != holder; };
      pacer.waiter_.wait(
          WaitConfig{0, 1'000'000}, changed,
          [&] { return std::vector<uint32_t>(changed() ? 0 : 1, holder - 1); },
          [] { return std::string("the calendars of the emulated machine"); }, [] {},
          [] { return uint64_t(50'000); });
      holder = 0;
    }
  }
  ~Hold() { held_.store(0, std::memory_order_release); }

 private:
  std::atomic<uint32_t>& held_;
};

Pacer::Pacer(Control control, uint32_t rank, PaceConfig config, Waiter& waiter)
    : control_(control), rank_(rank), config_(std::move(config)), waiter_(waiter) {
  for (uint64_t rate : config_.rates)
    if (!rate) throw std::invalid_argument("a resource of the emulated machine has no rate");
  for (const auto& link : config_.links) {
    if (link.empty()) throw std::invalid_argument("a link of the emulated machine has no resource");
    for (uint32_t resource : link)
      if (resource >= config_.rates.size())
        throw std::invalid_argument("a link takes resource " + std::to_string(resource) + " of " +
                                    std::to_string(config_.rates.size()));
  }
  if (control_.header->num_resources < config_.rates.size())
    throw std::invalid_argument("the control block has calendars for " +
                                std::to_string(control_.header->num_resources) +
                                " resources, the emulated machine has " +
                                std::to_string(config_.rates.size()));
  piece_bytes_ = piece_of(config_);
}

void Pacer::reserve(const std::vector<uint32_t>& resources, uint64_t bytes, uint64_t* times_ns) {
  Hold hold(*this);
  for (size_t i = 0; i < resources.size(); ++i) {
    const uint32_t at = resources[i];
    times_ns[i] = control_.calendars[at].reserve(times_ns[i], bytes, config_.rates[at]);
  }
}

ExactTimers::ExactTimers() : before_ns_(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) {
  prctl(PR_SET_TIMERSLACK, 1'000, 0, 0, 0);
}

ExactTimers::~ExactTimers() {
  if (before_ns_ > 0) prctl(PR_SET_TIMERSLACK, before_ns_, 0, 0, 0);
}

}  // namespace blinkrun
