// The searched boundary against sorting, with targets on and beside every edge.
#include "worker/sample/boundary_search.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/support/thread_ranks.h"
#include "worker/sample/mass.h"
#include "worker/sample/token_order.h"

namespace bitshard {
namespace {

struct Case {
  std::vector<float> logits;
  Scale scale;
  bool by_count;
  int64_t target;
};

struct Answer {
  uint32_t boundary = 0;
  int64_t ties = 0, ties_kept = 0, mass = 0;
  std::vector<int64_t> share;  // ties kept by each rank
};

// Token cuts of three ranks; the middle one may be empty.
constexpr uint32_t kCuts[2][4] = {{0, 192, 320, 700}, {0, 448, 448, 700}};

Answer Sorted(const Case& c, const uint32_t* cut) {
  std::vector<uint32_t> order;
  const auto exponent = [&](uint32_t i) {
    return Exponent(c.logits[i], c.scale.max, c.scale.temperature);
  };
  for (uint32_t i = 0; i < c.logits.size(); ++i) {
    if (exponent(i) >= c.scale.floor) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return c.logits[a] > c.logits[b]; });
  int64_t sum = 0;
  size_t n = 0;
  Answer answer{.share = std::vector<int64_t>(3, 0)};
  while (n < order.size() && sum < c.target) {
    const int64_t mass = MassOfExponent(exponent(order[n]));
    sum += c.by_count ? 1 : mass;
    answer.mass += mass;
    ++n;
  }
  if (sum < c.target) return answer;  // everything
  const float last = c.logits[order[n - 1]];
  answer.boundary = SortableLogit(last);
  for (size_t i = 0; i < order.size(); ++i) {
    if (c.logits[order[i]] != last) continue;
    ++answer.ties;
    if (i >= n) continue;
    ++answer.ties_kept;
    for (int r = 0; r < 3; ++r)
      answer.share[r] += order[i] >= cut[r] && order[i] < cut[r + 1] ? 1 : 0;
  }
  return answer;
}

TEST(BoundarySearch, FindsWhatSortingFinds) {
  constexpr uint64_t kSeed = 17;
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 60; ++round) {
    const uint32_t* cut = kCuts[round % 2];
    std::vector<Case> cases;
    for (int i = 0; i < 11; ++i) {  // two groups
      Case c;
      for (int t = 0; t < 700; ++t) {
        c.logits.push_back(i % 3 == 0 ? static_cast<float>(random() % 3)
                                      : normal(random) * (i % 3 == 1 ? 1.0f : 6.0f));
      }
      c.scale.max = *std::max_element(c.logits.begin(), c.logits.end());
      c.scale.temperature = i % 2 ? 1.0f : 0.5f;
      if (i % 4 == 3) c.scale.floor = -1.5f;
      c.by_count = i % 2 == 0;
      c.target = 1 + static_cast<int64_t>(random() % 720);
      if (!c.by_count) {
        // The mass of a prefix, one less, or one more: the edges where a token more or less is
        // kept.
        Case all = c;
        all.by_count = true;
        c.target =
            std::max<int64_t>(1, Sorted(all, cut).mass + static_cast<int64_t>(random() % 3) - 1);
      }
      cases.push_back(std::move(c));
    }
    ThreadRanks ranks(3);
    ranks.Run([&](int rank, Collective& collective) {
      const size_t count = cut[rank + 1] - cut[rank];
      BoundarySearch search(cut[rank], 3);
      std::vector<std::vector<float>> unit_max(cases.size(), std::vector<float>(count / kUnit + 1));
      std::vector<SearchTask> tasks;
      for (size_t i = 0; i < cases.size(); ++i) {
        const float* logits = cases[i].logits.data() + cut[rank];
        SummarizeRow(logits, cut[rank], count, unit_max[i].data());
        tasks.push_back({.logits = {logits, unit_max[i].data(), cut[rank], count},
                         .scale = cases[i].scale,
                         .by_count = cases[i].by_count,
                         .target = cases[i].target,
                         .want_ties = true});
      }
      CHECK_OK(search.Run(absl::MakeSpan(tasks), collective));
      for (size_t i = 0; i < cases.size(); ++i) {
        const Answer want = Sorted(cases[i], cut);
        SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " round " << round << " case " << i
                                          << " rank " << rank);
        EXPECT_EQ(tasks[i].boundary, want.boundary);
        EXPECT_EQ(tasks[i].kept_mass, want.mass);
        if (want.boundary == 0) continue;
        EXPECT_EQ(tasks[i].ties, want.ties);
        EXPECT_EQ(tasks[i].ties_kept, want.ties_kept);
        // A share may be larger than what the rank has only when all equals are kept.
        EXPECT_EQ(std::min(tasks[i].local_ties, CountEqual(tasks[i].logits, want.boundary)),
                  want.share[rank]);
      }
    });
  }
}

TEST(BoundarySearch, RanksThatDisagreeGetAnErrorAndNoToken) {
  // Rank 1 lies: its masses shrink between the rounds (here: another temperature after the first
  // group).
  std::vector<float> logits(64, 0.0f), unit_max(1);
  SummarizeRow(logits.data(), 0, 64, unit_max.data());
  ThreadRanks ranks(2);
  std::vector<absl::Status> ends(2);
  ranks.Run([&](int rank, Collective& collective) {
    BoundarySearch search(rank * 64, 2);
    // Rank 0 believes in a maximum of 0, rank 1 in one of 40, where its tokens weigh nothing.
    SearchTask task{
        .logits = {logits.data(), unit_max.data(), static_cast<uint32_t>(rank * 64), 64},
        .scale = {.max = rank == 0 ? 0.0f : 40.0f},
        .by_count = false,
        .target = int64_t{64} << 40,
        .want_ties = true};
    ends[rank] = search.Run(absl::MakeSpan(&task, 1), collective);
    if (!ends[rank].ok()) collective.Abort();  // as the sampler does: rank 0 is waiting for shares
  });
  EXPECT_EQ(ends[0].code(), absl::StatusCode::kUnavailable) << ends[0];
  EXPECT_EQ(ends[1].code(), absl::StatusCode::kInternal) << ends[1];
}

}  // namespace
}  // namespace bitshard
