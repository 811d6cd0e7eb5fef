// An emulated machine: its links hold back the bytes that cross them.
//
// The machine has a time of its own, in nanoseconds of CLOCK_MONOTONIC. A call starts at the time
// when its last rank came; what a step moves is over when the calendars of all resources of its
// links say so, counted from the time when the step could begin: when the step before it was over,
// and what it waited for had happened, both in the machine's time. Flags carry those times from
// rank to rank. Bytes are moved when the real clock has come to their time, never before, and
// usually a little later, since a sleeper wakes late. Had the next step been counted from then, each
// link would idle for as long as its user overslept, once per chunk; counted by the machine's time
// nothing is lost, because the real moves are far quicker than the paced ones and catch up.
//
// A step goes in pieces, two of them under way, and has each resource by itself: while it waits
// for its turn at one, the others serve its next piece. With one piece at a time on all at once,
// steps over several busy links reached 90 to 95 % of their rates; so they reach all of it.
//
// A rank that overslept asks for time that has passed, when others may have been served already. So
// a calendar keeps its gaps: who comes late takes time that nobody had, and no resource is ever
// promised to two.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control.hpp"
#include "program.hpp"
#include "waiting.hpp"

namespace blinkrun {

struct PaceConfig {
  std::vector<std::vector<uint32_t>> links;  // the resources that each link takes
  std::vector<uint64_t> rates;               // of the resources, in bytes per second
};

class Pacer {
 public:
  // Throws std::invalid_argument where a link takes a resource without a rate.
  Pacer(Control control, uint32_t rank, PaceConfig config, Waiter& waiter);

  size_t num_links() const { return config_.links.size(); }
  const std::vector<uint32_t>& resources_of(uint32_t link) const { return config_.links[link]; }
  // What a step moves at a time: about a millisecond of the fastest link, so that flows over one
  // resource take turns, and no rank has to move a large part at once in the end.
  uint64_t piece_bytes() const { return piece_bytes_; }

  // Charge `bytes` to each of `resources`, from its time in `times_ns` on, which becomes the end.
  // Throws Failure if a rank died with the calendars in hand.
  void reserve(const std::vector<uint32_t>& resources, uint64_t bytes, uint64_t* times_ns);

 private:
  class Hold;

  Control control_;
  uint32_t rank_;
  PaceConfig config_;
  Waiter& waiter_;
  uint64_t piece_bytes_;
};

// While it lives, the thread's timers are exact to a microsecond: 50 would be usual.
class ExactTimers {
 public:
  ExactTimers();
  ~ExactTimers();
  ExactTimers(const ExactTimers&) = delete;
  ExactTimers& operator=(const ExactTimers&) = delete;

 private:
  int before_ns_;
};

}  // namespace blinkrun
