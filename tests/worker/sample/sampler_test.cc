// The sharded sampler against the plain one, bit for bit, over many rows, parameters and cuts.
#include "worker/sample/sampler.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "tests/support/reference_sampler.h"
#include "tests/support/thread_ranks.h"
#include "tests/worker/sample/sampler_group.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Sampler, ShardedAtAnyCutEqualsTheReference) {
  constexpr uint64_t kSeed = 7;
  constexpr int kBatch = 25, kBatches = 100;  // 2,500 rows at each of 8 cuts
  std::vector<std::unique_ptr<Group>> groups;
  for (const std::vector<Shard>& cut : Cuts())
    groups.push_back(std::make_unique<Group>(kVocab, cut, kBatch));
  std::mt19937_64 random(kSeed);
  for (int batch = 0; batch < kBatches; ++batch) {
    Rows logits;
    std::vector<SampleRow> rows;
    std::vector<SampleOutput> want;
    for (int i = 0; i < kBatch; ++i) {
      logits.push_back(RandomLogits(random, kVocab));
      rows.push_back(RandomRow(random));
      want.push_back(ReferenceSample(logits.back(), rows.back()));
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<SampleOutput> got = groups[g]->Sample(logits, rows);
      for (int i = 0; i < kBatch; ++i) {
        ASSERT_TRUE(Group::Same(got[i], want[i]))
            << "seed " << kSeed << " batch " << batch << " row " << i << " cut " << g << ": token "
            << got[i].token << " and not " << want[i].token << ", logprob " << got[i].logprob
            << " / " << want[i].logprob << "; " << Describe(rows[i]);
      }
    }
  }
}

TEST(Sampler, TargetsAreScoredAlikeAtAnyCut) {
  constexpr uint64_t kSeed = 23;
  constexpr int kBatch = 16, kBatches = 30;
  std::vector<std::unique_ptr<Group>> groups;
  for (const std::vector<Shard>& cut : Cuts())
    groups.push_back(std::make_unique<Group>(kVocab, cut, kBatch));
  std::mt19937_64 random(kSeed);
  for (int batch = 0; batch < kBatches; ++batch) {
    Rows logits;
    std::vector<SampleRow> rows;
    std::vector<SampleOutput> want;
    for (int i = 0; i < kBatch; ++i) {
      logits.push_back(RandomLogits(random, kVocab));
      SampleRow row = RandomRow(random);  // of whose parameters only top_logprobs count
      // What a greedy row with the same alternatives says, but for the token.
      SampleRow greedy;
      greedy.params.want_logprob = true;
      greedy.params.top_logprobs = row.params.top_logprobs;
      SampleOutput expected = ReferenceSample(logits.back(), greedy);
      const float max = logits.back()[expected.token];
      expected.token = static_cast<uint32_t>(random() % kVocab);
      int64_t sum = 0;
      std::vector<float> units((kVocab + kUnit - 1) / kUnit);
      SummarizeRow(logits.back().data(), 0, kVocab, units.data());
      sum =
          RawSum({.logits = logits.back().data(), .unit_max = units.data(), .count = kVocab}, max);
      expected.logprob = LogProbability(logits.back()[expected.token], max, sum);
      row.target = expected.token;
      rows.push_back(row);
      want.push_back(expected);
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<SampleOutput> got = groups[g]->Sample(logits, rows);
      for (int i = 0; i < kBatch; ++i) {
        ASSERT_TRUE(Group::Same(got[i], want[i]))
            << "seed " << kSeed << " batch " << batch << " row " << i << " cut " << g << ": token "
            << got[i].token << " and not " << want[i].token << ", logprob " << got[i].logprob
            << " / " << want[i].logprob;
      }
    }
  }
}

TEST(Sampler, BigVocabulariesNeedEverySearchAndStayExact) {
  constexpr uint32_t kBig = 49'152;
  constexpr int kRows = 20;
  std::mt19937_64 random(11);
  std::vector<std::unique_ptr<Group>> groups;
  for (const std::vector<Shard>& cut :
       std::vector<std::vector<Shard>>{{{0, kBig}},
                                       {{0, 27'648}, {27'648, 21'504}},
                                       {{0, 64}, {64, 20'032}, {20'096, 29'056}}}) {
    groups.push_back(std::make_unique<Group>(kBig, cut, kRows));
  }
  std::normal_distribution<float> normal;
  Rows logits;
  std::vector<SampleRow> rows;
  for (int i = 0; i < kRows; ++i) {
    std::vector<float> x(kBig);
    // Narrow rows keep thousands of tokens; some rows have so few values that the boundary cuts
    // through equals.
    for (float& v : x)
      v = i % 3 == 2 ? static_cast<float>(random() % 3)
                     : normal(random) * (i % 3 == 0 ? 0.3f : 2.5f);
    logits.push_back(std::move(x));
    SampleRow row = RandomRow(random);
    row.params.temperature = 1;
    row.params.top_k = i % 4 == 1 ? 0 : 20'000;
    row.params.top_p = i % 4 == 3 ? 1.0f : 0.9f;
    row.params.min_p = i % 5 == 4 ? 0.3f : 0;
    row.params.top_logprobs = 20;
    rows.push_back(row);
  }
  for (auto& group : groups) {
    const std::vector<SampleOutput> got = group->Sample(logits, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(Group::Same(got[i], ReferenceSample(logits[i], rows[i])))
          << i << " " << Describe(rows[i]);
    }
  }
}

// A row alone, and among others that need every other path.
TEST(Sampler, RowsDoNotDependOnTheirNeighbours) {
  std::mt19937_64 random(5);
  Group batch(kVocab, Cuts()[5], 32), alone(kVocab, Cuts()[2], 1);
  Rows logits;
  std::vector<SampleRow> rows;
  for (int i = 0; i < 32; ++i) {
    logits.push_back(RandomLogits(random, kVocab));
    rows.push_back(RandomRow(random));
  }
  const std::vector<SampleOutput> together = batch.Sample(logits, rows);
  for (int i = 0; i < 32; ++i) {
    EXPECT_TRUE(Group::Same(together[i], alone.Sample({logits[i]}, {rows[i]})[0]))
        << i << " " << Describe(rows[i]);
  }
}

TEST(Sampler, NonFiniteRowsAreFlaggedAloneOnAllRanks) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<Shard>& cut : Cuts()) {
    Group group(kVocab, cut, 8);
    Rows logits(8, std::vector<float>(kVocab, 1.0f));
    logits[1][0] = nan;
    logits[2][kVocab - 1] = -nan;
    logits[3][500] = kInf;
    logits[4] = std::vector<float>(kVocab, -kInf);
    logits[5] = std::vector<float>(kVocab, -3e38f);
    logits[5][777] = -1e38f;
    logits[6] = std::vector<float>(kVocab, nan);
    logits[7][3] = -kInf;
    std::vector<SampleRow> rows(8);
    for (int i = 0; i < 8; ++i) {
      rows[i].params = {.temperature = i % 2 ? 1.0f : 0.0f,
                        .top_p = 0.9f,
                        .top_logprobs = 3,
                        .want_logprob = true};
    }
    const std::vector<SampleOutput> out = group.Sample(logits, rows);
    for (int i : {1, 2, 3, 4, 6, 7}) {
      EXPECT_TRUE(out[i].non_finite) << i;
      EXPECT_EQ(out[i].token, kNoToken) << i;
      EXPECT_EQ(out[i].n_top, 0) << i;
    }
    for (int i : {0, 5}) EXPECT_FALSE(out[i].non_finite) << i;
    EXPECT_EQ(out[5].token, 777u);
    EXPECT_EQ(out[5].logprob, 0.0f);
    EXPECT_EQ(out[5].n_top, 3);
    EXPECT_EQ(out[0].token, 0u);
  }
}

TEST(Sampler, GreedyTiesGoToTheLowestId) {
  for (const std::vector<Shard>& cut : Cuts()) {
    Group group(kVocab, cut, 1);
    std::vector<float> x(kVocab, -1.0f);
    x[999] = x[700] = x[321] = 2.5f;
    EXPECT_EQ(group.Sample({x}, {SampleRow{}})[0].token, 321u);
  }
}

TEST(Sampler, LogprobsAreThoseOfTheRawSoftmax) {
  std::mt19937_64 random(3);
  Group group(kVocab, Cuts()[6], 1);
  for (int i = 0; i < 50; ++i) {
    std::vector<float> x(kVocab);
    std::normal_distribution<float> normal;
    for (float& v : x) v = 4 * normal(random);
    SampleRow row{.params = {.temperature = 0.5f,
                             .top_p = 0.8f,
                             .seed = random(),
                             .top_logprobs = 20,
                             .want_logprob = true}};
    const SampleOutput out = group.Sample({x}, {row})[0];
    double sum = 0;
    for (float v : x) sum += std::exp(static_cast<double>(v));
    EXPECT_NEAR(out.logprob, x[out.token] - std::log(sum),
                2e-6);  // f32 sums of units: 64 terms of 6e-8
    ASSERT_EQ(out.n_top, 20);
    for (int j = 0; j < 20; ++j) {
      EXPECT_NEAR(out.top[j].logprob, x[out.top[j].token] - std::log(sum), 2e-6);
      EXPECT_LE(out.top[j].logprob, out.top[std::max(0, j - 1)].logprob);
    }
  }
}

TEST(Sampler, SeedPositionAndChoiceEachChangeTheDraw) {
  Group group(kVocab, Cuts()[2], 64);
  const std::vector<float> flat(kVocab, 0.0f);
  std::vector<SampleRow> rows(64);
  for (int i = 0; i < 64; ++i) {
    rows[i] = {.params = {.temperature = 1, .seed = 1}, .position = 1};
    if (i >= 16) rows[i].position += i - 15;
    if (i >= 32) rows[i] = {.params = {.temperature = 1, .seed = uint64_t{1} << i}, .position = 1};
    if (i >= 48)
      rows[i] = {.params = {.temperature = 1, .seed = 1, .choice = static_cast<uint32_t>(i - 47)},
                 .position = 1};
  }
  const std::vector<SampleOutput> out = group.Sample(Rows(64, flat), rows);
  std::vector<uint32_t> tokens;
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(out[i % 16].token, out[0].token) << "same key, same draw";
    if (i >= 15) tokens.push_back(out[i].token);
  }
  std::sort(tokens.begin(), tokens.end());
  // 49 keys among 1000 tokens: a few chance collisions.
  EXPECT_GT(std::unique(tokens.begin(), tokens.end()) - tokens.begin(), 40);
}

TEST(Sampler, ShardsThatCutAUnitAreRefused) {
  const auto bind = [](uint32_t vocab, uint32_t begin, uint32_t count, int outputs, int world) {
    return Sampler::Bind({.vocab_size = vocab,
                          .vocab_begin = begin,
                          .local_vocab = count,
                          .max_outputs = outputs,
                          .world = world})
        .status();
  };
  EXPECT_TRUE(bind(1000, 0, 640, 1, 2).ok());
  EXPECT_TRUE(bind(1000, 640, 360, 1, 2).ok());
  EXPECT_TRUE(bind(1000, 1024, 0, 1, 2).ok());
  EXPECT_THAT(bind(1000, 0, 100, 1, 2).message(), HasSubstr("inside a unit"));
  EXPECT_THAT(bind(1000, 32, 968, 1, 2).message(), HasSubstr("multiples of 64"));
  EXPECT_EQ(bind(0, 0, 0, 1, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bind(1000, 0, 1000, 0, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bind(1000, 0, 1000, 1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bind(0xffffffff, 0, 64, 1, 1).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Sampler, SharingRowsOutOverAPoolChangesNothing) {
  std::mt19937_64 random(9);
  const auto pool = std::make_unique<ThreadPool>(3);
  const Sampler::Options options{
      .vocab_size = kVocab, .vocab_begin = 0, .local_vocab = kVocab, .max_outputs = 40, .world = 1};
  Sampler::Options pooled = options;
  pooled.pool = pool.get();
  auto alone = *Sampler::Bind(options), shared = *Sampler::Bind(pooled);
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  for (int i = 0; i < 40; ++i) {
    const std::vector<float> x = RandomLogits(random, kVocab);
    logits.insert(logits.end(), x.begin(), x.end());
    rows.push_back(RandomRow(random));
  }
  const auto solo = MakeSoloCollective();
  std::vector<SampleOutput> a(40), b(40);
  CHECK_OK(alone->Sample(logits, rows, *solo, absl::MakeSpan(a)));
  CHECK_OK(shared->Sample(logits, rows, *solo, absl::MakeSpan(b)));
  for (int i = 0; i < 40; ++i)
    EXPECT_TRUE(Group::Same(a[i], b[i])) << i << " " << Describe(rows[i]);
}

TEST(Sampler, AbortedGroupEndsTheCall) {
  ThreadRanks ranks(2);
  auto sampler = *Sampler::Bind(
      {.vocab_size = 128, .vocab_begin = 0, .local_vocab = 64, .max_outputs = 1, .world = 2});
  ranks[1].Abort();
  std::vector<float> logits(64, 0.0f);
  std::vector<SampleRow> rows(1);
  std::vector<SampleOutput> out(1);
  EXPECT_EQ(sampler->Sample(logits, rows, ranks[0], absl::MakeSpan(out)).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bitshard
