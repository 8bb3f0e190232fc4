#include "kernels/registry/rope.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/math.h"

namespace bitshard {
namespace {

constexpr double kPi = 0x1.921fb54442d18p1;
constexpr int64_t kFine = 256;  // positions of the fine table
constexpr int kMaxRotary = 1024;

void ScaleLlama3(const RopeConfig::Llama3& s, std::vector<double>& inv_freq) {
  for (double& inv : inv_freq) {
    const double wavelength = 2 * kPi / inv;
    if (wavelength < s.original_context / s.high_freq_factor) continue;
    if (wavelength > s.original_context / s.low_freq_factor) {
      inv = inv / s.factor;
      continue;
    }
    const double smooth = (s.original_context / wavelength - s.low_freq_factor) /
                          (s.high_freq_factor - s.low_freq_factor);
    inv = (1 - smooth) * inv / s.factor + smooth * inv;
  }
}

void ScaleYarn(const RopeConfig::Yarn& s, double theta, int rotary_dim,
               std::vector<double>& inv_freq) {
  // The dimension that turns `rotations` times over the original context.
  const auto dim = [&](double rotations) {
    return rotary_dim * Log(s.original_context / (2 * kPi * rotations)) / (2 * Log(theta));
  };
  double low = dim(s.beta_fast), high = dim(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::clamp(low, 0.0, rotary_dim - 1.0);
  high = std::clamp(high, 0.0, rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / s.factor * ramp + inv_freq[i] * (1 - ramp);
  }
}

// Empty, or what is wrong with the numbers. Written so that NaN is wrong too.
std::string Complaint(const RopeConfig& c) {
  const auto positive = [](double v) { return v > 0 && std::isfinite(v); };
  if (c.head_dim <= 0 || c.rotary_dim <= 0 || c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim ||
      c.rotary_dim > kMaxRotary) {
    return absl::StrCat("rotary width ", c.rotary_dim, " does not fit heads of ", c.head_dim);
  }
  if (!(c.theta > 1) || !std::isfinite(c.theta))
    return absl::StrCat("theta ", c.theta, " must be above 1");
  if (c.max_positions <= 0 || c.max_positions > (int64_t{1} << 30)) {
    return absl::StrCat("a context of ", c.max_positions, " positions is out of range");
  }
  if (!c.divisors.empty()) {
    if (c.divisors.size() != static_cast<size_t>(c.rotary_dim / 2)) {
      return absl::StrCat(c.divisors.size(), " frequency divisors given, ", c.rotary_dim / 2,
                          " needed");
    }
    for (float d : c.divisors) {
      if (!positive(d)) return absl::StrCat("frequency divisor ", d, " must be positive");
    }
  }
  if (const auto* s = std::get_if<RopeConfig::Linear>(&c.scaling)) {
    if (!positive(s->factor))
      return absl::StrCat("linear scaling factor ", s->factor, " must be positive");
  }
  if (const auto* s = std::get_if<RopeConfig::Llama3>(&c.scaling)) {
    if (!positive(s->factor) || !positive(s->low_freq_factor) || !positive(s->original_context) ||
        !(s->high_freq_factor > s->low_freq_factor) || !std::isfinite(s->high_freq_factor)) {
      return "llama3 scaling needs positive factor, original context and low_freq_factor < "
             "high_freq_factor";
    }
  }
  if (const auto* s = std::get_if<RopeConfig::Yarn>(&c.scaling)) {
    if (!positive(s->factor) || !positive(s->original_context) || !positive(s->beta_fast) ||
        !positive(s->beta_slow) || !positive(s->attention_factor)) {
      return "yarn scaling needs positive factor, original context, beta_fast, beta_slow and "
             "attention_factor";
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<RopeTable> RopeTable::Create(const RopeConfig& config) {
  if (const std::string complaint = Complaint(config); !complaint.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("rope: ", complaint));
  }
  RopeTable table;
  table.head_dim_ = config.head_dim;
  table.rotary_dim_ = config.rotary_dim;
  table.pairing_ = config.pairing;
  table.max_positions_ = config.max_positions;
  const int half = config.rotary_dim / 2;
  table.inv_freq_.resize(half);
  for (int i = 0; i < half; ++i) {
    table.inv_freq_[i] = Pow(config.theta, -2.0 * i / config.rotary_dim);
    if (!config.divisors.empty()) table.inv_freq_[i] /= static_cast<double>(config.divisors[i]);
  }
  if (const auto* s = std::get_if<RopeConfig::Linear>(&config.scaling)) {
    for (double& inv : table.inv_freq_) inv /= s->factor;
  } else if (const auto* s = std::get_if<RopeConfig::Llama3>(&config.scaling)) {
    ScaleLlama3(*s, table.inv_freq_);
  } else if (const auto* s = std::get_if<RopeConfig::Yarn>(&config.scaling)) {
    ScaleYarn(*s, config.theta, config.rotary_dim, table.inv_freq_);
    table.attention_factor_ = s->attention_factor;
  }
  for (double inv : table.inv_freq_) {
    // Sin and Cos are for |x| <= 2^30.
    if (!(inv * static_cast<double>(config.max_positions) < 0x1p30)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rope: a frequency of ", inv, " is out of range"));
    }
  }
  const auto fill = [&](std::vector<double>& out, int64_t count, int64_t step) {
    out.resize(count * half * 2);
    for (int64_t p = 0; p < count; ++p) {
      for (int i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p * step) * table.inv_freq_[i];
        out[(p * half + i) * 2] = Cos(angle);
        out[(p * half + i) * 2 + 1] = Sin(angle);
      }
    }
  };
  fill(table.fine_, std::min(kFine, config.max_positions), 1);
  fill(table.coarse_, (config.max_positions + kFine - 1) / kFine, kFine);
  return table;
}

void RopeTable::CosSin(int64_t position, float* cos, float* sin) const {
  DCHECK(position >= 0 && position < max_positions_);
  const int half = rotary_dim_ / 2;
  const double* a = coarse_.data() + position / kFine * half * 2;
  const double* b = fine_.data() + position % kFine * half * 2;
  for (int i = 0; i < half; ++i) {
    const double ca = a[2 * i], sa = a[2 * i + 1], cb = b[2 * i], sb = b[2 * i + 1];
    cos[i] = static_cast<float>((ca * cb - sa * sb) * attention_factor_);
    sin[i] = static_cast<float>((sa * cb + ca * sb) * attention_factor_);
  }
}

void RopeTable::Apply(float* x, int64_t rows, int heads, int64_t stride,
                      absl::Span<const int32_t> positions, ThreadPool& pool) const {
  CHECK_EQ(static_cast<int64_t>(positions.size()), rows);
  const int half = rotary_dim_ / 2;
  pool.ParallelFor(rows, [&](int64_t row, int) {
    float cos[kMaxRotary / 2], sin[kMaxRotary / 2];
    CosSin(positions[row], cos, sin);
    for (int h = 0; h < heads; ++h) {
      float* v = x + row * stride + int64_t{h} * head_dim_;
      if (pairing_ == RopeConfig::Pairing::kHalves) {
        for (int i = 0; i < half; ++i) {
          const float a = v[i], b = v[i + half];
          v[i] = a * cos[i] - b * sin[i];
          v[i + half] = b * cos[i] + a * sin[i];
        }
      } else {
        for (int i = 0; i < half; ++i) {
          const float a = v[2 * i], b = v[2 * i + 1];
          v[2 * i] = a * cos[i] - b * sin[i];
          v[2 * i + 1] = b * cos[i] + a * sin[i];
        }
      }
    }
  });
}

}  // namespace bitshard
