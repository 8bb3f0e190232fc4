#include "worker/sample/params.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bitshard {
namespace {

absl::Status Bad(const char* field, double value, const char* range) {
  return absl::InvalidArgumentError(
      absl::StrCat("sampling: ", field, " is ", value, "; allowed: ", range));
}

}  // namespace

absl::StatusOr<SampleParams> SampleParamsOf(const internal::SamplingParams& proto) {
  // Written so that NaN is refused.
  if (!(proto.temperature() >= 0) || std::isinf(proto.temperature())) {
    return Bad("temperature", proto.temperature(), "0 (greedy) and above");
  }
  if (!(proto.top_p() >= 0 && proto.top_p() <= 1))
    return Bad("top_p", proto.top_p(), "0 to 1 (all)");
  if (!(proto.min_p() >= 0 && proto.min_p() <= 1))
    return Bad("min_p", proto.min_p(), "0 (all) to 1");
  if (proto.top_logprobs() > kMaxTopLogprobs)
    return Bad("top_logprobs", proto.top_logprobs(), "0 to 20");
  return SampleParams{.temperature = proto.temperature(),
                      .top_k = proto.top_k(),
                      .top_p = proto.top_p(),
                      .min_p = proto.min_p(),
                      .seed = proto.seed(),
                      .choice = proto.choice(),
                      .top_logprobs = proto.top_logprobs(),
                      .want_logprob = proto.logprobs()};
}

}  // namespace bitshard
