#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/kernel_cases.h"
#include "tests/gpu/launch_log.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

// Of the set's launches, the kernel and its blocks; on a machine of its own, in a process of its
// own.
std::string LaunchesWith(int multiprocessors) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    setenv("BITSHARD_FAKE_CUDA_MULTIPROCESSORS", std::to_string(multiprocessors).c_str(), 1);
    StartLaunchLog();
    std::string text;
    CaseOptions options;
    options.hooks.after = [&text](const std::string& launch) {
      absl::StrAppend(&text, launch, ":");
      for (const LoggedLaunch& logged : TakeLaunchLog())
        absl::StrAppend(&text, " ", logged.kernel, " ", logged.blocks);
      absl::StrAppend(&text, "\n");
    };
    (void)RunCases(CaseSet::kCalibration, options);
    const bool written = write(ends[1], text.data(), text.size()) == ssize_t(text.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char bytes[4096];
  for (ssize_t got; (got = read(ends[0], bytes, sizeof(bytes))) > 0;) text.append(bytes, got);
  close(ends[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return text;
}

// RTX 3090, A100, RTX 4090, H100 and H200, L40S.
TEST(CalibrationGrids, AreThoseOfEveryCard) {
  const std::string expected = LaunchesWith(132);
  EXPECT_THAT(expected,
              HasSubstr("12288x512 m=1: LinearTilesKernel<Weights, kBlocks, 2, true> 384"));
  EXPECT_THAT(expected,
              HasSubstr("1024x2048 m=1: LinearTilesKernel<Weights, kBlocks, 1, true> 64"));
  for (const int multiprocessors : {84, 108, 128, 142})
    EXPECT_EQ(LaunchesWith(multiprocessors), expected) << multiprocessors;
  // A small one makes the other choice, which is seen.
  EXPECT_NE(LaunchesWith(4), expected);
}

}  // namespace
}  // namespace bitshard
