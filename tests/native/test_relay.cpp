// The journal and messages between ranks of several hosts, which are threads over a pretended MPI.
#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "cluster.hpp"
#include "rounds.hpp"

using namespace blinkrun;

namespace {

constexpr uint64_t kLong = 60'000'000'000;

// ---- rounds, without any clock or thread ---------------------------------------------------------

Batch batch_of(const std::string& text) {
  return std::make_shared<const std::vector<char>>(text.begin(), text.end());
}

// Hosts with something to say now and then, and batches that arrive when it pleases them, in order.
struct Talk {
  Talk(uint32_t num_hosts, uint32_t seed) : random(seed), heard(num_hosts), says(num_hosts) {
    for (uint32_t host = 0; host < num_hosts; ++host) hosts.emplace_back(num_hosts, host);
    under_way.resize(num_hosts, std::vector<std::deque<Batch>>(num_hosts));
  }

  uint32_t pick(size_t below) { return uint32_t(random() % below); }

  void act(uint32_t host) {
    Rounds& rounds = hosts[host];
    while (rounds.must_send(!says[host].empty())) {
      const Batch batch = batch_of(says[host]);
      says[host].clear();
      rounds.sent(batch);
      ++num_sent;
      for (uint32_t to = 0; to < hosts.size(); ++to)
        if (to != host) under_way[host][to].push_back(batch);
    }
    while (rounds.complete())
      for (const Batch& batch : rounds.take()) heard[host].append(batch->begin(), batch->end());
  }

  bool deliver_one() {
    std::vector<std::pair<uint32_t, uint32_t>> ready;
    for (uint32_t from = 0; from < hosts.size(); ++from)
      for (uint32_t to = 0; to < hosts.size(); ++to)
        if (!under_way[from][to].empty()) ready.push_back({from, to});
    if (ready.empty()) return false;
    const auto [from, to] = ready[pick(ready.size())];
    hosts[to].arrived(from, under_way[from][to].front());
    under_way[from][to].pop_front();
    act(to);
    return true;
  }

  std::mt19937 random;
  std::vector<Rounds> hosts;
  std::vector<std::vector<std::deque<Batch>>> under_way;
  std::vector<std::string> heard, says;
  size_t num_sent = 0;
};

void test_rounds(uint32_t num_hosts, uint32_t seed) {
  context() = std::to_string(num_hosts) + " hosts, seed " + std::to_string(seed);
  Talk talk(num_hosts, seed);
  std::vector<std::string> said(num_hosts);
  for (int step = 0; step < 200; ++step) {
    if (talk.pick(3) == 0) {
      const uint32_t host = talk.pick(num_hosts);
      const std::string word = std::string(1, char('a' + host)) + std::to_string(step);
      talk.says[host] += word;
      said[host] += word;
      talk.act(host);
    } else {
      talk.deliver_one();
    }
    for (Rounds& rounds : talk.hosts) CHECK(rounds.next_round() - rounds.taken() <= Rounds::kAhead);
  }
  while (talk.deliver_one()) {
  }
  for (uint32_t host = 0; host < num_hosts; ++host) {
    CHECK(talk.heard[host] == talk.heard[0]);
    CHECK(!talk.hosts[host].under_way() && talk.hosts[host].missing().empty());
    std::string mine;  // what one host said, in the order in which all heard it
    for (size_t at = 0; at < talk.heard[0].size();) {
      const size_t end = std::min(talk.heard[0].find_first_not_of("0123456789", at + 1), talk.heard[0].size());
      if (talk.heard[0][at] == char('a' + host)) mine += talk.heard[0].substr(at, end - at);
      at = end;
    }
    CHECK(mine == said[host]);
  }
  const size_t before = talk.num_sent;  // nobody has anything to say: nothing is sent
  for (uint32_t host = 0; host < num_hosts; ++host) talk.act(host);
  CHECK(talk.num_sent == before);
}

void test_who_is_missing() {
  Rounds rounds(3, 1);
  CHECK(!rounds.must_send(false) && rounds.must_send(true) && !rounds.under_way());
  rounds.arrived(2, batch_of("x"));
  CHECK(rounds.must_send(false));
  rounds.sent(batch_of(""));
  CHECK(!rounds.must_send(false) && !rounds.complete());
  CHECK(rounds.missing() == std::vector<uint32_t>{0});
  rounds.arrived(0, batch_of(""));
  CHECK(rounds.complete() && rounds.take().size() == 3 && !rounds.under_way());
}

// ---- the journal over hosts ----------------------------------------------------------------------

std::string letter(uint32_t rank, uint32_t number, size_t bytes) {
  std::string text = std::to_string(rank) + " " + std::to_string(number) + ":";
  const size_t head = text.size();
  text.resize(head + bytes);
  for (size_t i = 0; i < bytes; ++i) text[head + i] = char(rank * 31 + number * 7 + i * 13);
  return text;
}

void test_order(const std::vector<uint32_t>& host_of, bool buffers) {
  Cluster cluster(host_of, buffers);
  std::vector<size_t> sizes;
  for (int i = 0; i < 12; ++i)
    for (size_t bytes : {0, 1, 7, 1009}) sizes.push_back(bytes);
  for (size_t bytes : {300'007, int(kJournalBytes) + 3}) sizes.push_back(bytes);
  std::vector<std::vector<std::string>> orders(host_of.size());
  for (auto& group : cluster.groups) group->journal().start_relay();
  cluster.run([&](Group& group) {
    Journal& journal = group.journal();
    std::thread writer([&] {
      for (uint32_t i = 0; i < sizes.size(); ++i) {
        const std::string text = letter(group.index(), i, sizes[i]);
        journal.post(text.data(), text.size(), i % 11 == 0, kCaller);
      }
    });
    std::vector<uint32_t> next(host_of.size());
    std::vector<std::string>& order = orders[group.index()];
    while (order.size() < host_of.size() * sizes.size()) {
      CHECK(journal.wait(kLong, kCaller));
      for (Message& message : journal.read()) {
        const uint32_t number = next[message.rank]++;
        context() = "letter " + std::to_string(number) + " of rank " + std::to_string(message.rank);
        CHECK(message.text == letter(message.rank, number, sizes[number]));
        order.push_back(message.text.substr(0, message.text.find(':')));
      }
    }
    writer.join();
    CHECK(journal.read().empty());
    CHECK(journal.sleep(kLong, kCaller));  // somebody's post was urgent
  });
  for (auto& order : orders) CHECK(order == orders[0]);
  for (auto& group : cluster.groups) group->close_network();
}

// A host that says nothing within the time is named, and so is a rank that leaves no room.
void test_a_silent_host_is_named() {
  Cluster cluster({0, 0, 1}, true, 0.5);
  cluster.groups[0]->journal().start_relay();  // nobody does so on the other host
  cluster.groups[1]->journal().post("x", 1, false, kCaller);
  bool told = false;
  try {
    cluster.groups[1]->journal().wait(kLong, kCaller);
  } catch (const Failure& failure) {
    CHECK(failure.kind == Failure::Kind::kTimeout && failure.ranks == std::vector<int>{2});
    CHECK(failure.text.find("the journal for rank 2 on host b") != std::string::npos);
    told = true;
  }
  CHECK(told);
  for (auto& group : cluster.groups) group->close_network();
}

void test_a_rank_that_never_reads_holds_up_other_hosts_and_is_named() {
  Cluster cluster({0, 1, 1}, true, 1.0);
  for (auto& group : cluster.groups) group->journal().start_relay();
  const std::string large(3 * kJournalBytes, 'x');
  std::vector<std::thread> readers;
  for (uint32_t rank : {0, 1})
    readers.emplace_back([&, rank] {
      try {
        for (;;) {
          cluster.groups[rank]->journal().wait(kLong, kCaller);
          cluster.groups[rank]->journal().read();
        }
      } catch (const Failure&) {
      }
    });
  bool told = false;
  try {
    for (;;) cluster.groups[0]->journal().post(large.data(), large.size(), false, kCaller);
  } catch (const Failure& failure) {
    context() = failure.text;
    CHECK(failure.kind == Failure::Kind::kTimeout);
    told = true;
  }
  CHECK(told);
  for (std::thread& reader : readers) reader.join();
  for (auto& group : cluster.groups) group->close_network();
}

// ---- messages between ranks ----------------------------------------------------------------------

struct Parcel {
  Transfer transfer;
  std::vector<char> memory, expected;
};

std::vector<char> content(uint32_t src, uint32_t dst, uint32_t number, size_t bytes) {
  std::vector<char> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) memory[i] = char(src * 31 + dst * 17 + number * 5 + i * 3);
  return memory;
}

void test_messages_of_all_sizes(const std::vector<uint32_t>& host_of, bool buffers) {
  Cluster cluster(host_of, buffers);
  const std::vector<size_t> sizes{0, 1, 4072, 4073, 70'001, 300'000};
  cluster.run([&](Group& group) {
    const auto work = [&](int64_t thread) {
      std::mt19937 random(uint32_t(group.index() * 10 + thread));
      std::deque<Parcel> parcels;
      std::vector<std::vector<Transfer>> lists;  // of a peer, direction and tag: these keep their order
      for (uint32_t peer = 0; peer < host_of.size(); ++peer) {
        if (peer == group.index()) continue;
        for (const bool sends : {true, false}) {
          lists.emplace_back();
          for (uint32_t i = 0; i < sizes.size(); ++i) {
            const uint32_t src = sends ? group.index() : peer, dst = sends ? peer : group.index();
            std::vector<char> right = content(src, dst, i, sizes[i]);
            parcels.push_back({{}, sends ? right : std::vector<char>(sizes[i]), right});
            lists.back().push_back({sends, peer, thread, parcels.back().memory.data(), sizes[i]});
          }
        }
      }
      std::vector<Transfer> transfers;
      while (!lists.empty()) {
        auto list = lists.begin() + long(random() % lists.size());
        transfers.push_back(list->front());
        list->erase(list->begin());
        if (list->empty()) lists.erase(list);
      }
      group.pipes().run(transfers, kCaller);
      for (const Parcel& parcel : parcels) CHECK(parcel.memory == parcel.expected);
    };
    std::thread other([&] { work(7); });
    work(-7);
    other.join();
  });
  for (auto& group : cluster.groups) group->close_network();
}

void exchange(Group& group, bool sends, uint32_t peer, int64_t tag, std::vector<char>& memory) {
  group.pipes().run({{sends, peer, tag, memory.data(), memory.size()}}, kCaller);
}

// Messages have fewer tags in MPI than numbers: the bytes of one that is not received for long were
// given to a later one.
void test_a_message_that_waits_while_many_others_come() {
  Cluster cluster({0, 1}, true);
  constexpr int64_t kWaits = 1, kOthers = 2, kAnswer = 3;
  constexpr uint32_t kMany = kPairTags + 2;
  constexpr size_t kBytes = 4500;  // not in a head, and little enough to be sent before it is asked for
  cluster.run([&](Group& group) {
    const bool sends = group.index() == 0;
    std::vector<char> first = content(0, 1, 77, kBytes), answer(1);
    if (sends) exchange(group, true, 1, kWaits, first);
    for (uint32_t i = 1; i <= kMany; ++i) {
      const std::vector<char> right = content(0, 1, i, kBytes);
      std::vector<char> memory = sends ? right : std::vector<char>(kBytes);
      exchange(group, sends, 1 - group.index(), kOthers, memory);
      CHECK(memory == right);
      if (i % 16 == 0) exchange(group, !sends, 1 - group.index(), kAnswer, answer);  // not too far ahead
    }
    if (sends) return;
    std::vector<char> memory(kBytes);
    CHECK(group.pipes().arrived(0, kWaits, kCaller));
    exchange(group, false, 0, kWaits, memory);
    CHECK(memory == first);
  });
}

// Of a large message MPI has a few parts at a time, so that it is soon through with the memory of a
// caller that ends in the middle. It wrote there when the memory was another's, or ended the job.
void test_who_ends_in_the_middle_takes_its_memory(bool sends, bool can_cancel) {
  context() = sends ? "send" : can_cancel ? "recv" : "recv that has begun";
  constexpr size_t kParts = 4;
  Cluster cluster({0, 1}, false);
  Messages other(cluster.mpi.config(0));
  struct {
    int64_t tag = 7;
    uint64_t bytes = 64 << 20;
    uint32_t number = 0, sender = 0;
  } head;  // of a message whose bytes do not come
  if (!sends) other.send(&head, sizeof head, 1, kPairHeadTag);
  std::vector<char> memory(head.bytes);
  struct Interrupt {};
  const Caller caller{[] {}, [&] {
                        if (!can_cancel) cluster.mpi.hold();
                        throw Interrupt{};
                      }, true};
  bool ended = false;
  try {
    cluster.groups[1]->pipes().run({{sends, 0, 7, memory.data(), memory.size()}}, caller);
  } catch (const Interrupt&) {
    ended = true;
  }
  CHECK(ended);
  // Of calls and of alarms on both, of heads on one; and a head.
  const size_t left = cluster.mpi.go_on(), usual = 5 + sends;
  CHECK(left == usual + (sends || !can_cancel ? kParts : 0));
}

// ---- the end -------------------------------------------------------------------------------------

// MPI refuses a send that was through at once among other messages (fake_mpi.hpp).
void test_sends_that_are_through_at_once() {
  FakeMpi mpi(2, true);
  Messages one(mpi.config(0)), other(mpi.config(1));
  char sent[2] = {'a', 'b'}, come[2] = {}, never = 0;
  one.recv(&never, 1, 1, 9);
  const Messages::Id first = one.send(sent, 1, 1, 5), second = one.send(sent + 1, 1, 1, 5);
  CHECK(one.on_their_way() == 1);
  CHECK(one.progress() && !one.progress());
  CHECK(one.finish(first) && one.finish(second));
  for (char& each : come) {
    const Messages::Id id = other.recv(&each, 1, 0, 5);
    size_t bytes = 0;
    CHECK(other.progress() && other.finish(id, &bytes) && bytes == 1);
  }
  CHECK(come[0] == 'a' && come[1] == 'b');
}

// MPI may go on with what has begun, whether its group still is or not.
void test_what_mpi_cannot_give_up_keeps_its_memory(bool buffers) {
  Cluster cluster({0, 1}, buffers);
  for (auto& group : cluster.groups) group->journal().start_relay();
  cluster.run([](Group& group) {
    std::vector<char> x(9000);
    exchange(group, group.index() == 0, 1 - group.index(), 0, x);
  });
  cluster.mpi.hold();
  std::vector<std::thread> ends;
  for (auto& group : cluster.groups) ends.emplace_back([&group] { group.reset(); });
  for (std::thread& each : ends) each.join();
  // Of each rank: a receive of calls, of alarms, of the relay, of messages' heads.
  CHECK(cluster.mpi.go_on() == 8);
}

// A look that failed may have ended messages all the same: they must not be ended again.
void test_messages_after_a_failure() {
  FakeMpi mpi(2, false);
  Messages one(mpi.config(0)), other(mpi.config(1));
  char x[3] = {};
  one.recv(x, 1, 1, 5);
  const Messages::Id dropped = one.recv(x + 1, 1, 1, 6);
  other.send(x + 2, 1, 0, 5);
  other.send(x + 2, 1, 0, 6);
  mpi.cut();
  bool failed = false;
  try {
    one.progress();
  } catch (const Failure& failure) {
    failed = failure.kind == Failure::Kind::kMpi;
  }
  CHECK(failed);
  one.drop(dropped);
  one.abandon();
}

}  // namespace

void test_relay() {
  for (uint32_t num_hosts : {2, 3, 5})
    for (uint32_t seed = 0; seed < 40; ++seed) test_rounds(num_hosts, seed);
  test_who_is_missing();
  for (const bool buffers : {true, false}) {
    test_order({0, 1}, buffers);
    test_order({0, 1, 2, 0, 1}, buffers);
    test_messages_of_all_sizes({0, 1, 1}, buffers);
  }
  test_a_message_that_waits_while_many_others_come();
  test_who_ends_in_the_middle_takes_its_memory(true, true);
  for (const bool can_cancel : {true, false})
    test_who_ends_in_the_middle_takes_its_memory(false, can_cancel);
  test_sends_that_are_through_at_once();
  for (const bool buffers : {true, false}) test_what_mpi_cannot_give_up_keeps_its_memory(buffers);
  test_messages_after_a_failure();
  test_a_silent_host_is_named();
  test_a_rank_that_never_reads_holds_up_other_hosts_and_is_named();
}
