// Why the program ends: the first reason is told, the soonest end counts.

#include "coordinator/ending.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;

TEST(Ending, TheFirstReasonIsTheProgramsAndWakesWhoWaits) {
  Ending ending;
  std::thread other([&] {
    ending.Begin({absl::UnavailableError("no group"), "no group can form", absl::ZeroDuration()});
    ending.Begin({absl::OkStatus(), "SIGTERM", absl::Seconds(30)});
  });
  const Ending::Reason reason = ending.Await();
  EXPECT_EQ(reason.what, "no group can form");
  EXPECT_FALSE(reason.status.ok());
  other.join();
  std::vector<std::string> drained;
  ending.Drain([&](const Ending::Reason& r) { drained.push_back(r.what); });
  EXPECT_THAT(drained, ElementsAre("no group can form"));
}

TEST(Ending, ASignalDuringALongDrainBringsTheEndForward) {
  Ending ending;
  ending.Begin({absl::OkStatus(), "Admin.Drain", absl::Hours(24)});
  EXPECT_EQ(ending.Await().what, "Admin.Drain");
  absl::Notification ended;
  absl::Duration last;
  ending.Drain([&](const Ending::Reason& reason) {
    if (reason.what == "Admin.Drain") {
      ending.Begin({absl::OkStatus(), "a longer drain", absl::Hours(25)});  // does not count
      ending.Begin({absl::OkStatus(), "SIGTERM", absl::Seconds(30)});
      ended.WaitForNotification();
    } else {
      EXPECT_EQ(reason.what, "SIGTERM");
      last = reason.drain;
      ended.Notify();
    }
  });
  EXPECT_EQ(last, absl::Seconds(30));
}

}  // namespace
}  // namespace bitshard
