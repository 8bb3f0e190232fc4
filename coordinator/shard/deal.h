// How whole units are dealt to ranks. Pure arithmetic; the same result on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace bitshard {

// [begin, end)
struct Run {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(const Run&, const Run&) = default;
};

// By largest remainder; of equal remainders the lower rank's first. REQUIRES: shares finite, >= 0,
// their sum > 0.
std::vector<uint64_t> DealUnits(uint64_t units, const std::vector<double>& shares);

// Deals units of `unit_bytes` so that, together with the `taken_bytes` that each rank has already,
// bytes follow the shares as closely as they can: a rank that has more than its share gets none.
std::vector<uint64_t> DealUnitsOnTop(uint64_t units, double unit_bytes,
                                     const std::vector<double>& taken_bytes,
                                     const std::vector<double>& shares);

// Consecutive runs of these sizes, from 0 on.
std::vector<Run> RunsOf(const std::vector<uint64_t>& sizes);

}  // namespace bitshard
