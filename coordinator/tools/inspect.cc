// bitshard inspect: what a checkpoint holds and how it would be sharded; reads headers only.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "coordinator/tools/progress.h"
#include "coordinator/tools/verb.h"
#include "kernels/base/status_macros.h"

ABSL_FLAG(int32_t, ranks, 2, "show the plan for so many workers");
ABSL_FLAG(bool, tensors, false, "list every tensor");

namespace bitshard {
namespace {

void PrintCheckpoint(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config;
  std::printf(
      "%s\n  %s, %s\n", checkpoint.name.c_str(), checkpoint.path.c_str(),
      checkpoint.container == Checkpoint::Container::kGguf ? "GGUF" : "Hugging Face folder");
  std::printf(
      "  architecture %s: %u layers, hidden %lu, %u heads (%u KV) of %u, MLP %lu, vocabulary %lu, "
      "context %lu%s\n",
      c.architecture.c_str(), c.layers, static_cast<unsigned long>(c.hidden_size), c.heads,
      c.kv_heads, c.head_dim, static_cast<unsigned long>(c.intermediate_size),
      static_cast<unsigned long>(c.vocab_size), static_cast<unsigned long>(c.context_length),
      c.tied_embeddings ? ", tied embeddings" : "");
  std::printf("  end tokens %s; chat template: %s\n",
              absl::StrJoin(checkpoint.eos_ids, ", ").c_str(),
              checkpoint.chat_template.empty()
                  ? "none"
                  : absl::StrCat(checkpoint.chat_template.size(), " bytes").c_str());
  std::printf("  digest %s\n\n", checkpoint.model_digest().c_str());
}

void PrintFormats(const TensorIndex& index) {
  struct Sum {
    uint64_t tensors = 0, values = 0, bytes = 0;
  };
  std::map<std::string, Sum> by_format;
  Sum all;
  for (const TensorInfo& tensor : index.tensors()) {
    for (Sum* sum : {&by_format[tensor.format], &all}) {
      ++sum->tensors;
      sum->values += tensor.rows * tensor.cols;
      sum->bytes += tensor.bytes;
    }
    if (absl::GetFlag(FLAGS_tensors)) {
      std::printf("  %-56s %-5s [%s] %s\n", tensor.name.c_str(), tensor.format.c_str(),
                  absl::StrJoin(tensor.shape, ", ").c_str(), HumanBytes(tensor.bytes).c_str());
    }
  }
  std::printf("  %-8s %8s %16s %12s %14s\n", "format", "tensors", "values", "bytes",
              "bits a value");
  by_format["all"] = all;
  for (const auto& [format, sum] : by_format) {
    const double bits =
        sum.values == 0 ? 0
                        : 8.0 * static_cast<double>(sum.bytes) / static_cast<double>(sum.values);
    std::printf("  %-8s %8lu %16lu %12s %14.2f\n", format.c_str(),
                static_cast<unsigned long>(sum.tensors), static_cast<unsigned long>(sum.values),
                HumanBytes(sum.bytes).c_str(), bits);
  }
}

absl::Status PrintPlan(const Checkpoint& checkpoint, int ranks) {
  ASSIGN_OR_RETURN(const internal::ModelGraph graph,
                   BuildModelGraph(checkpoint.config, checkpoint.index));
  ASSIGN_OR_RETURN(
      const std::vector<internal::RankPlan> plans,
      ShardModel(graph, checkpoint.index, std::vector<double>(static_cast<size_t>(ranks), 1.0)));
  std::printf("\n  %d workers, equal shares:\n  %-6s %12s %10s %10s %14s %16s\n", ranks, "rank",
              "reads", "Q heads", "KV heads", "MLP columns", "vocabulary rows");
  for (const internal::RankPlan& plan : plans) {
    // Of the first layer; all layers are cut alike.
    uint32_t q_heads = 0, kv_heads = 0;
    uint64_t columns = 0, vocabulary = 0;
    for (const internal::Node& node : plan.graph().nodes()) {
      if (node.has_attention() && q_heads + kv_heads == 0) {
        q_heads = node.attention().q_heads();
        kv_heads = node.attention().kv_heads();
      }
      if (node.has_gated_act())
        columns = plan.graph().values(static_cast<int>(node.outputs(0))).width();
      if (node.has_lm_head())
        vocabulary = plan.graph().weights(static_cast<int>(node.lm_head().weight())).rows();
    }
    std::printf("  %-6u %12s %10u %10u %14lu %16lu\n", plan.rank(),
                HumanBytes(plan.load().read_bytes()).c_str(), q_heads, kv_heads,
                static_cast<unsigned long>(columns), static_cast<unsigned long>(vocabulary));
  }
  return absl::OkStatus();
}

int Run(const std::vector<std::string>& args) {
  if (args.size() != 1)
    return UsageError("inspect", "needs exactly one model: a GGUF file or a Hugging Face folder");
  const int ranks = absl::GetFlag(FLAGS_ranks);
  if (ranks < 1 || ranks > 64) return UsageError("inspect", "--ranks must be 1 to 64");
  const auto checkpoint = OpenCheckpoint(args[0]);
  if (!checkpoint.ok()) {
    std::fprintf(stderr, "bitshard inspect: %s\n",
                 std::string(checkpoint.status().message()).c_str());
    return 1;
  }
  PrintCheckpoint(*checkpoint);
  PrintFormats(checkpoint->index);
  if (const absl::Status status = PrintPlan(*checkpoint, ranks); !status.ok()) {
    std::fprintf(stderr, "\nbitshard inspect: this model cannot be served: %s\n",
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

const RegisterVerb kRegistered({
    .name = "inspect",
    .summary = "what a checkpoint holds, and how it would be sharded",
    .help = "bitshard inspect MODEL [--flags]      MODEL: a GGUF file or a Hugging Face folder\n\n"
            "Reads headers only, no weights: architecture, formats and bytes, and what each of "
            "--ranks workers would own and\n"
            "read. The loader uses the same plan.\n\n"
            "  --ranks=N             plan for N workers (2)\n"
            "  --tensors             list every tensor\n"
            "\nExample:\n"
            "  bitshard inspect SmolLM2-135M-Instruct.Q4_1.gguf --ranks=3\n",
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
