// What all parts of a simulation share: virtual time, dice, the trace, and the first violation.
//
// One thread. A trace is a list of lines that only a replay makes: a schedule that failed is run
// again with it, and comes out the same.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "tests/coordinator/simulator/event_queue.h"
#include "tests/coordinator/simulator/random.h"

namespace bitshard::sim {

struct TraceOptions {
  size_t keep = 0;     // last lines to keep; 0 = none are made
  bool print = false;  // each line to stdout at once
};

class World {
 public:
  World(uint64_t seed, const TraceOptions& trace) : dice(seed), trace_options_(trace) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // `text` is asked for its line only when somebody wants it.
  template <typename Text>
  void Note(const Text& text) {
    if (trace_options_.keep > 0) Keep(text());
  }
  // A promise is broken; the first one counts, and ends the run.
  void Fail(const std::string& what) {
    if (violation_.has_value()) return;
    violation_ = what;
    Note([&] { return absl::StrCat("VIOLATION ", what); });
  }
  const std::optional<std::string>& violation() const { return violation_; }
  const std::deque<std::string>& trace() const { return trace_; }

  EventQueue events;
  Random dice;  // of the network, of how long things take

 private:
  void Keep(const std::string& text);

  const TraceOptions trace_options_;
  std::optional<std::string> violation_;
  std::deque<std::string> trace_;
};

}  // namespace bitshard::sim
