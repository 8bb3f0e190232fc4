// Passes over one row of this rank's logits. Nothing here depends on the other ranks but the
// numbers passed in, and no result depends on where the vocabulary is cut. A logit of -infinity is
// a masked token: it is in no list, no count, no sum and no draw.
//
// Order of the f32 sums: units of 64 tokens at multiples of 64 of the vocabulary (a rank holds
// whole units, the last may be shorter); inside a unit lane j of 16 adds tokens j, j + 16, j + 32,
// j + 48, then lanes j and j + 8, j + 4, j + 2, j + 1 are added. Everything above units is int64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"

#include "kernels/base/cpu_features.h"
#include "worker/sample/gumbel.h"

namespace bitshard {

inline constexpr int kUnit = 64;
inline constexpr uint32_t kNoToken = 0xffffffffu;

// Logits of tokens [begin, begin + count), and the maximum of each unit as SummarizeRow left it.
struct LogitsRow {
  const float* logits = nullptr;
  const float* unit_max = nullptr;
  uint32_t begin = 0;  // a multiple of kUnit
  size_t count = 0;
  Isa isa = Isa::kScalar;  // of exp; the bits are the same with all
};

struct RowSummary {
  float max = -std::numeric_limits<float>::infinity();
  uint32_t token = kNoToken;  // the lowest with the maximum
  bool bad = false;           // some logit is not finite
};

// Also fills unit_max[0 .. ceil(count / kUnit)). Of a row with a NaN or +infinity nothing but `bad`
// has a meaning.
RowSummary SummarizeRow(const float* logits, uint32_t begin, size_t count, float* unit_max);

// The first out.size() tokens of the order, as descending token keys (token_order.h); fewer when
// the row has fewer. `scratch` has at least 2 * out.size() entries, more is faster. Returns
// how many.
size_t TopTokens(const LogitsRow& row, absl::Span<uint64_t> scratch, absl::Span<uint64_t> out);

// Sum over the row of exp(logit - max), f32 within a unit, as mass (mass.h).
int64_t RawSum(const LogitsRow& row, float max);

// A row as temperature and min-p see it: tokens with Exponent(logit, max, temperature) >= floor
// take part.
struct Scale {
  float max = 0;
  float temperature = 1;
  float floor = -std::numeric_limits<float>::infinity();
};

// Sum of the masses of the tokens that take part.
int64_t MassSum(const LogitsRow& row, const Scale& scale);

// Counts and masses of the tokens that take part and whose SortableLogit s has s >> (shift + bits)
// == prefix, by the `bits` bits above `shift`; adds to counts[2^bits], masses[2^bits].
void AddHistogram(const LogitsRow& row, const Scale& scale, uint32_t prefix, int shift, int bits,
                  int64_t* counts, int64_t* masses);

// How many tokens have exactly this SortableLogit.
int64_t CountEqual(const LogitsRow& row, uint32_t sortable);

// Which tokens may be drawn: those that take part in `scale`, with s > boundary, or s == boundary
// among the first `ties`.
struct Kept {
  Scale scale;
  uint32_t boundary = 0;  // 0: every token that takes part
  int64_t ties = 0;
};

// The best token so far: largest logit / temperature + noise, lowest id among equals.
struct Draw {
  double score = -std::numeric_limits<double>::infinity();
  float logit = -std::numeric_limits<float>::infinity();
  uint32_t token = kNoToken;

  void Offer(double other_score, float other_logit, uint32_t other_token) {
    if (other_score < score || (other_score == score && other_token >= token)) return;
    score = other_score;
    logit = other_logit;
    token = other_token;
  }
};

Draw DrawFromRow(const LogitsRow& row, const Kept& kept, const NoiseKey& noise);

// The same draw over tokens given by their keys, in descending order.
Draw DrawFromKeys(absl::Span<const uint64_t> keys, float temperature, const NoiseKey& noise);

}  // namespace bitshard
