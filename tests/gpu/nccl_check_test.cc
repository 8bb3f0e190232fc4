// The checks that a GPU must pass, on fakes of NCCL and of the CUDA runtime; and that they can
// fail.
#include "tests/gpu/nccl_check.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/emu/findings.h"
#include "tests/support/fake_cudart.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

constexpr NcclCheckOptions kShort = {.long_kernel = absl::Milliseconds(200),
                                     .join_timeout = absl::Milliseconds(200)};

std::vector<NcclCheckResult> RunChecks(const NcclCheckOptions& options = kShort) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  EXPECT_TRUE(device.ok()) << device.status();
  std::vector<NcclCheckResult> reported;
  const std::vector<NcclCheckResult> results = CheckNccl(
      **device, options, [&](const NcclCheckResult& result) { reported.push_back(result); });
  EXPECT_EQ(reported.size(), results.size());
  return results;
}

TEST(NcclCheck, PassesOnTheFakes) {
  const fake::ScopedCudaMachine machine({});
  const std::vector<NcclCheckResult> results = RunChecks();
  EXPECT_EQ(results.size(), 14u);
  for (const NcclCheckResult& result : results) EXPECT_EQ(result.error, "") << result.name;
  ASSERT_GT(results.size(), 6u);
  EXPECT_THAT(results[6].note, HasSubstr("abort after"));
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
}

TEST(NcclCheck, AnAbortedWaitIsHeldToTheDeadline) {
  const AbortTimes late = {absl::Seconds(1), absl::Seconds(11), absl::Seconds(30)};
  EXPECT_EQ(JudgeAbort(late, absl::Seconds(10)).message(),
            "abort after 1s, the wait ended after 11s, the kernel after 30s: an abort must end it "
            "within 10s and not wait for the kernel");
  AbortTimes in_time = late;
  in_time.waited = absl::Milliseconds(10'999);
  EXPECT_TRUE(JudgeAbort(in_time, absl::Seconds(10)).ok());
  in_time.kernel = absl::Seconds(2);  // the kernel may be over first: its length is a guess
  EXPECT_TRUE(JudgeAbort(in_time, absl::Seconds(10)).ok());
}

// The collective's own stream, its event and its buffers come first.
TEST(NcclCheck, AJoinThatFailsEndsIt) {
  const fake::ScopedCudaMachine machine({});
  fake::FailCall("cudaHostAlloc", cudaErrorMemoryAllocation);
  const std::vector<NcclCheckResult> results = RunChecks();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_NE(results[0].error, "");
}

// The first operation of the self-test hangs: all that belongs to this epoch fails, the next one is
// well.
TEST(NcclCheck, AnOperationThatHangsFailsItsChecks) {
  setenv("BITSHARD_FAKE_NCCL_HANG_AT", "0", 1);
  const fake::ScopedCudaMachine machine({});
  NcclCheckOptions options = kShort;
  options.operation_timeout = absl::Seconds(3);
  const std::vector<NcclCheckResult> results = RunChecks(options);
  unsetenv("BITSHARD_FAKE_NCCL_HANG_AT");
  ASSERT_EQ(results.size(), 14u);
  EXPECT_EQ(results[0].error, "");
  EXPECT_THAT(results[1].error, HasSubstr("not over within"));
  for (size_t i = 2; i < 7; ++i) EXPECT_NE(results[i].error, "") << results[i].name;
  for (size_t i = 7; i < 14; ++i) EXPECT_EQ(results[i].error, "") << results[i].name;
}

}  // namespace
}  // namespace bitshard
