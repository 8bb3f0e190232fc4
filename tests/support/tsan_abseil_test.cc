// Means something under --config=tsan: Abseil's locks must be understood (no report), a real race
// must be reported.
#include <functional>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

void RunThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(TsanAbseil, FieldGuardedByAMutexIsNoRace) {
  absl::Mutex mutex;
  int value = 0;
  RunThreads(4, [&](int i) {
    for (int n = 0; n < 1000; ++n) {
      if (i == 0) {
        absl::ReaderMutexLock lock(&mutex);
        EXPECT_GE(value, 0);
      } else {
        absl::MutexLock lock(&mutex);
        ++value;
      }
    }
  });
  EXPECT_EQ(value, 3000);
}

TEST(TsanAbseil, AwaitAndCondVarHandOver) {
  absl::Mutex mutex;
  absl::CondVar changed;
  int turn = 0;
  RunThreads(2, [&](int i) {
    for (int n = 0; n < 200; ++n) {
      const auto mine = [&] { return turn % 2 == i; };
      absl::MutexLock lock(&mutex);
      if (n % 2 == 0) {
        mutex.Await(absl::Condition(&mine));
      } else {
        while (!mine()) changed.WaitWithTimeout(&mutex, absl::Milliseconds(50));
      }
      ++turn;
      changed.SignalAll();
    }
  });
  EXPECT_EQ(turn, 400);
}

TEST(TsanAbseil, NotificationAndBlockingCounterHandOver) {
  int first = 0;
  int second = 0;
  absl::Notification done;
  absl::BlockingCounter counter(1);
  std::thread thread([&] {
    first = 1;
    done.Notify();
    second = 1;
    counter.DecrementCount();
  });
  while (!done.HasBeenNotified()) std::this_thread::yield();
  EXPECT_EQ(first, 1);
  counter.Wait();
  EXPECT_EQ(second, 1);
  thread.join();
}

#if defined(__SANITIZE_THREAD__)
TEST(TsanAbseilDeathTest, RealRaceIsReported) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        int value = 0;
        absl::Mutex mutexes[2];
        RunThreads(2, [&](int i) {
          for (int n = 0; n < 100000; ++n) {
            absl::MutexLock lock(&mutexes[i]);  // two locks protect nothing
            ++value;
          }
        });
      },
      "data race");
}
#endif

}  // namespace
}  // namespace bitshard
