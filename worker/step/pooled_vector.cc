#include "worker/step/pooled_vector.h"

#include <algorithm>
#include <cmath>

namespace bitshard {

void PooledVector::Begin(internal::Pooling pooling) {
  pooling_ = pooling;
  tokens_ = 0;
  if (pooling != internal::POOLING_NONE) std::fill(sum_.begin(), sum_.end(), 0.0);
}

void PooledVector::Add(const float* hidden, uint32_t tokens) {
  const size_t width = sum_.size();
  tokens_ += tokens;
  if (pooling_ == internal::POOLING_LAST) {
    if (tokens > 0) std::copy_n(hidden + (tokens - 1) * width, width, sum_.begin());
    return;
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    const float* const row = hidden + t * width;
    for (size_t i = 0; i < width; ++i) sum_[i] += static_cast<double>(row[i]);
  }
}

bool PooledVector::Finite() const {
  // The sum of all floats that a context holds is far below the largest double.
  return std::all_of(sum_.begin(), sum_.end(), [](double x) { return std::isfinite(x); });
}

void PooledVector::Write(google::protobuf::RepeatedField<float>* values) const {
  const double divisor = pooling_ == internal::POOLING_MEAN ? tokens_ : 1;
  values->Resize(static_cast<int>(sum_.size()), 0);
  for (size_t i = 0; i < sum_.size(); ++i)
    values->Set(static_cast<int>(i), static_cast<float>(sum_[i] / divisor));
}

}  // namespace bitshard
