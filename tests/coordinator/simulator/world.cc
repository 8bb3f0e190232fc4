#include "tests/coordinator/simulator/world.h"

#include <cstdio>

#include "absl/strings/str_format.h"

namespace bitshard::sim {

void World::Keep(const std::string& text) {
  std::string line =
      absl::StrFormat("%12.3f ms  %s", static_cast<double>(events.now()) / kMillisecond, text);
  if (trace_options_.print) std::printf("%s\n", line.c_str());
  trace_.push_back(std::move(line));
  if (trace_.size() > trace_options_.keep) trace_.pop_front();
}

}  // namespace bitshard::sim
