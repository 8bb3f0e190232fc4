// Ranks as threads of a test, each with a StepRunner over its part of a tiny model, and plans for
// them.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/support/unique_id.h"
#include "tests/worker/tiny_model.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"

namespace bitshard {

using internal::NumericsOptions;
using internal::StepPlan;
using internal::StepResult;

inline constexpr uint32_t kBlocks = 64;

inline NumericsOptions Numerics(
    NumericsOptions::Activations activations = NumericsOptions::ACTIVATIONS_F32) {
  NumericsOptions numerics;
  numerics.set_activations(activations);
  numerics.set_kv_cache_type(NumericsOptions::CACHE_TYPE_F32);
  numerics.set_block_tokens(16);
  numerics.set_max_step_tokens(64);
  numerics.set_max_slots(8);
  return numerics;
}

// One row of a plan that gives the slot all the blocks it needs: block i of slot s is 8 s + i.
inline void AddRow(StepPlan& plan, uint32_t slot, uint32_t gen, uint32_t start, uint32_t n_tokens,
                   uint32_t flags, uint32_t output_index = 0) {
  plan.add_slot(slot);
  plan.add_slot_gen(gen);
  plan.add_start(start);
  plan.add_n_tokens(n_tokens);
  plan.add_output_index(output_index);
  plan.add_flags(flags);
  const uint32_t held = (start + 15) / 16, needed = (start + n_tokens + 15) / 16;
  plan.add_n_new_blocks(needed - held);
  for (uint32_t i = held; i < needed; ++i) plan.add_new_blocks(8 * slot + i);
}

inline void AddSequence(StepPlan& plan, uint32_t slot, uint32_t gen,
                        const std::vector<uint32_t>& tokens) {
  internal::NewSequence& sequence = *plan.add_new_sequences();
  sequence.set_slot(slot);
  sequence.set_slot_gen(gen);
  for (const uint32_t token : tokens) sequence.add_tokens(token);
  sequence.set_n_prompt(static_cast<uint32_t>(tokens.size()));
  internal::SamplingParams& sampling = *sequence.mutable_sampling();
  sampling.set_top_p(1);
  sampling.set_logprobs(true);
  sampling.set_top_logprobs(3);
  if (slot % 2 == 1) {
    sampling.set_temperature(0.8f);
    sampling.set_seed(17 + slot);
  }
}

inline std::vector<uint32_t> Prompt(uint32_t length, uint32_t seed) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < length; ++i) tokens.push_back((i * 37 + seed * 11) % 200);
  return tokens;
}

// How a rank comes by its weights and what computes, and how ranks meet.
struct RankMaker {
  std::function<std::unique_ptr<StepRunner>(int rank, const internal::RankPlan& plan,
                                            const StepRunner::Options& options)>
      bind;
  std::function<std::unique_ptr<Collective>(int rank, int world, const std::string& id)> join;
};

inline RankMaker CpuRanks() {
  RankMaker maker;
  maker.bind = [](int, const internal::RankPlan& plan, const StepRunner::Options& options) {
    auto weights = LoadWeights(plan, *options.pool, nullptr);
    CHECK_OK(weights.status());
    auto runner = StepRunner::Bind(plan, *weights, options);
    CHECK_OK(runner.status());
    return *std::move(runner);
  };
  maker.join = [](int rank, int world, const std::string& id) {
    if (world == 1) return MakeSoloCollective();
    auto joined = JoinShmCollective(id, rank, world, absl::Seconds(20));
    CHECK_OK(joined.status());
    return *std::move(joined);
  };
  return maker;
}

// The ranks of a group as threads of the test.
class Group {
 public:
  // logits[rank][(slot, position)].
  using Logits = std::vector<std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>>;

  Group(const TinyModel& model, int world, const NumericsOptions& numerics, bool tap = false,
        bool fuse = true, RankMaker maker = CpuRanks())
      : maker_(std::move(maker)),
        plans_(CutTinyModel(model, world)),
        logits_(static_cast<size_t>(world)) {
    for (int rank = 0; rank < world; ++rank) {
      pools_.push_back(std::make_unique<ThreadPool>(1 + rank % 2));
      StepRunner::Options options;
      options.numerics = numerics;
      options.pool = pools_.back().get();
      options.fuse = fuse;
      if (tap) {
        options.logits_tap = [this, rank](uint32_t slot, uint32_t position,
                                          absl::Span<const float> logits) {
          logits_[static_cast<size_t>(rank)][{slot, position}].assign(logits.begin(), logits.end());
        };
      }
      runners_.push_back(maker_.bind(rank, plans_[static_cast<size_t>(rank)], options));
    }
    StartEpoch(1);
  }

  void StartEpoch(uint64_t epoch) {
    const std::string id = UniqueId("bitshard-step");
    epoch_ = epoch;
    step_ = 0;
    OnAllRanks([&](int rank) {
      CHECK_OK(runners_[static_cast<size_t>(rank)]->StartEpoch(
          1, epoch, maker_.join(rank, world(), id), kBlocks));
    });
  }

  StepPlan NextPlan() {
    StepPlan plan;
    plan.set_term(1);
    plan.set_epoch(epoch_);
    plan.set_step(++step_);
    return plan;
  }

  // Runs it on all ranks; every rank must give the same outputs, rank 0's is returned.
  absl::StatusOr<StepResult> Run(const StepPlan& plan) {
    std::vector<absl::StatusOr<std::unique_ptr<StepResult>>> results(runners_.size());
    OnAllRanks([&](int rank) {
      results[static_cast<size_t>(rank)] = runners_[static_cast<size_t>(rank)]->Run(plan);
    });
    for (const auto& result : results) {
      if (!result.ok()) return result.status();
    }
    if (*results[0] == nullptr) return absl::AlreadyExistsError("a duplicate");
    for (size_t rank = 0; rank < results.size(); ++rank) {
      StepResult& result = **results[rank];
      EXPECT_EQ(result.rank(), rank);
      result.clear_exec_us();
      result.clear_rank();
      EXPECT_EQ(result.SerializeAsString(), (*results[0])->SerializeAsString()) << "rank " << rank;
    }
    return **results[0];
  }

  void OnAllRanks(const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int rank = 1; rank < world(); ++rank) threads.emplace_back([&, rank] { work(rank); });
    work(0);
    for (std::thread& thread : threads) thread.join();
  }

  // The whole vocabulary's logits of an output position, ranks put together.
  std::vector<float> LogitsAt(uint32_t slot, uint32_t position) const {
    std::vector<float> all;
    for (const auto& of_rank : logits_) {
      const auto it = of_rank.find({slot, position});
      if (it != of_rank.end()) all.insert(all.end(), it->second.begin(), it->second.end());
    }
    return all;
  }

  int world() const { return static_cast<int>(plans_.size()); }
  StepRunner& runner(int rank) { return *runners_[static_cast<size_t>(rank)]; }
  void RewindStep() { --step_; }

 private:
  const RankMaker maker_;
  std::vector<internal::RankPlan> plans_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  Logits logits_;
  uint64_t epoch_ = 0, step_ = 0;
};

// Two sequences, prefilled in chunks and decoded together; returns every result as bytes and every
// logits row.
inline std::string RunTwoSequences(Group& group, uint32_t chunk) {
  std::string bytes;
  const std::vector<std::vector<uint32_t>> prompts = {Prompt(23, 1), Prompt(9, 2)};
  std::vector<uint32_t> known = {23, 9}, done = {0, 0}, outputs = {0, 0};
  std::vector<bool> entered = {false, false};
  while (outputs[0] < 6 || outputs[1] < 6) {
    StepPlan plan = group.NextPlan();
    for (uint32_t slot = 0; slot < 2; ++slot) {
      if (outputs[slot] == 6) continue;
      if (!entered[slot]) AddSequence(plan, slot, 1, prompts[slot]);
      entered[slot] = true;
      const uint32_t n = std::min(chunk, known[slot] - done[slot]);
      const bool sample = done[slot] + n == known[slot];
      AddRow(plan, slot, 1, done[slot], n, sample ? internal::ROW_SAMPLE : 0, outputs[slot]);
      done[slot] += n;
      if (sample) {
        ++known[slot];
        ++outputs[slot];
      }
    }
    const auto result = group.Run(plan);
    CHECK_OK(result.status());
    for (const internal::StepOutput& output : result->outputs()) {
      EXPECT_EQ(output.flags(), 0u);
      EXPECT_LT(output.token(), 200u);
      EXPECT_EQ(output.top_size(), 3);
      absl::StrAppend(&bytes, output.slot(), ":", output.output_index(), ":",
                      output.ShortDebugString(), "\n");
    }
  }
  std::vector<std::string> lines;  // the order of the steps depends on the chunk
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = bytes.find('\n', begin);
    lines.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  std::sort(lines.begin(), lines.end());
  std::string sorted;
  for (const std::string& line : lines) absl::StrAppend(&sorted, line, "\n");
  return sorted;
}

}  // namespace bitshard
