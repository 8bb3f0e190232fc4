// Launches: what is refused and where the work goes; device memory; counters.
#include <csignal>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "kernels/cuda/emu/stream_hook.h"
#include "tests/kernels/cuda/emu/language_kernels.h"
#include "tests/support/cuda_kernel_test.h"

namespace bitshard::emu {
namespace {

TEST(Launch, ShapesThatTheDeviceRefusesAreRefused) {
  const auto launch = [](dim3 grid, dim3 block, size_t bytes = 0) {
    return cuda::LaunchNothing(grid, block, bytes, nullptr);
  };
  EXPECT_EQ(launch(1, 1024), cudaSuccess);
  EXPECT_EQ(launch(1, dim3(32, 32)), cudaSuccess);
  EXPECT_EQ(launch(1, 32, 227 << 10), cudaSuccess);
  EXPECT_EQ(launch(0, 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 0), 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 1025), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), 32), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 32, (227 << 10) + 1), cudaErrorInvalidValue);
  ExpectNoFindings();
}

std::vector<std::pair<cudaStream_t, std::function<void()>>> queue;
cudaError_t KeepForLater(cudaStream_t stream, std::function<void()> work) {
  queue.emplace_back(stream, std::move(work));
  return cudaSuccess;
}
cudaError_t Refuse(cudaStream_t, std::function<void()>) { return cudaErrorIllegalState; }

TEST(Launch, GoesThroughTheHookWithItsArgumentsByValue) {
  DeviceArray<uint32_t> data(std::vector<uint32_t>(32, 1));
  const cudaStream_t stream = reinterpret_cast<cudaStream_t>(&queue);
  const EnqueueHook before = SetEnqueueHook(&KeepForLater);
  uint32_t value = 5;
  EXPECT_EQ(cuda::LaunchAdd(data.get(), value, stream), cudaSuccess);
  value = 100;
  EXPECT_EQ(data.Read()[0], 1u);
  ASSERT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue[0].first, stream);
  queue[0].second();
  queue[0].second();  // as a graph does
  EXPECT_EQ(data.Read(), std::vector<uint32_t>(32, 11));
  queue.clear();
  SetEnqueueHook(&Refuse);
  EXPECT_EQ(cuda::LaunchAdd(data.get(), value, stream), cudaErrorIllegalState);
  EXPECT_EQ(cuda::LaunchNothing(1, 2000, 0, stream), cudaErrorInvalidConfiguration);
  SetEnqueueHook(before);
  ExpectNoFindings();
}

TEST(Memory, IsPoisonedAndBounded) {
  void* const first = Allocate(10);
  void* const second = Allocate(1);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  EXPECT_TRUE(IsAllocated(first, 10));
  EXPECT_FALSE(IsAllocated(first, 11));
  EXPECT_TRUE(IsAllocated(static_cast<char*>(first) + 4, 6));
  EXPECT_TRUE(IsDeviceAddress(static_cast<char*>(first) + 11));
  EXPECT_FALSE(IsDeviceAddress(&queue));
  const unsigned char* const bytes = static_cast<const unsigned char*>(first);
  EXPECT_EQ(bytes[0], 0xab);
  EXPECT_EQ(bytes[9], 0xff);
  EXPECT_FALSE(Free(static_cast<char*>(first) + 1));
  EXPECT_TRUE(Free(first));
  EXPECT_FALSE(Free(first));
  EXPECT_FALSE(IsAllocated(first, 1));
  void* const third = Allocate(10);
  EXPECT_NE(third, first);
  EXPECT_TRUE(Free(second));
  EXPECT_TRUE(Free(third));
  EXPECT_EQ(Allocate(std::numeric_limits<size_t>::max()), nullptr);
}

TEST(MemoryDeathTest, IsClosedToTheHostWhenProtected) {
  ProtectDeviceMemory(true);
  DeviceArray<uint32_t> data(std::vector<uint32_t>(32, 1));
  EXPECT_EQ(cuda::LaunchAdd(data.get(), 2, nullptr), cudaSuccess);
  EXPECT_EQ(data.Read(), std::vector<uint32_t>(32, 3));
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH(*static_cast<volatile uint32_t*>(data.get()) = 4, "SEGV");
#else
  EXPECT_EXIT(*static_cast<volatile uint32_t*>(data.get()) = 4, testing::KilledBySignal(SIGSEGV),
              "");
#endif
  ProtectDeviceMemory(false);
  EXPECT_EQ(*data.get(), 3u);
  ExpectNoFindings();
}

struct Pattern {
  int stride;
  int pitch;
  uint64_t read_sectors;  // of 32 words read
  uint64_t waves;         // of writing, and again of reading them in shared memory
};

TEST(Counters, CountSectorsAndBanks) {
  if (!ChecksAccesses()) GTEST_SKIP() << "accesses are seen in the check build only";
  for (const Pattern& p :
       {Pattern{1, 1, 4, 1}, Pattern{2, 2, 8, 2}, Pattern{8, 32, 32, 32}, Pattern{16, 33, 32, 1}}) {
    DeviceArray<uint32_t> in(std::vector<uint32_t>(32 * 16, 1)), out(32);
    ResetCounters();
    ASSERT_EQ(cuda::LaunchStrides(out.get(), in.get(), p.stride, p.pitch, nullptr), cudaSuccess);
    const Counters c = GetCounters();
    EXPECT_EQ(c.launches, 1u);
    EXPECT_EQ(c.global.done, p.read_sectors + 4) << CountersText();
    EXPECT_EQ(c.global.ideal, 8u);
    EXPECT_EQ(c.shared.done, 2 * p.waves) << CountersText();
    EXPECT_EQ(c.shared.ideal, 2u);
    EXPECT_EQ(c.requested_bytes, 32 * (p.read_sectors + 4));
    EXPECT_EQ(c.unique_bytes, c.requested_bytes);
    EXPECT_EQ(CountersByPlace().size(), 4u) << CountersText();
  }
  ExpectNoFindings();
}

TEST(Counters, CountBytesInThreeSenses) {
  if (!ChecksAccesses()) GTEST_SKIP() << "accesses are seen in the check build only";
  DeviceArray<uint32_t> data(std::vector<uint32_t>(32, 1));
  ResetCounters();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cuda::LaunchAdd(data.get(), 1, nullptr), cudaSuccess);
  const Counters c = GetCounters();
  EXPECT_EQ(c.requested_bytes, 3 * 2 * 128u);  // three times read and written
  EXPECT_EQ(c.block_unique_bytes, 3 * 128u);
  EXPECT_EQ(c.unique_bytes, 128u);
}

TEST(Counters, CountCollectives) {
  DeviceArray<float> v(std::vector<float>(32, 1.0f)), out(96);
  ResetCounters();
  ASSERT_EQ(cuda::LaunchReductions(out.get(), v.get(), nullptr), cudaSuccess);
  EXPECT_EQ(GetCounters().shuffles, 15u);
  EXPECT_EQ(GetCounters().mma, 0u);
  ExpectNoFindings();
}

}  // namespace
}  // namespace bitshard::emu
