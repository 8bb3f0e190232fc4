#include "worker/sample/row_scan.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/base/check.h"
#include "kernels/registry/elementwise.h"
#include "worker/sample/mass.h"
#include "worker/sample/token_order.h"
#include "worker/sample/unit_noise.h"

namespace bitshard {
namespace {

constexpr int kLanes = 16;
constexpr float kInf = std::numeric_limits<float>::infinity();

// fn(unit, first, last) for the units of the row, [first, last) within it.
template <typename Fn>
void ForUnits(size_t count, const Fn& fn) {
  for (size_t first = 0; first < count; first += kUnit)
    fn(first / kUnit, first, std::min(count, first + kUnit));
}

// One past the `ties`-th token that equals `logit`.
size_t EndOfTies(const LogitsRow& row, float logit, int64_t ties) {
  size_t i = 0;
  for (; i < row.count && ties > 0; ++i) ties -= row.logits[i] == logit ? 1 : 0;
  return i;
}

}  // namespace

RowSummary SummarizeRow(const float* logits, uint32_t begin, size_t count, float* unit_max) {
  RowSummary summary;
  ForUnits(count, [&](size_t unit, size_t first, size_t last) {
    float lanes[kLanes];
    int bad = 0;
    std::fill(lanes, lanes + kLanes, -kInf);
    if (last - first == kUnit) {
      const float* x = logits + first;
      int bad_lanes[kLanes] = {};
      for (int i = 0; i < kUnit; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
          bad_lanes[j] |= std::fabs(x[i + j]) < kInf ? 0 : 1;  // NaN compares false
          lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
        }
      }
      for (int j = 0; j < kLanes; ++j) bad |= bad_lanes[j];
    } else {
      for (size_t i = first; i < last; ++i) {
        bad |= std::fabs(logits[i]) < kInf ? 0 : 1;
        lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
      }
    }
    float max = lanes[0];
    for (int j = 1; j < kLanes; ++j) max = lanes[j] > max ? lanes[j] : max;
    unit_max[unit] = max;
    summary.bad |= bad != 0;
    if (max > summary.max) {
      summary.max = max;
      summary.token =
          begin + static_cast<uint32_t>(first);  // its unit; the token is looked up below
    }
  });
  if (summary.token == kNoToken) return summary;
  size_t at = summary.token - begin;
  while (logits[at] != summary.max) ++at;
  summary.token = begin + static_cast<uint32_t>(at);
  return summary;
}

size_t TopTokens(const LogitsRow& row, absl::Span<uint64_t> scratch, absl::Span<uint64_t> out) {
  const size_t n = out.size();
  if (n == 0) return 0;
  CHECK(scratch.size() >= 2 * n) << scratch.size() << " for " << n;
  uint64_t* const pool = scratch.data();
  size_t size = 0;
  uint64_t threshold = TokenKey(-kInf, 0);  // below all tokens
  float threshold_logit = -kInf;
  const auto shrink = [&] {
    if (size <= n) return;
    std::nth_element(pool, pool + n - 1, pool + size, std::greater<>());
    size = n;
    threshold = pool[n - 1];
    threshold_logit = KeyLogit(threshold);
  };
  ForUnits(row.count, [&](size_t unit, size_t first, size_t last) {
    if (row.unit_max[unit] < threshold_logit) return;
    for (size_t i = first; i < last; ++i) {
      if (row.logits[i] < threshold_logit) continue;
      const uint64_t key = TokenKey(row.logits[i], row.begin + static_cast<uint32_t>(i));
      if (key <= threshold) continue;
      if (size == scratch.size()) shrink();
      if (key > threshold) pool[size++] = key;
    }
  });
  shrink();
  std::sort(pool, pool + size, std::greater<>());
  std::copy(pool, pool + size, out.begin());
  return size;
}

int64_t RawSum(const LogitsRow& row, float max) {
  // 64 exp(t) 2^40 < 0.5 below: the unit adds nothing.
  constexpr float kNoUnitBelow = -33;
  int64_t sum = 0;
  ForUnits(row.count, [&](size_t unit, size_t first, size_t last) {
    if (row.unit_max[unit] - max < kNoUnitBelow) return;
    float e[kUnit];
    ExpShifted(row.logits + first, max, static_cast<int64_t>(last - first), e, row.isa);
    std::fill(e + (last - first), e + kUnit, 0.0f);
    float lanes[kLanes];
    for (int j = 0; j < kLanes; ++j) lanes[j] = ((e[j] + e[j + 16]) + e[j + 32]) + e[j + 48];
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    }
    sum += ScaleMass(lanes[0]);
  });
  return sum;
}

int64_t MassSum(const LogitsRow& row, const Scale& scale) {
  int64_t sum = 0;
  const float floor = std::max(scale.floor, kNoMassBelow);
  ForUnits(row.count, [&](size_t unit, size_t first, size_t last) {
    if (Exponent(row.unit_max[unit], scale.max, scale.temperature) < floor) return;
    float t[kUnit] = {}, e[kUnit];
    const int64_t n = static_cast<int64_t>(last - first);
    for (int64_t i = 0; i < n; ++i) {
      t[i] = Exponent(row.logits[first + i], scale.max, scale.temperature);
    }
    ExpShifted(t, 0, n, e, row.isa);
    for (int64_t i = 0; i < n; ++i) sum += t[i] >= floor ? ScaleMass(e[i]) : 0;
  });
  return sum;
}

void AddHistogram(const LogitsRow& row, const Scale& scale, uint32_t prefix, int shift, int bits,
                  int64_t* counts, int64_t* masses) {
  const uint32_t mask = (uint32_t{1} << bits) - 1;
  const int above = shift + bits;  // 32 at the first level, where every prefix is 0
  const auto prefix_of = [above](uint32_t s) { return above >= 32 ? 0u : s >> above; };
  ForUnits(row.count, [&](size_t unit, size_t first, size_t last) {
    if (prefix_of(SortableLogit(row.unit_max[unit])) < prefix) return;
    float t[kUnit], e[kUnit];
    uint32_t bin[kUnit];
    int64_t n = 0;
    for (size_t i = first; i < last; ++i) {
      const uint32_t s = SortableLogit(row.logits[i]);
      if (prefix_of(s) != prefix) continue;
      t[n] = Exponent(row.logits[i], scale.max, scale.temperature);
      bin[n] = (s >> shift) & mask;
      if (t[n] >= scale.floor && row.logits[i] > -kInf) ++n;
    }
    ExpShifted(t, 0, n, e, row.isa);
    for (int64_t i = 0; i < n; ++i) {
      counts[bin[i]] += 1;
      masses[bin[i]] += ScaleMass(e[i]);
    }
  });
}

int64_t CountEqual(const LogitsRow& row, uint32_t sortable) {
  const float logit = LogitOfSortable(sortable);
  int64_t count = 0;
  for (size_t i = 0; i < row.count; ++i) count += row.logits[i] == logit ? 1 : 0;
  return count;
}

Draw DrawFromRow(const LogitsRow& row, const Kept& kept, const NoiseKey& noise) {
  Draw best;
  const double temperature = kept.scale.temperature;
  const float inverse = static_cast<float>(1 / temperature);
  const float boundary_logit = LogitOfSortable(kept.boundary);
  const size_t ties_end = kept.boundary == 0 ? 0 : EndOfTies(row, boundary_logit, kept.ties);
  const auto may_be_drawn = [&](size_t i) {
    const float x = row.logits[i];
    if (!(x > -kInf)) return false;
    if (kept.boundary != 0 && x <= boundary_logit && (x < boundary_logit || i >= ties_end))
      return false;
    return Exponent(x, kept.scale.max, kept.scale.temperature) >= kept.scale.floor;
  };
  const auto visit = [&](size_t u) {
    if (!(row.unit_max[u] > -kInf)) return;
    if (row.unit_max[u] / temperature + kGumbelMost < best.score) return;
    if (kept.boundary != 0 && row.unit_max[u] < boundary_logit) return;
    const size_t first = u * kUnit, n = std::min<size_t>(kUnit, row.count - first);
    float x[kUnit];
    std::fill(std::copy_n(row.logits + first, n, x), x + kUnit, -kInf);
    uint32_t words[kUnit];
    UnitNoise(noise, row.begin + static_cast<uint32_t>(first), words);
    const auto offer = [&](size_t i) {
      if (!may_be_drawn(first + i)) return;
      best.Offer(x[i] / temperature + Gumbel(words[i]), x[i],
                 row.begin + static_cast<uint32_t>(first + i));
    };
    // Something to compare with, so that the first unit too computes few logarithms.
    if (best.token == kNoToken) offer(std::max_element(x, x + n) - x);
    // In f32, so with slack: a token that could win has |x / temperature| < |best| + 26, of which
    // product, sum and threshold lose less than 3e-7. Comparisons with NaN and with infinities let
    // the token pass.
    const float enough = std::isfinite(inverse)
                             ? static_cast<float>(best.score - 1e-3 - 1e-6 * std::abs(best.score))
                             : -kInf;
    int32_t may_win[kUnit], any = 0;
    for (int i = 0; i < kUnit; ++i)
      may_win[i] = x[i] * inverse + NoiseBound(words[i]) < enough ? 0 : 1;
    for (int i = 0; i < kUnit; ++i) any |= may_win[i];
    if (any == 0) return;
    for (size_t i = 0; i < n; ++i) {
      if (may_win[i] != 0) offer(i);
    }
  };
  // The unit of the maximum first: its score lets most other tokens be passed over. The order
  // changes nothing else.
  const size_t units = (row.count + kUnit - 1) / kUnit;
  const size_t likely = std::max_element(row.unit_max, row.unit_max + units) - row.unit_max;
  if (units > 0) visit(likely);
  for (size_t u = 0; u < units; ++u) {
    if (u != likely) visit(u);
  }
  return best;
}

Draw DrawFromKeys(absl::Span<const uint64_t> keys, float temperature, const NoiseKey& noise) {
  Draw best;
  for (const uint64_t key : keys) {
    const float x = KeyLogit(key);
    const double scaled = x / static_cast<double>(temperature);
    if (scaled + kGumbelMost < best.score) break;  // descending: no later one can win
    best.Offer(scaled + Gumbel(noise, KeyToken(key)), x, KeyToken(key));
  }
  return best;
}

}  // namespace bitshard
