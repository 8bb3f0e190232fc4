#include "kernels/tensor/device_limits.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bitshard {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

DeviceFacts Facts() {
  DeviceFacts facts;
  facts.kind = "cuda";
  facts.index = 1;
  facts.name = "NVIDIA L40S";
  return facts;
}

TEST(ExplainMemory, WhatFitsIsFine) {
  const DeviceMemory memory = {.free_bytes = 10 * kGib, .total_bytes = 44 * kGib};
  EXPECT_TRUE(ExplainMemory(Facts(), memory, {6 * kGib, 3 * kGib, kGib}).ok());
}

TEST(ExplainMemory, OneByteTooMuchIsNot) {
  const DeviceMemory memory = {.free_bytes = 10 * kGib, .total_bytes = 44 * kGib};
  EXPECT_EQ(ExplainMemory(Facts(), memory, {6 * kGib, 3 * kGib, kGib + 1}).code(),
            StatusCode::kResourceExhausted);
}

TEST(ExplainMemory, SaysTheInequalityAndWhatToTry) {
  const DeviceMemory memory = {.free_bytes = 10 * kGib, .total_bytes = 44 * kGib};
  const absl::Status status = ExplainMemory(Facts(), memory, {8 * kGib, 4 * kGib, kGib / 2});
  EXPECT_EQ(status.message(),
            "cuda:1 (NVIDIA L40S): weights 8.00 GiB + KV cache 4.00 GiB + workspace 0.50 GiB = "
            "12.50 GiB > 10.00 GiB free of 44.00 GiB (the rest is taken, or kept back by "
            "--memory), 2.50 GiB are missing; try a smaller --kv-cache-bytes or --kv-blocks, more "
            "workers, or weights of fewer bits");
}

TEST(ExplainMemory, ASmallerCacheIsNoAdviceWhenTheWeightsAloneAreTooLarge) {
  const DeviceMemory memory = {.free_bytes = 10 * kGib, .total_bytes = 10 * kGib};
  const absl::Status status = ExplainMemory(Facts(), memory, {11 * kGib, kGib, 0});
  EXPECT_THAT(std::string(status.message()),
              testing::EndsWith("try more workers or weights of fewer bits"));
}

TEST(ExplainMemory, BeforeTheRestIsKnownItSaysTheWeightsAlone) {
  const DeviceMemory memory = {.free_bytes = 10 * kGib, .total_bytes = 10 * kGib};
  EXPECT_THAT(std::string(ExplainMemory(Facts(), memory, {11 * kGib, 0, 0}).message()),
              testing::HasSubstr("weights 11.00 GiB alone > 10.00 GiB free"));
}

TEST(ExplainMemory, SumsBeyondTheIntegersAreTooMuchToo) {
  const DeviceMemory memory = {.free_bytes = 10 * kGib, .total_bytes = 10 * kGib};
  EXPECT_FALSE(ExplainMemory(Facts(), memory, {UINT64_MAX, 2, 3}).ok());
  EXPECT_FALSE(ExplainMemory(Facts(), memory, {1, UINT64_MAX, UINT64_MAX}).ok());
}

TEST(CheckSharedMemory, OneRankNeedsNone) {
  EXPECT_TRUE(CheckSharedMemory(1, "/no/such/folder").ok());
}

TEST(CheckSharedMemory, AFolderThatIsNotThereSaysWhatToSet) {
  const absl::Status status = CheckSharedMemory(2, "/no/such/folder");
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("/no/such/folder: No such file or directory"));
  EXPECT_THAT(status.message(), HasSubstr("--shm-size=1g"));
  EXPECT_THAT(status.message(), HasSubstr("emptyDir: {medium: Memory"));
}

// A million ranks need more than any machine has, a file system without blocks has none for two.
TEST(CheckSharedMemory, TooLittleSaysHowMuchIsFreeAndNeeded) {
  const absl::Status many = CheckSharedMemory(1'000'000, testing::TempDir());
  EXPECT_EQ(many.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(many.message(), HasSubstr("NCCL needs 73531250 MiB for 1000000 ranks"));
  const absl::Status none = CheckSharedMemory(2, "/proc");
  EXPECT_EQ(none.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(none.message(), HasSubstr("/proc has 0 MiB free of 0 MiB, but NCCL needs 147 MiB"));
}

TEST(CheckSharedMemory, EnoughIsFine) {
  EXPECT_TRUE(CheckSharedMemory(2, testing::TempDir()).ok());
}

}  // namespace
}  // namespace bitshard
