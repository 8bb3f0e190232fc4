// What StepRunner::Bind refuses: graphs that contradict themselves, settings that this worker does
// not have, buffers beyond the budget.
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/tiny_model.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"

namespace bitshard {
namespace {

using internal::NumericsOptions;

NumericsOptions Numerics() {
  NumericsOptions numerics;
  numerics.set_activations(NumericsOptions::ACTIVATIONS_F32);
  numerics.set_kv_cache_type(NumericsOptions::CACHE_TYPE_F32);
  numerics.set_block_tokens(16);
  numerics.set_max_step_tokens(64);
  numerics.set_max_slots(8);
  return numerics;
}

TEST(StepRunnerBind, TakesNoMoreThanItsBudgetAndSaysWhatItNeeds) {
  const TinyModel model = MakeTinyModel();
  const internal::RankPlan plan = CutTinyModel(model, 1)[0];
  ThreadPool pool(1);
  const auto weights = LoadWeights(plan, pool, nullptr);
  ASSERT_TRUE(weights.ok());
  StepRunner::Options options;
  options.numerics = Numerics();
  options.pool = &pool;
  const auto free = StepRunner::Bind(plan, *weights, options);
  ASSERT_TRUE(free.ok()) << free.status();
  options.max_workspace_bytes = (*free)->WorkspaceBytes();
  EXPECT_TRUE(StepRunner::Bind(plan, *weights, options).ok());
  // Of slots, the arena of values, what is prepared, scratch: whichever comes last does not fit.
  for (const uint64_t budget :
       {uint64_t{0}, options.max_workspace_bytes / 2, options.max_workspace_bytes - 1}) {
    options.max_workspace_bytes = budget;
    const absl::Status status = StepRunner::Bind(plan, *weights, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << budget << ": " << status;
    EXPECT_NE(status.message().find("--memory"), std::string::npos) << status;
  }
  // More than any machine has: refused, not tried.
  internal::RankPlan wide = plan;
  wide.mutable_graph()->mutable_values(2)->set_width(uint64_t{1} << 30);
  options.max_workspace_bytes = uint64_t{1} << 30;
  EXPECT_EQ(StepRunner::Bind(wide, *weights, options).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(StepRunnerBind, RefusesGraphsThatContradictThemselves) {
  const TinyModel model = MakeTinyModel();
  const internal::RankPlan good = CutTinyModel(model, 1)[0];
  ThreadPool pool(1);
  const auto weights = LoadWeights(good, pool, nullptr);
  ASSERT_TRUE(weights.ok());
  const auto bind = [&](const internal::RankPlan& plan, const NumericsOptions& numerics) {
    StepRunner::Options options;
    options.numerics = numerics;
    options.pool = &pool;
    return StepRunner::Bind(plan, *weights, options).status();
  };
  ASSERT_TRUE(bind(good, Numerics()).ok());
  const std::map<std::string, std::function<void(internal::ModelGraph&)>> breaks = {
      {"no nodes", [](internal::ModelGraph& g) { g.clear_nodes(); }},
      {"no sample", [](internal::ModelGraph& g) { g.mutable_nodes()->RemoveLast(); }},
      {"value out of range",
       [](internal::ModelGraph& g) { g.mutable_nodes(2)->set_inputs(0, 9999); }},
      {"value read too early",
       [](internal::ModelGraph& g) { g.mutable_nodes(2)->set_inputs(0, 9); }},
      {"value written twice",
       [](internal::ModelGraph& g) { g.mutable_nodes(3)->set_outputs(0, 0); }},
      {"wrong type",
       [](internal::ModelGraph& g) { g.mutable_values(1)->set_type(internal::Value::RAW_BITS); }},
      {"wrong width", [](internal::ModelGraph& g) { g.mutable_values(2)->set_width(63); }},
      {"huge width",
       [](internal::ModelGraph& g) { g.mutable_values(2)->set_width(uint64_t{1} << 62); }},
      {"empty vocabulary", [](internal::ModelGraph& g) { g.set_vocab_size(0); }},
      {"too few cache layers", [](internal::ModelGraph& g) { g.set_kv_layers(1); }},
      {"missing weight", [](internal::ModelGraph& g) { g.mutable_weights()->RemoveLast(); }},
  };
  for (const auto& [name, break_it] : breaks) {
    internal::RankPlan plan = good;
    break_it(*plan.mutable_graph());
    const absl::Status status = bind(plan, Numerics());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << ": " << status;
  }
  internal::RankPlan unknown = good;
  unknown.mutable_graph()->mutable_nodes(1)->clear_op();
  EXPECT_EQ(bind(unknown, Numerics()).code(), absl::StatusCode::kUnimplemented);
  NumericsOptions numerics = Numerics();
  numerics.set_block_tokens(32);
  EXPECT_EQ(bind(good, numerics).code(), absl::StatusCode::kUnimplemented);
  numerics = Numerics();
  for (const uint32_t tokens : {0u, 65536u}) {
    numerics.set_max_step_tokens(tokens);
    EXPECT_THAT(bind(good, numerics).message(), testing::HasSubstr("tokens a step (1 to 65535)"));
  }
}

}  // namespace
}  // namespace bitshard
