// How ranks on GPUs meet over NCCL, seen from one of them: what is refused, and in which words.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"
#include "tests/support/fake_cudart.h"
#include "tests/support/unique_id.h"
#include "worker/collective/device_collective.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

std::string NewId() { return UniqueId("nccl-join"); }

// Rank `rank` alone, with what `told` makes of its own word.
absl::Status JoinAlone(int rank, int world, absl::Duration timeout, const std::atomic<bool>* stop,
                       const std::function<std::vector<std::string>(const std::string&)>& told) {
  const fake::ScopedCudaMachine machine({.devices = world});
  const auto device = OpenDevice("cuda", rank);
  RETURN_IF_ERROR(device.status());
  DeviceGroup group;
  group.id = NewId();
  group.rank = rank;
  group.world = world;
  group.tell = [&](const std::string& mine) -> absl::StatusOr<std::vector<std::string>> {
    return told(mine);
  };
  group.device = device->get();
  return JoinDeviceCollective("nccl", group, timeout, stop).status();
}

// What two more ranks on other devices would have told.
std::vector<std::string> WithOthers(const std::string& mine) {
  return {mine, mine + "a", mine + "b"};
}

TEST(NcclJoin, SaysWhenNotAllRanksCome) {
  const absl::Status status = JoinAlone(0, 3, absl::Milliseconds(100), nullptr, &WithOthers);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 0"), HasSubstr("not all 3 ranks met"),
                                      HasSubstr("NCCL_DEBUG=INFO")));
}

TEST(NcclJoin, IsCalledOff) {
  const std::atomic<bool> stop{true};
  const absl::Status status = JoinAlone(0, 3, kPatience, &stop, &WithOthers);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST(NcclJoin, RefusesAnIdThatIsNone) {
  // Rank 0's card is that of rank 1, which has made no id.
  const absl::Status status = JoinAlone(1, 2, kPatience, nullptr, [](const std::string& mine) {
    return std::vector<std::string>{mine + "a", mine};
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1"), HasSubstr("invalid argument")));
}

TEST(NcclJoin, RefusesWhatIsNotOfOneGroup) {
  const auto with = [](const std::function<std::string(std::string)>& change) {
    return JoinAlone(0, 2, kPatience, nullptr, [&](const std::string& mine) {
      return std::vector<std::string>{mine, change(mine)};
    });
  };
  for (const absl::Status& status : {with([](std::string) { return std::string(); }),
                                     with([](std::string card) { return card.substr(0, 100); }),
                                     with([](std::string card) { return "x" + card.substr(1); })}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  }
  const absl::Status version = with([](std::string card) {
    ++card[8];
    return card;
  });
  EXPECT_EQ(version.code(), absl::StatusCode::kFailedPrecondition) << version;
  EXPECT_THAT(version.message(), AllOf(HasSubstr("that of rank 1 is"), HasSubstr("libnccl.so.2")));
}

TEST(NcclJoin, RefusesTwoRanksOnOneDevice) {
  std::string id;
  {
    const fake::ScopedCudaMachine machine({.devices = 2});
    const auto first = OpenDevice("cuda", 0), second = OpenDevice("cuda", 1);
    id = DeviceIdentity(**first);
    EXPECT_THAT(id, HasSubstr("GPU-"));
    EXPECT_EQ(id.size(), 40u) << id;
    EXPECT_NE(id, DeviceIdentity(**second));
  }
  const absl::Status status = JoinAlone(0, 3, kPatience, nullptr, [](const std::string& mine) {
    return std::vector<std::string>{mine, mine + "a", mine};
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("ranks 0 and 2"), HasSubstr(id), HasSubstr("--device=cuda:INDEX")));
}

TEST(NcclJoin, SaysThatTheDeviceIsLost) {
  const fake::ScopedCudaMachine machine({.devices = 2});
  const auto device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  const auto stream = (*device)->NewStream();
  const auto buffer = (*device)->Alloc(8);
  ASSERT_TRUE(stream.ok() && buffer.ok());
  fake::BreakDevice(0, cudaErrorECCUncorrectable);
  ASSERT_TRUE((*device)->Fill(buffer->data(), 0, 8, **stream).ok());
  ASSERT_TRUE(IsDeviceLost((*device)->Sync(**stream)));
  DeviceGroup group;
  group.id = "lost";
  group.world = 2;
  group.device = device->get();
  group.tell = [](const std::string& mine) { return std::vector<std::string>{mine, mine + "a"}; };
  const auto joined = JoinDeviceCollective("nccl", group, kPatience);
  EXPECT_TRUE(IsDeviceLost(joined.status())) << joined.status();
  EXPECT_THAT(joined.status().message(), HasSubstr("nccl communicator lost, rank 0: "));
}

TEST(NcclJoin, PassesOnWhyRanksCouldNotTell) {
  const fake::ScopedCudaMachine machine({.devices = 2});
  const auto device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  DeviceGroup group;
  group.id = "told-nothing";
  group.world = 2;
  group.device = device->get();
  group.tell = [](const std::string&) { return absl::UnavailableError("nobody listens"); };
  const auto joined = JoinDeviceCollective("nccl", group, kPatience);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(joined.status().message(), AllOf(HasSubstr("told-nothing"), HasSubstr("listens")));
}

}  // namespace
}  // namespace bitshard
