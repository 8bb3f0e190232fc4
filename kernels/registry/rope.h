// Rotary position embedding. cos and sin are f32, rounded from double maths of kernels/base.
//
// The angle of position p is that of p - p % 256 plus that of p % 256, by the addition theorem in
// double: small tables for any context. Rotation: (a, b) -> (a c - b s, b c + a s), products
// rounded apart.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/thread_pool.h"

namespace bitshard {

struct RopeConfig {
  enum class Pairing { kHalves, kInterleaved };
  struct Linear {
    double factor = 1;
  };
  struct Llama3 {
    double factor = 1, low_freq_factor = 1, high_freq_factor = 4, original_context = 8192;
  };
  struct Yarn {
    double factor = 1, original_context = 0, beta_fast = 32, beta_slow = 1;
    bool truncate = true;
    double attention_factor = 1;  // multiplies cos and sin
  };
  int head_dim = 0;
  int rotary_dim = 0;  // even, <= head_dim; the rest of a head passes through
  Pairing pairing = Pairing::kHalves;
  double theta = 10000;
  std::variant<std::monostate, Linear, Llama3, Yarn> scaling = {};
  std::vector<float> divisors = {};  // empty, or [rotary_dim / 2]: inv_freq[i] / divisors[i]
  int64_t max_positions = 0;         // positions below it may be asked for
};

class RopeTable {
 public:
  // INVALID_ARGUMENT on values that give no finite table.
  static absl::StatusOr<RopeTable> Create(const RopeConfig& config);

  // Rotates x[rows, heads * head_dim] in place, row r at x + r * stride, positions[rows].
  void Apply(float* x, int64_t rows, int heads, int64_t stride, absl::Span<const int32_t> positions,
             ThreadPool& pool) const;

  // cos and sin of one position, each [rotary_dim / 2].
  void CosSin(int64_t position, float* cos, float* sin) const;

  const std::vector<double>& inv_freq() const { return inv_freq_; }

 private:
  int head_dim_ = 0, rotary_dim_ = 0;
  RopeConfig::Pairing pairing_ = RopeConfig::Pairing::kHalves;
  double attention_factor_ = 1;
  int64_t max_positions_ = 0;
  std::vector<double> inv_freq_;       // [rotary_dim / 2]
  std::vector<double> fine_, coarse_;  // [256 | positions / 256][rotary_dim / 2]{cos, sin}
};

}  // namespace bitshard
