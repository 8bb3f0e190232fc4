// Sharding is text: the plans of all ranks at 1 to 4 workers, as golden files that a reviewer can
// read and diff.
//
// To remake them after an intended change:
//   BITSHARD_UPDATE_GOLDEN=1 bazel run //tests/coordinator/shard:golden_plans_test
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/coordinator/models/made_llama.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

constexpr char kUpdate[] =
    "BITSHARD_UPDATE_GOLDEN=1 bazel run //tests/coordinator/shard:golden_plans_test";

// One message a line.
template <typename Messages>
std::string Lines(const std::string& field, const Messages& messages) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  for (const auto& message : messages) {
    std::string line;
    printer.PrintToString(message, &line);
    absl::StrAppend(&text, "  ", field, " { ", line, "}\n");
  }
  return text;
}

// The plan as text that parses back to it, but for the folder of the files.
std::string PlanText(internal::RankPlan plan) {
  for (internal::SourceFile& file : *plan.mutable_load()->mutable_files()) {
    file.set_path(file.path().substr(file.path().rfind('/') + 1));
  }
  const internal::ModelGraph& graph = plan.graph();
  return absl::StrCat(
      "rank: ", plan.rank(), "\nworld: ", plan.world(), "\ngraph {\n  family: \"", graph.family(),
      "\"\n  hidden_size: ", graph.hidden_size(), "\n  vocab_size: ", graph.vocab_size(),
      "\n  context_length: ", graph.context_length(), "\n  kv_layers: ", graph.kv_layers(), "\n",
      Lines("weights", graph.weights()), Lines("values", graph.values()),
      Lines("nodes", graph.nodes()), "}\nload {\n", Lines("files", plan.load().files()),
      Lines("tensors", plan.load().tensors()), "  read_bytes: ", plan.load().read_bytes(),
      "\n}\ndigest: \"", plan.digest(), "\"\nmodel_digest: \"", plan.model_digest(), "\"\n");
}

void Compare(const std::string& name, const ModelConfig& config, const TensorIndex& index) {
  const auto graph = BuildModelGraph(config, index);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (size_t world = 1; world <= 4; ++world) {
    const auto plans = ShardModel(*graph, index, std::vector<double>(world, 1.0));
    ASSERT_TRUE(plans.ok()) << plans.status();
    for (size_t rank = 0; rank < world; ++rank) {
      const std::string text = PlanText((*plans)[rank]);
      internal::RankPlan parsed;
      ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &parsed));
      const std::string file = absl::StrCat("plans/", name, ".rank", rank, "of", world, ".txtpb");
      if (std::getenv("BITSHARD_UPDATE_GOLDEN") != nullptr) {
        const char* const root = std::getenv("BUILD_WORKSPACE_DIRECTORY");
        ASSERT_NE(root, nullptr) << "run it as: " << kUpdate;
        WriteFile(absl::StrCat(root, "/tests/golden/", file), text);
        continue;
      }
      EXPECT_EQ(ReadFile(GoldenFile(file)), text)
          << file << " differs; if that is intended: " << kUpdate;
    }
  }
}

TEST(GoldenPlans, TinyLlamaIsCutAsItWas) {
  const auto checkpoint = OpenCheckpoint(GoldenModel("tiny-llama"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  Compare("tiny-llama", checkpoint->config, checkpoint->index);
}

TEST(GoldenPlans, TinyQwen2IsCutAsItWas) {
  const auto checkpoint = OpenCheckpoint(GoldenModel("tiny-qwen2"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  Compare("tiny-qwen2", checkpoint->config, checkpoint->index);
}

// Weights of three parts: codes, scales, zero points.
TEST(GoldenPlans, CompressedTensorsAreCutAsTheyWere) {
  const auto checkpoint = OpenCheckpoint(GoldenModel("ct-int4-g32-asym"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  Compare("ct-int4-g32-asym", checkpoint->config, checkpoint->index);
}

TEST(GoldenPlans, SmolLm2ShapedLayersAreCutAsTheyWere) {
  const ModelConfig config = SmolLm2Config(/*layers=*/2);
  Compare("smollm2-2-layers", config, MadeLlamaIndex(config, "q4_1"));
}

}  // namespace
}  // namespace bitshard
