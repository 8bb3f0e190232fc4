// What a worker opens, on emulated GPUs.
#include "worker/device/worker_device.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fake_cudart.h"

namespace bitshard {
namespace {

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

}  // namespace
}  // namespace bitshard
