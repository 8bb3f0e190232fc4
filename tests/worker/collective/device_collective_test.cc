// The group of one, which libraries a program has, and what wrappers hand on.
#include "worker/collective/device_collective.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/tensor/device.h"
#include "tests/support/fake_cudart.h"
#include "worker/collective/collective.h"
#include "worker/collective/timed.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SoloDevice : public ::testing::Test {
 protected:
  fake::ScopedCudaMachine machine_{fake::CudaMachine()};
  std::unique_ptr<Device> device_ = *OpenDevice("cuda", 0);
  std::unique_ptr<DeviceStream> stream_ = *device_->NewStream();
  std::unique_ptr<DeviceEvent> event_ = *device_->NewEvent();
  std::unique_ptr<DeviceCollective> solo_ = MakeSoloDeviceCollective(device_.get());
};

TEST_F(SoloDevice, IsTheIdentity) {
  EXPECT_EQ(solo_->rank(), 0);
  EXPECT_EQ(solo_->world(), 1);
  EXPECT_TRUE(SelfTestCollective(*solo_).ok());
  const std::vector<int64_t> values = {1, -2, 3};
  const DeviceBuffer from = *device_->Alloc(24), to = *device_->Alloc(24);
  ASSERT_TRUE(device_->Copy(from.data(), values.data(), 24, *stream_).ok());
  ASSERT_TRUE(solo_->AllReduceSum(from.as<int64_t>(), 3, *stream_).ok());
  ASSERT_TRUE(solo_->AllGather(from.data(), to.data(), 24, *stream_).ok());
  ASSERT_TRUE(solo_->AllGather(to.data(), to.data(), 24, *stream_).ok());
  std::vector<int64_t> back(3);
  ASSERT_TRUE(device_->Copy(back.data(), to.data(), 24, *stream_).ok());
  ASSERT_TRUE(device_->Record(*event_, *stream_).ok());
  ASSERT_TRUE(solo_->Await(*event_).ok());
  EXPECT_EQ(back, values);
}

TEST_F(SoloDevice, AbortEndsAWaitForADeviceThatHangs) {
  std::atomic<bool> hangs{true};
  ASSERT_EQ(fake::EnqueueHostWork(static_cast<cudaStream_t>(stream_->native()),
                                  [&] {
                                    while (hangs) std::this_thread::yield();
                                  }),
            cudaSuccess);
  ASSERT_TRUE(device_->Record(*event_, *stream_).ok());
  std::thread other([&] { solo_->Abort(); });
  EXPECT_EQ(solo_->Await(*event_), CollectiveAbort(0));
  EXPECT_EQ(solo_->AllReduceSum(static_cast<int64_t*>(nullptr), 0, *stream_), CollectiveAbort(0));
  other.join();
  hangs = false;
}

TEST_F(SoloDevice, AnErrorOfTheDeviceComesBack) {
  fake::FailCall("cudaEventQuery", cudaErrorLaunchFailure);
  ASSERT_TRUE(device_->Record(*event_, *stream_).ok());
  const absl::Status status = solo_->Await(*event_);
  EXPECT_THAT(status.ToString(), HasSubstr("cudaEventQuery"));
}

TEST_F(SoloDevice, ALostDeviceWinsOverAnAbort) {
  ASSERT_TRUE(device_->Record(*event_, *stream_).ok());
  solo_->Abort();
  fake::FailCall("cudaEventQuery", cudaErrorInvalidValue);
  EXPECT_EQ(solo_->Await(*event_), CollectiveAbort(0));
  fake::FailCall("cudaEventQuery", cudaErrorLaunchFailure);
  EXPECT_TRUE(IsDeviceLost(solo_->Await(*event_)));
}

TEST(WithContext, LeavesAllButTheTextAsItIs) {
  EXPECT_EQ(WithContext(absl::OkStatus(), "there: "), absl::OkStatus());
  EXPECT_EQ(WithContext(absl::NotFoundError("none"), "there: "),
            absl::NotFoundError("there: none"));
  const absl::Status lost = WithContext(DeviceLostError("gone"), "there: ");
  EXPECT_TRUE(IsDeviceLost(lost));
  EXPECT_EQ(lost.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(lost.message(), "there: gone");
}

struct Counter : CollectiveWatcher {
  void OnCollective(CollectiveOp, uint64_t, int64_t) override { ++seen; }
  int seen = 0;
};

TEST_F(SoloDevice, IsFoundThroughAWrapper) {
  DeviceCollective* const solo = solo_.get();
  Counter counter;
  const auto timed = MakeTimedCollective(std::move(solo_), &counter);
  EXPECT_EQ(timed->device_collective(), solo);
  int64_t one = 1;
  EXPECT_TRUE(timed->AllReduceSum(absl::MakeSpan(&one, 1)).ok());
  EXPECT_EQ(counter.seen, 1);
  EXPECT_EQ(MakeSoloCollective()->device_collective(), nullptr);
}

TEST_F(SoloDevice, ALibraryThatIsNotThereIsNamedWithThoseThatAre) {
  EXPECT_THAT(DeviceCollectives("cuda"), ElementsAre("nccl"));
  EXPECT_THAT(DeviceCollectives("cpu"), ElementsAre());
  DeviceGroup group;
  group.device = device_.get();
  group.world = 2;
  const absl::Status status =
      JoinDeviceCollective("gloo", group, absl::Seconds(1), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("\"gloo\""), HasSubstr("nccl"), HasSubstr("--config=cuda")));
  group.rank = 2;
  EXPECT_EQ(JoinDeviceCollective("nccl", group, absl::Seconds(1), nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  group.rank = 0;
  group.world = 1;
  const auto alone = JoinDeviceCollective("", group, absl::Seconds(1), nullptr);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ((*alone)->world(), 1);
}

}  // namespace
}  // namespace bitshard
