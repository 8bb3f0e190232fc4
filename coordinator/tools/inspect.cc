// bitshard inspect: what a checkpoint holds, how it would be sharded and which kernels this machine
// would choose (headers only); or which kernels a running service has chosen.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <grpcpp/grpcpp.h>

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "coordinator/tools/client.h"
#include "coordinator/tools/progress.h"
#include "coordinator/tools/verb.h"
#include "kernels/base/cpu_features.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/registry/kernel_probe.h"
#include "kernels/registry/linear.h"
#include "proto/admin.grpc.pb.h"

ABSL_FLAG(int32_t, ranks, 2, "show the plan for so many workers");
ABSL_FLAG(bool, tensors, false, "list every tensor");
ABSL_DECLARE_FLAG(std::string, activations);    // of local_service
ABSL_DECLARE_FLAG(std::string, admin_address);  // of bench

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
  size_t name_width = 8;  // quantized formats have long names
  for (const TensorInfo& tensor : index.tensors())
    name_width = std::max(name_width, tensor.format.size());
  const int width = static_cast<int>(name_width);
  // A tied head that is stored in the embedding's place is in the index under both names: its bytes
  // are the file's only once.
  std::set<std::pair<uint32_t, uint64_t>> counted;  // file and offset
  for (const TensorInfo& tensor : index.tensors()) {
    const TensorPart& first = tensor.parts.front();
    if (first.bytes == 0 || counted.emplace(first.file, first.offset).second) {
      for (Sum* sum : {&by_format[tensor.format], &all}) {
        ++sum->tensors;
        sum->values += tensor.rows * tensor.cols;
        sum->bytes += tensor.bytes();
      }
    }
    if (absl::GetFlag(FLAGS_tensors)) {
      std::printf("  %-56s %-*s [%s] %s\n", tensor.name.c_str(), width, tensor.format.c_str(),
                  absl::StrJoin(tensor.shape, ", ").c_str(), HumanBytes(tensor.bytes()).c_str());
    }
  }
  std::printf("  %-*s %8s %16s %12s %14s\n", width, "format", "tensors", "values", "bytes",
              "bits a value");
  by_format["all"] = all;
  for (const auto& [format, sum] : by_format) {
    const double bits =
        sum.values == 0 ? 0
                        : 8.0 * static_cast<double>(sum.bytes) / static_cast<double>(sum.values);
    std::printf("  %-*s %8lu %16lu %12s %14.2f\n", width, format.c_str(),
                static_cast<unsigned long>(sum.tensors), static_cast<unsigned long>(sum.values),
                HumanBytes(sum.bytes).c_str(), bits);
  }
}

absl::StatusOr<ActivationMode> ModeOf(const std::string& activations) {
  if (activations == "a16") return ActivationMode::kA16;
  if (activations == "a8") return ActivationMode::kA8;
  if (activations == "f32") return ActivationMode::kF32;
  return absl::InvalidArgumentError("--activations must be a16, a8 or f32");
}

// One line a distinct choice, as rank 0 of the plan would make it here.
absl::Status PrintKernels(const internal::RankPlan& plan, ActivationMode mode) {
  const Isa isa = BestIsa();
  const KernelOrder order = ProbeKernels(isa);
  std::map<std::string, int> lines;
  for (const internal::Node& node : plan.graph().nodes()) {
    if (!node.has_linear() && !node.has_lm_head()) continue;
    const uint32_t weight = node.has_linear() ? node.linear().weight() : node.lm_head().weight();
    for (const internal::TensorLoad& load : plan.load().tensors()) {
      if (load.weight() != weight || load.row_begin() == load.row_end() ||
          load.col_begin() == load.col_end())
        continue;
      ASSIGN_OR_RETURN(const WeightFormat* format, GetFormat(load.format()));
      const PackedSpec spec = format->Canonical(
          load.cols(), {load.row_begin(), load.row_end(), load.col_begin(), load.col_end()});
      const int64_t segment =
          node.has_linear() ? static_cast<int64_t>(node.linear().segment_cols()) : 0;
      const auto choice = BoundLinear::Choose(spec, mode, segment, isa, &order);
      std::string line = absl::StrCat(node.has_linear() ? "linear" : "lm_head", " ", load.format(),
                                      " as ", spec.Describe(), ": ");
      if (!choice.ok()) {
        absl::StrAppend(&line, "none; ", choice.status().message());
      } else {
        absl::StrAppend(
            &line, choice->kernel, IsFallback(*choice) ? ", a fallback" : "",
            choice->refused.empty() ? "" : absl::StrCat(" (", RefusalText(choice->refused), ")"));
      }
      ++lines[line];
    }
  }
  std::printf("\n  kernels of this machine (%s), activations %s:\n",
              std::string(IsaName(isa)).c_str(), absl::GetFlag(FLAGS_activations).c_str());
  for (const auto& [line, nodes] : lines) std::printf("  %5d x %s\n", nodes, line.c_str());
  std::printf("  measured just now, as a worker does when it starts, to choose among kernels:\n");
  for (const ProbeFigure& figure : order.figures()) {
    std::printf("    %-36s %-4s %3d tokens %8.1f GMAC/s\n", figure.kernel.c_str(),
                FormName(figure.form), figure.tokens, figure.gmacs_per_s);
  }
  return absl::OkStatus();
}

absl::Status PrintPlan(const Checkpoint& checkpoint, int ranks, ActivationMode mode) {
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
  return PrintKernels(plans[0], mode);
}

// What a running service says of itself.
int InspectService(const std::string& address) {
  const auto admin =
      v1::Admin::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext kernel_context, memory_context;
  v1::GetKernelReportResponse kernels;
  v1::GetMemoryReportResponse memory;
  grpc::Status status =
      admin->GetKernelReport(&kernel_context, v1::GetKernelReportRequest(), &kernels);
  if (status.ok())
    status = admin->GetMemoryReport(&memory_context, v1::GetMemoryReportRequest(), &memory);
  if (!status.ok()) {
    std::fprintf(stderr, "bitshard inspect: %s\n",
                 std::string(AdminError(address, status).message()).c_str());
    return 1;
  }
  for (const v1::RankKernels& rank : kernels.ranks()) {
    std::printf("rank %u\n", rank.rank());
    for (const v1::KernelBinding& binding : rank.kernels()) {
      std::printf("  %5u x %-12s %-34s %-4s %s%s\n", binding.layers(), binding.op().c_str(),
                  binding.format().c_str(), binding.activations().c_str(), binding.kernel().c_str(),
                  binding.speed() == v1::KERNEL_SPEED_FALLBACK ? "  FALLBACK" : "");
      for (const v1::RefusedKernel& refused : binding.refused()) {
        std::printf("          not %s: %s\n", refused.kernel().c_str(), refused.reason().c_str());
      }
    }
    if (!rank.probe().empty())
      std::printf("  measured when the worker started, to choose among kernels:\n");
    for (const v1::KernelProbe& probe : rank.probe()) {
      std::printf("    %-36s %-4s %3u tokens %8.1f GMAC/s\n", probe.kernel().c_str(),
                  probe.activations().c_str(), probe.tokens(), probe.gmacs_per_s());
    }
  }
  std::printf("\n%-5s %10s %10s %10s %12s %10s %10s %10s\n", "rank", "payload", "weights",
              "padding", "KV cache", "resident", "workspace", "other");
  for (const v1::RankMemory& rank : memory.ranks()) {
    std::printf("%-5u %10s %10s %10s %12s %10s %10s %10s\n", rank.rank(),
                HumanBytes(rank.read_bytes()).c_str(), HumanBytes(rank.weight_bytes()).c_str(),
                HumanBytes(rank.padding_bytes()).c_str(), HumanBytes(rank.kv_cache_bytes()).c_str(),
                HumanBytes(rank.kv_cache_resident_bytes()).c_str(),
                HumanBytes(rank.workspace_bytes()).c_str(), HumanBytes(rank.other_bytes()).c_str());
  }
  return 0;
}

int Run(const std::vector<std::string>& args) {
  if (const std::string address = absl::GetFlag(FLAGS_admin_address);
      args.empty() && !address.empty()) {
    if (const absl::Status status = CheckAddress("--admin-address", address); !status.ok())
      return UsageError("inspect", std::string(status.message()));
    return InspectService(address);
  }
  if (args.size() != 1) {
    return UsageError("inspect",
                      "needs exactly one model (a GGUF file or a Hugging Face folder), or "
                      "--admin-address=HOST:PORT of a running service");
  }
  const auto mode = ModeOf(absl::GetFlag(FLAGS_activations));
  if (!mode.ok()) return UsageError("inspect", std::string(mode.status().message()));
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
  if (const absl::Status status = PrintPlan(*checkpoint, ranks, *mode); !status.ok()) {
    std::fprintf(stderr, "\nbitshard inspect: this model cannot be served: %s\n",
                 std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

const RegisterVerb kRegistered({
    .name = "inspect",
    .summary = "what a checkpoint holds, how it would be sharded, which kernels run it",
    .help = "bitshard inspect MODEL [--flags]      MODEL: a GGUF file or a Hugging Face folder\n"
            "bitshard inspect --admin-address=HOST:PORT   the kernels and the memory of a running "
            "service\n\n"
            "Of a model, reads headers only, no weights: architecture, formats and bytes, and what "
            "each of "
            "--ranks workers would own and\n"
            "read. The loader uses the same plan.\n\n"
            "  --ranks=N             plan for N workers (2)\n"
            "  --tensors             list every tensor\n"
            "  --activations=a16     say which kernels this machine would choose with a16, a8 or "
            "f32\n"
            "  --admin-address=HOST:PORT   of a running service (its ready line names the admin "
            "port); its "
            "memory has these columns:\n"
            "      payload    bytes of the checkpoint that the rank has read\n"
            "      weights    what holds them in memory, as the kernels want them\n"
            "      padding    the part of weights that is no payload: rows and columns rounded up\n"
            "      KV cache   room for the KV blocks; resident: the part of it that has been used\n"
            "      workspace  activations and what a step needs beside them\n"
            "      other      the rest of the process: code, gRPC, buffers\n"
            "\nExamples:\n"
            "  bitshard inspect --admin-address=localhost:50054\n"
            "  bitshard inspect SmolLM2-135M-Instruct.Q4_1.gguf --ranks=3\n",
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
