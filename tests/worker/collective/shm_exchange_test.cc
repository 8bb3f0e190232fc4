// Ranks as threads over one piece of ordinary memory: what a race detector can see of the exchange.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include <gtest/gtest.h>

#include "tests/support/await.h"
#include "tests/support/thread_ranks.h"
#include "worker/collective/collective.h"

namespace bitshard {
namespace {

TEST(ShmExchange, ThousandsOfMixedOperationsAreExact) {
  for (int world = 2; world <= 4; ++world) {
    ThreadRanks ranks(world);
    std::atomic<int> wrong{0};
    ranks.Run([&](int rank, Collective& c) {
      std::mt19937 sizes(7);  // the same on all ranks
      for (int op = 0; op < 1500; ++op) {
        const size_t n = op % 100 == 0 ? 20'000 : sizes() % 300;
        std::vector<int64_t> values(n);
        for (size_t i = 0; i < n; ++i) values[i] = static_cast<int64_t>(op + i) * (rank + 1);
        if (!c.AllReduceSum(absl::MakeSpan(values)).ok()) ++wrong;
        for (size_t i = 0; i < n; ++i) {
          wrong += values[i] != static_cast<int64_t>(op + i) * world * (world + 1) / 2;
        }
        std::vector<uint8_t> mine(sizes() % 64, static_cast<uint8_t>(rank + op)),
            all(mine.size() * world);
        if (!c.AllGather(mine, absl::MakeSpan(all)).ok()) ++wrong;
        for (size_t i = 0; i < all.size(); ++i)
          wrong += all[i] != static_cast<uint8_t>(i / mine.size() + op);
      }
    });
    EXPECT_EQ(wrong, 0) << world << " ranks";
  }
}

// What ranks write before an operation is visible to the others after it.
TEST(ShmExchange, AnOperationOrdersMemory) {
  ThreadRanks ranks(3);
  std::vector<int> plain(3, 0);
  std::atomic<int> wrong{0};
  ranks.Run([&](int rank, Collective& c) {
    for (int round = 1; round <= 300; ++round) {
      plain[rank] = round;
      if (!c.AllReduceSum({}).ok()) ++wrong;
      for (int r = 0; r < 3; ++r) wrong += plain[r] != round;
      if (!c.AllReduceSum({}).ok()) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(ShmExchange, AbortInTheMiddleStopsAllRanksWithTheSameCause) {
  for (int round = 0; round < 20; ++round) {
    ThreadRanks ranks(3);
    std::vector<absl::Status> ends(3);
    std::atomic<int> done{0};
    std::thread killer([&] {
      AwaitTrue("30 operations", [&] { return done >= 30; });
      ranks[1].Abort();
    });
    ranks.Run([&](int rank, Collective& c) {
      std::vector<int64_t> values(5000, rank);
      while (ends[rank].ok()) {
        ends[rank] = c.AllReduceSum(absl::MakeSpan(values));
        ++done;
      }
    });
    killer.join();
    for (const absl::Status& end : ends) {
      EXPECT_EQ(end, CollectiveAbort(1));
      EXPECT_TRUE(IsCollectiveAbort(end)) << end;
    }
  }
}

}  // namespace
}  // namespace bitshard
