// Rows with penalties, biases and masks: sharded equals unsharded, bit for bit.
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "tests/worker/sample/sampler_group.h"

namespace bitshard {
namespace {

// Every kind of row and of parameters; about two of three rows have edits, so that a batch of 25
// often takes two turns.
TEST(SamplerEdits, TenThousandRowsAtAnyCutEqualTheReference) {
  constexpr uint64_t kSeed = 20261129;
  constexpr int kBatch = 25, kBatches = 400;
  std::vector<std::unique_ptr<Group>> groups;
  for (const std::vector<Shard>& cut : Cuts())
    groups.push_back(std::make_unique<Group>(kVocab, cut, kBatch));
  std::mt19937_64 random(kSeed);
  int edited = 0, none_allowed = 0, changed = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    Rows logits;
    std::vector<SampleRow> rows;
    std::vector<std::unique_ptr<EditedRow>> edits;
    std::vector<SampleOutput> want;
    for (int i = 0; i < kBatch; ++i) {
      logits.push_back(RandomLogits(random, kVocab));
      rows.push_back(RandomRow(random));
      edits.push_back(RandomEdits(random, kVocab));
      const SampleOutput raw = ReferenceSample(logits.back(), rows.back());
      if (random() % 3 != 0) rows.back().edits = &edits.back()->edits;
      want.push_back(ReferenceSample(logits.back(), rows.back()));
      edited += rows.back().edits != nullptr ? 1 : 0;
      none_allowed += want.back().none_allowed ? 1 : 0;
      changed += want.back().token != raw.token ? 1 : 0;
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<SampleOutput> got = groups[g]->Sample(logits, rows);
      for (int i = 0; i < kBatch; ++i) {
        ASSERT_TRUE(Group::Same(got[i], want[i]))
            << "seed " << kSeed << " batch " << batch << " row " << i << " cut " << g << ": token "
            << got[i].token << " and not " << want[i].token << ", logprob " << got[i].logprob
            << " / " << want[i].logprob << "; " << Describe(rows[i])
            << (rows[i].edits == nullptr ? "" : edits[i]->Describe());
      }
    }
  }
  EXPECT_GT(edited, 6'000);
  EXPECT_GT(changed, 3'000) << "the edits decide nothing";
  EXPECT_GT(none_allowed, 20);
}

TEST(SamplerEdits, BigVocabulariesNeedEverySearchAndStayExact) {
  constexpr uint32_t kBig = 49'152;
  constexpr int kRows = 20;
  std::mt19937_64 random(12);
  Group group(kBig, {{0, 64}, {64, 20'032}, {20'096, 29'056}}, kRows);
  std::normal_distribution<float> normal;
  Rows logits;
  std::vector<SampleRow> rows;
  std::vector<std::unique_ptr<EditedRow>> edits;
  for (int i = 0; i < kRows; ++i) {
    std::vector<float> x(kBig);
    for (float& v : x) v = i % 3 == 2 ? static_cast<float>(random() % 3) : normal(random) * 0.5f;
    logits.push_back(std::move(x));
    edits.push_back(RandomEdits(random, kBig));
    // Half of the vocabulary is masked, so that top-k reaches the end of what is left.
    edits.back()->allowed = MakeTokenMask(kBig, /*allowed=*/false);
    for (uint32_t t = 0; t < kBig; ++t) {
      if (random() % 2 == 0) AllowToken(t, &edits.back()->allowed);
    }
    edits.back()->mask.clear();
    edits.back()->View();
    SampleRow row = RandomRow(random);
    row.params.temperature = 1;
    row.params.top_k = i % 4 == 1 ? 0 : i % 4 == 2 ? 40'000 : 10'000;
    row.params.top_p = i % 4 == 3 ? 1.0f : 0.9f;
    row.params.min_p = i % 5 == 4 ? 0.3f : 0;
    row.params.top_logprobs = 20;
    row.edits = &edits.back()->edits;
    rows.push_back(row);
  }
  const std::vector<SampleOutput> got = group.Sample(logits, rows);
  for (int i = 0; i < kRows; ++i) {
    EXPECT_TRUE(Group::Same(got[i], ReferenceSample(logits[i], rows[i])))
        << i << " " << Describe(rows[i]) << edits[i]->Describe();
  }
}

TEST(SamplerEdits, WhereOneTokenIsAllowedItIsDrawnWhateverTheRest) {
  for (const std::vector<Shard>& cut : Cuts()) {
    Group group(kVocab, cut, 8);
    for (const uint32_t only : {0u, 63u, 64u, 500u, 999u}) {
      std::vector<float> x(kVocab, 5.0f);
      x[only] = -3e38f;
      EditedRow edits;
      edits.mask = MakeTokenMask(kVocab, /*allowed=*/false);
      AllowToken(only, &edits.mask);
      edits.View();
      std::vector<SampleRow> rows(8);
      for (int i = 0; i < 8; ++i) {
        rows[i].params = {.temperature = i % 2 ? 1.0f : 0.0f,
                          .top_k = i & 2 ? 300u : 0u,
                          .top_p = i & 4 ? 0.5f : 1.0f,
                          .seed = 3,
                          .top_logprobs = 1,
                          .want_logprob = true};
        rows[i].edits = &edits.edits;
      }
      for (const SampleOutput& out : group.Sample(Rows(8, x), rows)) {
        EXPECT_EQ(out.token, only);
        EXPECT_LT(out.logprob, -2.9e38f) << "of the raw logits, where it has no chance";
        EXPECT_EQ(out.top[0].token, only == 0 ? 1u : 0u);
        EXPECT_NEAR(out.top[0].logprob, -std::log(999.0), 1e-5);
      }
    }
  }
}

TEST(SamplerEdits, WhereNothingIsAllowedThatRowAloneHasNoToken) {
  const std::string none = MakeTokenMask(kVocab, /*allowed=*/false);
  for (const std::vector<Shard>& cut : Cuts()) {
    Group group(kVocab, cut, 6);
    EditedRow blocked, open;
    blocked.allowed = none;
    blocked.View();
    open.View();
    std::vector<SampleRow> rows(6);
    for (int i = 0; i < 6; ++i) {
      rows[i].params = {.temperature = i < 3 ? 0.0f : 1.0f,
                        .top_p = i == 4 ? 0.9f : 1.0f,
                        .top_logprobs = 2,
                        .want_logprob = true};
      if (i % 3 != 2) rows[i].edits = i % 3 == 0 ? &blocked.edits : &open.edits;
    }
    Rows logits(6, std::vector<float>(kVocab, 1.0f));
    logits[1][3] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<SampleOutput> out = group.Sample(logits, rows);
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(out[i].none_allowed, i % 3 == 0) << i;
      EXPECT_EQ(out[i].non_finite, i == 1) << i;
      EXPECT_EQ(out[i].token == kNoToken, i % 3 == 0 || i == 1) << i;
      EXPECT_EQ(out[i].n_top, i % 3 == 0 || i == 1 ? 0 : 2) << i;
    }
  }
}

TEST(SamplerEdits, GreedyTiesAmongAllowedTokensGoToTheLowestId) {
  for (const std::vector<Shard>& cut : Cuts()) {
    Group group(kVocab, cut, 1);
    std::vector<float> x(kVocab, 2.5f);
    EditedRow edits;
    edits.forbidden = {0, 1};
    edits.biases = {{2, -1.0f}, {700, 0.5f}, {321, 0.5f}};
    std::swap(edits.biases[1], edits.biases[2]);  // by token
    edits.View();
    SampleRow row;
    row.edits = &edits.edits;
    EXPECT_EQ(group.Sample({x}, {row})[0].token, 321u);
  }
}

TEST(SamplerEdits, SharingRowsOutOverAPoolChangesNothing) {
  constexpr int kRows = 40;
  std::mt19937_64 random(19);
  const auto pool = std::make_unique<ThreadPool>(3);
  const Sampler::Options options{.vocab_size = kVocab,
                                 .vocab_begin = 0,
                                 .local_vocab = kVocab,
                                 .max_outputs = kRows,
                                 .world = 1};
  Sampler::Options pooled = options;
  pooled.pool = pool.get();
  auto alone = *Sampler::Bind(options), shared = *Sampler::Bind(pooled);
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  std::vector<std::unique_ptr<EditedRow>> edits;
  for (int i = 0; i < kRows; ++i) {
    const std::vector<float> x = RandomLogits(random, kVocab);
    logits.insert(logits.end(), x.begin(), x.end());
    rows.push_back(RandomRow(random));
    edits.push_back(RandomEdits(random, kVocab));
    rows.back().edits = &edits.back()->edits;
  }
  const auto solo = MakeSoloCollective();
  std::vector<SampleOutput> a(kRows), b(kRows);
  CHECK_OK(alone->Sample(logits, rows, *solo, absl::MakeSpan(a)));
  CHECK_OK(shared->Sample(logits, rows, *solo, absl::MakeSpan(b)));
  for (int i = 0; i < kRows; ++i)
    EXPECT_TRUE(Group::Same(a[i], b[i])) << i << " " << Describe(rows[i]);
}

}  // namespace
}  // namespace bitshard
