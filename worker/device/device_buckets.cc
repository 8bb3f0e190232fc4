#include "worker/device/device_buckets.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {
namespace {

// Empty chunks of attention end at once, so contexts may be coarse: each doubles the launch twice.
constexpr int64_t kFirstContext = 1024, kContextFactor = 4;

int64_t NextTokens(int64_t tokens) {
  if (tokens < 8) return tokens * 2;
  return tokens < 64 ? tokens + 8 : tokens + 32;
}

}  // namespace

DeviceBuckets::DeviceBuckets(int64_t max_tokens, int64_t max_rows, int64_t context) {
  const int64_t most = std::min({max_tokens, max_rows, kMostTokens});
  for (int64_t tokens = 1;; tokens = NextTokens(tokens)) {
    tokens_.push_back(std::min(tokens, max_tokens));
    if (tokens >= most) break;
  }
  const int64_t all = static_cast<int64_t>(RoundUp(static_cast<uint64_t>(context), kKvChunkTokens));
  for (int64_t positions = kFirstContext; positions < all; positions *= kContextFactor)
    contexts_.push_back(positions);
  contexts_.push_back(all);
}

std::optional<size_t> DeviceBuckets::TokensFor(int64_t tokens) const {
  const auto found = std::lower_bound(tokens_.begin(), tokens_.end(), tokens);
  if (found == tokens_.end()) return std::nullopt;
  return static_cast<size_t>(found - tokens_.begin());
}

size_t DeviceBuckets::ContextFor(int64_t positions) const {
  const auto found = std::lower_bound(contexts_.begin(), contexts_.end(), positions);
  CHECK(found != contexts_.end()) << positions << " positions, the context has "
                                  << contexts_.back();
  return static_cast<size_t>(found - contexts_.begin());
}

}  // namespace bitshard
