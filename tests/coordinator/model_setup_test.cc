// What the service knows of a model before workers come.
#include "coordinator/model_setup.h"

#include "gtest/gtest.h"

#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

TEST(ModelSetup, ALowerContextReachesWorkersAndLeavesRopeAlone) {
  CoordinatorOptions options;
  options.model = GoldenModel("tiny-llama");
  options.workers = 2;
  const auto whole = SetUpModel(options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole)->served.context_tokens, 2048u);
  options.max_context = 300;
  const auto cut = SetUpModel(options);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ((*cut)->served.context_tokens, 300u);
  const auto plans = (*cut)->Plans({}, 2);
  ASSERT_TRUE(plans.ok()) << plans.status();
  int ropes = 0;
  for (const internal::RankPlan& plan : *plans) {
    EXPECT_EQ(plan.graph().context_length(), 300u);
    for (const internal::Node& node : plan.graph().nodes()) {
      if (!node.has_rope()) continue;
      EXPECT_EQ(node.rope().llama3().original_context(), 512u);
      ++ropes;
    }
  }
  EXPECT_GT(ropes, 0);
  options.max_context = 1 << 20;  // more than the model has
  const auto most = SetUpModel(options);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ((*most)->served.context_tokens, 2048u);
  EXPECT_EQ((*most)->graph.context_length(), 2048u);
}

}  // namespace
}  // namespace bitshard
