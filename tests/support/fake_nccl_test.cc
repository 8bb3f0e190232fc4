// The fake NCCL by itself: what worker/collective/nccl.cc does not use, and what it must not get
// away with.
#include "tests/support/fake_nccl.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "kernels/base/float_types.h"
#include "tests/support/fake_cudart.h"

namespace bitshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// One rank: a thread with a device, a stream and a communicator.
struct Rank {
  int rank = 0, world = 1;
  cudaStream_t stream = nullptr;
  ncclComm_t communicator = nullptr;

  template <typename T>
  T* OnDevice(const std::vector<T>& values) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, values.size() * sizeof(T)), cudaSuccess);
    EXPECT_EQ(
        cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyDefault, stream),
        cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return static_cast<T*>(data);
  }
  // Waits, copies, frees.
  template <typename T>
  std::vector<T> Back(T* data, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data, count * sizeof(T), cudaMemcpyDefault, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
    return values;
  }
  ncclResult_t State() const {
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(communicator, &state), ncclSuccess);
    return state;
  }
  // Once it is not "in progress".
  ncclResult_t Settled() const {
    ncclResult_t state = State();
    for (; state == ncclInProgress; state = State()) std::this_thread::yield();
    return state;
  }
};

void RunRanks(int world, const std::function<void(Rank&)>& body, bool blocking = true) {
  const fake::ScopedCudaMachine machine({.devices = world});
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Rank rank{.rank = r, .world = world};
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking ? 1 : 0;
      ASSERT_EQ(ncclCommInitRankConfig(&rank.communicator, world, id, r, &config),
                blocking ? ncclSuccess : ncclInProgress);
      ASSERT_EQ(rank.Settled(), ncclSuccess);
      body(rank);
      if (rank.communicator != nullptr) {
        EXPECT_EQ(ncclCommAbort(rank.communicator), ncclSuccess);
      }
      EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(FakeNccl, SumsOfHalvesAreRoundedAtEveryHopOfTheRing) {
  RunRanks(3, [](Rank& rank) {
    // 1 + 2^-8 is a tie in bf16, to the even 1: two such hops lose what one of 2^-7 keeps.
    const float mine[] = {1.0f, 0x1p-8f, 0x1p-8f};
    const std::vector<uint16_t> values(3, F32ToBf16(mine[rank.rank]));
    uint16_t* data = rank.OnDevice(values);
    ASSERT_EQ(ncclAllReduce(data, data, 3, ncclBfloat16, ncclSum, rank.communicator, rank.stream),
              ncclSuccess);
    const std::vector<uint16_t> sums = rank.Back(data, 3);
    // Slice 0 begins at rank 1: (2^-8 + 2^-8) + 1; slice 1 at rank 2: (2^-8 + 1) + 2^-8.
    EXPECT_EQ(Bf16ToF32(sums[0]), 1.0f + 0x1p-7f);
    EXPECT_EQ(Bf16ToF32(sums[1]), 1.0f);
    EXPECT_EQ(Bf16ToF32(sums[2]), 1.0f);
  });
}

TEST(FakeNccl, ReduceScatterGivesEachRankItsPart) {
  for (const int world : {2, 3}) {
    RunRanks(world, [](Rank& rank) {
      constexpr size_t kEach = 100'003;  // of several rounds
      std::vector<float> values(kEach * rank.world);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i % 97) + static_cast<float>(rank.rank);
      float* from = rank.OnDevice(values);
      float* to = rank.OnDevice(std::vector<float>(kEach));
      ASSERT_EQ(
          ncclReduceScatter(from, to, kEach, ncclFloat32, ncclSum, rank.communicator, rank.stream),
          ncclSuccess);
      const std::vector<float> sums = rank.Back(to, kEach);
      const int ranks = rank.world * (rank.world - 1) / 2;
      for (size_t i = 0; i < kEach; ++i) {
        const size_t at = rank.rank * kEach + i;
        ASSERT_EQ(sums[i], static_cast<float>(rank.world * (at % 97) + ranks)) << i;
      }
      EXPECT_EQ(cudaFree(from), cudaSuccess);
    });
  }
}

TEST(FakeNccl, AGroupSendsAndReceivesInARing) {
  RunRanks(3, [](Rank& rank) {
    constexpr size_t kCount = 50'001;
    const int next = (rank.rank + 1) % rank.world;
    const int before = (rank.rank + rank.world - 1) % rank.world;
    int32_t* from = rank.OnDevice(std::vector<int32_t>(kCount, 10 + rank.rank));
    int32_t* to = rank.OnDevice(std::vector<int32_t>(kCount, 0));
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclSend(from, kCount, ncclInt32, next, rank.communicator, rank.stream), ncclSuccess);
    EXPECT_EQ(ncclRecv(to, kCount, ncclInt32, before, rank.communicator, rank.stream), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(rank.Back(to, kCount), std::vector<int32_t>(kCount, 10 + before));
    EXPECT_EQ(cudaFree(from), cudaSuccess);
  });
}

TEST(FakeNccl, RanksInDifferentOperationsAreToldBoth) {
  RunRanks(3, [](Rank& rank) {
    int64_t* data = rank.OnDevice(std::vector<int64_t>(64, 1));
    const size_t count = rank.rank == 0 ? 63 : 64;
    ASSERT_EQ(ncclAllReduce(data, data, count, ncclInt64, ncclSum, rank.communicator, rank.stream),
              ncclSuccess);
    ASSERT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(rank.State(), ncclInvalidUsage);
    EXPECT_THAT(std::string(ncclGetLastError(rank.communicator)),
                AllOf(HasSubstr("all_reduce count=63"), HasSubstr("all_reduce count=64")));
    EXPECT_EQ(ncclAllReduce(data, data, 64, ncclInt64, ncclSum, rank.communicator, rank.stream),
              ncclInvalidUsage);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
  });
}

TEST(FakeNccl, WithoutBlockingCallsGoOnInTheBackground) {
  RunRanks(
      2,
      [](Rank& rank) {
        float* data = rank.OnDevice(std::vector<float>(16, 1));
        const auto sum = [&] {
          return ncclAllReduce(data, data, 16, ncclFloat32, ncclSum, rank.communicator,
                               rank.stream);
        };
        EXPECT_EQ(sum(), ncclInProgress);
        EXPECT_EQ(rank.State(), ncclInProgress);
        EXPECT_EQ(rank.Settled(), ncclSuccess);
        EXPECT_EQ(sum(), ncclInProgress);
        EXPECT_EQ(sum(), ncclInvalidArgument);  // too early
        EXPECT_EQ(rank.Settled(), ncclInvalidArgument);
        EXPECT_EQ(sum(), ncclInvalidArgument);
        EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
        EXPECT_EQ(cudaFree(data), cudaSuccess);
      },
      /*blocking=*/false);
}

// ---- Windows.

constexpr size_t kWindowBytes = 4096;

// A window of the communicator, and its memory.
struct Window {
  float* data = nullptr;
  ncclWindow_t handle = nullptr;

  static Window Open(const Rank& rank) {
    Window window;
    void* data = nullptr;
    EXPECT_EQ(ncclMemAlloc(&data, kWindowBytes), ncclSuccess);
    window.data = static_cast<float*>(data);
    EXPECT_EQ(cudaMemsetAsync(data, 0, kWindowBytes, rank.stream), cudaSuccess);
    EXPECT_EQ(ncclCommWindowRegister(rank.communicator, data, kWindowBytes, &window.handle,
                                     NCCL_WIN_COLL_SYMMETRIC),
              ncclSuccess);
    EXPECT_NE(window.handle, nullptr);
    return window;
  }
};

ncclResult_t SumIn(float* data, const Rank& rank) {
  return ncclAllReduce(data, data, 16, ncclFloat32, ncclSum, rank.communicator, rank.stream);
}

TEST(FakeNccl, FloatsInAWindowAreAddedUpInTheOrderOfTheRanks) {
  RunRanks(3, [](Rank& rank) {
    const Window window = Window::Open(rank);
    const std::vector<float> mine(16, rank.rank == 0 ? 1.0f : 0x1p-24f);
    ASSERT_EQ(cudaMemcpyAsync(window.data, mine.data(), 64, cudaMemcpyDefault, rank.stream),
              cudaSuccess);
    ASSERT_EQ(SumIn(window.data, rank), ncclSuccess);
    std::vector<float> sums(16);
    ASSERT_EQ(cudaMemcpyAsync(sums.data(), window.data, 64, cudaMemcpyDefault, rank.stream),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(sums, std::vector<float>(16, 1.0f));
    EXPECT_EQ(ncclCommWindowDeregister(rank.communicator, window.handle), ncclSuccess);
    EXPECT_EQ(ncclMemFree(window.data), ncclSuccess);
  });
  EXPECT_EQ(fake::LiveNcclWindows(), 0);
}

TEST(FakeNccl, WithoutBlockingAWindowComesLaterThanTheSuccess) {
  RunRanks(
      2,
      [](Rank& rank) {
        void* data = nullptr;
        ASSERT_EQ(ncclMemAlloc(&data, kWindowBytes), ncclSuccess);
        ncclWindow_t window = nullptr;
        const auto open = [&] {
          return ncclCommWindowRegister(rank.communicator, data, kWindowBytes, &window,
                                        NCCL_WIN_COLL_SYMMETRIC);
        };
        EXPECT_EQ(open(), ncclSuccess);
        EXPECT_EQ(rank.State(), ncclInProgress);
        EXPECT_EQ(rank.Settled(), ncclSuccess);
        EXPECT_NE(window, nullptr);
        EXPECT_EQ(ncclCommWindowDeregister(rank.communicator, window), ncclSuccess);
        EXPECT_EQ(open(), ncclSuccess);
        EXPECT_EQ(SumIn(static_cast<float*>(data), rank), ncclInvalidArgument);  // too early
        EXPECT_EQ(rank.Settled(), ncclInvalidArgument);
        EXPECT_EQ(ncclCommAbort(std::exchange(rank.communicator, nullptr)), ncclSuccess);
        EXPECT_EQ(ncclMemFree(data), ncclSuccess);
      },
      /*blocking=*/false);
  EXPECT_EQ(fake::LiveNcclWindows(), 0);
}

TEST(FakeNccl, AWindowIsUsedAtOneOffset) {
  RunRanks(2, [](Rank& rank) {
    const Window window = Window::Open(rank);
    ASSERT_EQ(SumIn(window.data + 16 * rank.rank, rank), ncclSuccess);
    ASSERT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(rank.State(), ncclInvalidUsage);
    EXPECT_THAT(std::string(ncclGetLastError(rank.communicator)),
                AllOf(HasSubstr("offset=0"), HasSubstr("offset=64")));
    EXPECT_EQ(ncclCommWindowDeregister(rank.communicator, window.handle), ncclSuccess);
    EXPECT_EQ(ncclMemFree(window.data), ncclSuccess);
  });
}

TEST(FakeNccl, AWindowIsOpenedByAllRanksAlike) {
  RunRanks(2, [](Rank& rank) {
    void* data = nullptr;
    ASSERT_EQ(ncclMemAlloc(&data, kWindowBytes), ncclSuccess);
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(rank.communicator, data, kWindowBytes / (1 + rank.rank),
                                     &window, NCCL_WIN_COLL_SYMMETRIC),
              ncclInvalidUsage);
    EXPECT_EQ(window, nullptr);
    EXPECT_EQ(ncclMemFree(data), ncclSuccess);
  });
}

TEST(FakeNccl, WindowsAreOfMemoryOfItsOwn) {
  RunRanks(1, [](Rank& rank) {
    void* data = nullptr;
    ASSERT_EQ(cudaMalloc(&data, kWindowBytes), cudaSuccess);
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(rank.communicator, data, kWindowBytes, &window,
                                     NCCL_WIN_COLL_SYMMETRIC),
              ncclUnhandledCudaError);
    EXPECT_EQ(window, nullptr);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
  });
}

// Each is told on stderr, and counted.
TEST(FakeNccl, SeesWindowsThatAreMisused) {
  const int before = fake::NcclMisuses();
  RunRanks(1, [](Rank& rank) {  // work that has not run when the window goes
    const Window window = Window::Open(rank);
    ASSERT_EQ(SumIn(window.data, rank), ncclSuccess);
    EXPECT_EQ(ncclCommWindowDeregister(rank.communicator, window.handle), ncclSuccess);
    ASSERT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(rank.State(), ncclInvalidUsage);
    EXPECT_EQ(ncclMemFree(window.data), ncclSuccess);
  });
  EXPECT_EQ(fake::NcclMisuses(), before + 1);
  RunRanks(1, [](Rank& rank) {  // graphs that hold such work
    const Window window = Window::Open(rank);
    ASSERT_EQ(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(SumIn(window.data, rank), ncclSuccess);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(rank.stream, &graph), cudaSuccess);
    EXPECT_EQ(ncclCommWindowDeregister(rank.communicator, window.handle), ncclSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(ncclMemFree(window.data), ncclSuccess);
  });
  EXPECT_EQ(fake::NcclMisuses(), before + 2);
  RunRanks(1, [](Rank& rank) {  // memory that goes before its window
    const Window window = Window::Open(rank);
    EXPECT_EQ(ncclMemFree(window.data), ncclInvalidUsage);
    EXPECT_EQ(ncclCommWindowDeregister(rank.communicator, window.handle), ncclSuccess);
    EXPECT_EQ(ncclMemFree(window.data), ncclSuccess);
  });
  EXPECT_EQ(fake::NcclMisuses(), before + 3);
  RunRanks(1, [](Rank& rank) {  // a window that outlives its communicator
    const Window window = Window::Open(rank);
    ncclComm_t other = nullptr;
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ASSERT_EQ(ncclCommInitRank(&other, 1, id, 0), ncclSuccess);
    std::swap(other, rank.communicator);
    EXPECT_EQ(ncclCommDestroy(other), ncclSuccess);
    EXPECT_EQ(ncclMemFree(window.data), ncclSuccess);
  });
  EXPECT_EQ(fake::NcclMisuses(), before + 4);
  RunRanks(1, [](Rank& rank) {  // memory that is gone
    void* data = nullptr;
    ASSERT_EQ(cudaMalloc(&data, 64), cudaSuccess);
    ASSERT_EQ(cudaFree(data), cudaSuccess);
    ASSERT_EQ(SumIn(static_cast<float*>(data), rank), ncclSuccess);
    ASSERT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(rank.State(), ncclInvalidUsage);
  });
  EXPECT_EQ(fake::NcclMisuses(), before + 5);
  EXPECT_EQ(fake::LiveNcclWindows(), 0);
}

TEST(FakeNccl, WhatItDoesNotKnowItRefuses) {
  RunRanks(1, [](Rank& rank) {
    ncclComm_t part = nullptr;
    EXPECT_EQ(ncclCommSplit(rank.communicator, 0, 0, &part, nullptr), ncclInvalidUsage);
    EXPECT_EQ(
        ncclAllReduce(nullptr, nullptr, 1, ncclInt64, ncclMax, rank.communicator, rank.stream),
        ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(nullptr, nullptr, 1, ncclInt64, 1, rank.communicator, rank.stream),
              ncclInvalidArgument);
    int count = 0, number = -1, device = -1;
    EXPECT_EQ(ncclCommCount(rank.communicator, &count), ncclSuccess);
    EXPECT_EQ(ncclCommUserRank(rank.communicator, &number), ncclSuccess);
    EXPECT_EQ(ncclCommCuDevice(rank.communicator, &device), ncclSuccess);
    EXPECT_THAT((std::vector<int>{count, number, device}), ::testing::ElementsAre(1, 0, 0));
    void* data = nullptr;
    EXPECT_EQ(ncclMemAlloc(&data, 4096), ncclSuccess);
    EXPECT_EQ(ncclMemFree(data), ncclSuccess);
  });
  ncclComm_t none = nullptr;
  ncclUniqueId id;
  std::memset(&id, 'x', sizeof(id));
  EXPECT_EQ(ncclCommInitRank(&none, 2, id, 0), ncclInvalidArgument);
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_EQ(ncclCommInitRank(&none, 2, id, 2), ncclInvalidArgument);
  ncclConfig_t config = {};
  EXPECT_EQ(ncclCommInitRankConfig(&none, 2, id, 0, &config), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(none, nullptr);
}

}  // namespace
}  // namespace bitshard
