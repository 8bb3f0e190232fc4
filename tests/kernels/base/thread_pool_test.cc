// Every chunk runs exactly once, on any number of threads, region after region; the float
// environment is the same everywhere.
#include "kernels/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

TEST(ThreadPool, RunsEveryChunkOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t chunks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(chunks);
      pool.ParallelFor(chunks, [&](int64_t chunk, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        runs[chunk].fetch_add(1);
      });
      for (const auto& r : runs)
        EXPECT_EQ(r.load(), 1) << "threads=" << threads << " chunks=" << chunks;
    }
  }
}

TEST(ThreadPool, WritesOfARegionAreSeenAfterIt) {
  ThreadPool pool(4);
  std::vector<int64_t> plain(64, 0);  // no atomics: the sanitizer would tell
  for (int round = 0; round < 500; ++round) {
    pool.ParallelFor(64, [&](int64_t chunk, int) { plain[chunk] += chunk; });
    pool.ParallelFor(64, [&](int64_t chunk, int) { plain[63 - chunk] += 1; });
  }
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(plain[i], 500 * (i + 1));
}

TEST(ThreadPool, ThreadsDoNotShareAnIndex) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> inside(3);
  std::atomic<bool> shared{false};
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(100, [&](int64_t, int thread) {
      if (inside[thread].fetch_add(1) != 0) shared = true;
      inside[thread].fetch_sub(1);
    });
  }
  EXPECT_FALSE(shared);
}

TEST(ThreadPool, SleepingHelpersWakeUp) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 20; ++round) {
    // Longer than the helper's spinning: it is asleep when the next region begins.
    volatile uint64_t work = 0;
    for (int i = 0; i < 300000; ++i) work = work + i;
    pool.ParallelFor(8, [&](int64_t chunk, int) { sum += chunk; });
  }
  EXPECT_EQ(sum.load(), 20 * 28);
}

TEST(ThreadPool, DestructorEndsIdleAndFreshPools) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool fresh(4);
    if (i % 2) fresh.ParallelFor(4, [](int64_t, int) {});
  }
}

TEST(ThreadPool, SubnormalsLiveInEveryThread) {
  ThreadPool pool(3);
  std::atomic<int> flushed{0};
  pool.ParallelFor(64, [&](int64_t, int) {
    volatile float tiny = std::numeric_limits<float>::min();
    const float half = tiny * 0.5f;
    if (half == 0) flushed.fetch_add(1);
    volatile float zero = 0;
    if (half + zero == 0) flushed.fetch_add(1);
  });
  EXPECT_EQ(flushed.load(), 0);
}

TEST(ThreadPool, CountsAtLeastOneCpu) {
  EXPECT_GE(AvailableCpus(), 1);
  EXPECT_LE(AvailableCpus(), static_cast<int>(AffinityCpus().size()));
}

TEST(ThreadPool, PinsToACpuOfTheMaskOnly) {
  const std::vector<int> cpus = AffinityCpus();
  ASSERT_FALSE(cpus.empty());
  std::thread other([&] {
    EXPECT_TRUE(PinCallingThread(cpus.back()));
    EXPECT_EQ(AffinityCpus(), std::vector<int>{cpus.back()});
    EXPECT_FALSE(PinCallingThread(-1));
    EXPECT_FALSE(PinCallingThread(1 << 20));
  });
  other.join();
}

TEST(ThreadPool, WorksWithoutSpinning) {
  ThreadPool pool(3, /*cpus=*/{}, /*spin_ns=*/0);
  std::vector<int64_t> plain(64, 0);
  for (int round = 0; round < 200; ++round)
    pool.ParallelFor(64, [&](int64_t chunk, int) { plain[chunk] += 1; });
  EXPECT_EQ(plain, std::vector<int64_t>(64, 200));
}

TEST(ThreadPool, CountsRegionsInWhichThreadsMeet) {
  ThreadPool pool(2), alone(1);
  for (ThreadPool* p : {&pool, &alone}) {
    for (int64_t chunks : {0, 1, 2, 100}) p->ParallelFor(chunks, [](int64_t, int) {});
  }
  EXPECT_EQ(pool.synchronizations(), 2u);
  EXPECT_EQ(alone.synchronizations(), 0u);
}

TEST(Cpus, ByCoreAreThoseOfTheMask) {
  std::vector<int> cpus = CpusByCore();
  std::sort(cpus.begin(), cpus.end());
  EXPECT_EQ(cpus, AffinityCpus());
}

TEST(Cpus, RanksThatFillTheMaskGetDisjointCpus) {
  const std::vector<int> all = AffinityCpus();
  const int count = static_cast<int>(all.size());
  if (AvailableCpus() < count) GTEST_SKIP() << "a quota grants less than the mask: nobody pins";
  for (int threads = 1; threads <= count; ++threads) {
    if (count % threads != 0) continue;
    const int ranks = count / threads;
    std::vector<int> taken;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int> cpus = CpusOfRank(rank, ranks, threads);
      ASSERT_EQ(static_cast<int>(cpus.size()), threads);
      taken.insert(taken.end(), cpus.begin(), cpus.end());
    }
    std::sort(taken.begin(), taken.end());
    EXPECT_EQ(taken, all) << ranks << " ranks of " << threads;
  }
}

TEST(Cpus, NobodyPinsWhereTheCpusMayNotBeHisAlone) {
  const int count = static_cast<int>(AffinityCpus().size());
  EXPECT_TRUE(CpusOfRank(0, 1, count + 1).empty());
  EXPECT_TRUE(CpusOfRank(0, count + 1, 1).empty());
  if (count > 1) {
    EXPECT_TRUE(CpusOfRank(0, 1, 1).empty());
  }
  EXPECT_TRUE(CpusOfRank(count, count, 1).empty());  // a rank that does not exist
}

TEST(PinnedCaller, GivesTheCpusBack) {
  const std::vector<int> before = AffinityCpus();
  ThreadPool pinned(1, {before.back()}), unpinned(1);
  {
    const PinnedCaller pin(pinned);
    EXPECT_EQ(AffinityCpus(), std::vector<int>{before.back()});
  }
  EXPECT_EQ(AffinityCpus(), before);
  {
    const PinnedCaller pin(unpinned);
    EXPECT_EQ(AffinityCpus(), before);
  }
  EXPECT_EQ(AffinityCpus(), before);
}

}  // namespace
}  // namespace bitshard
