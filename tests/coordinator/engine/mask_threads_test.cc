// The threads that follow grammars, with grammars that take too long.
#include "coordinator/engine/mask_threads.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include <gtest/gtest.h>

#include "proto/status_details.h"
#include "tests/support/await.h"
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

// The threads of this process, now.
std::set<std::string> Threads() {
  std::set<std::string> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    threads.insert(task.path().filename());
  return threads;
}

// With those that a sanitizer makes together with the first one.
std::set<std::string> ThreadsAtRest() {
  std::string first;
  std::thread([&first] { first = std::to_string(gettid()); }).join();
  std::set<std::string> threads = Threads();
  threads.erase(first);  // joined, but it may still be listed
  return threads;
}

class MaskThreadsTest : public testing::Test {
 protected:
  // No thread is left when the test is over, however long the machine takes for it.
  ~MaskThreadsTest() override {
    *enough_ = true;
    threads_.reset();
    const auto at_rest = [this] {
      const std::set<std::string> now = Threads();
      return std::includes(before_.begin(), before_.end(), now.begin(), now.end());
    };
    AwaitTrue("no thread of the test's", at_rest);
  }

  void Start(MaskThreads::Options options) {
    threads_ = std::make_unique<MaskThreads>(options, [this](MaskResult result) {
      absl::MutexLock lock(&mu_);
      results_.emplace(result.id, std::move(result));
    });
  }
  MaskJob Job(SequenceId id, const std::string& tenant, bool spins,
              absl::Duration time = absl::InfiniteDuration()) {
    MaskJob job;
    job.id = id;
    job.place = std::make_shared<GrammarPlace>();
    job.place->tenant = tenant;
    job.place->grammar =
        spins ? std::make_shared<const SpinningGrammar>(time, enough_)
              : std::make_shared<const WordsGrammar>(std::vector<std::string>{"abc"});
    return job;
  }
  absl::Status Await(SequenceId id) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return results_.contains(id); };
    AwaitOn(&mu_, absl::Condition(&there), absl::StrCat("the mask of ", id));
    return results_.at(id).status;
  }
  bool Has(SequenceId id) {
    absl::MutexLock lock(&mu_);
    return results_.contains(id);
  }

  const std::set<std::string> before_ = ThreadsAtRest();
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
    const std::string tenant = id < 2 ? "a" : "b";
    threads_->Run(Job(10 * id, tenant, /*spins=*/true));
    const absl::Status status = Await(10 * id);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ErrorReason(status), "CONSTRAINT_TOO_SLOW");
    threads_->Run(Job(10 * id + 1, tenant, /*spins=*/false));
    EXPECT_TRUE(Await(10 * id + 1).ok()) << "its thread was replaced";
  }
}

TEST_F(MaskThreadsTest, WhatOneTenantLeavesUnfinishedNeverTakesAllThreads) {
  MaskThreads::Options options;  // three threads, four that may be left to themselves
  options.limits.one = absl::Milliseconds(20);
  Start(options);
  // One after the other, as long as it is let.
  SequenceId id = 0;
  for (; id < 20; ++id) {
    threads_->Run(Job(id, "endless", /*spins=*/true));
    if (ErrorReason(Await(id)) != "CONSTRAINT_TOO_SLOW") break;
  }
  EXPECT_EQ(id, 3u);
  EXPECT_TRUE(RetryDelay(Await(id)).has_value()) << Await(id);
  for (SequenceId other = 100; other < 110; ++other) {
    threads_->Run(Job(other, "other", /*spins=*/false));
    EXPECT_TRUE(Await(other).ok()) << Await(other);
  }
}

TEST_F(MaskThreadsTest, NorDoesWhatItLeavesUnfinishedSeveralAtATime) {
  MaskThreads::Options options;  // of one tenant two at work, three that may be left to themselves
  options.limits.one = absl::Milliseconds(100);
  Start(options);
  for (SequenceId id = 0; id < 2; ++id) threads_->Run(Job(id, "endless", /*spins=*/true));
  for (SequenceId id = 0; id < 2; ++id) EXPECT_EQ(ErrorReason(Await(id)), "CONSTRAINT_TOO_SLOW");
  // One more may be: those that are not endless take turns.
  for (SequenceId id = 10; id < 20; ++id)
    threads_->Run(Job(id, "endless", /*spins=*/true, absl::Milliseconds(1)));
  for (SequenceId id = 10; id < 20; ++id) EXPECT_TRUE(Await(id).ok()) << Await(id);
  for (SequenceId id = 20; id < 22; ++id) threads_->Run(Job(id, "endless", /*spins=*/true));
  EXPECT_EQ(ErrorReason(Await(20)), "CONSTRAINT_TOO_SLOW");
  EXPECT_EQ(ErrorReason(Await(21)), "CONSTRAINT_QUEUE_FULL");
  for (SequenceId id = 30; id < 40; ++id) {
    threads_->Run(Job(id, "other", /*spins=*/false));
    EXPECT_TRUE(Await(id).ok()) << Await(id);
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

TEST_F(MaskThreadsTest, ATenantsSlowAndQuickMasksTogetherLeaveAThreadToOthers) {
  MaskThreads::Options options;
  options.tenant_threads = options.threads;  // more than it can have
  options.limits.one = absl::InfiniteDuration();
  Start(options);
  for (SequenceId id = 0; id < 10; ++id) {
    MaskJob job = Job(id, "a", /*spins=*/true);
    if (id % 2 == 0) job.place->used = absl::Seconds(5);  // as it has shown before
    threads_->Run(std::move(job));
  }
  for (SequenceId id = 10; id < 20; ++id) {
    threads_->Run(Job(id, "b", /*spins=*/false));
    EXPECT_TRUE(Await(id).ok());
  }
}

TEST_F(MaskThreadsTest, ATenantsSlowSequencesHoldUpNoneOfItsQuickOnes) {
  MaskThreads::Options options;
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
  MaskThreads::Options options;
  options.limits.one = absl::InfiniteDuration();  // none is answered for as too slow
  Start(options);
  for (SequenceId id = 0; id < 5; ++id) threads_->Run(Job(id, "a", /*spins=*/true));
  threads_.reset();  // they would go on for ever
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(results_.empty());
}

class GrownGrammar : public WordsGrammar {
 public:
  GrownGrammar() : WordsGrammar({"abc"}) {}
  uint64_t MemoryBytes() const override { return uint64_t{300} << 20; }
  bool TooLarge() const override { return true; }
};

TEST(RunMaskJob, AGrammarThatHasGrownTooLargeEndsWhoFollowsIt) {
  MaskJob job;
  job.place = std::make_shared<GrammarPlace>();
  job.place->grammar = std::make_shared<const GrownGrammar>();
  job.tokens = {'a'};
  MaskResult result = RunMaskJob(job);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted) << result.status;
  EXPECT_EQ(ErrorReason(result.status), "CONSTRAINT_TOO_LARGE");
  EXPECT_NE(result.status.message().find("300 MiB"), absl::string_view::npos) << result.status;
  job.place->end_tokens = false;
  job.place->matcher.reset();
  job.tokens = {'a', 'b', 'c'};
  result = RunMaskJob(job);
  EXPECT_TRUE(result.status.ok() && result.ended) << "it was complete all the same";
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
