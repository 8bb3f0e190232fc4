// What a worker opens, on emulated GPUs.
#include "worker/device/worker_device.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_cudart.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

WorkerOptions Options(AskedDevice::Kind kind) {
  WorkerOptions options;
  options.device.kind = kind;
  options.device.told = true;
  options.memory = "80%";
  options.collectives = {"shm", "gloo"};
  return options;
}

TEST(WorkerDevice, OpensAGpuWhereThereIsOne) {
  const fake::ScopedCudaMachine machine({});
  for (const auto kind : {AskedDevice::Kind::kCuda, AskedDevice::Kind::kAuto}) {
    const auto device = WorkerDevice::Open(Options(kind));
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_NE(*device, nullptr);
  }
  const auto cpu = WorkerDevice::Open(Options(AskedDevice::Kind::kCpu));
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(*cpu, nullptr);
}

TEST(WorkerDevice, TellsOfEveryOpThatAGraphMayHave) {
  const fake::ScopedCudaMachine machine({});
  const auto device = WorkerDevice::Open(Options(AskedDevice::Kind::kCuda));
  ASSERT_TRUE(device.ok()) << device.status();
  internal::Register out;
  (*device)->Describe(out);
  const std::vector<std::string> ops(out.ops().begin(), out.ops().end());
  EXPECT_EQ(ops,
            (std::vector<std::string>{"all_reduce", "attention", "embed", "gated_act", "linear",
                                      "lm_head", "residual_add", "rms_norm", "rope", "sample"}));
}

TEST(WorkerDevice, FallsBackOnlyWhenTold) {
  const fake::ScopedCudaMachine machine({.devices = 0});
  EXPECT_FALSE(WorkerDevice::Open(Options(AskedDevice::Kind::kCuda)).ok());
  WorkerOptions options = Options(AskedDevice::Kind::kAuto);
  options.device.told = false;
  // A program with GPUs built in that was told nothing wants one.
  const absl::Status status = WorkerDevice::Open(options).status();
  EXPECT_NE(status.message().find("--device=auto"), std::string::npos) << status;
  options.device.told = true;
  testing::internal::CaptureStdout();
  const auto device = WorkerDevice::Open(options);
  const std::string log = testing::internal::GetCapturedStdout();
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(*device, nullptr);
  EXPECT_NE(log.find("the CPU, because"), std::string::npos) << log;
}

TEST(WorkerDevice, RefusesACollectiveOfTheCpus) {
  const fake::ScopedCudaMachine machine({});
  for (const char* name : {"shm", "gloo"}) {
    WorkerOptions options = Options(AskedDevice::Kind::kAuto);
    options.collectives = {name};
    const absl::Status status = WorkerDevice::Open(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("leave --collective at auto"), std::string::npos) << status;
    options.device.kind = AskedDevice::Kind::kCpu;
    EXPECT_TRUE(WorkerDevice::Open(options).ok());
  }
}

// Whether it opens is a matter of this machine's /dev/shm.
std::string LogOf(int index, uint32_t local_ranks) {
  WorkerOptions options = Options(AskedDevice::Kind::kCuda);
  options.device.index = index;
  options.local_ranks = local_ranks;
  testing::internal::CaptureStdout();
  (void)WorkerDevice::Open(options);
  return testing::internal::GetCapturedStdout();
}

TEST(WorkerDevice, WarnsOfDevicesOutOfReachThatHaveRanks) {
  constexpr char kWarning[] = "no direct access (P2P)";
  {
    const fake::ScopedCudaMachine machine({.devices = 4, .peers = false});
    EXPECT_THAT(LogOf(0, 2), HasSubstr("cuda:0 has no direct access (P2P) to cuda:1:"));
    EXPECT_THAT(LogOf(1, 3), HasSubstr("cuda:1 has no direct access (P2P) to cuda:0, cuda:2:"));
    EXPECT_THAT(LogOf(0, 1), Not(HasSubstr(kWarning)));
    // The ranks are on other devices than the first ones: any may be one of theirs.
    EXPECT_THAT(LogOf(3, 2), HasSubstr("to cuda:0, cuda:1, cuda:2:"));
    // Of several hosts.
    EXPECT_THAT(LogOf(0, 8), HasSubstr("to cuda:1, cuda:2, cuda:3:"));
  }
  const fake::ScopedCudaMachine machine({.devices = 4});
  EXPECT_THAT(LogOf(0, 4), Not(HasSubstr(kWarning)));
  // Each process sees some of them: whether these reach the others nobody here knows.
  EXPECT_THAT(LogOf(0, 5), HasSubstr("cuda:0 is one of 4 that this process sees, for 5 ranks"));
}

}  // namespace
}  // namespace bitshard
