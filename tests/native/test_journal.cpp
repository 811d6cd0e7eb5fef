// The journal of ranks that are threads: one order, no torn messages, nobody waits for the slow.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "host.hpp"

using namespace blinkrun;

namespace {

constexpr uint64_t kMs = 1'000'000, kLong = 15'000 * kMs;
constexpr uint32_t kWriters = 2;  // threads of a rank that post
const Caller kSleepy{[] {}, [] {}, false};

Control control_of(Host& host) {
  return Control::at(host.memory.base(), host.groups.size());
}

template <class Condition> void until(Condition condition) {
  const uint64_t start = now_ns();
  while (!condition()) {
    CHECK(now_ns() - start < kLong);
    std::this_thread::yield();
  }
}

// A message that says what it is, so that whatever is lost or mixed up shows.
std::string letter(uint32_t rank, uint32_t writer, uint32_t number, size_t bytes) {
  std::string text = std::to_string(rank) + " " + std::to_string(writer) + " " +
                     std::to_string(number) + ":";
  const size_t head = text.size();
  text.resize(head + bytes);
  for (size_t i = 0; i < bytes; ++i) text[head + i] = char(rank * 31 + writer * 7 + number + i * 13);
  return text;
}

void post(Group& group, const std::string& text, bool urgent = false) {
  group.journal().post(text.data(), text.size(), urgent, kCaller);
}

std::vector<size_t> sizes_of_letters(uint32_t size) {
  std::vector<size_t> sizes;
  for (uint32_t i = 0; i < 60 / size; ++i)
    for (size_t bytes : {0, 1, 7, 1009}) sizes.push_back(bytes);
  for (size_t bytes : {70'001, 300'007, int(kJournalBytes) + 3}) sizes.push_back(bytes);
  return sizes;
}

// What a rank reads when every rank's writers post their letters, in its order.
void read_letters(Group& group, const std::vector<size_t>& sizes, std::vector<std::string>* order) {
  std::vector<std::vector<uint32_t>> next(group.size(), std::vector<uint32_t>(kWriters, 0));
  while (order->size() < group.size() * kWriters * sizes.size()) {
    CHECK(group.journal().wait(kLong, order->size() % 3 ? kCaller : kSleepy));
    for (Message& message : group.journal().read()) {
      const uint32_t writer = uint32_t(message.text.at(message.text.find(' ') + 1) - '0');
      const uint32_t number = next[message.rank][writer]++;
      context() = "letter " + std::to_string(number) + " of rank " + std::to_string(message.rank);
      CHECK(message.text == letter(message.rank, writer, number, sizes[number]));
      order->push_back(message.text.substr(0, message.text.find(':')));
    }
  }
}

void test_order(uint32_t size) {
  Host host(size);
  const std::vector<size_t> sizes = sizes_of_letters(size);
  std::vector<std::vector<std::string>> orders(size);
  host.run([&](Group& group) {
    std::vector<std::thread> writers;
    for (uint32_t w = 0; w < kWriters; ++w)
      writers.emplace_back([&, w] {
        for (uint32_t i = 0; i < sizes.size(); ++i)
          post(group, letter(group.rank(), w, i, sizes[i]), i % 11 == 0);
      });
    read_letters(group, sizes, &orders[group.rank()]);
    for (auto& writer : writers) writer.join();
    CHECK(group.journal().read().empty());
    CHECK(!group.journal().wait(0, kCaller));
    CHECK(!group.journal().wait(kMs, kSleepy));
  });
  for (auto& order : orders) CHECK(order == orders[0]);
}

// A rank that sleeps, or waits in a collective, holds nobody up, and reads it all afterwards.
void test_busy_readers() {
  Host host(3);
  const std::string text(100'003, 'x');
  const size_t many = 5 * kJournalBytes / text.size();
  host.run([&](Group& group) {
    Call barrier{};
    barrier.collective = Collective::kBarrier;
    size_t got = 0;
    if (group.rank() == 0) {
      for (size_t i = 0; i < many; ++i) post(group, text);
    } else if (group.rank() == 1) {
      while (got < many) {
        CHECK(group.journal().sleep(kLong, kSleepy));
        got += group.journal().read().size();
        if (got > many / 2) break;  // from now on in the barrier
      }
    }
    group.run(barrier, kCaller);
    for (const Message& message : group.journal().read()) {
      CHECK(message.rank == 0 && message.text == text);
      ++got;
    }
    CHECK(got == many);
  });
}

// Ordinary posts leave a rank asleep; urgent ones and its own kick wake it, also beforehand.
void test_sleep() {
  Host host(2);
  Group &one = *host.groups[0], &two = *host.groups[1];
  CHECK(!two.journal().sleep(0, kSleepy));
  post(one, "ordinary");
  CHECK(!two.journal().sleep(20 * kMs, kSleepy));
  two.journal().kick();
  CHECK(two.journal().sleep(kLong, kSleepy));
  CHECK(!two.journal().sleep(0, kSleepy));
  post(one, "urgent", true);
  CHECK(two.journal().sleep(kLong, kSleepy));
  CHECK(!two.journal().sleep(0, kSleepy));
  CHECK(two.journal().read().size() == 2);
  auto& asleep = control_of(host).ranks[1].alarm.asleep;
  for (bool kicks : {false, true}) {
    std::atomic<bool> woken{false};
    std::thread sleeper([&] {
      CHECK(two.journal().sleep(kLong, kSleepy));
      woken = true;
    });
    until([&] { return asleep.load() == 1; });
    for (int i = 0; i < 20; ++i) post(one, "ordinary");
    CHECK(!woken);
    if (kicks)
      two.journal().kick();
    else
      post(one, "urgent", true);
    sleeper.join();
    CHECK(woken && two.journal().read().size() == (kicks ? 20 : 21));
  }
}

// A post wakes who waits at once: not when it would have looked anyway.
void test_wait_is_woken() {
  Host host(2);
  auto& asleep = control_of(host).ranks[1].journal.asleep;
  uint64_t best = kLong;
  for (int i = 0; i < 20; ++i) {
    uint64_t over = 0;
    std::thread waiting([&] {
      CHECK(host.groups[1]->journal().wait(kLong, kSleepy));
      over = now_ns();
    });
    until([&] { return asleep.load() == 1; });
    const uint64_t start = now_ns();
    post(*host.groups[0], "x");
    waiting.join();
    best = std::min(best, over - start);
    CHECK(host.groups[1]->journal().read().size() == 1);
  }
  CHECK(best < Waiter::kLook / 2);
}

// A sleeper makes room before anybody waits for it: not when it would have looked anyway.
void test_a_full_ring_wakes_sleepers() {
  Host host(2);
  auto& asleep = control_of(host).ranks[1].alarm.asleep;
  uint64_t best = kLong;
  for (int i = 0; i < 3; ++i) {
    while (host.groups[1]->journal().sleep(0, kSleepy)) {  // it may be rung after it was left
    }
    uint64_t over = 0;
    std::thread sleeper([&] {
      CHECK(host.groups[1]->journal().sleep(kLong, kSleepy));
      over = now_ns();
    });
    until([&] { return asleep.load() == 1; });
    const uint64_t start = now_ns();
    for (int part = 0; part < 7; ++part) post(*host.groups[0], std::string(kJournalBytes / 10, 'x'));
    sleeper.join();
    best = std::min(best, over - start);
    CHECK(host.groups[1]->journal().read().size() == 7);
    host.groups[0]->journal().read();
  }
  CHECK(best < 500 * kMs);
}

// What a signal broke off is no message, and nothing of it gets into the next one.
void test_an_interrupted_post_is_nothing() {
  Host host(2);
  const Caller interrupted{[] {}, [] { throw 1; }, true};
  const std::string large(2 * kJournalBytes, 'x');
  bool thrown = false;
  try {
    host.groups[0]->journal().post(large.data(), large.size(), false, interrupted);
  } catch (int) {
    thrown = true;
  }
  CHECK(thrown);
  std::thread next([&] { post(*host.groups[0], large); });
  CHECK(host.groups[1]->journal().wait(kLong, kCaller));
  next.join();
  for (auto& group : host.groups) {
    const std::vector<Message> messages = group->journal().read();
    CHECK(messages.size() == 1 && messages[0].text == large);
  }
}

template <class Wait> std::thread expect(Failure::Kind kind, std::atomic<int>& told, Wait wait) {
  return std::thread([&told, kind, wait] {
    try {
      wait();
    } catch (const Failure& failure) {
      CHECK(failure.kind == kind);
      ++told;
    }
  });
}

void test_abort_ends_waits() {
  Host host(4);
  std::atomic<int> told{0};
  std::vector<std::thread> threads;
  const auto kind = Failure::Kind::kAborted;
  Control control = control_of(host);
  threads.push_back(expect(kind, told, [&] {
    while (host.groups[1]->journal().sleep(kLong, kSleepy)) {  // and make room meanwhile
    }
  }));
  threads.push_back(
      expect(kind, told, [&] { post(*host.groups[2], std::string(2 * kJournalBytes, 'x')); }));
  until([&] { return control.journal->room.asleep.load() == 1; });
  std::atomic<uint32_t>& waiting = control.ranks[3].journal.asleep;
  host.groups[3]->journal().read();
  threads.push_back(expect(kind, told, [&] { host.groups[3]->journal().wait(kLong, kCaller); }));
  until([&] { return waiting.load() == 1; });
  const uint64_t start = now_ns();
  host.groups[0]->abort("enough");
  for (auto& thread : threads) thread.join();
  CHECK(told == 3);
  CHECK(now_ns() - start < 5'000 * kMs);
}

void test_a_rank_that_never_reads_is_named() {
  Host host(2, 0.3);
  std::atomic<bool> told{false};
  try {
    post(*host.groups[0], std::string(2 * kJournalBytes, 'x'));
  } catch (const Failure& failure) {
    CHECK(failure.kind == Failure::Kind::kTimeout);
    CHECK(failure.ranks == std::vector<int>{1});
    told = true;
  }
  CHECK(told);
}

void test_leaving() {
  Host host(3);
  std::atomic<int> told{0};
  std::atomic<bool> woken{false};
  Control control = control_of(host);
  std::thread waiting = expect(Failure::Kind::kClosed, told, [&] {
    host.groups[1]->journal().wait(kLong, kSleepy);
  });
  std::thread other([&] { woken = host.groups[2]->journal().sleep(kLong, kSleepy); });
  until([&] { return control.ranks[1].journal.asleep.load() == 1; });
  until([&] { return control.ranks[2].alarm.asleep.load() == 1; });
  host.groups[1]->leave();
  waiting.join();
  other.join();
  CHECK(woken && host.groups[0]->gone() == std::vector<uint32_t>{1});
  std::thread late = expect(Failure::Kind::kClosed, told, [&] { post(*host.groups[1], "x"); });
  late.join();
  CHECK(told == 2);
  for (uint32_t i = 0; i < 8; ++i) {  // nobody waits for who has left
    post(*host.groups[0], std::string(kJournalBytes / 3, 'x'));
    CHECK(host.groups[2]->journal().read().size() == 1);
  }
}

pid_t dead_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  CHECK(child > 0 && waitpid(child, nullptr, 0) == child);
  return child;
}

// A rank that died as it wrote a large message: the lock is free again, what it had not finished is
// nothing, and its reading is not waited for.
void test_death_of_a_writer() {
  Host host(3);
  Control control = control_of(host);
  std::thread writer([&] {
    try {
      post(*host.groups[1], std::string(3 * kJournalBytes, 'x'));
    } catch (const Failure& failure) {
      CHECK(failure.kind == Failure::Kind::kClosed);
    }
  });
  until([&] { return control.journal->room.asleep.load() == 1; });
  host.groups[1]->leave();  // ends the thread; then as if it had died with the lock in hand
  writer.join();
  control.ranks[1].pid = dead_process();
  control.ranks[1].journal_read.store(0);
  control.ranks[1].state.store(uint32_t(RankState::kActive));
  control.journal->held.store(2);
  CHECK(host.groups[0]->gone() == std::vector<uint32_t>{1});
  const std::string text = letter(0, 0, 0, kJournalBytes / 2);
  std::thread reader([&] {
    for (int got = 0; got < 6;) {
      CHECK(host.groups[2]->journal().wait(kLong, kCaller));
      for (const Message& message : host.groups[2]->journal().read()) {
        CHECK(message.rank == 0 && message.text == text);
        ++got;
      }
    }
  });
  for (int i = 0; i < 6; ++i) post(*host.groups[0], text);
  CHECK(host.groups[0]->journal().read().size() == 6);
  reader.join();
}

}  // namespace

void test_journal() {
  for (uint32_t size : {1, 2, 3, 5}) test_order(size);
  test_busy_readers();
  test_sleep();
  test_wait_is_woken();
  test_a_full_ring_wakes_sleepers();
  test_an_interrupted_post_is_nothing();
  test_abort_ends_waits();
  test_a_rank_that_never_reads_is_named();
  test_leaving();
  test_death_of_a_writer();
}
