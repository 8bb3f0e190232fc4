#include "coordinator/engine/mask_job.h"

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "proto/status_details.h"

namespace bitshard {

namespace {

// Of the calling thread: a busy machine is nobody's fault.
absl::Duration CpuTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

MaskResult RunMaskJob(const MaskJob& job) {
  MaskResult result{.id = job.id, .output_index = job.output_index, .status = {}, .mask = {}};
  const absl::Duration begin = CpuTime();
  GrammarPlace& place = *job.place;
  if (place.matcher == nullptr) place.matcher = place.grammar->NewMatcher(place.end_tokens);
  for (const int32_t token : job.tokens) {
    if (place.matcher->AcceptToken(token)) continue;
    result.status = absl::InternalError(
        absl::StrCat("the constraint does not allow the token before output ", job.output_index));
    return result;
  }
  if (!place.matcher->FillMask(&result.mask)) {
    result.ended = place.matcher->IsTerminated();
    if (!result.ended) {
      result.status = WithErrorInfo(
          absl::FailedPreconditionError(absl::StrCat(
              "after ", job.output_index,
              " tokens the constraint goes on with what no token of this model stands for")),
          "CONSTRAINT_DEAD_END");
    }
  } else if (const absl::Duration time = CpuTime() - begin; time > kMaxMaskTime) {
    result.status = WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat(
                                      "following the constraint took ", absl::FormatDuration(time),
                                      " for output ", job.output_index, "; make it simpler")),
                                  "CONSTRAINT_TOO_SLOW");
  }
  return result;
}

MaskThreads::MaskThreads(int threads, std::function<void(MaskResult)> done)
    : max_threads_(threads), done_(std::move(done)) {}

MaskThreads::~MaskThreads() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::Run(MaskJob job) {
  bool more_threads;
  {
    absl::MutexLock lock(&mu_);
    queue_.push_back(std::move(job));
    more_threads = static_cast<int>(threads_.size()) < max_threads_;
  }
  if (more_threads) threads_.emplace_back([this] { Loop(); });
}

void MaskThreads::Loop() {
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !queue_.empty();
  };
  while (true) {
    MaskJob job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&ready));
      if (stopping_) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    MaskResult result = RunMaskJob(job);
    job.place.reset();
    done_(std::move(result));
  }
}

}  // namespace bitshard
