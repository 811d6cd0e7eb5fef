#include "alarms.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>

namespace blinkrun {

namespace {

constexpr uint64_t kPatience = 200'000'000;  // for what is told to be on its way
constexpr timespec kPause{0, 1'000'000};
constexpr uint64_t kOvertaken = 300'000'000;  // by an alarm: what was sent before it

}  // namespace

Alarms::Alarms(const MpiConfig& mpi, const Hosts& hosts, Waiter& waiter)
    : hosts_(hosts), waiter_(waiter), left_ns_(hosts.size()),
      standing_(sizeof(Alarm), kAlarmTag), messages_(mpi) {
  for (uint32_t rank = 0; rank < hosts_.size(); ++rank)
    if (!hosts_.is_here(rank)) standing_.listen(messages_, rank);
}

bool Alarms::is_gone(uint32_t rank) {
  const uint64_t left_ns = left_ns_[rank].load(std::memory_order_acquire);
  return left_ns && now_ns() - left_ns > kOvertaken;
}

void Alarms::look() {
  std::vector<Alarm> news;
  {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) take_news(news);
  }
  for (const Alarm& alarm : news) take(alarm);  // which may look up others' locks
}

void Alarms::take_news(std::vector<Alarm>& news) {
  if (closed_) return;
  auto take = [&](const char* data, size_t bytes) {
    Alarm alarm{};
    std::memcpy(&alarm, data, bytes);
    news.push_back(alarm);
  };
  do progress();
  while (standing_.take(messages_, take));
}

void Alarms::take(const Alarm& alarm) {
  if (alarm.kind == uint32_t(AbortKind::kNone)) {
    left_ns_[alarm.from].store(now_ns(), std::memory_order_release);
  } else {
    waiter_.abort_as_told(AbortKind(alarm.kind), alarm.rank, alarm.about, alarm.text);
  }
}

// Let MPI work; forget what has been told.
void Alarms::progress() {
  if (!messages_.progress()) return;
  for (Told& told : told_) {
    auto through = [&](Messages::Id id) { return messages_.finish(id); };
    told.ids.erase(std::remove_if(told.ids.begin(), told.ids.end(), through), told.ids.end());
  }
  while (!told_.empty() && told_.front().ids.empty()) told_.pop_front();
}

void Alarms::tell(const Alarm& alarm, size_t bytes) {
  told_.push_back({alarm, {}});
  Told& told = told_.back();
  for (uint32_t rank = 0; rank < hosts_.size(); ++rank) {
    if (hosts_.is_here(rank)) continue;
    told.ids.push_back(messages_.send(&told.alarm, bytes, rank, kAlarmTag));
  }
  // MPI may have to connect first. Who does not listen now hears of it when it waits.
  for (const uint64_t start = now_ns(); !told_.empty() && now_ns() - start < kPatience;) {
    progress();
    if (!told_.empty()) nanosleep(&kPause, nullptr);
  }
}

void Alarms::aborted(const AbortRecord& record) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  Alarm alarm{record.kind.load(), hosts_.rank(), record.rank, record.about, {}};
  std::memcpy(alarm.text, record.text, sizeof alarm.text);
  try {
    tell(alarm, kHeadBytes + std::strlen(alarm.text) + 1);
  } catch (const Failure&) {  // a network that does not work may be what the alarm is about
  }
}

void Alarms::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || leaves_) return;
  leaves_ = true;
  tell(Alarm{uint32_t(AbortKind::kNone), hosts_.rank(), 0, 0, {}}, kHeadBytes);
}

// And know it of this one: an MPI that still has to connect sends nothing after its end.
bool Alarms::all_left() {
  look();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return true;  // nobody can be heard any more
    if (!told_.empty()) return false;
  }
  for (uint32_t rank = 0; rank < hosts_.size(); ++rank)
    if (!hosts_.is_here(rank) && !has_left(rank)) return false;
  return true;
}

void Alarms::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  if (messages_.abandon()) return;
  keep_for_mpi(standing_);
  keep_for_mpi(told_);
}

// "ranks 2, 3 on host b, rank 5 on host c"
std::string Alarms::names(const std::vector<uint32_t>& ranks) const {
  std::string text;
  for (uint32_t host = 0; host < hosts_.num_hosts(); ++host) {
    std::string some;
    size_t count = 0;
    for (uint32_t rank : ranks)
      if (hosts_.host_of(rank) == host) some += (count++ ? ", " : "") + std::to_string(name(rank));
    if (!count) continue;
    text += (text.empty() ? "" : ", ") + std::string(count > 1 ? "ranks " : "rank ") + some +
            " on host " + hosts_.host_name(host);
  }
  return text;
}

}  // namespace blinkrun
