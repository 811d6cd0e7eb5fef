// Calendars of an emulated machine: no resource is promised to two, and no time is lost.
#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"
#include "control.hpp"

using namespace blinkrun;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

void small_pieces_add_up() {
  Calendar thirds{};
  uint64_t end = 0;
  for (int i = 0; i < 3; ++i) end = thirds.reserve(0, 1, 3);  // a third of a second each
  CHECK(end == kSecond);
  Calendar fast{};  // 64 bytes in a fifth of a nanosecond
  for (int i = 0; i < 5'000'000; ++i) end = fast.reserve(0, 64, 320 * kSecond);
  CHECK(end == 1'000'000);
}

void who_comes_late_takes_what_nobody_had() {
  Calendar calendar{};
  CHECK(calendar.reserve(1000, 100, kSecond) == 1100);
  CHECK(calendar.reserve(2000, 100, kSecond) == 2100);  // leaves [1100, 2000)
  CHECK(calendar.reserve(1050, 300, kSecond) == 1400);
  CHECK(calendar.reserve(1500, 100, kSecond) == 1600);  // leaves [1400, 1500) and [1600, 2000)
  CHECK(calendar.reserve(1000, 200, kSecond) == 1700);  // both of them, in pieces
  CHECK(calendar.reserve(1000, 400, kSecond) == 2200);  // [1700, 2000), then the end
  CHECK(calendar.reserve(1000, 50, kSecond) == 2250);   // nothing is left
}

// Whatever the order, busy time up to the end of a backlog is all the time there is; and until so
// many gaps come together that one is forgotten, nobody waits while there is time.
void no_time_is_lost_and_none_is_given_twice() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    Calendar calendar{};
    std::vector<bool> busy(200'000, false);
    for (int i = 0; i < 40; ++i) {
      const uint64_t ready = 1 + random() % 5'000, bytes = 1 + random() % 500;
      uint64_t left = bytes, at = ready;
      for (; left; ++at)
        if (!busy[at]) {
          busy[at] = true;
          --left;
        }
      context() = "round " + std::to_string(round) + " request " + std::to_string(i);
      CHECK(calendar.reserve(ready, bytes, kSecond) == at);
    }
  }
}

void a_calendar_forgets_old_gaps_only() {
  Calendar calendar{};
  for (uint64_t i = 1; i <= 3 * kGaps; ++i) calendar.reserve(i * 100, 50, kSecond);
  CHECK(calendar.num_gaps == kGaps);
  const uint64_t last = 3 * kGaps * 100;
  CHECK(calendar.reserve(last - 50, 10, kSecond) == last - 40);
  for (uint64_t i = 0; i < 10 * kGaps; ++i) {  // splits the oldest where there is no room
    calendar.reserve(last - 100 * kGaps + 60 + 10 * i, 2, kSecond);
    CHECK(calendar.num_gaps <= kGaps);
    for (uint32_t g = 0; g < calendar.num_gaps; ++g) {
      CHECK(calendar.gaps[g].from_ns < calendar.gaps[g].to_ns);
      CHECK(!g || calendar.gaps[g - 1].to_ns <= calendar.gaps[g].from_ns);
    }
  }
}

}  // namespace

void test_calendars() {
  small_pieces_add_up();
  who_comes_late_takes_what_nobody_had();
  no_time_is_lost_and_none_is_given_twice();
  a_calendar_forgets_old_gaps_only();
}
