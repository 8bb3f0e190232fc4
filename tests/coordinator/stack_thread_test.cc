#include "coordinator/stack_thread.h"

#include <atomic>
#include <cstddef>
#include <pthread.h>

#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "coordinator/frontend/background.h"

namespace bitshard {
namespace {

size_t StackOfThisThread() {
  pthread_attr_t own;
  size_t bytes = 0;
  pthread_getattr_np(pthread_self(), &own);
  pthread_attr_getstacksize(&own, &bytes);
  pthread_attr_destroy(&own);
  return bytes;
}

// A machine whose threads have little.
class SmallStacks : public testing::Test {
 protected:
  void SetUp() override {
    pthread_attr_t small;
    ASSERT_EQ(pthread_getattr_default_np(&old_), 0);
    ASSERT_EQ(pthread_attr_init(&small), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&small, 1 << 20), 0);
    ASSERT_EQ(pthread_setattr_default_np(&small), 0);
    pthread_attr_destroy(&small);
  }
  void TearDown() override { ASSERT_EQ(pthread_setattr_default_np(&old_), 0); }

 private:
  pthread_attr_t old_;
};

TEST_F(SmallStacks, OurThreadsHaveWhatTheyNeed) {
  size_t bytes = 0;
  StackThread thread([&] { bytes = StackOfThisThread(); });
  thread.Join();
  EXPECT_GE(bytes, kThreadStackBytes);

  std::atomic<size_t> detached{0};
  absl::Notification done;
  ASSERT_TRUE(RunDetached([&] {
    detached = StackOfThisThread();
    done.Notify();
  }));
  done.WaitForNotification();
  EXPECT_GE(detached, kThreadStackBytes);
}

TEST_F(SmallStacks, SoHasTheOneThatRendersLongPrompts) {
  std::atomic<size_t> bytes{0};
  absl::Notification done;
  Background background(/*max_queued=*/1, /*max_bytes=*/1);
  ASSERT_TRUE(background.Run(/*bytes=*/2, [&](const absl::Status&) {
    bytes = StackOfThisThread();
    done.Notify();
  }));
  done.WaitForNotification();
  EXPECT_GE(bytes, kThreadStackBytes);
}

TEST_F(SmallStacks, AndThoseOfLibrariesWhenAsked) {
  SetDefaultThreadStack();
  pthread_t thread;
  size_t bytes = 0;
  const auto look = [](void* to) -> void* {
    *static_cast<size_t*>(to) = StackOfThisThread();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, look, &bytes), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_GE(bytes, kThreadStackBytes);
}

}  // namespace
}  // namespace bitshard
