// The CUDA device on the fake runtime: refusals, errors, and what goes on between threads. What
// every device does is in tests/kernels/tensor/device_test.cc.
#include "kernels/cuda/device_cuda.h"

#include <barrier>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/emu/stream_hook.h"
#include "tests/support/fake_cudart.h"

namespace bitshard {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

cudaStream_t Native(const std::unique_ptr<DeviceStream>& stream) {
  return static_cast<cudaStream_t>(stream->native());
}

absl::Status OpenOn(const fake::CudaMachine& machine, int index = 0) {
  const fake::ScopedCudaMachine scope(machine);
  return OpenDevice("cuda", index).status();
}

// ---- Opening.

TEST(OpenCuda, WithoutADriverSaysHowToGetOneAndWhatElse) {
  const absl::Status status = OpenOn({.driver = 0});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("no CUDA device: no NVIDIA driver"), HasSubstr("--gpus all"),
                    HasSubstr("use --device=cpu or --device=auto")));
}

TEST(OpenCuda, AnOldDriverNamesBothVersions) {
  const absl::Status status = OpenOn({.driver = 12040});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("no CUDA device: the driver is for CUDA 12.4, older than the CUDA "),
                    HasSubstr("Update the driver"), HasSubstr("toolkit of CUDA 12"),
                    HasSubstr("--device=cpu")));
}

TEST(OpenCuda, ADriverWithoutDevicesSpeaksOfTheirVisibility) {
  const absl::Status status = OpenOn({.devices = 0});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("shows none to this process"), HasSubstr("CUDA_VISIBLE_DEVICES"),
                    HasSubstr("--device=auto")));
}

TEST(OpenCuda, AnIndexBeyondTheDevicesSaysHowManyThereAre) {
  const absl::Status two = OpenOn({.devices = 2}, 2);
  EXPECT_EQ(two.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(two.message(), HasSubstr("cuda:2: this process sees 2 devices, cuda:0 to cuda:1."));
  EXPECT_THAT(OpenOn({.devices = 1}, -1).message(),
              HasSubstr("cuda:-1: this process sees 1 device, cuda:0."));
}

TEST(OpenCuda, AnArchitectureWithoutKernelsNamesThoseThatHaveThem) {
  const absl::Status status = OpenOn({.compute_capability = 75});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cuda:0 (fake CUDA device 0) is sm_75"),
                                      HasSubstr("sm_80"), HasSubstr("--device=cpu")));
}

TEST(OpenCuda, LaterArchitecturesRunThePtx) {
  EXPECT_TRUE(OpenOn({.compute_capability = 121}).ok());
}

TEST(OpenCuda, OtherErrorsOfTheRuntimeComeWithAdvice) {
  const fake::ScopedCudaMachine machine({});
  fake::FailCall("cudaGetDeviceCount", cudaErrorSystemNotReady);
  const absl::Status switches = OpenDevice("cuda", 0).status();
  EXPECT_EQ(switches.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(switches.message(), AllOf(HasSubstr("cudaGetDeviceCount: cudaErrorSystemNotReady"),
                                        HasSubstr("nvidia-fabricmanager")));
  fake::FailCall("cudaMemGetInfo", cudaErrorDevicesUnavailable);
  const absl::Status busy = OpenDevice("cuda", 0).status();
  EXPECT_EQ(busy.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(busy.message(), HasSubstr("another process has the device"));
  EXPECT_TRUE(OpenDevice("cuda", 0).ok());
}

TEST(OpenCuda, FactsAreThoseOfTheDevice) {
  const fake::ScopedCudaMachine machine(
      {.devices = 2, .compute_capability = 89, .multiprocessors = 142, .bytes = 48 << 20});
  const auto device = OpenDevice("cuda", 1);
  ASSERT_TRUE(device.ok()) << device.status();
  const DeviceFacts& facts = (*device)->facts();
  EXPECT_EQ(facts.index, 1);
  EXPECT_EQ(facts.name, "fake CUDA device 1");
  EXPECT_EQ(facts.architecture, "sm_89");
  EXPECT_EQ(facts.compute_capability, 89);
  EXPECT_EQ(facts.multiprocessors, 142);
  EXPECT_EQ(facts.total_bytes, uint64_t{48} << 20);
  EXPECT_EQ(facts.bandwidth_bytes_per_s, 256'000'000'000u);  // 1 GHz, twice, 1024 bits
  EXPECT_EQ(facts.driver, absl::StrCat(CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10));
}

TEST(CudaCodeRuns, WhereNvidiaSaysSo) {
  EXPECT_TRUE(CudaCodeRuns("sm_80", 80));
  EXPECT_TRUE(CudaCodeRuns("sm_80", 89));  // later minor version
  EXPECT_FALSE(CudaCodeRuns("sm_80", 90));
  EXPECT_FALSE(CudaCodeRuns("sm_89", 86));
  EXPECT_TRUE(CudaCodeRuns("sm_80 sm_90a", 90));
  EXPECT_FALSE(CudaCodeRuns("sm_90a", 100));
  EXPECT_FALSE(CudaCodeRuns("sm_120a", 121));
  EXPECT_TRUE(CudaCodeRuns("sm_90a compute_80", 121));
  EXPECT_FALSE(CudaCodeRuns("sm_80 compute_80", 75));
  EXPECT_FALSE(CudaCodeRuns("", 80));
}

// ---- Errors.

TEST(CudaStatus, CodesSayWhatKindOfTroubleItIs) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "cudaMalloc").ok());
  EXPECT_EQ(CudaStatus(cudaErrorMemoryAllocation, "f").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(CudaStatus(cudaErrorInsufficientDriver, "f").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(CudaStatus(cudaErrorStreamCaptureMerge, "f").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(CudaStatus(cudaErrorNoKernelImageForDevice, "f").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(CudaStatus(cudaErrorInvalidValue, "f").code(), StatusCode::kInternal);
  EXPECT_FALSE(IsDeviceLost(CudaStatus(cudaErrorInvalidValue, "f")));
  EXPECT_FALSE(IsDeviceLost(CudaStatus(cudaErrorMemoryAllocation, "f")));
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorLaunchFailure,
                                  cudaErrorECCUncorrectable, cudaErrorUnknown}) {
    EXPECT_EQ(CudaStatus(error, "f").code(), StatusCode::kInternal);
    EXPECT_TRUE(IsDeviceLost(CudaStatus(error, "f")));
  }
}

TEST(CudaStatus, NamesTheCallAndTheError) {
  EXPECT_THAT(CudaStatus(cudaErrorInvalidValue, "cudaMemcpyAsync").message(),
              HasSubstr("cudaMemcpyAsync: cudaErrorInvalidValue (invalid argument)"));
}

class CudaDeviceTest : public testing::Test {
 protected:
  void Open(const fake::CudaMachine& machine) {
    machine_ = std::make_unique<fake::ScopedCudaMachine>(machine);
    auto opened = OpenDevice("cuda", 0);
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
    stream_ = device_->NewStream().value();
  }

  // Destroyed from the last to the first: the machine checks that nothing is left.
  std::unique_ptr<fake::ScopedCudaMachine> machine_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
};

TEST_F(CudaDeviceTest, MemoryIsCountedAndComesBack) {
  Open({.bytes = 1 << 20});
  EXPECT_EQ(device_->Mem()->free_bytes, 1u << 20);
  {
    const DeviceBuffer buffer = device_->Alloc(700'000).value();
    EXPECT_LE(device_->Mem()->free_bytes, (1u << 20) - 700'000u);
    const absl::Status status = device_->Alloc(400'000).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(),
                HasSubstr(absl::StrCat("cuda:0 (fake CUDA device 0): 400000 bytes asked, ",
                                       device_->Mem()->free_bytes, " of 1048576 free")));
    // Not found again by the next check of a launch.
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
  EXPECT_EQ(device_->Mem()->free_bytes, 1u << 20);
  EXPECT_TRUE(device_->Alloc(1 << 20).ok());
}

TEST_F(CudaDeviceTest, MissingHostMemoryIsNotBlamedOnTheDevice) {
  Open({});
  fake::FailCall("cudaHostAlloc", cudaErrorMemoryAllocation);
  const absl::Status status = device_->AllocHost(12345).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("12345 bytes of pinned host memory asked"),
                                      HasSubstr("the host's memory is full")));
}

TEST_F(CudaDeviceTest, EverythingIsGivenBack) {
  Open({});
  const int before = fake::LiveObjects();
  {
    const DeviceBuffer device = device_->Alloc(10).value(), host = device_->AllocHost(10).value();
    const auto event = device_->NewEvent().value();
    const auto other = device_->NewStream().value();
    ASSERT_TRUE(device_->BeginCapture(*other).ok());
    ASSERT_TRUE(device_->Fill(device.data(), 1, 10, *other).ok());
    const auto graph = device_->EndCapture(*other).value();
    EXPECT_EQ(fake::LiveObjects(), before + 5);
  }
  EXPECT_EQ(fake::LiveObjects(), before);
}

TEST_F(CudaDeviceTest, AGraphHasItsMemoryBeforeItsFirstLaunch) {
  Open({});
  const DeviceBuffer buffer = device_->Alloc(10).value();
  ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
  ASSERT_TRUE(device_->Fill(buffer.data(), 1, 10, *stream_).ok());
  const auto graph = device_->EndCapture(*stream_).value();
  const uint64_t before = fake::ObjectsMade();
  ASSERT_TRUE(device_->Launch(*graph, *stream_).ok());
  EXPECT_TRUE(device_->Sync(*stream_).ok());
  EXPECT_EQ(fake::ObjectsMade(), before);

  ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
  ASSERT_TRUE(device_->Fill(buffer.data(), 1, 10, *stream_).ok());
  fake::FailCall("cudaGraphUpload", cudaErrorMemoryAllocation);
  const absl::Status full = device_->EndCapture(*stream_).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
}

TEST_F(CudaDeviceTest, AnAnswerOfNotYetIsNoError) {
  Open({});
  const auto event = device_->NewEvent().value();
  absl::Notification go;
  ASSERT_EQ(fake::EnqueueHostWork(Native(stream_), [&] { go.WaitForNotification(); }), cudaSuccess);
  ASSERT_TRUE(device_->Record(*event, *stream_).ok());
  const auto done = device_->Done(*event);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_FALSE(*done);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  go.Notify();
  EXPECT_TRUE(device_->Sync(*stream_).ok());
}

TEST_F(CudaDeviceTest, ALostDeviceSaysSoFromThenOnAndIsTakenDownInPeace) {
  Open({});
  const auto event = device_->NewEvent().value();
  const DeviceBuffer buffer = device_->Alloc(100).value(), host = device_->AllocHost(100).value();
  fake::BreakDevice(0, cudaErrorIllegalAddress, /*works=*/1);
  ASSERT_TRUE(device_->Fill(buffer.data(), 1, 100, *stream_).ok());
  ASSERT_TRUE(device_->Fill(buffer.data(), 2, 100, *stream_).ok());
  ASSERT_TRUE(device_->Record(*event, *stream_).ok());
  const absl::Status status = device_->Sync(*stream_);
  EXPECT_TRUE(IsDeviceLost(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cudaStreamSynchronize: cudaErrorIllegalAddress"),
                                      HasSubstr("must end and be started again")));
  EXPECT_TRUE(IsDeviceLost(device_->Alloc(1).status()));
  EXPECT_TRUE(IsDeviceLost(device_->Fill(buffer.data(), 3, 100, *stream_)));
  EXPECT_TRUE(IsDeviceLost(device_->Done(*event).status()));
  EXPECT_TRUE(IsDeviceLost(device_->Mem().status()));
  EXPECT_TRUE(IsDeviceLost(device_->BeginCapture(*stream_)));
}

TEST_F(CudaDeviceTest, AGraphWhoseBufferIsGoneLosesTheDevice) {
  Open({});
  DeviceBuffer buffer = device_->Alloc(100).value();
  ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
  ASSERT_TRUE(device_->Fill(buffer.data(), 1, 100, *stream_).ok());
  const auto graph = device_->EndCapture(*stream_).value();
  ASSERT_TRUE(device_->Launch(*graph, *stream_).ok());
  ASSERT_TRUE(device_->Sync(*stream_).ok());
  buffer = DeviceBuffer();
  const DeviceBuffer another = device_->Alloc(100).value();
  ASSERT_TRUE(device_->Launch(*graph, *stream_).ok());
  EXPECT_TRUE(IsDeviceLost(device_->Sync(*stream_)));
}

TEST_F(CudaDeviceTest, PageableMemoryCannotBeCaptured) {
  Open({});
  const DeviceBuffer buffer = device_->Alloc(100).value();
  std::vector<uint8_t> host(100);
  ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
  EXPECT_EQ(device_->Copy(buffer.data(), host.data(), 100, *stream_).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_->EndCapture(*stream_).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(CudaDeviceTest, CopiesBeyondABufferAreRefused) {
  Open({});
  const DeviceBuffer buffer = device_->Alloc(100).value(), host = device_->AllocHost(200).value();
  const absl::Status status = device_->Copy(buffer.data() + 1, host.data(), 100, *stream_);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("cudaMemcpyAsync: cudaErrorInvalidValue"));
  EXPECT_FALSE(IsDeviceLost(status));
}

// ---- Threads.

TEST_F(CudaDeviceTest, AWatchdogAsksAtOnceWhileTheStreamWaitsForPeers) {
  Open({});
  const auto event = device_->NewEvent().value();
  absl::Notification peers;
  ASSERT_EQ(fake::EnqueueHostWork(Native(stream_), [&] { peers.WaitForNotification(); }),
            cudaSuccess);
  ASSERT_TRUE(device_->Record(*event, *stream_).ok());
  absl::Status synced = absl::UnknownError("did not run");
  std::thread step([&] { synced = device_->Sync(*stream_); });
  // Were a question to wait for the stream, nobody would ever notify.
  for (int i = 0; i < 100; ++i) {
    const auto done = device_->Done(*event);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_FALSE(*done);
  }
  EXPECT_TRUE(device_->Mem().ok());
  peers.Notify();
  step.join();
  EXPECT_TRUE(synced.ok()) << synced;
  EXPECT_TRUE(*device_->Done(*event));
}

TEST(CudaDevices, TwoRanksOfOneProcessMeetInTheirStreams) {
  const fake::ScopedCudaMachine machine({.devices = 2});
  std::barrier<> meeting(2);
  absl::Status statuses[2];
  const auto rank = [&](int index) {
    const auto device = OpenDevice("cuda", index).value();
    const auto stream = device->NewStream().value();
    const DeviceBuffer buffer = device->Alloc(1000).value();
    const auto meet = [&] { meeting.arrive_and_wait(); };
    ASSERT_TRUE(device->BeginCapture(*stream).ok());
    ASSERT_EQ(fake::EnqueueHostWork(Native(stream), meet), cudaSuccess);
    const auto graph = device->EndCapture(*stream).value();
    for (int step = 0; step < 20; ++step) {
      ASSERT_TRUE(device->Fill(buffer.data(), 1, 1000, *stream).ok());
      ASSERT_EQ(fake::EnqueueHostWork(Native(stream), meet), cudaSuccess);
      ASSERT_TRUE(device->Launch(*graph, *stream).ok());
      statuses[index].Update(device->Sync(*stream));
    }
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
}

// A thread's device is 0 until it calls another one's.
TEST(CudaDevices, EveryCallSetsTheDeviceOfItsThread) {
  const fake::ScopedCudaMachine machine({.devices = 2});
  const auto device = OpenDevice("cuda", 1).value();
  const auto stream = device->NewStream().value();
  const DeviceBuffer buffer = device->Alloc(10).value();
  cudaError_t without = cudaSuccess, with = cudaErrorUnknown;
  int ran = 0;
  std::thread([&] {
    without = emu::Enqueue(Native(stream), [&] { ++ran; });
    cudaGetLastError();
    ASSERT_TRUE(device->Fill(buffer.data(), 1, 10, *stream).ok());
    with = emu::Enqueue(Native(stream), [&] { ++ran; });
    ASSERT_TRUE(device->Sync(*stream).ok());
  }).join();
  EXPECT_EQ(without, cudaErrorInvalidResourceHandle);
  EXPECT_EQ(with, cudaSuccess);
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace bitshard
