// The fake CUDA runtime: that mistakes which a GPU would hide now and then show here every time.
#include "tests/support/fake_cudart.h"

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/emu/memory.h"
#include "kernels/cuda/emu/stream_hook.h"
#include "tests/support/fake_cuda_machine.h"

namespace bitshard::fake {
namespace {

using testing::ElementsAre;

class FakeCudart : public testing::Test {
 protected:
  explicit FakeCudart(const CudaMachine& machine = {}) : machine_(machine) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&device_, 100), cudaSuccess);
    EXPECT_EQ(cudaHostAlloc(&pinned_, 100, cudaHostAllocMapped), cudaSuccess);
  }
  ~FakeCudart() override {
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(a_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(b_), cudaSuccess);
  }

  cudaError_t ToDevice(const void* from, size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(device_, from, bytes, cudaMemcpyHostToDevice, stream);
  }
  // Enqueues a note of `name` in ran_.
  void Note(cudaStream_t stream, const std::string& name) {
    EXPECT_EQ(EnqueueHostWork(stream, [this, name] { ran_.push_back(name); }), cudaSuccess);
  }

  ScopedCudaMachine machine_;
  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* device_ = nullptr;
  void* pinned_ = nullptr;
  std::vector<std::string> ran_;
};

// ---- Lazy streams.

TEST_F(FakeCudart, NothingRunsUntilSomebodyWaits) {
  Note(a_, "1");
  EXPECT_EQ(ran_.size(), 0u);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(ran_.size(), 0u);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_THAT(ran_, ElementsAre("1"));
}

TEST_F(FakeCudart, OnlyWhatIsWaitedForRuns) {
  Note(a_, "a1");
  Note(a_, "a2");
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  Note(a_, "a3");
  Note(b_, "b1");
  ASSERT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaSuccess);
  Note(b_, "b2");
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_THAT(ran_, ElementsAre("b1", "a1", "a2", "b2"));
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(ran_, ElementsAre("b1", "a1", "a2", "b2", "a3"));
}

TEST_F(FakeCudart, AForgottenWaitReadsStaleData) {
  const uint8_t old = 1, now = 2;
  uint8_t read = 0;
  ASSERT_EQ(ToDevice(&old, 1, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  ASSERT_EQ(ToDevice(&now, 1, a_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&read, device_, 1, cudaMemcpyDeviceToHost, b_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(read, old);
  ASSERT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&read, device_, 1, cudaMemcpyDeviceToHost, b_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(read, now);
}

TEST_F(FakeCudart, AForgottenSyncReadsStaleData) {
  const uint8_t value = 7;
  uint8_t read = 0;
  ASSERT_EQ(ToDevice(&value, 1, a_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&read, device_, 1, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_EQ(read, 0);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(read, value);
}

TEST_F(FakeCudart, HostMemoryIsReadWhenTheCopyRuns) {
  uint8_t value = 1, read = 0;
  ASSERT_EQ(ToDevice(&value, 1, a_), cudaSuccess);
  value = 99;  // too early: the copy has not been waited for
  ASSERT_EQ(cudaMemcpyAsync(&read, device_, 1, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(read, 99);
}

TEST_F(FakeCudart, AQueryLetsWorkUpToItsEventRunAndAnswersAtOnce) {
  absl::Notification go;
  ASSERT_EQ(EnqueueHostWork(a_, [&] { go.WaitForNotification(); }), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  Note(a_, "later");
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  go.Notify();
  while (cudaEventQuery(event_) == cudaErrorNotReady) std::this_thread::yield();
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(ran_.size(), 0u);
  EXPECT_EQ(cudaStreamQuery(a_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(a_), cudaSuccess);
}

TEST_F(FakeCudart, AnEventMeansItsLastRecord) {
  Note(a_, "1");
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  Note(a_, "2");
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_THAT(ran_, ElementsAre("1", "2"));
}

TEST_F(FakeCudart, KernelsGoThroughTheSameStreams) {
  ASSERT_EQ(emu::Enqueue(a_, [this] { ran_.push_back("kernel"); }), cudaSuccess);
  EXPECT_EQ(ran_.size(), 0u);
  Note(a_, "after");
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_THAT(ran_, ElementsAre("kernel", "after"));
}

TEST_F(FakeCudart, ADestroyedStreamFinishesItsWork) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  Note(stream, "1");
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(ran_, ElementsAre("1"));
  EXPECT_EQ(EnqueueHostWork(stream, [] {}), cudaErrorInvalidResourceHandle);
}

TEST_F(FakeCudart, FreeingWaitsForTheDevice) {
  void* more = nullptr;
  ASSERT_EQ(cudaMalloc(&more, 10), cudaSuccess);
  Note(a_, "1");
  ASSERT_EQ(cudaFree(more), cudaSuccess);
  EXPECT_THAT(ran_, ElementsAre("1"));
}

TEST_F(FakeCudart, WorkOfAStreamMustNotWaitForStreams) {
  cudaError_t sync = cudaSuccess, free = cudaSuccess, query = cudaErrorUnknown;
  ASSERT_EQ(EnqueueHostWork(a_,
                            [&] {
                              sync = cudaStreamSynchronize(b_);
                              free = cudaFree(device_);
                              query = cudaStreamQuery(b_);
                            }),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(sync, cudaErrorNotPermitted);
  EXPECT_EQ(free, cudaErrorNotPermitted);
  EXPECT_EQ(query, cudaSuccess);
}

class EagerFakeCudart : public FakeCudart {
 protected:
  EagerFakeCudart() : FakeCudart({.lazy = false}) {}
};

TEST_F(EagerFakeCudart, WorkRunsWithoutAnybodyWaiting) {
  absl::Notification ran;
  ASSERT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaSuccess);
  ASSERT_EQ(EnqueueHostWork(b_, [&] { ran.Notify(); }), cudaSuccess);
  ran.WaitForNotification();
}

TEST_F(EagerFakeCudart, StreamsDoNotWaitForEachOther) {
  absl::Notification first, second;
  ASSERT_EQ(EnqueueHostWork(a_,
                            [&] {
                              first.Notify();
                              second.WaitForNotification();
                            }),
            cudaSuccess);
  ASSERT_EQ(EnqueueHostWork(b_,
                            [&] {
                              first.WaitForNotification();
                              second.Notify();
                            }),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
}

// ---- Memory.

TEST_F(FakeCudart, CopiesStayInsideOneBuffer) {
  uint8_t host[200] = {};
  EXPECT_EQ(ToDevice(host, 101, a_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, pinned_, 101, cudaMemcpyHostToHost, a_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, device_, 1, cudaMemcpyHostToDevice, a_),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemsetAsync(host, 0, 1, a_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(static_cast<uint8_t*>(device_) + 99, 0, 2, a_), cudaErrorInvalidValue);
}

TEST_F(FakeCudart, AddressesOfFreedMemoryAreOfNoUse) {
  void* more = nullptr;
  ASSERT_EQ(cudaMalloc(&more, 10), cudaSuccess);
  ASSERT_EQ(cudaFree(more), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(more, 0, 1, a_), cudaErrorInvalidValue);
}

TEST_F(FakeCudart, BeyondTheBudgetIsOutOfMemory) {
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  void* more = this;
  EXPECT_EQ(cudaMalloc(&more, free_bytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(FakeCudart, NewMemoryIsNotZero) {
  uint8_t bytes[100] = {};
  emu::CopyFromDevice(bytes, device_, 100);
  EXPECT_THAT(bytes, testing::Each(testing::Ne(0)));
}

// ---- Captures.

TEST_F(FakeCudart, AGraphHoldsItsArgumentsByValue) {
  int value = 1, read = 0;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(emu::Enqueue(a_, [value, &read] { read += value; }), cudaSuccess);
  Note(a_, "host work");
  ASSERT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
  value = 100;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  const uint64_t before = ObjectsMade();
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(cudaGraphLaunch(executable, b_), cudaSuccess);
    EXPECT_EQ(ObjectsMade(), before + 1) << "at the first launch, as nobody has uploaded it";
  }
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(read, 0);
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(read, 4);
  EXPECT_EQ(ran_.size(), 4u);
}

TEST_F(FakeCudart, WhatCannotBeRepeatedInvalidatesTheCapture) {
  const std::pair<const char*, std::function<cudaError_t()>> unsafe[] = {
      {"cudaMalloc",
       [] {
         void* data;
         return cudaMalloc(&data, 10);
       }},
      {"cudaHostAlloc",
       [] {
         void* data;
         return cudaHostAlloc(&data, 10, cudaHostAllocMapped);
       }},
      {"cudaFree", [&] { return cudaFree(device_); }},
      {"cudaFreeHost", [&] { return cudaFreeHost(pinned_); }},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(a_); }},
      {"cudaStreamQuery", [&] { return cudaStreamQuery(a_); }},
      {"cudaEventQuery", [&] { return cudaEventQuery(event_); }},
      {"cudaEventSynchronize", [&] { return cudaEventSynchronize(event_); }},
      {"cudaDeviceSynchronize", [] { return cudaDeviceSynchronize(); }},
  };
  for (const auto& [name, call] : unsafe) {
    SCOPED_TRACE(name);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(cudaStreamIsCapturing(a_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    ASSERT_EQ(cudaStreamIsCapturing(a_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(EnqueueHostWork(a_, [] {}), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    ASSERT_EQ(cudaStreamIsCapturing(a_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  }
}

TEST_F(FakeCudart, ModesSayWhomACaptureConcerns) {
  const auto malloc_elsewhere = [&](cudaStreamCaptureMode mode) {
    cudaError_t error = cudaErrorUnknown;
    EXPECT_EQ(cudaStreamBeginCapture(a_, mode), cudaSuccess);
    std::thread([&] {
      void* data = nullptr;
      error = cudaMalloc(&data, 10);
      if (error == cudaSuccess) error = cudaFree(data);
    }).join();
    cudaGraph_t graph = nullptr;
    const cudaError_t end = cudaStreamEndCapture(a_, &graph);
    EXPECT_EQ(end, error == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return error;
  };
  EXPECT_EQ(malloc_elsewhere(cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(malloc_elsewhere(cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(malloc_elsewhere(cudaStreamCaptureModeRelaxed), cudaSuccess);
}

TEST_F(FakeCudart, AnotherThreadCannotEndACapture) {
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaError_t elsewhere = cudaSuccess;
  std::thread([&] { elsewhere = cudaStreamEndCapture(a_, &graph); }).join();
  EXPECT_EQ(elsewhere, cudaErrorStreamCaptureWrongThread);
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// ---- What tests plant.

TEST_F(FakeCudart, ACallFailsOnceWhenItsTurnComes) {
  FailCall("cudaMemsetAsync", cudaErrorNotPermitted, /*skip=*/1);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, 1, a_), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, 1, a_), cudaErrorNotPermitted);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, 1, a_), cudaSuccess);
}

TEST(FakeCudaDevices, ABrokenDeviceConcernsNoOther) {
  const ScopedCudaMachine machine({.devices = 2});
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  BreakDevice(0, cudaErrorLaunchFailure);
  bool ran = false;
  ASSERT_EQ(EnqueueHostWork(stream, [&] { ran = true; }), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_FALSE(ran);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);  // for good
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorLaunchFailure);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(FakeCudaDevices, ComeFromTheEnvironment) {
  const std::pair<const char*, const char*> variables[] = {
      {"BITSHARD_FAKE_CUDA_DEVICES", "3"},    {"BITSHARD_FAKE_CUDA_SM", "86"},
      {"BITSHARD_FAKE_CUDA_BYTES", "123456"}, {"BITSHARD_FAKE_CUDA_DRIVER", "0"},
      {"BITSHARD_FAKE_CUDA_P2P", "0"},        {"BITSHARD_FAKE_CUDA_STREAMS", "threads"},
  };
  for (const auto& [name, value] : variables) setenv(name, value, /*overwrite=*/1);
  const CudaMachine machine = MachineFromEnvironment();
  for (const auto& [name, value] : variables) unsetenv(name);
  EXPECT_EQ(machine.devices, 3);
  EXPECT_EQ(machine.compute_capability, 86);
  EXPECT_EQ(machine.bytes, 123456u);
  EXPECT_EQ(machine.driver, 0);
  EXPECT_FALSE(machine.peers);
  EXPECT_FALSE(machine.lazy);
  EXPECT_TRUE(MachineFromEnvironment().lazy);
}

}  // namespace
}  // namespace bitshard::fake
