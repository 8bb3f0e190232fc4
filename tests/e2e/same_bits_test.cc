// The same-bits harness (design promise 2): one set of requests through the real engine and real
// ranks in every cell of workers x batch x prefill chunk x activations x ISA mix x type of KV
// cache; tokens, text and the bits of every log-probability must equal those of the first cell. A
// planted wrong order of summation must make it fail.
//
// It grows with every feature: a new axis is one more field of Cell.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/base/cpu_features.h"
#include "proto/token_mask.h"
#include "tests/support/engine_run.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

constexpr int kRequests = 32;
constexpr int kAlone =
    6;  // of them are also run alone: every kind of sampling is among the first six

struct Cell {
  int workers = 1;
  bool batch = false;               // 32 at once, or one at a time
  uint32_t prefill_chunk = 0;       // 0 = the whole prompt in one step
  std::vector<Isa> isas = {};       // one a rank; empty: the machine's best
  std::vector<double> shares = {};  // empty: equal
  int threads_per_rank = 1;
  internal::NumericsOptions::CacheType cache = internal::NumericsOptions::CACHE_TYPE_BF16;
  bool edits = false;        // of the logits, in the requests
  uint32_t break_every = 0;  // tokens after which each stream breaks and is resumed; 0 = never

  std::string Name() const {
    std::string isa_names;
    for (Isa isa : isas) isa_names += " " + std::string(IsaName(isa));
    return absl::StrCat("workers ", workers, batch ? ", batch of 32" : ", alone",
                        ", prefill chunk ", prefill_chunk, ", threads ", threads_per_rank,
                        isa_names, shares.empty() ? "" : ", uneven shares",
                        break_every == 0 ? "" : absl::StrCat(", broken every ", break_every));
  }
};

void AddEdits(int i, uint32_t vocab, GenerateRequest& r) {
  r.repetition_penalty = i % 2 == 0 ? 1.2f : 1.0f;
  r.frequency_penalty = 0.4f;
  r.presence_penalty = 0.3f;
  for (uint32_t token = 5; token < vocab; token += 97)
    r.logit_bias.emplace_back(token, token % 2 == 0 ? 1.5f : -2.0f);
  if (i % 3 == 0) {
    r.allowed_tokens = MakeTokenMask(vocab, /*allowed=*/true);
    for (uint32_t token = static_cast<uint32_t>(i) % 2; token < vocab; token += 2)
      ForbidToken(token, &r.allowed_tokens);
  }
  if (i % 2 == 1) {
    r.ignore_eos = false;
    r.min_tokens = 6;
  }
  if (i % 2 == 0)
    r.score_from = i % 4 == 0 ? 0 : 12 % static_cast<uint32_t>(r.prompt_tokens.size());
}

// Prompts of 1 to 300 tokens (beyond 256: attention folds two chunks), sampling of every kind.
// `edits`: with penalties, biases, masks, min_tokens and log-probabilities of the prompts too.
std::vector<GenerateRequest> Requests(const TestModel& model, bool edits) {
  std::mt19937_64 random(20261129);
  const int32_t vocab = static_cast<int32_t>(model.checkpoint().config.vocab_size);
  const uint32_t lengths[] = {17, 1, 300, 64, 65, 33};
  std::vector<GenerateRequest> requests(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    GenerateRequest& r = requests[i];
    r.request_id = absl::StrCat("r", i);
    const uint32_t length = i < kAlone ? lengths[i] : 1 + static_cast<uint32_t>(random() % 48);
    for (uint32_t t = 0; t < length; ++t) {
      r.prompt_tokens.push_back(7 +
                                static_cast<int32_t>(random() % static_cast<uint64_t>(vocab - 7)));
    }
    r.max_tokens = 8;
    r.ignore_eos = true;
    r.logprobs = true;
    r.top_logprobs = 3;
    r.seed = random();
    if (i % 3 == 1) r.temperature = 0.8f;
    if (i % 3 == 2) {
      r.temperature = 1.2f;
      r.top_k = 40;
      r.top_p = 0.9f;
    }
    if (i % 6 == 4) r.min_p = 0.05f;
    if (edits) AddEdits(i, static_cast<uint32_t>(vocab), r);
  }
  return requests;
}

ThreadGroup::Options GroupOptions(const Cell& cell,
                                  internal::NumericsOptions::Activations activations) {
  ThreadGroup::Options options;
  options.world = cell.workers;
  options.shares = cell.shares;
  options.isas = cell.isas;
  options.threads_per_rank = cell.threads_per_rank;
  options.activations = activations;
  options.kv_cache_type = cell.cache;
  options.max_slots = kRequests;
  options.max_step_tokens = 256;
  return options;
}

std::vector<Transcript> RunCell(TestModel& model, ThreadGroup& group, const Cell& cell) {
  std::vector<GenerateRequest> requests = Requests(model, cell.edits);
  if (!cell.batch) requests.resize(kAlone);
  EngineRunOptions run;
  run.concurrent = cell.batch ? kRequests : 1;
  run.prefill_chunk = cell.prefill_chunk;
  run.break_every = cell.break_every;
  uint32_t breaks = 0;
  run.breaks = &breaks;
  auto transcripts = RunThroughEngine(model, group, requests, run);
  CHECK_OK(transcripts.status());
  if (cell.break_every > 0) {
    EXPECT_GT(breaks, requests.size()) << cell.Name();
  }
  return *std::move(transcripts);
}

// How many transcripts differ from the reference's; adds a failure for each with `report`.
int CountDifferences(const std::vector<Transcript>& reference, const std::vector<Transcript>& got,
                     const std::string& cell, bool report) {
  int differences = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].status.ok() && got[i].SameBits(reference[i])) continue;
    ++differences;
    if (report) {
      ADD_FAILURE() << cell << ", request " << i << "\n  got       " << got[i].DebugString()
                    << "\n  reference " << reference[i].DebugString();
    }
  }
  return differences;
}

struct Subject {
  std::string name;
  std::string path;
  internal::NumericsOptions::Activations activations;
  std::string tokenizer_of = "";
  bool edits = false;
};

class SameBits : public testing::TestWithParam<Subject> {};

TEST_P(SameBits, InEveryCellOfWorkersBatchAndPrefillChunk) {
  auto model = TestModel::Open(GetParam().path, GetParam().tokenizer_of);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<Transcript> reference;
  int cells = 0;
  for (int workers : {1, 2, 3, 4}) {
    Cell cell;
    cell.workers = workers;
    cell.edits = GetParam().edits;
    auto group = ThreadGroup::Create(**model, GroupOptions(cell, GetParam().activations));
    ASSERT_TRUE(group.ok()) << group.status();
    for (bool batch : {true, false}) {
      for (uint32_t chunk : {0u, 64u, 7u, 1u}) {
        cell.batch = batch;
        cell.prefill_chunk = chunk;
        std::vector<Transcript> got = RunCell(**model, **group, cell);
        if (reference.empty()) reference = got;
        EXPECT_EQ(CountDifferences(reference, got, cell.Name(), true), 0);
        ++cells;
      }
    }
  }
  EXPECT_EQ(cells, 32);
}

TEST_P(SameBits, OnEveryIsaMixedAcrossRanksThreadsAndUnevenSharesAndBreaks) {
  auto model = TestModel::Open(GetParam().path, GetParam().tokenizer_of);
  ASSERT_TRUE(model.ok()) << model.status();
  Cell reference_cell;
  reference_cell.batch = true;
  reference_cell.edits = GetParam().edits;
  auto reference_group =
      ThreadGroup::Create(**model, GroupOptions(reference_cell, GetParam().activations));
  ASSERT_TRUE(reference_group.ok()) << reference_group.status();
  const std::vector<Transcript> reference = RunCell(**model, **reference_group, reference_cell);

  std::vector<Cell> cells;
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    Cell one;
    one.batch = true;
    one.isas = {isa};
    cells.push_back(one);
    Cell mixed;
    mixed.workers = 2;
    mixed.batch = true;
    mixed.prefill_chunk = 7;
    mixed.isas = {isa, BestIsa()};
    cells.push_back(mixed);
  }
  Cell threads;
  threads.batch = true;
  threads.threads_per_rank = 3;
  cells.push_back(threads);
  Cell uneven;
  uneven.workers = 3;
  uneven.batch = true;
  uneven.shares = {5, 1, 3};
  cells.push_back(uneven);
  Cell spread;  // more ranks than KV heads: the Q heads of one KV head are spread, it is replicated
  spread.workers = 6;
  spread.batch = true;
  spread.prefill_chunk = 64;
  cells.push_back(spread);
  Cell broken;  // streams that break again and again
  broken.batch = true;
  broken.break_every = 2;
  cells.push_back(broken);
  broken.batch = false;
  broken.workers = 3;
  broken.prefill_chunk = 7;
  cells.push_back(broken);
  for (Cell& cell : cells) {
    cell.edits = GetParam().edits;
    auto group = ThreadGroup::Create(**model, GroupOptions(cell, GetParam().activations));
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(CountDifferences(reference, RunCell(**model, **group, cell), cell.Name(), true), 0);
  }
}

// Every type of cache, in cells that differ from the first in all that can matter to attention.
class SameBitsOfCache : public testing::TestWithParam<internal::NumericsOptions::CacheType> {};

TEST_P(SameBitsOfCache, InCellsOfAllKinds) {
  const auto activations = internal::NumericsOptions::ACTIVATIONS_A16;
  auto model = TestModel::Open(GoldenModel("gguf-Q4_1"));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto run = [&](const Cell& cell) {
    auto group = ThreadGroup::Create(**model, GroupOptions(cell, activations));
    CHECK_OK(group.status());
    return RunCell(**model, **group, cell);
  };
  const Cell first = {.batch = true, .cache = GetParam()};
  const std::vector<Transcript> reference = run(first);

  std::vector<Cell> cells = {
      {.prefill_chunk = 64, .cache = GetParam()},
      {.batch = true, .prefill_chunk = 7, .threads_per_rank = 3, .cache = GetParam()},
      {.workers = 3, .prefill_chunk = 1, .cache = GetParam()},
  };
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    cells.push_back({.workers = 2, .batch = true, .isas = {isa, BestIsa()}, .cache = GetParam()});
  }
  for (const Cell& cell : cells)
    EXPECT_EQ(CountDifferences(reference, run(cell), cell.Name(), true), 0);

  // The type is what makes the bits.
  Cell other = first;
  other.cache = GetParam() == internal::NumericsOptions::CACHE_TYPE_BF16
                    ? internal::NumericsOptions::CACHE_TYPE_F32
                    : internal::NumericsOptions::CACHE_TYPE_BF16;
  EXPECT_GT(CountDifferences(reference, run(other), other.Name(), false), kRequests / 2);
}

INSTANTIATE_TEST_SUITE_P(Types, SameBitsOfCache,
                         testing::Values(internal::NumericsOptions::CACHE_TYPE_F32,
                                         internal::NumericsOptions::CACHE_TYPE_F16,
                                         internal::NumericsOptions::CACHE_TYPE_BF16,
                                         internal::NumericsOptions::CACHE_TYPE_INT8,
                                         internal::NumericsOptions::CACHE_TYPE_FP8_E4M3),
                         [](const auto& info) {
                           return internal::NumericsOptions::CacheType_Name(info.param);
                         });

// What most systems do: the ranks' partial sums of a row-parallel matrix travel as f32 and are
// added in rank order. Only these sums: an all-reduce of [tokens, hidden] segment sums with
// [tokens] poison counts behind them. Embeddings (raw bits) have the same size, but at most one
// rank's word is not 0; the sampler's sums have another size.
class SumsRanksInF32 : public Collective {
 public:
  SumsRanksInF32(std::unique_ptr<Collective> real, size_t hidden, std::atomic<int>* touched)
      : real_(std::move(real)), hidden_(hidden), touched_(touched) {}
  int rank() const override { return real_->rank(); }
  int world() const override { return real_->world(); }
  absl::Status AllReduceSum(absl::Span<int64_t> values) override {
    if (values.empty() || values.size() % (hidden_ + 1) != 0) return real_->AllReduceSum(values);
    const size_t ranks = static_cast<size_t>(world()), bytes = values.size() * sizeof(int64_t);
    std::vector<int64_t> all(values.size() * ranks);
    absl::Status status = real_->AllGather(
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()), bytes),
        absl::MakeSpan(reinterpret_cast<uint8_t*>(all.data()), bytes * ranks));
    if (!status.ok()) return status;
    const size_t sums = values.size() / (hidden_ + 1) * hidden_;
    for (size_t i = 0; i < values.size(); ++i) {
      int64_t exact = 0;
      float rounded = 0;
      int parts = 0;
      for (size_t r = 0; r < ranks; ++r) {
        const int64_t part = all[r * values.size() + i];
        exact += part;
        rounded += static_cast<float>(static_cast<double>(part) * 0x1p-32);
        parts += part != 0;
      }
      const bool in_f32 = i < sums && parts > 1;
      if (in_f32) touched_->fetch_add(1, std::memory_order_relaxed);
      values[i] = in_f32 ? static_cast<int64_t>(static_cast<double>(rounded) * 0x1p32) : exact;
    }
    return absl::OkStatus();
  }
  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) override {
    return real_->AllGather(mine, all);
  }
  absl::Status Broadcast(absl::Span<uint8_t> data, int root) override {
    return real_->Broadcast(data, root);
  }
  void Abort() override { real_->Abort(); }

 private:
  const std::unique_ptr<Collective> real_;
  const size_t hidden_;
  std::atomic<int>* const touched_;
};

TEST_P(SameBits, HarnessFailsWhenRanksAreSummedInF32) {
  auto model = TestModel::Open(GetParam().path, GetParam().tokenizer_of);
  ASSERT_TRUE(model.ok()) << model.status();
  Cell cell;
  cell.batch = true;
  cell.edits = GetParam().edits;
  auto reference_group = ThreadGroup::Create(**model, GroupOptions(cell, GetParam().activations));
  ASSERT_TRUE(reference_group.ok()) << reference_group.status();
  const std::vector<Transcript> reference = RunCell(**model, **reference_group, cell);
  cell.workers = 3;
  ThreadGroup::Options options = GroupOptions(cell, GetParam().activations);
  std::atomic<int> touched{0};
  options.wrap_collective = [&](std::unique_ptr<Collective> real) -> std::unique_ptr<Collective> {
    return std::make_unique<SumsRanksInF32>(std::move(real),
                                            (*model)->checkpoint().config.hidden_size, &touched);
  };
  auto group = ThreadGroup::Create(**model, options);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_GT(CountDifferences(reference, RunCell(**model, **group, cell), cell.Name(), false),
            kRequests / 2);
  EXPECT_GT(touched, 0);
}

// tiny-llama is BF16: both activation modes run its matrices in f32 (no integer form). The Q4_1
// file has one.
INSTANTIATE_TEST_SUITE_P(Models, SameBits,
                         testing::Values(Subject{"TinyLlamaF32", GoldenModel("tiny-llama"),
                                                 internal::NumericsOptions::ACTIVATIONS_F32},
                                         Subject{"TinyLlamaA16", GoldenModel("tiny-llama"),
                                                 internal::NumericsOptions::ACTIVATIONS_A16},
                                         Subject{"TinyLlamaQ4F32", GoldenModel("gguf-Q4_1"),
                                                 internal::NumericsOptions::ACTIVATIONS_F32},
                                         Subject{"TinyLlamaQ4A16", GoldenModel("gguf-Q4_1"),
                                                 internal::NumericsOptions::ACTIVATIONS_A16},
                                         Subject{"TinyLlamaQ4A8", GoldenModel("gguf-Q4_1"),
                                                 internal::NumericsOptions::ACTIVATIONS_A8},
                                         Subject{"TinyLlamaQ4A16Edited", GoldenModel("gguf-Q4_1"),
                                                 internal::NumericsOptions::ACTIVATIONS_A16, "",
                                                 /*edits=*/true},
                                         Subject{"TinyLlamaQ8A16", GoldenModel("gguf-Q8_0"),
                                                 internal::NumericsOptions::ACTIVATIONS_A16},
                                         Subject{"ZeroPointsA16", GoldenModel("ct-int4-g32-asym"),
                                                 internal::NumericsOptions::ACTIVATIONS_A16,
                                                 GoldenModel("tiny-llama-q")},
                                         Subject{"ChannelScalesA16", GoldenModel("ct-int6-channel"),
                                                 internal::NumericsOptions::ACTIVATIONS_A16,
                                                 GoldenModel("tiny-llama-q")}),
                         [](const testing::TestParamInfo<Subject>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace bitshard
