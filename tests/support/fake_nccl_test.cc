// The fake NCCL by itself: what worker/collective/nccl.cc does not use, and what it must not get
// away with.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
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
};

void RunRanks(int world, const std::function<void(Rank&)>& body) {
  const fake::ScopedCudaMachine machine({.devices = world});
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Rank rank{.rank = r, .world = world};
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), cudaSuccess);
      ASSERT_EQ(ncclCommInitRank(&rank.communicator, world, id, r), ncclSuccess);
      body(rank);
      EXPECT_EQ(ncclCommAbort(rank.communicator), ncclSuccess);
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
