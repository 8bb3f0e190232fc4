// The longest round is told, and the loops that matter tell of theirs.
#include "coordinator/loop_beat.h"

#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "coordinator/frontend/stream_writer.h"
#include "kernels/base/monotonic_time.h"

namespace bitshard {
namespace {

TEST(LoopBeat, TellsTheLongestRound) {
  EXPECT_EQ(LoopBeat::Longest().name, "");
  EXPECT_EQ(LoopBeat::Longest().age, absl::ZeroDuration());
  LoopBeat quick("quick"), slow("slow"), idle("idle");
  quick.Works(MonotonicNow() - absl::Minutes(1));
  slow.Works(MonotonicNow() - absl::Hours(1));
  EXPECT_EQ(LoopBeat::Longest().name, "slow");
  EXPECT_GE(LoopBeat::Longest().age, absl::Hours(1));
  slow.Works();
  EXPECT_EQ(LoopBeat::Longest().name, "quick");
  quick.Waits();
  slow.Waits();
  EXPECT_EQ(LoopBeat::Longest().name, "");
}

TEST(LoopBeat, ALoopThatHasGoneIsForgotten) {
  {
    LoopBeat loop("gone");
    loop.Works();
    EXPECT_EQ(LoopBeat::Longest().name, "gone");
  }
  EXPECT_EQ(LoopBeat::Longest().name, "");
}

class StuckStream final : public PumpedStream {
 public:
  bool Pump(absl::Time) override {
    stuck.Notify();
    go_on.WaitForNotification();
    return false;
  }
  absl::Notification stuck, go_on;
};

TEST(LoopBeat, AStreamThatBlocksItsWriterIsSeen) {
  StreamWriter writer;
  const auto stream = std::make_shared<StuckStream>();
  writer.Wake(stream);
  stream->stuck.WaitForNotification();
  EXPECT_EQ(LoopBeat::Longest().name, "the thread that writes to clients");
  stream->go_on.Notify();
  while (!LoopBeat::Longest().name.empty()) absl::SleepFor(absl::Milliseconds(1));
}

}  // namespace
}  // namespace bitshard
