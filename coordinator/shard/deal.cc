#include "coordinator/shard/deal.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/check.h"

namespace bitshard {

std::vector<uint64_t> DealUnits(uint64_t units, const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  CHECK_GT(sum, 0.0);
  std::vector<uint64_t> dealt(shares.size());
  std::vector<double> remainder(shares.size());
  uint64_t left = units;
  for (size_t r = 0; r < shares.size(); ++r) {
    const double quota = static_cast<double>(units) * (shares[r] / sum);
    const double whole = std::floor(quota);
    dealt[r] = std::min(left, static_cast<uint64_t>(whole));
    remainder[r] = quota - whole;
    left -= dealt[r];
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainder[a] > remainder[b]; });
  // One round is enough but for rounding errors of the quotas.
  for (size_t i = 0; left > 0; ++i, --left) ++dealt[order[i % order.size()]];
  return dealt;
}

std::vector<uint64_t> DealUnitsOnTop(uint64_t units, double unit_bytes,
                                     const std::vector<double>& taken_bytes,
                                     const std::vector<double>& shares) {
  CHECK_EQ(taken_bytes.size(), shares.size());
  std::vector<bool> open(shares.size(), true);
  std::vector<double> wanted(shares.size());
  for (bool changed = true; changed;) {
    changed = false;
    double bytes = static_cast<double>(units) * unit_bytes, share = 0;
    for (size_t r = 0; r < shares.size(); ++r) {
      if (!open[r]) continue;
      bytes += taken_bytes[r];
      share += shares[r];
    }
    for (size_t r = 0; r < shares.size(); ++r) {
      wanted[r] = open[r] ? bytes * (shares[r] / share) - taken_bytes[r] : 0;
      if (wanted[r] < 0) {
        open[r] = false;
        changed = true;
      }
    }
  }
  const double sum = std::accumulate(wanted.begin(), wanted.end(), 0.0);
  return DealUnits(units, sum > 0 ? wanted : shares);
}

std::vector<Run> RunsOf(const std::vector<uint64_t>& sizes) {
  std::vector<Run> runs;
  uint64_t begin = 0;
  for (uint64_t size : sizes) {
    runs.push_back({.begin = begin, .end = begin + size});
    begin += size;
  }
  return runs;
}

}  // namespace bitshard
