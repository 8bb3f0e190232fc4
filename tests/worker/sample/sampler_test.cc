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

namespace bitshard {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shard {
  uint32_t begin, count;
};

using Rows = std::vector<std::vector<float>>;  // [outputs][vocab_size]

// The instruction sets of this machine; ranks take turns.
const std::vector<Isa> kIsas = [] {
  std::vector<Isa> isas;
  for (Isa isa : kAllIsas) {
    if (HasIsa(isa)) isas.insert(isas.begin(), isa);
  }
  return isas;
}();

// A group of ranks that samples; padding and stride are as a rank has them.
class Group {
 public:
  Group(uint32_t vocab_size, std::vector<Shard> shards, int max_outputs)
      : vocab_size_(vocab_size),
        shards_(std::move(shards)),
        ranks_(static_cast<int>(shards_.size())) {
    for (const Shard& shard : shards_) {
      auto sampler = Sampler::Bind({.vocab_size = vocab_size,
                                    .vocab_begin = shard.begin,
                                    .local_vocab = shard.count,
                                    .max_outputs = max_outputs,
                                    .world = static_cast<int>(shards_.size()),
                                    .isa = kIsas[samplers_.size() % kIsas.size()]});
      CHECK_OK(sampler.status());
      samplers_.push_back(*std::move(sampler));
    }
  }

  // The outputs of rank 0; all ranks must agree.
  std::vector<SampleOutput> Sample(const Rows& logits, const std::vector<SampleRow>& rows) {
    std::vector<std::vector<SampleOutput>> out(shards_.size(),
                                               std::vector<SampleOutput>(rows.size()));
    ranks_.Run([&](int rank, Collective& collective) {
      const Shard& shard = shards_[rank];
      std::vector<float> local;
      for (const std::vector<float>& row : logits) {
        for (uint32_t i = shard.begin; i < shard.begin + shard.count; ++i) {
          local.push_back(i < vocab_size_ ? row[i] : kInf);  // padding counts for nothing
        }
      }
      CHECK_OK(samplers_[rank]->Sample(local, rows, collective, absl::MakeSpan(out[rank])));
    });
    for (size_t r = 1; r < out.size(); ++r) {
      for (size_t i = 0; i < rows.size(); ++i)
        CHECK(Same(out[0][i], out[r][i])) << "rank " << r << " row " << i;
    }
    return out[0];
  }

  static bool Same(const SampleOutput& a, const SampleOutput& b) {
    const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
    if (a.non_finite != b.non_finite || a.token != b.token || bits(a.logprob) != bits(b.logprob) ||
        a.n_top != b.n_top) {
      return false;
    }
    for (int i = 0; i < a.n_top; ++i) {
      if (a.top[i].token != b.top[i].token || bits(a.top[i].logprob) != bits(b.top[i].logprob))
        return false;
    }
    return true;
  }

 private:
  const uint32_t vocab_size_;
  const std::vector<Shard> shards_;
  ThreadRanks ranks_;
  std::vector<std::unique_ptr<Sampler>> samplers_;
};

// 1000 tokens: 15 whole units and one of 40; the last rank's rows are padded to 1024.
constexpr uint32_t kVocab = 1000;
std::vector<std::vector<Shard>> Cuts() {
  return {{{0, 1024}},
          {{0, 1000}},
          {{0, 640}, {640, 384}},
          {{0, 64}, {64, 960}},
          {{0, 320}, {320, 0}, {320, 704}},
          {{0, 256}, {256, 320}, {576, 448}},
          {{0, 192}, {192, 64}, {256, 704}, {960, 64}},
          {{0, 1024}, {1024, 0}, {1024, 0}, {1024, 0}}};
}

std::string Describe(const SampleRow& row) {
  const SampleParams& p = row.params;
  return absl::StrCat("temperature ", p.temperature, " top_k ", p.top_k, " top_p ", p.top_p,
                      " min_p ", p.min_p, " seed ", p.seed, " position ", row.position,
                      " top_logprobs ", p.top_logprobs);
}

template <typename T>
T Pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

std::vector<float> RandomLogits(std::mt19937_64& random, uint32_t vocab) {
  std::vector<float> x(vocab);
  std::normal_distribution<float> normal;
  const float spread = Pick(random, {0.0f, 0.01f, 1.0f, 3.0f, 12.0f, 1000.0f});
  const float shift = Pick(random, {0.0f, 0.0f, -40.0f, 1e6f});
  const int kind = random() % 6;
  for (float& v : x) {
    v = normal(random) * spread + shift;
    if (kind == 1) v = std::round(v);                   // many ties
    if (kind == 2) v = random() % 3 == 0 ? v : -3e38f;  // no probability, but finite
    if (kind == 3) v = random() % 2 == 0 ? 0.0f : -0.0f;
    if (kind == 4) v = static_cast<float>(random() % 4) * 0.25f;
  }
  if (kind == 5) x[random() % vocab] = shift + 50;  // one that dwarfs the rest
  return x;
}

SampleRow RandomRow(std::mt19937_64& random) {
  SampleRow row;
  SampleParams& p = row.params;
  p.temperature = Pick(random, {0.0f, 0.2f, 0.7f, 1.0f, 1.0f, 1.7f, 1e-30f, 100.0f});
  p.top_k = Pick(random, {0u, 0u, 0u, 1u, 2u, 40u, 128u, 129u, 200u, 500u, 999u, 1000u, 5000u});
  p.top_p = Pick(random, {1.0f, 1.0f, 0.0f, 1e-6f, 0.5f, 0.9f, 0.95f, 0.999f, 0.99999994f});
  p.min_p = Pick(random, {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-9f});
  p.seed = random();
  p.choice = random() % 4;
  p.top_logprobs = Pick(random, {0u, 0u, 1u, 5u, 20u});
  p.want_logprob = random() % 2 == 0;
  row.position = random() % 3 == 0 ? random() : random() % 10'000;
  return row;
}

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

// Pearson's statistic of `draws` draws at successive positions against the exact distribution.
void ExpectDistribution(const std::vector<float>& x, const SampleParams& params,
                        const std::string& name, int draws) {
  constexpr int kBatch = 500;
  const uint32_t vocab = static_cast<uint32_t>(x.size());
  Group group(vocab, {{0, 64}, {64, vocab - 64}}, kBatch);
  std::vector<int> seen(vocab, 0);
  for (int at = 0; at < draws; at += kBatch) {
    std::vector<SampleRow> rows(kBatch, SampleRow{params, 0});
    for (int i = 0; i < kBatch; ++i) rows[i].position = at + i;
    for (const SampleOutput& out : group.Sample(Rows(kBatch, x), rows)) ++seen[out.token];
  }
  std::vector<double> p(vocab, 0);
  double total = 0;
  for (uint32_t i : ReferenceKept(x, params))
    total += p[i] = std::exp(static_cast<double>(x[i]) / params.temperature);
  double statistic = 0, rest_seen = 0, rest_expected = 0;
  int cells = 0;
  for (uint32_t i = 0; i < vocab; ++i) {
    const double expected = draws * p[i] / total;
    if (p[i] == 0) {
      EXPECT_EQ(seen[i], 0) << name << ": token " << i << " is not among the kept";
    } else if (expected < 10) {
      rest_seen += seen[i];
      rest_expected += expected;
    } else {
      statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
      ++cells;
    }
  }
  if (rest_expected > 0) {
    statistic +=
        (rest_seen - rest_expected) * (rest_seen - rest_expected) / std::max(rest_expected, 1.0);
    ++cells;
  }
  // Mean cells - 1, variance 2 (cells - 1); fixed seed, so this either holds or not. 4 sigma.
  EXPECT_LT(statistic, cells - 1 + 4 * std::sqrt(2.0 * cells)) << name;
  EXPECT_GT(statistic, cells - 1 - 4 * std::sqrt(2.0 * cells)) << name;
}

TEST(Sampler, DrawsFollowTheExactDistribution) {
  std::mt19937_64 random(21);
  std::vector<float> x(192);
  std::normal_distribution<float> normal;
  for (float& v : x) v = 1.5f * normal(random);
  ExpectDistribution(x, {.temperature = 1, .seed = 1}, "plain", 100'000);
  ExpectDistribution(x, {.temperature = 0.7f, .top_p = 0.9f, .seed = 2}, "temperature and top_p",
                     30'000);
  ExpectDistribution(x, {.temperature = 1.5f, .top_k = 150, .seed = 3, .choice = 1},
                     "top_k beyond the candidates", 20'000);
  ExpectDistribution(x, {.temperature = 1, .min_p = 0.02f, .seed = 4}, "min_p", 30'000);
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
