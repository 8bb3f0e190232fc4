#include "coordinator/engine/mask_job.h"

#include <ctime>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/resume.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

// Of the calling thread.
absl::Duration CpuTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

absl::Status TooSlow(const std::string& what) {
  return WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat("following the constraint took ",
                                                                 what, "; make it simpler")),
                       "CONSTRAINT_TOO_SLOW");
}

}  // namespace

absl::Status MaskTooSlowError(uint32_t output_index, absl::Duration time) {
  return TooSlow(
      absl::StrCat(absl::FormatDuration(time), " of processor time for output ", output_index));
}

MaskResult RunMaskJob(const MaskJob& job, const MaskTimeLimits& limits) {
  MaskResult result{.id = job.id, .output_index = job.output_index, .status = {}, .mask = {}};
  const absl::Duration begin = CpuTime();
  GrammarPlace& place = *job.place;
  const auto gone = [&] {
    if (place.gone.load(std::memory_order_relaxed))
      result.status = absl::CancelledError("the sequence has ended");
    return !result.status.ok();
  };
  if (gone()) return result;
  if (place.matcher == nullptr) place.matcher = place.grammar->NewMatcher(place.end_tokens);
  for (size_t i = 0; i < job.tokens.size(); ++i) {
    if (place.matcher->AcceptToken(job.tokens[i])) {
      if (gone()) return result;
      continue;
    }
    if (job.resumed) {
      result.status = ResumedTokenError(
          i,
          "is not what the constraint allows there; send the ids as they came, with the first "
          "request's constraint");
    } else {
      result.status = absl::InternalError(
          absl::StrCat("the constraint does not allow the token before output ", job.output_index));
    }
    return result;
  }
  const bool goes_on = place.matcher->FillMask(&result.mask);
  const absl::Duration time = CpuTime() - begin;
  place.used += time;
  if (!goes_on) {
    result.ended = place.matcher->IsTerminated();
    if (!result.ended) {
      result.status = WithErrorInfo(
          absl::FailedPreconditionError(absl::StrCat(
              "after ", job.output_index,
              " tokens the constraint goes on with what no token of this model stands for")),
          "CONSTRAINT_DEAD_END");
    }
  } else if (place.grammar->TooLarge()) {
    result.status = WithErrorInfo(
        absl::ResourceExhaustedError(absl::StrCat(
            "following the constraint took ", place.grammar->MemoryBytes() >> 20,
            " MiB, more than there is for it; make it simpler, or try again with less beside it")),
        "CONSTRAINT_TOO_LARGE");
  } else if (time > limits.Of(job)) {
    result.status = MaskTooSlowError(job.output_index, time);
  } else if (place.used > limits.Until(job.output_index)) {
    result.status =
        TooSlow(absl::StrCat(absl::FormatDuration(place.used), " of processor time for ",
                             job.output_index, " outputs, more than the ",
                             absl::FormatDuration(limits.Until(job.output_index)), " allowed"));
  }
  return result;
}

}  // namespace bitshard
