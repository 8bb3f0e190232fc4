#include "worker/machine.h"

#include <algorithm>
#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "worker/options.h"

namespace bitshard {
namespace {

TEST(Machine, TellsMemoryBandwidthAndHost) {
  EXPECT_GT(AvailableMemoryBytes(), 1u << 20);
  EXPECT_GT(MeasureReadBandwidth(), 1u << 20);
  EXPECT_EQ(SharedMemoryHost(), SharedMemoryHost());
  EXPECT_NE(RandomInstance(), RandomInstance());
  EXPECT_EQ(RandomInstance().size(), 16u);
}

TEST(ParseMemory, TakesBytesUnitsAndShares) {
  EXPECT_EQ(*ParseMemory("1048576", 0), 1u << 20);
  EXPECT_EQ(*ParseMemory("512MiB", 0), 512u << 20);
  EXPECT_EQ(*ParseMemory("1.5G", 0), 3u << 29);
  EXPECT_EQ(*ParseMemory(" 80% ", 1000), 800u);
}

TEST(ParseMemory, RefusesWhatIsNoAmount) {
  for (const char* text : {"", "GiB", "-1", "0", "nan", "inf", "1e40", "5 apples"}) {
    EXPECT_FALSE(ParseMemory(text, 1000).ok()) << text;
  }
}

void Set(const std::string& flag, const std::string& value) {
  std::string error;
  absl::CommandLineFlag* found = absl::FindCommandLineFlag(flag);
  ASSERT_NE(found, nullptr) << flag;
  ASSERT_TRUE(found->ParseFrom(value, &error)) << error;
}

TEST(WorkerOptions, ThreadsAreAsManyAsAPoolTakes) {
  absl::FlagSaver saver;
  Set("coordinator", "localhost:7070");
  Set("threads", "300");
  const absl::Status status = WorkerOptionsFromFlags().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("--threads=300: 1 to 255"), std::string::npos) << status;
  Set("threads", "255");
  const auto most = WorkerOptionsFromFlags();
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(ThreadPool(most->threads).threads(), 255);
  Set("threads", "0");
  const auto share = WorkerOptionsFromFlags();
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->threads, std::min(AvailableCpus(), 255));
}

TEST(Device, NamesAreTheCpuAGpuOrWhateverThereIs) {
  using Kind = AskedDevice::Kind;
  struct {
    const char* text;
    Kind kind;
    int index;
    bool told;
  } cases[] = {{"", Kind::kAuto, 3, false},      {"auto", Kind::kAuto, 3, true},
               {"cpu", Kind::kCpu, 3, true},     {"cuda", Kind::kCuda, 3, true},
               {"cuda:0", Kind::kCuda, 0, true}, {"cuda:12", Kind::kCuda, 12, true}};
  for (const auto& c : cases) {
    const absl::StatusOr<AskedDevice> device = ParseDevice(c.text, /*local_rank=*/3);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->kind, c.kind) << c.text;
    EXPECT_EQ(device->told, c.told) << c.text;
    EXPECT_EQ(device->index, c.index) << c.text;
  }
  for (const char* text : {"gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:0:1", "CUDA"}) {
    EXPECT_EQ(ParseDevice(text, 0).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace bitshard
