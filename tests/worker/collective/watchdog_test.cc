// When a communicator is ended, by whom, and what is said about it. No device, no library.
#include "worker/collective/watchdog.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/log.h"
#include "tests/support/await.h"
#include "worker/collective/collective.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kNever = absl::Hours(1);

struct Dog {
  explicit Dog(absl::Duration timeout, absl::Duration connect_timeout = absl::ZeroDuration()) {
    InitLogging("test", "error");
    Watchdog::Options options;
    options.communicator = "communicator c";
    options.rank = 3;
    options.operation_timeout = timeout;
    options.connect_timeout = connect_timeout;
    options.advice = "try this";
    options.now = [this] { return absl::UnixEpoch() + absl::Seconds(seconds.load()); };
    options.error = [this] {
      EXPECT_EQ(aborts, 0) << "asked after the abort";
      ++looks;
      return broken ? absl::InternalError("it broke") : absl::OkStatus();
    };
    options.abort = [this] {
      ++aborts;
      aborted.Notify();
    };
    watchdog = std::make_unique<Watchdog>(std::move(options));
  }

  // So much time passes at once, and the watchdog looks before and after.
  void Pass(int64_t time_s) {
    AwaitLook();
    seconds += time_s;
    AwaitLook();
  }
  // Until a look that has begun since is over.
  void AwaitLook() {
    const int before = looks;
    AwaitTrue("a look of the watchdog", [&] { return looks >= before + 2 || aborts > 0; });
  }

  std::atomic<int64_t> seconds{0};
  std::atomic<int> looks{0};
  std::atomic<bool> broken{false};
  std::atomic<int> aborts{0};
  absl::Notification aborted;
  std::unique_ptr<Watchdog> watchdog;
};

TEST(Watchdog, AWaitThatIsLateEndsTheCommunicator) {
  Dog dog(absl::Seconds(10));
  dog.watchdog->Note("all_reduce", 8);
  dog.watchdog->Note("all_gather", 96);
  ASSERT_TRUE(dog.watchdog->BeginWait().ok());
  dog.Pass(10);
  AwaitNotified(dog.aborted, "the abort");
  const absl::Status status = dog.watchdog->EndWait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(IsCollectiveAbort(status)) << "it is a cause";
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("communicator c, rank 3"), HasSubstr("waiting for the device"),
                    HasSubstr("operation 2 (all_gather of 96 bytes)"),
                    HasSubstr("not over within 10s"), HasSubstr("try this")));
  EXPECT_EQ(dog.watchdog->Enter(), status);
  EXPECT_EQ(dog.watchdog->BeginWait(), status);
  EXPECT_EQ(dog.watchdog->status(), status);
  dog.watchdog->Abort();
  EXPECT_EQ(dog.watchdog->status(), status) << "the first cause counts";
  dog.watchdog.reset();
  EXPECT_EQ(dog.aborts, 1);
}

TEST(Watchdog, NothingIsLateBetweenOperations) {
  Dog dog(absl::Seconds(10));
  ASSERT_TRUE(dog.watchdog->Enter().ok());
  ASSERT_TRUE(dog.watchdog->Leave().ok());
  dog.Pass(20);
  ASSERT_TRUE(dog.watchdog->BeginWait().ok());
  dog.Pass(9);
  ASSERT_TRUE(dog.watchdog->EndWait().ok());
  dog.Pass(20);
  dog.watchdog.reset();
  EXPECT_EQ(dog.aborts, 0);
}

TEST(Watchdog, ConnectionsMayTakeLongerThanSteps) {
  Dog dog(absl::Seconds(10), /*connect_timeout=*/absl::Seconds(30));
  ASSERT_TRUE(dog.watchdog->BeginWait().ok());
  dog.Pass(29);
  ASSERT_TRUE(dog.watchdog->EndWait().ok());
  dog.watchdog->SetConnected();
  ASSERT_TRUE(dog.watchdog->BeginWait().ok());
  dog.Pass(10);
  AwaitNotified(dog.aborted, "the abort");
  EXPECT_THAT(dog.watchdog->EndWait().message(), HasSubstr("not over within 10s"));
}

TEST(Watchdog, NothingIsLateWhileTheProgressWordChanges) {
  uint64_t word = 0;
  Dog dog(absl::Seconds(10));
  dog.watchdog->SetProgressWord(&word);
  ASSERT_TRUE(dog.watchdog->BeginWait().ok());
  for (int i = 0; i < 5; ++i) {
    dog.Pass(9);
    std::atomic_ref<uint64_t>(word).fetch_add(1);
  }
  EXPECT_EQ(dog.watchdog->EndWait(), absl::OkStatus());
  dog.watchdog.reset();
  EXPECT_EQ(dog.aborts, 0);
}

TEST(Watchdog, AProgressWordThatStaysAsItIsHelpsNobody) {
  uint64_t word = 5;
  Dog dog(absl::Seconds(10));
  dog.watchdog->SetProgressWord(&word);
  ASSERT_TRUE(dog.watchdog->BeginWait().ok());
  std::atomic_ref<uint64_t>(word).store(6);  // and no more
  dog.Pass(9);
  EXPECT_EQ(dog.aborts, 0);
  dog.Pass(1);
  AwaitNotified(dog.aborted, "the abort");
  EXPECT_THAT(dog.watchdog->EndWait().message(), HasSubstr("not over within 10s"));
}

TEST(Watchdog, WhatTheLibraryFindsEndsTheCommunicatorAlsoBetweenOperations) {
  Dog dog(kNever);
  dog.broken = true;
  AwaitNotified(dog.aborted, "the abort");
  const absl::Status status = dog.watchdog->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("no operation yet"), HasSubstr("it broke")));
}

TEST(Watchdog, AnErrorOfACallEndsTheCommunicator) {
  Dog dog(kNever);
  dog.watchdog->Note("broadcast", 5);
  ASSERT_TRUE(dog.watchdog->Enter().ok());
  const absl::Status status = dog.watchdog->Leave(absl::InternalError("no such rank"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("operation 1 (broadcast of 5 bytes)"), HasSubstr("no such rank")));
  AwaitNotified(dog.aborted, "the abort");
}

TEST(Watchdog, AbortOnRequestIsNoCause) {
  Dog dog(kNever);
  ASSERT_TRUE(dog.watchdog->BeginWait().ok());
  std::thread other([&] { dog.watchdog->Abort(); });
  AwaitNotified(dog.aborted, "the abort");
  EXPECT_EQ(dog.watchdog->EndWait(), CollectiveAbort(3));
  other.join();
}

// The abort frees what the call uses.
TEST(Watchdog, TheAbortWaitsForACallThatIsInside) {
  Dog dog(kNever);
  ASSERT_TRUE(dog.watchdog->Enter().ok());
  dog.watchdog->Abort();
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(dog.aborts, 0);
  EXPECT_EQ(dog.watchdog->Leave(), CollectiveAbort(3));
  AwaitNotified(dog.aborted, "the abort");
}

TEST(Watchdog, ACallThatDoesNotComeBackIsFreedByTheAbort) {
  Dog dog(absl::Seconds(10));
  ASSERT_TRUE(dog.watchdog->Enter().ok());
  dog.Pass(10);
  AwaitNotified(dog.aborted, "the abort");
  EXPECT_THAT(dog.watchdog->Leave().message(), HasSubstr("not over within 10s"));
}

TEST(Watchdog, AnAbortThatWasAskedForIsDoneBeforeItGoes) {
  for (int round = 0; round < 100; ++round) {
    Dog dog(kNever);
    dog.watchdog->Abort();
    dog.watchdog.reset();
    EXPECT_EQ(dog.aborts, 1);
  }
}

}  // namespace
}  // namespace bitshard
