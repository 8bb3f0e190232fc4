// The threads that follow grammars, with grammars that take too long.
#include "coordinator/engine/mask_threads.h"

#include <atomic>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include <gtest/gtest.h>

#include "proto/status_details.h"
#include "tests/support/words_grammar.h"

namespace bitshard {
namespace {

absl::Duration CpuTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Its masks take so much processor time, or go on until the flag is up.
class SpinningGrammar : public WordsGrammar {
 public:
  SpinningGrammar(absl::Duration time, std::shared_ptr<std::atomic<bool>> enough)
      : WordsGrammar({"abc"}), time_(time), enough_(std::move(enough)) {}
  std::unique_ptr<TokenMatcher> NewMatcher(bool end_tokens) const override {
    return std::make_unique<Matcher>(end_tokens, time_, enough_);
  }

 private:
  class Matcher : public WordsMatcher {
   public:
    Matcher(bool end_tokens, absl::Duration time, std::shared_ptr<std::atomic<bool>> enough)
        : WordsMatcher({"abc"}, end_tokens), time_(time), enough_(std::move(enough)) {}
    bool FillMask(std::string* mask) override {
      const absl::Duration end = CpuTime() + time_;
      while (CpuTime() < end && !*enough_) {
      }
      return WordsMatcher::FillMask(mask);
    }
    const absl::Duration time_;
    const std::shared_ptr<std::atomic<bool>> enough_;
  };
  const absl::Duration time_;
  const std::shared_ptr<std::atomic<bool>> enough_;
};

class MaskThreadsTest : public testing::Test {
 protected:
  ~MaskThreadsTest() override { *enough_ = true; }

  void Start(MaskThreads::Options options) {
    threads_ = std::make_unique<MaskThreads>(options, [this](MaskResult result) {
      absl::MutexLock lock(&mu_);
      results_.emplace(result.id, std::move(result));
    });
  }
  MaskJob Job(SequenceId id, const std::string& tenant, bool spins) {
    MaskJob job;
    job.id = id;
    job.place = std::make_shared<GrammarPlace>();
    job.place->tenant = tenant;
    job.place->grammar =
        spins ? std::make_shared<const SpinningGrammar>(absl::InfiniteDuration(), enough_)
              : std::make_shared<const WordsGrammar>(std::vector<std::string>{"abc"});
    return job;
  }
  absl::Status Await(SequenceId id) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return results_.contains(id); };
    mu_.Await(absl::Condition(&there));
    return results_.at(id).status;
  }
  bool Has(SequenceId id) {
    absl::MutexLock lock(&mu_);
    return results_.contains(id);
  }

  const std::shared_ptr<std::atomic<bool>> enough_ = std::make_shared<std::atomic<bool>>(false);
  absl::Mutex mu_;
  std::map<SequenceId, MaskResult> results_;
  std::unique_ptr<MaskThreads> threads_;
};

TEST_F(MaskThreadsTest, AMaskThatTakesTooLongIsAnsweredForWhileItIsComputed) {
  MaskThreads::Options options;
  options.threads = options.tenant_threads = 1;
  options.limits.one = absl::Milliseconds(20);
  Start(options);
  for (SequenceId id = 0; id < 3; ++id) {
    threads_->Run(Job(10 * id, "a", /*spins=*/true));
    const absl::Status status = Await(10 * id);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ErrorReason(status), "CONSTRAINT_TOO_SLOW");
    threads_->Run(Job(10 * id + 1, "a", /*spins=*/false));
    EXPECT_TRUE(Await(10 * id + 1).ok()) << "its thread was replaced";
  }
}

TEST_F(MaskThreadsTest, WithNoThreadLeftJobsAreRefusedAndThenTakenAgain) {
  MaskThreads::Options options;
  options.threads = options.tenant_threads = options.max_abandoned = 1;
  options.limits.one = absl::Milliseconds(20);
  Start(options);
  threads_->Run(Job(1, "a", /*spins=*/true));
  threads_->Run(Job(2, "a", /*spins=*/false));  // waits behind it
  EXPECT_EQ(ErrorReason(Await(1)), "CONSTRAINT_TOO_SLOW");
  threads_->Run(Job(3, "b", /*spins=*/false));
  for (const SequenceId id : {2, 3}) {
    const absl::Status status = Await(id);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(RetryDelay(status).has_value()) << status;
  }
  *enough_ = true;
  SequenceId id = 4;
  for (;; ++id) {
    threads_->Run(Job(id, "b", /*spins=*/false));
    if (Await(id).ok()) break;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST_F(MaskThreadsTest, OneTenantsSlowMasksHoldUpNoOthers) {
  MaskThreads::Options options;
  options.threads = 2;
  options.tenant_threads = 1;
  options.limits.one = absl::InfiniteDuration();
  Start(options);
  for (SequenceId id = 0; id < 5; ++id) threads_->Run(Job(id, "slow", /*spins=*/true));
  for (SequenceId id = 10; id < 30; ++id) {
    threads_->Run(Job(id, "quick", /*spins=*/false));
    EXPECT_TRUE(Await(id).ok());
  }
  for (SequenceId id = 0; id < 5; ++id) EXPECT_FALSE(Has(id));
}

TEST_F(MaskThreadsTest, ATenantsSlowSequencesHoldUpNoneOfItsQuickOnes) {
  MaskThreads::Options options;
  options.threads = 2;
  options.tenant_threads = 1;
  options.limits.one = absl::InfiniteDuration();
  Start(options);
  for (SequenceId id = 0; id < 5; ++id) {
    MaskJob job = Job(id, "", /*spins=*/true);
    job.place->used = absl::Seconds(5);  // as it has shown before
    threads_->Run(std::move(job));
  }
  threads_->Run(Job(10, "", /*spins=*/false));
  EXPECT_TRUE(Await(10).ok());
}

TEST_F(MaskThreadsTest, TheEndDoesNotWaitForAMask) {
  Start({});
  for (SequenceId id = 0; id < 5; ++id) threads_->Run(Job(id, "a", /*spins=*/true));
  threads_.reset();  // they would go on for ever
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(results_.empty());
}

TEST(RunMaskJob, ASequencesTimeIsBoundedInAll) {
  const auto never = std::make_shared<std::atomic<bool>>(false);
  MaskJob job;
  job.place = std::make_shared<GrammarPlace>();
  job.place->grammar = std::make_shared<const SpinningGrammar>(absl::Milliseconds(2), never);
  const MaskTimeLimits limits = {
      .one = absl::Hours(1), .begin = absl::Milliseconds(20), .each = absl::Milliseconds(1)};
  // Each takes one more millisecond than it may.
  int masks = 0;
  MaskResult result;
  for (; masks < 1000 && result.status.ok(); ++masks) {
    job.output_index = static_cast<uint32_t>(masks);
    result = RunMaskJob(job, limits);
  }
  EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted) << result.status;
  EXPECT_EQ(ErrorReason(result.status), "CONSTRAINT_TOO_SLOW");
  EXPECT_GT(job.place->used, limits.Until(job.output_index));
  EXPECT_LT(masks, 1000);
}

}  // namespace
}  // namespace bitshard
